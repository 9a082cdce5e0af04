//! The stream of a member's commits: what a primary logs, and what a standby's own commits are compared by.
//!
//! ```text
//!   COMMIT on the member ──WAL──▶ stream ──primary──▶ log, durable ──▶ position confirmed ──▶ PostgreSQL makes it visible and answers
//!                                        └─standby──▶ compared with the log's rows of that number
//! ```
//!
//! The manager is its member's synchronous standby, so that a commit waits in PostgreSQL, invisible to everybody, until the log has it.
//!
//! Invariant: a primary confirms a position only when the log has every commit before it; a manager that is not primary any more confirms
//! no commit of which it does not know that the log has it. Each epoch has a stream of its own, which begins where the log ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use protocol::frame;
use tokio::sync::mpsc;

use super::definitions::Definitions;
use super::hub::Hub;
use super::level::{Event, Surplus};
use super::rows;
use super::sequences::Sequences;
use super::wire::{Postgres, ServerError, WireError};
use crate::core::manager::{Life, Manager, Role};
use crate::core::pgoutput::{self, Streamed};
use crate::core::record::{Number, Token};
use crate::core::rows::{Change, Header, Lsn, Origin, Rows};
use crate::core::stream::{Assembly, Awaits, Captured, Confirmed};

/// A longer transaction is logged in pieces of this length.
const PIECE_BYTES: usize = 1 << 20;
/// No more is read of the stream while so many records are not durable.
const MOST_WRITING: usize = 64;
/// The server is told at least so often how far the stream is dealt with.
const TELL_EVERY: Duration = Duration::from_millis(300);
/// Time after which a stream that has ended begins again.
const BEGIN_AGAIN: Duration = Duration::from_millis(100);

/// Follows the member's commits for as long as the process lives.
pub async fn watch(hub: Arc<Hub>) {
    let mut epochs = hub.capture.epoch.subscribe();
    loop {
        let epoch = *epochs.borrow_and_update();
        let is_used = hub.capture.began.lock().is_some() || epoch.is_some();
        // One that is to be replaced, or to be rewound, says nothing more, unless the one that it is to be replaced by was lost.
        let takes_over = hub.look(|manager| manager.taking().is_some());
        if is_used && (takes_over || !hub.replaces.load(Ordering::Acquire)) {
            let streaming = stream(&hub, epoch);
            let ended = tokio::select! {
                ended = streaming => ended,
                _ = epochs.changed() => Ok(()),
            };
            if let Err(error) = ended {
                tracing::warn!(%error, ?epoch, "the stream of the member's commits has ended; beginning again");
                let is_filling = || hub.is_filling.load(Ordering::Acquire);
                if !is_filling() && rows::has_lost_slot(&hub.member).await && !is_filling() {
                    hub.has_no_slot();
                }
            }
        }
        tokio::time::sleep(BEGIN_AGAIN).await;
    }
}

/// One stream.
pub(super) struct Stream<'a> {
    pub(super) hub: &'a Hub,
    pub(super) life: Life,
    pub(super) system: u64,
    assembly: Assembly,
    pub(super) confirmed: Confirmed,
    /// Commits of which nobody has said yet that the log has them.
    pub(super) surplus: Surplus,
    /// The server has sent everything up to here.
    sent: Lsn,
    /// Definitions of the transaction whose last piece has not come.
    turns: rows::Turns,
    /// The log, if commits are logged.
    log: Option<Log>,
}

/// State of a primary's stream.
struct Log {
    epoch: u32,
    events: mpsc::UnboundedReceiver<Event>,
    /// A session for questions.
    asks: Postgres,
    sequences: Sequences,
    keys: rows::Keys,
    /// Sequences that were made or locked are to be asked once more.
    asks_again: bool,
    /// The last commit that was given to the log.
    last: Header,
    /// Up to where the log had this server's commits.
    logged: Lsn,
    /// Commits that a stream before this one has given to the log, and that are not acknowledged.
    given: BTreeMap<Lsn, Number>,
    /// Commits up to here were made before the epoch.
    past: Lsn,
    /// The log says that this member has served in this epoch.
    is_begun: bool,
    /// Definitions of the member, for the standby to compare.
    definitions: Definitions,
    /// Records that are not durable.
    writing: usize,
    /// Transactions that are about to be logged.
    batch: Vec<Captured>,
}

