//! Owning an epoch, keeping it and giving it up: the only lightweight transactions (C3, L1 to L5, L7).
//!
//! [`crate::lease`] decides; this sends its changes and tells it the answers and the time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dax::error::{Error, ErrorKind, Result};
use dax::ids::{Epoch, NodeName};
use dax::storage::EpochGrant;
use scylla::statement::prepared::PreparedStatement;

use super::Inner;
use super::gate::boot_time;
use super::trace::traced;
use crate::config::Fencing;
use crate::connect::{describe, of_request, unexpected};
use crate::lease::{Answer, Change, Claim, Lease, Next, Row, Sighting, Terms, Time};
use crate::setup::is_applied;

/// How often an owner without a lease looks whether its epoch still stands.
const LOOK_EVERY: Duration = Duration::from_millis(500);

type Columns = (i32, String, i64, i64, bool);

impl Inner {
    /// What the row says, by this statement. Remembered with the time (L5).
    async fn look(&self, statement: &PreparedStatement) -> Result<Sighting> {
        let asked = self.session.execute_unpaged(statement, (self.volume(),));
        let result = traced("look", asked).await;
        let rows = result.map_err(of_request)?.into_rows_result();
        let rows = rows.map_err(unexpected)?;
        let found = rows.maybe_first_row::<Columns>().map_err(unexpected)?;
        let row = found.map(|(epoch, owner, lease_ms, renewals, released)| Row {
            epoch: Epoch(epoch.max(0) as u32),
            owner,
            lease: Duration::from_millis(lease_ms.max(0) as u64),
            renewals: renewals.max(0) as u64,
            released,
        });
        let mut sighting = self.sighting.lock();
        let now = boot_time();
        let seen = match sighting.take() {
            Some(before) => before.again(row, now),
            None => Sighting::new(row, now),
        };
        *sighting = Some(seen.clone());
        Ok(seen)
    }

    /// Tries to change the row.
    async fn change(&self, change: &Change) -> Result<Answer> {
        let Row {
            epoch,
            owner,
            lease,
            renewals,
            released,
        } = &change.new;
        let (epoch, renewals) = (epoch.0 as i32, *renewals as i64);
        let lease_ms = lease.as_millis() as i64;
        let volume = self.volume();
        let sent = match &change.expected {
            None => {
                let values = (volume, epoch, owner, lease_ms, renewals, released);
                let statement = &self.statements.first_claim;
                traced("claim", self.session.execute_unpaged(statement, values)).await
            }
            Some(row) => {
                let (before, count) = (row.epoch.0 as i32, row.renewals as i64);
                let expected = (before, &row.owner, count);
                let values = (
                    epoch, owner, lease_ms, renewals, released, volume, expected.0, expected.1,
                    expected.2,
                );
                let statement = &self.statements.change_epoch;
                traced("change", self.session.execute_unpaged(statement, values)).await
            }
        };
        match sent.map_err(of_request).and_then(is_applied) {
            Ok(true) => Ok(Answer::Applied),
            Ok(false) => {
                let seen = self.look_settled().await?;
                Ok(Answer::Refused(seen.row().cloned()))
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tracing::debug!(
                    why = describe(&error),
                    "the epoch row may have been changed"
                );
                self.note(Some(&error));
                Ok(Answer::Unknown)
            }
            Err(error) => Err(error),
        }
    }

    /// The row after whatever was under way is completed or buried.
    async fn look_settled(&self) -> Result<Sighting> {
        let serial = &self.statements.look_serial;
        self.persist(|| self.look(serial)).await
    }

    /// A higher epoch than the one that is owned here ends it.
    fn judge(&self, row: Option<&Row>) {
        let Some(row) = row else {
            return;
        };
        let (own, me) = {
            let state = self.state.lock();
            (state.writer.handle.epoch(), state.me.clone())
        };
        if own.is_some_and(|own| row.epoch > own || (row.epoch == own && row.owner != me)) {
            self.fence(format!("{} of {} fences this writer", row.epoch, row.owner));
        }
    }

    /// Looks by quorum whether the epoch still stands.
    pub(super) async fn look_at_epoch(&self) -> Result<()> {
        let seen = self.persist(|| self.look(&self.statements.look)).await?;
        self.judge(seen.row());
        Ok(())
    }

    pub(super) async fn accepted_epoch(&self) -> Result<EpochGrant> {
        let seen = self.insist(|| self.look(&self.statements.look)).await?;
        self.judge(seen.row());
        let row = seen.row();
        Ok(EpochGrant {
            epoch: row.map_or(Epoch::NONE, |row| row.epoch),
            owner: row.map_or_else(String::new, |row| row.owner.clone()),
        })
    }

    /// See [`dax::storage::Storage::own_epoch`]. Returns once the predecessor acknowledges nothing any more.
    pub(super) async fn own_epoch(&self, owner: &NodeName) -> Result<Epoch> {
        self.check_fence()?;
        let first = self.look_settled().await?;
        let mut seen = first.clone();
        let lease = loop {
            if is_lost(&first, &seen) {
                return Err(lost_to(&seen));
            }
            match self.claim(owner, &seen).await? {
                Some(lease) => break lease,
                // The owner has renewed its lease meanwhile, or somebody else was faster.
                None => seen = self.look_settled().await?,
            }
        };
        let epoch = lease.epoch();
        let mut state = self.state.lock();
        state.writer.handle.check_fence()?;
        state.writer.handle.adopt(epoch);
        state.me = lease.owner().to_owned();
        self.gate.install(lease);
        Ok(epoch)
    }

