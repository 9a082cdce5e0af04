//! A client's session: a connection to the member of its own, and what its statements become on the way there.
//!
//! ```text
//!   statement ──▶ plan ──▶ values that the primary evaluates ──▶ locks ──▶ executed on the member, and noted
//!   COMMIT    ──▶ the log is durable ──▶ committed on the member with its number ──▶ on the standby ──▶ answered
//! ```
//!
//! Invariant: what the client is told of a transaction that writes is held back until it is acknowledged, or has failed, and whatever
//! it is told then is what the log says.

mod as_it_is;
mod asked;
mod bound;
mod circle;
mod copy;
mod direct;
mod extended;
mod keys;
mod leaving;
mod login;
mod memory;
mod names;
mod notes;
mod own_types;
mod planning;
mod relay;
mod restore;
mod rows;
mod run;
mod simple;
mod single;
mod startup;
mod transaction;
mod under_way;
mod visit;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use protocol::frame::{self, Refusal};
use proxy::core::session::Keeps;
use proxy::core::sql::Effect;
use proxy::driver::socket::Socket;
use tokio::sync::watch;

use super::hub::{Hub, Inside};
use super::wire::{Reply, Said, Wire, WireError, reply};
use crate::core::manager::Life;
use crate::sql;

use login::Secret;
use memory::Memory;
use names::Names;
use single::Batch;
use startup::{Cancel, Entered};
use transaction::Transaction;
use under_way::Direct;

pub use startup::{Cancels, cancel, receive};
pub use visit::visit;

/// What a client is sent is written when it is so much.
const PENDING_BYTES: usize = 64 << 10;

/// A manager notices within this time that its member is lost.
const LOSS_NOTICED: Duration = Duration::from_secs(5);

/// Why a session ends.
#[derive(Debug)]
enum End {
    /// The client, or the member, is gone.
    Lost(io::Error),
    /// The client is told this.
    Told(Box<Refusal>),
    /// The client is told what the member says.
    Said(BytesMut),
    /// This manager is not primary any more, and the session has nothing under way: it goes on at the other one.
    Leaves,
    /// The client has ended it.
    Terminated,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Lost(error)
    }
}

impl From<WireError> for End {
    fn from(error: WireError) -> End {
        match error {
            WireError::Lost(error) => End::Lost(error),
            WireError::Said(said) => End::Lost(io::Error::other(said.message)),
        }
    }
}

type Result<T> = std::result::Result<T, End>;

/// What a part of a session's work came to.
enum Done {
    /// It went well.
    Well,
    /// The client was told what was wrong.
    Failed,
}

/// A client's session.
pub struct Session {
    hub: Arc<Hub>,
    client: Wire,
    server: Wire,
    /// Of the member's server that it is at.
    life: Life,
    serving: watch::Receiver<Option<u32>>,
    /// What its names mean.
    names: sql::Session,
    /// What is known of the catalog within a transaction that has changed it.
    own_facts: Option<Arc<sql::Facts>>,
    /// The state of the member's session: `I`, `T` or `E`; that of a transaction also before the member was sent its beginning.
    status: u8,
    /// A transaction has begun that the member has not been sent the beginning of: that goes with its first statement.
    begins: bool,
    transaction: Option<Transaction>,
    /// What the last transaction can be asked about by.
    last_token: Option<String>,
    /// True if it is known what names mean.
    knows_names: bool,
    /// A transaction that is open has changed settings.
    sets_within: bool,
    memory: Memory,
    prepared: Names,
    /// At the only member: what the batch has executed.
    batch: Batch,
    /// What it has set, and what else it has.
    keeps: Keeps,
    /// It has begun something.
    inside: Option<Inside>,
    /// Messages that are under way, if transactions are logged as rows.
    direct: Direct,
    /// With this it is cancelled.
    cancel: Arc<Cancel>,
    /// The client's first message.
    startup: Vec<u8>,
    /// How the client has proved who it is; `None` if its connection is the other manager's.
    secret: Option<Secret>,
}

impl Session {
    fn new(hub: Arc<Hub>, client: Wire, entered: Entered) -> Session {
        Session {
            serving: hub.serving(),
            hub,
            client,
            server: entered.server,
            life: entered.life,
            names: sql::Session::default(),
            own_facts: None,
            status: b'I',
            begins: false,
            transaction: None,
            last_token: None,
            knows_names: false,
            sets_within: false,
            memory: Memory::default(),
            prepared: Names::default(),
            batch: Batch::default(),
            keeps: Keeps::default(),
            inside: None,
            direct: Direct::default(),
            cancel: entered.cancel,
            startup: entered.startup,
            secret: entered.secret,
        }
    }

