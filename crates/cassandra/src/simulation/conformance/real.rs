//! The stage of three real nodes, of which a test sees and breaks the same things.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;
use tokio::runtime::Runtime;

use super::super::model::{Cell, Place};
use super::{Stage, Table};
use crate::server::{Cluster, Options};

/// Longer than a mutation may wait for a replica (`write_request_timeout`, 2 s), for sure.
const TOO_OLD: Duration = Duration::from_secs(7);
/// A paused client's request is given up after this; the coordinator goes on later, but in time.
const GIVEN_UP: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_secs(90);
const AGREEMENT_PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Insert,
    Delete,
    Select,
}

pub struct Real {
    runtime: Runtime,
    session: Session,
    cluster: Cluster,
    statements: BTreeMap<(Kind, bool), PreparedStatement>,
    cut_off: Vec<usize>,
    hanging: Vec<usize>,
    hints: bool,
    _directory: tempfile::TempDir,
}

fn name(table: Table) -> &'static str {
    match table {
        Table::Sound => "sound",
        Table::Bare => "bare",
    }
}

async fn create(session: &Session) {
    let ask = async |cql: String| {
        let deadline = Instant::now() + AGREEMENT_PATIENCE;
        // On a busy machine the nodes may need more than a minute to agree.
        while let Err(error) = session.query_unpaged(cql.as_str(), ()).await {
            assert!(Instant::now() < deadline, "{cql}: {error}");
        }
    };
    ask(
        "CREATE KEYSPACE IF NOT EXISTS scenes WITH replication = {'class': 'NetworkTopologyStrategy', \
         'dc1': 1, 'dc2': 1, 'dc3': 1}"
            .to_owned(),
    )
    .await;
    for (table, repair) in [(Table::Sound, "BLOCKING"), (Table::Bare, "NONE")] {
        // Nobody is asked, or told, besides those that the level needs: so it can be counted.
        ask(format!(
            "CREATE TABLE IF NOT EXISTS scenes.{} (p bigint, r bigint, data blob, PRIMARY KEY (p, r)) WITH \
             read_repair = '{repair}' AND speculative_retry = 'NEVER' AND \
             additional_write_policy = 'NEVER'",
            name(table)
        ))
        .await;
    }
}

impl Real {
    pub fn start() -> Real {
        let directory = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(Options::new(directory.path())).unwrap();
        let runtime = Runtime::new().unwrap();
        let (session, statements) = runtime.block_on(async {
            let builder = SessionBuilder::new().known_nodes_addr(cluster.contact_points());
            let session = builder.build().await.unwrap();
            create(&session).await;
            let mut statements = BTreeMap::new();
            for table in [Table::Sound, Table::Bare] {
                let t = name(table);
                for (kind, cql) in [
                    (
                        Kind::Insert,
                        format!(
                            "INSERT INTO scenes.{t} (p, r, data) VALUES (?, ?, ?) USING TIMESTAMP ?"
                        ),
                    ),
                    (
                        Kind::Delete,
                        format!("DELETE FROM scenes.{t} USING TIMESTAMP ? WHERE p = ? AND r = ?"),
                    ),
                    (
                        Kind::Select,
                        format!(
                            "SELECT data, writetime(data) FROM scenes.{t} WHERE p = ? AND r = ?"
                        ),
                    ),
                ] {
                    let prepared = session.prepare(cql).await.unwrap();
                    statements.insert((kind, table == Table::Sound), prepared);
                }
            }
            (session, statements)
        });
        Real {
            runtime,
            session,
            cluster,
            statements,
            cut_off: Vec::new(),
            hanging: Vec::new(),
            hints: true,
            _directory: directory,
        }
    }

    fn statement(
        &self,
        kind: Kind,
        table: Table,
        via: usize,
        level: Consistency,
    ) -> PreparedStatement {
        let mut statement = self.statements[&(kind, table == Table::Sound)].clone();
        let node = NodeIdentifier::NodeAddress(self.cluster.contact_points()[via]);
        let policy = SingleTargetLoadBalancingPolicy::new(node, None);
        statement.set_load_balancing_policy(Some(policy));
        statement.set_retry_policy(Some(Arc::new(FallthroughRetryPolicy)));
        statement.set_consistency(level);
        statement.set_request_timeout(Some(Duration::from_secs(15)));
        statement
    }

