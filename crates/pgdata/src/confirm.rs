//! How commits on an ordered log learn that they are durable: the agent is the synchronous standby of the active's
//! PostgreSQL, on a replication connection over its own socket.
//!
//! [`confirm_log`] says how far k replicas have the log; PostgreSQL lets those commits go whose records are below. The log
//! that comes on the connection is thrown away. [`Place::take`] opens a connection that does nothing but be there: whoever has all
//! of a server's places for replication connections knows that nobody else is sent log.
//!
//! Invariant: nothing is confirmed that is not durable, and nothing at all before the stream stands. What is
//! confirmed may be less, if somebody holds it back; it never becomes less than it was.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use volume::lsn::Lsn;

use crate::feed::RowsNeeded;
use crate::postgres_now;
pub use crate::receiver::Refusal;
use crate::receiver::{Event, Purpose, Session, SessionError, State};
use crate::sealer::SyncedLog;

/// The name of the agent's connection in `synchronous_standby_names`.
pub const CONFIRMS: &str = "understudy_log";
/// The name of connections that take places.
const PLACE: &str = "understudy_place";
/// How often the same is said again, so that the server knows that somebody is there.
const REPEAT_EVERY: Duration = Duration::from_secs(1);
/// A server that stops asks again after each answer, until all of its log is confirmed. It gets one so often, unless there
/// is news.
const ANSWERS_EVERY: Duration = Duration::from_millis(20);

/// Why a connection is not there any more.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ConfirmError(#[from] Broken);

impl ConfirmError {
    /// True if the server refuses the connection, and why.
    pub fn refusal(&self) -> Refusal {
        match &self.0 {
            Broken::Session(error) => error.refusal(),
            Broken::Socket(_) | Broken::Ended => Refusal::None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
    #[error("the server ended the connection")]
    Ended,
}

/// What decides how far the log is confirmed.
#[derive(Debug, Clone)]
pub struct Confirmable {
    /// How far it is durable.
    pub synced: watch::Receiver<SyncedLog>,
    /// True if commits are held although they are durable.
    pub held: watch::Receiver<bool>,
    /// No more than this is confirmed, if anything is said.
    pub at_most: watch::Receiver<Option<Lsn>>,
    /// Rows that must be kept for queries on standbys.
    pub needed: watch::Receiver<RowsNeeded>,
}

impl Confirmable {
    /// How far to confirm, if it was `confirmed` before.
    fn now(&mut self, confirmed: Lsn) -> Lsn {
        let synced = self.synced.borrow_and_update().end;
        let is_held = *self.held.borrow_and_update();
        let at_most = self.at_most.borrow_and_update().unwrap_or(Lsn(u64::MAX));
        match is_held {
            true => confirmed,
            false => synced.min(at_most).max(confirmed),
        }
    }

    /// Waits for news of any of it; fails when nobody is left who could have some.
    async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        tokio::select! {
            biased;
            changed = self.synced.changed() => changed,
            changed = self.held.changed() => changed,
            changed = self.at_most.changed() => changed,
            changed = self.needed.changed() => changed,
        }
    }
}

/// Confirmations on the connection, sent and next. Pure.
#[derive(Debug, Default)]
struct ConfirmState {
    confirmed: Option<Lsn>,
    needed: RowsNeeded,
    answered: Option<Instant>,
}

impl ConfirmState {
    fn confirmed(&self) -> Lsn {
        self.confirmed.unwrap_or(Lsn::ZERO)
    }

    /// True if a position is news.
    fn take(&mut self, position: Lsn) -> bool {
        self.confirmed.replace(position) != Some(position)
    }

    /// True if these rows are news; that none are needed is none at first.
    fn take_needed(&mut self, rows: RowsNeeded) -> bool {
        std::mem::replace(&mut self.needed, rows) != rows
    }

