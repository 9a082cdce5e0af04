//! Prepared statements of the protocol that SQL names: `DEALLOCATE`, `EXECUTE`.
//!
//! On a server that sessions share, a client's statement has another name than its client gave it. In front of a text that
//! names it the server is given the statement under the client's name as well, in the same packet. What drivers deallocate in
//! SQL was an error otherwise, and the end of an open transaction.
//!
//! Invariant: a client's name is on such a server up to the next batch, and nobody else meets it there.

use bytes::Bytes;

use super::super::sql::{Effect as Does, Statement};
use super::batch::Noted;
use super::prepared::{Needed, put_close, put_parse};
use super::replies::{ReplyOwner, SentMessage};
use super::{Context, Out, Session};
use protocol::frame;

/// A statement without a text: there is one, and it does nothing.
const EMPTY: &[u8] = b"\0\0\0";

impl Session {
    /// Statements of the client's that a text names, and that SQL did not prepare.
    pub(super) fn needs(&self, statement: &Statement) -> Vec<Needed> {
        let effects = statement.parts.iter().flat_map(|part| &part.effects);
        let needed = effects.filter_map(|effect| {
            let (Does::Execute(name) | Does::Deallocate(Some(name))) = effect else {
                return None;
            };
            let definition = self.names.definition(name)?;
            let is_executed = matches!(effect, Does::Execute(_));
            (!self.session_state.has_prepared(name)).then(|| Needed {
                name: name.clone(),
                definition: match is_executed {
                    true => definition.clone(),
                    // It only has to be there.
                    false => Bytes::from_static(EMPTY),
                },
            })
        });
        needed.collect()
    }

    /// Gives the server in hand what a message needs. In a transaction that has failed nothing can be prepared, and the message
    /// fails in any case.
    pub(super) fn lend(&mut self, cx: &Context<'_>, noted: &Noted, is_simple: bool, out: &mut Out) {
        if noted.needs.is_empty() || self.status == b'E' || !self.is_shared(cx) {
            return;
        }
        let Some(link) = &mut self.link else {
            return;
        };
        for Needed { name, definition } in &noted.needs {
            link.prepared.insert(name);
            put_close(name, out);
            self.replies.push(SentMessage::Close, ReplyOwner::Nobody);
            put_parse(name, definition, out);
            self.replies
                .push(SentMessage::Parse(Some(name.clone())), ReplyOwner::Nobody);
        }
        if is_simple {
            // A simple query would be ignored behind an error.
            frame::put(&mut out.server, b'S', &[]);
            self.replies.push(SentMessage::Sync, ReplyOwner::Nobody);
        }
    }
}
