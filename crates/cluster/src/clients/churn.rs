//! A client that creates, changes and drops tables all the time: what a standby's file view fears.
//!
//! Invariant: leaves no table behind that it does not know; a broken connection is not an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::pace::Pace;
use super::session::connect_any;

/// A server that takes longer to let somebody in is lost.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A round that takes longer has lost its server.
const ROUND_WITHIN: Duration = Duration::from_secs(60);

/// A running churn client.
#[derive(Debug)]
pub struct Churn {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    rounds: Arc<AtomicU64>,
}

impl Churn {
    /// Starts the client. `server` names all nodes.
    pub fn start(server: tokio_postgres::Config) -> Churn {
        Churn::paced(server, None)
    }

    /// The same with so many rounds a second, if that is limited.
    pub fn paced(server: tokio_postgres::Config, rate: Option<f64>) -> Churn {
        let (stop, stopped) = watch::channel(false);
        let rounds = Arc::new(AtomicU64::new(0));
        let pace = Pace::new(rate);
        let task = tokio::spawn(run(server, pace, stopped, rounds.clone()));
        Churn { stop, task, rounds }
    }

    /// Rounds completed so far.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Lets the round at hand finish. Returns how many there were.
    pub async fn stop(self) -> u64 {
        self.stop.send_replace(true);
        // A panic of the client has been printed; the rounds up to it still count.
        self.task.await.unwrap_or(());
        self.rounds.load(Ordering::Relaxed)
    }
}

async fn run(
    server: tokio_postgres::Config,
    pace: Pace,
    mut stop: watch::Receiver<bool>,
    rounds: Arc<AtomicU64>,
) {
    while !*stop.borrow() {
        // Nothing is at stake while it connects.
        let connected = tokio::select! {
            connected = connect_any(&server, CONNECT_WITHIN) => connected,
            _ = stop.changed() => return,
        };
        let Some(client) = connected else {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(100)) => continue,
                _ = stop.changed() => return,
            }
        };
        while !*stop.borrow() {
            tokio::select! {
                () = pace.wait() => {}
                _ = stop.changed() => return,
            }
            let number = rounds.load(Ordering::Relaxed);
            match tokio::time::timeout(ROUND_WITHIN, round(&client, number)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a round of table changes broke off");
                    if client.is_closed() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                // A server that vanished while its network was cut never says so.
                Err(_) => break,
            }
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One round: the life of a few tables of every kind.
async fn round(client: &tokio_postgres::Client, number: u64) -> Result<(), tokio_postgres::Error> {
    // Four names in turn, so that a table often takes the name of one just dropped.
    let name = format!("churn_{}", number % 4);
    let steps = [
        format!("DROP TABLE IF EXISTS {name}, {name}_unlogged, {name}_copy"),
        format!(
            "CREATE TABLE {name} AS SELECT g AS id, md5(g::text) AS word \
             FROM generate_series(1, 2000) g"
        ),
        format!("CREATE UNIQUE INDEX ON {name} (id)"),
        format!("CREATE INDEX ON {name} (word)"),
        format!("CREATE UNLOGGED TABLE {name}_unlogged AS SELECT * FROM {name}"),
        format!("UPDATE {name} SET word = word || 'x' WHERE id % 3 = 0"),
        format!("DELETE FROM {name} WHERE id > 1500"),
        format!("VACUUM {name}"),
        "CREATE TEMP TABLE scratch AS SELECT generate_series(1, 500) AS n".into(),
        "DROP TABLE scratch".into(),
        format!(
            "BEGIN; CREATE TABLE {name}_never (a int); INSERT INTO {name}_never VALUES (1); ROLLBACK"
        ),
        format!("CREATE TABLE {name}_copy AS TABLE {name}"),
        format!("TRUNCATE {name}_copy"),
        format!("INSERT INTO {name}_copy SELECT * FROM {name} LIMIT 100"),
        format!("ALTER TABLE {name}_copy ADD COLUMN filled int DEFAULT 7"),
        format!("ALTER TABLE {name}_copy ALTER COLUMN filled TYPE bigint"),
    ];
    for step in &steps {
        client.batch_execute(step).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server whose machine hung, or whose network was cut, while the client connected: a connection that stands, and
    /// that nothing is ever said on. The client waited on it for ever, and with it whoever had the client stop.
    #[tokio::test]
    async fn a_client_stops_while_a_server_takes_connections_and_says_nothing() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut server = tokio_postgres::Config::new();
        server
            .host("127.0.0.1")
            .port(silent.local_addr().unwrap().port());
        let client = Churn::start(server);
        let (_held, _) = silent.accept().await.unwrap();
        let stopped = tokio::time::timeout(Duration::from_secs(10), client.stop()).await;
        assert_eq!(stopped, Ok(0));
    }
}
