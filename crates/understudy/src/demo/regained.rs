//! Findings of the demo of the past, and its verdict.

use std::collections::HashSet;

use cluster::clients::clock::Offset;
use cluster::clients::history::History;
use serde::Serialize;

use super::timeline::thousands;

/// Rows of the table that is dropped.
pub(super) const ROWS: i64 = 1000;

/// Findings of the demo.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// True if the table came back three times, nothing is lost, and nothing is there that came later.
    pub passed: bool,
    /// Commits that clients were told of before the table was dropped.
    pub acknowledged: u64,
    /// Those of them that the branch, the restore or the rewound database lacks.
    pub lost: u64,
    /// Transactions in one of them that began after the moment.
    pub later: u64,
    /// Commits since the rewind that are not there at the end.
    pub lost_since: u64,
    /// From the command to the first answer of the branch.
    pub branch_ms: u64,
    /// From the command to the first answer of the server that was restored.
    pub restore_ms: u64,
    /// From the command until the database was served again at the moment.
    pub rewind_ms: u64,
    /// How long nobody served it in between.
    pub pause_ms: u64,
    /// Bytes of log that the repository lacks between its first image and its end.
    pub gap_bytes: u64,
    /// PostgreSQL, as it calls itself.
    pub postgres: String,
    /// Moment to which everything went back.
    pub moment: String,
    /// Decides the rows touched.
    pub seed: u64,
}

/// A commit, by who made it.
pub(super) type Commits = HashSet<(i32, i64)>;

pub(super) fn commits(history: &History) -> Commits {
    history.commits().map(|one| (one.client, one.n)).collect()
}

/// The moment that everything goes back to.
pub(super) struct Moment {
    pub position: String,
    /// Commits that clients had been told of.
    pub before: Commits,
    /// When the table was gone, on the load's clock.
    pub dropped: Offset,
}

/// Contents of a database.
pub(super) struct Rows {
    pub precious: i64,
    pub commits: Commits,
}

impl Report {
    pub(super) fn judge(
        &mut self,
        moment: &Moment,
        history: &History,
        found: &[Rows],
        at_end: &Rows,
        returned: Offset,
    ) {
        let attempts = history.attempts().iter();
        let later: Commits = attempts
            .filter(|one| one.began > moment.dropped && one.began < returned)
            .map(|one| (one.client, one.n))
            .collect();
        let since: Commits = history
            .commits()
            .filter(|one| one.began > returned)
            .map(|one| (one.client, one.n))
            .collect();
        self.lost = found
            .iter()
            .chain([at_end])
            .map(|rows| moment.before.difference(&rows.commits).count() as u64)
            .sum();
        // The rewound database is asked while clients go on with it.
        let at_moment = found.iter().take(2);
        self.later = at_moment
            .map(|rows| later.intersection(&rows.commits).count() as u64)
            .sum();
        self.lost_since = since.difference(&at_end.commits).count() as u64;
        let has_table = |rows: &Rows| rows.precious == ROWS;
        self.passed = found.iter().chain([at_end]).all(has_table)
            && (self.lost, self.later, self.lost_since, self.gap_bytes) == (0, 0, 0, 0)
            && !moment.before.is_empty()
            && !since.is_empty();
    }
}

/// The verdict, for people.
pub fn render(report: &Report) -> String {
    let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1000.0);
    format!(
        "\n\
         {}, seed {}\n\
         \n\
         DROP TABLE precious, and back to the moment before, {}:\n\
         \n\
         \x20 branch    {:>7}  beside the database, which was served all the time\n\
         \x20 restore   {:>7}  from a repository, as a server of its own\n\
         \x20 rewind    {:>7}  of the database itself; nobody served for {}\n\
         \n\
         {} commits were acknowledged before: {} lost. {} later ones came along. {} since the rewind were lost.\n\
         {} bytes of log are missing in the repository.\n\
         {}\n",
        report.postgres,
        report.seed,
        report.moment,
        seconds(report.branch_ms),
        seconds(report.restore_ms),
        seconds(report.rewind_ms),
        seconds(report.pause_ms),
        thousands(report.acknowledged),
        report.lost,
        report.later,
        report.lost_since,
        report.gap_bytes,
        match report.passed {
            true =>
                "PASSED: the table came back three times, with everything before the moment and nothing after it.",
            false => "FAILED",
        }
    )
}