async fn stream(hub: &Hub, epoch: Option<u32>) -> Result<(), WireError> {
    let mut asks = Postgres::connect(&hub.member.target, "understudy mirror").await?;
    rows::end_stream(&mut asks).await?;
    let mut session = Postgres::connect_to_stream(&hub.member.target, rows::NAME).await?;
    let life = hub.member.life_at(&mut session.wire).await?;
    let (system, timeline) = rows::identify(&mut session).await?;
    let logged = rows::logged(&mut asks).await?;
    let logged = logged.max(hub.look(|manager| manager.logged_of(system)));
    let log = match epoch {
        None => None,
        Some(epoch) => {
            let listens = |manager: &mut Manager| (hub.capture.listen(), manager.given());
            let (events, (given, writing)) = hub.act(|manager, _| listens(manager));
            let logged = given.keys().copied().fold(logged, Lsn::max);
            let past = rows::end_of_wal(&mut asks).await?;
            Some(Log {
                epoch,
                events,
                given,
                asks,
                sequences: Sequences::default(),
                keys: rows::Keys::default(),
                logged,
                asks_again: false,
                last: Header {
                    origin: Origin {
                        system,
                        timeline,
                        end: logged,
                        ..Origin::default()
                    },
                    piece: 0,
                    is_last: true,
                },
                past,
                is_begun: false,
                definitions: Definitions::new(&hub.member),
                writing,
                batch: Vec::new(),
            })
        }
    };
    rows::begin_stream(&mut session).await?;
    let mut stream = Stream {
        hub,
        life,
        system,
        assembly: Assembly::new(system, timeline, usize::MAX),
        confirmed: Confirmed::default(),
        surplus: Surplus::default(),
        sent: Lsn(0),
        turns: rows::Turns::new(),
        log,
    };
    if epoch.is_some() && *hub.capture.level.borrow() == epoch {
        stream.assembly.cut(PIECE_BYTES);
    }
    stream.follow(&mut session).await
}

