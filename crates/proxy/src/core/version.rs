//! Which version of the data a read must see (R1, R3).
//!
//! A version is a position in the log: a standby has it when it has replayed that far. This is the paper's
//! version vector with one component, since there is one active (section 3). Invariant: in session mode what
//! a session has seen once it never sees older, whatever servers answer it.

use std::str::FromStr;

use dax::ids::Epoch;
use serde::{Deserialize, Serialize};
use volume::lsn::Lsn;

use super::topology::{NodeName, ServerRun};

/// What a read of a session may miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadMode {
    /// Nothing goes to standbys.
    #[default]
    Active,
    /// Nothing that was acknowledged to any client before the read began.
    Strong,
    /// Nothing that this session has written or seen.
    Session,
    /// At most the last bytes of WAL.
    Bounded {
        /// Most bytes of WAL that a standby may lack.
        lag_bytes: u64,
    },
    /// Any write.
    Any,
}

impl FromStr for ReadMode {
    type Err = String;

    fn from_str(text: &str) -> Result<ReadMode, String> {
        match text {
            "active" => Ok(ReadMode::Active),
            "strong" => Ok(ReadMode::Strong),
            "session" => Ok(ReadMode::Session),
            "any" => Ok(ReadMode::Any),
            _ => {
                let lag = text
                    .strip_prefix("bounded:")
                    .and_then(|lag| lag.parse().ok());
                let lag_bytes = lag.ok_or_else(|| {
                    format!("\"{text}\" is none of active, strong, session, any and bounded:BYTES")
                })?;
                Ok(ReadMode::Bounded { lag_bytes })
            }
        }
    }
}

/// Reads a position as PostgreSQL prints it.
pub fn parse_lsn(text: &str) -> Option<Lsn> {
    let (high, low) = text.split_once('/')?;
    let high = u32::from_str_radix(high, 16).ok()?;
    let low = u32::from_str_radix(low, 16).ok()?;
    Some(Lsn(u64::from(high) << 32 | u64::from(low)))
}

/// What a session has seen.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// It has seen everything up to here, and what else it has seen is described by the others.
    floor: Lsn,
    /// It was on the active since: nobody knows how far that was, but the active does.
    was_on_active: bool,
    /// The epoch for whose active the server was taken that it was on since, if that may be the active of a later one.
    taken_for: Option<Epoch>,
    /// The standby that it read on since, and which run of its server.
    last: Option<(Box<str>, Option<ServerRun>)>,
    /// The active itself shows everything up to here.
    shown: Lsn,
    /// It has read on a standby what the active itself may not show yet.
    is_ahead: bool,
    /// It may have committed what the active itself does not show yet: its connection was lost before it was told.
    is_unshown: bool,
}

/// What a read needs to know before it can go to a standby.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Required {
    /// A standby that has replayed up to here.
    At(Lsn),
    /// The standby that the session read on last, if its server has not been started again since: it is not behind what the
    /// session saw.
    Same(NodeName),
    /// The active's position, asked for now.
    Position,
}

impl Seen {
    /// The session did something on the active. `taken_for` is the epoch for whose active it was taken, if that is not certain.
    pub fn on_active(&mut self, taken_for: Option<Epoch>) {
        self.was_on_active = true;
        self.taken_for = taken_for.or(self.taken_for);
    }

    /// The session has read on this `run` of `standby`.
    pub fn on_standby(&mut self, standby: &NodeName, run: Option<ServerRun>) {
        self.last = Some(((&**standby).into(), run));
        self.is_ahead = true;
    }

    /// The session may have committed something, and was not told: its server goes on, and shows a commit after it is durable.
    pub fn on_doubt(&mut self) {
        self.is_unshown = true;
    }

    /// True if it may have committed something that the active itself does not show yet.
    pub fn is_in_doubt(&self) -> bool {
        self.is_unshown
    }

    /// True if it has read on a standby, or may have committed, what the active itself may not show yet.
    pub fn is_ahead(&self) -> bool {
        self.is_ahead || self.is_unshown
    }

    /// True if it may have seen more than the active of this epoch has, unless that is proved to be active: it has read on a
    /// standby, may have committed, or been on a server that was taken for the active of another epoch and may be that of a later one.
    pub fn may_be_ahead_of(&self, epoch: Epoch) -> bool {
        self.is_ahead() || self.was_taken_for_other_than(epoch)
    }

    /// True if it has been on a server that was taken for the active of another epoch than this one and may be that of a later
    /// one.
    pub fn was_taken_for_other_than(&self, epoch: Epoch) -> bool {
        self.taken_for.is_some_and(|label| label != epoch)
    }

