//! Moves the base of a running standby from seal to seal, as long as it lives.
//!
//! [`steps`] decides, pure; this drives it: background work, one piece at a time, and the move itself.
//! The follower feeds it with what happens, holds the log while it settles, and stops it before
//! anything else becomes of the standby.
//!
//! Invariants: the claim names every image that is read, from before it is read until after; a change
//! of the claim is never left under way, because it could land behind whatever comes next.

pub(super) mod claiming;
mod steps;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dax::ids::{Epoch, Generation, NodeName};
use dax::storage::Storage;
use pgdata::control::{Capacity, ControlFile};
use pgdata::layout::CONTROL_FILE;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use volume::claim::{Claim, Token};
use volume::journal::JournalPos;
use volume::lsn::Lsn;
use volume::seal::{self, Base, Seal};
use volume::standby::{MovePlan, StandbyView};

use self::claiming::Claimed;
use self::steps::{Effect, Input, Steps};
use super::error::Result;

/// Bases that may be in use at once. Files that redo leaves alone, and that a later base does not have,
/// are read as in the base that they were in; so that they keep no more and more of old images, the
/// standby then begins anew.
const BASES_MAX: usize = 16;

/// What the follower must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// Ask PostgreSQL how far redo is.
    Progress,
    /// The base moved: what redo comes to next may have to be read ahead once more.
    ReadAhead,
    /// Show the log that came while it was held.
    Release,
    /// Drop this standby and attach again.
    AttachAfresh,
}

/// Work that is under way.
enum Work {
    Look(JoinHandle<Result<Vec<Seal>>>),
    /// Changes the claim: never left alone.
    Claim(JoinHandle<Result<Claimed>>),
    Load(JoinHandle<Result<Base>>),
    Plan(JoinHandle<Result<MovePlan>>),
    Narrow(JoinHandle<Result<Claimed>>),
}

/// What it led to.
pub(super) enum Done {
    Looked(Result<Vec<Seal>>),
    Claimed(Result<Claimed>),
    Loaded(Result<Base>),
    Planned(Result<MovePlan>),
    Narrowed(Result<Claimed>),
}

pub(super) struct BaseMover {
    view: Arc<StandbyView>,
    storage: Arc<dyn Storage>,
    me: NodeName,
    epoch: Epoch,
    steps: Steps,
    work: Option<Work>,
    /// The seal to move to, from when it is chosen until the base is there.
    target: Option<Seal>,
    loaded: Option<Base>,
    plan: Option<MovePlan>,
    /// The claim as registered; unknown while it changes, and after a failure.
    registered: Option<Claim>,
    /// Where redo of the private control file starts.
    private_redo: Lsn,
    /// What this PostgreSQL was started with.
    capacity: Capacity,
    /// How far the live namespace is.
    followed: JournalPos,
    /// Since when redo may have been at rest for want of log.
    held_since: Option<Instant>,
    moves: u64,
    last_pause: Option<Duration>,
}

impl BaseMover {
    /// For a standby that has just attached, and follows the active of `epoch`.
    pub(super) fn new(
        view: Arc<StandbyView>,
        storage: Arc<dyn Storage>,
        me: NodeName,
        epoch: Epoch,
        capacity: Capacity,
        now: Duration,
    ) -> BaseMover {
        let base = view.base_seal();
        BaseMover {
            view,
            storage,
            me,
            epoch,
            steps: Steps::new(base.generation, now),
            work: None,
            target: None,
            loaded: None,
            plan: None,
            registered: None,
            private_redo: base.redo,
            capacity,
            followed: base.journal,
            held_since: None,
            moves: 0,
            last_pause: None,
        }
    }

    /// True if no more log may be shown.
    pub(super) fn is_holding(&self) -> bool {
        self.steps.is_holding()
    }

