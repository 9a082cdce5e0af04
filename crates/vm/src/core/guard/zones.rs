//! What a host asks of the zones, and what follows from their answers.
//!
//! Invariant: one question is under way at a time, and a record is written only after the one before it was read in the same epoch.

use super::Guard;
use crate::core::{Effect, Flaw, Follower, Message, Record, Role};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Nothing,
    Read,
    Own,
    Write,
}

impl Guard {
    /// Asks the zones what the role needs.
    pub(super) fn ask(&mut self, out: &mut Vec<Effect>) {
        if self.asked != Asked::Nothing || self.now_ms < self.again_ms {
            return;
        }
        let question = match self.role {
            Role::Looking { .. } => Asked::Read,
            Role::Starting { .. } | Role::Running(Follower::Naming(_) | Follower::Lost { .. }) => {
                Asked::Own
            }
            Role::Running(Follower::None) if self.is_durable && !self.is_recorded => Asked::Own,
            _ => return,
        };
        self.asked = question;
        out.push(if question == Asked::Read {
            Effect::Read
        } else {
            Effect::Own
        });
    }

    /// What the record says.
    pub fn read(&mut self, found: Option<Record>, out: &mut Vec<Effect>) {
        self.asked = Asked::Nothing;
        self.again_ms = self.now_ms + self.rules.retry_ms;
        if let Role::Looking { record, .. } = &mut self.role {
            if found.is_none() && self.rules.first {
                self.role = Role::Starting { whole: None };
                self.again_ms = 0;
            } else {
                if let Some(found) = &found
                    && found.active.name != self.me.name
                    && self.is_linked
                {
                    out.push(Effect::Send(Message::Follow(self.me.clone())));
                }
                *record = found;
            }
        }
        self.ask(out);
    }

    /// The epoch is owned, and this is the record in it.
    pub fn owned(&mut self, epoch: u32, found: Option<Record>, out: &mut Vec<Effect>) {
        self.asked = Asked::Nothing;
        self.epoch = Some(epoch);
        let may = |record: &Record| match &self.role {
            Role::Starting { whole: Some(_) } => {
                // Its own record may be on the zones though it did not hear so.
                let is_own = record.active == self.me && !self.has(Flaw::OwnRecordUnknown);
                is_own
                    || record.standby.as_ref() == Some(&self.me)
                    || self.has(Flaw::UnnamedTakeover)
            }
            Role::Starting { whole: None } => self.is_ordered || self.may_start(record),
            _ => record.active == self.me,
        };
        let is_allowed = match &found {
            Some(record) => may(record),
            None => {
                let may_be_first = self.rules.first || self.is_ordered;
                may_be_first && self.role == (Role::Starting { whole: None })
            }
        };
        if !is_allowed {
            return match &self.role {
                Role::Looking { .. } | Role::Following { .. } => {}
                _ => self.begin_again(out),
            };
        }
        let standby = match &self.role {
            Role::Starting { .. } | Role::Running(Follower::None | Follower::Lost { .. }) => None,
            Role::Running(Follower::Naming(session)) => Some(session.standby.clone()),
            _ => return,
        };
        let unsynced_in = match &self.role {
            Role::Starting { whole: None } => found
                .and_then(|record| record.unsynced_in)
                .filter(|_| !self.is_ordered),
            Role::Starting { whole: Some(_) } if !self.is_durable => Some(self.boot.clone()),
            _ => None,
        };
        self.asked = Asked::Write;
        out.push(Effect::Write(Record {
            epoch,
            active: self.me.clone(),
            standby,
            unsynced_in: unsynced_in.filter(|_| !self.has(Flaw::SyncUnrecorded)),
        }));
    }

    /// The record that was to be written last is durable.
    pub fn written(&mut self, record: &Record, out: &mut Vec<Effect>) {
        self.asked = Asked::Nothing;
        self.is_recorded = record.unsynced_in.is_none();
        match &self.role {
            Role::Starting { whole } => {
                self.is_ordered = false;
                out.push(if whole.is_some() {
                    Effect::Resume
                } else {
                    Effect::Boot
                });
                out.push(Effect::Open);
                self.role = Role::Running(Follower::None);
            }
            Role::Running(Follower::Lost { stands_still }) if record.standby.is_none() => {
                if *stands_still {
                    out.push(Effect::GoOn);
                }
                out.push(Effect::Open);
                self.role = Role::Running(Follower::None);
            }
            Role::Running(Follower::Naming(session))
                if record.standby.as_ref() == Some(&session.standby) =>
            {
                let now_ms = self.now_ms;
                self.role = Role::Running(Follower::Current {
                    session: session.clone(),
                    owes_ms: (self.confirmed < self.made).then_some(now_ms),
                    made_ms: now_ms,
                    last: None,
                });
            }
            _ => {}
        }
        self.ask(out);
    }

    /// What was asked of the zones did not come about, or nobody knows: a higher epoch exists, or too few of them answer.
    pub fn refused(&mut self) {
        self.asked = Asked::Nothing;
        self.again_ms = self.now_ms + self.rules.retry_ms;
    }
}
