//! What goes out on a connection: frames in the order the core made them, in as few system calls as there can
//! be without waiting for more.
//!
//! Invariant: frames leave in the order they were queued.

use tokio::sync::mpsc::UnboundedReceiver;

use super::stream::{Writer, write_all};
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
