//! A client's session: what its client sent, what a server answers, and what happens when the server is gone.
//!
//! ```text
//!              a message                    all of it, or enough to decide
//!   ┌──────┐ ───────────▶ ┌───────────┐ ───────────────▶ ┌─────────┐
//!   │ Idle │              │ Gathering │                  │ Waiting │ for a server, a version, the end of a hold
//!   └──────┘              └───────────┘                  └─────────┘
//!      ▲                                                   │ linked
//!      │ ReadyForQuery    ┌─────────┐ ◀───────────────────┤
//!      └───────────────── │ Running │                      │ a transaction was open, or a commit in doubt
//!                         └─────────┘ ◀── same answers ── ┌───────────┐ ◀── did not commit ── ┌──────────┐
//!                              │ server lost              │ Replaying │                       │ Deciding │
//!                              └────────────────────────▶ └───────────┘                       └──────────┘
//! ```
//!
//! Owns what the client was told and what it may still be told. Invariants: no batch runs twice unless it is
//! certain that it did not commit; the client is told of a commit only when the log has it; an answer that
//! was partly given is continued only by an answer that begins the same.

mod answers;
mod ask;
mod batch;
mod broken;
mod client;
mod counts;
#[cfg(test)]
mod desk;
mod digest;
mod dispatch;
mod effects;
mod ending;
mod held;
mod in_doubt;
mod kept;
mod lent;
mod local;
mod loss;
mod packed;
mod position;
mod prepared;
mod reason;
mod replay;
mod replies;
mod route;
mod server;
mod session_state;
mod standby;
mod state;
#[cfg(test)]
mod tests;
mod transaction;
mod untold;
mod upstream;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use dax::ids::Epoch;
use volume::lsn::Lsn;

use super::choice::Load;
use super::flaw::Flaw;
use super::outcome::{XactStatus, Xid};
use super::settings::Settings;
use super::sql::{Catalog, Statements};
use super::topology::{Address, NodeName, Topology};
use super::version::{ReadMode, Seen};
use protocol::frame::{Malformed, Refusal};

use ask::XidState;
use batch::RequestBatch;
pub use counts::Counts;
use in_doubt::{InDoubtCommit, LostServer};
use prepared::Names;
use replay::Replay;
use replies::PendingReplies;
pub use session_state::SessionState;
use transaction::Transaction;

#[cfg(test)]
pub(in crate::core) use client::GATHER_TIME;
pub use packed::{Packed, PackedServer, Unreadable};
pub use reason::{REASONS, Reason};
pub use server::{Reported, Role, Server};
#[cfg(test)]
pub(in crate::core) use state::QUESTION;

/// When a session gives its server back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoolMode {
    /// When its client leaves.
    #[default]
    Session,
    /// At the end of each transaction, unless it has something that only this server has.
    Transaction,
}

/// What the configuration says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// When servers are given back.
    pub mode: PoolMode,
    /// Open transactions are run again when their server is gone.
    pub replays: bool,
    /// As long as their statements are not longer than this.
    pub replay_bytes: usize,
    /// The ids of transactions are asked for, so that commits in doubt can be decided.
    pub decides: bool,
    /// What reads may miss, unless a session says otherwise.
    pub read: ReadMode,
    /// How long a read waits for a standby that has its version.
    pub read_wait: Duration,
    /// Standbys that reads go to first.
    pub near: Vec<String>,
    /// One read of so many goes to a spare; 0 for none.
    pub spare_every: u64,
    /// Prepared statements that a server keeps which sessions share.
    pub max_prepared: usize,
    /// Longer messages are refused.
    pub message_bytes: usize,
    /// A rule that does not hold.
    #[cfg(test)]
    pub flaw: Option<Flaw>,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            mode: PoolMode::default(),
            replays: true,
            replay_bytes: 1 << 20,
            decides: true,
            read: ReadMode::default(),
            read_wait: Duration::from_millis(20),
            near: Vec::new(),
            spare_every: 100,
            max_prepared: 1000,
            message_bytes: 128 << 20,
            #[cfg(test)]
            flaw: None,
        }
    }
}

/// What all sessions share, to look things up in.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The configuration.
    pub rules: &'a Rules,
    /// What texts do.
    pub statements: &'a Statements,
    /// What the catalog of the session's database says.
    pub catalog: &'a Catalog,
    /// The cluster as the proxy knows it at this event.
    pub topology: &'a Topology,
    /// Connections in use.
    pub load: &'a dyn Load,
}

