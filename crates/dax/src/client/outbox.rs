//! What goes out on a connection: frames in the order the core made them, in as few system calls as
//! waiting a moment allows.
//!
//! A block that is written is durable when somebody says `Flush`, which mostly follows at once; sent one
//! by one, both cost a system call here and a wake-up in every zone. So a write waits a moment for
//! what follows it. Nothing else waits: whatever is not a write takes the writes before it along.
//!
//! Invariant: frames leave in the order they were queued, none later than [`GATHER`] after the first
//! that waited.

use std::io::{self, IoSlice};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout_at};

use super::connection::Writer;
use crate::wire::Frame;

/// Frames that go into one system call.
const BATCH: usize = 256;
/// How long a write waits at most for what follows it.
const GATHER: Duration = Duration::from_millis(1);
/// Writes of so many bytes wait no longer: a few of the largest packets.
const GATHER_BYTES: usize = 128 << 10;

/// A frame on its way out.
pub(super) struct Queued {
    pub frame: Frame,
    /// Nobody waits for its effect yet.
    pub may_wait: bool,
}

/// Sends until the connection ends; says why it did.
pub(super) async fn transmit(outbox: UnboundedReceiver<Queued>, writer: Writer) -> String {
    transmit_gathered(outbox, writer, GATHER).await
}

async fn transmit_gathered(
    mut outbox: UnboundedReceiver<Queued>,
    mut writer: Writer,
    wait: Duration,
) -> String {
    let mut queued = Vec::with_capacity(BATCH);
    while outbox.recv_many(&mut queued, BATCH).await > 0 {
        gather(&mut outbox, &mut queued, wait).await;
        let frames = queued.iter().map(|queued| &queued.frame);
        if let Err(error) = write_all(&mut writer, frames).await {
            return error.to_string();
        }
        queued.clear();
    }
    "it does not answer".to_owned()
}

/// Waits for more while there is nothing but writes, and few of them.
async fn gather(outbox: &mut UnboundedReceiver<Queued>, queued: &mut Vec<Queued>, wait: Duration) {
    let deadline = Instant::now() + wait;
    while queued.len() < BATCH && queued.iter().all(|queued| queued.may_wait) {
        let bytes: usize = queued.iter().map(|queued| queued.frame.wire_bytes()).sum();
        if bytes >= GATHER_BYTES {
            return;
        }
        let more = outbox.recv_many(queued, BATCH - queued.len());
        if !matches!(timeout_at(deadline, more).await, Ok(1..)) {
            return;
        }
    }
}

/// Writes frames with as few system calls as possible and without copying.
pub(super) async fn write_all<'f>(
    writer: &mut Writer,
    frames: impl IntoIterator<Item = &'f Frame>,
) -> io::Result<()> {
    let parts = frames.into_iter().flat_map(Frame::parts);
    let parts = parts.filter(|part| !part.is_empty());
    let mut slices: Vec<IoSlice<'_>> = parts.map(IoSlice::new).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let written = writer.write_vectored(rest).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, written);
    }
    // What was encrypted may wait still.
    writer.flush().await
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;
    use tokio::io::AsyncReadExt;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    use super::*;

    const FOR_EVER: Duration = Duration::from_secs(100_000);

    struct Line {
        outbox: UnboundedSender<Queued>,
        far_end: tokio::io::DuplexStream,
    }

    impl Line {
        fn new(wait: Duration) -> Line {
            let (outbox, queue) = unbounded_channel();
            let (near_end, far_end) = tokio::io::duplex(1 << 20);
            tokio::spawn(transmit_gathered(queue, Box::new(near_end), wait));
            Line { outbox, far_end }
        }

        fn queue(&self, text: impl Into<Bytes>, may_wait: bool) {
            let frame = Frame {
                head: text.into(),
                payload: Bytes::new(),
            };
            assert!(self.outbox.send(Queued { frame, may_wait }).is_ok());
        }

        async fn arrives(&mut self) -> String {
            let mut found = vec![0; 1 << 20];
            let read = self.far_end.read(&mut found).await.unwrap();
            String::from_utf8_lossy(&found[..read]).into_owned()
        }

        /// Lets the sender do what it will.
        async fn is_silent(&mut self) -> bool {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            self.arrives().now_or_never().is_none()
        }
    }

    #[tokio::test]
    async fn a_write_goes_out_with_what_follows_it() {
        let mut line = Line::new(FOR_EVER);
        line.queue("one ", true);
        assert!(line.is_silent().await, "it did not wait");
        line.queue("two ", true);
        assert!(line.is_silent().await, "they did not wait");
        line.queue("flush", false);
        assert_eq!(line.arrives().await, "one two flush");
    }

    #[tokio::test]
    async fn a_write_that_nothing_follows_goes_out_alone() {
        let mut line = Line::new(Duration::from_millis(1));
        line.queue("write", true);
        assert_eq!(line.arrives().await, "write");
    }

    #[tokio::test]
    async fn what_is_not_a_write_does_not_wait_nor_do_many_or_large_writes() {
        let mut line = Line::new(FOR_EVER);
        line.queue("read", false);
        assert_eq!(line.arrives().await, "read");
        line.queue(vec![b'w'; GATHER_BYTES], true);
        assert_eq!(line.arrives().await.len(), GATHER_BYTES);
        for _ in 0..BATCH {
            line.queue("w", true);
        }
        assert_eq!(line.arrives().await.len(), BATCH);
    }
}