    /// True if to answer a question of the server's at once; if not, the next repetition does.
    fn answers(&mut self, now: Instant) -> bool {
        let soon = |at: Instant| now.duration_since(at) < ANSWERS_EVERY;
        let answers = !self.answered.is_some_and(soon);
        if answers {
            self.answered = Some(now);
        }
        answers
    }
}

/// Confirms the log at the server whose socket this is, until its sources are gone. `streaming` is told when the
/// server has taken the connection for what it is.
///
/// # Errors
/// Whatever ended the connection before: the server refuses it (`max_wal_senders`, `pg_hba.conf`), or stops.
pub async fn confirm_log(
    socket: &Path,
    user: &str,
    confirmable: &mut Confirmable,
    streaming: oneshot::Sender<()>,
) -> Result<(), ConfirmError> {
    let session = Session::new(user, CONFIRMS).map_err(Broken::from)?;
    let connection = UnixStream::connect(socket).await.map_err(Broken::from)?;
    let mut confirming = Confirming {
        connection,
        session,
        said: ConfirmState::default(),
        streaming: Some(streaming),
    };
    Ok(confirming.run(confirmable).await?)
}

struct Confirming {
    connection: UnixStream,
    session: Session,
    said: ConfirmState,
    streaming: Option<oneshot::Sender<()>>,
}

impl Confirming {
    async fn run(&mut self, confirmable: &mut Confirmable) -> Result<(), Broken> {
        let mut repeat = tokio::time::interval(REPEAT_EVERY);
        let mut owed = false;
        loop {
            while let Some(event) = self.session.next_event()? {
                match event {
                    Event::Streaming => {
                        self.say(confirmable, true)?;
                        if let Some(streaming) = self.streaming.take() {
                            // Whoever waited may have gone.
                            let _ = streaming.send(());
                        }
                    }
                    Event::Asked => match self.said.answers(Instant::now()) {
                        true => self.say(confirmable, true)?,
                        false => owed = true,
                    },
                    Event::Ended => return Err(Broken::Ended),
                    Event::Placed => {}
                }
            }
            let output = self.session.take_output();
            self.connection.write_all(&output).await?;
            let streams = self.session.state() == State::Streaming;
            tokio::select! {
                biased;
                changed = confirmable.changed() => match changed {
                    Ok(()) if streams => self.say(confirmable, false)?,
                    Ok(()) => {}
                    Err(_) => return self.leave().await,
                },
                _ = repeat.tick(), if streams => self.say(confirmable, true)?,
                () = tokio::time::sleep(ANSWERS_EVERY), if owed && streams => {
                    owed = false;
                    self.said.answered = Some(Instant::now());
                    self.say(confirmable, true)?;
                }
                received = self.connection.read_buf(self.session.input()) => {
                    if received? == 0 {
                        return Err(Broken::Ended);
                    }
                }
            }
        }
    }

    /// Says what is news, and the position also if it is none.
    fn say(&mut self, confirmable: &mut Confirmable, again: bool) -> Result<(), Broken> {
        let position = confirmable.now(self.said.confirmed());
        if self.said.take(position) || again {
            self.session.progress(position, position, postgres_now())?;
        }
        let rows = *confirmable.needed.borrow_and_update();
        if self.said.take_needed(rows) {
            self.session.needed(&rows, postgres_now())?;
        }
        Ok(())
    }

    async fn leave(&mut self) -> Result<(), Broken> {
        self.session.terminate()?;
        let output = self.session.take_output();
        Ok(self.connection.write_all(&output).await?)
    }
}

/// One of a server's places for replication connections, taken by doing nothing there.
#[derive(Debug)]
pub struct Place {
    connection: UnixStream,
    session: Session,
}

impl Place {
    /// Takes one. `options` are for the server process (`-c name=value`): it must not end because it is idle.
    ///
    /// # Errors
    /// As [`confirm_log`]; all places may be taken.
    pub async fn take(socket: &Path, user: &str, options: &str) -> Result<Place, ConfirmError> {
        Ok(Place::open(socket, user, options).await?)
    }

    async fn open(socket: &Path, user: &str, options: &str) -> Result<Place, Broken> {
        let session = Session::greet(Purpose::Place, user, PLACE, options)?;
        let connection = UnixStream::connect(socket).await?;
        let mut place = Place {
            connection,
            session,
        };
        let output = place.session.take_output();
        place.connection.write_all(&output).await?;
        while place.session.next_event()? != Some(Event::Placed) {
            let input = place.session.input();
            if place.connection.read_buf(input).await? == 0 {
                return Err(Broken::Ended);
            }
        }
        Ok(place)
    }

    /// Waits until it is lost.
    pub async fn lost(&mut self) {
        loop {
            let input = self.session.input();
            match self.connection.read_buf(input).await {
                Ok(0) | Err(_) => return,
                // A change of a parameter, or a notice; nothing that matters ends here.
                Ok(_) => input.clear(),
            }
        }
    }

