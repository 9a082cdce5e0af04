//! Asking for the id of a transaction, in the same packet as what may have given it one.
//!
//! The question goes with the first statement that may write, so the id is known long before a `COMMIT` is
//! sent; only a transaction of a single statement has its question in front of its own commit.

use postgres_protocol::message::frontend;

use super::super::outcome::Xid;
use super::slots::{Ask, To};
use super::unit::Unit;
use super::{Context, Out, Session};

/// The name of the question, on servers.
const STATEMENT: &str = "understudy_xid";
/// The portal it runs in: the client's unnamed one stays as it is.
const PORTAL: &str = "understudy_xid";
const TEXT: &str = "SELECT pg_catalog.pg_current_xact_id_if_assigned()";

/// What is known of a transaction's id.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum XidState {
    /// Nobody asked.
    #[default]
    NotAsked,
    /// The answer has not come.
    Asked,
    /// It had none when it was asked for.
    None,
    /// This is it.
    Is(Xid),
}

/// Messages of ours, which have no text that could make them fail.
const BUILT: &str = "a message without zero bytes in its strings";

impl Session {
    /// Whether the id is worth asking for.
    pub(super) fn wants_xid(&self, cx: &Context<'_>) -> bool {
        let is_on_active = self
            .link
            .as_ref()
            .is_some_and(|link| link.epoch().is_some());
        cx.rules.decides && is_on_active && !matches!(self.xid, XidState::Is(_))
    }

    /// Asks within the transaction of what was sent before. The server answers at once if `flushes`, and
    /// otherwise with whatever makes it answer next. With a simple query, which takes the unnamed statement
    /// away anyway, the question is the unnamed statement, and otherwise one that stays prepared.
    pub(super) fn ask_xid(&mut self, is_simple: bool, flushes: bool, out: &mut Out) {
        let Some(link) = &mut self.link else {
            return;
        };
        let buf = &mut out.server;
        let name = if is_simple { "" } else { STATEMENT };
        if is_simple {
            link.unnamed = None;
            frontend::parse(name, TEXT, [], buf).expect(BUILT);
            self.slots.push(Ask::Parse(None), To::Nobody);
        } else if link.prepared.insert(STATEMENT.into()) {
            frontend::parse(STATEMENT, TEXT, [], buf).expect(BUILT);
            let ask = Ask::Parse(Some(STATEMENT.into()));
            self.slots.push(ask, To::Nobody);
        }
        put_bind(PORTAL, name, out);
        self.slots.push(Ask::Bind, To::Nobody);
        frontend::execute(PORTAL, 0, &mut out.server).expect(BUILT);
        self.slots.push(Ask::Execute, To::Xid);
        frontend::close(b'P', PORTAL, &mut out.server).expect(BUILT);
        self.slots.push(Ask::Close, To::Nobody);
        if flushes {
            frontend::flush(&mut out.server);
        }
        self.xid = XidState::Asked;
        self.has_unasked_writes = false;
    }

    /// Asks in messages of their own, in an open transaction.
    pub(super) fn ask_xid_apart(&mut self, is_simple: bool, out: &mut Out) {
        self.ask_xid(is_simple, false, out);
        frontend::sync(&mut out.server);
        self.slots.push(Ask::Sync, To::Nobody);
    }

    /// A statement of the simple protocol that commits by itself, in a transaction of its own: so the
    /// transaction's id is known before it commits.
    pub(super) fn write_wrapped(&mut self, unit: &mut Unit, end: usize, out: &mut Out) {
        put_query("BEGIN", out);
        self.slots.push(Ask::Query, To::Nobody);
        out.server.extend_from_slice(&unit.bytes[unit.written..end]);
        self.slots.push(Ask::Query, To::Wrapped);
        unit.is_wrapped = true;
        // While the server takes data for COPY it takes nothing else.
        if !unit.facts.copies_in {
            self.end_wrapped(unit, out);
        }
    }

    /// Ends the transaction that was put around a statement.
    pub(super) fn end_wrapped(&mut self, unit: &mut Unit, out: &mut Out) {
        self.ask_xid_apart(true, out);
        put_query("COMMIT", out);
        self.slots.push(Ask::Query, To::Commit);
        unit.has_sent_commit = true;
    }
}

fn put_query(text: &str, out: &mut Out) {
    super::super::frame::put(&mut out.server, b'Q', &[text.as_bytes(), b"\0"]);
}

/// `Bind` without parameters, with results as text.
fn put_bind(portal: &str, statement: &str, out: &mut Out) {
    let none = std::iter::empty::<i16>;
    let bound = frontend::bind(
        portal,
        statement,
        none(),
        std::iter::empty::<()>(),
        |(), _| Ok(postgres_protocol::IsNull::Yes),
        none(),
        &mut out.server,
    );
    debug_assert!(bound.is_ok(), "there are no parameters to fail");
}
