//! Replies that a server still owes, in order.
//!
//! Each message sent to a server leaves an entry here that says whose reply it is: the client's, or that of a
//! message which the proxy added. Invariant: the front entry is the message that the server's next reply
//! belongs to. After an error in the extended protocol the server replies to nothing up to the next `Sync`, so
//! the entries up to it go with the error.

use std::collections::VecDeque;

use bytes::Bytes;

/// Owner of a server's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyOwner {
    /// The client.
    Client,
    /// The client, except for the end of the reply: the proxy has put a transaction around the statement, and sends the end
    /// when the outcome of its commit is known.
    Wrapped,
    /// The client: the end of the reply to that transaction's commit.
    Commit,
    /// Nobody: the proxy added the message, and only an error in its reply matters.
    Nobody,
    /// The proxy: the reply holds the transaction's id.
    Xid,
    /// The proxy: the reply holds the session's state.
    State,
    /// The proxy: the message sets up the session's state on the server, and must not fail.
    Setup,
}

impl ReplyOwner {
    /// True if the proxy reads or sets the session's state by it.
    pub fn is_of_state(self) -> bool {
        matches!(self, ReplyOwner::Setup | ReplyOwner::State)
    }

    /// True if the client sees it.
    pub fn is_clients(self) -> bool {
        matches!(
            self,
            ReplyOwner::Client | ReplyOwner::Wrapped | ReplyOwner::Commit
        )
    }
}

/// Message that waits for its reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SentMessage {
    /// `Parse`; the statement of this name is there once it is answered.
    Parse(Option<Box<str>>),
    /// `Bind`.
    Bind,
    /// `Describe` of a portal.
    Describe,
    /// `Describe` of a statement.
    DescribeStatement,
    /// `Execute`.
    Execute,
    /// `Close`.
    Close,
    /// `Sync`.
    Sync,
    /// `Query` or `FunctionCall`.
    Query,
    /// Nothing was sent; the client gets this in its turn.
    Emit(Bytes),
    /// The client's `CopyDone` or `CopyFail`, sent before the server asked for data.
    CopyEnd,
}

/// One reply that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingReply {
    pub sent: SentMessage,
    /// Owner of the reply.
    pub owner: ReplyOwner,
}

/// Replies that are due, in order.
#[derive(Debug, Default)]
pub struct PendingReplies(VecDeque<PendingReply>);

impl PendingReplies {
    /// Another message was sent.
    pub fn push(&mut self, ask: SentMessage, owner: ReplyOwner) {
        self.0.push_back(PendingReply { sent: ask, owner });
    }

    /// Owner of the next answer.
    pub fn front(&self) -> Option<&PendingReply> {
        self.0.front()
    }

    /// Owner of the next reply.
    pub fn front_owner(&self) -> Option<ReplyOwner> {
        self.front().map(|slot| slot.owner)
    }

    /// The next answer is complete.
    pub fn pop(&mut self) -> Option<PendingReply> {
        self.0.pop_front()
    }

    /// The server is ready: whatever was sent up to the next `Sync` or `Query`, it answers no more.
    pub fn pop_end(&mut self) -> Option<PendingReply> {
        loop {
            let slot = self.0.pop_front()?;
            if matches!(slot.sent, SentMessage::Sync | SentMessage::Query) {
                return Some(slot);
            }
        }
    }

    /// The server answers something else: it has ignored the end of data for which it had not asked.
    pub fn skip_copy_ends(&mut self) {
        while self
            .front()
            .is_some_and(|slot| slot.sent == SentMessage::CopyEnd)
        {
            self.0.pop_front();
        }
    }

    /// True if nothing is due.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets everything: the server is gone.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The server reported an error to a message of the extended protocol: it is silent up to a `Sync`.
    pub fn fail(&mut self) {
        while let Some(slot) = self.0.front() {
            if matches!(slot.sent, SentMessage::Sync | SentMessage::Query) {
                break;
            }
            self.0.pop_front();
        }
    }

