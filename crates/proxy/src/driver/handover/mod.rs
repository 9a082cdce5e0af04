//! Hands clients over to another process, and takes them over from one.
//!
//! `core::handover` says who serves whom when; here are the sockets that say it, and those that are handed over. A process
//! that is asked to (SIGUSR2, or `RESTART` of an operator) starts its program again and tells it by the environment where to
//! meet. Clients go with their sockets and what `core::session` packs of their sessions.

mod giving;
mod message;
mod taking;
mod wire;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use zeroize::Zeroizing;

use crate::core::handover::ClientId;

use super::Proxy;
use super::socket::Socket;

pub use giving::{Giver, ToServe};
pub use message::{ClientParcel, ServerParcel, write};
pub use taking::{Predecessor, Taken};

/// Tells a successor the name of the socket where its predecessor waits for it.
const MEET_AT: &str = "UNDERSTUDY_PROXY_PREDECESSOR";

/// Why a process did not hand over, and goes on.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// It does not know how to start another.
    #[error("this proxy cannot start another one in its place")]
    NotHere,
    /// It is at it.
    #[error("a restart is under way")]
    UnderWay,
    /// The one before it has not ended.
    #[error("the process before this one still has clients")]
    PredecessorLives,
    /// An operator has paused it, which another process would not know of.
    #[error("the proxy is paused: RESUME first")]
    Paused,
    /// The program cannot be started, or met.
    #[error("the new process cannot be started")]
    Start(#[source] io::Error),
    /// It ended, or said what is invalid.
    #[error("the new process ended before it could serve; its log says why")]
    Lost,
    /// It does not take over from this one.
    #[error("the new process refuses: {0}")]
    Refused(String),
    /// This process ends.
    #[error("the proxy is shutting down")]
    Ends,
}

/// Why a process did not take over; it ends.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// It cannot meet its predecessor.
    #[error("the process before this one cannot be reached")]
    Meet(#[source] io::Error),
    /// The predecessor writes sessions otherwise.
    #[error(
        "the process before this one hands sessions over in format {theirs}, and this one reads format {ours}"
    )]
    Format {
        /// What it writes.
        theirs: u32,
        /// What this program reads.
        ours: u32,
    },
    /// Its message is invalid.
    #[error("unexpected message from the previous process")]
    Nonsense,
    /// This process did not learn of the cluster what the predecessor knows.
    #[error("the cluster did not name its active in time")]
    Unknowing,
    /// The predecessor goes on itself.
    #[error("the process before this one continues")]
    Abandoned,
}

/// A socket without a runtime.
#[derive(Debug)]
pub enum Plain {
    /// Over a network.
    Tcp(std::net::TcpStream),
    /// On this machine.
    Unix(std::os::unix::net::UnixStream),
}

