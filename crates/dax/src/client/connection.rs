//! One connection to one replica: address, stream, the task that keeps it up.
//!
//! Invariant: what is read from a connection reaches the core only while that connection is the
//! replica's current one; frames go out in the order the core made them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::core::Advice;
use super::driver::{Dial, Driver};
use super::greeting::Greeting;
use super::outbox::{transmit, write_all};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::ReplicaId;
use crate::tls::{Distrust, Tls};
use crate::wire::{Frame, FrameReader, MAX_FRAME_BYTES, MAX_WELCOME_BYTES, Request, Response};

/// How long connecting and greeting may take together.
const GREETING: Duration = Duration::from_secs(5);

/// Waits between attempts to connect.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

type Reader = FrameReader<Box<dyn AsyncRead + Send + Unpin>>;
pub(super) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Both directions of a stream.
pub(super) struct Stream {
    pub reader: Reader,
    pub writer: Writer,
}

impl Stream {
    /// Connects to `unix:/path` or, protected by `tls`, to `host:port`.
    pub async fn open(address: &str, tls: Option<&Tls>) -> Result<Stream> {
        let failed = |error: io::Error| {
            let message = format!("no connection to {address}");
            Error::with_source(ErrorKind::Unavailable, message, error)
        };
        if let Some(path) = address.strip_prefix("unix:") {
            let stream = UnixStream::connect(path).await.map_err(failed)?;
            let (reader, writer) = stream.into_split();
            return Ok(Stream {
                reader: FrameReader::new(Box::new(reader)),
                writer: Box::new(writer),
            });
        }
        let stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        if let Some(tls) = tls {
            let (reader, writer) = tokio::io::split(tls.connect(stream, address).await?);
            return Ok(Stream {
                reader: FrameReader::new(Box::new(reader)),
                writer: Box::new(writer),
            });
        }
        let (reader, writer) = stream.into_split();
        Ok(Stream {
            reader: FrameReader::new(Box::new(reader)),
            writer: Box::new(writer),
        })
    }

    /// Sends a request and reads the next message, in a greeting.
    pub async fn ask(&mut self, request: &Request) -> Result<Response> {
        let failed = |error: io::Error| match Distrust::of(&error) {
            // The zone looks at our certificate after we have looked at its own.
            Some(why) => Error::new(ErrorKind::Denied, format!("the zone {why}")),
            None => Error::with_source(ErrorKind::Unavailable, "the connection broke", error),
        };
        let frame = request.encode(1, &mut BytesMut::new());
        write_all(&mut self.writer, [&frame])
            .await
            .map_err(failed)?;
        let frame = self.reader.next(MAX_WELCOME_BYTES).await.map_err(failed)?;
        let (_, response) = Response::decode(frame)?;
        Ok(response)
    }
}

/// Bounds the time of a greeting.
pub(super) async fn within<T>(
    address: &str,
    attempt: impl Future<Output = Result<T>>,
) -> Result<T> {
    let late = |_| Error::new(ErrorKind::Unavailable, format!("{address} does not answer"));
    timeout(GREETING, attempt).await.map_err(late)?
}

/// Waits longer after each failure.
pub(super) struct Backoff(Duration);

impl Backoff {
    pub fn new() -> Backoff {
        Backoff(BACKOFF_MIN)
    }

    pub async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(BACKOFF_MAX);
    }
}

/// Keeps the replicas connected that the driver wants, for as long as the client lives.
pub(super) async fn keep_all_connected(driver: Arc<Driver>, mut dials: UnboundedReceiver<Dial>) {
    let mut connections = JoinSet::new();
    while let Some(dial) = dials.recv().await {
        connections.spawn(keep_connected(Arc::clone(&driver), dial));
        while connections.try_join_next().is_some() {}
    }
}

/// Keeps one replica connected for as long as that is wanted.
async fn keep_connected(driver: Arc<Driver>, dial: Dial) {
    let Dial {
        replica,
        address,
        number,
    } = dial;
    let mut backoff = Backoff::new();
    let mut reported = false;
    while driver.is_dialed(replica, number) {
        match driver.introduction.greet(&address).await {
            Ok(Greeting::Known(greeted)) if greeted.settings == *driver.settings() => {
                match driver.replica_up(replica, &greeted.arrival) {
                    Ok(up) => {
                        tracing::info!(%replica, address, "replica connected");
                        (backoff, reported) = (Backoff::new(), false);
                        let why = serve(&driver, replica, greeted.stream, up).await;
                        tracing::warn!(%replica, address, why, "replica lost");
                    }
                    Err(error) => {
                        report(&driver, replica, &address, describe(&error), &mut reported);
                    }
                }
            }
            Ok(Greeting::Known(_)) => {
                let why = "the replica knows the volume with other settings";
                report(&driver, replica, &address, why.into(), &mut reported);
            }
            Ok(Greeting::Unknown(store)) => match driver.advise(replica, store) {
                Advice::Create(membership) => {
                    tracing::warn!(%replica, address, "the replica does not know the volume: it is sent all of it");
                    let (introduction, settings) = (&driver.introduction, driver.settings());
                    let members = membership.as_ref();
                    let created = introduction.create(&address, settings, true, members).await;
                    match created {
                        Ok(()) => continue,
                        Err(error) => {
                            report(&driver, replica, &address, describe(&error), &mut reported);
                        }
                    }
                }
                Advice::Leave(why) => report(&driver, replica, &address, why, &mut reported),
            },
            Err(error) => report(&driver, replica, &address, describe(&error), &mut reported),
        }
        backoff.wait().await;
    }
}

/// Tells an operator once per outage.
fn report(driver: &Driver, replica: ReplicaId, address: &str, why: String, reported: &mut bool) {
    if !std::mem::replace(reported, true) {
        tracing::warn!(%replica, address, why, "replica cannot be used");
    }
    driver.replica_trouble(replica, why);
}

/// An error with its causes.
pub(super) fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Runs a connection until it ends; says why.
async fn serve(
    driver: &Arc<Driver>,
    replica: ReplicaId,
    stream: Stream,
    (connection, outbox): (u64, UnboundedReceiver<Frame>),
) -> String {
    let Stream { reader, writer } = stream;
    let why = tokio::select! {
        why = receive(driver, replica, connection, reader) => why,
        why = transmit(outbox, writer) => why,
    };
    driver.replica_down(replica, connection, &why);
    why
}

async fn receive(
    driver: &Arc<Driver>,
    replica: ReplicaId,
    connection: u64,
    mut reader: Reader,
) -> String {
    loop {
        let frame = match reader.next(MAX_FRAME_BYTES).await {
            Ok(frame) => frame,
            Err(error) => return error.to_string(),
        };
        match Response::decode(frame) {
            Ok((id, response)) => driver.message(replica, connection, id, response),
            Err(error) => return error.to_string(),
        }
    }
}
