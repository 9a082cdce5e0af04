//! The verdict: is every acknowledged commit there, and nothing that nobody tried?
//!
//! Invariant: looks only at what the database answers and at the clients' own history. The
//! comparison is pure; the queries are thin.

use std::path::Path;
use std::process::Stdio;

use anyhow::Context;
use serde::Serialize;
use tokio::process::Command;

use super::history::{History, Outcome};
use super::schema::Server;
use super::session::connect;

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// True if it holds.
    pub passed: bool,
    /// What was seen.
    pub detail: String,
}

/// The clients' history against the ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Commits that the server acknowledged.
    pub acknowledged: u64,
    /// Rows in the ledger.
    pub present: u64,
    /// Acknowledged, and not there. Must be empty.
    pub lost: Vec<(i32, i64)>,
    /// There, but refused or never tried, or there twice. Must be empty.
    pub unexpected: Vec<(i32, i64)>,
    /// Commits whose answer was lost.
    pub unknown: u64,
    /// How many of those are there.
    pub unknown_present: u64,
}

/// Compares what clients know with the rows of the ledger.
pub fn compare(history: &History, ledger: &[(i32, i64)]) -> Comparison {
    let mut outcomes = history.outcomes();
    let mut result = Comparison {
        acknowledged: history.count(Outcome::Acknowledged),
        unknown: history.count(Outcome::Unknown),
        present: ledger.len() as u64,
        ..Comparison::default()
    };
    for &row in ledger {
        match outcomes.remove(&row) {
            Some(Outcome::Acknowledged) => {}
            Some(Outcome::Unknown) => result.unknown_present += 1,
            Some(Outcome::Refused) | None => result.unexpected.push(row),
        }
    }
    result.lost = outcomes
        .into_iter()
        .filter(|&(_, outcome)| outcome == Outcome::Acknowledged)
        .map(|(row, _)| row)
        .collect();
    result.lost.sort_unstable();
    result
}

impl Comparison {
    /// The two checks that follow from it.
    pub fn checks(&self) -> [Check; 2] {
        [
            Check {
                name: "no acknowledged commit lost",
                passed: self.lost.is_empty(),
                detail: format!(
                    "{} acknowledged, {} lost{}",
                    self.acknowledged,
                    self.lost.len(),
                    examples(&self.lost)
                ),
            },
            Check {
                name: "nothing present that nobody committed",
                passed: self.unexpected.is_empty(),
                detail: format!(
                    "{} rows; {} of {} commits without an answer made it{}",
                    self.present,
                    self.unknown_present,
                    self.unknown,
                    examples(&self.unexpected)
                ),
            },
        ]
    }
}

fn examples(rows: &[(i32, i64)]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let first: Vec<String> = rows
        .iter()
        .take(5)
        .map(|(client, n)| format!("client {client} number {n}"))
        .collect();
    format!(", for example {}", first.join(", "))
}

/// Reads the ledger and the balances of `server`, and compares.
///
/// # Errors
/// The server does not answer the queries.
pub async fn database(
    server: &Server,
    history: &History,
) -> anyhow::Result<(Comparison, Vec<Check>)> {
    let client = connect(&server.config()).await?;
    let comparison = compare(history, &ledger(&client).await?);
    let mut checks = comparison.checks().to_vec();
    checks.push(balances(&client).await?);
    Ok((comparison, checks))
}

