//! No commit is lost: what was acknowledged is in the log that every later owner begins with.
//!
//! A commit is a block of the log behind the one before it. A new owner reads the log with ReadPromote from
//! the end of its seal's on, until nothing fits any more, and goes on from there: what it has then is the
//! surviving history.

use std::collections::BTreeMap;

use dax::ids::Epoch;
use dax::simulation::checkers::Violation;
use dax::simulation::history::{Content, NOTHING};

#[derive(Debug, Default)]
pub struct Commits {
    /// What was in the log before each commit: the chain of the records' checksums.
    before: BTreeMap<Content, Content>,
    /// In which epoch, where in the log, what.
    acknowledged: Vec<(Epoch, usize, Content)>,
    /// With which log each owner began.
    began: BTreeMap<Epoch, Vec<Content>>,
}

impl Commits {
    /// A commit is written behind this log.
    pub fn made(&mut self, content: Content, log: &[Content]) {
        let before = log.last().copied().unwrap_or(NOTHING);
        self.before.insert(content, before);
    }

    /// True if it belongs behind this log.
    pub fn fits(&self, content: Content, log: &[Content]) -> bool {
        let last = log.last().copied().unwrap_or(NOTHING);
        self.before.get(&content) == Some(&last)
    }

    /// Whoever committed is told so.
    ///
    /// # Errors
    /// A later owner has begun without it.
    pub fn acknowledged(
        &mut self,
        epoch: Epoch,
        position: usize,
        content: Content,
    ) -> Result<(), Violation> {
        self.acknowledged.push((epoch, position, content));
        let mut later = self.began.range(epoch.next()..);
        let without = later.find(|(_, log)| log.get(position) != Some(&content));
        without.map_or(Ok(()), |(owner, _)| Err(lost(content, epoch, *owner)))
    }

    /// An owner begins with this log.
    ///
    /// # Errors
    /// Something that was acknowledged is not in it.
    pub fn began(&mut self, owner: Epoch, log: Vec<Content>) -> Result<(), Violation> {
        let earlier = self.acknowledged.iter().filter(|(e, ..)| *e < owner);
        let mut missing = earlier.filter(|(_, position, c)| log.get(*position) != Some(c));
        let result = missing.next().map_or(Ok(()), |(epoch, _, content)| {
            Err(lost(*content, *epoch, owner))
        });
        self.began.insert(owner, log);
        result
    }

    /// How many were acknowledged.
    pub fn count(&self) -> u64 {
        self.acknowledged.len() as u64
    }
}

fn lost(content: Content, epoch: Epoch, owner: Epoch) -> Violation {
    Violation {
        checker: "commits",
        what: format!("commit {content} of {epoch} is outside of the history of {owner}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledged_commit_must_survive_whenever_it_is_told() {
        let mut commits = Commits::default();
        commits.acknowledged(Epoch(1), 0, 7).unwrap();
        commits.began(Epoch(2), vec![7, 8]).unwrap();
        // Told late, of what the successor found.
        commits.acknowledged(Epoch(1), 1, 8).unwrap();
        assert!(commits.acknowledged(Epoch(1), 2, 9).is_err());
        assert!(commits.began(Epoch(3), vec![8, 7]).is_err());
    }

    #[test]
    fn unacknowledged_writes_may_be_gone() {
        let mut commits = Commits::default();
        commits.made(7, &[]);
        commits.made(8, &[7]);
        assert!(commits.fits(7, &[]) && commits.fits(8, &[7]));
        assert!(!commits.fits(8, &[]) && !commits.fits(NOTHING, &[]));
        commits.acknowledged(Epoch(1), 0, 7).unwrap();
        commits.began(Epoch(2), vec![7]).unwrap();
        assert_eq!(commits.count(), 1);
    }
}
