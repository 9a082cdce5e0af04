//! Records: a row each.

use bytes::Bytes;
use dax::error::Result;
use dax::ids::Version;
use futures_util::TryStreamExt;

use super::Driver;
use super::reclaim::of_next_row;
use super::trace::traced;
use crate::connect::{of_page, of_request, unexpected};
use crate::row::{record_cell, record_value, timestamp, version};

impl Driver {
    pub(super) async fn insert_record(
        &self,
        name: &str,
        version: Version,
        value: Option<&Bytes>,
    ) -> Result<()> {
        let values = (self.volume(), name, record_cell(value), timestamp(version));
        let statement = &self.statements.write_record;
        let written = self.session.execute_unpaged(statement, values);
        let written = traced("write record", written).await;
        written.map(drop).map_err(of_request)
    }

    pub(super) async fn select_record(&self, name: &str) -> Result<(Version, Option<Bytes>)> {
        let statement = &self.statements.read_record;
        let answer = self
            .session
            .execute_unpaged(statement, (self.volume(), name));
        let rows = traced("read record", answer).await.map_err(of_request)?;
        let rows = rows.into_rows_result().map_err(unexpected)?;
        let row = rows.maybe_first_row::<(Option<Bytes>, Option<i64>)>();
        Ok(match row.map_err(unexpected)? {
            Some((Some(cell), Some(written))) => (version(written), record_value(cell)),
            _ => (Version::ZERO, None),
        })
    }

    pub(super) async fn select_records(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        let end = format!("{prefix}{}", char::MAX);
        let statement = self.statements.list_records.clone();
        let values = (self.volume(), prefix, end.as_str());
        let pages = self.session.execute_iter(statement, values);
        let rows = pages.await.map_err(of_page)?;
        let rows = rows.rows_stream::<(String, Option<Bytes>)>();
        let rows: Vec<_> = rows
            .map_err(unexpected)?
            .try_collect()
            .await
            .map_err(of_next_row)?;
        let present = rows
            .into_iter()
            .filter_map(|(name, cell)| Some((name, record_value(cell?)?)));
        Ok(present.collect())
    }
}
