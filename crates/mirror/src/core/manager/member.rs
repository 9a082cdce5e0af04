//! What is known of the member: what it has, and of which log.

use super::super::flaw::Flaw;
use super::super::ledger::Ledger;
use super::super::log::Identity;
use super::super::record::Number;
use super::{Effect, Manager, Message, Role, Why};

impl Manager {
    /// The member answers, and this is what it has, and of which log; up to `saved` it has it on its disk. After a state transfer as
    /// well.
    pub fn member_up(
        &mut self,
        ledger: Ledger,
        saved: Number,
        is_diverged: bool,
        log: Option<Identity>,
    ) {
        if self.role == Role::Primary {
            return;
        }
        self.life.0 += 1;
        self.saved = saved;
        self.log = log;
        self.is_diverged = is_diverged;
        self.is_behind = false;
        self.is_ahead = false;
        self.is_foreign = false;
        let ledger = match self.flawed(Flaw::LedgerForgotten) {
            true => Ledger::new(ledger.floor(), []),
            false => ledger,
        };
        self.standby.restart(ledger.floor());
        self.ledger = Some(ledger);
        self.role = Role::Recovering(match is_diverged {
            true => Why::Diverged,
            false => Why::Starting,
        });
        // Whoever is primary says so again soon.
        self.heard_ms = self.now_ms;
        if self.standby.log.is_some_and(|log| self.is_of_another(log)) {
            self.become_foreign();
        }
    }

    /// The member answers, and has nothing of this mirror: its state must be transferred, unless it has something else.
    pub fn member_empty(&mut self, is_occupied: bool) {
        if self.role != Role::Primary {
            self.life.0 += 1;
            self.ledger = None;
            self.log = None;
            self.is_diverged = false;
            self.is_behind = true;
            self.is_ahead = false;
            self.is_foreign = false;
            self.role = Role::Recovering(match is_occupied {
                true => Why::Occupied,
                false => Why::Behind,
            });
        }
    }

    /// The member does not answer any more.
    pub fn member_down(&mut self, out: &mut Vec<Effect>) {
        self.life.0 += 1;
        self.ledger = None;
        self.log = None;
        if self.standby.epoch.is_some() {
            // Commits wait for it until the primary knows.
            out.push(Effect::Send(Message::Left));
        }
        self.standby.restart(Number(0));
        match self.rules.is_single {
            true => self.single_down(out),
            false => self.step_down(Why::NoMember, out),
        }
    }

    /// Which log its member belongs to: what is to be written there, if it says nothing itself.
    pub fn log(&self) -> Option<Identity> {
        self.log
    }

    /// Which log the zones have, as far as it knows.
    pub fn log_of_zones(&self) -> Option<Identity> {
        self.standby.log
    }

    /// The zones' log has got another name in this epoch, which is over: an operator says that the member is the right one as it is.
    /// The primary before may not know yet that it is deposed.
    pub fn log_renamed(&mut self, epoch: u32, log: Identity) {
        self.highest = self.highest.max(epoch);
        self.standby.log = Some(log);
    }

    /// What a log is called that ends here and does not say which it is, from a number that nobody else has. One in which nothing is
    /// yet gets the name that the member has got, if that has nothing either: both are new. So another member that was made for a new
    /// log does not belong to this one.
    pub fn names(&self, last: Number, unused: Identity) -> Identity {
        let has = self.ledger.as_ref().map_or(Number(0), Ledger::last);
        let own = self.log.filter(|_| last.max(has) == Number(0));
        own.unwrap_or(unused)
    }

    /// True if the member has something that a log that ends here has never had.
    pub(super) fn has_more_than(&self, last: Number) -> bool {
        let ledger = self.ledger.as_ref();
        ledger.is_some_and(|ledger| ledger.last() > last)
    }

    /// True if the member belongs to another log than this. One that was made by a version without identities says nothing: it
    /// takes the one of the log that fits it.
    pub(super) fn is_of_another(&self, log: Identity) -> bool {
        self.log.is_some_and(|own| own != log)
    }

    /// Its member belongs to another log.
    pub(super) fn become_foreign(&mut self) {
        self.is_foreign = true;
        self.standby.epoch = None;
        self.role = Role::Recovering(Why::Foreign);
    }
}
