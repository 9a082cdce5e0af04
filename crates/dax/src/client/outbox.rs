//! What goes out on a connection: frames in the order the core made them, in as few system calls as there can
//! be without waiting for more.
//!
//! Invariant: frames leave in the order they were queued.

use std::io::{self, IoSlice};

use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc::UnboundedReceiver;

use super::connection::Writer;
use crate::wire::Frame;

/// Frames that go into one system call.
const BATCH: usize = 256;

/// Sends until the connection ends; says why it did.
pub(super) async fn transmit(mut outbox: UnboundedReceiver<Frame>, mut writer: Writer) -> String {
    let mut queued = Vec::with_capacity(BATCH);
    while outbox.recv_many(&mut queued, BATCH).await > 0 {
        if let Err(error) = write_all(&mut writer, &queued).await {
            return error.to_string();
        }
        queued.clear();
    }
    "it does not answer".to_owned()
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
