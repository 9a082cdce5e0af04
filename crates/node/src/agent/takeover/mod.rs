//! Taking over, step by step (CAC-DB 5.1).
//!
//! ```text
//!   detect ─▶ fence ─▶ log_tail ─▶ replay ─▶ promote ─▶ active
//!             own a     fix journal  PostgreSQL  switch views,
//!             new epoch and log end  replays it  promote
//! ```
//!
//! A crash after any step is harmless: the next standby starts from the last seal and the log,
//! follows the newest timeline, and looks at nothing else. Nothing here decides whether to take
//! over; being wrong about that costs a pause, never data, because of the fence.

pub(crate) mod able;
pub(crate) mod horizon;
pub(crate) mod log_tail;
mod settle;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use coordination::channel::ServerStarted;
use coordination::records::unix_ms;
use coordination::records::{ActiveState, Heartbeat, Horizon, PhaseTiming, Record};
use dax::error::ErrorKind;
use dax::ids::Epoch;
use dax::storage::Storage;
use pgdata::control::ControlFile;
use pgdata::feed::Feedback;
use pgdata::sealer::Sealer;
use pgdata::timeline::TimelineId;
use pgdata::xid::Xid8;
use pgserver::{PostgresError, Session};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use volume::active::{ActiveView, Options};
use volume::latest::Latest;
use volume::lsn::Lsn;
use volume::namespace::Namespace;

use self::log_tail::LogTail;
pub(crate) use self::settle::{keep_prepared, settle};
use crate::agent::active::proxied::run_of;
use crate::agent::active::{Active, LogOrder};
use crate::agent::context::Context;
use crate::agent::error::{AgentError, Result};
use crate::agent::pulse::Pulse;
use crate::agent::slots;
use crate::agent::standby::Standby;

/// Time between two rounds of making way for redo.
const MAKE_WAY_EVERY: Duration = Duration::from_millis(100);
/// How long one round may take: the agent's own session can be held up by redo as well.
const MAKE_WAY_WITHIN: Duration = Duration::from_secs(2);
/// How long PostgreSQL may take to replay the rest of the log before its sessions are ended, which
/// may hold redo up (N13).
const REPLAY_PATIENCE: Duration = Duration::from_millis(100);
/// A replay that neither reports nor reads anything for this long is given up, so that another node can try.
const REPLAY_STALLS: Duration = Duration::from_secs(120);
/// How long PostgreSQL may take to end recovery once all is replayed.
const PROMOTE_WITHIN: Duration = Duration::from_secs(60);

/// The phases of a takeover, as they are timed.
#[derive(Debug)]
pub(crate) struct Phases {
    done: Vec<PhaseTiming>,
    since: Instant,
}

impl Phases {
    /// Begins to time; `detect` is how long the active was silent before it was suspected.
    pub(crate) fn begin(detect: Option<Duration>) -> Phases {
        let mut phases = Phases {
            done: Vec::new(),
            since: Instant::now(),
        };
        if let Some(detect) = detect {
            phases.push("detect", detect);
        }
        phases
    }

    fn push(&mut self, phase: &str, took: Duration) {
        let ms = took.as_millis() as u64;
        self.done.push(PhaseTiming {
            phase: phase.to_owned(),
            began_unix_ms: unix_ms().saturating_sub(ms),
            ms,
        });
    }

    /// The phase that was under way is done.
    pub(crate) fn end(&mut self, phase: &str) {
        let took = self.since.elapsed();
        self.push(phase, took);
        self.since = Instant::now();
        tracing::info!(phase, ms = took.as_millis() as u64, "takeover");
    }

    pub(crate) fn into_timings(self) -> Vec<PhaseTiming> {
        self.done
    }
}

/// Owns a new epoch and tells everybody that a takeover is under way, until the pulse is dropped.
///
/// `seen` is the highest epoch that the decision to take over was based on, and `followed` that of the last heartbeat that was
/// read before it: of an owner that has not beaten, nothing was followed.
///
/// # Errors
/// `Moved` if the database goes on in another volume. `Conflict` if somebody else owned a higher epoch first: follow them. `Refused` if somebody did between the decision and
/// this call, and is fenced now: what is held of the volume is of before that.
pub(crate) async fn fence(
    context: &Context,
    storage: &Arc<dyn Storage>,
    seen: Epoch,
    followed: Epoch,
) -> Result<(Announced, Pulse)> {
    let grant = storage.accepted_epoch().await?;
    if grant.epoch > seen {
        let why = format!(
            "{} has taken over meanwhile, as epoch {}",
            grant.owner, grant.epoch
        );
        return Err(dax::error::Error::new(ErrorKind::Conflict, why).into());
    }
    let epoch = storage.own_epoch(&context.me.node).await?;
    // Who moves the database owned an epoch before this one, or is refused.
    let stays = context.check_moved(storage.as_ref());
    let (stays, last) = tokio::join!(stays, Heartbeat::load(storage.as_ref()));
    stays?;
    let last = last?;
    if let Some(last) = last.as_ref().filter(|last| last.epoch > followed) {
        // A race in which that one was first, and has been fenced by this node. Nobody serves now, so it is no reason to
        // follow anybody; but what that one wrote is not what this node has followed.
        return Err(AgentError::Refused(format!(
            "{} owned epoch {} and began to take over before {} got epoch {epoch}: this node starts its takeover again",
            last.node, last.epoch, context.me.node
        )));
    }
    let announced = Announced {
        epoch,
        end: last.as_ref().map_or(Lsn::ZERO, |beat| beat.synced_lsn),
        timeline: TimelineId(last.as_ref().map_or(0, |beat| beat.timeline)),
    };
    let last_configured = last.as_ref().map_or(0, |beat| beat.configured);
    let interval = context.heartbeat().interval;
    let beat = Heartbeat {
        epoch,
        counter: 1,
        node: context.me.node.clone(),
        synced_lsn: announced.end,
        journal_synced: last.map_or(0, |beat| beat.journal_synced),
        timeline: announced.timeline.0,
        starts: 0,
        configured: last_configured,
        interval_ms: interval.as_millis() as u64,
        state: ActiveState::TakingOver,
    };
    beat.store(storage.as_ref()).await?;
    Ok((announced, Pulse::start(storage.clone(), beat, interval)))
}

