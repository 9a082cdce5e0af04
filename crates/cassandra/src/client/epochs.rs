//! Owning an epoch, keeping it and giving it up: the only lightweight transactions (C3, L1 to L5, L7).
//!
//! [`crate::lease`] decides; this sends its changes and tells it the answers and the time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dax::error::{Error, ErrorKind, Result, describe};
use dax::ids::{Epoch, NodeName};
use dax::storage::EpochGrant;

use super::Inner;
use super::environment::Look;
use crate::config::Fencing;
use crate::lease::{Answer, Change, Claim, Lease, Next, Renewal, Row, Sighting, Terms, Time};

/// How often an owner without a lease looks whether its epoch still stands.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl Inner {
    /// What the row says. Remembered with the time (L5).
    async fn look(&self, how: Look) -> Result<Sighting> {
        let row = self.environment.look(how).await?;
        let mut sighting = self.sighting.lock();
        let now = self.environment.boot_time();
        let seen = match sighting.take() {
            Some(before) => before.again(row, now),
            None => Sighting::new(row, now),
        };
        *sighting = Some(seen.clone());
        Ok(seen)
    }

    /// Tries to change the row.
    async fn change(&self, change: &Change) -> Result<Answer> {
        match self.environment.change(change).await {
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
        self.persist(|| self.look(Look::Settled)).await
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
        let seen = self.persist(|| self.look(Look::Quorum)).await?;
        self.judge(seen.row());
        Ok(())
    }

    pub(super) async fn accepted_epoch(&self) -> Result<EpochGrant> {
        let seen = self.insist(|| self.look(Look::Quorum)).await?;
        self.judge(seen.row());
        let row = seen.row();
        Ok(EpochGrant {
            epoch: row.map_or(self.unowned(), |row| row.epoch),
            owner: row.map_or_else(String::new, |row| row.owner.clone()),
        })
    }

    /// The epoch below the first one of this volume, which is above all of the volumes below.
    fn unowned(&self) -> Epoch {
        #[cfg(test)]
        if self.has_flaw(crate::simulation::Flaw::FirstEpochIgnored) {
            return Epoch::NONE;
        }
        self.settings.unowned()
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
            unowned: self.unowned(),
        };
        let mut now = self.environment.boot_time();
        let Some(mut claim) = Claim::new(terms, seen, name, now) else {
            return Err(Error::new(ErrorKind::Invalid, "no epochs are left"));
        };
        loop {
            match claim.next(now) {
                Next::Change(change) => claim.changed(self.change(&change).await?),
                Next::Look => claim.looked(self.look_settled().await?.row().cloned()),
                Next::Wait(until) => {
                    now = self.wait_out(until).await;
                    continue;
                }
                Next::Renew(renewal) => {
                    let answer = self.change(&renewal.change).await?;
                    claim.renewed(&answer);
                    if answer == Answer::Unknown {
                        self.environment.sleep(super::RETRY_MIN).await;
                    }
                }
                Next::Owned => return Ok(claim.into_lease()),
                Next::Lost(_) => return Ok(None),
            }
            now = self.environment.boot_time();
        }
    }

    /// Waits until nobody else has a lease; the time then.
    async fn wait_out(&self, until: Time) -> Time {
        #[cfg(test)]
        if let Some(early) = self.flaw.and_then(|flaw| flaw.wait_ends(until)) {
            self.sleep_until(early).await;
            return until;
        }
        self.sleep_until(until).await;
        self.environment.boot_time()
    }

    async fn sleep_until(&self, until: Time) {
        while let Some(left) = until
            .checked_sub(self.environment.boot_time())
            .filter(|left| !left.is_zero())
        {
            self.environment.sleep(left).await;
        }
    }

    /// Renews the lease as long as the epoch stands.
    pub(super) async fn keep_epoch(self: Arc<Self>) {
        loop {
            match self.gate.fencing() {
                Fencing::Lease(_) => match self.gate.renewal_at() {
                    Some(at) => self.sleep_until(at).await,
                    None => return,
                },
                Fencing::Verify => self.environment.sleep(LOOK_EVERY).await,
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
                self.environment.sleep(super::RETRY_MAX).await;
            }
        }
    }

    async fn renew(&self) -> Result<()> {
        let Some(renewal) = self.begin_renewal() else {
            return Ok(());
        };
        let answer = self.change(&renewal.change).await?;
        #[cfg(test)]
        let renewal = self.renewal_as_if(renewal);
        self.gate.renewed(&renewal, &answer);
        match answer {
            Answer::Applied => self.note(None),
            Answer::Refused(row) if self.is_shut_for_good() => {
                let owner = row.map_or("nobody".to_owned(), |row| row.owner);
                self.fence(format!("the volume belongs to {owner} now"));
            }
            Answer::Refused(_) => {}
            Answer::Unknown => self.environment.sleep(super::RETRY_MIN).await,
        }
        Ok(())
    }

    /// The lease counts from now, before anything is sent (L1).
    fn begin_renewal(&self) -> Option<Renewal> {
        self.gate.begin_renewal(self.environment.boot_time())
    }

    fn is_shut_for_good(&self) -> bool {
        self.gate.is_shut_for_good(self.environment.boot_time())
    }

    /// One of the flaws: the lease counts from the answer.
    #[cfg(test)]
    fn renewal_as_if(&self, renewal: Renewal) -> Renewal {
        match self.has_flaw(crate::simulation::Flaw::LeaseFromAnswer) {
            true => self.begin_renewal().unwrap_or(renewal),
            false => renewal,
        }
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
                false => self.insist(|| self.look(Look::Settled)).await?,
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

fn epoch_of(seen: &Sighting) -> Epoch {
    seen.row().map_or(Epoch::NONE, |row| row.epoch)
}

/// True if somebody else was faster: owns a higher epoch than the one that was seen first, or has completed
/// the claim that was under way then.
fn is_lost(first: &Sighting, seen: &Sighting) -> bool {
    let claim = first.row().filter(|row| row.is_claim());
    epoch_of(seen) > epoch_of(first) || claim.is_some() && claim != seen.row()
}

fn lost_to(seen: &Sighting) -> Error {
    let owner = seen.row().map_or("nobody", |row| &row.owner);
    let why = format!("{owner} owns {} now", epoch_of(seen));
    Error::new(ErrorKind::Conflict, why)
}
