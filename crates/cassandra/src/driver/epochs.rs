//! The epoch row: read, and changed by lightweight transactions only (C3).

use std::time::Duration;

use dax::error::Result;
use dax::ids::Epoch;

use super::Driver;
use super::trace::traced;
use crate::client::environment::Look;
use crate::connect::{of_request, unexpected};
use crate::lease::{Change, Row};
use crate::setup::is_applied;

type Columns = (i32, String, i64, i64, bool);

impl Driver {
    pub(super) async fn select_epoch(&self, how: Look) -> Result<Option<Row>> {
        let statement = match how {
            Look::Quorum => &self.statements.look,
            Look::Settled => &self.statements.look_serial,
        };
        let answer = self.session.execute_unpaged(statement, (self.volume(),));
        let rows = traced("look", answer).await.map_err(of_request)?;
        let rows = rows.into_rows_result().map_err(unexpected)?;
        let found = rows.maybe_first_row::<Columns>().map_err(unexpected)?;
        Ok(
            found.map(|(epoch, owner, lease_ms, renewals, released)| Row {
                epoch: Epoch(epoch.max(0) as u32),
                owner,
                lease: Duration::from_millis(lease_ms.max(0) as u64),
                renewals: renewals.max(0) as u64,
                released,
            }),
        )
    }

    pub(super) async fn change_epoch(&self, change: &Change) -> Result<bool> {
        let Row {
            epoch,
            owner,
            lease,
            renewals,
            released,
        } = &change.new;
        let (epoch, renewals) = (epoch.0 as i32, *renewals as i64);
        let (lease_ms, volume) = (lease.as_millis() as i64, self.volume());
        let sent = match &change.expected {
            None => {
                let values = (volume, epoch, owner, lease_ms, renewals, released);
                let statement = &self.statements.first_claim;
                traced("claim", self.session.execute_unpaged(statement, values)).await
            }
            Some(row) => {
                let expected = (row.epoch.0 as i32, &row.owner, row.renewals as i64);
                let values = (
                    epoch, owner, lease_ms, renewals, released, volume, expected.0, expected.1,
                    expected.2,
                );
                let statement = &self.statements.change_epoch;
                traced("change", self.session.execute_unpaged(statement, values)).await
            }
        };
        sent.map_err(of_request).and_then(is_applied)
    }
}
