//! Clients of the order entry: TPC-C in small, in functions of the server (`orders.sql`).

use std::time::Duration;

use anyhow::Context;
use rand::Rng;
use rand::rngs::SmallRng;
use tokio_postgres::{Client, Config, Error, Statement};

use cluster::clients::session::connect;
use cluster::clients::work::Work;

/// How much there is, for each warehouse.
pub(crate) const CUSTOMERS: i32 = 300;
pub(crate) const ITEMS: i32 = 5000;
pub(crate) const DISTRICTS: i32 = 10;
/// Orders that a purge leaves in a district.
const KEPT: i32 = 400;
/// A statement of a client waits for nobody longer than this.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Creates and fills the tables.
///
/// # Errors
/// The server does not, or they are there.
pub async fn create(server: &Config, warehouses: u32) -> anyhow::Result<()> {
    let client = connect(server).await?;
    client
        .batch_execute(include_str!("orders.sql"))
        .await
        .context("cannot create the order entry")?;
    let warehouses = i32::try_from(warehouses).context("too many warehouses")?;
    client
        .query_one(
            "SELECT shop.fill($1, $2, $3)::text",
            &[&warehouses, &CUSTOMERS, &ITEMS],
        )
        .await
        .context("cannot fill the order entry")?;
    client.batch_execute("VACUUM ANALYZE").await?;
    Ok(())
}

/// A connection of a client.
#[derive(Debug)]
pub struct Orders {
    client: Client,
    ledger: Statement,
    place: Statement,
    pay: Statement,
    deliver: Statement,
    purge: Statement,
}

impl Work for Orders {
    async fn open(server: &Config) -> Result<Orders, Error> {
        let client = connect(server).await?;
        let timeout = format!("SET lock_timeout = {}", TIMEOUT.as_millis());
        client.batch_execute(&timeout).await?;
        let (ledger, place, pay, deliver, purge) = tokio::try_join!(
            client.prepare("INSERT INTO shop.ledger VALUES ($1, $2)"),
            client.prepare("SELECT shop.place_order($1, $2, $3, $4)::text"),
            client.prepare("SELECT shop.pay($1, $2, $3, $4)::text"),
            client.prepare("SELECT shop.deliver($1, $2)::text"),
            client.prepare("SELECT shop.purge($1, $2, $3)::text"),
        )?;
        Ok(Orders {
            client,
            ledger,
            place,
            pay,
            deliver,
            purge,
        })
    }

    async fn prepare_commit(
        &self,
        client: i32,
        n: i64,
        scale: u32,
        random: &mut SmallRng,
    ) -> Result<(), Error> {
        let warehouses = i32::try_from(scale).unwrap_or(i32::MAX);
        let w = random.random_range(1..=warehouses);
        let d = random.random_range(1..=DISTRICTS);
        let c = random.random_range(1..=CUSTOMERS);
        let amount = random.random_range(100..500_000_i64);
        let kind = random.random_range(0..100);
        self.client.batch_execute("BEGIN").await?;
        self.client.execute(&self.ledger, &[&client, &n]).await?;
        // TPC-C's shares, but that an order is delivered for each that is placed.
        match kind {
            0..35 => self.client.query(&self.place, &[&w, &d, &c, &ITEMS]).await,
            35..60 => self.client.query(&self.pay, &[&w, &d, &c, &amount]).await,
            60..97 => self.client.query(&self.deliver, &[&w, &d]).await,
            _ => self.client.query(&self.purge, &[&w, &d, &KEPT]).await,
        }
        .map(drop)
    }

    async fn commit(&self) -> Result<(), Error> {
        self.client.batch_execute("COMMIT").await
    }
}
