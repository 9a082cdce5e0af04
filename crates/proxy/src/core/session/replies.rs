//! What a server still has to answer, in order.
//!
//! Each message sent to a server leaves a slot here that says whose answer it is: the client's, or that of
//! something the proxy has added. Invariant: the front slot is the message that the server's next answer
//! belongs to. After an error in the extended protocol the server answers nothing up to the next `Sync`, so
//! the slots up to it go with the error.

use std::collections::VecDeque;

use bytes::Bytes;

/// Whose an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// The client's.
    Client,
    /// The client's, but for its end: the proxy has put a transaction around the statement, and the end is told
    /// when its commit is known.
    Wrapped,
    /// It is that commit's.
    Commit,
    /// Nobody's: the message was added by the proxy, and nothing of its answer matters but an error.
    Nobody,
    /// It tells the transaction's id.
    Xid,
    /// It tells what the session has.
    State,
    /// It gives the server what the session has; it must not fail.
    Setup,
}

impl To {
    /// True if the client sees it.
    pub fn is_clients(self) -> bool {
        matches!(self, To::Client | To::Wrapped | To::Commit)
    }
}

/// What kind of message waits for its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
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

/// One answer that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// What was sent.
    pub ask: Ask,
    /// Whose the answer is.
    pub to: To,
}

/// The answers that are due.
#[derive(Debug, Default)]
pub struct Slots(VecDeque<Slot>);

impl Slots {
    /// Another message was sent.
    pub fn push(&mut self, ask: Ask, to: To) {
        self.0.push_back(Slot { ask, to });
    }

    /// Whose the next answer is.
    pub fn front(&self) -> Option<&Slot> {
        self.0.front()
    }

    /// The next answer is complete.
    pub fn pop(&mut self) -> Option<Slot> {
        self.0.pop_front()
    }

    /// The server is ready: whatever was sent up to the next `Sync` or `Query`, it answers no more.
    pub fn pop_end(&mut self) -> Option<Slot> {
        loop {
            let slot = self.0.pop_front()?;
            if matches!(slot.ask, Ask::Sync | Ask::Query) {
                return Some(slot);
            }
        }
    }

    /// The server answers something else: it has ignored the end of data for which it had not asked.
    pub fn skip_copy_ends(&mut self) {
        while self.front().is_some_and(|slot| slot.ask == Ask::CopyEnd) {
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
            if matches!(slot.ask, Ask::Sync | Ask::Query) {
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
            has_ended |= slot.ask == Ask::CopyEnd;
            let stays = is_front || has_ended || slot.ask != Ask::Sync;
            is_front = false;
            stays
        });
        self.0.retain(|slot| slot.ask != Ask::CopyEnd);
    }

    /// Whose answer the `Sync` or `Query` ahead belongs to.
    pub fn end_is_clients(&self) -> bool {
        self.0
            .iter()
            .find(|slot| matches!(slot.ask, Ask::Sync | Ask::Query))
            .is_none_or(|slot| slot.to.is_clients())
    }

    /// The statements that would be there if the messages up to the next `Sync` succeeded; the unnamed one is
    /// `None`. One that was to take the place of another is there as it was, if the server has not closed that yet.
    pub fn unparsed(&self) -> impl Iterator<Item = Option<&str>> {
        let mut is_closed_first = false;
        self.0
            .iter()
            .take_while(|slot| !matches!(slot.ask, Ask::Sync | Ask::Query))
            .filter_map(move |slot| {
                let closes = slot.ask == Ask::Close && slot.to == To::Nobody;
                let stays = std::mem::replace(&mut is_closed_first, closes);
                match &slot.ask {
                    Ask::Parse(name) if !stays => Some(name.as_deref()),
                    _ => None,
                }
            })
    }

    /// What is due to the client, in order.
    pub fn of_client(&self) -> impl Iterator<Item = &Ask> {
        self.0
            .iter()
            .filter(|slot| slot.to.is_clients())
            .map(|slot| &slot.ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(asks: &[Ask]) -> Slots {
        let mut slots = Slots::default();
        for ask in asks {
            slots.push(ask.clone(), To::Client);
        }
        slots
    }

    #[test]
    fn an_error_silences_up_to_sync() {
        let mut slots = slots(&[
            Ask::Parse(None),
            Ask::Bind,
            Ask::Execute,
            Ask::Sync,
            Ask::Bind,
        ]);
        slots.fail();
        assert_eq!(slots.front().map(|slot| &slot.ask), Some(&Ask::Sync));
    }

    #[test]
    fn a_copy_swallows_the_syncs_sent_before_its_end() {
        let mut slots = slots(&[Ask::Execute, Ask::Sync]);
        slots.copy_in();
        slots.push(Ask::Sync, To::Client);
        slots.pop();
        assert_eq!(slots.front().map(|slot| &slot.ask), Some(&Ask::Sync));
        slots.pop();
        assert!(slots.is_empty());
    }

    #[test]
    fn the_end_of_a_copy_that_is_none_holds_nothing_up() {
        let mut slots = slots(&[Ask::CopyEnd, Ask::Sync, Ask::CopyEnd, Ask::Parse(None)]);
        assert_eq!(slots.pop_end().map(|slot| slot.ask), Some(Ask::Sync));
        slots.skip_copy_ends();
        assert_eq!(slots.pop().map(|slot| slot.ask), Some(Ask::Parse(None)));
        assert!(slots.is_empty());
    }

    #[test]
    fn a_copy_sent_blindly_keeps_the_sync_behind_it() {
        let mut slots = slots(&[Ask::Execute, Ask::CopyEnd, Ask::Sync]);
        slots.copy_in();
        assert_eq!(
            slots.of_client().cloned().collect::<Vec<_>>(),
            [Ask::Execute, Ask::Sync]
        );
    }
}
