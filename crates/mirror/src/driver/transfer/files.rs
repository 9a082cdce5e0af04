//! Files of the tables that are copied: none was exchanged between the copy's snapshot and the locks of pg_dump.
//!
//! TRUNCATE, and an ALTER TABLE that rewrites a table, are not MVCC-safe: an older snapshot then sees the table empty. pg_dump locks the
//! tables after the snapshot was taken, and dumps a table that was emptied in between without an error. The log after the snapshot
//! has what was done with the rows, and not the rows.
//!
//! Invariant: a dump counts only if each table of the snapshot still has its file when pg_dump holds its locks. From then on nobody else
//! can exchange it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::driver::target::Target;
use crate::driver::wire::{Postgres, WireError};

const TABLES: &str = "SELECT c.oid, c.relfilenode, c.oid::pg_catalog.regclass FROM pg_catalog.pg_class c \
    WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND c.oid >= 16384 \
    AND c.relnamespace <> pg_catalog.to_regnamespace('understudy_mirror')";

/// How often it is looked whether pg_dump has its locks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Tables were truncated, or rewritten, while a copy began.
#[derive(Debug, thiserror::Error)]
#[error("tables were truncated or rewritten while the copy began: {0}")]
pub struct Emptied(String);

/// See the module.
pub(super) struct Files(BTreeMap<String, (String, String)>);

impl Files {
    /// Reads them as they are for this session.
    pub(super) async fn read(session: &mut Postgres) -> Result<Files, WireError> {
        let rows = session.query(TABLES).await?.rows().into_iter();
        let tables = rows.filter_map(|row| {
            let mut row = row.into_iter();
            Some((row.next()??, (row.next()??, row.next()??)))
        });
        Ok(Files(tables.collect()))
    }

    /// The tables whose file is another one, or gone.
    fn exchanged(&self, now: &Files) -> Vec<&str> {
        let tables = self.0.iter();
        let exchanged = tables.filter(|(oid, (file, _))| {
            let now = now.0.get(*oid);
            now.is_none_or(|(now, _)| now != file)
        });
        exchanged.map(|(_, (_, name))| name.as_str()).collect()
    }

    async fn must_be_those_of<E>(&self, other: &Target, application: &str) -> Result<(), E>
    where
        E: From<WireError> + From<Emptied>,
    {
        // A session with a snapshot of now.
        let mut session = Postgres::connect(other, application).await?;
        let now = Files::read(&mut session).await?;
        match self.exchanged(&now)[..] {
            [] => Ok(()),
            ref tables => Err(Emptied(tables.join(", ")).into()),
        }
    }

    /// Dumps into a directory, in the snapshot that these are of.
    ///
    /// # Errors
    /// [`Emptied`], the other member's, or the dump's.
    pub(super) async fn hold<E>(
        &self,
        (other, application): (&Target, &str),
        directory: &Path,
        dump: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E>
    where
        E: From<WireError> + From<Emptied>,
    {
        let mut dump = std::pin::pin!(dump);
        tokio::select! {
            dumped = &mut dump => {
                dumped?;
                self.must_be_those_of(other, application).await
            }
            () = has_begun(directory) => {
                self.must_be_those_of::<E>(other, application).await?;
                dump.await
            }
        }
    }
}

/// Waits until pg_dump has written something: it locks all tables before.
async fn has_begun(directory: &Path) {
    let is_begun = || std::fs::read_dir(directory).is_ok_and(|mut files| files.next().is_some());
    while !is_begun() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(tables: &[(&str, &str)]) -> Files {
        let table = |(oid, file): &(&str, &str)| {
            let name = format!("table {oid}");
            ((*oid).to_owned(), ((*file).to_owned(), name))
        };
        Files(tables.iter().map(table).collect())
    }

    #[test]
    fn a_table_with_another_file_or_none_is_told() {
        let before = files(&[("1", "10"), ("2", "20"), ("3", "30")]);
        let now = files(&[("1", "10"), ("2", "21"), ("4", "40")]);
        assert_eq!(before.exchanged(&now), ["table 2", "table 3"]);
        assert!(before.exchanged(&before).is_empty());
    }
}
