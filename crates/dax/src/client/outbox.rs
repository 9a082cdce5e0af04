//! What goes out on a connection: frames in the order the core made them, in as few system calls as there can
//! be without waiting for more.
//!
//! Somebody waits for a flush, so the thread that asks for it sends it, with all that is queued before it: to wake the
//! connection's task for it costs a switch, and on a busy processor a turn. The task sends everything else, which
//! gathers meanwhile, and goes on where the socket took no more.
//!
//! Invariants: frames leave in the order they were queued; one thread writes at a time, and looks at the queue again
//! before it leaves, so who finds it writing leaves frames to it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use tokio::sync::Notify;

use super::stream::Writer;
use crate::wire::Frame;

/// Parts of frames that go into one system call.
const BATCH: usize = 512;

/// The driver's end of a connection; the connection ends once it is dropped and what is queued has been sent.
pub(super) struct Outbox(Arc<Line>);

impl Outbox {
    /// Nothing queued; [`transmit`] takes the other end.
    pub fn new(writer: Writer) -> (Outbox, Arc<Line>) {
        let line = Arc::new(Line {
            queue: Mutex::default(),
            sending: Mutex::new(Sending {
                writer,
                parts: VecDeque::new(),
                failed: None,
            }),
            more: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            filled: Arc::default(),
        });
        (Outbox(Arc::clone(&line)), line)
    }

    /// Puts a frame behind the others. Then it is [left to the task](Outbox::leave_to_task) or [sent](Line::send).
    pub fn queue(&self, Frame { head, payload }: Frame) {
        let mut queue = self.0.queue.lock();
        queue.extend([head, payload].into_iter().filter(|part| !part.is_empty()));
    }

    /// Has the connection's task send what is queued.
    pub fn leave_to_task(&self) {
        self.0.filled.0.notify_one();
    }

    /// Ends the connection at once: it is given up, and what its socket has not taken may never be.
    pub fn cut(self) {
        self.0.cut.store(true, Ordering::SeqCst);
    }

    /// The other end, for a caller who sends what is queued.
    pub fn line(&self) -> Arc<Line> {
        Arc::clone(&self.0)
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::SeqCst);
        self.0.filled.0.notify_one();
    }
}

/// What both ends share.
pub(super) struct Line {
    /// Parts of frames that nobody has begun to send.
    queue: Mutex<Vec<Bytes>>,
    sending: Mutex<Sending>,
    /// Something may have been queued since the queue was looked at.
    more: AtomicBool,
    /// The driver is gone.
    closed: AtomicBool,
    /// Nobody cares for what is queued.
    cut: AtomicBool,
    filled: Arc<Filled>,
}

/// Wakes the connection's task. The socket keeps it, so it does not keep the socket.
#[derive(Default)]
struct Filled(Notify);

/// The socket takes more.
impl Wake for Filled {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// For whoever writes.
struct Sending {
    writer: Writer,
    /// What the socket has not taken.
    parts: VecDeque<Bytes>,
    /// Why nothing more can be sent.
    failed: Option<String>,
}

impl Line {
    /// Sends what is queued, as far as the socket takes it, unless somebody else is doing so, who then does this as well.
    pub fn send(&self) {
        self.advance();
        if self.closed.load(Ordering::SeqCst) {
            // The task may have looked for the end while this was under way.
            self.filled.0.notify_one();
        }
    }

    fn advance(&self) {
        self.more.store(true, Ordering::SeqCst);
        while self.more.load(Ordering::SeqCst) {
            let Some(mut sending) = self.sending.try_lock() else {
                return;
            };
            self.more.store(false, Ordering::SeqCst);
            if sending.failed.is_some() {
                return;
            }
            sending.parts.extend(self.queue.lock().drain(..));
            let waker = Waker::from(Arc::clone(&self.filled));
            if let Poll::Ready(Err(error)) = sending.write(&mut Context::from_waker(&waker)) {
                sending.failed = Some(error.to_string());
                self.filled.0.notify_one();
                return;
            }
        }
    }

    /// Why the connection is over, if it is; who is sending wakes the task to look again.
    fn end(&self) -> Option<String> {
        if self.cut.load(Ordering::SeqCst) {
            return Some("it does not answer".to_owned());
        }
        // Looked at first: what was queued before it was closed is in the queue then.
        let closed = self.closed.load(Ordering::SeqCst);
        let sending = self.sending.try_lock()?;
        if let Some(why) = &sending.failed {
            return Some(why.clone());
        }
        let empty = sending.parts.is_empty() && self.queue.lock().is_empty();
        (closed && empty).then(|| "it does not answer".to_owned())
    }
}

impl Sending {
    /// Writes as few times as possible and without copying.
    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.parts.is_empty() {
            let parts = self.parts.iter().take(BATCH);
            let slices: Vec<IoSlice<'_>> = parts.map(|part| IoSlice::new(part)).collect();
            let writer = Pin::new(&mut self.writer);
            match ready!(writer.poll_write_vectored(cx, &slices))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.taken(written),
            }
        }
        // What was encrypted may wait still.
        Pin::new(&mut self.writer).poll_flush(cx)
    }

    /// Forgets what the socket has taken.
    fn taken(&mut self, mut bytes: usize) {
        while let Some(part) = self.parts.front_mut() {
            if bytes < part.len() {
                return part.advance(bytes);
            }
            bytes -= part.len();
            self.parts.pop_front();
        }
    }
}

