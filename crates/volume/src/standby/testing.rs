//! A small database's layout and namespaces for the unit tests of this room.

use std::ops::Range;
use std::sync::Arc;

use dax::ids::{Epoch, FileId, Generation};
use dax::storage::Lineage;

use super::hidden::{Hidden, hidden_names};
use super::state::State;
use crate::journal::{Chained, JournalPos};
use crate::layout::{FileClass, Layout};
use crate::lsn::Lsn;
use crate::namespace::op::Op;
use crate::namespace::{Namespace, ROOT};
use crate::seal::{Base, Seal};
use crate::snapshot::SnapshotRef;
use crate::view::{FileKind, Ino, NewInode, Ownership, Timestamp};

pub(crate) const BLOCK: u32 = 4096;
/// Bytes of a log segment of the tests.
pub(crate) const SEGMENT: u64 = 4 * BLOCK as u64;
pub(crate) const NOW: Timestamp = Timestamp(1);
pub(crate) const OWNER: Ownership = Ownership {
    mode: 0o600,
    uid: 7,
    gid: 7,
};

/// Segments are `pg_wal/<number>`; `pg_control`, `pg_twophase` and the archive's state are private
/// on a standby.
pub(crate) struct TestLayout;

/// What of a base is not shown.
pub(crate) fn hidden_of(base: &Base) -> Hidden {
    hidden_names(&TestLayout, &base.namespace)
}

impl Layout for TestLayout {
    fn class(&self, path: &str) -> FileClass {
        match path {
            "postmaster.pid" => FileClass::Private,
            p if p.ends_with("pg_internal.init") => FileClass::Private,
            p if p.ends_with(".conf") || p.ends_with(".conf.tmp") => FileClass::Live,
            p if p == "pg_wal" || p.starts_with("pg_wal/") => FileClass::Log,
            _ => FileClass::Data,
        }
    }

    fn standby_class(&self, path: &str) -> FileClass {
        let private = ["global/pg_control", "pg_twophase", "pg_wal/archive_status"];
        let inside = |p: &&str| path == *p || path.starts_with(&format!("{p}/"));
        match private.iter().any(inside) {
            true => FileClass::Private,
            false => self.class(path),
        }
    }

    fn hidden_on_standby(&self, path: &str) -> bool {
        path == "backup_label"
    }

    fn hidden_by(&self, name: &str) -> Option<String> {
        let digits = name.bytes().take_while(u8::is_ascii_digit).count();
        let (number, fork) = name.split_at(digits);
        (digits > 0 && fork != "_init").then(|| format!("{number}_init"))
    }

    fn log_range(&self, path: &str) -> Option<Range<Lsn>> {
        let number: u64 = path.strip_prefix("pg_wal/")?.parse().ok()?;
        Some(Lsn(number * SEGMENT)..Lsn((number + 1) * SEGMENT))
    }

    fn private_directories(&self, _: bool) -> Vec<String> {
        vec![
            "pg_twophase".into(),
            "global".into(),
            "pg_wal/archive_status".into(),
        ]
    }
}

/// Builds namespaces as an active would.
#[derive(Clone)]
pub(crate) struct Builder {
    pub namespace: Namespace,
    next: u64,
}

impl Builder {
    pub fn new() -> Builder {
        let mut builder = Builder {
            namespace: Namespace::new(OWNER, FileClass::Data, NOW),
            next: 10,
        };
        for dir in [
            "base",
            "base/5",
            "global",
            "pg_wal",
            "pg_twophase",
            "pg_xact",
        ] {
            builder.make(dir, FileKind::Directory, 0);
        }
        builder
    }

    pub fn apply(&mut self, op: Op) {
        self.namespace.apply(&op).unwrap();
    }

    fn split<'a>(&self, path: &'a str) -> (FileId, &'a [u8]) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.namespace.resolve(dir).unwrap(), name.as_bytes())
    }

    fn make(&mut self, path: &str, kind: FileKind, size: u64) -> FileId {
        let (parent, name) = self.split(path);
        self.next += 1;
        let id = FileId(self.next);
        self.apply(Op::Create {
            id,
            parent,
            name: name.to_vec(),
            kind,
            class: TestLayout.class(path),
            mode: 0o600,
            uid: 7,
            gid: 7,
            target: None,
            at: NOW,
        });
        if size > 0 {
            self.apply(Op::SetSize { id, size, at: NOW });
        }
        id
    }

    pub fn file(&mut self, path: &str, blocks: u64) -> FileId {
        self.make(path, FileKind::File, blocks * u64::from(BLOCK))
    }

    pub fn make_dir(&mut self, path: &str) -> FileId {
        self.make(path, FileKind::Directory, 0)
    }

    pub fn remove_dir(&mut self, path: &str) {
        let (parent, name) = self.split(path);
        let name = name.to_vec();
        self.apply(Op::RemoveDirectory {
            parent,
            name,
            at: NOW,
        });
    }

    pub fn remove(&mut self, path: &str, retain: bool) {
        let (parent, name) = self.split(path);
        let name = name.to_vec();
        self.apply(Op::Unlink {
            parent,
            name,
            retain,
            at: NOW,
        });
    }

    /// The image as of now, sealed with this redo pointer and end.
    pub fn seal(&self, number: u32, redo: u64, end: u64) -> Base {
        let generation = Generation {
            epoch: Epoch(1),
            number,
        };
        Base {
            seal: Seal {
                generation,
                lineage: Lineage::up_to(generation),
                journal: JournalPos::START,
                snapshot: SnapshotRef {
                    file: FileId(3),
                    bytes: 0,
                    at: JournalPos::START,
                    chain: 0,
                },
                redo: Lsn(redo),
                end: Lsn(end),
                at: None,
                newest_file: None,
                lists: Vec::new(),
                payload: Vec::new(),
            },
            namespace: self.namespace.clone(),
            place: Chained::START,
        }
    }
}

/// A state attached at `base`, with its namespace as the live one.
pub(crate) fn attached(base: Base) -> State {
    let live = base.namespace.clone();
    State::new(Arc::new(TestLayout), BLOCK, base, live)
}

impl State {
    /// The inode at a path of the view.
    pub fn at(&self, path: &str) -> Option<Ino> {
        let parts = path.split('/').filter(|p| !p.is_empty());
        parts.into_iter().try_fold(Ino(ROOT.0), |dir, name| {
            self.expect((dir, name.as_bytes())).ok()
        })
    }

    /// Creates a file at a path of the view.
    pub fn make(&mut self, path: &str, new: NewInode) -> Ino {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.at(dir).unwrap();
        self.create((dir, name.as_bytes()), new, OWNER, NOW)
            .unwrap()
            .ino
    }

    /// Names of a directory of the view.
    pub fn names(&self, path: &str) -> Vec<String> {
        let list = self.list(self.at(path).unwrap()).unwrap();
        list.keys()
            .map(|n| String::from_utf8(n.to_vec()).unwrap())
            .collect()
    }

    /// Removes a file at a path of the view.
    pub fn drop_file(&mut self, path: &str) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.at(dir).unwrap();
        if let Some(ino) = self.unlink((dir, name.as_bytes()), NOW).unwrap() {
            self.reap(ino);
        }
    }
}