impl Context<'_> {
    /// True if a rule does not hold: never, but in simulations.
    #[cfg(test)]
    fn lacks(&self, flaw: Flaw) -> bool {
        self.rules.flaw == Some(flaw)
    }

    /// True if a rule does not hold: never.
    #[cfg(not(test))]
    fn lacks(&self, _: Flaw) -> bool {
        false
    }
}

/// Something that a driver does for a session.
#[derive(Debug)]
pub enum Effect {
    /// Get a connection to the active; answer with [`Session::linked`] or [`Session::refused`].
    AcquireActive {
        /// Not one that was there before: the server may be about to end them all.
        fresh: bool,
    },
    /// Get one to this standby.
    AcquireStandby(NodeName),
    /// Keep the connection in hand for later: another one comes in its place.
    Park,
    /// Take the one that was kept into the hand again.
    Unpark,
    /// Give the connection in hand back: others may have it.
    Return(Box<Server>),
    /// Close the connection in hand.
    Drop,
    /// Close the one that is kept for later.
    DropParked,
    /// Ask for the active's position; answer with [`Session::position`].
    AskPosition {
        /// And answer only when the active itself shows all that standbys may have shown by then.
        shown: bool,
    },
    /// Find out again what functions do: something has written that was said not to.
    LearnFunctions,
    /// Call [`Session::woken`] after this time.
    Wake(Duration),
    /// Close the client's connection when it has got what is there for it.
    Close,
}

/// What comes out of a session.
#[derive(Debug, Default)]
pub struct Out {
    /// For the client.
    pub client: BytesMut,
    /// For the server that is in hand once the effects are done: one that is given back or dropped was sent all it
    /// needs before.
    pub server: BytesMut,
    /// What to do.
    pub effects: Vec<Effect>,
}

/// What a session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// The end of a hold.
    Resume,
    /// A connection to a server.
    Server,
    /// The active's position in the WAL, for a strong read.
    Position,
    /// A standby that has replayed up to here.
    Version(Lsn),
    /// The server in hand takes over what the session has.
    Setup,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Gathering,
    Waiting(Wait),
    Running,
    Replaying,
    Deciding,
    Closed,
}

/// A client's session.
pub struct Session {
    session_state: SessionState,
    names: Names,
    told: Reported,
    seen: Seen,
    replies: PendingReplies,
    phase: Phase,
    status: u8,
    batch: Option<Box<RequestBatch>>,
    transaction: Option<Box<Transaction>>,
    link: Option<Box<Server>>,
    /// Session mode: the connection to the active, while a standby answers.
    parked: Option<Box<Server>>,
    replay: Option<Replay>,
    /// An open transaction whose server is gone and that could not be run again.
    broken: Option<broken::Broken>,
    /// What the server in hand says of the session, as far as it is there.
    state: Option<state::Answer>,
    /// The same, to be taken with the end of the batch.
    pending_state: Option<(state::Answer, u8)>,
    /// The status that the server has told at the end of the batch, and the client is told later.
    held_ready: Option<u8>,
    /// Names that the client's own code has in it, and that may be settings.
    named_settings: Vec<String>,
    /// An error of something that the proxy added, which the client must hear of.
    deferred_error: Option<Bytes>,
    /// What is known of the id of the transaction that is open or under way.
    xid: XidState,
    /// The open transaction may have written since its id was asked for.
    has_unasked_writes: bool,
    /// The open transaction gets an id when it commits, though it may have none before.
    has_notified: bool,
    /// It may have, as it has run something that nobody knows.
    may_have_notified: bool,
    /// The commit that is in doubt.
    in_doubt: Option<InDoubtCommit>,
    /// The client has had the first part of a message, and the next byte must be of its rest.
    is_amid_row: bool,
    /// What was answered about it.
    asked_status: Option<XactStatus>,
    /// The server's last words, if they may have been meant for this client alone.
    last_words: Option<Bytes>,
    /// An error by which the server was taken for lost, though its connection was open.
    dying_word: Option<Bytes>,
    /// By which number the client knows its session.
    number: u32,
    /// Its commits may not wait until they are durable.
    commits_async: bool,
    /// The epoch whose active the session lost.
    lost_epoch: Option<Epoch>,
    /// What was known of that server, if a commit may be in doubt.
    lost: Option<LostServer>,
    /// What the read under way must see.
    required: Lsn,
    /// The position that is asked for, or was asked for last, is one that the active shows.
    asks_shown: bool,
    turn: u64,
    counts: Counts,
}

