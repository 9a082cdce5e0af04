//! Records: one row each, read and written by quorum.
//!
//! Nobody tells a writer that a newer version is there, so it looks, and writes above what it finds. An owner's
//! version is above those of older epochs anyway: it looks while it writes.

use bytes::Bytes;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::Version;
use dax::storage::Authority;
use dax::wire::MAX_RECORD_BYTES;
use futures_util::TryStreamExt;
use futures_util::future::try_join;

use super::Inner;
use super::trace::traced;
use crate::connect::{of_page, of_request, unexpected};
use crate::row::{record_cell, record_value, timestamp, version};

impl Inner {
    pub(super) async fn put_record(
        &self,
        name: &str,
        value: Option<Bytes>,
        authority: Authority,
    ) -> Result<()> {
        let bytes = value.as_ref().map_or(0, Bytes::len);
        if bytes > MAX_RECORD_BYTES {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("record {name} of {bytes} bytes is above 1 MiB"),
            ));
        }
        match authority {
            Authority::Owner => self.put_owned(name, value.as_ref()).await,
            Authority::Node => {
                let (found, _) = self.find_record(name).await?;
                let next = {
                    let versions = &mut self.state.lock().writer.handle.node_records;
                    versions.next(name, value.as_ref(), found)
                };
                self.write_record(name, next, value.as_ref()).await
            }
        }
    }

    /// Any version of the epoch is above what owners of older ones wrote. Only a node may have gone higher, which
    /// a look at the same time tells.
    async fn put_owned(&self, name: &str, value: Option<&Bytes>) -> Result<()> {
        let version = self.next_version()?;
        let writing = Box::pin(self.write_record(name, version, value));
        let looking = Box::pin(self.find_record(name));
        let ((found, _), ()) = try_join(looking, writing).await?;
        match found > version {
            true => self.write_owned(name, found, value).await,
            false => self.pass_gate().await,
        }
    }

    /// Under the epoch: above what was found, and acknowledged only through the gate.
    async fn write_owned(&self, name: &str, found: Version, value: Option<&Bytes>) -> Result<()> {
        self.observe(found)?;
        let version = {
            let mut state = self.state.lock();
            state.writer.handle.skip_past(found);
            state.writer.next_version()?
        };
        self.write_record(name, version, value).await?;
        self.pass_gate().await
    }

    async fn write_record(
        &self,
        name: &str,
        version: Version,
        value: Option<&Bytes>,
    ) -> Result<()> {
        let values = (self.volume(), name, record_cell(value), timestamp(version));
        let (statement, values) = (&self.statements.write_record, &values);
        self.persist(|| async move {
            let written = self.session.execute_unpaged(statement, values);
            let written = traced("write record", written).await;
            written.map(drop).map_err(of_request)
        })
        .await
    }

    /// The newest version and value that a quorum has.
    async fn find_record(&self, name: &str) -> Result<(Version, Option<Bytes>)> {
        let values = (self.volume(), name);
        self.persist(|| async {
            let result = self
                .session
                .execute_unpaged(&self.statements.read_record, values);
            let rows = traced("read record", result).await.map_err(of_request)?;
            let rows = rows.into_rows_result().map_err(unexpected)?;
            let row = rows.maybe_first_row::<(Option<Bytes>, Option<i64>)>();
            Ok(match row.map_err(unexpected)? {
                Some((Some(cell), Some(written))) => (version(written), record_value(cell)),
                _ => (Version::ZERO, None),
            })
        })
        .await
    }

    pub(super) async fn get_record(&self, name: &str) -> Result<Option<Bytes>> {
        let (_, value) = self.find_record(name).await?;
        Ok(value)
    }

    /// Writes what is there again in this epoch, also that there is nothing (C2).
    pub(super) async fn promote_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.check_writer()?;
        let (found, value) = self.find_record(name).await?;
        self.write_owned(name, found, value.as_ref()).await?;
        Ok(value)
    }

    pub(super) async fn list_records(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        let end = format!("{prefix}{}", char::MAX);
        self.persist(|| async {
            let statement = self.statements.list_records.clone();
            let values = (self.volume(), prefix, end.as_str());
            let pages = self.session.execute_iter(statement, values);
            let rows = pages
                .await
                .map_err(of_page)?
                .rows_stream::<(String, Option<Bytes>)>();
            let rows: Vec<_> = rows
                .map_err(unexpected)?
                .try_collect()
                .await
                .map_err(of_next_row)?;
            let present = rows
                .into_iter()
                .filter_map(|(name, cell)| Some((name, record_value(cell?)?)));
            Ok(present.collect())
        })
        .await
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
