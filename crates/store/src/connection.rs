//! One client's connection: what its threads and the committer share about it, and its way out.
//!
//! Invariant: a frame goes out whole; a refusal goes out before the acknowledgement that covers its
//! number, because one at a time sends what is waiting; the committer never waits for a client; what waits is weighed,
//! and bounded for each volume.

use std::io::{self, IoSlice, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::BytesMut;
use dax::forms::Forms;
use dax::ids::{Epoch, Version};
use dax::membership::Membership;
use dax::replica;
use dax::wire::{Frame, InventoryEntry, Response};
use parking_lot::{Condvar, Mutex};

use crate::stream::Stream;
use crate::volume::Volume;

/// Bytes of answers that wait for a volume's clients, at most. One connection may have as many as are left: so whoever
/// does not read is disconnected before others of the volume have no room, and no volume takes another's.
const MAX_WAITING_BYTES: usize = 32 << 20;
/// What an answer weighs beside what it carries.
const ANSWER_WEIGHT: usize = 256;
/// An answer of so many bytes goes out where the system says that the socket takes something.
const LITTLE_BYTES: usize = 4 << 10;
/// Reads of one connection that others serve, and answers it has not taken yet, at most: beyond
/// them its own thread serves, and waits for the client.
const MAX_PLACES: usize = 64;

/// A connection, as seen by everybody who has something to tell it.
pub(crate) struct Conn {
    /// Tells connections of this process apart.
    pub id: u64,
    /// The client, for the log: where from, then its name for itself.
    pub peer: String,
    volume: OnceLock<Arc<Volume>>,
    /// Which forms the client reads.
    reads: OnceLock<Forms>,
    announced: AtomicU32,
    left: AtomicBool,
    known: Mutex<Known>,
    applied: Mutex<u64>,
    progress: Condvar,
    places: AtomicUsize,
    waiting: Mutex<Waiting>,
    wake: Condvar,
    writer: Mutex<Stream>,
    stream: Stream,
}

/// By which members the client counts.
#[derive(Debug, Clone, Copy)]
enum Known {
    /// Those of its configuration: it speaks a protocol without members.
    Configured,
    /// Those of this version, or of a newer one.
    Version(Version),
}

#[derive(Default)]
struct Waiting {
    messages: Vec<(u64, Response)>,
    /// What they weigh, and those that are being sent.
    bytes: usize,
    /// The last write that is durable, and the commit that made it so.
    ack: Option<(u64, u64)>,
    /// Somebody sends what was waiting.
    sending: bool,
    closed: bool,
    /// A write was refused when nothing was sent any more. An acknowledgement covers all writes before it but those that
    /// were refused, so none may follow.
    refusal_lost: bool,
}

impl Waiting {
    fn is_idle(&self) -> bool {
        !self.sending && self.messages.is_empty() && self.ack.is_none()
    }
}

impl Conn {
    /// A connection over `stream`.
    pub fn new(id: u64, peer: String, stream: &Stream) -> io::Result<Conn> {
        Ok(Conn {
            id,
            peer,
            volume: OnceLock::new(),
            reads: OnceLock::new(),
            announced: AtomicU32::new(0),
            left: AtomicBool::new(false),
            known: Mutex::new(Known::Version(Version::ZERO)),
            applied: Mutex::new(0),
            progress: Condvar::new(),
            places: AtomicUsize::new(0),
            waiting: Mutex::default(),
            wake: Condvar::new(),
            writer: Mutex::new(stream.try_clone()?),
            stream: stream.try_clone()?,
        })
    }

    /// A connection whose answers are collected by whoever drives the zone, over a socket that nothing is sent on.
    #[cfg(test)]
    pub fn collecting(id: u64, stream: &Stream) -> Conn {
        let conn = Conn::new(id, format!("client {id}"), stream).unwrap();
        conn.waiting.lock().sending = true;
        conn
    }

    /// What would be sent next, in its order.
    #[cfg(test)]
    pub fn collect(&self) -> Vec<(u64, Response)> {
        let mut waiting = self.waiting.lock();
        let mut messages = std::mem::take(&mut waiting.messages);
        let ack = waiting.ack.take();
        messages.extend(ack.map(|(upto, commit)| (0, Response::Ack { upto, commit })));
        let bytes = std::mem::take(&mut waiting.bytes);
        if let Some(volume) = self.volume() {
            volume.end_waiting(bytes);
        }
        messages
    }

    /// Binds the connection to its volume, for good; `reads` is what its client understands.
    pub fn bind(&self, volume: Arc<Volume>, reads: Forms) {
        let _ = self.reads.set(reads);
        // The first one stays; a connection that has one says no hello.
        let _ = self.volume.set(volume);
    }

    /// The volume it is bound to.
    pub fn volume(&self) -> Option<&Arc<Volume>> {
        self.volume.get()
    }

    /// Which forms the client reads.
    pub fn reads(&self) -> Forms {
        self.reads.get().copied().unwrap_or_default()
    }

    /// The client goes by the members of its configuration, for good.
    pub fn goes_by_configuration(&self) {
        *self.known.lock() = Known::Configured;
    }

    /// The number of a commit, as it is told to a client that knows what that is.
    pub fn known_commit(&self, commit: u64) -> u64 {
        match *self.known.lock() {
            Known::Configured => 0,
            Known::Version(_) => self.volume().map_or(commit, |volume| volume.told(commit)),
        }
    }

    /// The client goes by the members of this version from now on, or by newer ones.
    pub fn knows(&self, version: Version) {
        if let Known::Version(known) = &mut *self.known.lock() {
            *known = version.max(*known);
        }
    }

    /// True if the client goes by older members than these, and can be told.
    pub fn is_behind(&self, kept: &Membership) -> bool {
        matches!(*self.known.lock(), Known::Version(known) if known < kept.version)
    }

    /// True if the client may count an answer of a store that keeps these members. One that goes by its
    /// configuration has those that the volume was made with.
    pub fn may_count(&self, kept: &Membership) -> bool {
        match *self.known.lock() {
            Known::Configured => kept.is_original(),
            Known::Version(known) => replica::may_count(known, kept.version),
        }
    }

    /// The highest epoch under which the client has spoken.
    pub fn announced(&self) -> Epoch {
        Epoch(self.announced.load(Ordering::Relaxed))
    }

    /// The client speaks under `epoch`.
    pub fn announce(&self, epoch: Epoch) {
        self.announced.fetch_max(epoch.0, Ordering::Relaxed);
    }

    /// The client has given the connection up: none of its writes is acknowledged any more, because an acknowledgement
    /// covers all that came before.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
        self.close();
    }

    /// True if the client is known to have given it up.
    pub fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Reads see the client's writes up to this number from now on.
    pub fn applied(&self, upto: u64) {
        *self.applied.lock() = upto;
        self.progress.notify_all();
    }

    /// True if reads see the client's writes up to `number`.
    pub fn is_applied(&self, number: u64) -> bool {
        number == 0 || *self.applied.lock() >= number
    }

    /// Waits until reads see the client's writes up to `number`, or the connection is closed.
    pub fn wait_applied(&self, number: u64) {
        let mut applied = self.applied.lock();
        while *applied < number && !self.waiting.lock().closed {
            self.progress.wait(&mut applied);
        }
    }

    /// True if somebody else may serve a read for this connection; if so, a place is taken.
    pub fn take_place(&self) -> bool {
        let waiting = self.waiting.lock().messages.len();
        if self.places.load(Ordering::Relaxed) + waiting >= MAX_PLACES {
            return false;
        }
        self.places.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Gives a place back.
    pub fn free_place(&self) {
        self.places.fetch_sub(1, Ordering::Relaxed);
    }

    /// Sends a message soon; never waits.
    pub fn send(&self, id: u64, message: Response) {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            waiting.refusal_lost |= matches!(message, Response::WriteRefused { .. });
            return;
        }
        let bytes = weight(&message);
        waiting.messages.push((id, message));
        waiting.bytes += bytes;
        let of_volume = self.volume().map(|volume| volume.add_waiting(bytes));
        let of_all = of_volume.unwrap_or(waiting.bytes);
        if waiting.bytes > MAX_WAITING_BYTES.saturating_sub(of_all) {
            tracing::warn!(client = %self.peer, "client does not read its answers: disconnected");
            drop(waiting);
            return self.close();
        }
        self.wake.notify_one();
    }

    /// Acknowledges every write up to this number, durable by this commit; never waits.
    pub fn acknowledge(&self, upto: u64, commit: u64, scratch: &mut BytesMut) {
        let commit = self.known_commit(commit);
        let ack = Response::Ack { upto, commit };
        if !self.send_at_once(0, &ack, scratch) {
            let mut waiting = self.waiting.lock();
            if !waiting.refusal_lost {
                waiting.ack = Some((upto, commit));
                self.wake.notify_one();
            }
        }
    }

    /// Sends a message, now or soon; never waits.
    pub fn send_quickly(&self, id: u64, message: Response, scratch: &mut BytesMut) {
        if weight(&message) > LITTLE_BYTES || !self.send_at_once(id, &message, scratch) {
            self.send(id, message);
        }
    }

    /// Sends something little at once if nothing else is on its way and the client takes it: to wake the sender for it
    /// would take longer than to send it. False if not.
    fn send_at_once(&self, id: u64, message: &Response, scratch: &mut BytesMut) -> bool {
        let mut waiting = self.waiting.lock();
        let idle = waiting.is_idle() && !waiting.closed;
        let writer = idle.then(|| self.writer.try_lock()).flatten();
        let Some(mut writer) = writer.filter(|writer| writer.takes_a_little()) else {
            return false;
        };
        waiting.sending = true;
        drop(waiting);
        let sent = write_frame(&mut *writer, &message.encode(id, scratch));
        drop(writer);
        let mut waiting = self.waiting.lock();
        waiting.sending = false;
        if sent.is_err() {
            drop(waiting);
            self.close();
        } else if !waiting.is_idle() || waiting.closed {
            self.wake.notify_one();
        }
        true
    }

    /// Answers at once, on the caller's thread.
    ///
    /// # Errors
    /// Whatever the socket says; the connection is of no use then.
    pub fn answer(&self, id: u64, message: &Response, scratch: &mut BytesMut) -> io::Result<()> {
        let frame = message.encode(id, scratch);
        write_frame(&mut *self.writer.lock(), &frame)
    }

    /// Sends what is waiting, until the connection is closed. The body of its own thread.
    pub fn run_sender(&self) {
        let mut scratch = BytesMut::new();
        let mut messages = Vec::new();
        loop {
            let (ack, closed) = {
                let mut waiting = self.waiting.lock();
                while waiting.sending || waiting.is_idle() && !waiting.closed {
                    self.wake.wait(&mut waiting);
                }
                waiting.sending = true;
                std::mem::swap(&mut messages, &mut waiting.messages);
                (waiting.ack.take(), waiting.closed)
            };
            let ack = ack.map(|(upto, commit)| (0, Response::Ack { upto, commit }));
            for (id, message) in messages.drain(..) {
                if self.answer(id, &message, &mut scratch).is_err() {
                    return self.give_up();
                }
                self.sent(weight(&message));
            }
            if let Some((id, ack)) = ack
                && self.answer(id, &ack, &mut scratch).is_err()
            {
                return self.give_up();
            }
            if closed {
                return self.give_up();
            }
            self.waiting.lock().sending = false;
        }
    }

    /// An answer is on its way.
    fn sent(&self, bytes: usize) {
        let mut waiting = self.waiting.lock();
        waiting.bytes -= bytes;
        if let Some(volume) = self.volume() {
            volume.end_waiting(bytes);
        }
    }

    /// Ends the connection, and forgets what was waiting for it.
    fn give_up(&self) {
        self.close();
        let mut waiting = self.waiting.lock();
        waiting.messages = Vec::new();
        let bytes = std::mem::take(&mut waiting.bytes);
        if let Some(volume) = self.volume() {
            volume.end_waiting(bytes);
        }
    }

    /// Takes no more requests; answers still go out.
    pub fn stop_reading(&self) {
        self.stream.shutdown(Shutdown::Read);
    }

    /// Ends the connection once what is waiting has been sent.
    pub fn finish(&self) {
        self.waiting.lock().closed = true;
        self.wake.notify_all();
        let _applied = self.applied.lock(); // so that no waiter misses the notification
        self.progress.notify_all();
    }

    /// Ends the connection now.
    pub fn close(&self) {
        self.finish();
        self.stream.shutdown(Shutdown::Both);
    }
}

