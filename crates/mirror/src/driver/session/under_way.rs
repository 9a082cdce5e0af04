//! Messages that are under way in a session that passes them on as they are.

use std::collections::{HashMap, VecDeque};

use super::super::wire::status;

/// Messages that are under way in a session that passes them on.
#[derive(Default)]
pub struct Watched {
    /// Messages that end with `ReadyForQuery`, which has not come.
    awaited: u64,
    /// The extended protocol is spoken, and not `Query`.
    is_extended: bool,
    /// The client copies; PostgreSQL takes no `Sync` until that ends.
    is_copying: bool,
    /// A batch of the extended protocol has begun.
    in_batch: bool,
    /// The session is in a transaction.
    in_transaction: bool,
    /// The last thing that was said was an error.
    pub was_refused: bool,
}

impl Watched {
    pub fn client_says(&mut self, tag: u8) {
        match tag {
            b'Q' | b'F' => {
                self.awaited += 1;
                self.is_extended = false;
            }
            b'S' | b'H' if self.is_copying => {}
            b'c' | b'f' => self.is_copying = false,
            b'S' => {
                self.awaited += 1;
                self.in_batch = false;
            }
            b'P' | b'B' | b'D' | b'E' | b'C' | b'H' => {
                self.in_batch = true;
                self.is_extended = true;
            }
            _ => {}
        }
    }

    pub fn server_says(&mut self, message: &[u8]) {
        self.was_refused = message[0] == b'E';
        self.is_copying &= message[0] != b'E';
        if message[0] == b'G' {
            self.is_copying = true;
            if self.is_extended {
                // The ends of batches that were sent already are taken for nothing.
                self.awaited = 0;
                self.in_batch = true;
            }
        }
        if message[0] == b'Z' {
            self.awaited = self.awaited.saturating_sub(1);
            self.in_transaction = status(message) != b'I';
        }
    }

    pub fn is_idle(&self) -> bool {
        self.awaited == 0 && !self.in_batch && !self.in_transaction
    }

    /// True if all that was asked is answered.
    pub fn is_answered(&self) -> bool {
        self.awaited == 0 && !self.in_batch
    }

    /// True if the client copies.
    pub fn is_copying(&self) -> bool {
        self.is_copying
    }

    /// True if what is under way was begun by the extended protocol.
    pub fn is_extended(&self) -> bool {
        self.is_extended
    }
}

/// Statements that are under way.
#[derive(Default)]
pub struct Direct {
    pub watched: Watched,
    /// Texts of statements that portals execute.
    pub portals: HashMap<String, String>,
    /// Statements that the batch has executed so far.
    pub batch: Vec<String>,
    /// Statements of each batch whose end was sent.
    pub sent: VecDeque<Vec<String>>,
    /// Something of the batch that is answered has failed.
    pub has_failed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(status: u8) -> [u8; 6] {
        [b'Z', 0, 0, 0, 5, status]
    }

    #[test]
    fn what_is_under_way_is_known() {
        let mut watched = Watched::default();
        assert!(watched.is_idle());
        watched.client_says(b'P');
        assert!(!watched.is_idle());
        watched.client_says(b'S');
        watched.client_says(b'Q');
        watched.server_says(&ready(b'I'));
        assert!(!watched.is_idle(), "the second has no answer");
        watched.server_says(&ready(b'T'));
        assert!(!watched.is_idle(), "a transaction is open");
        watched.client_says(b'Q');
        watched.server_says(&ready(b'I'));
        assert!(watched.is_idle());
    }

    /// A session that had copied was never idle again, because of a `Sync` that nobody answers.
    #[test]
    fn what_is_sent_while_a_client_copies_ends_no_batch() {
        let mut watched = Watched::default();
        b"PBES".iter().for_each(|tag| watched.client_says(*tag));
        watched.server_says(b"G\0\0\0\x04");
        assert!(!watched.is_idle());
        b"dScS".iter().for_each(|tag| watched.client_says(*tag));
        watched.server_says(&ready(b'I'));
        assert!(watched.is_idle());
        watched.client_says(b'Q');
        watched.server_says(b"G\0\0\0\x04");
        b"dc".iter().for_each(|tag| watched.client_says(*tag));
        assert!(!watched.is_idle());
        watched.server_says(&ready(b'I'));
        assert!(watched.is_idle());
    }
}