    /// The active's position, asked for after all that the session has seen; `shown` if the active itself shows all of that.
    pub fn asked(&mut self, position: Lsn, shown: bool) {
        if shown {
            self.shown = self.shown.max(position);
            self.is_ahead = false;
            self.is_unshown = false;
        }
        self.floor = self.floor.max(position);
        self.was_on_active = false;
        self.taken_for = None;
        self.last = None;
    }

    /// True if it was proved that the active shows everything up to here: whoever is active in that epoch or a later one does.
    pub fn is_proved(&self, position: Lsn) -> bool {
        position <= self.shown
    }

    /// What the next read needs. `least` is what the client itself asks for.
    pub fn required(&self, mode: ReadMode, least: Lsn) -> Required {
        match mode {
            ReadMode::Active | ReadMode::Strong | ReadMode::Bounded { .. } => Required::Position,
            ReadMode::Session if self.was_on_active => Required::Position,
            ReadMode::Session => match &self.last {
                Some((standby, _)) if least <= self.floor => Required::Same((&**standby).into()),
                Some(_) => Required::Position,
                None => Required::At(self.floor.max(least)),
            },
            ReadMode::Any => Required::At(least),
        }
    }

    /// True if this is the run of the server that the session read on last.
    pub fn is_same_run(&self, standby: &NodeName, run: Option<ServerRun>) -> bool {
        let is_it =
            |(name, last): &(Box<str>, Option<ServerRun>)| **name == **standby && *last == run;
        run.is_some() && self.last.as_ref().is_some_and(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was taken for the active of epoch 3 and may be that of epoch 5: epoch 4 has less.
    // hazard: PROXY-12
    #[test]
    fn the_active_of_another_epoch_may_have_less_than_one_that_was_not_certain() {
        let mut seen = Seen::default();
        seen.on_active(None);
        assert!(!seen.may_be_ahead_of(Epoch(4)));
        seen.on_active(Some(Epoch(3)));
        assert!(!seen.may_be_ahead_of(Epoch(3)), "it is the same server");
        assert!(seen.may_be_ahead_of(Epoch(4)));
        seen.on_active(None);
        assert!(seen.may_be_ahead_of(Epoch(4)));
        seen.asked(Lsn(7), false);
        assert!(!seen.may_be_ahead_of(Epoch(4)));
        seen.on_standby(&"a".into(), None);
        seen.asked(Lsn(8), false);
        assert!(
            seen.may_be_ahead_of(Epoch(4)),
            "it is durable, but not shown"
        );
        seen.asked(Lsn(8), true);
        assert!(!seen.may_be_ahead_of(Epoch(4)));
    }

    #[test]
    fn a_session_asks_after_it_was_on_the_active() {
        let mut seen = Seen::default();
        assert_eq!(
            seen.required(ReadMode::Session, Lsn(0)),
            Required::At(Lsn(0))
        );
        seen.on_active(None);
        assert_eq!(seen.required(ReadMode::Session, Lsn(0)), Required::Position);
        seen.asked(Lsn(7), false);
        assert_eq!(
            seen.required(ReadMode::Session, Lsn(0)),
            Required::At(Lsn(7))
        );
        seen.on_standby(&"a".into(), Some(ServerRun(5)));
        assert_eq!(
            seen.required(ReadMode::Session, Lsn(0)),
            Required::Same("a".into())
        );
        assert_eq!(seen.required(ReadMode::Session, Lsn(9)), Required::Position);
        assert!(seen.is_same_run(&"a".into(), Some(ServerRun(5))));
        assert!(!seen.is_same_run(&"a".into(), Some(ServerRun(6))));
        assert!(!seen.is_same_run(&"b".into(), Some(ServerRun(5))));
        seen.on_standby(&"a".into(), None);
        assert!(!seen.is_same_run(&"a".into(), None), "nobody knows");
    }

    #[test]
    fn positions_are_read_as_they_are_printed() {
        let lsn = Lsn(0x1_6B37_4848);
        assert_eq!(parse_lsn(&lsn.to_string()), Some(lsn));
        assert_eq!(parse_lsn("1"), None);
    }

    #[test]
    fn modes_have_names() {
        assert_eq!("strong".parse(), Ok(ReadMode::Strong));
        assert_eq!(
            "bounded:100".parse(),
            Ok(ReadMode::Bounded { lag_bytes: 100 })
        );
        assert!("weak".parse::<ReadMode>().is_err());
    }
}
