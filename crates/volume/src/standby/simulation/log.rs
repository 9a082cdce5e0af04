//! The log, and what a database is after a prefix of it: the truth that every view is held against.
//!
//! Record `i` begins at `i` and ends at `i + 1`; its end is the LSN of the pages that it changes.

use std::collections::BTreeMap;

use super::page::{Fork, Page, Rel};

/// What redo repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    /// A relation's file was made; an unlogged one's has an init fork besides.
    Create {
        rel: Rel,
        unlogged: bool,
    },
    /// The transaction that made the relation is done.
    Commit {
        rel: Rel,
    },
    /// The transaction that made the relation is rolled back; the files are gone already (N8).
    Abort {
        rel: Rel,
    },
    /// The transaction that drops the relation is done; the files go later (N8).
    Drop {
        rel: Rel,
    },
    /// A page changed, whose LSN was `prev`; a bit of the visibility map may go with it (H1).
    Change {
        rel: Rel,
        block: u64,
        prev: u64,
        value: u64,
        clears: bool,
    },
    /// A page as a whole: a new one, or an image of an old one.
    Image {
        rel: Rel,
        fork: Fork,
        block: u64,
        value: u64,
    },
    /// All of a relation is visible.
    SetVisible {
        rel: Rel,
    },
    Truncate {
        rel: Rel,
        blocks: u64,
    },
    /// Nobody can connect to the database any more; its directory goes next.
    Doom {
        db: u8,
    },
    /// The database's directory is gone already (N8).
    DropDb {
        db: u8,
    },
    /// `from` was copied file by file (FILE_COPY).
    CopyDb {
        from: u8,
        to: u8,
    },
    /// The transaction that copied it is done.
    CommitDb {
        db: u8,
    },
    Checkpoint {
        redo: u64,
    },
}

/// True if anybody may look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Its transaction is under way.
    Unfinished,
    Committed,
    Doomed,
}

/// One relation.
#[derive(Debug, Clone)]
pub(super) struct Relation {
    /// The record that made it: a number may be given again.
    pub made: u64,
    pub committed: bool,
    pub unlogged: bool,
    pub pages: Vec<Page>,
    pub init: Vec<Page>,
    pub visible: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Truth {
    pub databases: BTreeMap<u8, Standing>,
    pub relations: BTreeMap<Rel, Relation>,
}

impl Truth {
    /// After the first records.
    pub fn after(initial: &Truth, log: &[Record]) -> Truth {
        let mut truth = initial.clone();
        for (at, record) in log.iter().enumerate() {
            truth.apply(record, at as u64 + 1);
        }
        truth
    }

    /// True if queries may look at a relation.
    pub fn is_live(&self, rel: Rel) -> bool {
        self.databases.get(&rel.db) == Some(&Standing::Committed)
            && self.relations.get(&rel).is_some_and(|r| r.committed)
    }

    /// True if queries may look at a relation that a record up to `lsn` made.
    pub fn is_live_since(&self, rel: Rel, lsn: u64) -> bool {
        self.is_live(rel) && self.relations[&rel].made <= lsn
    }

    /// Relations that queries may look at.
    pub fn live(&self) -> impl Iterator<Item = (Rel, &Relation)> {
        let all = self.relations.iter().map(|(rel, is)| (*rel, is));
        all.filter(|(rel, _)| self.is_live(*rel))
    }

    pub fn apply(&mut self, record: &Record, lsn: u64) {
        match *record {
            Record::Create { rel, unlogged } => {
                let new = Relation {
                    made: lsn,
                    committed: false,
                    unlogged,
                    pages: Vec::new(),
                    init: Vec::new(),
                    visible: false,
                };
                self.relations.insert(rel, new);
            }
            Record::Commit { rel } => {
                if let Some(relation) = self.relations.get_mut(&rel) {
                    relation.committed = true;
                }
            }
            Record::Abort { rel } | Record::Drop { rel } => drop(self.relations.remove(&rel)),
            Record::Change {
                rel,
                block,
                value,
                clears,
                ..
            } => {
                let relation = self.relations.get_mut(&rel).expect("it was created");
                relation.pages[block as usize].change(value, lsn);
                relation.visible &= !clears;
            }
            Record::Image {
                rel,
                fork,
                block,
                value,
            } => {
                let relation = self.relations.get_mut(&rel).expect("it was created");
                let pages = match fork {
                    Fork::Init => &mut relation.init,
                    _ => &mut relation.pages,
                };
                let size = pages.len().max(block as usize + 1);
                pages.resize(size, Page::default());
                pages[block as usize] = Page::image(value, lsn);
            }
            Record::SetVisible { rel } => {
                let relation = self.relations.get_mut(&rel).expect("it was created");
                relation.visible = true;
            }
            Record::Truncate { rel, blocks } => {
                let relation = self.relations.get_mut(&rel).expect("it was created");
                relation.pages.truncate(blocks as usize);
                relation.visible &= blocks > 0;
            }
            Record::Doom { db } => drop(self.databases.insert(db, Standing::Doomed)),
            Record::DropDb { db } => {
                self.databases.remove(&db);
                self.relations.retain(|rel, _| rel.db != db);
            }
            Record::CopyDb { from, to } => {
                self.databases.insert(to, Standing::Unfinished);
                let copied = self.relations.iter().filter(|(rel, _)| rel.db == from);
                let copied = copied.map(|(rel, is)| {
                    let copy = Relation {
                        made: lsn,
                        ..is.clone()
                    };
                    (Rel { db: to, ..*rel }, copy)
                });
                let copied: Vec<_> = copied.collect();
                self.relations.extend(copied);
            }
            Record::CommitDb { db } => drop(self.databases.insert(db, Standing::Committed)),
            Record::Checkpoint { .. } => {}
        }
    }
}
