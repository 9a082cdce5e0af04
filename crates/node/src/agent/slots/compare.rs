//! Steps that a standby's server takes so that its slots are those of the active (pure).
//!
//! Invariant: a slot never goes further than the stored one, and what cannot be made equal by moving slots forward or
//! dropping them is said to differ. A server that is started on copies of the stored slots always agrees with them.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use pgdata::slot::Slot;
use volume::lsn::Lsn;

/// Something to ask the standby's server for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Move a slot forward. One that decodes reads the log for it.
    Advance {
        name: String,
        from: Lsn,
        to: Lsn,
        decodes: bool,
    },
    /// Drop a slot that the active has dropped.
    Drop { name: String },
}

impl Step {
    /// True if it reads the log.
    pub(super) fn decodes(&self) -> bool {
        matches!(self, Step::Advance { decodes: true, .. })
    }

    /// The same as steps that each read so much of the log at most.
    pub(super) fn parts(self, bytes: u64) -> Vec<Step> {
        let Step::Advance {
            name,
            from,
            to,
            decodes: true,
        } = self
        else {
            return vec![self];
        };
        let begins = (from.0..to.0).step_by(bytes as usize);
        let parts = begins.map(|begin| Step::Advance {
            name: name.clone(),
            from: Lsn(begin),
            to: Lsn(begin + bytes).min(to),
            decodes: true,
        });
        parts.collect()
    }
}

/// The steps from the server's `own` slots to the `stored` ones of the active. `copied` are those that it began with: others are
/// the standby's, and stay. The log is there from `oldest` on.
///
/// # Errors
/// Why no steps lead there.
pub(super) fn steps(
    stored: &[Slot],
    own: &[Slot],
    copied: &BTreeSet<String>,
    oldest: Lsn,
) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    for slot in stored {
        let name = &slot.name;
        let same = own.iter().find(|one| one.name == *name);
        let same = same.ok_or_else(|| format!("the standby has no slot {name} yet"))?;
        if slot.is_invalid && same.is_invalid {
            continue;
        }
        if !is_alike(slot, same) {
            return Err(format!("the slot {name} is another one on the standby"));
        }
        let is_further_back = same.restart != Lsn::ZERO && same.restart < slot.restart;
        if !slot.is_invalid && is_further_back && same.restart < oldest {
            return Err(format!(
                "the slot {name} needs log from {} on the standby, and the active needed none before {oldest}",
                same.restart
            ));
        }
        let (to, at) = (position(slot), position(same));
        if at == Lsn::ZERO && to > at {
            return Err(format!("the slot {name} reserves no log on the standby"));
        }
        match at.cmp(&to) {
            Ordering::Less => steps.push(Step::Advance {
                name: name.clone(),
                from: at,
                to,
                decodes: slot.decoding.is_some(),
            }),
            Ordering::Equal => {}
            Ordering::Greater => {
                return Err(format!(
                    "the slot {name} is at {at} on the standby, and at {to} on the active"
                ));
            }
        }
    }
    let gone = own.iter().filter(|one| {
        copied.contains(&one.name) && !stored.iter().any(|slot| slot.name == one.name)
    });
    steps.extend(gone.map(|one| Step::Drop {
        name: one.name.clone(),
    }));
    Ok(steps)
}

/// Where a subscriber goes on.
fn position(slot: &Slot) -> Lsn {
    match &slot.decoding {
        Some(decoding) => decoding.confirmed,
        None => slot.restart,
    }
}

fn is_alike(a: &Slot, b: &Slot) -> bool {
    let kind = |slot: &Slot| {
        let decoding = slot.decoding.as_ref();
        decoding.map(|d| (d.database, d.plugin.clone(), d.two_phase))
    };
    a.is_invalid == b.is_invalid && kind(a) == kind(b)
}

#[cfg(test)]
mod tests {
    use pgdata::slot::Decoding;

    use super::*;

    fn physical(name: &str, restart: u64) -> Slot {
        Slot {
            name: name.to_owned(),
            restart: Lsn(restart),
            is_invalid: false,
            decoding: None,
        }
    }

    #[test]
    fn a_slot_that_reserved_nothing_when_it_was_copied_differs() {
        let (now, then) = (physical("copy", 700), physical("copy", 0));
        let steps = |stored: &Slot, own: &Slot| {
            let (stored, own) = (stored.clone(), own.clone());
            steps(&[stored], &[own], &copied(&["copy"]), Lsn(2))
        };
        assert!(steps(&now, &then).is_err(), "PostgreSQL does not move it");
        assert_eq!(steps(&then, &then), Ok(Vec::new()));
    }

    fn logical(name: &str, confirmed: u64) -> Slot {
        let decoding = Decoding {
            database: 5,
            plugin: "pgoutput".to_owned(),
            two_phase: false,
            confirmed: Lsn(confirmed),
        };
        Slot {
            decoding: Some(decoding),
            ..physical(name, confirmed / 2)
        }
    }

    fn copied(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn slots_move_forward_and_go_with_the_actives() {
        let stored = [logical("cdc", 900), physical("copy", 700)];
        let own = [
            logical("cdc", 800),
            physical("copy", 700),
            logical("dropped", 1),
            physical("mine", 1),
        ];
        let wanted = [
            Step::Advance {
                name: "cdc".to_owned(),
                from: Lsn(800),
                to: Lsn(900),
                decodes: true,
            },
            Step::Drop {
                name: "dropped".to_owned(),
            },
        ];
        let steps = steps(
            &stored,
            &own,
            &copied(&["cdc", "copy", "dropped"]),
            Lsn(400),
        );
        assert_eq!(steps.unwrap(), wanted, "a slot of the standby's own stays");
    }

    #[test]
    fn a_long_way_is_gone_in_parts() {
        let advance = |from, to, decodes| Step::Advance {
            name: "cdc".to_owned(),
            from: Lsn(from),
            to: Lsn(to),
            decodes,
        };
        let parts = [(5, 15), (15, 25), (25, 30)].map(|(from, to)| advance(from, to, true));
        assert_eq!(advance(5, 30, true).parts(10), parts);
        let whole = advance(5, 30, false);
        assert_eq!(whole.clone().parts(10), [whole], "it reads nothing");
    }

    #[test]
    fn slots_that_steps_cannot_mend_differ() {
        let differ =
            |stored: Slot, own: &[Slot]| steps(&[stored], own, &copied(&[]), Lsn(2)).is_err();
        assert!(differ(logical("new", 5), &[]));
        assert!(differ(logical("cdc", 5), &[logical("cdc", 6)]));
        assert!(differ(logical("cdc", 5), &[physical("cdc", 5)]));
        let mut two_phase = logical("cdc", 5);
        two_phase.decoding.as_mut().unwrap().two_phase = true;
        assert!(differ(two_phase, &[logical("cdc", 5)]));
        let lost = Slot {
            is_invalid: true,
            ..logical("cdc", 5)
        };
        assert!(differ(logical("cdc", 5), std::slice::from_ref(&lost)));
        assert!(differ(lost.clone(), &[logical("cdc", 5)]));
        assert!(!differ(lost.clone(), &[lost]));
        let behind = Slot {
            restart: Lsn(1),
            ..logical("cdc", 5)
        };
        assert!(differ(logical("cdc", 5), &[behind]), "its log is gone");
    }
}