/// Reads the ledger, in order.
///
/// # Errors
/// The server does not answer.
pub async fn ledger(client: &tokio_postgres::Client) -> anyhow::Result<Vec<(i32, i64)>> {
    let rows = client.query("SELECT client, n FROM understudy_ledger ORDER BY 1, 2", &[]);
    let rows = rows.await.context("cannot read the ledger")?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// pgbench's invariant: the same money in accounts, tellers, branches and history.
async fn balances(client: &tokio_postgres::Client) -> anyhow::Result<Check> {
    let row = client
        .query_one(
            "SELECT (SELECT coalesce(sum(abalance), 0)::bigint FROM pgbench_accounts),
                    (SELECT coalesce(sum(tbalance), 0)::bigint FROM pgbench_tellers),
                    (SELECT coalesce(sum(bbalance), 0)::bigint FROM pgbench_branches),
                    (SELECT coalesce(sum(delta), 0)::bigint FROM pgbench_history),
                    (SELECT count(*) FROM pgbench_history),
                    (SELECT count(*) FROM understudy_ledger)",
            &[],
        )
        .await
        .context("cannot read the balances")?;
    let sums: [i64; 4] = [row.get(0), row.get(1), row.get(2), row.get(3)];
    let (history, ledger): (i64, i64) = (row.get(4), row.get(5));
    let agree = sums.iter().all(|sum| *sum == sums[0]) && history == ledger;
    let [accounts, tellers, branches, delta] = sums;
    Ok(Check {
        name: "balances agree",
        passed: agree,
        detail: if agree {
            format!("accounts, tellers, branches and history all sum to {accounts}")
        } else {
            format!(
                "accounts {accounts}, tellers {tellers}, branches {branches}, history {delta} \
                 ({history} rows, ledger {ledger})"
            )
        },
    })
}

/// `pg_amcheck --heapallindexed` over the whole database.
///
/// # Errors
/// The program cannot be started. What it finds is in the check.
pub async fn amcheck(bin: &Path, server: &Server) -> anyhow::Result<Check> {
    let program = bin.join("pg_amcheck");
    let output = Command::new(&program)
        .args(["--install-missing", "--heapallindexed", "--parent-check"])
        .args(server.arguments())
        .envs(server.environment())
        .arg(&server.database)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot run {}", program.display()))?;
    let said: Vec<u8> = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let said: Vec<&str> = said.lines().filter(|l| !l.trim().is_empty()).collect();
    let passed = output.status.success();
    Ok(Check {
        name: "pg_amcheck finds nothing",
        passed,
        detail: if passed {
            "every table and index, every heap row in its indexes".into()
        } else {
            said.into_iter().take(8).collect::<Vec<_>>().join("; ")
        },
    })
}

/// What the visibility map says of every table against the rows themselves: a wrong bit makes
/// index-only scans lie, or keeps rows from ever being frozen.
///
/// # Errors
/// The server does not answer, or has no `pg_visibility`.
pub async fn visibility(server: &Server) -> anyhow::Result<[Check; 2]> {
    let client = connect(&server.config()).await?;
    client
        .batch_execute("CREATE EXTENSION IF NOT EXISTS pg_visibility")
        .await
        .context("no pg_visibility")?;
    let mut checks = Vec::new();
    for (name, function) in [
        ("pages marked all-visible are", "pg_check_visible"),
        ("pages marked all-frozen are", "pg_check_frozen"),
    ] {
        let query = format!(
            "SELECT c.oid::regclass::text, count(*)
             FROM pg_class c, LATERAL {function}(c.oid)
             WHERE relkind IN ('r', 'm', 't') AND relpersistence <> 't' GROUP BY 1"
        );
        let rows = client.query(&query, &[]).await.context(name)?;
        let bad: Vec<String> = rows
            .iter()
            .map(|row| format!("{} rows of {}", row.get::<_, i64>(1), row.get::<_, &str>(0)))
            .collect();
        checks.push(Check {
            name,
            passed: bad.is_empty(),
            detail: match bad.is_empty() {
                true => "in every table".into(),
                false => format!("wrong for {}", bad.join(", ")),
            },
        });
    }
    <[Check; 2]>::try_from(checks).ok().context("two checks")
}

#[cfg(test)]
mod tests {
    use super::super::clock::Offset;
    use super::super::history::Attempt;
    use super::*;

    fn history(outcomes: &[(i32, i64, Outcome)]) -> History {
        let attempt = |&(client, n, outcome)| Attempt {
            client,
            n,
            outcome,
            began: Offset(0),
            ended: Offset(1),
        };
        History::new(outcomes.iter().map(attempt).collect())
    }

    #[test]
    fn an_unknown_commit_may_be_there_or_not() {
        let history = history(&[
            (1, 1, Outcome::Acknowledged),
            (1, 2, Outcome::Unknown),
            (2, 1, Outcome::Unknown),
        ]);
        let result = compare(&history, &[(1, 1), (1, 2)]);
        assert!(result.checks().iter().all(|check| check.passed));
        assert_eq!((result.unknown, result.unknown_present), (2, 1));
    }

    #[test]
    fn an_acknowledged_commit_that_is_not_there_is_lost() {
        let history = history(&[(1, 1, Outcome::Acknowledged), (1, 2, Outcome::Acknowledged)]);
        let result = compare(&history, &[(1, 1)]);
        assert_eq!(result.lost, [(1, 2)]);
        assert!(!result.checks()[0].passed);
    }

    #[test]
    fn refused_untried_and_doubled_rows_are_unexpected() {
        let history = history(&[(1, 1, Outcome::Acknowledged), (1, 2, Outcome::Refused)]);
        let result = compare(&history, &[(1, 1), (1, 1), (1, 2), (7, 7)]);
        assert_eq!(result.unexpected, [(1, 1), (1, 2), (7, 7)]);
        assert!(result.lost.is_empty());
        assert!(!result.checks()[1].passed);
    }
}
