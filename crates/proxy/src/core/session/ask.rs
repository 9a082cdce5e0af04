//! Asking for the id of a transaction, in the same packet as what may have given it one.
//!
//! The question goes with the first statement that may write, so the id is known long before a `COMMIT` is
//! sent; only a transaction of a single statement has its question in front of its own commit.

use postgres_protocol::message::frontend;

use super::super::outcome::Xid;
use super::batch::RequestBatch;
use super::replies::{ReplyOwner, SentMessage};
use super::{Context, Out, Session};

/// The name of the question, on servers.
const STATEMENT: &str = "understudy_xid";
/// The portal it runs in between messages of the extended protocol: the client's unnamed one stays as it is.
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
    /// True if the id is worth asking for. A transaction that has failed answers nothing, and has written nothing.
    pub(super) fn wants_xid(&self, cx: &Context<'_>) -> bool {
        let is_on_active = self
            .link
            .as_ref()
            .is_some_and(|link| link.epoch().is_some());
        let is_known = matches!(self.xid, XidState::Is(_));
        cx.rules.decides && is_on_active && !is_known && self.status != b'E'
    }

    /// Asks within the transaction of what was sent before. The server answers at once if `flushes`, and
    /// otherwise with whatever makes it answer next.
    ///
    /// The question is a statement that stays prepared, and with a simple query's on a server of the session's own the
    /// unnamed one, which simple queries take away anyway: such a client sees no statement that it did not prepare. The
    /// unnamed portal goes with simple queries, too, so there the question needs none of its own.
    pub(super) fn ask_xid(
        &mut self,
        cx: &Context<'_>,
        is_simple: bool,
        flushes: bool,
        out: &mut Out,
    ) {
        let is_shared = self.is_shared(cx);
        let Some(link) = &mut self.link else {
            return;
        };
        let buf = &mut out.server;
        let name = if is_simple && !is_shared {
            ""
        } else {
            STATEMENT
        };
        let portal = if is_simple { "" } else { PORTAL };
        if is_simple {
            link.unnamed = None;
        }
        if name.is_empty() {
            frontend::parse(name, TEXT, [], buf).expect(BUILT);
            self.replies
                .push(SentMessage::Parse(None), ReplyOwner::Nobody);
        } else if link.prepared.insert(name) {
            frontend::parse(name, TEXT, [], buf).expect(BUILT);
            let ask = SentMessage::Parse(Some(name.into()));
            self.replies.push(ask, ReplyOwner::Nobody);
        }
        put_bind(portal, name, out);
        self.replies.push(SentMessage::Bind, ReplyOwner::Nobody);
        frontend::execute(portal, 0, &mut out.server).expect(BUILT);
        self.replies.push(SentMessage::Execute, ReplyOwner::Xid);
        if !portal.is_empty() {
            frontend::close(b'P', portal, &mut out.server).expect(BUILT);
            self.replies.push(SentMessage::Close, ReplyOwner::Nobody);
        }
        if flushes {
            frontend::flush(&mut out.server);
        }
        self.xid = XidState::Asked;
        self.has_unasked_writes = false;
    }

    /// Asks in messages of their own, in an open transaction.
    pub(super) fn ask_xid_apart(&mut self, cx: &Context<'_>, is_simple: bool, out: &mut Out) {
        self.ask_xid(cx, is_simple, false, out);
        frontend::sync(&mut out.server);
        self.replies.push(SentMessage::Sync, ReplyOwner::Nobody);
    }

    /// A statement of the simple protocol that commits by itself, in a transaction of its own: so the
    /// transaction's id is known before it commits.
    pub(super) fn write_wrapped(
        &mut self,
        cx: &Context<'_>,
        batch: &mut RequestBatch,
        end: usize,
        out: &mut Out,
    ) {
        put_query("BEGIN", out);
        self.replies.push(SentMessage::Query, ReplyOwner::Nobody);
        out.server
            .extend_from_slice(&batch.bytes[batch.written..end]);
        self.replies.push(SentMessage::Query, ReplyOwner::Wrapped);
        batch.is_wrapped = true;
        // While the server takes data for COPY it takes nothing else.
        if !batch.facts.copies_in {
            self.end_wrapped(cx, batch, out);
        }
    }

    /// Ends the transaction that was put around a statement.
    pub(super) fn end_wrapped(
        &mut self,
        cx: &Context<'_>,
        batch: &mut RequestBatch,
        out: &mut Out,
    ) {
        self.ask_xid_apart(cx, true, out);
        put_query("COMMIT", out);
        self.replies.push(SentMessage::Query, ReplyOwner::Commit);
        batch.has_sent_commit = true;
    }
}

fn put_query(text: &str, out: &mut Out) {
    protocol::frame::put(&mut out.server, b'Q', &[text.as_bytes(), b"\0"]);
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
