//! What is broken just now, and whether a further fault may strike. Pure.
//!
//! ```text
//!   whole ── struck ──▶ broken, until a moment ──▶ whole
//!   disk: whole ── lost or rotten ──▶ to be rebuilt ── the round is over, and it was rebuilt ──▶ whole
//! ```
//!
//! Invariants: everything but a disk is whole again after its time, so nobody waits for ever. At most one zone at a
//! time has lost or damaged anything, and the next only after that one was rebuilt: that is what three copies, two
//! of them acknowledged, are promised to survive. A fault that would break that, or strikes what is not there, does
//! not strike.

use std::collections::BTreeSet;
use std::time::Duration;

use super::plan::Way;

/// A member of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Member {
    Node(u8),
    Zone(u8),
}

/// What is wrong with a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    /// It does not run.
    Down,
    /// It, or a part of it, is stopped.
    Frozen,
    /// Its lines to everybody.
    Network,
    /// Its line to another, as this direction.
    Link(Member),
    /// Its disk has no room.
    Full,
    /// Its clock is wrong.
    Clock,
}

/// Why a fault does not strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Refusal {
    /// Nobody is who it should strike.
    Nobody,
    /// It does not run, so nothing can be done to it.
    Down,
    /// That is broken already.
    Already,
    /// Another zone's disk is not rebuilt: more than the copies are promised to survive.
    TooMuch,
}

/// What is broken, and until when. Moments are since the beginning.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    troubles: Vec<(Duration, Member, Trouble)>,
    disks: BTreeSet<u8>,
    /// The rule of one disk at a time is broken on purpose.
    reckless: bool,
}

impl Faults {
    /// `reckless` ones lose more disks than is promised to be survived.
    pub fn new(reckless: bool) -> Faults {
        Faults {
            reckless,
            ..Faults::default()
        }
    }

    /// True if a member has that.
    pub fn has(&self, member: Member, trouble: Trouble) -> bool {
        let mut all = self.troubles.iter();
        all.any(|(_, m, t)| (*m, *t) == (member, trouble))
    }

    /// True if a member's processes can be done something to.
    pub fn running(&self, member: Member) -> Result<(), Refusal> {
        match self.has(member, Trouble::Down) {
            true => Err(Refusal::Down),
            false => Ok(()),
        }
    }

    /// Breaks something until a moment.
    ///
    /// # Errors
    /// It is broken already, or does not run.
    pub fn strike(
        &mut self,
        member: Member,
        trouble: Trouble,
        until: Duration,
    ) -> Result<(), Refusal> {
        if self.has(member, trouble) {
            return Err(Refusal::Already);
        }
        if trouble == Trouble::Frozen {
            self.running(member)?;
        }
        self.troubles.push((until, member, trouble));
        Ok(())
    }

    /// Damages a zone's disk.
    ///
    /// # Errors
    /// Another one is not rebuilt.
    pub fn damage(&mut self, zone: u8) -> Result<(), Refusal> {
        if self.disks.iter().any(|other| *other != zone) && !self.reckless {
            return Err(Refusal::TooMuch);
        }
        self.disks.insert(zone);
        Ok(())
    }

    /// The zones whose disks were damaged since everything was whole.
    pub fn damaged(&self) -> &BTreeSet<u8> {
        &self.disks
    }

    /// All zones have all copies again.
    pub fn rebuilt(&mut self) {
        self.disks.clear();
    }

    /// Takes a trouble away whose time is over.
    pub fn end(&mut self, now: Duration) -> Option<(Member, Trouble)> {
        let at = self
            .troubles
            .iter()
            .position(|(until, _, _)| *until <= now)?;
        let (_, member, trouble) = self.troubles.swap_remove(at);
        Some((member, trouble))
    }

    /// Takes all that is wrong with a member's processes away: it was killed and starts anew.
    pub fn thaw(&mut self, member: Member) {
        let frozen =
            |(_, m, t): &(Duration, Member, Trouble)| (*m, *t) == (member, Trouble::Frozen);
        self.troubles.retain(|trouble| !frozen(trouble));
    }

    /// Lets every trouble end now.
    pub fn end_all(&mut self, now: Duration) {
        self.troubles
            .iter_mut()
            .for_each(|(until, _, _)| *until = now);
    }
}

/// The ordered pairs of ends that a fault of the network is about; `None` is everybody else.
pub(crate) fn directions<T: Copy>(a: T, b: T, way: Way) -> Vec<(T, T)> {
    match way {
        Way::In => vec![(b, a)],
        Way::Out => vec![(a, b)],
        Way::Both => vec![(a, b), (b, a)],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn faults_end_after_their_time() {
        let mut faults = Faults::default();
        let zone = Member::Zone(1);
        faults.strike(zone, Trouble::Down, 3 * SECOND).unwrap();
        let again = faults.strike(zone, Trouble::Down, 9 * SECOND);
        assert_eq!(again, Err(Refusal::Already));
        let frozen = faults.strike(zone, Trouble::Frozen, 9 * SECOND);
        assert_eq!(frozen, Err(Refusal::Down));
        assert_eq!(faults.end(2 * SECOND), None);
        assert_eq!(faults.end(3 * SECOND), Some((zone, Trouble::Down)));
        assert!(!faults.has(zone, Trouble::Down));
    }

    #[test]
    fn a_second_disk_is_left_alone_until_the_first_is_rebuilt() {
        let mut faults = Faults::default();
        faults.damage(1).unwrap();
        faults.damage(1).unwrap();
        assert_eq!(faults.damage(2), Err(Refusal::TooMuch));
        faults.rebuilt();
        faults.damage(2).unwrap();
        assert!(Faults::new(true).damage(1).is_ok());
        let mut reckless = Faults::new(true);
        assert!(reckless.damage(0).and(reckless.damage(1)).is_ok());
    }

    proptest! {
        #[test]
        fn faults_leave_nothing_broken_and_never_break_two_disks(
            strikes in prop::collection::vec((0u64..60, 0u8..3, 0u8..6, 1u64..20), 1..60),
        ) {
            let mut faults = Faults::default();
            for (at, member, trouble, lasts) in strikes {
                let until = Duration::from_secs(at + lasts);
                let _ = match trouble {
                    0 => faults.strike(Member::Zone(member), Trouble::Down, until),
                    1 => faults.strike(Member::Node(member), Trouble::Frozen, until),
                    2 => faults.strike(Member::Zone(member), Trouble::Full, until),
                    3 => faults.strike(Member::Node(member), Trouble::Clock, until),
                    _ => faults.damage(member),
                };
                prop_assert!(faults.damaged().len() <= 1);
            }
            let over = Duration::from_secs(80);
            while faults.end(over).is_some() {}
            prop_assert!(faults.troubles.is_empty());
        }
    }
}
