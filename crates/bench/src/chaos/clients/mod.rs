//! The clients: each kind does one thing, and writes down what it was told.
//!
//! Invariant: nothing is acknowledged but by the server's answer to COMMIT, nothing refused but what was never asked
//! to commit, or what the server said it rolled back. Clients know nothing of faults: they have a connection string
//! with all nodes, and connect again when their connection breaks.

pub(super) mod applications;
pub(super) mod lists;
pub(super) mod numbers;
pub(super) mod prepared;
pub(super) mod readers;
pub(super) mod roles;
pub(super) mod strong;

use std::time::Duration;

use cluster::clients::history::Outcome;
use cluster::clients::session::connect_any;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::{Client, Config, Error};

/// A client tries the next server after this.
const CONNECT_WITHIN: Duration = Duration::from_millis(1_500);
/// A client that found no server tries again after this. Each try is a process at each node.
const RETRY: Duration = Duration::from_millis(500);
/// A client gives up on an answer after this and connects again.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The tables of all of them but pgbench's.
pub(super) const SCHEMA: &str = "
    CREATE TABLE chaos_lists (key bigint PRIMARY KEY, list bigint[] NOT NULL);
    CREATE SEQUENCE chaos_sequence;
    CREATE TABLE chaos_numbers (number bigint NOT NULL);
    CREATE TABLE chaos_proof (n integer NOT NULL);
    CREATE TABLE chaos_prepared (client integer NOT NULL, n bigint NOT NULL, half integer NOT NULL)";

/// Connects to whoever accepts writes; nobody if it is told to stop before.
async fn writable(all: &Config, stop: &watch::Receiver<bool>) -> Option<Client> {
    while !*stop.borrow() {
        if let Some(client) = connect_any(all, CONNECT_WITHIN).await {
            return Some(client);
        }
        tokio::time::sleep(RETRY).await;
    }
    None
}

/// Why there is no answer.
#[derive(Debug)]
enum Trouble {
    /// None came in time.
    Silence,
    /// The server, or the connection, says this.
    Said(Error),
}

impl Trouble {
    /// What is known of a transaction whose COMMIT was answered like that. A server that says that it could not
    /// serialize it has rolled it back; everything else may have been said after it was committed.
    fn of_commit(&self) -> Outcome {
        match self {
            Trouble::Said(error) if error.code().is_some_and(|c| c.code().starts_with("40")) => {
                Outcome::Refused
            }
            _ => Outcome::Unknown,
        }
    }

    /// The SQLSTATE of what the server said.
    fn code(&self) -> Option<&str> {
        match self {
            Trouble::Said(error) => error.code().map(|code| code.code()),
            Trouble::Silence => None,
        }
    }
}

/// Waits for an answer.
async fn answer<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, Trouble> {
    match timeout(ANSWER_WITHIN, asked).await {
        Ok(answer) => answer.map_err(Trouble::Said),
        Err(_) => Err(Trouble::Silence),
    }
}
