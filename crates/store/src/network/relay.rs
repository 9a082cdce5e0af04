//! One connection over the emulated network: two delay lines, each with a thread at either end.
//!
//! Invariant: the client's zone is known from its `Hello` before anything behind that is passed on;
//! until then, and if it names none, nothing is delayed.

use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use dax::wire::{MAX_GREETING_BYTES, Request, read_frame};
use parking_lot::{Condvar, Mutex};

use super::line::{DelayLine, Next};
use super::{Emulation, Link};
use crate::stream::Stream;

/// The most that travels as one chunk.
const CHUNK_BYTES: usize = 64 << 10;

/// A client's connection through the emulated network.
pub(super) struct Relay {
    emulation: Arc<Emulation>,
    /// Connection to the client.
    socket: Stream,
    /// Connection to the zone's server.
    server: Stream,
    opened_at: Instant,
    /// Zone that the client is in.
    zone: OnceLock<String>,
    to_server: Line,
    to_client: Line,
}

/// What one of its threads does.
type Body = fn(&Relay);

/// A delay line between two threads.
struct Line {
    /// The line, and whether it was closed.
    state: Mutex<(DelayLine, bool)>,
    moved: Condvar,
}

impl Line {
    fn new(now: Instant, seed: u64) -> Line {
        Line {
            state: Mutex::new((DelayLine::new(now, seed), false)),
            moved: Condvar::new(),
        }
    }

    /// Sends a chunk on its way, waiting for room; false if the line was closed.
    fn put(&self, leaves_at: Instant, bytes: Vec<u8>, link: Option<&Link>) -> bool {
        let mut state = self.state.lock();
        while state.0.is_full() && !state.1 {
            self.moved.wait(&mut state);
        }
        state.0.put(leaves_at, bytes, link);
        self.moved.notify_all();
        !state.1
    }

    fn end(&self, link: Option<&Link>) {
        self.state.lock().0.end(Instant::now(), link);
        self.moved.notify_all();
    }

    /// Waits for the next chunk to arrive; `None` at the end.
    fn take(&self, is_cut: impl Fn() -> bool) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        while !state.1 {
            match state.0.next(Instant::now(), is_cut()) {
                Next::Deliver(bytes) => {
                    self.moved.notify_all();
                    return Some(bytes);
                }
                Next::End => return None,
                Next::Wait => self.moved.wait(&mut state),
                Next::WaitUntil(due) => {
                    self.moved.wait_until(&mut state, due);
                }
            }
        }
        None
    }

    /// The link may have changed.
    fn wake(&self) {
        let _state = self.state.lock(); // so that no waiter misses the notification
        self.moved.notify_all();
    }

    fn close(&self) {
        self.state.lock().1 = true;
        self.moved.notify_all();
    }
}

impl Relay {
    /// A relay between a client's `socket` and the `server`'s end of a pair.
    pub fn new(emulation: Arc<Emulation>, socket: Stream, server: Stream, seed: u64) -> Relay {
        let now = Instant::now();
        Relay {
            emulation,
            socket,
            server,
            opened_at: now,
            zone: OnceLock::new(),
            to_server: Line::new(now, seed),
            to_client: Line::new(now, seed ^ 1),
        }
    }

    /// Starts its threads.
    pub fn start(self: &Arc<Relay>) -> io::Result<Vec<JoinHandle<()>>> {
        let bodies: [(&str, Body); 4] = [
            ("from-client", Relay::receive_from_client),
            ("to-server", Relay::deliver_to_server),
            ("from-server", Relay::receive_from_server),
            ("to-client", Relay::deliver_to_client),
        ];
        let start = |(name, body): (&str, Body)| {
            let relay = self.clone();
            let name = format!("zone-{name}");
            let thread = std::thread::Builder::new().name(name);
            thread.spawn(move || body(&relay))
        };
        let threads: io::Result<Vec<_>> = bodies.into_iter().map(start).collect();
        if threads.is_err() {
            self.close();
        }
        threads
    }

    fn link(&self) -> Option<Link> {
        self.emulation.link(self.zone.get()?)
    }

    fn is_cut(&self) -> bool {
        self.link().is_some_and(|link| link.cut)
    }

    /// Looks at the link again.
    pub fn wake(&self) {
        self.to_server.wake();
        self.to_client.wake();
    }

    /// Ends the connection, whatever is on its way.
    pub fn close(&self) {
        self.to_server.close();
        self.to_client.close();
        self.socket.shutdown(Shutdown::Both);
        self.server.shutdown(Shutdown::Both);
    }

    fn receive_from_client(&self) {
        if let Ok(socket) = self.socket.try_clone() {
            let mut input = BufReader::with_capacity(CHUNK_BYTES, socket);
            // Whatever ends the stream, the other side sees an end.
            if let Ok(true) = self.receive_greeting(&mut input) {
                let _ = self.receive(&mut input, &self.to_server);
            }
        }
        self.to_server.end(self.link().as_ref());
    }

    /// Passes the first frame on, which says where the client is; false at the end of the stream.
    fn receive_greeting(&self, input: &mut impl BufRead) -> io::Result<bool> {
        let Some(frame) = read_frame(input, MAX_GREETING_BYTES)? else {
            return Ok(false);
        };
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        let bytes = [&length.to_le_bytes(), &frame[..]].concat();
        let request = Request::decode(frame).ok().map(|(_, request)| request);
        if let Some(Request::Hello {
            zone: Some(zone), ..
        }) = request
        {
            // It is set here only.
            let _ = self.zone.set(zone);
        }
        let link = self.link();
        // To connect takes a round trip or two before the first byte leaves.
        let latency = link.as_ref().map_or_else(Default::default, |l| l.latency);
        let connected_at = self.opened_at + latency * 2 * self.socket.opening_round_trips();
        let leaves_at = connected_at.max(Instant::now());
        Ok(self.to_server.put(leaves_at, bytes, link.as_ref()))
    }

    fn receive_from_server(&self) {
        if let Ok(server) = self.server.try_clone() {
            let mut input = BufReader::with_capacity(CHUNK_BYTES, server);
            let _ = self.receive(&mut input, &self.to_client);
        }
        self.to_client.end(self.link().as_ref());
    }

    /// Sends everything on its way, until the stream ends.
    fn receive(&self, input: &mut impl BufRead, line: &Line) -> io::Result<()> {
        loop {
            let chunk = match input.fill_buf() {
                Ok([]) => return Ok(()),
                Ok(bytes) => bytes.to_vec(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            input.consume(chunk.len());
            if !line.put(Instant::now(), chunk, self.link().as_ref()) {
                return Ok(());
            }
        }
    }

    fn deliver_to_server(&self) {
        self.deliver(&self.to_server, &self.server);
        // What the server still says goes out; it closes when it has seen the end.
        self.server.shutdown(Shutdown::Write);
    }

    fn deliver_to_client(&self) {
        self.deliver(&self.to_client, &self.socket);
        self.socket.shutdown(Shutdown::Both);
    }

    fn deliver(&self, line: &Line, to: &Stream) {
        let Ok(mut to) = to.try_clone() else {
            return self.close();
        };
        while let Some(bytes) = line.take(|| self.is_cut()) {
            if to.write_all(&bytes).is_err() {
                // Nobody takes it any more: no use in reading more of it.
                return line.close();
            }
        }
    }
}
