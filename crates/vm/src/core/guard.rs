//! A host's decisions: events and time in, effects out.

use serde::{Deserialize, Serialize};

use super::flaw::Flaw;
use super::record::{Number, Record, Who};

/// How a host behaves.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Of two hosts that find no record, the one that is first boots the machine.
    pub first: bool,
    /// How long the active host may be silent before its standby takes over.
    pub silence_ms: u64,
    /// How long a standby may confirm nothing before the active host runs without it. Shorter than the silence.
    pub confirm_ms: u64,
    /// How long a host that was active before it was started anew waits for its standby to take over.
    pub patience_ms: u64,
    /// Between attempts at the zones.
    pub retry_ms: u64,
    /// The rule that does not hold.
    pub flaw: Option<Flaw>,
}

/// One following: from its beginning with a copy of everything until the connection breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Who follows.
    pub standby: Who,
    /// Counted by the active host.
    pub count: u64,
}

/// What hosts tell each other beside the checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The sender has no machine and would follow.
    Follow(Who),
    /// A copy of everything begins: whatever the receiver has is of no use.
    Begin(Session),
    /// All of this checkpoint is applied, and all before it.
    Holds(Session, Number),
    /// The sender is well, and this is who follows it.
    Alive(Option<Session>),
    /// The machine stands still, and this checkpoint is its last one here: take over now.
    TakeOver(Session),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read the record, without owning anything.
    Read,
    /// Own the next epoch, then read the record in it.
    Own,
    /// Write the record in the epoch owned.
    Write(Record),
    /// Tell the other host.
    Send(Message),
    /// Start the machine from this host's disk.
    Boot,
    /// Let the machine run on from the last checkpoint that was applied.
    Resume,
    /// Kill the machine, and forget its memory and what it said.
    Destroy,
    /// Send the other host everything, and checkpoints from then on.
    Protect(Session),
    /// No more checkpoints are made.
    Unprotect,
    /// What was covered by this checkpoint may be heard.
    Release(Number),
    /// Output waits for nobody.
    Open,
    /// Make a last checkpoint, and let the machine stand still.
    HandOver,
    /// The machine, which stands still to be handed over, runs on here.
    GoOn,
    /// Draw another life.
    Renew,
    /// Be ready for a copy of everything.
    Prepare(Session),
}

/// What a host is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It has no machine, and looks who has.
    Looking {
        /// What the record said when it was read last, if there is one.
        record: Option<Record>,
        /// Since when.
        since_ms: u64,
    },
    /// It applies the active host's checkpoints.
    Following {
        /// Which following.
        session: Session,
        /// The last checkpoint that was applied whole; none until the first one was.
        whole: Option<Number>,
        /// When it last heard of the active host.
        heard_ms: u64,
    },
    /// It claims the machine.
    Starting {
        /// What was applied last, if the machine shall run on; none if it is started from the disk.
        whole: Option<Number>,
    },
    /// It runs the machine.
    Running(Follower),
}

/// The standby of a host that runs the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Follower {
    /// There is none, and the record says so.
    None,
    /// It is sent a copy; the record does not name it.
    Copying(Session),
    /// It holds checkpoints; the record is being made to name it, and may do so already.
    Naming(Session),
    /// The record names it.
    Current {
        /// Which following.
        session: Session,
        /// When it last confirmed something.
        heard_ms: u64,
        /// The last checkpoint, if the machine is being handed over.
        last: Option<Option<Number>>,
    },
    /// It is lost; the record may name it still.
    Lost {
        /// Whether the machine stands still because it was to be handed over.
        stands_still: bool,
    },
}

impl Follower {
    /// Which following, unless there is none.
    pub fn session(&self) -> Option<&Session> {
        match self {
            Follower::Copying(session)
            | Follower::Naming(session)
            | Follower::Current { session, .. } => Some(session),
            Follower::None | Follower::Lost { .. } => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    Read,
    Own,
    Write,
}

/// The decisions of a host.
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
    confirmed: Number,
}

impl Guard {
    /// A host that was just started.
    pub fn new(me: Who, rules: Rules, now_ms: u64) -> Guard {
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
            confirmed: Number::default(),
        }
    }

    /// What it is.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Who it is.
    pub fn me(&self) -> &Who {
        &self.me
    }

    /// The last epoch that it owned.
    pub fn epoch(&self) -> Option<u32> {
        self.epoch
    }

    /// The last checkpoint that its standby confirmed.
    pub fn confirmed(&self) -> Number {
        self.confirmed
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.rules.flaw == Some(flaw)
    }

