//! Replication connections: passed through to the active as they are.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::BytesMut;

use super::handover::Guest;
use super::quotas::Share;
use super::socket::Socket;

/// No more than this waits for a slow reader.
const PENDING_BYTES: usize = 256 << 10;

/// One direction.
struct Flow {
    waiting: BytesMut,
}

impl Flow {
    /// Moves what can be moved; ready when either side is gone.
    fn poll(&mut self, cx: &mut Context<'_>, from: &mut Socket, to: &mut Socket) -> Poll<()> {
        loop {
            let written = to.poll_drain(cx, &mut self.waiting);
            if matches!(written, Poll::Ready(Err(_))) {
                return Poll::Ready(());
            }
            if self.waiting.len() >= PENDING_BYTES {
                return Poll::Pending;
            }
            match from.poll_read(cx, &mut self.waiting) {
                Poll::Ready(Ok(read)) if read > 0 => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// Passes on whatever either side says, until one of them is gone.
///
/// `_kept` is as long: the process stays for it, and the connection counts.
pub async fn relay(
    mut client: Socket,
    mut server: Socket,
    input: BytesMut,
    greeting: BytesMut,
    _kept: (Guest, Share),
) {
    let mut up = Flow { waiting: input };
    let mut down = Flow { waiting: greeting };
    poll_fn(|cx| {
        if up.poll(cx, &mut client, &mut server).is_ready() {
            return Poll::Ready(());
        }
        down.poll(cx, &mut server, &mut client)
    })
    .await;
    // What the server said last should still arrive.
    let _ = client.drain(&mut down.waiting).await;
}
