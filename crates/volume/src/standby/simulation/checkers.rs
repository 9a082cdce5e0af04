//! What must hold of a view, held against the truth, and what became of it if it does not.
//!
//! Allowed to differ, as after a crash of a stock server: hints, bits that a visibility map lost, zero
//! pages behind a relation's end, and everything of transactions that never finished.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::files::Files;
use super::log::{Relation, Standing, Truth};
use super::page::{File, Fork, Page, Rel, directory};
use super::pool::Pool;
use crate::error::Error;

/// A promise that was broken, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Broken {
    pub checker: &'static str,
    pub what: String,
}

pub(super) type Held<T> = Result<T, Broken>;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.what)
    }
}

/// Whatever nobody expects to fail.
impl From<Error> for Broken {
    #[track_caller]
    fn from(error: Error) -> Broken {
        let place = std::panic::Location::caller();
        broken("operations succeed", format!("{error} ({place})"))
    }
}

pub(super) fn broken(checker: &'static str, what: impl Into<String>) -> Broken {
    let what = what.into();
    Broken { checker, what }
}

/// The checker of redo itself.
pub(super) const REDO: &str = "redo does not fail";

/// An operation of redo that failed is the end of the standby.
#[track_caller]
pub(super) fn failed(error: Error) -> Broken {
    let place = std::panic::Location::caller();
    broken(REDO, format!("{error} ({place})"))
}

/// Who looks, for the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looker {
    /// A query on a standby.
    Query,
    /// A server that was promoted, or that runs on.
    Server,
}

impl Looker {
    fn checker(self) -> &'static str {
        match self {
            Looker::Query => "queries see what was applied",
            Looker::Server => "the promoted server has the truth",
        }
    }
}

/// What is in a view under the server's buffers: all that committed relations hold.
pub(super) async fn check_relations(
    files: &Files,
    pool: &Pool,
    truth: &Truth,
    looker: Looker,
) -> Held<()> {
    for (rel, relation) in truth.live() {
        let wrong = |what: String| broken(looker.checker(), format!("{rel:?}: {what}"));
        if relation.unlogged {
            check_fork(files, pool, rel.file(Fork::Init), &relation.init)
                .await
                .map_err(wrong)?;
            continue;
        }
        check_fork(files, pool, rel.file(Fork::Main), &relation.pages)
            .await
            .map_err(wrong)?;
        check_visibility(files, pool, rel, relation)
            .await
            .map_err(wrong)?;
    }
    Ok(())
}

async fn check_fork(files: &Files, pool: &Pool, file: File, pages: &[Page]) -> Result<(), String> {
    let size = files.pages(&file.path()).map_err(|e| e.to_string())?;
    let Some(size) = size else {
        return Err(format!("{} is missing", file.path()));
    };
    for block in 0..size.max(pages.len() as u64) {
        let id = file.page(block);
        let found = match pool.get(id) {
            Some(page) => Some(page),
            None => files.read_page(id).await.map_err(|e| e.to_string())?,
        };
        let right = match (found, pages.get(block as usize)) {
            (Some(found), Some(page)) => found.same(page),
            (Some(found), None) => found.is_new(),
            (None, page) => page.is_none(),
        };
        if !right {
            let should = pages.get(block as usize);
            return Err(format!("block {block} is {found:?}, should be {should:?}"));
        }
    }
    Ok(())
}

/// Bits may be lost, never made up (H1).
async fn check_visibility(
    files: &Files,
    pool: &Pool,
    rel: Rel,
    relation: &Relation,
) -> Result<(), String> {
    let id = rel.file(Fork::Visibility).page(0);
    let found = match pool.get(id) {
        Some(page) => Some(page),
        None if files
            .size(&id.file.path())
            .map_err(|e| e.to_string())?
            .is_none() =>
        {
            None
        }
        None => files.read_page(id).await.map_err(|e| e.to_string())?,
    };
    match found.is_some_and(|page| page.visible) && !relation.visible {
        true => Err("the visibility map says that all is visible".into()),
        false => Ok(()),
    }
}

/// The names of committed databases: no pages of relations that are gone. A later relation of the
/// same name, which was never finished, may be there; so may `orphans`, which nobody opens.
pub(super) async fn check_names(
    files: &Files,
    truth: &Truth,
    (known, orphans): (&Known, &BTreeSet<Rel>),
    looker: Looker,
) -> Held<()> {
    for (db, standing) in &truth.databases {
        if *standing != Standing::Committed {
            continue;
        }
        let path = directory(*db);
        let wrong = |what: String| broken(looker.checker(), what);
        let Some(names) = files.names(&path)? else {
            return Err(wrong(format!("{path} is missing")));
        };
        for name in names {
            let Some(file) = File::parse(*db, &name) else {
                continue;
            };
            let Some(removed_at) = known.removed_at(file.rel) else {
                continue;
            };
            let excused = orphans.contains(&file.rel);
            if file.fork != Fork::Main || truth.relations.contains_key(&file.rel) || excused {
                continue;
            }
            let page = files.read_page(file.page(0)).await?;
            if page.is_some_and(|page| !page.is_new() && page.lsn <= removed_at) {
                let what = format!("{path}/{name} was removed at {removed_at} and has {page:?}");
                return Err(wrong(what));
            }
        }
    }
    Ok(())
}

/// Relations that committed records removed, by the position of the last such record.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    removed: BTreeMap<Rel, u64>,
}

impl Known {
    pub fn removed(&mut self, rel: Rel, at: u64) {
        self.removed.insert(rel, at);
    }

    /// A database is removed or made anew: what was removed before says nothing of the next one of its number, which
    /// may be copied from one with files that were left behind.
    pub fn forget_database(&mut self, db: u8) {
        self.removed.retain(|rel, _| rel.db != db);
    }

    fn removed_at(&self, rel: Rel) -> Option<u64> {
        self.removed.get(&rel).copied()
    }
}
