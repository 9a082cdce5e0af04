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

/// Steps, and what they leave.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Steps that can be taken.
    pub steps: Vec<Step>,
    /// The first reason why the slots differ even after them.
    pub differs: Option<String>,
    /// Slots that decode and need less than the stored ones, or may: a promoted server must write them before it removes anything.
    pub marks: BTreeSet<String>,
}

/// Reading so much of the log takes no time that anybody notices.
const NEAR_BYTES: u64 = 4 << 20;

/// True if the server's own slot may need less than the stored one. Where neither begins far back, it is not asked which of them needs
/// older rows of the catalogs.
fn may_need_less(stored: &Slot, own: &Slot) -> bool {
    let Some(decoding) = stored.decoding.as_ref().filter(|_| !stored.is_invalid) else {
        return false;
    };
    own.restart > stored.restart || decoding.confirmed.0.saturating_sub(own.restart.0) <= NEAR_BYTES
}

/// The steps from the server's `own` slots to the `stored` ones of the active. `copied` are those that it began with and still has: others
/// are the standby's, and stay. The log is there from `oldest` on.
pub(super) fn plan(stored: &[Slot], own: &[Slot], copied: &BTreeSet<String>, oldest: Lsn) -> Plan {
    let mut plan = Plan::default();
    for slot in stored {
        // One that differs keeps no other.
        match step(slot, own, copied, oldest) {
            Ok(step) => plan.steps.extend(step),
            Err(why) => plan.differs = plan.differs.or(Some(why)),
        }
        let same = own.iter().find(|one| one.name == slot.name);
        if same.is_some_and(|same| may_need_less(slot, same)) {
            plan.marks.insert(slot.name.clone());
        }
    }
    let gone = own.iter().filter(|one| {
        copied.contains(&one.name) && !stored.iter().any(|slot| slot.name == one.name)
    });
    plan.steps.extend(gone.map(|one| Step::Drop {
        name: one.name.clone(),
    }));
    plan
}

/// The step to one stored slot, if there has to be one.
///
/// # Errors
/// Why none leads there.
fn step(
    slot: &Slot,
    own: &[Slot],
    copied: &BTreeSet<String>,
    oldest: Lsn,
) -> Result<Option<Step>, String> {
    let name = &slot.name;
    let same = own.iter().find(|one| one.name == *name);
    let same = same.ok_or_else(|| format!("the standby has no slot {name} yet"))?;
    if !copied.contains(name) {
        // Its reader would miss what lies between both.
        return Err(format!("the slot {name} was made on the standby itself"));
    }
    if slot.is_invalid && same.is_invalid {
        return Ok(None);
    }
    if !is_alike(slot, same) {
        return Err(format!("the slot {name} is another one on the standby"));
    }
    // Moving one that does not decode reads nothing.
    let is_further_back =
        slot.decoding.is_some() && same.restart != Lsn::ZERO && same.restart < slot.restart;
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
        Ordering::Less => Ok(Some(Step::Advance {
            name: name.clone(),
            from: at,
            to,
            decodes: slot.decoding.is_some(),
        })),
        Ordering::Equal => Ok(None),
        Ordering::Greater => Err(format!(
            "the slot {name} is at {at} on the standby, and at {to} on the active"
        )),
    }
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
        let plan = |stored: &Slot, own: &Slot| {
            let (stored, own) = (stored.clone(), own.clone());
            plan(&[stored], &[own], &copied(&["copy"]), Lsn(2))
        };
        let differs = plan(&now, &then).differs;
        assert!(differs.is_some(), "PostgreSQL does not move it");
        assert_eq!(plan(&then, &then), Plan::default());
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
        let copied = copied(&["cdc", "copy", "dropped"]);
        let plan = plan(&stored, &own, &copied, Lsn(400));
        assert_eq!(plan.steps, wanted, "a slot of the standby's own stays");
        assert_eq!(plan.differs, None);
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

    /// A physical slot is written at checkpoints, which remove log behind it at once: a busy cluster's standby attached again for each.
    #[test]
    fn a_slot_that_does_not_decode_needs_no_log_to_be_moved() {
        let (stored, own) = ([physical("copy", 900)], [physical("copy", 100)]);
        let plan = plan(&stored, &own, &copied(&["copy"]), Lsn(800));
        assert_eq!((plan.steps.len(), plan.differs), (1, None));
    }

    /// The first checkpoint of a promoted server removed by its copies, and left the stored slots with less than they needed.
    #[test]
    fn copies_that_may_need_less_are_marked() {
        let at = |restart_mb: u64| Slot {
            restart: Lsn(restart_mb << 20),
            ..logical("cdc", 100 << 20)
        };
        let marks = |stored: Slot, own: Slot| {
            let marks = plan(&[stored], &[own], &copied(&["cdc"]), Lsn(2)).marks;
            marks.len()
        };
        assert_eq!(marks(at(50), at(51)), 1);
        assert_eq!(marks(at(50), at(50)), 0, "a promotion waits for nothing");
        assert_eq!(marks(at(99), at(98)), 1, "its rows may be newer");
        let lost = Slot {
            is_invalid: true,
            ..at(50)
        };
        assert_eq!(
            marks(
                lost.clone(),
                Slot {
                    restart: Lsn(51 << 20),
                    ..lost
                }
            ),
            0
        );
    }

    /// The reader of the standby's own slot missed what lay between its position and the active's.
    #[test]
    fn a_slot_made_on_the_standby_is_not_taken_for_the_actives() {
        let stored = [logical("mine", 900), logical("cdc", 900)];
        let own = [logical("mine", 100), logical("cdc", 800)];
        let mixed = plan(&stored, &own, &copied(&["cdc"]), Lsn(2));
        assert!(mixed.differs.is_some());
        assert_eq!(mixed.steps.len(), 1, "the other one moves");
        let made_again = plan(&[], &[logical("dropped", 5)], &copied(&[]), Lsn(2));
        assert_eq!(made_again, Plan::default(), "it is no copy any more");
    }

    #[test]
    fn slots_that_steps_cannot_mend_differ() {
        let copied = copied(&["new", "cdc"]);
        let differ = |stored: Slot, own: &[Slot]| {
            let plan = plan(&[stored], own, &copied, Lsn(2));
            plan.differs.is_some()
        };
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
