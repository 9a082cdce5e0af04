//! A standby's claim: as long as it is valid, the zones keep the blocks that the standby reads.
//!
//! A released block reads as one that was never written: as zeros. So a standby that was suspended, or could not reach
//! the zones, must not use their answers before it has checked that its claim is still valid. [`Standing`] is the rule
//! (pure, with the time passed in). [`ClaimWatch`] reads the claim in the registry, by the [`Hold`] of its attach. Such
//! a read is a *look*.
//!
//! ```text
//!               a look at the claim that began at t: it is valid
//!   ┌──────────────────────────────────────────────────────────────────┐
//!   ▼                                                                  │
//! confirmed (t) ── VALID_FOR since t ──▶ in doubt: reads wait ── look ──┤
//!   │                                                                  │ it is revoked
//!   └──────────────────── a look: it is revoked ─────────────▶ lost ◀──┘   (final)
//! ```
//!
//! Why it holds: a claim is revoked before its blocks are released, and they stay for another [`GRACE`]. A look that
//! began at t and found no revocation began before the revocation was durable, so no block was released before
//! t + [`GRACE`]. Blocks that arrived until then were still there when they were read. [`VALID_FOR`] is much shorter,
//! because clocks may run at different speeds.
//!
//! Invariant: an answer that arrived later than that is used only after a look that began after it arrived. The same
//! holds for every answer that a block is absent, however recent the last look is: a released block looks absent, absence
//! is rare, and the clock of a machine that was paused as a whole may have stood still.

use std::sync::Arc;
use std::time::Duration;

use dax::ids::NodeName;
use dax::storage::Storage;
use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::hold::Hold;
use crate::claim::{Claim, GRACE, VALID_FOR};
use crate::error::{Error, Result};

const _: () = assert!(GRACE.as_millis() >= 2 * VALID_FOR.as_millis());

/// Moment at which an answer arrived, or a look began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moment {
    /// Time by a clock that also advances while the machine is suspended.
    at: Duration,
    /// Looks that had begun by then.
    looks: u64,
}

/// What is known of the claim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Standing {
    /// Looks that have begun.
    looks: u64,
    /// Beginning of the last look that found the claim valid.
    confirmed: Option<Moment>,
    lost: bool,
}

/// Judgement of an answer of the zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The claim was valid when the answer was read.
    Sound,
    /// A look that begins now decides.
    InDoubt,
    /// The claim is lost, so the answer may be of a released block.
    Lost,
}

impl Standing {
    /// Moment of an answer that arrives now.
    fn arrival(&self, at: Duration) -> Moment {
        let looks = self.looks;
        Moment { at, looks }
    }

    /// A look begins.
    fn look(&mut self, at: Duration) -> Moment {
        self.looks += 1;
        self.arrival(at)
    }

    /// Notes the result of the look that began at `began`.
    fn looked(&mut self, began: Moment, stands: bool) {
        self.lost |= !stands;
        let is_later = |last: Moment| last.looks < began.looks;
        if stands && self.confirmed.is_none_or(is_later) {
            self.confirmed = Some(began);
        }
    }

    /// Judges an answer: a block that was found, or the absence of a block.
    fn judge(&self, found: bool, arrived: Moment) -> Verdict {
        let is_sound = |confirmed: Moment| match found {
            true => arrived.at < confirmed.at + VALID_FOR,
            false => arrived.looks < confirmed.looks,
        };
        match self.confirmed {
            _ if self.lost => Verdict::Lost,
            Some(confirmed) if is_sound(confirmed) => Verdict::Sound,
            _ => Verdict::InDoubt,
        }
    }
}

/// Clock for [`Standing`].
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Registers and watches the claim of a standby. Clones share one watch.
#[derive(Clone)]
pub struct ClaimWatch {
    hold: Hold,
    clock: Clock,
    standing: Arc<Mutex<Standing>>,
    /// Held during a look, so that all who wait share its result.
    looking: Arc<tokio::sync::Mutex<()>>,
    lost: watch::Sender<bool>,
}

impl ClaimWatch {
    /// Begins an attach of this node: claims everything, in place of any earlier claim, even a revoked one.
    pub async fn begin(storage: &Arc<dyn Storage>, node: NodeName) -> Result<ClaimWatch> {
        ClaimWatch::begin_by(storage, node, Arc::new(since_boot)).await
    }

    /// As [`ClaimWatch::begin`], with another clock for tests.
    pub async fn begin_by(
        storage: &Arc<dyn Storage>,
        node: NodeName,
        clock: Clock,
    ) -> Result<ClaimWatch> {
        Ok(ClaimWatch {
            hold: Hold::begin(storage, node, Arc::clone(&clock)).await?,
            clock,
            standing: Arc::default(),
            looking: Arc::default(),
            lost: watch::Sender::new(false),
        })
    }

    /// Registers `claim` in place of the last one. Returns false if that one was revoked: then no block that `claim` names
    /// can be relied on.
    pub async fn change(&self, storage: &Arc<dyn Storage>, claim: &Claim) -> Result<bool> {
        self.hold.change(storage, claim).await
    }

    /// Releases the claim, by which nothing is read any more.
    pub async fn release(&self, storage: &Arc<dyn Storage>) -> Result<()> {
        self.hold.release(storage).await
    }