impl Session {
    /// A session whose client knows the parameters that a server `told`.
    pub fn new(startup: Settings, told: Reported, turn: u64) -> Session {
        Session {
            session_state: SessionState::new(startup),
            names: Names::default(),
            told,
            seen: Seen::default(),
            replies: PendingReplies::default(),
            phase: Phase::Idle,
            status: b'I',
            batch: None,
            transaction: None,
            link: None,
            parked: None,
            replay: None,
            broken: None,
            state: None,
            pending_state: None,
            held_ready: None,
            named_settings: Vec::new(),
            deferred_error: None,
            xid: XidState::default(),
            has_unasked_writes: false,
            has_notified: false,
            may_have_notified: false,
            in_doubt: None,
            is_amid_row: false,
            asked_status: None,
            last_words: None,
            dying_word: None,
            number: u32::try_from(turn).unwrap_or(0),
            commits_async: false,
            lost_epoch: None,
            lost: None,
            required: Lsn::ZERO,
            asks_shown: false,
            turn,
            counts: Counts::default(),
        }
    }

    /// The number by which its client knows it.
    pub fn is_numbered(&mut self, number: u32) {
        self.number = number;
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Where it stands, to find out why a history does not end.
    #[cfg(test)]
    pub fn standing(&self) -> String {
        let (phase, link, required) = (self.phase, &self.link, self.required);
        format!("{phase:?}, needs {required}, on {link:?}")
    }

    /// True if the client is between two transactions.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle && self.status == b'I'
    }

    /// True if a transaction is open and its client has nothing under way.
    pub fn is_idle_in_transaction(&self) -> bool {
        self.phase == Phase::Idle && self.status != b'I'
    }

    /// True if a server has begun something of this session that planned work must let end.
    pub fn has_begun(&self) -> bool {
        let is_under_way = matches!(
            self.phase,
            Phase::Running | Phase::Replaying | Phase::Deciding | Phase::Waiting(Wait::Setup)
        );
        self.status != b'I' || is_under_way
    }

    /// True if the session waits for a server or a version.
    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting(_))
    }

    /// True if the session waits for standbys to move on.
    pub fn waits_for_version(&self) -> bool {
        matches!(self.phase, Phase::Waiting(Wait::Version(_)))
    }

    /// True if the session is over.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// The connection in hand, if there is one.
    pub fn link(&self) -> Option<&Server> {
        self.link.as_deref()
    }

    /// What a session in session mode begins with: the connection that its client was let in by.
    pub fn begin_linked(&mut self, server: Box<Server>) {
        self.link = Some(server);
    }

    /// Where the connection goes that came along from another process.
    pub fn is_linked_to(&mut self, address: Address, process: i32) {
        if let Some(link) = &mut self.link {
            link.process = Some(process);
            link.address = Some(address);
        }
    }

    /// True if the next message of the client can be taken.
    pub fn takes_client(&self) -> bool {
        match self.phase {
            Phase::Idle | Phase::Gathering => true,
            Phase::Running => self
                .batch
                .as_ref()
                .is_some_and(|batch| !batch.is_complete || batch.is_copying_in),
            _ => false,
        }
    }

    /// Asks for a connection to the active.
    fn ask_for_active(&self, out: &mut Out) {
        let fresh = self.last_words.is_some() || self.dying_word.is_some();
        out.effects.push(Effect::AcquireActive { fresh });
    }

    /// Ends the session with a last word to its client, if that would not be taken for the rest of a row.
    pub fn close(&mut self, refusal: &Refusal, out: &mut Out) {
        if !self.is_amid_row {
            refusal.put(&mut out.client);
        }
        self.shut(out);
    }

    fn shut(&mut self, out: &mut Out) {
        if self.link.take().is_some() {
            out.effects.push(Effect::Drop);
        }
        if self.parked.take().is_some() {
            out.effects.push(Effect::DropParked);
        }
        self.phase = Phase::Closed;
        out.effects.push(Effect::Close);
    }

    /// The client's input is invalid.
    fn malformed(&mut self, error: &Malformed, out: &mut Out) {
        let code = match error {
            Malformed::TooLarge(_) => "54000",
            _ => "08P01",
        };
        self.close(&Refusal::fatal(code, error.to_string()), out);
    }

    /// The mode of reads that counts now.
    fn read_mode(&self, cx: &Context<'_>) -> ReadMode {
        let own = self.session_state.settings.value("understudy.read");
        own.and_then(|text| text.parse().ok())
            .unwrap_or(cx.rules.read)
    }

    /// True if open transactions of this session are run again.
    fn replays(&self, cx: &Context<'_>) -> bool {
        match self.session_state.settings.value("understudy.replay") {
            Some("off" | "false") => false,
            Some(_) => true,
            None => cx.rules.replays,
        }
    }
}