    /// Serves the client until either side ends it.
    async fn serve(mut self) {
        let ended = loop {
            match self.step().await {
                Ok(()) => {}
                Err(End::Leaves | End::Lost(_)) if self.hub.config.single => break member_lost(),
                Err(End::Leaves) => {
                    self.inside = None;
                    if let Err(end) = self.leave().await {
                        break end;
                    }
                }
                Err(end) => break end,
            }
        };
        if let Some(transaction) = self.transaction.take() {
            self.hub.leave(transaction.tx);
        }
        self.client.say_why(ended).await;
    }

    /// Takes the next message.
    async fn step(&mut self) -> Result<()> {
        if self.hub.config.ships_rows() {
            return self.step_directly().await;
        }
        let is_between = self.is_between();
        if is_between {
            self.inside = None;
        }
        // What a client sends comes together, and is answered together.
        let message = match self.client.take().map_err(|_| End::Terminated)? {
            Some(message) => message,
            None => {
                self.client.flush().await?;
                if is_between && self.server.is_gone() {
                    // It was lost after its transaction had committed.
                    return Err(End::Leaves);
                }
                tokio::select! {
                    message = self.client.receive() => message.map_err(|_| End::Terminated)?,
                    gone = gone(&mut self.serving) => {
                        return Err(if is_between || self.hub.config.single { End::Leaves } else { gone });
                    }
                    more = self.server.read() => {
                        return match more.map_err(End::Lost).and_then(|()| self.pass_unasked()) {
                            Err(End::Lost(error)) if is_between => self.lose_server(error).await,
                            passed => passed,
                        };
                    }
                }
            }
        };
        if is_between && !self.begin().await {
            self.client.put_back(&message);
            return Err(End::Leaves);
        }
        self.hub.counters.statements.fetch_add(1, Ordering::Relaxed);
        match message[0] {
            // PostgreSQL skips it as well.
            b'Q' if self.prepared.has_failed => Ok(()),
            b'Q' => self.simple(&message).await,
            b'X' => Err(End::Terminated),
            b'P' | b'B' | b'D' | b'E' | b'C' | b'H' | b'S' => self.extended(message).await,
            // Data of a COPY that has failed.
            b'd' | b'c' | b'f' => Ok(()),
            _ => {
                let text = "this message is not understood by the mirror";
                Err(End::Told(Box::new(Refusal::fatal("08P01", text))))
            }
        }
    }

    /// True if nothing is under way.
    fn is_between(&self) -> bool {
        let is_open = self.prepared.is_open || !self.direct.watched.is_idle();
        self.status == b'I' && self.transaction.is_none() && !is_open
    }

    /// Begins something, as soon as it may; not if this manager stops being primary before that.
    async fn begin(&mut self) -> bool {
        let mut gate = None;
        loop {
            if self.serving.borrow().is_none() {
                return false;
            }
            if let Some(inside) = self.hub.enter_gate() {
                self.inside = Some(inside);
                return self.is_at_known_server().await;
            }
            // It may have opened before it is watched.
            let Some(gate) = &mut gate else {
                gate = Some(self.hub.gate());
                continue;
            };
            tokio::select! {
                _ = gone(&mut self.serving) => return false,
                _ = gate.changed() => {}
            }
        }
    }

    /// True if its member's server is still the one that was asked what it has. That is asked again after a connection was
    /// lost, the server's or the manager's alone.
    async fn is_at_known_server(&mut self) -> bool {
        if self.server.is_gone() {
            return false;
        }
        if self.hub.look(|manager| manager.life()) == self.life {
            return true;
        }
        match self.hub.member.life_at(&mut self.server).await {
            Ok(life) => {
                self.life = life;
                true
            }
            Err(error) => {
                tracing::debug!(%error, "a session goes on with another one of the member's");
                self.server = Wire::new(Socket::Gone);
                false
            }
        }
    }

    /// Notes what a statement has left with the session.
    fn note_effects(&mut self, text: &str, sets: bool) {
        if sets || sql::may_leave_something(text) {
            let known = self.hub.texts.look(text.as_bytes());
            for effect in known.parts.iter().flat_map(|part| &part.effects) {
                match effect {
                    Effect::Deallocate(name) => {
                        if name.is_none() {
                            self.server.statements.drop_all();
                        }
                        self.prepared.forget(name.as_deref());
                    }
                    Effect::DiscardAll => {
                        self.server.statements.drop_all();
                        self.prepared.forget(None);
                    }
                    _ => {}
                }
                self.keeps.note(effect);
            }
        }
        if self.status == b'I' {
            self.keeps.end(true);
        }
    }

