//! What a statement may do, told from its text by PostgreSQL's own parser.
//!
//! Owns [`Statement`]: what the proxy must know of a text to route it, to replay it and to decide what became
//! of it. Invariant: in doubt a statement is told to do more than it does. What the parser does not
//! understand is [`Kind::Opaque`] and goes to the active as it is.

mod cache;
mod calls;
mod catalog;
mod classify;
pub(super) mod kept;
mod scan;
mod shrink;
mod uses;
mod visit;

pub use cache::Statements;
pub use catalog::{Catalog, Function, Names, OWN_FUNCTIONS, Verdict};
pub use classify::{source, walk};
pub use scan::{Hint, Shape, shape};

use serde::{Deserialize, Serialize};

use super::settings::Change;
use uses::Uses;

/// What one statement of a text does to the transaction it runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Reads rows and nothing else, unless a function that it calls does more ([`SingleStatement::calls`]).
    Read,
    /// May write, in a transaction block or by itself.
    Write,
    /// Changes the session or the transaction and no data: `SET`, `SHOW`, `LISTEN`, `DECLARE`.
    Session,
    /// `BEGIN`, `START TRANSACTION`.
    Begin(Begin),
    /// `COMMIT`, `END`; with `AND CHAIN` another transaction begins.
    Commit {
        /// True if another transaction begins at once.
        chain: bool,
    },
    /// `ROLLBACK`, `ABORT`.
    Rollback {
        /// True if another transaction begins at once.
        chain: bool,
    },
    /// `SAVEPOINT`.
    Savepoint(Box<str>),
    /// `ROLLBACK TO SAVEPOINT`.
    RollbackTo(Box<str>),
    /// `RELEASE SAVEPOINT`.
    Release(Box<str>),
    /// `PREPARE TRANSACTION`: it ends the transaction here and leaves its outcome to somebody else.
    PrepareTransaction,
    /// May not run in a transaction block, or commits by itself: `VACUUM`, `CREATE DATABASE`, `CALL`, `DO`.
    Alone,
    /// `COPY ... FROM STDIN`.
    CopyIn,
    /// `COPY ... TO STDOUT`.
    CopyOut,
    /// Not understood.
    Opaque {
        /// It has a word that ends transactions.
        may_end: bool,
    },
}

/// The modes that `BEGIN` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Begin {
    /// `READ ONLY` or `READ WRITE`, if it says so.
    pub read_only: Option<bool>,
    /// `ISOLATION LEVEL SERIALIZABLE`, which a hot standby refuses.
    pub is_serializable: bool,
}

/// State that binds a session to its server, as no other server can be given it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ServerAffinity {
    /// A temporary table, view or sequence.
    Temporary,
    /// An advisory lock of the session.
    Advisory,
    /// A cursor `WITH HOLD`.
    HeldCursor,
    /// A function set something that the proxy cannot read.
    Unknown,
    /// A function may have set something, and is newer than what was read of it. Until it is read.
    Unread,
}

/// What of a statement lets its session keep its server in transaction mode, or releases it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A setting changes.
    Set(Change),
    /// The session is bound to its server by this.
    Affinity(ServerAffinity),
    /// Nothing of this kind binds it any more.
    NoAffinity(ServerAffinity),
    /// `LISTEN` on a channel.
    Listen(Box<str>),
    /// `UNLISTEN`; of all channels if none is named.
    Unlisten(Option<Box<str>>),
    /// `PREPARE` in SQL, with the whole text.
    Prepare(Box<str>, Box<str>),
    /// `DEALLOCATE`; of all statements if none is named.
    Deallocate(Option<Box<str>>),
    /// `EXECUTE` in SQL, by itself or within another statement: it needs the statement of this name.
    Execute(Box<str>),
    /// `DISCARD ALL`.
    DiscardAll,
}

/// One statement of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SingleStatement {
    /// What it does to its transaction.
    pub kind: Kind,
    /// The functions that it calls by name, in lower case, without their schemas.
    pub calls: Vec<Box<str>>,
    /// What else it names: the catalog tells what is called by that.
    pub uses: Uses,
    /// What it does to its session.
    pub effects: Vec<Effect>,
    /// It runs what its text does not show: `DO`, `CALL`, `EXECUTE`, or a text that nobody reads.
    pub runs_unseen: bool,
    /// It acts on a file or by a program of the server: that outlives a rollback.
    pub may_act_outside: bool,
    /// It has large objects, whose descriptors are one server's.
    pub has_large_objects: bool,
    /// It changes the catalog.
    pub defines: bool,
    /// It sets that commits do not wait until they are durable.
    pub commits_async: bool,
    /// Values that it told are put in the place of others when it is run once more ([`kept`]).
    pub keeps_values: bool,
}