    /// One attempt to own the epoch after the one that was seen, under a name of its own.
    async fn claim(&self, owner: &NodeName, seen: &Sighting) -> Result<Option<Lease>> {
        let attempt = self.claims.fetch_add(1, Ordering::Relaxed);
        let name = format!("{owner}/{:016x}-{attempt}", self.incarnation);
        let terms = Terms {
            lease: self.gate.fencing().lease(),
        };
        let Some(mut claim) = Claim::new(terms, seen, name, boot_time()) else {
            return Err(Error::new(ErrorKind::Invalid, "no epochs are left"));
        };
        loop {
            match claim.next(boot_time()) {
                Next::Change(change) => claim.changed(self.change(&change).await?),
                Next::Look => claim.looked(self.look_settled().await?.row().cloned()),
                Next::Wait(until) => sleep_until(until).await,
                Next::Renew(renewal) => {
                    let answer = self.change(&renewal.change).await?;
                    claim.renewed(&answer);
                    if answer == Answer::Unknown {
                        tokio::time::sleep(super::RETRY_MIN).await;
                    }
                }
                Next::Owned => return Ok(claim.into_lease()),
                Next::Lost(_) => return Ok(None),
            }
        }
    }

    /// Renews the lease as long as the epoch stands.
    pub(super) async fn keep_epoch(self: Arc<Self>) {
        loop {
            match self.gate.fencing() {
                Fencing::Lease(_) => match self.gate.renewal_at() {
                    Some(at) => sleep_until(at).await,
                    None => return,
                },
                Fencing::Verify => tokio::time::sleep(LOOK_EVERY).await,
            }
            // Somebody who was promised room may have gone away.
            self.state.lock().wake();
            let kept = match self.gate.fencing() {
                Fencing::Lease(_) => self.renew().await,
                Fencing::Verify => self.look_at_epoch().await,
            };
            if let Err(error) = kept {
                if error.is_fenced() || *self.closed.borrow() {
                    return;
                }
                tracing::warn!(why = describe(&error), "the lease is not renewed");
                tokio::time::sleep(super::RETRY_MAX).await;
            }
        }
    }

    async fn renew(&self) -> Result<()> {
        let Some(renewal) = self.gate.begin_renewal(boot_time()) else {
            return Ok(());
        };
        let answer = self.change(&renewal.change).await?;
        self.gate.renewed(&renewal, &answer);
        match answer {
            Answer::Applied => self.note(None),
            Answer::Refused(row) if self.gate.is_shut_for_good() => {
                let owner = row.map_or("nobody".to_owned(), |row| row.owner);
                self.fence(format!("the volume belongs to {owner} by now"));
            }
            Answer::Refused(_) => {}
            Answer::Unknown => tokio::time::sleep(super::RETRY_MIN).await,
        }
        Ok(())
    }

    /// Gives the epoch up (L4): nothing is acknowledged from here on.
    pub(super) async fn release(&self) -> Result<()> {
        let epoch = self.check_writer()?;
        let change = self.gate.release();
        self.fence(format!("this writer has given {epoch} up"));
        let Some(mut change) = change else {
            return Ok(());
        };
        loop {
            let Some(row) = change.expected.clone() else {
                return Ok(());
            };
            // The fence does not end this: it is the last thing that is done under the epoch.
            let found = match self.change_unfenced(&change).await? {
                true => return Ok(()),
                false => {
                    self.insist(|| self.look(&self.statements.look_serial))
                        .await?
                }
            };
            match found.row() {
                Some(now) if now.owner == row.owner && now.renewals != row.renewals => {
                    change.expected = Some(now.clone());
                    change.new.renewals = now.renewals;
                }
                _ => return Ok(()),
            }
        }
    }

    async fn change_unfenced(&self, change: &Change) -> Result<bool> {
        self.insist(|| async {
            match self.change(change).await {
                Ok(Answer::Applied) => Ok(true),
                Ok(Answer::Refused(_)) => Ok(false),
                Ok(Answer::Unknown) => {
                    let what = "the epoch may have been released";
                    Err(Error::new(ErrorKind::Unavailable, what))
                }
                // It was not applied; this handle is fenced and so does not look itself.
                Err(error) if error.is_fenced() => Ok(false),
                Err(error) => Err(error),
            }
        })
        .await
    }
}

async fn sleep_until(until: Time) {
    while let Some(left) = until
        .checked_sub(boot_time())
        .filter(|left| !left.is_zero())
    {
        tokio::time::sleep(left).await;
    }
}

fn epoch_of(seen: &Sighting) -> Epoch {
    seen.row().map_or(Epoch::NONE, |row| row.epoch)
}

/// Whether somebody else was faster: owns a higher epoch than the one that was seen first, or has completed
/// the claim that was under way then.
fn is_lost(first: &Sighting, seen: &Sighting) -> bool {
    let claim = first.row().filter(|row| row.is_claim());
    epoch_of(seen) > epoch_of(first) || claim.is_some() && claim != seen.row()
}

fn lost_to(seen: &Sighting) -> Error {
    let owner = seen.row().map_or("nobody", |row| &row.owner);
    let why = format!("{owner} owns {} by now", epoch_of(seen));
    Error::new(ErrorKind::Conflict, why)
}
