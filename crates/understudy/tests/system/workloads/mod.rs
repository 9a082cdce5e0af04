//! What PostgreSQL does to files beside reading and writing pages, each through a standby and a
//! takeover: databases copied, tables rewritten, indexes built across a seal, transactions that
//! outlive their server.
//!
//! One cluster plays all of it. What each act left is asked of the active as a line of text; the
//! standby must say the same, and so must the new active after the old one was killed.

mod acts;
mod held;
mod theatre;

use anyhow::{Result, ensure};

use acts::ACTS;
use held::Held;
use theatre::Theatre;

// hazard: H1, H5
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn every_kind_of_change_survives_a_takeover() -> Result<()> {
    let mut theatre = Theatre::open("workloads").await?;
    for act in ACTS {
        theatre.play(act).await?;
    }
    theatre.databases_come_and_go_while_the_base_moves().await?;
    theatre.an_index_is_built_across_a_seal().await?;
    theatre.log_of_transactions_grows_by_pages().await?;
    theatre.tablespaces_are_refused().await?;
    let held = Held::open(&theatre).await?;

    let said = theatre.ask_active().await?;
    theatre.standby_says(&said).await?;
    held.numbers_given().await?;
    theatre.kill_active().await?;
    theatre.active_says(&said).await?;
    held.judge(&theatre).await?;
    theatre.goes_on().await?;
    let found = theatre.unexpected_log_lines();
    ensure!(found.is_empty(), "{}", found.join("\n"));
    theatre.close().await
}
