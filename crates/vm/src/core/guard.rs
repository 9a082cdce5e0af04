//! A host's decisions: events and time in, effects out.

mod checkpoints;
#[cfg(test)]
mod tests;
mod zones;

use std::collections::VecDeque;

use zones::Asked;

use super::flaw::Flaw;
use super::message::{Effect, Message, Session};
use super::record::{Number, Record, Who};
use super::role::{Follower, Role, Rules};

/// A host's decisions, with the state that they depend on.
#[derive(Debug)]
pub struct Guard {
    me: Who,
    rules: Rules,
    role: Role,
    epoch: Option<u32>,
    now_ms: u64,
    asked: Asked,
    again_ms: u64,
    followings: u64,
    is_linked: bool,
    /// The last checkpoint that was made.
    made: Number,
    /// Checkpoints that the standby has not confirmed, with the time of each.
    made_ms: VecDeque<(Number, u64)>,
    confirmed: Number,
    /// The disk's contents from before the machine began to run here survive a power failure.
    is_durable: bool,
    /// The record says that the disk is durable.
    is_recorded: bool,
    /// This run of the host's kernel.
    boot: String,
    /// An operator wants the machine started from this host's disk, whatever the record says.
    is_ordered: bool,
}

impl Guard {
    /// Decisions of a host that has just started.
    pub fn new(me: Who, boot: String, rules: Rules, now_ms: u64) -> Guard {
        Guard {
            me,
            rules,
            role: Role::Looking {
                record: None,
                since_ms: now_ms,
            },
            epoch: None,
            now_ms,
            asked: Asked::Nothing,
            again_ms: 0,
            followings: 0,
            is_linked: false,
            made: Number::default(),
            made_ms: VecDeque::new(),
            confirmed: Number::default(),
            is_durable: false,
            is_recorded: false,
            boot,
            is_ordered: false,
        }
    }

    /// Role in the pair of hosts.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Name of the host, and number of its life: a host that discards its copy begins another life.
    pub fn me(&self) -> &Who {
        &self.me
    }

    /// The last epoch that this host owned.
    pub fn epoch(&self) -> Option<u32> {
        self.epoch
    }

    /// The last checkpoint that the standby confirmed.
    pub fn confirmed(&self) -> Number {
        self.confirmed
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.rules.flaw == Some(flaw)
    }

    /// Moves the clock forward before an event, because this process may have been suspended since the last tick.
    pub fn at(&mut self, now_ms: u64) {
        if !self.has(Flaw::StaleClock) {
            self.now_ms = self.now_ms.max(now_ms);
        }
    }

