//! A standby's feedback connection at its active's PostgreSQL, which does not know that it has standbys.
//!
//! The volume's standbys take the log from storage, so there is no replication connection that could
//! carry what they report. [`report_feedback`] makes one: it keeps an ordinary physical replication connection
//! over the agent's socket, repeats on it what the standby reported, and throws the log away that comes.
//! So vacuum keeps the rows that the standby's queries still read, and `pg_stat_replication` shows it.
//!
//! Invariants: without a slot, what the server keeps for the connection ends with the connection. Log
//! is always taken, and a server that stops is left at once: a feedback connection never holds anything up.
//!
//! The price: of a connection that has not read its log for as long as the server keeps that (about a
//! checkpoint, and `wal_keep_size`) nothing is left, and the next one begins a second later. Vacuum may
//! remove rows in between, and queries on that standby are cancelled then. A slot would prevent that, but
//! keep log for a feedback connection that hangs, without bound or up to a bound at which it is just as gone.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;
use volume::lsn::Lsn;

use crate::feed::RowsNeeded;
use crate::postgres_now;
use crate::receiver::{Event, Session, SessionError, State};

/// How often the same is reported again, so that the server knows that somebody is there.
const REPEAT_EVERY: Duration = Duration::from_secs(1);
/// A server that asks again so soon after an answer is stopping, and waits for its log to be flushed.
const STOPPING_ASKS_WITHIN: Duration = Duration::from_millis(100);

/// What a standby reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The end of the log that it was given. That log is durable, in the zones.
    pub received: Lsn,
    /// Replayed up to here.
    pub applied: Lsn,
    /// The rows that its queries may still read.
    pub needed: RowsNeeded,
}

/// Why a feedback connection is not connected any more.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct FeedbackError(#[from] Broken);

#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
    #[error("the server ended the connection")]
    Ended,
}

/// Stands in for the standby `name` until the sender of its reports is gone. `socket` is the server's,
/// `user` a superuser or one with REPLICATION that may connect there without a password.
///
/// # Errors
/// Whatever ended the connection before: the server refuses it (`max_wal_senders`, `pg_hba.conf`), or
/// stops.
pub async fn report_feedback(
    socket: &Path,
    user: &str,
    name: &str,
    reports: &mut watch::Receiver<Report>,
) -> Result<(), FeedbackError> {
    let session = Session::new(user, name).map_err(Broken::from)?;
    let connection = UnixStream::connect(socket).await.map_err(Broken::from)?;
    let mut connection = Connection {
        connection,
        session,
    };
    Ok(connection.run(reports).await?)
}

struct Connection {
    connection: UnixStream,
    session: Session,
}

impl Connection {
    async fn run(&mut self, reports: &mut watch::Receiver<Report>) -> Result<(), Broken> {
        let mut repeat = tokio::time::interval(REPEAT_EVERY);
        let mut answered: Option<Instant> = None;
        loop {
            while let Some(event) = self.session.next_event()? {
                match event {
                    Event::Streaming => self.report(reports)?,
                    Event::Placed => {}
                    Event::Ended => return Err(Broken::Ended),
                    Event::Asked => {
                        if answered.is_some_and(|at| at.elapsed() < STOPPING_ASKS_WITHIN) {
                            self.leave().await?;
                            return Err(Broken::Ended);
                        }
                        self.report(reports)?;
                        answered = Some(Instant::now());
                    }
                }
            }
            self.send().await?;
            let streaming = self.session.state() == State::Streaming;
            tokio::select! {
                biased;
                changed = reports.changed() => match changed {
                    Ok(()) if streaming => self.report(reports)?,
                    Ok(()) => {}
                    Err(_) => return self.leave().await,
                },
                _ = repeat.tick(), if streaming => self.report(reports)?,
                received = self.connection.read_buf(self.session.input()) => {
                    if received? == 0 {
                        return Err(Broken::Ended);
                    }
                }
            }
        }
    }

    fn report(&mut self, reports: &mut watch::Receiver<Report>) -> Result<(), Broken> {
        let report = *reports.borrow_and_update();
        let now = postgres_now();
        self.session
            .progress(report.received, report.applied, now)?;
        Ok(self.session.needed(&report.needed, now)?)
    }

    async fn send(&mut self) -> Result<(), Broken> {
        let output = self.session.take_output();
        Ok(self.connection.write_all(&output).await?)
    }

    async fn leave(&mut self) -> Result<(), Broken> {
        self.session.terminate()?;
        self.send().await
    }
}
