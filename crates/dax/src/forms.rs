//! Which forms of what is stored may be written, as one number for a whole volume.
//!
//! Programs of two releases work on one volume while it is upgraded, and every one of them has to read what the others
//! write: a standby that cannot read the journal can never be the active. So a form that is new is written only when the
//! volume's number allows it, which is raised when everybody can read it, as CockroachDB's and etcd's cluster version are.
//!
//! | number | what may be written besides what the one before allows |
//! |---|---|
//! | 0 | blocks as they are, or packed as a whole |
//! | 1 | (release 0.1) blocks as a difference from what they were, and in pieces |
//! | 2 | nothing: from here on programs that do not look at the number, those of release 0.1, are not let in by zones |
//! | 3 | pins and kept seals (`volume::past`): an active that does not look at them would give back what they need; a volume that is laid over another one ([`crate::layer`]) has this number from the beginning |
//!
//! A form that is new gets a number, and a [`PROTOCOL`](crate::wire::PROTOCOL), by which zones tell who reads it.
//!
//! Invariant: whoever finds a number above [`Forms::NEWEST`] does not take part, and fences nobody; who does not look is
//! refused by zones, which know the number of each volume.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::wire::{PROTOCOL_OF_BASES, PROTOCOL_OF_FORMS, PROTOCOL_OF_PINS};

/// Number of the newest forms of stored data that may be written, or can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Forms(pub u32);

impl Forms {
    /// Blocks are packed as a whole.
    pub const WHOLE_BLOCKS: Forms = Forms(0);
    /// Those of release 0.1, which did not record a number.
    pub const RELEASE_0_1: Forms = Forms(1);
    /// Everybody looks at the number.
    pub const LOOKED_AT: Forms = Forms(2);
    /// Every active looks at pins and kept seals before it gives anything back.
    pub const PINS: Forms = Forms(3);
    /// The newest that this program reads and writes.
    pub const NEWEST: Forms = Forms::PINS;
    /// The record that has a volume's number.
    pub const RECORD: &'static str = "forms";

    /// Forms that a program reads which speaks `protocol`.
    pub fn of_protocol(protocol: u16) -> Forms {
        match protocol {
            ..PROTOCOL_OF_BASES => Forms::WHOLE_BLOCKS,
            PROTOCOL_OF_BASES..PROTOCOL_OF_FORMS => Forms::RELEASE_0_1,
            PROTOCOL_OF_FORMS..PROTOCOL_OF_PINS => Forms::LOOKED_AT,
            _ => Forms::NEWEST,
        }
    }

    /// True if this program reads what may be written.
    pub fn is_known(self) -> bool {
        self <= Forms::NEWEST
    }

    /// Refuses whoever reads less than `self`, which may be in the volume.
    ///
    /// # Errors
    /// `Denied`, with what to do.
    pub fn check_reader(self, reads: Forms) -> Result<()> {
        match self <= reads {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "the volume has forms up to {self}, and this program reads them up to {reads}: upgrade it"
                ),
            )),
        }
    }

    /// True if a block may be written as a difference from what it was, or in pieces.
    pub fn allows_parts(self) -> bool {
        self >= Forms::RELEASE_0_1
    }
}

/// What a volume without a record may have in it: it was made by release 0.1.
impl Default for Forms {
    fn default() -> Forms {
        Forms::RELEASE_0_1
    }
}

impl fmt::Display for Forms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Contents of the record [`Forms::RECORD`]: what may be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenForms {
    /// The highest number that is allowed.
    pub written: Forms,
}
