//! A PostgreSQL that subscribes to the probe's rows: how long it gets nothing when the active is lost, and whether it has what the
//! new active has.
//!
//! Every system keeps the subscriber's slot in the way its users do: Understudy without a setting, Patroni by a permanent slot
//! in its configuration, or by PostgreSQL's own failover slots from 17 on.
//!
//! Invariant: the clock of the gap is the subscriber's alone, which stamps each row when it applies it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cluster::clients::schema::{Server, any_writable, connection_string};
use cluster::clients::session::connect;
use cluster::stock::Stock;
use pgserver::PgVersion;
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use super::probe::{TABLE, rows};

/// The name of the slot, of the publication and of the subscription.
pub(super) const SLOT: &str = "subscriber";
/// The first major version with failover slots.
const FAILOVER_SLOTS_FROM: u32 = 17;
/// How long the servers may take to have the slot.
const SLOT_WITHIN: Duration = Duration::from_secs(120);
/// How long the subscriber may take to have what the active has.
const CATCHES_UP_WITHIN: Duration = Duration::from_secs(60);

/// A loss of the active as the subscriber saw it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Subscribed {
    /// The longest time without a row.
    pub silent_ms: f64,
    /// Rows of the new active that the subscriber did not get, or got more than once.
    pub missing: u64,
    /// Rows of the subscriber that the new active does not have.
    pub unexpected: u64,
}

pub(super) struct Subscriber {
    _stock: Stock,
    client: Client,
}

impl Subscriber {
    /// Starts it, with PostgreSQL's programs in `bin`, and waits until it gets rows and each of `servers` has the slot.
    pub async fn start(bin: &Path, dir: &Path, servers: &[Server]) -> anyhow::Result<Subscriber> {
        let active = connect(&servers[0].config()).await?;
        let publication = format!("CREATE PUBLICATION {SLOT} FOR TABLE {TABLE}");
        active.batch_execute(&publication).await?;
        make_slot(&active, servers, has_failover_slots(bin)?).await?;
        let parameters = [("wal_retrieve_retry_interval", "100ms")];
        let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let stock = Stock::start(&dir.join(SLOT), bin, parameters.into()).await?;
        let client = connect(&stock.server().config()).await?;
        let publisher = connection_string(&any_writable(servers));
        let subscribe = format!(
            "CREATE TABLE {TABLE} (client integer, n bigint, applied timestamptz DEFAULT clock_timestamp()); \
             CREATE SUBSCRIPTION {SLOT} CONNECTION '{publisher}' PUBLICATION {SLOT} \
             WITH (create_slot = false, slot_name = '{SLOT}', copy_data = false)"
        );
        // A statement each: a subscription is not made in a transaction block.
        for statement in subscribe.split("; ") {
            client.batch_execute(statement).await?;
        }
        Ok(Subscriber {
            _stock: stock,
            client,
        })
    }

    /// Waits until it has what the active has. Returns what it saw.
    pub async fn seen(&self, servers: &[Server]) -> anyhow::Result<Subscribed> {
        let active = connect(&any_writable(servers)).await?;
        let wanted = rows(&active, TABLE).await?;
        let deadline = Instant::now() + CATCHES_UP_WITHIN;
        let found = loop {
            let found = rows(&self.client, TABLE).await?;
            if wanted.len() == found.len() || Instant::now() > deadline {
                break found;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        let distinct: BTreeSet<_> = found.iter().collect();
        let expected: BTreeSet<_> = wanted.iter().collect();
        let twice = found.len() - distinct.len();
        let gap = format!(
            "SELECT (1000 * max(gap))::float8 FROM (SELECT extract(epoch FROM applied - lag(applied) \
             OVER (ORDER BY applied)) AS gap FROM {TABLE}) AS gaps"
        );
        let gap: Option<f64> = self.client.query_one(&gap, &[]).await?.get(0);
        Ok(Subscribed {
            silent_ms: gap.context("the subscriber has got nothing")?.round(),
            missing: (expected.difference(&distinct).count() + twice) as u64,
            unexpected: distinct.difference(&expected).count() as u64,
        })
    }
}

/// True if PostgreSQL itself copies slots to standbys.
pub(super) fn has_failover_slots(bin: &Path) -> anyhow::Result<bool> {
    let output = Command::new(bin.join("postgres")).arg("--version").output();
    let output = output.context("postgres --version does not run")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = PgVersion::parse(&text).with_context(|| format!("no version: {text}"))?;
    Ok(version.major >= FAILOVER_SLOTS_FROM)
}

/// Makes the slot if the system does not, and waits until every server has it.
async fn make_slot(active: &Client, servers: &[Server], failover: bool) -> anyhow::Result<()> {
    let there = format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{SLOT}'");
    let deadline = Instant::now() + SLOT_WITHIN;
    // Patroni makes those of its configuration within seconds.
    tokio::time::sleep(Duration::from_secs(5)).await;
    if active.query_one(&there, &[]).await?.get::<_, i64>(0) == 0 {
        let failover = match failover {
            true => ", failover => true",
            false => "",
        };
        let made =
            format!("SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput'{failover})");
        active.batch_execute(&made).await?;
    }
    for server in servers {
        loop {
            // A standby may start again for the slot.
            if let Ok(client) = connect(&server.config()).await
                && let Ok(row) = client.query_one(&there, &[]).await
                && row.get::<_, i64>(0) == 1
            {
                break;
            }
            ensure!(Instant::now() < deadline, "{} has no slot", server.host);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    // One of the configuration is older than the publication, and changes from before that cannot be decoded for it.
    let advance = format!("SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())");
    active.batch_execute(&advance).await?;
    Ok(())
}