    /// Looks whether the claim is valid, for all who wait for that.
    ///
    /// # Errors
    /// Those of the registry. The validity is then not known.
    pub async fn look(&self, storage: &Arc<dyn Storage>) -> Result<bool> {
        let began = self.standing.lock().look((self.clock)());
        let stands = self.hold.stands(storage).await?;
        self.standing.lock().looked(began, stands);
        if !stands {
            self.lost.send_replace(true);
        }
        Ok(stands)
    }

    /// Returns when the answer that has just arrived is known to be sound. If it is in doubt, waits for a look at the
    /// claim. `found` is false if the answer is that the block is absent.
    ///
    /// # Errors
    /// [`Error::ClaimLost`]; those of the registry.
    pub async fn vouch(&self, storage: &Arc<dyn Storage>, found: bool) -> Result<()> {
        let arrived = self.standing.lock().arrival((self.clock)());
        loop {
            if self.settled(found, arrived)? {
                return Ok(());
            }
            let _one = self.looking.lock().await;
            // The look of another task may have begun late enough.
            if self.settled(found, arrived)? {
                return Ok(());
            }
            self.look(storage).await?;
        }
    }

    fn settled(&self, found: bool, arrived: Moment) -> Result<bool> {
        match self.standing.lock().judge(found, arrived) {
            Verdict::Sound => Ok(true),
            Verdict::InDoubt => Ok(false),
            Verdict::Lost => Err(Error::ClaimLost),
        }
    }

    /// True if a look has found the claim revoked.
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Returns when a look has found the claim revoked.
    pub async fn lost(&self) {
        let mut lost = self.lost.subscribe();
        // The sender is `self`.
        let _ = lost.wait_for(|lost| *lost).await;
    }
}

/// Time since the machine started, with the time that it was suspended.
fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME);
    now.expect("Linux has this clock since 2.6.39").into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use dax::memory::MemoryCluster;
    use dax::storage::VolumeSettings;

    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn judge(standing: &Standing, found: bool, arrived: u64) -> Verdict {
        standing.judge(found, standing.arrival(at(arrived)))
    }

    #[test]
    fn answers_long_after_the_last_look_are_in_doubt_until_a_later_one() {
        let mut standing = Standing::default();
        assert_eq!(judge(&standing, true, 0), Verdict::InDoubt);
        let (early, began) = (standing.look(at(90)), standing.look(at(100)));
        standing.looked(began, true);
        let end = 100 + VALID_FOR.as_secs();
        // Also what arrived before the look, which found that nothing had been given back yet.
        for arrived in [1, 100, end - 1] {
            assert_eq!(judge(&standing, true, arrived), Verdict::Sound);
        }
        for arrived in [end, 700] {
            assert_eq!(judge(&standing, true, arrived), Verdict::InDoubt);
        }
        // The answer to an earlier look comes last.
        standing.looked(early, true);
        assert_eq!(judge(&standing, true, end - 1), Verdict::Sound);
        let began = standing.look(at(700));
        standing.looked(began, true);
        assert_eq!(judge(&standing, true, 700), Verdict::Sound);
    }

    #[test]
    fn absence_of_a_block_needs_a_look_that_began_later_whatever_the_clock_says() {
        let mut standing = Standing::default();
        let under_way = standing.look(at(100));
        let arrived = standing.arrival(at(100));
        standing.looked(under_way, true);
        assert_eq!(standing.judge(false, arrived), Verdict::InDoubt);
        let later = standing.look(at(100));
        standing.looked(later, true);
        assert_eq!(standing.judge(false, arrived), Verdict::Sound);
    }

    #[test]
    fn a_claim_that_is_lost_stays_lost() {
        let mut standing = Standing::default();
        for stands in [true, false, true] {
            let began = standing.look(at(100));
            standing.looked(began, stands);
        }
        assert_eq!(judge(&standing, true, 100), Verdict::Lost);
    }

    #[tokio::test]
    async fn a_read_in_doubt_waits_for_a_look_and_fails_when_the_claim_is_gone() {
        let storage: Arc<dyn Storage> = MemoryCluster::new(VolumeSettings::default()).client();
        let node = NodeName::new("south").unwrap();
        let seconds = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&seconds);
        let clock = Arc::new(move || at(clock.load(Ordering::Relaxed)));
        let watch = ClaimWatch::begin_by(&storage, node.clone(), clock);
        let watch = watch.await.unwrap();
        watch.vouch(&storage, true).await.unwrap();
        Claim::revoke(&storage, &node).await.unwrap();
        // What it names is kept for a while yet.
        watch.vouch(&storage, true).await.unwrap();
        seconds.store(GRACE.as_secs(), Ordering::Relaxed);
        assert!(!watch.is_lost());
        let late = watch.vouch(&storage, true).await;
        assert!(matches!(late, Err(Error::ClaimLost)));
        watch.lost().await;
        assert!(watch.is_lost());
    }

    #[tokio::test]
    async fn reads_share_a_look_and_the_absence_of_a_block_has_its_own() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let storage: Arc<dyn Storage> = cluster.client();
        let node = NodeName::new("south").unwrap();
        let watch = ClaimWatch::begin_by(&storage, node, Arc::new(Duration::default));
        let watch = watch.await.unwrap();
        for found in [true, true, false, true, false] {
            watch.vouch(&storage, found).await.unwrap();
        }
        assert_eq!(watch.standing.lock().looks, 3);
    }
}
