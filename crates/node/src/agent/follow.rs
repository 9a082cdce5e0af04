//! A standby's life: it follows the log, says how far it is, and tells the machine
//! ([`crate::machine`]) all that bears on a takeover, until that decides on something else.
//!
//! Triggers over the direct channel move the replay limit; the heartbeat record repeats what they say,
//! so a standby without a channel follows as well, only later. Meanwhile the base moves from seal to
//! seal ([`super::moving`]), for which the log is held for moments. Nothing it does is shared, except
//! its claim and its node record.

mod polling;
mod progress;
mod reading;
mod showing;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use coordination::address::Address;
use coordination::channel::{self, ClientEvent, Notice, Subscription};
use coordination::detector::{Beat, Detector, Hint};
use coordination::records::{ActiveState, Heartbeat, Lsns, Member, OldActive};
use dax::ids::{Epoch, Generation, NodeName};
use pgdata::timeline::TimelineId;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use volume::journal::JournalPos;
use volume::lsn::Lsn;
use volume::recent_log::RecentLog;
use volume::seal::Seal;

use self::polling::{Poll, answered, lost, poll_registry};
use self::reading::Reading;
use super::candidates::Candidates;
use super::context::Context;
use super::driver::Order;
use super::error::Result;
use super::life::Sight;
use super::moving::{Ask, BaseMover};
use super::server_watch::ServerWatch;
use super::slots::{Differs, Keeper};
use super::slow::Lag;
use super::standby::{Known, Standby};
use super::warmth::{self, Warmer};
use crate::machine::Event;

/// How often PostgreSQL is asked how far it is.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// The same while proxies wait for it to replay what it was given: redo reports nothing by itself.
const REPORT_TO_PROXIES_EVERY: Duration = Duration::from_millis(2);
/// How often the registry is looked at while a better standby should be taking over.
const POLL_WAITING: Duration = Duration::from_millis(100);

/// What following one active led to.
pub(crate) struct Ended {
    /// What was known of the active, for a takeover's record.
    pub sight: Sight,
    /// How far the shared log is known to go.
    pub known: Known,
    /// The last heartbeat of the one that was followed, or what stands for it as long as none has been read.
    pub beat: Heartbeat,
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
    /// What the active announced.
    known: Known,
    reading: Reading,
    /// What of that is at hand, with the names it needs.
    at_hand: Known,
    applied: Lsn,
    mover: BaseMover,
    lag: Lag,
    /// A look at the seals, while the lag is too large.
    looking: Option<tokio::task::JoinHandle<volume::error::Result<Vec<Seal>>>>,
    /// More log is known than is shown, because it was held.
    behind: bool,
    /// The active has been seen to serve.
    serves: bool,
    /// True if the active was serving when its PostgreSQL's capacity was looked at last: it does not
    /// change any more then, before another start.
    capacity_known: bool,
    /// Names older than this tell nothing of the server that serves now.
    capacity_from: JournalPos,
    /// How often the active's PostgreSQL was started again in this epoch.
    starts: u32,
    /// The version of the control record whose parameters this server has read.
    configured: u64,
    /// PostgreSQL shall read its files again when the journal was followed to here.
    reload_at: Option<JournalPos>,
    /// What the detector goes by.
    timings: coordination::config::Heartbeat,
    /// An operator wants it to begin anew, without what it has in memory.
    forgets: bool,
    /// Proxies send reads here as soon as it has replayed far enough.
    proxied: bool,
    /// Somebody owns a higher epoch: this one is over.
    is_over: bool,
    server_watch: ServerWatch,
    /// When the active last showed a sign of life, for the takeover's record.
    seen_at: Duration,
    /// The last heartbeat, for the same.
    beat: Heartbeat,
    attached_at: Generation,
    warmth: warmth::WarmthStatus,
    slots_differ: Differs,
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
        let timings = heartbeat.timeout(context.heartbeat());
        let mover = BaseMover::new(
            Arc::clone(&standby.view),
            Arc::clone(&standby.storage),
            context.me.node.clone(),
            heartbeat.epoch,
            standby.capacity,
            now,
        );
        // A server that goes on from the last active has replayed something already.
        let reported = *standby.feed.feedback().borrow();
        let applied = reported.map_or(Lsn::ZERO, |feedback| feedback.apply);
        Follower {
            reading: Reading::new(standby),
            at_hand: reading::shown(standby),
            mover,
            lag: Lag::new(context.config.standby, now),
            looking: None,
            behind: false,
            serves: heartbeat.state == ActiveState::Serving,
            capacity_known: false,
            capacity_from: JournalPos(heartbeat.journal_synced),
            starts: heartbeat.starts,
            configured: heartbeat.configured,
            reload_at: None,
            timings,
            forgets: false,
            proxied: false,
            is_over: false,
            server_watch: ServerWatch::start(context, &standby.postgres),
            detector: Detector::new(timings, now),
            candidates: Candidates::new(context.me.node.clone(), heartbeat.node.clone()),
            attached_at: standby.view.base_seal().generation,
            context,
            standby,
            epoch: heartbeat.epoch,
            active: heartbeat.node.clone(),
            known,
            applied,
            seen_at: now,
            beat: heartbeat.clone(),
            warmth: warmth::WarmthStatus::default(),
            slots_differ: Differs::default(),
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
        let keeper = Keeper::new(
            Arc::clone(&self.standby.view),
            Arc::clone(&self.standby.slots),
            self.standby.postgres.options(),
            self.context.layout.segment_size(),
            Arc::clone(&self.slots_differ),
        );
        let keeper = tokio::spawn(keeper.run());
        let context = self.context;
        let ended = tokio::select! {
            ended = self.follow(orders) => ended,
            // It may be in the middle of a read that no zone answers.
            () = context.out_of_time() => Ok(()),
        };
        // What a dead epoch sent last may be cut off.
        self.standby.view.read_recent_log(None);
        let sight = self.sight();
        // The view becomes another one: nobody may read it then.
        warmer.abort();
        keeper.abort();
        tokio::select! {
            () = self.mover.stop() => {}
            () = context.out_of_time() => {
                tracing::info!("a change of this node's claim was not completed: the zones do not answer");
            }
        }
        Ended {
            sight,
            known: self.known,
            beat: self.beat,
            ended,
        }
    }