    /// Passes on what the member says without having been asked: notifications, and its end.
    fn pass_unasked(&mut self) -> Result<()> {
        while let Some((_, len)) = frame::head(&self.server.input).map_err(io::Error::other)? {
            if self.server.input.len() < len {
                break;
            }
            let message = self.server.input.split_to(len);
            if message[0] == b'E' {
                return Err(WireError::Said(Box::new(Said::read(message))).into());
            }
            self.client.output.extend_from_slice(&message);
        }
        Ok(())
    }

    /// The member has ended a session with nothing under way. Most likely it is lost itself: then somebody else becomes primary,
    /// and the session goes on there.
    async fn lose_server(&mut self, error: io::Error) -> Result<()> {
        if self.hub.config.single {
            return Err(End::Lost(error));
        }
        self.server = Wire::new(Socket::Gone);
        match tokio::time::timeout(LOSS_NOTICED, gone(&mut self.serving)).await {
            Ok(_) => Err(End::Leaves),
            Err(_) => Err(End::Lost(error)),
        }
    }

    /// What is known of the catalog.
    fn facts(&self) -> Arc<sql::Facts> {
        self.own_facts
            .clone()
            .unwrap_or_else(|| self.hub.facts.read().clone())
    }

    /// Asks the member something for the manager itself.
    async fn ask(&mut self, text: &str) -> Result<Reply> {
        self.put_begin()?;
        super::member::put_extended(&mut self.server.output, text, &[], &[])?;
        self.server.flush().await?;
        let reply = reply(&mut self.server).await?;
        self.status = reply.status;
        Ok(reply)
    }

    /// The same, where the same is asked again and again.
    async fn ask_again(&mut self, text: &str) -> Result<Reply> {
        self.put_begin()?;
        let Wire {
            statements, output, ..
        } = &mut self.server;
        statements.put(output, text, &[], &[])?;
        self.server.flush().await?;
        let reply = reply(&mut self.server).await?;
        match reply.error {
            None => self.server.statements.seen(),
            Some(_) => self.server.statements.failed(),
        }
        self.status = reply.status;
        Ok(reply)
    }

    /// Refuses a statement: within a transaction the member's session fails as well.
    async fn refuse(&mut self, refusal: &Refusal) -> Result<Done> {
        self.hub.counters.refused.fetch_add(1, Ordering::Relaxed);
        if self.status != b'I' {
            let raised = self.ask(&raise(refusal)).await?;
            let said = raised.error.map(|said| said.code);
            if said.as_deref() != Some(refusal.code) {
                tracing::debug!(?said, "a refusal came out as another");
            }
        }
        refusal.put(&mut self.client.output);
        Ok(Done::Failed)
    }

    fn tell(&mut self, said: &Said) {
        self.client.output.extend_from_slice(&said.frame);
    }

    fn ready(&mut self) {
        let status = self.status;
        frame::put_ready(&mut self.client.output, status);
    }

    /// True if what was read is right: nobody else may have become primary in the meantime.
    fn check_lease(&self) -> Result<()> {
        if self.hub.config.single {
            return Ok(());
        }
        let now_ms = self.hub.now_ms();
        match self.hub.look(|manager| manager.reads(now_ms)) {
            true => Ok(()),
            false => Err(not_primary()),
        }
    }
}

/// A statement that fails with this.
fn raise(refusal: &Refusal) -> String {
    use proxy::core::settings::quote_literal;
    format!(
        "DO {}",
        quote_literal(&format!(
            "BEGIN RAISE EXCEPTION USING ERRCODE = {}, MESSAGE = {}; END",
            quote_literal(refusal.code),
            quote_literal(&refusal.message)
        ))
    )
}

/// The only member is lost: there is nowhere else to go on, and no log to ask.
fn member_lost() -> End {
    let refusal = Refusal::fatal("57P01", "the connection to the member is lost")
        .hint("Connect again; a commit that was under way may have happened.");
    End::Told(Box::new(refusal))
}

fn not_primary() -> End {
    let refusal = Refusal::fatal("57P01", "this manager is not primary any more")
        .hint("Connect again, to the other one: name both in the connection string.");
    End::Told(Box::new(refusal))
}

/// Waits until clients are not served any more.
async fn gone(serving: &mut watch::Receiver<Option<u32>>) -> End {
    let epoch = *serving.borrow_and_update();
    if epoch.is_some() {
        // The sender lives as long as the process.
        let _ = serving.wait_for(|now| *now != epoch).await;
    }
    not_primary()
}

/// What was read from a client's prepared statements.
type ByName<T> = HashMap<String, T>;

/// Appends whole messages.
fn pass(messages: &[BytesMut], out: &mut BytesMut) {
    for message in messages {
        out.extend_from_slice(message);
    }
}
