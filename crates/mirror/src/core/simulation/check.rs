//! Judges a history by what clients were told, and what the log and the members have in the end.

use std::collections::BTreeMap;

use super::super::record::Token;
use super::World;
use super::client::Told;

impl World {
    pub(super) fn judge(&mut self) {
        if let Err(what) = self.find_fault() {
            self.break_promise(what);
        }
    }

    fn find_fault(&mut self) -> Result<(), String> {
        let mut logged: BTreeMap<Token, u32> = BTreeMap::new();
        for record in &self.zones.log {
            *logged.entry(record.draft.token).or_default() += 1;
        }
        let told: Vec<Told> = self
            .clients
            .iter()
            .flat_map(|client| client.history.clone())
            .collect();
        for told in told {
            let times = logged.get(&told.token).copied().unwrap_or_default();
            match told.committed {
                Some(true) if times != 1 => {
                    return Err(format!(
                        "acknowledged, and {times} times in the log: {told:?}"
                    ));
                }
                Some(false) if times != 0 => {
                    return Err(format!("told to have failed, and in the log: {told:?}"));
                }
                None if times > 1 => return Err(format!("{times} times in the log: {told:?}")),
                None if times == 1 => self.coverage.one("in doubt, and committed"),
                _ => {}
            }
        }
        let wants = self.replayed(self.zones.log.len())?;
        for (at, site) in self.sites.iter().enumerate() {
            if site.member.is_corrupt {
                // What is wrong there was not read by anybody; comparing the members would find it.
                continue;
            }
            if site.member.lists != wants {
                let has = &site.member.lists;
                return Err(format!(
                    "member {at} is not what the log says: {has:?} in place of {wants:?}"
                ));
            }
        }
        Ok(())
    }
}