    /// True if proxies want to know when it has replayed what its PostgreSQL was given.
    fn proxies_wait(&self) -> bool {
        self.proxied && self.applied < self.standby.feed.sent()
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
            horizons: Vec::new(),
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
        let mut subscription = self.subscribe(events_to.clone()).await?;
        let mut triggers = subscription.triggers();
        let mut feedback = self.standby.feed.feedback();
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
                () = self.context.driver.until(|state| !state.is_candidate()) => return Ok(()),
                () = lost(self.standby.view.claim()) => {
                    self.must_reattach("the active gave this standby's claim up");
                }
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
                        self.proxied = trigger.proxied;
                        let journal = JournalPos(trigger.journal_synced);
                        self.heard_of_server(true, trigger.starts, journal);
                        let to = Known {
                            journal,
                            end: trigger.synced_lsn,
                            timeline: TimelineId(trigger.timeline),
                        };
                        self.advance(to);
                    }
                }
                arrived = self.reading.next() => self.arrived(arrived).await?,
                Ok(()) = feedback.changed() => {
                    let seen = *feedback.borrow_and_update();
                    self.progressed(seen, &subscription).await?;
                }
                () = tokio::time::sleep(REPORT_TO_PROXIES_EVERY), if self.proxies_wait() => {
                    self.standby.feed.request_reply();
                }
                done = self.mover.work() => {
                    let asks = self.mover.done(done, self.context.now());
                    self.heed(asks).await?;
                }
                never = self.candidates.watch(self.context) => match never {},
                read = answered(&mut poll) => {
                    self.polled(read).await?;
                    let address = self.candidates.address();
                    if let Some(address) = address.filter(|at| at != subscription.address()) {
                        subscription = self.subscribe_at(address, events_to.clone());
                        triggers = subscription.triggers();
                    }
                }
                () = tokio::time::sleep_until(next_poll), if poll.is_none() => {
                    polled_at = Some(Instant::now());
                    self.detector.asked(self.context.now());
                    let storage = self.standby.storage.clone();
                    let me = self.context.me.node.clone();
                    let in_doubt = self.detector.is_in_doubt();
                    let claim = self.standby.view.claim().cloned();
                    poll = Some(tokio::spawn(poll_registry(storage, me, claim, in_doubt)));
                }
                _ = report.tick() => {
                    self.report(&subscription);
                    let followed = self.standby.tail.position();
                    let asks = self.mover.check_claim(followed, self.context.now());
                    self.heed(asks).await?;
                    self.judge_slots();
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
        self.context.driver.tell(event);
    }

    fn must_reattach(&self, why: impl Into<String>) {
        let why = why.into();
        tracing::info!(why, "reattaching");
        self.tell(Event::MustReattach(why));
    }

    /// Somebody else owns the volume: this node goes on as that one's standby.
    fn superseded(&mut self) {
        self.is_over = true;
        self.tell(Event::Superseded);
    }

    /// True if it is still this node's part to follow.
    fn follows(&self) -> bool {
        self.context.driver.state().is_candidate()
    }

    async fn subscribe(&self, events: mpsc::UnboundedSender<ClientEvent>) -> Result<Subscription> {
        let member = Member::of(self.standby.storage.as_ref(), &self.active).await?;
        let address = member.map_or_else(|| self.unknown_address(), |m| m.channel);
        Ok(self.subscribe_at(address, events))
    }

    fn subscribe_at(
        &self,
        address: Address,
        events: mpsc::UnboundedSender<ClientEvent>,
    ) -> Subscription {
        let log = Arc::new(RecentLog::new(self.epoch));
        self.standby.view.read_recent_log(Some(Arc::clone(&log)));
        channel::subscribe(address, self.context.party.clone(), events, Some(log))
    }

    /// An active that has not written its record yet: nobody listens here, which is no evidence. The subscription
    /// goes where its record says as soon as there is one.
    fn unknown_address(&self) -> Address {
        Address::Unix(self.context.config.paths.run().join("no-such-agent"))
    }

    /// Goes by the cluster's timings, and by what the active says of its own.
    fn retime(&mut self, beat: &Heartbeat) {
        let timings = beat.timeout(self.context.heartbeat());
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
                Ask::Release if self.behind => self.show().await?,
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

    async fn polled(&mut self, read: Result<Option<Heartbeat>>) -> Result<()> {
        let now = self.context.now();
        let beat = match read {
            Ok(beat) => beat,
            Err(error) => {
                tracing::info!(%error, "the heartbeat could not be read");
                self.detector.failed(now);
                return Ok(());
            }
        };
        // Whoever is followed may not have beaten yet: then the last beat is of somebody before.
        let Some(beat) = beat.filter(|beat| beat.epoch >= self.epoch) else {
            self.detector.answered(None, now);
            return Ok(());
        };
        // Or it never owned the epoch, and somebody else does.
        if beat.epoch > self.epoch || beat.node != self.active {
            self.superseded();
            return Ok(());
        }
        let serves = beat.state == ActiveState::Serving;
        self.heard_of_server(serves, beat.starts, JournalPos(beat.journal_synced));
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
        self.advance(to);
        Ok(())
    }
}
