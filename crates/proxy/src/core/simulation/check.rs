//! Judges a history by what clients were told and what the log has.

use std::collections::HashMap;

use simulate::Coverage;

use super::client::{Client, Op, TransactionRecord};
use super::server::Commit;
use super::{Broken, World};
use crate::core::version::ReadMode;

impl World {
    pub(super) fn judge(&self) -> Result<Coverage, Broken> {
        let mut coverage = Coverage::default();
        coverage.some("takeovers", u64::from(self.takeovers));
        let final_lists = lists(&self.log);
        check_once(&final_lists)?;
        for client in &self.clients {
            for told in &client.history {
                self.check_outcome(told, &mut coverage)?;
            }
            self.check_reads(client, &final_lists)?;
            coverage.some("handed over", client.moves);
            let last = client.session.counts();
            for counts in client.counts.iter().chain([&last]) {
                coverage.some("reads on standbys", counts.on_standby);
                coverage.some("refused by standbys", counts.refused_by_standby);
                coverage.some("replayed", counts.replayed);
                coverage.some("in doubt", counts.in_doubt);
                coverage.some("in doubt, and committed", counts.in_doubt_committed);
            }
        }
        Ok(coverage)
    }

    /// What was told to have committed is in the log, as its client saw it; what was told not to is not.
    fn check_outcome(
        &self,
        told: &TransactionRecord,
        coverage: &mut Coverage,
    ) -> Result<(), Broken> {
        let appends: Vec<(u32, u32)> = appends_of(told).collect();
        coverage.one(match told.committed {
            Some(true) => "committed",
            Some(false) => "failed",
            None => "unknown",
        });
        let Some(first) = appends.first() else {
            return Ok(());
        };
        let commit = self
            .log
            .iter()
            .find(|commit| commit.appends.contains(first));
        match (told.committed, commit) {
            (Some(true), None) => Err(Broken(format!(
                "told to have committed, but lost: {told:?}"
            ))),
            (Some(false), Some(commit)) => {
                let text = format!("told to have failed, but committed: {told:?}, {commit:?}");
                Err(Broken(text))
            }
            (Some(true), Some(commit)) if commit.appends != appends => {
                Err(Broken(format!("committed otherwise: {told:?}, {commit:?}")))
            }
            (Some(true), Some(commit)) if told.reads != commit.reads => {
                let text = format!("had other answers than were told: {told:?}, {commit:?}");
                Err(Broken(text))
            }
            _ => Ok(()),
        }
    }

    fn check_reads(&self, client: &Client, lists: &HashMap<u32, Vec<u32>>) -> Result<(), Broken> {
        let mut seen: HashMap<u32, usize> = HashMap::new();
        let mut session = 0;
        for told in &client.history {
            if self.rules.read == ReadMode::Session && told.session != session {
                // Another session may see less.
                seen.clear();
            }
            session = told.session;
            // Within a transaction that writes, or fails, its own appends are seen as well.
            if appends_of(told).next().is_some() {
                continue;
            }
            let is_block = told.ops.len() > 1;
            for (key, values) in &told.reads {
                let list = lists.get(key).map_or(&[][..], Vec::as_slice);
                if !list.starts_with(values) {
                    let text = format!("read what is no beginning of {list:?}: {told:?}");
                    return Err(Broken(text));
                }
                let least = self.must_see(client, told, *key, list, &mut seen);
                if values.len() < least && !(is_block && self.rules.read == ReadMode::Active) {
                    let text = format!(
                        "{:?}: read {values:?} of {list:?}, had to see {least}: client {} {told:?}",
                        self.rules.read, client.id
                    );
                    return Err(Broken(text));
                }
                let entry = seen.entry(*key).or_default();
                *entry = (*entry).max(values.len());
            }
        }
        Ok(())
    }

    /// How many appends a read must see at least.
    fn must_see(
        &self,
        client: &Client,
        told: &TransactionRecord,
        key: u32,
        list: &[u32],
        seen: &mut HashMap<u32, usize>,
    ) -> usize {
        let of_whom = |other: &&Client| match self.rules.read {
            ReadMode::Strong => true,
            ReadMode::Session => other.id == client.id,
            _ => false,
        };
        let is_of_session = |other: &&TransactionRecord| {
            self.rules.read != ReadMode::Session || other.session == told.session
        };
        let earlier = self.clients.iter().filter(of_whom).flat_map(|other| {
            // Of what is not known to have committed its client looks for the effects.
            let may_be_there = move |told: &&TransactionRecord| match other.id == client.id {
                true => told.committed != Some(false),
                false => told.committed == Some(true),
            };
            other.history.iter().filter(may_be_there)
        });
        let acknowledged = earlier
            .filter(is_of_session)
            .filter(|other| other.to < told.from);
        let last = acknowledged
            .flat_map(appends_of)
            .filter(|(of, _)| *of == key)
            .filter_map(|(_, value)| list.iter().position(|&one| one == value))
            .max();
        let own = match self.rules.read {
            ReadMode::Strong | ReadMode::Session => seen.get(&key).copied().unwrap_or(0),
            _ => 0,
        };
        let read = match self.rules.read {
            ReadMode::Strong => self.was_read(key, told.from),
            _ => 0,
        };
        last.map_or(0, |at| at + 1).max(own).max(read)
    }
}

impl World {
    /// The number of values of a list that anybody had read before this moment, their own that may not have committed aside.
    fn was_read(&self, key: u32, before: u64) -> usize {
        let all = self.clients.iter().flat_map(|client| &client.history);
        let earlier = all.filter(|told| told.to < before && appends_of(told).next().is_none());
        let reads = earlier.flat_map(|told| &told.reads);
        let lens = reads.filter(|(of, _)| *of == key);
        lens.map(|(_, values)| values.len()).max().unwrap_or(0)
    }
}

fn appends_of(told: &TransactionRecord) -> impl Iterator<Item = (u32, u32)> + '_ {
    told.ops.iter().filter_map(|op| match op {
        Op::Append(key, value) | Op::Call(key, value) | Op::Operate(key, value) => {
            Some((*key, *value))
        }
        _ => None,
    })
}

fn lists(log: &[Commit]) -> HashMap<u32, Vec<u32>> {
    let mut lists: HashMap<u32, Vec<u32>> = HashMap::new();
    for (key, value) in log.iter().flat_map(|commit| &commit.appends) {
        lists.entry(*key).or_default().push(*value);
    }
    lists
}

/// Nothing was done twice.
fn check_once(lists: &HashMap<u32, Vec<u32>>) -> Result<(), Broken> {
    for (key, list) in lists {
        let mut sorted = list.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != list.len() {
            return Err(Broken(format!("done twice, on {key}: {list:?}")));
        }
    }
    Ok(())
}
