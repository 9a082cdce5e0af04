//! A standby's life: it follows the log, says how far it is, and tells the machine
//! ([`crate::machine`]) all that bears on a takeover, until that decides on something else.
//!
//! Triggers over the direct channel move the horizon; the heartbeat record repeats what they say,
//! so a standby without a channel follows as well, only later. Meanwhile the base moves from seal to
//! seal ([`super::moving`]), for which the log is held for moments. Nothing it does is shared, except
//! its claim and its node record.

mod verdict;

use std::sync::Arc;
use std::time::Duration;

use dax::ids::{Epoch, Generation, NodeName};
use dax::storage::Storage;
use pgdata::feed::Feedback;
use pgdata::timeline::TimelineId;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use volume::claim::Claim;
use volume::journal::JournalPos;
use volume::lsn::Lsn;
use volume::namespace::Namespace;
use volume::seal::{self, Seal};

use super::candidates::Candidates;
use super::context::Context;
use super::error::Result;
use super::inquiry::Inquiry;
use super::life::Sight;
use super::moving::{Ask, BaseMover};
use super::prefetch::Prefetcher;
use super::slow::Lag;
use super::standby::{self, Known, Standby};
use super::status::Order;
use super::warmth::{self, Warmer};
use crate::address::Address;
use crate::channel::{self, ClientEvent, Notice, Progress, Subscription};
use crate::detector::{Beat, Detector, Hint};
use crate::machine::Event;
use crate::records::{ActiveState, Heartbeat, Lsns, Member, OldActive, Record, probe_writes};

/// How often PostgreSQL is asked how far it is.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// How often the registry is looked at while a better standby should be taking over.
const POLL_WAITING: Duration = Duration::from_millis(100);
/// A standby this close to the horizon is warm.
const WARM_LAG_BYTES: u64 = 16 << 20;

/// A look into the registry, started at some time.
type Poll = tokio::task::JoinHandle<Result<Polled>>;

/// What a standby looks for in the registry.
struct Polled {
    heartbeat: Option<Heartbeat>,
    /// Whether this standby's claim stands.
    claimed: bool,
}

/// Looks; a standby in doubt first has a write answered, because reads may be quick where writes, and so
/// the active's beats, are not.
async fn poll_registry(storage: Arc<dyn Storage>, me: NodeName, in_doubt: bool) -> Result<Polled> {
    if in_doubt {
        probe_writes(storage.as_ref(), &me).await?;
    }
    let records = read_records(&storage, &me);
    let (polled, ()) = tokio::try_join!(records, watch_lease(&*storage))?;
    Ok(polled)
}

async fn read_records(storage: &Arc<dyn Storage>, me: &NodeName) -> Result<Polled> {
    Ok(Polled {
        heartbeat: Heartbeat::load(storage.as_ref()).await?,
        claimed: Claim::stands(storage, me).await?,
    })
}

/// Who has seen the active's last renewal knows when its lease ends, and waits no longer.
async fn watch_lease(storage: &dyn Storage) -> Result<()> {
    if storage.is_leased() {
        storage.accepted_epoch().await?;
    }
    Ok(())
}

/// What following one active led to.
pub(crate) struct Ended {
    /// What was known of the active, for a takeover's record.
    pub sight: Sight,
    /// How far the shared log is known to go.
    pub known: Known,
    /// Why it failed, if it did.
    pub ended: Result<()>,
}

/// Follows one active.
pub(crate) struct Follower<'a> {
    context: &'a Context,
    standby: &'a mut Standby,
    epoch: Epoch,
    active: NodeName,
    detector: Detector,
    candidates: Candidates,
    known: Known,
    applied: Lsn,
    mover: BaseMover,
    lag: Lag,
    /// A look at the seals, while the lag is too large.
    looking: Option<tokio::task::JoinHandle<volume::error::Result<Vec<Seal>>>>,
    /// More log is known than is shown, because it was held.
    behind: bool,
    /// The active has been seen to serve.
    serves: bool,
    /// Whether the active was serving when its PostgreSQL's capacity was looked at last: it does not
    /// change any more then, before another start.
    capacity_known: bool,
    /// How often the active's PostgreSQL was started again in this epoch.
    starts: u32,
    /// The version of the control record whose parameters this server has read.
    configured: u64,
    /// PostgreSQL shall read its files again when the journal was followed to here.
    reload_at: Option<JournalPos>,
    /// What the detector goes by.
    timings: crate::config::Heartbeat,
    /// An operator wants it to begin anew, without what it has in memory.
    forgets: bool,
    /// Somebody owns a higher epoch: this one is over.
    is_over: bool,
    _inquiry: Inquiry,
    /// When the active last showed a sign of life, for the takeover's record.
    seen_at: Duration,
    /// The last heartbeat, for the same.
    beat: Heartbeat,
    attached_at: Generation,
    warmth: warmth::Told,
}

