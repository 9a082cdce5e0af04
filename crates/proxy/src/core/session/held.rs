//! Answers on their way to the client: at once, or with the end of what commits.
//!
//! A client that has the answer of a statement and not its end waits, so nothing is lost if both come together; and if the
//! server is lost before the commit, a second run may answer otherwise. Invariant: of what commits with its end the client has
//! nothing before that, but for what it asked for, and for long answers.

use bytes::BytesMut;
use protocol::frame;

use super::{Out, Phase, Session};

/// Answers that are longer in all are not held back.
const HELD_BYTES: usize = 64 << 10;

impl Session {
    /// An answer that is the client's: now, or when its commit is known.
    pub(super) fn emit(&mut self, bytes: &[u8], out: &mut Out) {
        if let Some(batch) = &mut self.batch
            && self.phase == Phase::Running
            && batch.holds_back()
            && batch.held.len() + bytes.len() <= HELD_BYTES
        {
            batch.held.extend_from_slice(bytes);
            return;
        }
        self.tell_held(out);
        self.tell(bytes, out);
    }

    /// Tells the answers that were held back.
    pub(super) fn tell_held(&mut self, out: &mut Out) {
        let held = self.batch.as_mut().map(|batch| batch.held.split().freeze());
        self.tell_all(&held.unwrap_or_default(), out);
    }

    /// Several answers, one behind the other.
    pub(super) fn tell_all(&mut self, mut answers: &[u8], out: &mut Out) {
        while let Ok(Some((_, len))) = frame::head(answers) {
            self.tell(&answers[..len], out);
            answers = &answers[len..];
        }
    }

    /// An answer that is the client's: to the client, or into a digest only.
    fn tell(&mut self, bytes: &[u8], out: &mut Out) {
        let Some(batch) = &mut self.batch else {
            return;
        };
        batch.answered.add(bytes);
        if self.phase == Phase::Replaying || Session::tell_cancelled(batch, bytes[0], out) {
            return;
        }
        if let Some(had) = batch.had {
            if batch.answered.frames == had.frames {
                batch.differs = batch.answered != had;
                batch.had = None;
            }
            return;
        }
        out.client.extend_from_slice(bytes);
    }
}

/// Takes the end of a statement off the end of answers.
pub(super) fn drop_complete(answers: &mut BytesMut) {
    let mut at = 0;
    while let Ok(Some((tag, len))) = frame::head(&answers[at..]) {
        if tag == b'C' && at + len == answers.len() {
            answers.truncate(at);
            return;
        }
        at += len;
    }
}