    /// Gives it up, with a word, so that the server does not write of a lost connection into its log.
    pub async fn leave(mut self) {
        if self.session.terminate().is_ok() {
            let output = self.session.take_output();
            // It may be gone already.
            let _ = self.connection.write_all(&output).await;
        }
    }
}

/// The oldest of the rows that several standbys need.
pub fn oldest(all: impl IntoIterator<Item = RowsNeeded>) -> RowsNeeded {
    let older = |one: (u32, u32), other: (u32, u32)| match (one, other) {
        ((0, _), other) => other,
        (one, (0, _)) => one,
        // By how often the counter wrapped around, and then by itself.
        (one, other) if (one.1, one.0) <= (other.1, other.0) => one,
        (_, other) => other,
    };
    all.into_iter().fold(RowsNeeded::default(), |kept, rows| {
        let (xmin, epoch) = older((kept.xmin, kept.epoch), (rows.xmin, rows.epoch));
        let (catalog_xmin, catalog_epoch) = older(
            (kept.catalog_xmin, kept.catalog_epoch),
            (rows.catalog_xmin, rows.catalog_epoch),
        );
        RowsNeeded {
            xmin,
            epoch,
            catalog_xmin,
            catalog_epoch,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::TimelineId;

    struct Sources {
        synced: watch::Sender<SyncedLog>,
        held: watch::Sender<bool>,
        at_most: watch::Sender<Option<Lsn>>,
        needed: watch::Sender<RowsNeeded>,
    }

    fn synced(end: u64) -> SyncedLog {
        SyncedLog {
            end: Lsn(end),
            timeline: TimelineId::FIRST,
        }
    }

    fn sources(end: u64) -> (Sources, Confirmable) {
        let sources = Sources {
            synced: watch::Sender::new(synced(end)),
            held: watch::Sender::new(false),
            at_most: watch::Sender::new(None),
            needed: watch::Sender::default(),
        };
        let confirmable = Confirmable {
            synced: sources.synced.subscribe(),
            held: sources.held.subscribe(),
            at_most: sources.at_most.subscribe(),
            needed: sources.needed.subscribe(),
        };
        (sources, confirmable)
    }

    #[test]
    fn durable_positions_are_confirmed_unless_held_back() {
        let (sources, mut confirmable) = sources(100);
        assert_eq!(confirmable.now(Lsn::ZERO), Lsn(100));
        sources.at_most.send_replace(Some(Lsn(120)));
        sources.synced.send_replace(synced(200));
        assert_eq!(confirmable.now(Lsn(100)), Lsn(120));
        sources.at_most.send_replace(None);
        sources.held.send_replace(true);
        assert_eq!(confirmable.now(Lsn(120)), Lsn(120));
        sources.held.send_replace(false);
        assert_eq!(confirmable.now(Lsn(120)), Lsn(200));
        sources.at_most.send_replace(Some(Lsn(150)));
        assert_eq!(confirmable.now(Lsn(200)), Lsn(200), "never less");
    }

    #[test]
    fn the_same_is_said_once_and_a_server_that_stops_is_not_answered_without_pause() {
        let mut said = ConfirmState::default();
        assert!(said.take(Lsn(7)) && !said.take(Lsn(7)) && said.take(Lsn(8)));
        assert!(!said.take_needed(RowsNeeded::default()));
        let rows = RowsNeeded {
            xmin: 700,
            ..RowsNeeded::default()
        };
        assert!(said.take_needed(rows) && !said.take_needed(rows));
        let now = Instant::now();
        assert!(said.answers(now) && !said.answers(now));
        assert!(said.answers(now + ANSWERS_EVERY));
    }

    #[test]
    fn the_oldest_rows_of_all_standbys_are_kept() {
        let rows = |xmin, epoch, catalog_xmin| RowsNeeded {
            xmin,
            epoch,
            catalog_xmin,
            catalog_epoch: 0,
        };
        assert_eq!(oldest([]), RowsNeeded::default());
        let all = [
            rows(900, 1, 0),
            rows(0, 0, 30),
            rows(4_000_000_000, 0, 40),
            rows(5, 2, 0),
        ];
        assert_eq!(oldest(all), rows(4_000_000_000, 0, 30));
    }
}
