//! A protected connection whose ends are used by two threads: one reads, others write.
//!
//! ```text
//!  socket ─▶ incoming ─▶ session (decrypts) ─▶ reader          locks: incoming, then session
//!  socket ◀─ outgoing ◀─ session (encrypts) ◀─ writers         locks: outgoing, then session
//! ```
//!
//! Invariants: nobody waits for the socket while holding the session, and a reader sends nothing but the
//! handshake, when there are no writers yet, so that a client which takes no answers keeps nobody from
//! reading; what was encrypted goes out in that order, because its turn is
//! taken before it is encrypted; nothing that was read is passed on before the client has shown a
//! certificate of the cluster.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use dax::tls::Rejection;
use parking_lot::Mutex;
use rustls::{ServerConfig, ServerConnection};

/// Bytes read from the socket at once: the library itself takes 4 KiB at a time.
const INCOMING_BYTES: usize = 64 << 10;

/// The server's side of a connection. The handshake happens when it is first read from.
pub(crate) struct Secure {
    pub socket: TcpStream,
    session: Mutex<ServerConnection>,
    incoming: Mutex<Incoming>,
    /// Encrypted bytes on their way to the socket; its lock is a writer's turn.
    outgoing: Mutex<Vec<u8>>,
}

/// What came from the socket and was not looked at yet.
struct Incoming {
    bytes: Box<[u8]>,
    from: usize,
    to: usize,
}

impl Secure {
    /// A connection that a client has just made.
    pub fn new(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Secure> {
        let session = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Secure {
            socket,
            session: Mutex::new(session),
            incoming: Mutex::new(Incoming {
                bytes: vec![0; INCOMING_BYTES].into(),
                from: 0,
                to: 0,
            }),
            outgoing: Mutex::default(),
        })
    }

    /// Reads what the client said; `Interrupted` if what has arrived says nothing yet, so that whoever
    /// bounds the time can look at the clock.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut incoming = self.incoming.lock();
        let read = self.decrypt(&mut incoming, buf)?;
        if read > 0 || buf.is_empty() {
            return Ok(read);
        }
        let arrived = (&self.socket).read(&mut incoming.bytes)?;
        if arrived == 0 {
            // Frames tell whether anything is missing.
            return Ok(0);
        }
        (incoming.from, incoming.to) = (0, arrived);
        match self.decrypt(&mut incoming, buf)? {
            0 => Err(io::ErrorKind::Interrupted.into()),
            read => Ok(read),
        }
    }

    /// Decrypts what has arrived as far as `buf` has room.
    fn decrypt(&self, incoming: &mut Incoming, buf: &mut [u8]) -> io::Result<usize> {
        let mut session = self.session.lock();
        let mut filled = 0;
        while filled < buf.len() {
            match session.reader().read(&mut buf[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                Err(_) if incoming.from == incoming.to => break,
                Err(_) => {
                    let mut rest = &incoming.bytes[incoming.from..incoming.to];
                    incoming.from += session.read_tls(&mut rest)?;
                    let shakes_hands = session.is_handshaking();
                    if let Err(error) = session.process_new_packets() {
                        drop(session);
                        if shakes_hands {
                            // Told to the client as far as it listens.
                            let _ = self.flush();
                        }
                        let why = format!("the client {}", Rejection::from(&error));
                        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                    }
                }
            }
        }
        // Afterwards what waits here is a writer's, or goes out with the next writer's: to wait for the turn
        // of one who waits for the client would be to wait for the client.
        let answers = session.is_handshaking() && session.wants_write();
        drop(session);
        if answers {
            self.flush()?;
        }
        Ok(filled)
    }

    /// Encrypts and sends as much as the session takes at once, at least something.
    pub fn write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut outgoing = self.outgoing.lock();
        let mut session = self.session.lock();
        if session.is_handshaking() {
            let why = "an answer before the client has shown its certificate";
            return Err(io::Error::other(why));
        }
        let written = session.writer().write_vectored(bufs)?;
        drop(session);
        self.send(&mut outgoing)?;
        Ok(written)
    }

    fn flush(&self) -> io::Result<()> {
        self.send(&mut self.outgoing.lock())
    }

    /// Sends what is encrypted, in the caller's turn.
    fn send(&self, outgoing: &mut Vec<u8>) -> io::Result<()> {
        outgoing.clear();
        let mut session = self.session.lock();
        while session.wants_write() {
            session.write_tls(outgoing)?;
        }
        drop(session);
        (&self.socket).write_all(outgoing)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use dax::tls::{Files, Tls, new_identity};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// More than sockets hold.
    const BYTES: usize = 32 << 20;

    /// The server's answers fill the sockets, and it hears the client all the same.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_client_that_takes_no_answers_is_heard() {
        let dir = tempfile::tempdir().unwrap();
        let identity = dir.path().join("cluster.pem");
        new_identity(&identity).unwrap();
        let tls = Tls::load(Files::Identity(identity)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let called = tokio::net::TcpStream::connect(&address).await.unwrap();
        let (socket, _) = listener.accept().unwrap();
        let server = Arc::new(Secure::new(socket, tls.server()).unwrap());

        let reader = server.clone();
        let hears = tokio::task::spawn_blocking(move || {
            let (mut heard, mut chunk) = (0, vec![0; 8192]);
            while heard < BYTES {
                match reader.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(read) => heard += read,
                    Err(e) => assert_eq!(e.kind(), io::ErrorKind::Interrupted),
                }
            }
            heard
        });
        let client = tls.connect(called, &address).await.unwrap();
        let (mut answers, mut questions) = tokio::io::split(client);
        questions.write_all(&[1]).await.unwrap();
        questions.flush().await.unwrap();
        let writer = server.clone();
        let answered = tokio::task::spawn_blocking(move || {
            let answer = vec![2; BYTES];
            let mut rest = &answer[..];
            while !rest.is_empty() {
                match writer.write_vectored(&[IoSlice::new(rest)]) {
                    Ok(written) => rest = &rest[written..],
                    // The client's certificate is on its way still.
                    Err(_) => std::thread::yield_now(),
                }
            }
        });
        let question = vec![1; BYTES - 1];
        questions.write_all(&question).await.unwrap();
        questions.flush().await.unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(60), hears).await;
        assert_eq!(heard.unwrap().unwrap(), BYTES);
        let mut taken = vec![0; BYTES];
        answers.read_exact(&mut taken).await.unwrap();
        assert!(taken.iter().all(|byte| *byte == 2));
        answered.await.unwrap();
    }
}
