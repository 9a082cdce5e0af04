//! The same transactions by the simple protocol: one statement after the other, as text.

use rand::Rng;
use rand::rngs::SmallRng;
use tokio_postgres::{Client, Config, Error};

use super::session::connect;
use super::work::Work;

/// A connection to the active without prepared statements.
#[derive(Debug)]
pub struct Simple {
    client: Client,
}

impl Work for Simple {
    async fn open(server: &Config) -> Result<Simple, Error> {
        let client = connect(server).await?;
        Ok(Simple { client })
    }

    async fn prepare_commit(
        &self,
        client: i32,
        n: i64,
        scale: u32,
        random: &mut SmallRng,
    ) -> Result<(), Error> {
        let scale = i32::try_from(scale).unwrap_or(i32::MAX / 100_000);
        let account = random.random_range(1..=100_000 * scale);
        let teller = random.random_range(1..=10 * scale);
        let branch = random.random_range(1..=scale);
        let delta = random.random_range(-5000..=5000);
        for text in [
            "BEGIN".to_owned(),
            format!("INSERT INTO understudy_ledger (client, n) VALUES ({client}, {n})"),
            format!(
                "UPDATE pgbench_accounts SET abalance = abalance + {delta} WHERE aid = {account}"
            ),
            format!("SELECT abalance FROM pgbench_accounts WHERE aid = {account}"),
            format!(
                "UPDATE pgbench_tellers SET tbalance = tbalance + {delta} WHERE tid = {teller}"
            ),
            format!(
                "UPDATE pgbench_branches SET bbalance = bbalance + {delta} WHERE bid = {branch}"
            ),
            format!(
                "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) \
                 VALUES ({teller}, {branch}, {account}, {delta}, CURRENT_TIMESTAMP)"
            ),
        ] {
            self.client.simple_query(&text).await?;
        }
        Ok(())
    }

    async fn commit(&self) -> Result<(), Error> {
        self.client.batch_execute("COMMIT").await
    }
}