    /// Time passes.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Effect>) {
        self.now_ms = now_ms;
        let patience = self.rules.patience_ms;
        match &self.role {
            Role::Looking { record, since_ms } => {
                let waited = now_ms.saturating_sub(*since_ms) >= patience;
                let is_ours = record.as_ref().is_some_and(|record| {
                    self.may_start(record) && (record.standby.is_none() || waited)
                });
                if is_ours && self.asked == Asked::Nothing {
                    self.role = Role::Starting { whole: None };
                }
            }
            Role::Following {
                whole: Some(whole),
                heard_ms,
                ..
            } if now_ms.saturating_sub(*heard_ms) >= self.rules.silence_ms => {
                self.take_over(*whole, out);
            }
            Role::Following {
                whole: None,
                heard_ms,
                ..
            } if now_ms.saturating_sub(*heard_ms) >= self.rules.patience_ms => {
                self.begin_again(out);
            }
            Role::Running(Follower::Current {
                owes_ms: Some(since_ms),
                ..
            }) if now_ms.saturating_sub(*since_ms) >= self.rules.confirm_ms => {
                self.lose(out);
            }
            // The standby holds everything: it is this host that makes no checkpoints.
            Role::Running(Follower::Current {
                owes_ms: None,
                made_ms,
                ..
            }) if now_ms.saturating_sub(*made_ms) >= self.rules.stuck_ms => {
                self.machine_lost(out);
            }
            _ => {}
        }
        self.ask(out);
    }

    fn take_over(&mut self, whole: Number, out: &mut Vec<Effect>) {
        self.role = Role::Starting { whole: Some(whole) };
        self.again_ms = 0;
        out.push(Effect::Sync);
    }

    /// True if the machine ran on this host last.
    fn ran_here(&self, record: &Record) -> bool {
        record.active.name == self.me.name
    }

    /// True if the machine may be started from this host's disk: it ran here last, and no acknowledged output is lost.
    fn may_start(&self, record: &Record) -> bool {
        self.ran_here(record)
            && (self.has(Flaw::UnsyncedStarted)
                || record
                    .unsynced_in
                    .as_ref()
                    .is_none_or(|boot| *boot == self.boot))
    }

    /// True if no host starts the machine until an operator names one: it ran here last, and this host has lost power since.
    pub fn is_doubtful(&self) -> bool {
        match &self.role {
            Role::Looking {
                record: Some(record),
                ..
            } => self.ran_here(record) && !self.may_start(record),
            _ => false,
        }
    }

    /// Starts the machine from this host's disk by an operator's order, though the other disk may have more acknowledged output.
    ///
    /// # Errors
    /// If it runs, or may run elsewhere.
    pub fn start_from_disk(&mut self, out: &mut Vec<Effect>) -> Result<(), &'static str> {
        let Role::Looking { record, .. } = &self.role else {
            return Err("this host runs the machine, or follows the host that does");
        };
        let ran_here = record.as_ref().is_some_and(|record| self.ran_here(record));
        if self.is_linked && !ran_here {
            return Err(
                "the other host can be reached, and the machine ran there last: start it there, or stop that host",
            );
        }
        self.is_ordered = true;
        self.role = Role::Starting { whole: None };
        self.again_ms = 0;
        self.ask(out);
        Ok(())
    }

    /// The other host can be reached.
    pub fn link_up(&mut self, out: &mut Vec<Effect>) {
        self.is_linked = true;
        if let Role::Looking {
            record: Some(record),
            ..
        } = &self.role
            && !self.ran_here(record)
        {
            out.push(Effect::Send(Message::Follow(self.me.clone())));
        }
    }

    /// The connection to the other host broke.
    pub fn link_lost(&mut self, out: &mut Vec<Effect>) {
        self.is_linked = false;
        if matches!(self.role, Role::Following { whole: None, .. }) {
            self.begin_again(out);
        }
        self.lose(out);
    }

    /// The standby is lost: a host that runs the machine continues without it.
    fn lose(&mut self, out: &mut Vec<Effect>) {
        let Role::Running(follower) = &self.role else {
            return;
        };
        let stands_still = matches!(follower, Follower::Current { last: Some(_), .. });
        match follower {
            Follower::None | Follower::Lost { .. } => return,
            Follower::Copying(_) => {
                out.extend([Effect::Unprotect, Effect::Open]);
                self.role = Role::Running(Follower::None);
            }
            Follower::Naming(_) | Follower::Current { .. } => {
                // The other host may run the machine soon: clients must not hear two machines.
                out.extend([Effect::Hold, Effect::Unprotect]);
                if self.has(Flaw::AloneUnrecorded) {
                    out.push(Effect::Open);
                }
                self.role = Role::Running(Follower::Lost { stands_still });
                if self.asked == Asked::Nothing {
                    self.again_ms = 0;
                }
            }
        }
        self.ask(out);
    }

    /// A message of the other host.
    pub fn message(&mut self, message: Message, out: &mut Vec<Effect>) {
        match message {
            Message::Follow(who) => self.follow(who, out),
            Message::Begin(session) => self.begin(session, out),
            Message::Holds(session, number) => self.holds(&session, number, out),
            Message::Alive(Some(session)) => self.alive(&session),
            Message::Alive(None) => {}
            Message::TakeOver(session) => {
                if let Role::Following {
                    session: ours,
                    whole: Some(whole),
                    ..
                } = &self.role
                    && *ours == session
                {
                    self.take_over(*whole, out);
                    self.ask(out);
                }
            }
        }
    }

    /// A sign of life of the active host in this session.
    pub fn alive(&mut self, session: &Session) {
        if let Role::Following {
            session: ours,
            heard_ms,
            ..
        } = &mut self.role
            && ours == session
        {
            *heard_ms = self.now_ms;
        }
    }

    /// Message that shows the other host, at intervals, that this one is alive.
    pub fn sign_of_life(&self) -> Message {
        Message::Alive(match &self.role {
            Role::Running(follower) => follower.session().cloned(),
            _ => None,
        })
    }

    /// The machine ended, or QEMU or its disk failed: the machine's memory is lost.
    pub fn machine_lost(&mut self, out: &mut Vec<Effect>) {
        if let Role::Running(Follower::Current { session, .. }) = &self.role {
            out.push(Effect::Send(Message::TakeOver(session.clone())));
        }
        if !matches!(self.role, Role::Looking { .. }) {
            self.begin_again(out);
        }
    }

    /// The copy that this host holds as a standby in that life is unusable.
    pub fn standby_lost(&mut self, life: u64, out: &mut Vec<Effect>) {
        if self.me.life == life && matches!(self.role, Role::Following { .. }) {
            self.begin_again(out);
        }
    }

    fn begin_again(&mut self, out: &mut Vec<Effect>) {
        out.extend([Effect::Destroy, Effect::Renew]);
        self.role = Role::Looking {
            record: None,
            since_ms: self.now_ms,
        };
        self.again_ms = self.now_ms + self.rules.retry_ms;
        self.is_ordered = false;
    }

    /// Begins another life, after everything was discarded.
    pub fn renewed(&mut self, life: u64) {
        self.is_durable = false;
        self.me.life = life;
    }
}
