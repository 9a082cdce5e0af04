//! What partitions there are, what is in them, and deletes.

use dax::error::{Error, ErrorKind, Result};
use dax::ids::{FileId, Generation, Version, VolumeName};
use futures_util::TryStreamExt;
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;

use super::Driver;
use super::trace::traced;
use crate::client::environment::{Delete, Ranges};
use crate::connect::{of_page, of_request, unexpected};
use crate::row::{self, Chunk, file_column, timestamp};

impl Driver {
    pub(super) async fn select_rows(
        &self,
        volume: &VolumeName,
        (file, chunk): Chunk,
    ) -> Result<Vec<(i64, Generation)>> {
        let values = (volume.as_str(), file_column(file), chunk as i64);
        let statement = &self.statements.list_rows;
        let answer = self.session.execute_unpaged(statement, values);
        let rows = traced("list rows", answer).await.map_err(of_request)?;
        let rows = rows.into_rows_result().map_err(unexpected)?;
        let rows = rows.rows::<(i64, i64)>().map_err(unexpected)?;
        let rows = rows.map(|row| row.map(|(block, column)| (block, row::generation(column))));
        rows.collect::<std::result::Result<_, _>>()
            .map_err(unexpected)
    }

    pub(super) async fn select_chunks(&self, file: FileId) -> Result<Vec<u64>> {
        let values = (self.volume(), file_column(file), 0i64);
        let statement = self.statements.list_chunks.clone();
        let pages = self.session.execute_iter(statement, values);
        let rows = pages.await.map_err(of_page)?.rows_stream::<(i64,)>();
        let rows = rows.map_err(unexpected)?.map_ok(|(chunk,)| chunk as u64);
        rows.try_collect().await.map_err(of_next_row)
    }

    pub(super) async fn select_all_chunks(
        &self,
        volume: &VolumeName,
        each: &mut (dyn FnMut(Chunk) + Send),
    ) -> Result<()> {
        let statement = self.statements.scan_chunks.clone();
        let pages = self.session.execute_iter(statement, ());
        let rows = pages.await.map_err(of_page)?;
        let mut rows = rows
            .rows_stream::<(String, i64, i64)>()
            .map_err(unexpected)?;
        while let Some((of, file, chunk)) = rows.try_next().await.map_err(of_next_row)? {
            if of == volume.as_str() {
                each((row::file(file), chunk as u64));
            }
        }
        Ok(())
    }

    pub(super) async fn delete_from(&self, what: Delete<'_>, version: Version) -> Result<()> {
        let (at, volume, statements) = (timestamp(version), self.volume(), &self.statements);
        match what {
            Delete::Generations(chunk, ranges) => self.delete_ranges(chunk, ranges, at).await,
            Delete::BlocksBefore((file, chunk), block) => {
                let values = (at, volume, file_column(file), chunk as i64, block.0 as i64);
                self.delete_by(&statements.delete_before, values).await
            }
            Delete::Chunk((file, chunk)) => {
                let values = (at, volume, file_column(file), chunk as i64);
                self.delete_by(&statements.delete_chunk, values).await
            }
            Delete::NotesBefore((file, chunk)) => {
                let values = (at, volume, file_column(file), chunk as i64);
                self.delete_by(&statements.forget_chunks, values).await
            }
            Delete::Notes(file) => {
                let values = (at, volume, file_column(file));
                self.delete_by(&statements.forget_file, values).await
            }
        }
    }

    async fn delete_by(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<()> {
        let deleted = self.session.execute_unpaged(statement, values);
        let deleted = traced("delete", deleted).await;
        deleted.map(drop).map_err(of_request)
    }

    async fn delete_ranges(&self, (file, chunk): Chunk, ranges: Ranges<'_>, at: i64) -> Result<()> {
        let statement = &self.statements.delete_generations;
        let mut request = Batch::new(BatchType::Unlogged);
        if let Some(consistency) = statement.get_consistency() {
            request.set_consistency(consistency);
        }
        request.set_is_idempotent(true);
        for _ in ranges {
            request.append_statement(statement.clone());
        }
        let (volume, file, chunk) = (self.volume(), file_column(file), chunk as i64);
        let values = ranges
            .iter()
            .map(|(block, (from, to))| (at, volume, file, chunk, *block, *from, *to));
        let values: Vec<_> = values.collect();
        let deleted = traced("delete", self.session.batch(&request, values)).await;
        deleted.map(drop).map_err(of_request)
    }
}

/// A page that did not come may come the next time.
pub(super) fn of_next_row(error: scylla::errors::NextRowError) -> Error {
    Error::with_source(
        ErrorKind::Unavailable,
        "Cassandra did not send all rows",
        error,
    )
}