/// Sends until the connection ends; says why it did.
pub(super) async fn transmit(line: Arc<Line>) -> String {
    loop {
        line.advance();
        if let Some(why) = line.end() {
            return why;
        }
        line.filled.0.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    use super::*;

    fn frame(number: u32) -> Frame {
        Frame {
            head: Bytes::copy_from_slice(&number.to_le_bytes()),
            payload: Bytes::from(vec![number as u8; number as usize % 50]),
        }
    }

    fn connection(socket_bytes: usize) -> (Outbox, Arc<Line>, DuplexStream) {
        let (ours, theirs) = duplex(socket_bytes);
        let (outbox, line) = Outbox::new(Box::new(ours));
        (outbox, line, theirs)
    }

    async fn expect(theirs: &mut DuplexStream, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let Frame { head, payload } = frame(number);
            let expected = [&head[..], &payload[..]].concat();
            let mut found = vec![0; expected.len()];
            theirs.read_exact(&mut found).await.unwrap();
            assert_eq!(found, expected, "frame {number}");
        }
    }

    #[tokio::test]
    async fn flush_is_sent_with_everything_queued_before_it_without_the_task() {
        let (outbox, _line, mut theirs) = connection(1 << 20);
        (0..10).for_each(|number| outbox.queue(frame(number)));
        outbox.line().send();
        // Nobody runs `transmit`.
        expect(&mut theirs, 0..10).await;
    }

    #[tokio::test]
    async fn the_task_goes_on_where_the_socket_took_no_more() {
        let (outbox, line, mut theirs) = connection(7);
        let task = tokio::spawn(transmit(line));
        for number in 0..200 {
            outbox.queue(frame(number));
            match number % 3 {
                0 => outbox.line().send(),
                _ => outbox.leave_to_task(),
            }
        }
        expect(&mut theirs, 0..200).await;
        drop(outbox);
        assert_eq!(task.await.unwrap(), "it does not answer");
    }

    #[tokio::test]
    async fn messages_queued_before_the_end_are_sent() {
        let (outbox, line, mut theirs) = connection(7);
        (0..50).for_each(|number| outbox.queue(frame(number)));
        drop(outbox);
        let task = tokio::spawn(transmit(line));
        expect(&mut theirs, 0..50).await;
        assert_eq!(task.await.unwrap(), "it does not answer");
    }

    /// After a partition the connection was kept until its socket had taken what was queued, which a network tells late.
    // hazard: ZONE-25
    #[tokio::test]
    async fn a_connection_that_is_given_up_ends_at_once() {
        let (outbox, line, _theirs) = connection(7);
        let task = tokio::spawn(transmit(line));
        (0..50).for_each(|number| outbox.queue(frame(number)));
        outbox.leave_to_task();
        tokio::task::yield_now().await;
        outbox.cut();
        let why = tokio::time::timeout(Duration::from_secs(10), task).await;
        assert_eq!(why.unwrap().unwrap(), "it does not answer");
    }

    #[tokio::test]
    async fn a_socket_that_broke_while_a_flush_was_sent_ends_the_task() {
        let (outbox, line, theirs) = connection(1 << 20);
        let task = tokio::spawn(transmit(line));
        tokio::task::yield_now().await;
        drop(theirs);
        outbox.queue(frame(1));
        outbox.line().send();
        let why = tokio::time::timeout(Duration::from_secs(10), task).await;
        assert!(why.unwrap().unwrap().contains("pipe"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn frames_of_many_threads_leave_whole_and_in_the_order_they_were_queued() {
        let (outbox, line, mut theirs) = connection(300);
        let task = tokio::spawn(transmit(line));
        // As under the driver's lock: queued in order, sent outside.
        let next = Arc::new((Mutex::new(0), outbox));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let next = Arc::clone(&next);
                std::thread::spawn(move || {
                    for _ in 0..1000 {
                        let line = {
                            let mut number = next.0.lock();
                            *number += 1;
                            next.1.queue(frame(*number - 1));
                            next.1.line()
                        };
                        line.send();
                    }
                })
            })
            .collect();
        expect(&mut theirs, 0..3000).await;
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        drop(next);
        assert_eq!(task.await.unwrap(), "it does not answer");
    }
}
