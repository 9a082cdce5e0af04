//! What the clients of a demo through a proxy saw, and what the proxy says that it did for them.

use std::time::Duration;

use anyhow::Context;
use cluster::Cluster;
use cluster::clients::history::{History, Outcome};
use cluster::clients::verify::Comparison;
use coordination::channel::{Proxy, ProxyReport};
use serde::Serialize;
use serde_json::Value;

/// How long the proxy's last report may take: it tells the agents once a second.
const REPORTS_WITHIN: Duration = Duration::from_secs(5);

/// Results of the proxy's clients, and the proxy's own counters.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Proxied {
    /// Transactions that failed for a client, or whose outcome it was not told.
    pub client_errors: u64,
    /// Transactions that were run again on another server, unnoticed.
    pub replayed: u64,
    /// Commits whose answer did not come from the server.
    pub in_doubt: u64,
    /// Those of them that had committed, and whose client was told so.
    pub in_doubt_committed: u64,
    /// Commits that are not there although the client was told so, or are there although it was told otherwise.
    pub told_wrong: u64,
    /// The longest that any client waited for the end of a transaction, in milliseconds.
    pub longest_pause_ms: f64,
}

impl Proxied {
    /// From what the clients saw, what is in the database, and what the proxy counted.
    pub fn new(history: &History, comparison: &Comparison, report: &ProxyReport) -> Proxied {
        let longest = history.attempts().iter();
        let longest = longest.map(|attempt| attempt.ended.since(attempt.began));
        Proxied {
            client_errors: history.count(Outcome::Refused) + history.count(Outcome::Unknown),
            replayed: report.replayed,
            in_doubt: report.in_doubt,
            in_doubt_committed: report.in_doubt_committed,
            told_wrong: (comparison.lost.len() + comparison.unexpected.len()) as u64,
            longest_pause_ms: longest.max().unwrap_or_default().as_secs_f64() * 1000.0,
        }
    }

    /// The same in a sentence.
    pub fn sentence(&self) -> String {
        format!(
            "Through the proxy: {} errors at clients, {} transactions run again, {} commits in doubt ({} had committed), \
             {} told wrong; the longest pause was {:.0} ms.",
            self.client_errors,
            self.replayed,
            self.in_doubt,
            self.in_doubt_committed,
            self.told_wrong,
            self.longest_pause_ms
        )
    }
}

/// What the proxy has told the active's agent, once it has told of all its clients' ends.
pub async fn report_of(cluster: &Cluster) -> anyhow::Result<ProxyReport> {
    let deadline = tokio::time::Instant::now() + REPORTS_WITHIN;
    loop {
        let status: Value = serde_json::from_str(&cluster.ask("status").await?)?;
        let proxies: Vec<Proxy> = serde_json::from_value(status["proxies"].clone())?;
        let report = proxies.into_iter().find_map(|proxy| proxy.report);
        let over = tokio::time::Instant::now() > deadline;
        match report {
            Some(report) if report.clients == 0 || over => return Ok(report),
            report if over => return report.context("the proxy has told nothing"),
            _ => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}
