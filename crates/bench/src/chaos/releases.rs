//! Two releases in one cluster: which of them each member has.
//!
//! Invariant: the volume is of the release before, and nobody finishes the upgrade, so each member can have either at any time.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::faults::Member;

#[derive(Debug)]
pub(super) struct Releases {
    before: PathBuf,
    new: PathBuf,
    upgraded: BTreeSet<Member>,
}

impl Releases {
    /// All have the release before.
    pub fn begin(before: PathBuf, new: PathBuf) -> Releases {
        Releases {
            before,
            new,
            upgraded: BTreeSet::new(),
        }
    }

    /// The program that a member is started with.
    pub fn program(&self, member: Member) -> &Path {
        match self.upgraded.contains(&member) {
            true => &self.new,
            false => &self.before,
        }
    }

    /// From its next start on a member has the other release.
    pub fn exchange(&mut self, member: Member) {
        if !self.upgraded.remove(&member) {
            self.upgraded.insert(member);
        }
    }
}
