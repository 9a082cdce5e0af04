//! The driver of one connection: moves bytes between the socket, the session and the source.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::Instant;
use volume::lsn::Lsn;

use super::command::Command;
use super::session::{Event, Session, SessionError, State};
use super::{ReplayLimit, Shared, SourceError};
use crate::postgres_now;
use crate::timeline::{History, HistoryError, TimelineId};

/// Bytes of log in one message, as a primary sends them.
const CHUNK_BYTES: u64 = 128 << 10;
/// How often an idle standby hears from us (its timeout is 60 s by default).
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("socket")]
    Socket(#[from] std::io::Error),
    #[error("log source: {0}")]
    Source(SourceError),
    #[error(transparent)]
    History(#[from] HistoryError),
}

impl From<SourceError> for ServeError {
    fn from(error: SourceError) -> ServeError {
        ServeError::Source(error)
    }
}

/// Serves one connection until either side ends it.
pub(super) async fn serve(socket: UnixStream, shared: Arc<Shared>) {
    let (reader, writer) = socket.into_split();
    let session = Session::new(&shared.server_version);
    let mut connection = Connection {
        reader,
        writer,
        session,
        shared,
    };
    match connection.run().await {
        Ok(()) => tracing::debug!("standby disconnected from the feed"),
        Err(ServeError::Socket(error)) => {
            tracing::debug!(%error, "standby's connection to the feed broke");
        }
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the feed ended a connection; the standby connects again"
            );
        }
    }
}

/// A stretch of one timeline being streamed.
struct Stream {
    timeline: TimelineId,
    at: Lsn,
    /// If the timeline is historic: where it ends, and which one goes on there.
    next: Option<(Lsn, TimelineId)>,
    replay_limit: ReplayLimit,
}

impl Stream {
    /// How far may be sent now.
    fn limit(&self) -> Lsn {
        self.next.map_or(self.replay_limit.end, |(end, _)| {
            end.min(self.replay_limit.end)
        })
    }

    fn is_over(&self) -> bool {
        self.next.is_some_and(|(end, _)| self.at >= end)
    }
}

struct Connection {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    session: Session,
    shared: Arc<Shared>,
}

impl Connection {
    async fn run(&mut self) -> Result<(), ServeError> {
        loop {
            match self.next_event().await? {
                None | Some(Event::Closed) => return Ok(()),
                Some(Event::Command(command)) => {
                    if !self.answer(command).await? {
                        return Ok(());
                    }
                }
                // A stream's last words.
                Some(Event::Status(..) | Event::Needed(_) | Event::StreamEnded) => {}
            }
        }
    }

    /// The next event; `None` when the other side is gone.
    async fn next_event(&mut self) -> Result<Option<Event>, ServeError> {
        loop {
            let event = self.session.next_event()?;
            self.send().await?;
            if event.is_some() {
                return Ok(event);
            }
            if self.reader.read_buf(self.session.input()).await? == 0 {
                return Ok(None);
            }
        }
    }

    async fn send(&mut self) -> Result<(), ServeError> {
        let output = self.session.take_output();
        self.writer.write_all(&output).await?;
        Ok(())
    }

    /// Answers a command; false when the other side is gone.
    async fn answer(&mut self, command: Command) -> Result<bool, ServeError> {
        let source = self.shared.source.clone();
        match command {
            Command::IdentifySystem => {
                let identity = source.identity().await?;
                self.session
                    .identify(identity.system_identifier, identity.replay_limit)?;
            }
            Command::TimelineHistory(timeline) => match source.history(timeline).await? {
                Some(file) => self.session.history(timeline, &file)?,
                None => self
                    .session
                    .refuse("58P01", "no history file of that timeline")?,
            },
            Command::Show(name) => match name.as_str() {
                "server_version" => {
                    let version = self.shared.server_version.clone();
                    self.session.show(&name, &version)?;
                }
                _ => self
                    .session
                    .refuse("42704", "setting not known to the log feed")?,
            },
            Command::Start(at, timeline) => return self.start(at, timeline).await,
            Command::Unknown(text) => {
                tracing::debug!(text, "command not known to the feed");
                self.session
                    .refuse("42601", "command not known to the log feed")?;
            }
        }
        self.send().await?;
        Ok(true)
    }

    /// Begins to stream, or says why not; false when the other side is gone.
    async fn start(&mut self, at: Lsn, on: Option<TimelineId>) -> Result<bool, ServeError> {
        let replay_limit = self.shared.source.identity().await?.replay_limit;
        let history = self.history(replay_limit.timeline).await?;
        let timeline = on.unwrap_or(replay_limit.timeline);
        if !history.contains_log(timeline, at) {
            let message = format!(
                "requested starting point {at} on timeline {timeline} is not in this volume's history"
            );
            self.session.refuse("22023", &message)?;
            self.send().await?;
            return Ok(true);
        }
        let next = history.fork_from(timeline);
        let mut stream = Stream {
            timeline,
            at,
            next,
            replay_limit,
        };
        if stream.is_over() {
            self.session
                .finish(next.map(|(end, timeline)| (timeline, end)))?;
            self.send().await?;
            return Ok(true);
        }
        if at > stream.limit() {
            let message = format!("requested starting point {at} is beyond the synced log");
            self.session.refuse("22023", &message)?;
            self.send().await?;
            return Ok(true);
        }
        self.session.start_streaming()?;
        self.send().await?;
        self.stream(&mut stream).await
    }