/// What a text does: its statements in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// In order; none for an empty text.
    pub parts: Vec<SingleStatement>,
    /// It has a parameter like `$1`.
    pub has_parameters: bool,
    /// What a comment asks the proxy for.
    pub hint: Option<Hint>,
    /// What the proxy answers by itself.
    pub proxy_query: Option<ProxyQuery>,
}

/// Query that the proxy answers by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyQuery {
    /// `SHOW understudy.version`.
    Version,
}

impl Statement {
    /// Something of which nobody knows what it does, and that ends no transaction block.
    pub fn opaque() -> Statement {
        Statement::unread(false, Vec::new())
    }

    /// A call of a function by its number in the catalog, as `FunctionCall` has it.
    pub fn call_of(number: u32) -> Statement {
        let mut statement = Statement::unread(false, Vec::new());
        for part in &mut statement.parts {
            part.has_large_objects = calls::LARGE_OBJECTS.contains(&number);
            part.runs_unseen = !part.has_large_objects;
        }
        statement
    }

    /// A text that the parser does not understand, or was not given, and that may have these effects.
    pub fn unread(may_end: bool, effects: Vec<Effect>) -> Statement {
        let part = SingleStatement {
            kind: Kind::Opaque { may_end },
            calls: Vec::new(),
            uses: Uses::default(),
            effects,
            runs_unseen: true,
            may_act_outside: false,
            has_large_objects: false,
            defines: may_end,
            commits_async: false,
            keeps_values: false,
        };
        Statement {
            parts: vec![part],
            has_parameters: false,
            hint: None,
            proxy_query: None,
        }
    }

    /// The only statement of the text.
    pub fn only(&self) -> Option<&SingleStatement> {
        match self.parts.as_slice() {
            [part] => Some(part),
            _ => None,
        }
    }
}

impl SingleStatement {
    /// True if it ends a transaction block, as far as anybody can tell.
    pub fn may_end(&self) -> bool {
        matches!(
            self.kind,
            Kind::Commit { .. }
                | Kind::Rollback { .. }
                | Kind::PrepareTransaction
                | Kind::Opaque { may_end: true }
        )
    }

    /// True if it queues a notification by itself.
    pub fn notifies(&self) -> bool {
        self.calls.iter().any(|name| calls::notifies(name))
    }

    /// True if settings may be others behind it, be it for a transaction only.
    pub fn may_set(&self) -> bool {
        let is_plain = matches!(
            self.kind,
            Kind::Read
                | Kind::Write
                | Kind::Begin(_)
                | Kind::Savepoint(_)
                | Kind::Release(_)
                | Kind::CopyIn
                | Kind::CopyOut
        );
        !is_plain || self.calls.iter().any(|name| calls::sets(name))
    }

    /// True if another transaction may begin at once where it ends one.
    pub fn may_chain(&self) -> bool {
        matches!(
            self.kind,
            Kind::Commit { chain: true }
                | Kind::Rollback { chain: true }
                | Kind::Opaque { may_end: true }
        )
    }

    /// True if it must not run on a standby, whatever its transaction says: it leaves something on its connection, or takes
    /// something away from it, or takes a lock of which the active would not know.
    pub fn is_for_active(&self) -> bool {
        let leaves_something = |effect: &Effect| {
            matches!(
                effect,
                Effect::Affinity(_)
                    | Effect::Prepare(..)
                    | Effect::Deallocate(_)
                    | Effect::Execute(_)
                    | Effect::Listen(_)
            )
        };
        self.effects.iter().any(leaves_something)
            || self.calls.iter().any(|name| calls::is_about_locks(name))
    }

    /// True if it may write, apart from what functions do that it calls.
    pub fn writes(&self) -> bool {
        !matches!(
            self.kind,
            Kind::Read
                | Kind::Session
                | Kind::Begin(_)
                | Kind::Savepoint(_)
                | Kind::Release(_)
                | Kind::RollbackTo(_)
                | Kind::Rollback { .. }
                | Kind::CopyOut
                | Kind::Commit { .. }
        )
    }
}