impl AsFd for Plain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Plain::Tcp(stream) => stream.as_fd(),
            Plain::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Plain {
    /// Takes a socket from its runtime; an encrypted one stays.
    pub fn of(socket: Socket) -> io::Result<Plain> {
        match socket {
            Socket::Tcp(stream) => stream.into_std().map(Plain::Tcp),
            Socket::Unix(stream) => stream.into_std().map(Plain::Unix),
            Socket::Tls(_) | Socket::Gone => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The socket of another process.
    fn received(fd: OwnedFd, is_unix: bool) -> Plain {
        match is_unix {
            true => Plain::Unix(fd.into()),
            false => Plain::Tcp(fd.into()),
        }
    }

    /// Gives it to the runtime.
    pub fn into_socket(self) -> io::Result<Socket> {
        Ok(match self {
            Plain::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                Socket::Tcp(tokio::net::TcpStream::from_std(stream)?)
            }
            Plain::Unix(stream) => {
                stream.set_nonblocking(true)?;
                Socket::Unix(tokio::net::UnixStream::from_std(stream)?)
            }
        })
    }
}

/// The sockets of a client that is handed over.
#[derive(Debug)]
pub struct Sockets {
    /// Socket to the client.
    pub client: Plain,
    /// Socket to its server, if that is handed over with it.
    pub server: Option<Plain>,
}

/// A client that waits for another process to take it.
#[derive(Debug)]
pub struct Leaving {
    pub id: ClientId,
    /// Encoded session.
    pub parcel: Zeroizing<Vec<u8>>,
    /// Sockets to hand over with it.
    pub sockets: Sockets,
    /// Returns the sockets if the client stays.
    pub answer: oneshot::Sender<Option<Sockets>>,
}

/// A cancel request for a client that is not here.
pub type Cancel = (ClientId, Vec<u8>);

/// Somebody asks for a restart, and waits for what comes of it.
pub type Request = oneshot::Sender<Result<(), HandoverError>>;

/// What the tasks of a proxy must know of a hand-over.
pub struct Handover {
    /// Others may be started in place of this process.
    is_allowed: AtomicBool,
    requests: mpsc::UnboundedSender<Request>,
    requested: Mutex<Option<mpsc::UnboundedReceiver<Request>>>,
    /// Who takes clients, if somebody does.
    taker: Mutex<Option<mpsc::UnboundedSender<Leaving>>>,
    /// Counts hand-overs: who was asked to leave, was asked in this one.
    number: AtomicU32,
    /// The other process, successor or predecessor.
    other: Mutex<Option<mpsc::UnboundedSender<Cancel>>>,
    guests: Arc<()>,
}

/// Somebody for whom the process lives on beside its clients.
pub struct Guest(#[allow(dead_code, reason = "it is counted")] Arc<()>);

impl Default for Handover {
    fn default() -> Handover {
        let (requests, requested) = mpsc::unbounded_channel();
        Handover {
            is_allowed: AtomicBool::new(false),
            requests,
            requested: Mutex::new(Some(requested)),
            taker: Mutex::default(),
            number: AtomicU32::new(0),
            other: Mutex::default(),
            guests: Arc::default(),
        }
    }
}

impl Handover {
    /// This process is one that its program can take the place of, with the same arguments.
    pub fn allow(&self) {
        self.is_allowed.store(true, Ordering::Release);
    }

    /// Asks for a restart.
    pub async fn request(&self) -> Result<(), HandoverError> {
        if !self.is_allowed.load(Ordering::Acquire) {
            return Err(HandoverError::NotHere);
        }
        let (answer, answered) = oneshot::channel();
        self.requests
            .send(answer)
            .map_err(|_| HandoverError::Ends)?;
        answered.await.unwrap_or(Err(HandoverError::Ends))
    }

    /// Requests, for whoever serves.
    pub fn requests(&self) -> Option<mpsc::UnboundedReceiver<Request>> {
        self.requested.lock().take()
    }

    /// Clients may leave from now on. The number of this hand-over.
    fn open(&self, taker: mpsc::UnboundedSender<Leaving>) -> u32 {
        let number = self.number.fetch_add(1, Ordering::AcqRel) + 1;
        *self.taker.lock() = Some(taker);
        number
    }

    /// Nobody may leave any more.
    fn close(&self) {
        *self.taker.lock() = None;
    }

    /// The hand-over that is under way.
    pub fn number(&self) -> Option<u32> {
        let is_open = self.taker.lock().is_some();
        is_open.then(|| self.number.load(Ordering::Acquire))
    }

    /// A client leaves; it gets its sockets back if nobody takes it.
    pub fn leave(&self, leaving: Leaving) {
        let taker = self.taker.lock().clone();
        let back = match taker {
            Some(taker) => taker.send(leaving).err().map(|unsent| unsent.0),
            None => Some(leaving),
        };
        if let Some(Leaving {
            sockets, answer, ..
        }) = back
        {
            // The client waits for it.
            let _ = answer.send(Some(sockets));
        }
    }

    /// Cancel requests for clients that are not here go there.
    fn set_other(&self, other: Option<mpsc::UnboundedSender<Cancel>>) {
        *self.other.lock() = other;
    }

    /// A cancel request for a client that is not here.
    pub fn cancel_elsewhere(&self, id: ClientId, secret: &[u8]) {
        if let Some(other) = &*self.other.lock() {
            // A process that is gone has no clients.
            let _ = other.send((id, secret.to_vec()));
        }
    }

    /// The process stays for this one, too.
    pub fn guest(&self) -> Guest {
        Guest(self.guests.clone())
    }

    /// True if it stays for nobody but clients.
    fn has_no_guests(&self) -> bool {
        Arc::strong_count(&self.guests) == 1
    }
}

/// Listening for signals, as long as this is there.
pub struct Signals(Option<JoinHandle<()>>);

impl Drop for Signals {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Restarts the proxy at each SIGUSR2, if it may be.
pub fn restart_by_signal(proxy: &Arc<Proxy>) -> Signals {
    if !proxy.handover.is_allowed.load(Ordering::Acquire) {
        return Signals(None);
    }
    let Ok(mut asked) = signal(SignalKind::user_defined2()) else {
        tracing::error!(
            "cannot listen for SIGUSR2: RESTART in the database \"understudy\" remains"
        );
        return Signals(None);
    };
    let proxy = proxy.clone();
    Signals(Some(tokio::spawn(async move {
        while asked.recv().await.is_some() {
            // What comes of it is in the log.
            let _ = proxy.restart().await;
        }
    })))
}