    /// Time passes.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Effect>) {
        self.now_ms = now_ms;
        let patience = self.rules.patience_ms;
        match &self.role {
            Role::Looking { record, since_ms } => {
                let waited = now_ms.saturating_sub(*since_ms) >= patience;
                let is_ours = record.as_ref().is_some_and(|record| {
                    record.active.name == self.me.name && (record.standby.is_none() || waited)
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
                self.take_over(*whole);
            }
            Role::Following {
                whole: None,
                heard_ms,
                ..
            } if now_ms.saturating_sub(*heard_ms) >= self.rules.patience_ms => {
                self.begin_again(out);
            }
            Role::Running(Follower::Current { heard_ms, .. })
                if now_ms.saturating_sub(*heard_ms) >= self.rules.confirm_ms =>
            {
                self.lose(out);
            }
            _ => {}
        }
        self.ask(out);
    }

    fn take_over(&mut self, whole: Number) {
        self.role = Role::Starting { whole: Some(whole) };
        self.again_ms = 0;
    }

    /// Asks the zones what the role needs.
    fn ask(&mut self, out: &mut Vec<Effect>) {
        if self.asked != Asked::Nothing || self.now_ms < self.again_ms {
            return;
        }
        let question = match self.role {
            Role::Looking { .. } => Asked::Read,
            Role::Starting { .. } | Role::Running(Follower::Naming(_) | Follower::Lost { .. }) => {
                Asked::Own
            }
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
                record.standby.as_ref() == Some(&self.me) || self.has(Flaw::UnnamedTakeover)
            }
            Role::Starting { whole: None } => record.active.name == self.me.name,
            _ => record.active == self.me,
        };
        let is_allowed = match &found {
            Some(record) => may(record),
            None => self.rules.first && self.role == (Role::Starting { whole: None }),
        };
        if !is_allowed {
            return match &self.role {
                Role::Looking { .. } | Role::Following { .. } => {}
                _ => self.begin_again(out),
            };
        }
        let standby = match &self.role {
            Role::Starting { .. } | Role::Running(Follower::Lost { .. }) => None,
            Role::Running(Follower::Naming(session)) => Some(session.standby.clone()),
            _ => return,
        };
        self.asked = Asked::Write;
        let active = self.me.clone();
        out.push(Effect::Write(Record {
            epoch,
            active,
            standby,
        }));
    }

    /// The record that was to be written last is durable.
    pub fn written(&mut self, record: &Record, out: &mut Vec<Effect>) {
        self.asked = Asked::Nothing;
        match &self.role {
            Role::Starting { whole } => {
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
                let session = session.clone();
                let heard_ms = self.now_ms;
                self.role = Role::Running(Follower::Current {
                    session,
                    heard_ms,
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

    /// The other host can be reached.
    pub fn link_up(&mut self, out: &mut Vec<Effect>) {
        self.is_linked = true;
        if let Role::Looking {
            record: Some(record),
            ..
        } = &self.role
            && record.active.name != self.me.name
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

    /// The host that runs the machine goes on without its standby.
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
                out.push(Effect::Unprotect);
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

    /// The other host says something.
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
                    self.take_over(*whole);
                    self.ask(out);
                }
            }
        }
    }

    /// Something of this following came from the active host.
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

    /// What to tell the other host now and then.
    pub fn sign_of_life(&self) -> Message {
        Message::Alive(match &self.role {
            Role::Running(follower) => follower.session().cloned(),
            _ => None,
        })
    }

    fn follow(&mut self, standby: Who, out: &mut Vec<Effect>) {
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
        if self.role != Role::Running(Follower::None) {
            return;
        }
        self.followings += 1;
        let count = self.followings;
        let session = Session { standby, count };
        self.confirmed = Number::default();
        out.push(Effect::Send(Message::Begin(session.clone())));
        out.push(Effect::Protect(session.clone()));
        self.role = Role::Running(Follower::Copying(session));
    }

    fn begin(&mut self, session: Session, out: &mut Vec<Effect>) {
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

    fn holds(&mut self, session: &Session, number: Number, out: &mut Vec<Effect>) {
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
                heard_ms,
                last,
            } if ours == session || any => {
                *heard_ms = now_ms;
                let is_last = *last == Some(Some(number));
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
        out.push(Effect::Release(number));
    }

    /// A checkpoint was made, and is on its way.
    pub fn made(&mut self, number: Number, out: &mut Vec<Effect>) {
        if let Role::Running(Follower::Current { last, .. }) = &mut self.role
            && *last == Some(None)
        {
            *last = Some(Some(number));
        }
        if self.has(Flaw::ReleasedEarly) {
            out.push(Effect::Release(number));
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

    /// The machine ended, or what keeps it broke: what it had in memory is gone.
    pub fn machine_lost(&mut self, out: &mut Vec<Effect>) {
        if let Role::Running(Follower::Current { session, .. }) = &self.role {
            out.push(Effect::Send(Message::TakeOver(session.clone())));
        }
        if !matches!(self.role, Role::Looking { .. }) {
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
    }

    /// Another life, after everything was forgotten.
    pub fn renewed(&mut self, life: u64) {
        self.me.life = life;
    }
}