impl Stream<'_> {
    async fn follow(&mut self, session: &mut Postgres) -> Result<(), WireError> {
        let mut told = Lsn(0);
        // Whatever else comes, and however often.
        let mut tick = tokio::time::interval(TELL_EVERY);
        loop {
            let mut is_asked = false;
            while let Some(message) = session.wire.take()? {
                is_asked |= self.take(&message)?;
            }
            let sent = self.sent;
            self.write().await?;
            self.log_definitions(sent)?;
            self.confirmed.reach(sent);
            self.prove()?;
            let position = self.confirmed.position();
            self.hub.capture.confirmed.send_replace(position);
            self.see_level()?;
            if is_asked || position > told {
                told = position;
                put(&mut session.wire.output, &pgoutput::confirmation(position))?;
                session.wire.flush().await?;
            }
            let may_read = self
                .log
                .as_ref()
                .is_none_or(|log| log.writing < MOST_WRITING);
            let log = self.log.as_mut();
            let next = async {
                match log {
                    Some(log) => tokio::select! {
                        event = log.events.recv() => Some(event),
                        () = log.definitions.ready() => None,
                    },
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                read = session.wire.read(), if may_read => read?,
                event = next => if let Some(event) = event {
                    self.hear(event)?
                },
                () = self.hub.capture.learns() => {}
                _ = tick.tick() => {
                    if self.hub.look(Manager::life) != self.life {
                        return Ok(());
                    }
                    told = Lsn(0);
                    if let Some(log) = &mut self.log {
                        // Values of sequences may have been taken, and nothing else done.
                        log.asks_again = true;
                        log.sequences.look_again();
                    }
                    self.ask_again().await?;
                }
            }
        }
    }

    /// Takes a message of the connection; true if the server wants to know how far everything is.
    fn take(&mut self, message: &BytesMut) -> Result<bool, WireError> {
        match message[0] {
            b'd' => {}
            b'E' => {
                return Err(WireError::Server(Box::new(ServerError::read(
                    message.clone(),
                ))));
            }
            b'N' | b'S' => return Ok(false),
            _ => return Err(broken("the server has ended it")),
        }
        match pgoutput::streamed(frame::body(message)).map_err(broken)? {
            Streamed::Alive { end, is_asked } => {
                if !self.assembly.is_within() {
                    // What came before it may not be given to the log yet: it is dealt with after that.
                    self.sent = self.sent.max(end);
                }
                Ok(is_asked)
            }
            Streamed::Data(data) => {
                let message = pgoutput::read(data).map_err(broken)?;
                if let Some(captured) = self.assembly.take(message).map_err(broken)? {
                    if captured.header.is_last {
                        self.sent = self.sent.max(captured.header.origin.end);
                    }
                    self.receive(captured)?;
                }
                Ok(false)
            }
        }
    }

    fn receive(&mut self, captured: Captured) -> Result<(), WireError> {
        let end = captured.header.origin.end;
        let Some(log) = &mut self.log else {
            return self.compare(captured);
        };
        let is_past = end <= log.past;
        // A piece says where its commit begins.
        let has = match captured.header.is_last {
            true => end <= log.logged,
            false => end < log.logged,
        };
        let is_executed = is_past && !captured.applied.is_empty();
        let is_nothing = captured.header.piece == 0 && captured.rows.changes.is_empty();
        if is_executed {
            // The last that it executed before it became primary.
            return self.compare(captured);
        }
        if has || is_nothing {
            if captured.header.is_last {
                let given = log.given.get(&end).copied();
                self.confirmed.push(end, given.map(Awaits::Record));
            }
            return Ok(());
        }
        if is_past
            && !self
                .hub
                .look(|manager| manager.may_log_past_of(self.system))
        {
            self.hub.has_surplus(end, None);
            return Err(broken(
                "the member has commits that cannot be logged any more",
            ));
        }
        log.batch.push(captured);
        Ok(())
    }

    /// Gives what has come to the log.
    async fn write(&mut self) -> Result<(), WireError> {
        let Some(log) = self.log.as_mut().filter(|log| !log.batch.is_empty()) else {
            return Ok(());
        };
        let (mut batch, mut resets) = (std::mem::take(&mut log.batch), false);
        for captured in &mut batch {
            log.keys.note(&mut log.asks, &mut captured.rows).await?;
            if captured.rows.defines() {
                log.definitions.defined(captured.header.origin.xid);
            }
            resets |= log
                .sequences
                .note(captured.header.origin.xid, &captured.rows);
        }
        let sequences = log.sequences.advanced(&mut log.asks).await?;
        log.asks_again = true;
        let last = batch.len() - 1;
        for (at, mut captured) in batch.into_iter().enumerate() {
            // What is made or begins again in this batch is there only at its end.
            let own = match at == 0 || at == last && resets {
                true => sequences.clone(),
                false => Vec::new(),
            };
            let header = captured.header;
            rows::make_portable(&mut captured.rows, &mut self.turns);
            if header.is_last {
                self.turns.clear();
            }
            let number = self.give(header, &captured.rows, own)?;
            if header.is_last {
                let awaits = Some(Awaits::Record(number));
                self.confirmed.push(header.origin.end, awaits);
            }
        }
        Ok(())
    }

    /// Logs what is defined, where all that has defined it was logged, and nothing else.
    fn log_definitions(&mut self, sent: Lsn) -> Result<(), WireError> {
        let Some(log) = self.log.as_mut() else {
            return Ok(());
        };
        let is_level = *self.hub.capture.level.borrow() == Some(log.epoch);
        if !is_level || self.hub.role() != Role::Primary {
            // The member may lack what the log has.
            log.definitions.postpone();
            return Ok(());
        }
        if self.assembly.is_within() {
            return Ok(());
        }
        let Some((catalog, end)) = log.definitions.take(sent) else {
            return Ok(());
        };
        let header = Header {
            origin: Origin {
                system: self.system,
                end: end.max(log.last.origin.end),
                ..log.last.origin
            },
            piece: 0,
            is_last: true,
        };
        let rows = Rows {
            changes: vec![Change::Catalog(catalog)],
            ..Rows::default()
        };
        self.give(header, &rows, Vec::new()).map(drop)
    }

    /// Asks sequences that were made, or locked, when they were asked last.
    async fn ask_again(&mut self) -> Result<(), WireError> {
        let Some(log) = self
            .log
            .as_mut()
            .filter(|log| log.asks_again && log.writing == 0)
        else {
            return Ok(());
        };
        log.asks_again = false;
        let sequences = log.sequences.advanced(&mut log.asks).await?;
        if !sequences.is_empty() {
            let header = log.last;
            self.give(header, &Rows::default(), sequences)?;
        }
        Ok(())
    }

    fn give(
        &mut self,
        header: Header,
        rows: &Rows,
        sequences: Vec<(String, i64)>,
    ) -> Result<Number, WireError> {
        let log = self
            .log
            .as_mut()
            .ok_or_else(|| broken("nothing is logged"))?;
        let token = Token {
            epoch: log.epoch,
            count: u64::from(header.origin.xid),
        };
        let draft = rows.draft(&header, token, sequences);
        let epoch = log.epoch;
        let number = self.hub.act(|manager, out| {
            let is_of_now = manager.epoch() == Some(epoch);
            is_of_now.then(|| manager.commit(draft, out)).flatten()
        });
        log.writing += 1;
        if header.is_last {
            log.last = Header { piece: 0, ..header };
        }
        number.ok_or_else(|| broken("the epoch is over"))
    }

    fn hear(&mut self, event: Option<Event>) -> Result<(), WireError> {
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        let mut next = event;
        while let Some(event) = next {
            match event {
                Event::Logged(_) => log.writing = log.writing.saturating_sub(1),
                Event::Answer(number) => {
                    log.given.retain(|_, given| *given != number);
                    self.confirmed.logged(number);
                }
            }
            next = log.events.try_recv().ok();
        }
        Ok(())
    }

    /// Says so as soon as the log has all that was committed before the epoch, and that this member has the epoch: what another one has
    /// committed by itself follows on nothing then, and may be said not to have happened.
    fn see_level(&mut self) -> Result<(), WireError> {
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        let is_level = *self.hub.capture.level.borrow() == Some(log.epoch);
        if is_level || self.sent < log.past || log.writing > 0 {
            return Ok(());
        }
        if !std::mem::replace(&mut log.is_begun, true) {
            let header = log.last;
            return self.give(header, &Rows::default(), Vec::new()).map(drop);
        }
        self.hub.capture.level.send_replace(Some(log.epoch));
        self.assembly.cut(PIECE_BYTES);
        Ok(())
    }

    /// Commits that a standby's member has made by itself are in the log, or it is replaced. It may lose its epoch at any moment.
    fn prove(&mut self) -> Result<(), WireError> {
        if self.log.is_some() {
            return Ok(());
        }
        let system = self.system;
        let look = |manager: &Manager| {
            let may_log = manager.taking().is_some() && manager.may_log_past_of(system);
            let logged = manager.logged_of(system);
            (logged, manager.has_tail(), manager.is_unsettled(), may_log)
        };
        let looked @ (logged, has_tail, is_unsettled, may_log) = self.hub.look(look);
        self.confirmed.proved(logged);
        self.surplus.is_logged(logged);
        let began = *self.hub.capture.began.lock();
        let has_all = began.is_some_and(|began| self.sent >= began) && has_tail;
        match self.confirmed.unproved() {
            Some(end) if has_all && !may_log => {
                let surplus = std::mem::take(&mut self.surplus);
                self.hub.has_surplus(end, Some(surplus));
                return Err(broken("the member has commits that the log does not have"));
            }
            _ if has_all && is_unsettled => self.hub.act(|manager, out| {
                if look(manager) == looked && *self.hub.capture.began.lock() == began {
                    manager.settle(out);
                }
            }),
            _ => {}
        }
        Ok(())
    }
}

fn put(out: &mut BytesMut, data: &[u8]) -> std::io::Result<()> {
    frontend::CopyData::new(data)?.write(out);
    Ok(())
}

fn broken(why: impl ToString) -> WireError {
    WireError::Lost(std::io::Error::other(why.to_string()))
}
