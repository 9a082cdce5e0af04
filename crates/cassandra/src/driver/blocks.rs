//! Blocks: written one by one or in batches of one partition, read from one replica, a quorum or all.

use std::collections::HashMap;

use bytes::Bytes;
use dax::error::Result;
use dax::ids::{BlockKey, Generation, Version, VolumeName};
use scylla::cluster::metadata::ColumnType;
use scylla::serialize::SerializationError;
use scylla::serialize::value::SerializeValue;
use scylla::serialize::writers::{CellWriter, WrittenCellProof};
use scylla::statement::batch::{Batch, BatchType};

use super::Driver;
use super::trace::traced;
use crate::client::environment::{Asked, Found};
use crate::connect::{of_request, unexpected};
use crate::row::{self, Chunk, Row, file_column, generation_column, timestamp};

/// A block's cell, written without putting its parts together first.
struct Cell<'a>(&'a Row);

/// What [`write_block`](super::statements::Statements::write_block) wants.
type Values<'a> = (&'a str, i64, i64, i64, i64, Cell<'a>, i64);

impl SerializeValue for Cell<'_> {
    fn serialize<'b>(
        &self,
        _: &ColumnType,
        writer: CellWriter<'b>,
    ) -> std::result::Result<WrittenCellProof<'b>, SerializationError> {
        let (head, data) = row::cell_parts(self.0.checksum, &self.0.data);
        let mut cell = writer.into_value_builder();
        cell.append_bytes(&head);
        cell.append_bytes(data);
        cell.finish().map_err(SerializationError::new)
    }
}

impl Driver {
    pub(super) async fn insert_rows(&self, chunk: Chunk, rows: &[Row]) -> Result<()> {
        let statement = &self.statements.write_block;
        if let [row] = rows {
            let values = self.values(chunk, row);
            let sent = self.session.execute_unpaged(statement, values);
            let sent = traced("write block", sent).await;
            return sent.map(drop).map_err(of_request);
        }
        let mut request = Batch::new(BatchType::Unlogged);
        if let Some(consistency) = statement.get_consistency() {
            request.set_consistency(consistency);
        }
        request.set_is_idempotent(true);
        for _ in rows {
            request.append_statement(statement.clone());
        }
        let values: Vec<_> = rows.iter().map(|row| self.values(chunk, row)).collect();
        let sent = traced("write blocks", self.session.batch(&request, values)).await;
        sent.map(drop).map_err(of_request)
    }

    fn values<'a>(&'a self, (file, chunk): Chunk, row: &'a Row) -> Values<'a> {
        (
            self.volume(),
            file_column(file),
            chunk as i64,
            row.key.block.0 as i64,
            generation_column(row.generation),
            Cell(row),
            timestamp(row.version),
        )
    }

    pub(super) async fn insert_chunk(&self, (file, chunk): Chunk, version: Version) -> Result<()> {
        let at = timestamp(version);
        let values = (self.volume(), file_column(file), chunk as i64, at);
        let statement = &self.statements.write_chunk;
        let sent = self.session.execute_unpaged(statement, values);
        let sent = traced("write chunk", sent).await;
        sent.map(drop).map_err(of_request)
    }

    pub(super) async fn select_block(
        &self,
        volume: &VolumeName,
        asked: Asked,
        (file, chunk): Chunk,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Found>> {
        let statement = match asked {
            Asked::One => &self.statements.read_one,
            Asked::Quorum => &self.statements.read_quorum,
            Asked::All => &self.statements.read_all,
        };
        let values = (
            volume.as_str(),
            file_column(file),
            chunk as i64,
            key.block.0 as i64,
            generation_column(up_to),
        );
        let answer = self.session.execute_unpaged(statement, values);
        let rows = traced("read block", answer).await.map_err(of_request)?;
        let rows = rows.into_rows_result().map_err(unexpected)?;
        let row = rows.maybe_first_row::<(i64, Option<i64>, Option<Bytes>)>();
        Ok(match row.map_err(unexpected)? {
            Some((generation, Some(written), Some(cell))) => Some(Found {
                generation: row::generation(generation),
                version: row::version(written),
                cell,
            }),
            _ => None,
        })
    }

    pub(super) async fn select_singles(
        &self,
        (file, chunk): Chunk,
        blocks: &[i64],
    ) -> Result<HashMap<i64, Found>> {
        let statement = &self.statements.read_singles;
        let values = (self.volume(), file_column(file), chunk as i64, blocks);
        let answer = self.session.execute_unpaged(statement, values);
        let rows = traced("read singles", answer).await.map_err(of_request)?;
        let rows = rows.into_rows_result().map_err(unexpected)?;
        let rows = rows.rows::<(i64, Option<i64>, Option<Bytes>)>();
        let mut found = HashMap::new();
        for row in rows.map_err(unexpected)? {
            if let (block, Some(written), Some(cell)) = row.map_err(unexpected)? {
                let generation = Generation::SINGLE;
                let version = row::version(written);
                let row = Found {
                    generation,
                    version,
                    cell,
                };
                found.insert(block, row);
            }
        }
        Ok(found)
    }
}