    /// The server asks for data: it ignores every `Sync` that it has before their end.
    pub fn copy_in(&mut self) {
        let mut is_front = true;
        let mut has_ended = false;
        self.0.retain(|slot| {
            has_ended |= slot.sent == SentMessage::CopyEnd;
            let stays = is_front || has_ended || slot.sent != SentMessage::Sync;
            is_front = false;
            stays
        });
        self.0.retain(|slot| slot.sent != SentMessage::CopyEnd);
    }

    /// Owner of the answer to the `Sync` or `Query` ahead.
    pub fn end_is_clients(&self) -> bool {
        self.0
            .iter()
            .find(|slot| matches!(slot.sent, SentMessage::Sync | SentMessage::Query))
            .is_none_or(|slot| slot.owner.is_clients())
    }

    /// The statements that would be there if the messages up to the next `Sync` succeeded; the unnamed one is
    /// `None`. One that was to take the place of another is there as it was, if the server has not closed that yet.
    pub fn unparsed(&self) -> impl Iterator<Item = Option<&str>> {
        let mut is_closed_first = false;
        self.0
            .iter()
            .take_while(|slot| !matches!(slot.sent, SentMessage::Sync | SentMessage::Query))
            .filter_map(move |slot| {
                let closes = slot.sent == SentMessage::Close && slot.owner == ReplyOwner::Nobody;
                let stays = std::mem::replace(&mut is_closed_first, closes);
                match &slot.sent {
                    SentMessage::Parse(name) if !stays => Some(name.as_deref()),
                    _ => None,
                }
            })
    }

    /// Answers that the client is due, in order.
    pub fn of_client(&self) -> impl Iterator<Item = &SentMessage> {
        self.0
            .iter()
            .filter(|slot| slot.owner.is_clients())
            .map(|slot| &slot.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(asks: &[SentMessage]) -> PendingReplies {
        let mut slots = PendingReplies::default();
        for ask in asks {
            slots.push(ask.clone(), ReplyOwner::Client);
        }
        slots
    }

    #[test]
    fn an_error_silences_up_to_sync() {
        let mut slots = slots(&[
            SentMessage::Parse(None),
            SentMessage::Bind,
            SentMessage::Execute,
            SentMessage::Sync,
            SentMessage::Bind,
        ]);
        slots.fail();
        assert_eq!(
            slots.front().map(|slot| &slot.sent),
            Some(&SentMessage::Sync)
        );
    }

    #[test]
    fn a_copy_swallows_the_syncs_sent_before_its_end() {
        let mut slots = slots(&[SentMessage::Execute, SentMessage::Sync]);
        slots.copy_in();
        slots.push(SentMessage::Sync, ReplyOwner::Client);
        slots.pop();
        assert_eq!(
            slots.front().map(|slot| &slot.sent),
            Some(&SentMessage::Sync)
        );
        slots.pop();
        assert!(slots.is_empty());
    }

    #[test]
    fn the_end_of_a_copy_that_is_none_holds_nothing_up() {
        let mut slots = slots(&[
            SentMessage::CopyEnd,
            SentMessage::Sync,
            SentMessage::CopyEnd,
            SentMessage::Parse(None),
        ]);
        assert_eq!(
            slots.pop_end().map(|slot| slot.sent),
            Some(SentMessage::Sync)
        );
        slots.skip_copy_ends();
        assert_eq!(
            slots.pop().map(|slot| slot.sent),
            Some(SentMessage::Parse(None))
        );
        assert!(slots.is_empty());
    }

    #[test]
    fn a_copy_sent_blindly_keeps_the_sync_behind_it() {
        let mut slots = slots(&[
            SentMessage::Execute,
            SentMessage::CopyEnd,
            SentMessage::Sync,
        ]);
        slots.copy_in();
        assert_eq!(
            slots.of_client().cloned().collect::<Vec<_>>(),
            [SentMessage::Execute, SentMessage::Sync]
        );
    }
}
