//! Pages, and where they are: a relation is a number in a database, with forks as files.

use bytes::Bytes;

/// Bytes of a page, which is a block of the volume.
pub(super) const PAGE_BYTES: u64 = 512;

/// A relation's main file, visibility map, or what an unlogged relation begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Fork {
    Main,
    Visibility,
    Init,
}

impl Fork {
    pub const ALL: [Fork; 3] = [Fork::Main, Fork::Visibility, Fork::Init];
}

/// A relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Rel {
    pub db: u8,
    pub number: u16,
}

impl Rel {
    pub fn file(self, fork: Fork) -> File {
        File { rel: self, fork }
    }
}

/// One fork of a relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct File {
    pub rel: Rel,
    pub fork: Fork,
}

impl File {
    pub fn path(self) -> String {
        format!("{}/{}", directory(self.rel.db), self.name())
    }

    pub fn name(self) -> String {
        let suffix = match self.fork {
            Fork::Main => "",
            Fork::Visibility => "_vm",
            Fork::Init => "_init",
        };
        format!("{}{suffix}", self.rel.number)
    }

    /// The file of a name in a database's directory.
    pub fn parse(db: u8, name: &str) -> Option<File> {
        let (number, fork) = match name.split_once('_') {
            None => (name, Fork::Main),
            Some((number, "vm")) => (number, Fork::Visibility),
            Some((number, "init")) => (number, Fork::Init),
            Some(_) => return None,
        };
        let number = number.parse().ok()?;
        Some(Rel { db, number }.file(fork))
    }

    pub fn page(self, block: u64) -> PageId {
        PageId { file: self, block }
    }
}

/// A database's directory.
pub(super) fn directory(db: u8) -> String {
    format!("base/{db}")
}

/// Which page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PageId {
    pub file: File,
    pub block: u64,
}

/// What a page holds. New pages hold zeros, like the blocks of the volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// The end of the last record that changed it and says so.
    pub lsn: u64,
    /// Stands for everything that records change: each mixes its value in.
    pub body: u64,
    /// Of a visibility map: all is visible. Cleared without moving the page's LSN (H1).
    pub visible: bool,
    /// What is never logged and may be lost at any time.
    pub hint: u8,
}

impl Page {
    pub fn is_new(&self) -> bool {
        self.lsn == 0 && self.body == 0
    }

    /// A logged change.
    pub fn change(&mut self, value: u64, lsn: u64) {
        let mixed = (self.body ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *self = Page {
            lsn,
            body: mixed ^ (mixed >> 29),
            ..*self
        };
    }

    /// The page as a whole, from a record.
    pub fn image(value: u64, lsn: u64) -> Page {
        Page {
            lsn,
            body: value,
            ..Page::default()
        }
    }

    /// True if the log says the same of both.
    pub fn same(&self, other: &Page) -> bool {
        (self.lsn, self.body) == (other.lsn, other.body)
    }

    pub fn encode(&self) -> Bytes {
        let mut bytes = vec![0; PAGE_BYTES as usize];
        bytes[..8].copy_from_slice(&self.lsn.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.body.to_le_bytes());
        bytes[16] = self.visible.into();
        bytes[17] = self.hint;
        // So that a page put together from two is found out.
        let last = PAGE_BYTES as usize - 8;
        bytes[last..].copy_from_slice(&(self.lsn ^ self.body).to_le_bytes());
        bytes.into()
    }

    /// `None`: the bytes are of no page, or of more than one.
    pub fn decode(bytes: &[u8]) -> Option<Page> {
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let (lsn, body) = (number(0)?, number(8)?);
        let whole = number(PAGE_BYTES as usize - 8)? == lsn ^ body;
        whole.then_some(Page {
            lsn,
            body,
            visible: bytes[16] != 0,
            hint: bytes[17],
        })
    }
}