/// What the last active announced as synced, in its last heartbeat. All of it is durable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Announced {
    /// The epoch that is owned now.
    pub epoch: Epoch,
    /// The end of a record of the log.
    pub end: Lsn,
    /// The timeline it was on.
    pub timeline: TimelineId,
}

/// Fixes the end of the log behind `from`, which is durable, and makes that durable.
pub(crate) async fn fix_log(
    context: &Context,
    latest: &mut Latest,
    from: Lsn,
    timeline: TimelineId,
) -> Result<LogTail> {
    let size = context.layout.segment_size();
    let history = log_tail::newest_history(latest, timeline).await?;
    let tail = log_tail::find_end(latest, &history, from, size).await?;
    let now = SystemTime::now().into();
    log_tail::cut_behind(latest, tail.end, size, now)?;
    latest.make_needed_directories(context.layout.as_ref(), now)?;
    slots::remove_unfinished(latest, now).await?;
    latest.log_is_fixed();
    latest.commit().await?;
    Ok(tail)
}

/// What a standby has become.
pub(crate) struct Switched {
    epoch: Epoch,
    view: Arc<ActiveView>,
    sealer: Arc<Sealer>,
    /// The horizons of all epochs.
    pub horizons: Vec<Horizon>,
    /// Where the log was right after that.
    pub promoted: Option<Lsn>,
    started: Option<ServerStarted>,
}

impl Switched {
    pub(crate) fn into_active(self, standby: Standby, pulse: Pulse) -> Active {
        let Standby {
            storage,
            postgres,
            mount,
            ..
        } = standby;
        Active {
            storage,
            epoch: self.epoch,
            view: self.view,
            sealer: self.sealer,
            pulse: Some(pulse),
            log: LogOrder::default(),
            started: self.started,
            tasks: JoinSet::new(),
            postgres,
            mount,
        }
    }
}

/// PostgreSQL replays to the end of the log, which is fixed.
pub(crate) async fn replay(standby: &mut Standby, names: Namespace, tail: LogTail) -> Result<()> {
    standby.log.show(names, tail.end, tail.timeline).await?;
    replay_to(standby, tail.end).await?;
    // The new active reads as much as its clients ask for.
    drop(standby.prefetcher.take());
    Ok(())
}

/// Switches the views and promotes PostgreSQL. The epoch is owned and all log replayed. The horizon is durable before PostgreSQL
/// can give out a transaction id. `session` is one of the agent's, if one is open.
pub(crate) async fn promote(
    context: &Context,
    standby: &Standby,
    latest: Latest,
    tail: LogTail,
    xid: Option<Xid8>,
    session: Option<Session>,
) -> Result<Switched> {
    let sealer = sealer_behind(context, &latest, &standby.control, tail)?;
    let epoch = latest.epoch();
    let options = Options {
        cache_bytes: context.config.memory.cache.bytes() as u64,
        kernel_cache: context.config.memory.kernel_cache,
        ..Options::default()
    };
    let paused = standby.mount.pause().await;
    let (view, horizons) = tokio::join!(
        standby
            .view
            .become_active(latest, sealer.clone(), options, SystemTime::now().into()),
        Horizon::begin(standby.storage.as_ref(), epoch, xid),
    );
    let horizons = horizons?;
    let view = Arc::new(view?);
    paused.install(view.clone())?;
    // Before anybody can look the trigger up in the active's view, whose names the kernel may remember.
    let trigger = standby.view.private().place("promote")?;
    standby.postgres.place_trigger(&trigger).await?;
    drop(paused);
    let session = standby.postgres.promote(PROMOTE_WITHIN, session).await?;
    Ok(Switched {
        epoch,
        view,
        sealer,
        horizons,
        // Only the history misses it.
        promoted: session.flushed().await.ok().flatten(),
        started: run_of(&session).await,
    })
}

