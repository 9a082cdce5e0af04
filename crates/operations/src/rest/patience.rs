//! How many connections the interface has, and how long one may be kept without a request.
//!
//! They share the agent's open files with the connections to the zones, which everything depends on. So there are not more
//! than [`CONNECTIONS_MAX`], and whoever does not send a whole request in time, or does not take its answer, loses its own.
//! An answer itself may take as long as it takes: a restart is awaited.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};

/// Connections, at most; more are turned away.
const CONNECTIONS_MAX: usize = 256;
/// How long the next request may take to be there, from the end of the answer before it.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);

/// A listener whose clients are given so much room and time.
pub(super) struct Patient<L> {
    listener: L,
    room: Arc<Semaphore>,
    within: Duration,
}

impl<L: Listener> Patient<L> {
    pub fn new(listener: L) -> Patient<L> {
        Patient::with(listener, CONNECTIONS_MAX, REQUEST_WITHIN)
    }

    fn with(listener: L, connections: usize, within: Duration) -> Patient<L> {
        Patient {
            listener,
            room: Arc::new(Semaphore::new(connections)),
            within,
        }
    }
}

impl<L: Listener> Listener for Patient<L> {
    type Io = Connection<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Connection<L::Io>, L::Addr) {
        loop {
            let (io, peer) = self.listener.accept().await;
            if let Ok(place) = Arc::clone(&self.room).try_acquire_owned() {
                return (Connection::new(io, self.within, Some(place)), peer);
            }
        }
    }

    fn local_addr(&self) -> io::Result<L::Addr> {
        self.listener.local_addr()
    }
}

/// Since when a connection's next request is waited for; nothing while one is being answered.
#[derive(Debug, Clone)]
pub(super) struct Pace(Arc<Mutex<Option<Instant>>>);

impl Pace {
    /// A request is being answered until the result is dropped.
    pub fn answering(&self) -> Answering {
        *self.0.lock() = None;
        Answering(self.clone())
    }
}

/// See [`Pace::answering`].
pub(super) struct Answering(Pace);

impl Drop for Answering {
    fn drop(&mut self) {
        *self.0.0.lock() = Some(Instant::now());
    }
}

/// A client's connection. It fails when the next request is overdue.
pub(super) struct Connection<Io> {
    io: Io,
    pace: Pace,
    within: Duration,
    look: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl<Io> Connection<Io> {
    fn new(io: Io, within: Duration, place: Option<OwnedSemaphorePermit>) -> Connection<Io> {
        let now = Instant::now();
        Connection {
            io,
            pace: Pace(Arc::new(Mutex::new(Some(now)))),
            within,
            look: Box::pin(sleep_until(now + within)),
            _place: place,
        }
    }

    pub fn io(&self) -> &Io {
        &self.io
    }

    pub fn pace(&self) -> Pace {
        self.pace.clone()
    }

    /// Ready when the next request is overdue.
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.look.as_mut().poll(cx));
            let now = Instant::now();
            let due = self.pace.0.lock().unwrap_or(now) + self.within;
            if due <= now {
                let what = "no request in time, or its answer is not taken";
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            self.look.as_mut().reset(due);
        }
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Connection<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(overdue) = self.poll_overdue(cx) {
            return Poll::Ready(Err(overdue));
        }
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Connection<Io> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(overdue) = self.poll_overdue(cx) {
            return Poll::Ready(Err(overdue));
        }
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(overdue) = self.poll_overdue(cx) {
            return Poll::Ready(Err(overdue));
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(overdue) = self.poll_overdue(cx) {
            return Poll::Ready(Err(overdue));
        }
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::{sleep, timeout};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LIMIT: Duration = Duration::from_secs(60);

    // The HTTP interface once had any number of connections, and a silent one stayed for ever.
    // hazard: SEC-4
    #[tokio::test]
    async fn a_request_that_does_not_come_is_not_waited_for_but_an_answer_is() {
        let (mut client, io) = tokio::io::duplex(64);
        let mut server = Connection::new(io, SHORT, None);
        let answering = server.pace().answering();
        let read = timeout(10 * SHORT, server.read_u8()).await;
        assert!(read.is_err(), "{read:?}");
        drop(answering);
        let read = timeout(LIMIT, server.read_u8()).await.unwrap();
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);

        // Nor does a byte now and then keep it.
        let (mut slow, io) = tokio::io::duplex(64);
        let mut server = Connection::new(io, SHORT, None);
        let trickling = async {
            while slow.write_u8(7).await.is_ok() {
                sleep(SHORT / 4).await;
            }
        };
        let reading = async { while server.read_u8().await.is_ok() {} };
        let overdue = async {
            tokio::select! {
                () = trickling => panic!("the connection is there still"),
                () = reading => {}
            }
        };
        timeout(LIMIT, overdue).await.unwrap();

        // Nor one who takes no answer.
        let (_deaf, io) = tokio::io::duplex(64);
        let mut server = Connection::new(io, SHORT, None);
        drop(server.pace().answering());
        let written = timeout(LIMIT, server.write_all(&[7; 1000])).await.unwrap();
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        client.shutdown().await.unwrap();
    }

    // hazard: SEC-4
    #[tokio::test]
    async fn more_connections_than_there_is_room_for_are_turned_away() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut listener = Patient::with(listener, 1, LIMIT);
        let _client = TcpStream::connect(address).await.unwrap();
        let (first, _) = timeout(LIMIT, listener.accept()).await.unwrap();

        let mut second = TcpStream::connect(address).await.unwrap();
        let mut nothing = [0];
        let turned_away = async {
            tokio::select! {
                _ = listener.accept() => panic!("there is no room"),
                read = second.read(&mut nothing) => read.unwrap_or(0),
            }
        };
        assert_eq!(timeout(LIMIT, turned_away).await.unwrap(), 0);

        drop(first);
        let _client = TcpStream::connect(address).await.unwrap();
        timeout(LIMIT, listener.accept()).await.unwrap();
    }
}
