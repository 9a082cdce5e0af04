//! Clusters whose active sends of a page what has changed.

use anyhow::{Context, Result, ensure};

use crate::stage::{Stage, TIMEOUT};

// hazard: D1
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn pages_are_whole_for_whoever_takes_over() -> Result<()> {
    let mut stage = Stage::with_options("differences", &["north", "south"], |options| {
        options.memory.push("differences = \"16MiB\"".to_owned());
    })
    .await?;
    for _ in 0..2 {
        let active = stage.cluster.wait_active(TIMEOUT).await?;
        let server = stage.cluster.server(&active)?;
        let client = cluster::clients::session::connect(&server.config()).await?;
        // The same pages are written again and again.
        for _ in 0..4 {
            stage.commits(100).await?;
            client.batch_execute("CHECKPOINT").await?;
        }
        let status = stage.status_of(&active).await?.context("it answers")?;
        let storage = &status["answer"]["storage"];
        let onto = storage["writes_onto"].as_u64();
        ensure!(onto > Some(20), "whole pages are sent: {storage}");
        let missed = storage["bases_missed"].as_u64();
        println!("{onto:?} differences, {missed:?} of them in vain");
        let (dead, killed) = stage.kill_active().await?;
        stage.outage_after(killed).await?;
        stage.cluster.start_node(&dead)?;
        stage.cluster.wait_follows(&dead, TIMEOUT).await?;
    }
    stage.verify().await
}