    /// True if it was acknowledged.
    fn write(
        &self,
        table: Table,
        place: Place,
        cell: &Cell,
        level: Consistency,
        timeout: Option<Duration>,
    ) -> bool {
        let (p, r) = (place.partition as i64, place.row as i64);
        let kind = if cell.is_live() {
            Kind::Insert
        } else {
            Kind::Delete
        };
        let mut statement = self.statement(kind, table, 0, level);
        if timeout.is_some() {
            statement.set_request_timeout(timeout);
        }
        let result = self.runtime.block_on(async {
            match &cell.value {
                Some(value) => {
                    let values = (p, r, value.clone(), cell.timestamp);
                    self.session.execute_unpaged(&statement, values).await
                }
                None => {
                    let values = (cell.timestamp, p, r);
                    self.session.execute_unpaged(&statement, values).await
                }
            }
        });
        result.is_ok()
    }

    fn read(&self, via: usize, table: Table, place: Place, level: Consistency) -> Option<Cell> {
        let statement = self.statement(Kind::Select, table, via, level);
        let values = (place.partition as i64, place.row as i64);
        let deadline = Instant::now() + TIMEOUT;
        loop {
            // A node that was just away may need a moment.
            let result = self
                .runtime
                .block_on(self.session.execute_unpaged(&statement, values));
            match result {
                Ok(result) => {
                    let rows = result.into_rows_result().unwrap();
                    let row = rows
                        .maybe_first_row::<(Option<Vec<u8>>, Option<i64>)>()
                        .unwrap();
                    let (data, timestamp) = row?;
                    return Some(Cell::live(timestamp?, data?));
                }
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

impl Stage for Real {
    fn write_all(&mut self, table: Table, place: Place, cell: Cell) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.write(table, place, &cell, Consistency::All, None) {
            assert!(Instant::now() < deadline, "nobody takes {cell:?}");
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    fn write_quorum(&mut self, table: Table, place: Place, cell: Cell) -> bool {
        self.write(table, place, &cell, Consistency::Quorum, None)
    }

    fn write_one(&mut self, table: Table, place: Place, cell: Cell) {
        assert!(self.write(table, place, &cell, Consistency::One, None));
    }

    fn write_late(&mut self, table: Table, place: Place, cell: Cell) {
        self.cluster.pause(0).unwrap();
        let done = self.write(table, place, &cell, Consistency::Quorum, Some(GIVEN_UP));
        assert!(!done, "a paused coordinator has answered");
        std::thread::sleep(GIVEN_UP);
        self.cluster.resume(0).unwrap();
    }

    fn read_quorum(&mut self, via: usize, table: Table, place: Place) -> Option<Cell> {
        self.read(via, table, place, Consistency::Quorum)
    }

    fn read_local(&mut self, node: usize, table: Table, place: Place) -> Option<Cell> {
        self.read(node, table, place, Consistency::LocalOne)
    }

    /// They are killed: one that was only stopped judges the age of what waits for it by a clock that stood still,
    /// too, and takes some of it.
    fn cut_off(&mut self, nodes: &[usize]) {
        for node in nodes {
            self.cluster.kill(*node).unwrap();
        }
        self.cut_off = nodes.to_vec();
    }

    fn hang(&mut self, nodes: &[usize]) {
        for node in nodes {
            self.cluster.pause(*node).unwrap();
        }
        self.hanging = nodes.to_vec();
    }

    fn reconnect(&mut self) {
        // From the last write on, which may have been just now.
        std::thread::sleep(TOO_OLD);
        for node in std::mem::take(&mut self.hanging) {
            self.cluster.resume(node).unwrap();
        }
        let killed = std::mem::take(&mut self.cut_off);
        if !killed.is_empty() {
            self.cluster.start_nodes(&killed).unwrap();
            // A node that starts has forgotten this.
            self.hints(self.hints);
        }
    }

    fn hints(&mut self, on: bool) {
        self.hints = on;
        let command = if on {
            "enablehandoff"
        } else {
            "disablehandoff"
        };
        for node in 0..3 {
            self.cluster.tool(node, &[command]).unwrap();
        }
    }

    fn settle(&mut self, done: &mut dyn FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !done(self) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn kill_and_restart(&mut self, node: usize) {
        self.cluster.kill(node).unwrap();
        self.cluster.start_nodes(&[node]).unwrap();
    }
}