/// Watches the log from its end on. The checkpoint of the last seal is known from its payload.
pub(crate) fn sealer_behind(
    context: &Context,
    latest: &Latest,
    control: &ControlFile,
    tail: LogTail,
) -> Result<Arc<Sealer>> {
    let payload = latest
        .seals()
        .last()
        .map(|seal| &seal.payload)
        .filter(|p| !p.is_empty());
    let sealed = payload.map(|p| ControlFile::parse(p)).transpose()?;
    Ok(Sealer::new(
        context.layout.clone(),
        tail.end,
        tail.timeline,
        sealed.map(|c| c.checkpoint),
        control.blocks_per_segment,
        latest.epoch(),
    ))
}

/// Waits until PostgreSQL has replayed to `end`, and makes way for redo meanwhile.
async fn replay_to(standby: &Standby, end: Lsn) -> Result<()> {
    let exited = standby.postgres.exited();
    tokio::pin!(exited);
    let applied = standby.feed.applied(end);
    tokio::pin!(applied);
    let impatient = keep_making_way(standby);
    tokio::pin!(impatient);
    let mut progress = standby.feed.feedback();
    let mut reads = standby.view.watch_redo();
    loop {
        tokio::select! {
            _ = &mut applied => return Ok(()),
            moved = moves(&mut progress, &mut reads, REPLAY_STALLS) => if !moved {
                return Err(PostgresError::Timeout {
                    what: "replay any further",
                    after: REPLAY_STALLS,
                    detail: format!("; the log ends at {end}"),
                }
                .into());
            },
            report = &mut exited => return Err(PostgresError::Exited(report).into()),
            never = &mut impatient => match never {},
        }
    }
}

/// True if replay moves within so long: by what PostgreSQL reports, or by where it reads the log. It reports nothing
/// before it has read all log that it finds in its directory, which may take longer on a slow machine.
async fn moves(
    progress: &mut watch::Receiver<Option<Feedback>>,
    reads: &mut watch::Receiver<(Lsn, Lsn)>,
    within: Duration,
) -> bool {
    let applied = |feedback: &Option<Feedback>| feedback.map(|f| f.apply);
    let before = (
        applied(&progress.borrow_and_update()),
        *reads.borrow_and_update(),
    );
    // What is seen is let go at once: it must not be held while something is waited for.
    let reported = async {
        progress
            .wait_for(|now| applied(now) != before.0)
            .await
            .map(drop)
    };
    let read = async { reads.wait_for(|now| *now != before.1).await.map(drop) };
    let moved = async {
        tokio::select! {
            Ok(()) = reported => {}
            Ok(()) = read => {}
            // Nobody is left who could say more.
            else => std::future::pending().await,
        }
    };
    tokio::time::timeout(within, moved).await.is_ok()
}

/// Takes away what holds redo up, until it is dropped: a pause that somebody ordered on this standby at once, because only
/// a promotion would end it, and that comes later; the sessions of clients from [`REPLAY_PATIENCE`] on. Again and
/// again: clients come back, and each one's snapshot can hold redo up anew.
async fn keep_making_way(standby: &Standby) -> Infallible {
    let began = Instant::now();
    let mut told = false;
    loop {
        let ends_sessions = began.elapsed() >= REPLAY_PATIENCE;
        match tokio::time::timeout(MAKE_WAY_WITHIN, make_way(standby, ends_sessions)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(_)) if told => {}
            Ok(Ok(sessions)) => {
                told = true;
                tracing::info!(sessions, "ending read-only sessions for the takeover");
            }
            // It does not let anybody in yet, or the agent's own session gave way to redo.
            Ok(Err(error)) => tracing::debug!(%error, "no way was made for redo this time"),
            Err(_) => {
                tracing::debug!("PostgreSQL does not answer: trying again to make way for redo")
            }
        }
        tokio::time::sleep(MAKE_WAY_EVERY).await;
    }
}

/// One round; how many sessions it ended.
async fn make_way(standby: &Standby, ends_sessions: bool) -> Result<u64, PostgresError> {
    let session = standby.postgres.connect().await?;
    if session.resume_replay().await? {
        tracing::warn!("replay was paused on this standby: resuming it for the takeover");
    }
    match ends_sessions {
        true => session.end_client_sessions().await,
        false => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a slow machine redo read for more than two minutes what it had in its directory, and reported nothing: each
    /// takeover was given up, and begun anew from the same seal, for ever.
    // hazard: NODE-3
    #[tokio::test]
    async fn redo_that_reads_moves_although_nothing_is_reported_yet() {
        let (_feed, mut progress) = watch::channel(None);
        let (redo, mut reads) = watch::channel((Lsn(0), Lsn(8192)));
        let within = Duration::from_secs(60);
        {
            let moved = moves(&mut progress, &mut reads, within);
            tokio::pin!(moved);
            tokio::select! {
                biased;
                _ = &mut moved => panic!("nothing has moved"),
                () = std::future::ready(()) => {}
            }
            redo.send_replace((Lsn(8192), Lsn(16384)));
            assert!(moved.await);
        }
        assert!(!moves(&mut progress, &mut reads, Duration::ZERO).await);
        drop(redo);
        assert!(!moves(&mut progress, &mut reads, Duration::ZERO).await);
    }
}