impl<'a> Follower<'a> {
    /// Follows the owner of the heartbeat that was read last.
    pub(crate) fn new(
        context: &'a Context,
        standby: &'a mut Standby,
        heartbeat: &Heartbeat,
        known: Known,
    ) -> Follower<'a> {
        let now = context.now();
        let timings = heartbeat.patience(context.heartbeat());
        let mover = BaseMover::new(
            Arc::clone(&standby.view),
            Arc::clone(&standby.storage),
            context.me.node.clone(),
            heartbeat.epoch,
            standby.capacity,
            now,
        );
        Follower {
            mover,
            lag: Lag::new(context.config.standby, now),
            looking: None,
            behind: false,
            serves: heartbeat.state == ActiveState::Serving,
            capacity_known: false,
            starts: heartbeat.starts,
            configured: heartbeat.configured,
            reload_at: None,
            timings,
            forgets: false,
            is_over: false,
            _inquiry: Inquiry::start(context, &standby.postgres),
            detector: Detector::new(timings, now),
            candidates: Candidates::new(context.me.node.clone(), heartbeat.node.clone()),
            attached_at: standby.view.base_seal().generation,
            context,
            standby,
            epoch: heartbeat.epoch,
            active: heartbeat.node.clone(),
            known,
            applied: Lsn::ZERO,
            seen_at: now,
            beat: heartbeat.clone(),
            warmth: warmth::Told::default(),
        }
    }

    /// Follows until the machine wants something else, or the epoch is over. A move of the base that is
    /// under way has ended as well. Returns what was known then.
    pub(crate) async fn live(mut self, orders: &mut mpsc::Receiver<Order>) -> Ended {
        let warmer = Warmer {
            view: Arc::clone(&self.standby.view),
            blocks_per_segment: self.standby.control.blocks_per_segment,
            cache_bytes: self.context.config.memory.cache.bytes() as u64,
            told: Arc::clone(&self.warmth),
        };
        let warmer = tokio::spawn(warmer.run());
        let context = self.context;
        let ended = tokio::select! {
            ended = self.follow(orders) => ended,
            // It may be in the middle of a read that no zone answers.
            () = context.out_of_time() => Ok(()),
        };
        let sight = self.sight();
        // The view becomes another one: nobody may read it then.
        warmer.abort();
        tokio::select! {
            () = self.mover.stop() => {}
            () = context.out_of_time() => {
                tracing::info!("a change of this node's claim is left under way: the zones do not answer");
            }
        }
        Ended {
            sight,
            known: self.known,
            ended,
        }
    }

    fn sight(&self) -> Sight {
        let silent = self.context.now().saturating_sub(self.seen_at);
        Sight {
            previous: Some(self.active.clone()),
            forgets: self.forgets,
            detect: Some(silent),
            lsns: Lsns {
                synced: Some(self.known.end),
                applied: Some(self.applied),
                promoted: None,
            },
            old_active: Some(OldActive {
                epoch: self.beat.epoch,
                beat: self.beat.counter,
                state: self.beat.state.clone(),
                seen_before_ms: Some(silent.as_millis() as u64),
            }),
        }
    }

    async fn follow(&mut self, orders: &mut mpsc::Receiver<Order>) -> Result<()> {
        let (events_to, mut events) = mpsc::unbounded_channel();
        let subscription = self.subscribe(events_to).await?;
        let mut triggers = subscription.triggers();
        let mut feedback = self.standby.feed.feedback();
        let mut states = self.context.pilot.states();
        let mut poll: Option<Poll> = None;
        let mut polled_at: Option<Instant> = None;
        let mut report = tokio::time::interval(REPORT_EVERY);
        report.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.judge();
            if self.is_over || !self.follows() {
                return Ok(());
            }
            let wake = self.wake();
            let next_poll = polled_at.map_or_else(Instant::now, |at| at + self.poll_every());
            tokio::select! {
                biased;
                _ = states.wait_for(|state| !state.is_candidate()) => return Ok(()),
                report = self.standby.postgres.exited() => self.tell(Event::PostgresExited {
                    redo_failed: report.redo_failed(),
                    report: report.to_string(),
                }),
                Some(order) = orders.recv() => self.order(order),
                Some(event) = events.recv() => self.event(event).await?,
                Ok(()) = triggers.changed() => {
                    let trigger = *triggers.borrow_and_update();
                    let Some(trigger) = trigger else { continue };
                    if trigger.epoch > self.epoch {
                        self.superseded();
                    }
                    if trigger.epoch == self.epoch {
                        self.serves = true;
                        self.started_again(trigger.starts);
                        let to = Known {
                            journal: JournalPos(trigger.journal_synced),
                            end: trigger.synced_lsn,
                            timeline: TimelineId(trigger.timeline),
                        };
                        self.advance(to).await?;
                    }
                }
                Ok(()) = feedback.changed() => {
                    let seen = *feedback.borrow_and_update();
                    self.progressed(seen, &subscription).await?;
                }
                done = self.mover.work() => {
                    let asks = self.mover.done(done, self.context.now());
                    self.heed(asks).await?;
                }
                never = self.candidates.watch(self.context) => match never {},
                read = answered(&mut poll) => self.polled(read).await?,
                () = tokio::time::sleep_until(next_poll), if poll.is_none() => {
                    polled_at = Some(Instant::now());
                    self.detector.asked(self.context.now());
                    let storage = self.standby.storage.clone();
                    let me = self.context.me.node.clone();
                    let in_doubt = self.detector.is_in_doubt();
                    poll = Some(tokio::spawn(poll_registry(storage, me, in_doubt)));
                }
                _ = report.tick() => {
                    self.report(&subscription);
                    let followed = self.standby.tail.position();
                    let asks = self.mover.check_claim(followed, self.context.now());
                    self.heed(asks).await?;
                    self.judge_lag().await;
                }
                () = tokio::time::sleep(wake) => {
                    let asks = self.mover.passed(self.context.now());
                    self.heed(asks).await?;
                }
            }
        }
    }

    fn tell(&self, event: Event) {
        // What a standby tells has no effects besides.
        self.context.pilot.tell(event);
    }

    fn must_reattach(&self, why: impl Into<String>) {
        let why = why.into();
        tracing::info!(why, "attaching afresh");
        self.tell(Event::MustReattach(why));
    }

    /// Somebody else owns the volume: this node goes on as that one's standby.
    fn superseded(&mut self) {
        self.is_over = true;
        self.tell(Event::Superseded);
    }

    /// Whether it is still this node's part to follow.
    fn follows(&self) -> bool {
        self.context.pilot.state().is_candidate()
    }

    async fn subscribe(&self, events: mpsc::UnboundedSender<ClientEvent>) -> Result<Subscription> {
        let name = format!("{}{}", Member::PREFIX, self.active);
        let member = Member::load_named(self.standby.storage.as_ref(), &name).await?;
        let address = member.map_or_else(|| self.unknown_address(), |m| m.channel);
        Ok(channel::subscribe(
            address,
            self.context.party.clone(),
            events,
        ))
    }

    /// An active that never wrote its record: nobody listens here, which is no evidence.
    fn unknown_address(&self) -> Address {
        Address::Unix(self.context.config.paths.run().join("no-such-agent"))
    }

    /// Shows more of the log, unless it is held: the journal first, then the horizon.
    async fn advance(&mut self, to: Known) -> Result<()> {
        // A heartbeat may be older than what was announced and is not shown yet.
        let to = Known {
            journal: to.journal.max(self.known.journal),
            end: to.end.max(self.known.end),
            timeline: to.timeline.max(self.known.timeline),
        };
        self.known = to;
        // Also while nothing is shown: then nothing need be read first when the log is let go.
        let waits = to.journal > self.standby.tail.position();
        if waits || self.mover.is_holding() {
            self.standby.log.read_ahead(to.end);
        }
        if waits {
            self.standby.tail.advance(to.journal).await?;
        }
        self.behind = self.mover.is_holding();
        if self.behind {
            return Ok(());
        }
        self.reload_if_there();
        let names = self.standby.tail.namespace().clone();
        if to.end > self.standby.log.horizon().end && self.is_outgrown(&names).await? {
            self.must_reattach("the active's PostgreSQL was started with larger settings");
            return Ok(());
        }
        self.standby.log.show(names, to.end, to.timeline);
        Ok(())
    }

    /// Whether the active's PostgreSQL has more connections, locks and so on than this one: redo would
    /// stand still, and a promotion be refused (N12 i).
    ///
    /// They change when the active's server starts, at the beginning of an epoch or again, and no log
    /// of it is announced before it serves: so one look before the first of that is shown is enough.
    async fn is_outgrown(&mut self, live: &Namespace) -> Result<bool> {
        if self.capacity_known {
            return Ok(false);
        }
        self.capacity_known = self.serves;
        let needed = standby::active_capacity(&self.standby.storage, live).await?;
        let own = self.standby.capacity;
        if own.covers(needed) {
            return Ok(false);
        }
        tracing::info!(?needed, ?own, "the active's PostgreSQL has larger settings");
        Ok(true)
    }

    /// The active's PostgreSQL was started so often: its capacity must be looked at again.
    fn started_again(&mut self, starts: u32) {
        if starts > self.starts {
            self.starts = starts;
            self.capacity_known = false;
        }
    }

    /// Has PostgreSQL read its files again, if that is wanted and they can be seen.
    fn reload_if_there(&mut self) {
        let there = |at: &mut JournalPos| *at <= self.standby.tail.position();
        if self.reload_at.take_if(there).is_some() {
            self.standby.postgres.reload();
        }
    }

    /// PostgreSQL shall read its files again, as they are at this place of the journal.
    fn reload_at(&mut self, journal: JournalPos) {
        self.reload_at = self.reload_at.max(Some(journal));
        self.reload_if_there();
    }

    /// Goes by the cluster's timings, and by what the active says of its own.
    fn retime(&mut self, beat: &Heartbeat) {
        let timings = beat.patience(self.context.heartbeat());
        if timings != self.timings {
            tracing::info!(?timings, "the heartbeat's timings changed");
            self.timings = timings;
            self.detector.retime(timings);
        }
    }

    /// Does what the mover of the base asks for.
    async fn heed(&mut self, asks: Vec<Ask>) -> Result<()> {
        for ask in asks {
            match ask {
                Ask::Progress => self.standby.feed.request_reply(),
                Ask::ReadAhead => {
                    if let Some(prefetcher) = &self.standby.prefetcher {
                        prefetcher.look_again();
                    }
                }
                Ask::Release if self.behind => self.advance(self.known).await?,
                Ask::Release => {}
                Ask::AttachAfresh => self.must_reattach("its base cannot move any further"),
            }
        }
        Ok(())
    }

    async fn event(&mut self, event: ClientEvent) -> Result<()> {
        let now = self.context.now();
        match event {
            ClientEvent::Connected(_) => self.detector.hint(Hint::Connected, now),
            ClientEvent::Reset => self.detector.hint(Hint::Reset, now),
            ClientEvent::Refused => self.detector.hint(Hint::Refused, now),
            ClientEvent::Unreachable(why) | ClientEvent::Rejected(why) => {
                tracing::debug!(why, "no direct channel to the active");
            }
            ClientEvent::Notice(Notice::PostgresDead { epoch, detail }) => {
                let reason = format!("PostgreSQL ended: {detail}");
                self.detector.hint(Hint::Vacant { epoch, reason }, now);
            }
            ClientEvent::Notice(Notice::Bye { epoch, reason, to }) => {
                self.vacated(epoch, to, reason);
            }
            ClientEvent::Notice(Notice::Sealed { epoch, generation }) if epoch == self.epoch => {
                let asks = self.mover.sealed(generation, now);
                return self.heed(asks).await;
            }
            ClientEvent::Notice(Notice::Sealed { .. }) => {}
        }
        Ok(())
    }

    /// The active leaves the epoch to `to`, or to anybody.
    fn vacated(&mut self, epoch: Epoch, to: Option<NodeName>, reason: String) {
        if epoch != self.epoch {
            return;
        }
        if to.as_ref().is_none_or(|to| *to == self.context.me.node) {
            let hint = Hint::Vacant { epoch, reason };
            self.detector.hint(hint, self.context.now());
        }
        self.tell(Event::Vacant { to });
    }

    async fn polled(&mut self, read: Result<Polled>) -> Result<()> {
        let now = self.context.now();
        let beat = match read {
            Ok(Polled { claimed: false, .. }) => {
                self.must_reattach("the active gave this standby's claim up");
                return Ok(());
            }
            Ok(polled) => polled.heartbeat,
            Err(error) => {
                tracing::info!(%error, "the heartbeat could not be read");
                self.detector.failed(now);
                return Ok(());
            }
        };
        let Some(beat) = beat else {
            self.detector.answered(None, now);
            return Ok(());
        };
        if beat.epoch > self.epoch {
            self.superseded();
            return Ok(());
        }
        self.serves |= beat.state == ActiveState::Serving;
        let counted = Beat {
            epoch: beat.epoch,
            counter: beat.counter,
        };
        if Some(counted) > self.detector.beat() {
            self.seen_at = now;
            self.beat = beat.clone();
        }
        self.detector.answered(Some(counted), now);
        self.retime(&beat);
        self.started_again(beat.starts);
        if beat.configured > self.configured {
            self.configured = beat.configured;
            self.reload_at(JournalPos(beat.journal_synced));
        }
        match &beat.state {
            ActiveState::Released { to } => {
                self.vacated(beat.epoch, to.clone(), "it stopped cleanly".to_owned());
            }
            ActiveState::PostgresDead => {
                self.vacated(beat.epoch, None, "its PostgreSQL ended".to_owned());
            }
            ActiveState::TakingOver | ActiveState::Serving => {}
        }
        let to = Known {
            journal: JournalPos(beat.journal_synced),
            end: beat.synced_lsn,
            timeline: TimelineId(beat.timeline),
        };
        if to.end > self.known.end || to.journal > self.standby.tail.position() {
            self.advance(to).await?;
        }
        Ok(())
    }

    /// Begins anew if this standby is so far behind that this is better.
    async fn judge_lag(&mut self) {
        if let Some(why) = self.why_skip().await {
            tracing::warn!(why, "too far behind: beginning anew at the newest seal");
            self.context.skips.skipped(&why);
            self.tell(Event::MustReattach(why));
        }
    }

    async fn why_skip(&mut self) -> Option<String> {
        let now = self.context.now();
        // Before PostgreSQL reports any progress, what it reads tells.
        let (redo, _) = *self.standby.view.watch_redo().borrow();
        self.lag
            .progressed(self.applied.max(redo), self.known.end, now);
        if self.looking.is_none() && self.lag.wants_look(now) {
            let storage = Arc::clone(&self.standby.storage);
            let look = async move { seal::load_seals(&storage).await };
            self.looking = Some(tokio::spawn(look));
        }
        let looked = self.looking.take_if(|looking| looking.is_finished())?;
        let seals = looked.await.ok()?.ok()?;
        let ours = seals.iter().rev();
        let newest = ours
            .into_iter()
            .find(|s| s.generation.epoch == self.epoch)?;
        self.lag.why_skip(newest.redo)
    }

    async fn progressed(
        &mut self,
        feedback: Option<Feedback>,
        subscription: &Subscription,
    ) -> Result<()> {
        if let Some(feedback) = feedback {
            self.applied = self.applied.max(feedback.apply);
        }
        let progress = self.progress();
        subscription.progress(progress);
        let (applied, horizon) = (progress.applied, progress.horizon);
        let asks = self.mover.progressed(applied, horizon, self.context.now());
        self.heed(asks).await
    }

    fn progress(&self) -> Progress {
        let horizon = self.standby.log.horizon().end;
        Progress {
            received: self.standby.feed.sent(),
            applied: self.applied,
            horizon,
            warm: self.is_warm(),
            needed: self.standby.feed.needed(),
        }
    }

    fn is_warm(&self) -> bool {
        let horizon = self.standby.log.horizon().end;
        self.applied > Lsn::ZERO && horizon.bytes_since(self.applied) <= WARM_LAG_BYTES
    }

    fn report(&mut self, subscription: &Subscription) {
        self.standby.feed.request_reply();
        let progress = self.progress();
        subscription.progress(progress);
        self.tell(Event::Level(progress.warm));
        if self.standby.view.base_seal().generation > self.attached_at {
            self.tell(Event::RedoWorked);
        }
        let reached = &self.context.reached;
        reached.set(progress.received, progress.applied);
        self.context.board.report(json!({
            "node": self.context.me.node,
            "epoch": self.epoch,
            "active": self.active,
            "timeline": self.known.timeline.0,
            "received": progress.received,
            "applied": progress.applied,
            "horizon": progress.horizon,
            // PostgreSQL reports no progress before it has connected to the feed.
            "redo": self.standby.view.watch_redo().borrow().0,
            "held_blocks": self.standby.view.held_blocks(),
            "lag_bytes": progress.horizon.bytes_since(progress.applied),
            "overlay": self.standby.view.stats(),
            "reads": self.standby.view.reads(),
            "base": self.mover.report(),
            "warmth": *self.warmth.lock(),
            "skips": self.context.skips.report(),
            "prefetch": self.standby.prefetcher.as_ref().map(Prefetcher::report),
            "server": *self.context.facts.lock(),
            "control": self.context.control_report(),
            "configured": self.configured,
        }));
    }
}

/// Waits for the poll under way; for ever if there is none.
async fn answered(poll: &mut Option<Poll>) -> Result<Polled> {
    let Some(reading) = poll else {
        return std::future::pending().await;
    };
    let read = reading
        .await
        .expect("reading a record neither panics nor is cancelled");
    *poll = None;
    read
}
