//! Followings and checkpoints: what begins them, who holds which, and how the machine is handed over.
//!
//! Invariant: a standby says that it holds a checkpoint after all of it was applied, and only while it follows.

use super::Guard;
use crate::core::{Effect, Flaw, Follower, Message, Number, Role, Session, Who};

impl Guard {
    pub(super) fn follow(&mut self, standby: Who, out: &mut Vec<Effect>) {
        // It does not follow any more, or never heard that it should.
        let is_stale = match &self.role {
            Role::Running(Follower::Copying(_)) => true,
            Role::Running(follower) => follower
                .session()
                .is_some_and(|session| session.standby != standby),
            _ => false,
        };
        if is_stale {
            self.lose(out);
        }
        // Who follows forgets its own disk, which may be the only one that has what was flushed.
        if self.role != Role::Running(Follower::None) || !self.is_durable || !self.is_recorded {
            return;
        }
        self.followings += 1;
        let count = self.followings;
        let session = Session { standby, count };
        self.made = Number::default();
        self.made_ms.clear();
        self.confirmed = Number::default();
        out.push(Effect::Send(Message::Begin(session.clone())));
        out.push(Effect::Protect(session.clone()));
        self.role = Role::Running(Follower::Copying(session));
    }

    pub(super) fn begin(&mut self, session: Session, out: &mut Vec<Effect>) {
        let is_free = matches!(self.role, Role::Looking { .. } | Role::Following { .. });
        if session.standby != self.me || !is_free {
            return;
        }
        out.push(Effect::Prepare(session.clone()));
        let heard_ms = self.now_ms;
        self.role = Role::Following {
            session,
            whole: None,
            heard_ms,
        };
    }

    pub(super) fn holds(&mut self, session: &Session, number: Number, out: &mut Vec<Effect>) {
        let now_ms = self.now_ms;
        let any = self.has(Flaw::SessionsIgnored);
        let Role::Running(follower) = &mut self.role else {
            return;
        };
        match follower {
            Follower::Copying(ours) if ours == session || any => {
                let session = ours.clone();
                self.role = Role::Running(Follower::Naming(session));
                self.again_ms = 0;
                self.confirm(number, out);
                self.ask(out);
            }
            Follower::Naming(ours) if ours == session || any => self.confirm(number, out),
            Follower::Current {
                session: ours,
                owes_ms,
                last,
                ..
            } if ours == session || any => {
                let is_last = *last == Some(Some(number));
                // What is made meanwhile, or that it takes over.
                *owes_ms = (is_last || number < self.made).then_some(now_ms);
                if is_last {
                    out.push(Effect::Send(Message::TakeOver(session.clone())));
                }
                self.confirm(number, out);
            }
            _ => {}
        }
    }

    fn confirm(&mut self, number: Number, out: &mut Vec<Effect>) {
        self.confirmed = number;
        let known = self.made_ms.partition_point(|(made, _)| *made <= number);
        let made_ms = self.made_ms.drain(..known).next_back();
        // One that is confirmed again says nothing new.
        if let Some((_, made_ms)) = made_ms {
            let until_ms = made_ms + self.rules.heard_ms;
            out.push(Effect::Release { number, until_ms });
        }
    }

    /// A checkpoint was made, and is on its way. `is_last`: the machine stands still since.
    pub fn made(&mut self, number: Number, is_last: bool, out: &mut Vec<Effect>) {
        let now_ms = self.now_ms;
        let any = self.has(Flaw::AnyIsLast);
        if let Role::Running(follower) = &mut self.role {
            self.made = number;
            self.made_ms.push_back((number, now_ms));
            if let Follower::Current {
                owes_ms,
                made_ms,
                last,
                ..
            } = follower
            {
                owes_ms.get_or_insert(now_ms);
                *made_ms = now_ms;
                if *last == Some(None) && (is_last || any) {
                    *last = Some(Some(number));
                }
            }
        }
        if self.has(Flaw::ReleasedEarly) {
            let until_ms = u64::MAX;
            out.push(Effect::Release { number, until_ms });
        }
    }

    /// A checkpoint is here, and is going to be applied.
    pub fn received(&mut self, session: &Session, number: Number, out: &mut Vec<Effect>) {
        let is_over = matches!(self.role, Role::Starting { .. } | Role::Running(_));
        if self.has(Flaw::AcknowledgedEarly) || (is_over && self.has(Flaw::AcknowledgedLate)) {
            self.acknowledge(session, number, out);
        }
    }

    /// All of a checkpoint was applied.
    pub fn applied(&mut self, session: &Session, number: Number, out: &mut Vec<Effect>) {
        match &mut self.role {
            Role::Following {
                session: ours,
                whole,
                heard_ms,
            } if ours == session => {
                *whole = Some(number);
                *heard_ms = self.now_ms;
            }
            // It takes over, with this checkpoint if it is in time; nobody is told.
            _ => return,
        }
        self.acknowledge(session, number, out);
    }

    fn acknowledge(&self, session: &Session, number: Number, out: &mut Vec<Effect>) {
        out.push(Effect::Send(Message::Holds(session.clone(), number)));
    }

    /// All that this host's disk held when the machine of this life began to run here survives a power failure.
    pub fn durable(&mut self, life: u64, out: &mut Vec<Effect>) {
        self.is_durable |= self.me.life == life;
        self.ask(out);
    }

    /// An operator wants the standby to take over.
    ///
    /// # Errors
    /// If there is none that can, with what is the matter.
    pub fn hand_over(&mut self, out: &mut Vec<Effect>) -> Result<(), &'static str> {
        match &mut self.role {
            Role::Running(Follower::Current { last, .. }) => {
                if last.is_none() {
                    *last = Some(None);
                    out.push(Effect::HandOver);
                }
                Ok(())
            }
            Role::Running(_) => Err("the machine has no current standby"),
            _ => Err("this host does not run the machine"),
        }
    }
}
