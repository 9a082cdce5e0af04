//! Commits that the log has, by the servers that made them, and those that the member has by itself.
//!
//! Invariant: what is noted of a server only rises.

use std::collections::BTreeMap;

use super::record::Record;
use super::rows::{Header, Lsn, Origin};

/// See the module.
#[derive(Debug, Default)]
pub struct Captured {
    /// The member's own server.
    own: Option<u64>,
    /// Up to where the member has the commits of servers, by their system identifiers.
    has: BTreeMap<u64, Lsn>,
    /// Up to where the log has the commits of servers, as far as it was read.
    logged: BTreeMap<u64, Lsn>,
    /// The server of the log's last commit.
    last: Option<u64>,
}

impl Captured {
    /// The log has a record.
    pub fn note(&mut self, record: &Record) {
        let header = &record.draft.header;
        if header.is_last {
            let Origin { system, end, .. } = header.origin;
            self.settled(system, end);
            self.last = Some(system);
        }
    }

    /// The log has the commits of a server up to there, or gets them no more.
    pub fn settled(&mut self, system: u64, up_to: Lsn) {
        let logged = self.logged.entry(system).or_default();
        *logged = up_to.max(*logged);
    }

    /// True if the member has a commit.
    pub fn contains(&self, header: &Header) -> bool {
        let has = self.has.get(&header.origin.system);
        has.is_some_and(|up_to| header.origin.end <= *up_to)
    }

    /// True if the member's own server has made a commit.
    pub fn is_own(&self, header: &Header) -> bool {
        self.own == Some(header.origin.system)
    }

    /// The member has all commits of these servers up to there; the first of them is its own.
    pub fn member_has(&mut self, commits: impl IntoIterator<Item = (u64, Lsn)>) {
        let commits: Vec<(u64, Lsn)> = commits.into_iter().collect();
        self.own = commits.first().map(|(system, _)| *system);
        self.has = commits.into_iter().collect();
    }

    /// The member has all commits of its own up to there, and nobody makes more.
    pub fn own_ends(&mut self, up_to: Lsn) {
        if let Some(own) = self.own {
            let has = self.has.entry(own).or_default();
            *has = up_to.max(*has);
        }
    }

    /// True if the member's commits are logged as rows.
    pub fn is_known(&self) -> bool {
        !self.has.is_empty()
    }

    /// Up to where the log has the commits of a server.
    pub fn logged_of(&self, system: u64) -> Lsn {
        self.logged.get(&system).copied().unwrap_or_default()
    }

    /// True if no other server's commit is the log's last.
    pub fn may_follow(&self, system: u64) -> bool {
        self.last.is_none_or(|last| last == system)
    }
}