/// What an answer takes while it waits, in bytes.
fn weight(answer: &Response) -> usize {
    let carried = match answer {
        Response::Block(Some(block)) => block.data.len(),
        Response::Inventory { entries, .. } => entries.len() * size_of::<InventoryEntry>(),
        Response::Error { message, .. } | Response::WriteRefused { message, .. } => message.len(),
        Response::Owned { grant, .. } | Response::Fenced { grant } => grant.owner.len(),
        // The others are small, or are never kept waiting: the connection's own thread sends them.
        _ => 0,
    };
    ANSWER_WEIGHT + carried
}

/// Writes both parts of a frame with one system call where possible.
fn write_frame(stream: &mut impl Write, frame: &Frame) -> io::Result<()> {
    let [mut head, mut payload] = frame.parts();
    while !head.is_empty() {
        match stream.write_vectored(&[IoSlice::new(head), IoSlice::new(payload)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) if n < head.len() => head = &head[n..],
            Ok(n) => {
                payload = &payload[n - head.len()..];
                head = &[];
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    stream.write_all(payload)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use bytes::Bytes;

    use super::*;

    /// Takes a few bytes at a time.
    struct Slow(Vec<u8>, usize);

    impl Write for Slow {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            let n = buf.len().min(self.1);
            self.0.extend(&buf[..n]);
            Ok(n)
        }
        fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
            let all = bufs.iter().flat_map(|b| b.iter().copied());
            let before = self.0.len();
            self.0.extend(all.take(self.1));
            Ok(self.0.len() - before)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A zone that was being stopped refused a write, did not say so any more, and acknowledged it with those after it.
    // hazard: D6
    #[test]
    fn refused_requests_are_not_acknowledged() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let refused = |number| Response::WriteRefused {
            number,
            kind: dax::error::ErrorKind::Full,
            message: String::new(),
        };
        for (refusal, acknowledged) in [(false, true), (true, false)] {
            let conn = Conn::collecting(1, &Stream::Unix(socket.try_clone().unwrap()));
            conn.send(0, refused(1));
            conn.finish();
            if refusal {
                conn.send(0, refused(2));
            }
            conn.acknowledge(3, 1, &mut BytesMut::new());
            let sent = conn.collect();
            let heard = sent
                .iter()
                .filter(|(_, m)| matches!(m, Response::WriteRefused { .. }));
            assert_eq!(heard.count(), 1);
            let acks = sent
                .iter()
                .filter(|(_, m)| matches!(m, Response::Ack { .. }));
            assert_eq!(acks.count() == 1, acknowledged);
        }
    }

    #[test]
    fn a_frame_goes_out_whole_however_little_the_socket_takes() {
        for step in 1..20 {
            let frame = Frame {
                head: Bytes::from_static(b"0123456"),
                payload: Bytes::from_static(b"abcdefghij"),
            };
            let mut slow = Slow(Vec::new(), step);
            write_frame(&mut slow, &frame).unwrap();
            assert_eq!(slow.0, b"0123456abcdefghij");
        }
    }
}
