//! A client that commits a numbered row every 10 ms and knows which were acknowledged.

use anyhow::Context;
use rand::rngs::SmallRng;
use tokio_postgres::{Client, Config, Error, Statement};

use cluster::clients::session::connect;
use cluster::clients::work::Work;

/// Where the rows go.
pub(super) const TABLE: &str = "understudy_probe";
/// Rows a second.
pub(super) const RATE: f64 = 100.0;

/// Creates the table.
pub(super) async fn create(server: &Config) -> anyhow::Result<()> {
    let query = format!("CREATE TABLE {TABLE} (client integer, n bigint, PRIMARY KEY (client, n))");
    Ok(connect(server).await?.batch_execute(&query).await?)
}

/// The rows of a table of clients' numbers.
pub(super) async fn rows(client: &Client, table: &str) -> anyhow::Result<Vec<(i32, i64)>> {
    let query = format!("SELECT client, n FROM {table}");
    let rows = client.query(&query, &[]).await;
    let rows = rows.context("cannot read the rows")?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// A connection of it.
#[derive(Debug)]
pub(super) struct Probe {
    client: Client,
    insert: Statement,
}

impl Work for Probe {
    async fn open(server: &Config) -> Result<Probe, Error> {
        let client = connect(server).await?;
        let insert = format!("INSERT INTO {TABLE} (client, n) VALUES ($1, $2)");
        let insert = client.prepare(&insert).await?;
        Ok(Probe { client, insert })
    }

    async fn prepare_commit(
        &self,
        client: i32,
        n: i64,
        _scale: u32,
        _random: &mut SmallRng,
    ) -> Result<(), Error> {
        tokio::try_join!(self.client.batch_execute("BEGIN"), async {
            self.client
                .execute(&self.insert, &[&client, &n])
                .await
                .map(drop)
        },)?;
        Ok(())
    }

    async fn commit(&self) -> Result<(), Error> {
        self.client.batch_execute("COMMIT").await
    }
}