    async fn history(&self, timeline: TimelineId) -> Result<History, ServeError> {
        let file = self.shared.source.history(timeline).await?;
        Ok(match file {
            Some(text) => History::parse(timeline, &String::from_utf8_lossy(&text))?,
            None => History::of_first(timeline),
        })
    }

    /// Streams until the timeline or the connection ends; false when the other side is gone.
    async fn stream(&mut self, stream: &mut Stream) -> Result<bool, ServeError> {
        let shared = self.shared.clone();
        let mut next_keepalive = Instant::now() + KEEPALIVE_EVERY;
        // Goes on while other things happen: questions that come quicker than storage answers must
        // not keep the log from being sent.
        let mut reading: Option<Reading> = None;
        loop {
            if !self.drain_events(stream)? {
                self.send().await?;
                return Ok(self.session.state() != State::Closed);
            }
            self.send().await?;
            if stream.is_over() && self.session.state() == State::Streaming {
                self.session.end_stream()?;
                self.send().await?;
            }
            let streaming = self.session.state() == State::Streaming;
            let more = streaming && stream.at < stream.limit();
            match more {
                true => reading = reading.or_else(|| Some(read_chunk(&shared, stream))),
                false => reading = None,
            }
            let current = stream.next.is_none() || stream.at >= stream.limit();
            tokio::select! {
                biased;
                received = self.reader.read_buf(self.session.input()) => {
                    if received? == 0 {
                        return Ok(false);
                    }
                }
                () = shared.ask.notified(), if streaming => {
                    self.session.keepalive(stream.limit(), postgres_now(), true)?;
                }
                log = answered(&mut reading) => {
                    let log = log?;
                    self.session.log(stream.at, stream.replay_limit.end, &log, postgres_now())?;
                    stream.at = Lsn(stream.at.0 + log.len() as u64);
                    // Counted as handed over before it is: an upper bound.
                    shared.sent.send_if_modified(|sent| {
                        let further = stream.at > *sent;
                        *sent = stream.at.max(*sent);
                        further
                    });
                }
                replay_limit = shared.source.wait_beyond(stream.replay_limit), if !more && current => {
                    self.moved(stream, replay_limit).await?;
                }
                () = tokio::time::sleep_until(next_keepalive) => {
                    next_keepalive += KEEPALIVE_EVERY;
                    if streaming {
                        self.session.keepalive(stream.limit(), postgres_now(), false)?;
                    }
                }
            }
        }
    }

    /// Handles what was received; false when the stream has ended.
    fn drain_events(&mut self, stream: &Stream) -> Result<bool, ServeError> {
        while let Some(event) = self.session.next_event()? {
            match event {
                Event::Status(feedback, wants_answer) => {
                    self.shared.feedback.send_replace(Some(feedback));
                    if wants_answer && self.session.state() == State::Streaming {
                        self.session
                            .keepalive(stream.limit(), postgres_now(), false)?;
                    }
                }
                Event::Needed(needed) => {
                    *self.shared.needed.lock() = needed.map(|rows| (Instant::now(), rows));
                }
                Event::StreamEnded => {
                    let next = stream.next.filter(|_| stream.is_over());
                    self.session
                        .finish(next.map(|(end, timeline)| (timeline, end)))?;
                    return Ok(false);
                }
                Event::Closed => return Ok(false),
                Event::Command(command) => {
                    tracing::debug!(?command, "command inside a stream ignored");
                }
            }
        }
        Ok(true)
    }

    /// The replay limit moved; perhaps the timeline streamed has become historic.
    async fn moved(
        &mut self,
        stream: &mut Stream,
        replay_limit: ReplayLimit,
    ) -> Result<(), ServeError> {
        if replay_limit.timeline != stream.replay_limit.timeline {
            stream.next = self
                .history(replay_limit.timeline)
                .await?
                .fork_from(stream.timeline);
        }
        stream.replay_limit = replay_limit;
        Ok(())
    }
}

/// Log being read, from where the stream is.
type Reading = Pin<Box<dyn Future<Output = Result<Bytes, ServeError>> + Send>>;

/// Waits for what is being read; for ever if nothing is.
async fn answered(reading: &mut Option<Reading>) -> Result<Bytes, ServeError> {
    let Some(read) = reading else {
        return std::future::pending().await;
    };
    let log = read.await;
    *reading = None;
    log
}

/// Begins to read the next piece of the stream.
fn read_chunk(shared: &Shared, stream: &Stream) -> Reading {
    // Pieces end on multiples of their size, as a primary's do, so a record's end is cut rarely.
    let (timeline, at, limit) = (stream.timeline, stream.at, stream.limit());
    let boundary = (at.0 / CHUNK_BYTES + 1) * CHUNK_BYTES;
    let len = usize::try_from(limit.0.min(boundary) - at.0).unwrap_or(usize::MAX);
    let source = Arc::clone(&shared.source);
    Box::pin(async move {
        let mut log = source.read(timeline, at, len).await?;
        if log.is_empty() {
            let nothing = format!("nothing at {at}, below the replay limit {limit}");
            return Err(ServeError::Source(nothing.into()));
        }
        log.truncate(len);
        Ok(log)
    })
}