    /// When [`passed`](Self::passed) is due, if nothing happens before.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.steps.wake_at()
    }

    /// The active tells that a generation was sealed.
    pub(super) fn sealed(&mut self, generation: Generation, now: Duration) -> Vec<Ask> {
        self.feed(Input::Sealed(generation), now)
    }

    /// How far redo is.
    pub(super) fn progressed(&mut self, applied: Lsn, now: Duration) -> Vec<Ask> {
        let asks = self.feed(Input::Progress(applied), now);
        if self.steps.is_holding() {
            // Redo was on its way until now.
            self.held_since = Some(Instant::now());
        }
        asks
    }

    /// Time passed.
    pub(super) fn passed(&mut self, now: Duration) -> Vec<Ask> {
        self.feed(Input::Time, now)
    }

    /// Lets the claim follow what is used; called now and then. The live namespace is followed to
    /// `followed`. Also finds out whether redo has met larger settings than this PostgreSQL was started
    /// with: it stands still then, and could not be promoted (N12).
    pub(super) fn check_claim(&mut self, followed: JournalPos, now: Duration) -> Vec<Ask> {
        self.followed = followed;
        if let Some(control) = self.read_private_control() {
            self.private_redo = self.private_redo.max(control.redo);
            if !self.capacity.covers(control.capacity) {
                tracing::info!(
                    needed = ?control.capacity,
                    "the active has larger settings than this standby, which redo waits for: reattaching"
                );
                return vec![Ask::AttachAfresh];
            }
        }
        let bases = self.view.bases_in_use().len();
        if bases > BASES_MAX {
            tracing::info!(bases, "too many old bases are still read: reattaching");
            return vec![Ask::AttachAfresh];
        }
        match self.registered.as_ref() == Some(&self.wanted(None)) {
            true => Vec::new(),
            false => self.feed(Input::Stale, now),
        }
    }

    /// Waits for the work under way and goes on with what it led to; for ever if there is none.
    pub(super) async fn work(&mut self) -> Done {
        let Some(work) = &mut self.work else {
            return std::future::pending().await;
        };
        let done = work.done().await;
        self.work = None;
        done
    }

    /// Work is done.
    pub(super) fn done(&mut self, done: Done, now: Duration) -> Vec<Ask> {
        let input = match done {
            Done::Looked(found) => found.map(|seals| self.found(seals)),
            Done::Claimed(claimed) => claimed.map(|claimed| self.claimed(claimed)),
            Done::Loaded(base) => base.map(|base| {
                self.loaded = Some(base);
                Input::Loaded
            }),
            Done::Planned(plan) => plan.map(|plan| {
                self.plan = Some(plan);
                Input::Planned
            }),
            Done::Narrowed(claimed) => claimed.map(|claimed| match self.claimed(claimed) {
                Input::Claimed => Input::Narrowed,
                other => other,
            }),
        };
        let input = input.unwrap_or_else(|error| {
            tracing::info!(%error, "the base does not move yet; trying again");
            Input::Failed
        });
        self.feed(input, now)
    }

    /// Chooses the newest seal of this epoch.
    fn found(&mut self, seals: Vec<Seal>) -> Input {
        let base = self.view.base_seal();
        let newest = seals.into_iter().rev();
        let mut ours = newest.filter(|seal| seal.generation.epoch == self.epoch);
        match ours.next() {
            Some(seal) if seal.generation <= base.generation => Input::NothingNew,
            None => Input::NothingNew,
            Some(seal) if !seal.continues(&base) => {
                tracing::info!(
                    base = %base.generation,
                    sealed = %seal.generation,
                    "the active continued from an older seal than this standby's base: reattaching"
                );
                Input::OtherLine
            }
            Some(seal) => {
                let end = seal.end;
                self.target = Some(seal);
                Input::Newer(end)
            }
        }
    }

    fn claimed(&mut self, claimed: Claimed) -> Input {
        match claimed {
            Claimed::Kept(claim) => {
                self.registered = Some(claim);
                Input::Claimed
            }
            Claimed::Gone => Input::Gone,
            Claimed::Lost => Input::ClaimLost,
        }
    }

    fn feed(&mut self, input: Input, now: Duration) -> Vec<Ask> {
        let mut asks = Vec::new();
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for effect in self.steps.on(input, self.view.replay_limit(), now) {
                match effect {
                    Effect::Move => {
                        inputs.push(self.move_now());
                        asks.push(Ask::ReadAhead);
                    }
                    Effect::Ask => asks.push(Ask::Progress),
                    Effect::Release => asks.push(self.release()),
                    Effect::AttachAfresh => asks.push(Ask::AttachAfresh),
                    Effect::Hold => self.held_since = Some(Instant::now()),
                    Effect::Look | Effect::Claim | Effect::Load | Effect::Plan | Effect::Narrow => {
                        self.work = self.begin(effect);
                    }
                }
            }
        }
        asks
    }

    fn begin(&mut self, effect: Effect) -> Option<Work> {
        let storage = Arc::clone(&self.storage);
        let view = Arc::clone(&self.view);
        Some(match effect {
            Effect::Look => {
                (self.target, self.loaded, self.plan) = (None, None, None);
                Work::Look(tokio::spawn(async move {
                    Ok(seal::load_seals(&storage).await?)
                }))
            }
            Effect::Claim => {
                self.registered = None;
                let target = self.target.as_ref()?;
                let (claim, needed) = (self.wanted(Some(target)), target.generation);
                let watch = view.claim()?.clone();
                Work::Claim(tokio::spawn(claiming::claim(
                    storage,
                    watch,
                    claim,
                    Some(needed),
                )))
            }
            Effect::Load => {
                let target = self.target.clone()?;
                Work::Load(tokio::spawn(
                    async move { Ok(view.load_next(&target).await?) },
                ))
            }
            Effect::Plan => {
                let base = self.loaded.take()?;
                Work::Plan(tokio::spawn(async move { Ok(view.plan_move(base).await?) }))
            }
            Effect::Narrow => {
                self.registered = None;
                let claim = self.wanted(None);
                let watch = view.claim()?.clone();
                Work::Narrow(tokio::spawn(claiming::claim(storage, watch, claim, None)))
            }
            _ => return None,
        })
    }

    fn release(&mut self) -> Ask {
        if self.held_since.take().is_some() {
            tracing::debug!("redo did not come to rest; the base moves later");
        }
        Ask::Release
    }

    /// Moves: redo is at rest.
    fn move_now(&mut self) -> Input {
        let Some(plan) = self.plan.take() else {
            return Input::Failed;
        };
        let generation = plan.seal().generation;
        match self.view.move_base(plan) {
            Ok(true) => {}
            Ok(false) => return Input::Failed,
            Err(error) => {
                tracing::warn!(%error, "the base could not move");
                return Input::Failed;
            }
        }
        let pause = self
            .held_since
            .take()
            .map_or(Duration::ZERO, |at| at.elapsed());
        self.moves += 1;
        self.last_pause = Some(pause);
        tracing::debug!(%generation, pause_ms = milliseconds(pause), "moved to a newer base");
        Input::Moved(generation)
    }

    /// What is read now and, besides, of `next`.
    fn wanted(&self, next: Option<&Seal>) -> Claim {
        let base = self.view.base_seal();
        let mut seals = self.view.bases_in_use();
        seals.extend(next.cloned());
        let journals = seals.iter().map(|seal| seal.journal);
        let journal = journals.fold(self.followed.min(base.journal), JournalPos::min);
        Claim {
            node: self.me.clone(),
            images: seals.into_iter().map(|seal| seal.lineage).collect(),
            journal,
            // Files kept from older bases need no log: redo does not start from there again.
            log_from: base.redo.min(self.private_redo),
            everything: false,
            token: Token::default(),
        }
    }

    /// The control file that this PostgreSQL keeps for itself, if it can be read just now.
    fn read_private_control(&self) -> Option<ControlFile> {
        let place = self.view.private().place(CONTROL_FILE).ok()?;
        ControlFile::parse(&std::fs::read(place).ok()?).ok()
    }

    /// For the node's status.
    pub(super) fn report(&self) -> Value {
        let base = self.view.base_seal();
        json!({
            "generation": base.generation,
            "redo": base.redo,
            "end": base.end,
            "moves": self.moves,
            "last_pause_ms": self.last_pause.map(milliseconds),
        })
    }

    /// Ends whatever is under way. When this returns nothing of it changes the claim any more. Only an agent
    /// that ends may leave it before: a claim that lands later is given back, as any that nobody uses.
    pub(super) async fn stop(mut self) {
        match self.work.take() {
            Some(mut work @ (Work::Claim(_) | Work::Narrow(_))) => drop(work.done().await),
            Some(Work::Look(work)) => work.abort(),
            Some(Work::Load(work)) => work.abort(),
            Some(Work::Plan(work)) => work.abort(),
            None => {}
        }
    }
}

impl Work {
    async fn done(&mut self) -> Done {
        const SOUND: &str = "the work neither panics nor is cancelled while somebody waits for it";
        match self {
            Work::Look(work) => Done::Looked(work.await.expect(SOUND)),
            Work::Claim(work) => Done::Claimed(work.await.expect(SOUND)),
            Work::Load(work) => Done::Loaded(work.await.expect(SOUND)),
            Work::Plan(work) => Done::Planned(work.await.expect(SOUND)),
            Work::Narrow(work) => Done::Narrowed(work.await.expect(SOUND)),
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    // Two digits are enough for people.
    (time.as_secs_f64() * 1e5).round() / 100.0
}
