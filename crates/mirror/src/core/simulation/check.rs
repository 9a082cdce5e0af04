//! Judges a history by what clients were told, and what the log and the members have in the end.

use std::collections::BTreeMap;

use super::World;
use super::client::Told;

impl World {
    pub(super) fn judge(&mut self) {
        if let Err(what) = self.find_fault() {
            self.break_promise(what);
        }
    }

    fn find_fault(&mut self) -> Result<(), String> {
        let mut logged: BTreeMap<u64, u32> = BTreeMap::new();
        let ends = self.zones.log.iter();
        for record in ends.filter(|record| record.draft.header.is_last) {
            *logged.entry(record.draft.token.count).or_default() += 1;
        }
        let told: Vec<Told> = self
            .clients
            .iter()
            .flat_map(|client| client.history.clone())
            .collect();
        for told in told {
            let times = logged.get(&told.xid).copied().unwrap_or_default();
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
        let wants = self.replayed()?;
        for (at, site) in self.sites.iter().enumerate() {
            if site.member.is_corrupt {
                // What is wrong there was not read by anybody; comparing the members would find it.
                continue;
            }
            if site.member.content != wants {
                let has = &site.member.content;
                return Err(format!(
                    "member {at} is not what the log says: {has:?} in place of {wants:?}"
                ));
            }
        }
        Ok(())
    }
}
