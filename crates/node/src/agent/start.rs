//! The ways into and out of a role: joining as a standby, taking over from one, starting a volume
//! that nobody serves, and leaving.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use coordination::records::{
    Cause, Decider, Heartbeat, HistoryEntry, Horizon, OldActive, append_history, unix_ms,
};
use dax::ids::Epoch;
use dax::storage::Storage;
use pgdata::control::{ClusterState, ControlFile};
use pgdata::settings::{self, NODE_FILE};
use pgdata::timeline::TimelineId;
use pgserver::{Postgres, StopMode};
use tokio::task::JoinSet;
use volume::active::{ActiveView, Options};
use volume::claim::Claim;
use volume::journal::{JournalPos, JournalTail};
use volume::latest::Latest;
use volume::private::PrivateDir;
use volume::seal::Seal;
use volume::standby::ClaimWatch;

use super::active::proxied::run_of;
use super::active::{Active, LogOrder, read_control};
use super::context::{Context, SAY_WITHIN};
use super::error::{AgentError, Result};
use super::files;
use super::life::{Body, Life, Sight};
use super::pulse::Pulse;
use super::slots;
use super::standby::{self, Known, Standby, attach, load_base, read_configuration};
use super::takeover::horizon::Question;
use super::takeover::log_tail::LogTail;
use super::takeover::{self, Announced, Phases};
use crate::machine::{Decision, Event, Phase, State};

/// How long PostgreSQL may take to start when nothing has to be replayed.
const START_WITHIN: Duration = Duration::from_secs(60);
/// How long a standby's server may take to stop before its mount is aborted and it is killed: it has nothing to save.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// Attaches to the active that beats.
pub(crate) async fn join(
    context: &Context,
    storage: Arc<dyn Storage>,
    heartbeat: &Heartbeat,
    before_last: bool,
) -> Result<(Standby, Known)> {
    takeover::able::readable(&storage).await?;
    let (base, watch) = load_base(context, &storage, before_last).await?;
    let mut tail = base.tail(&storage);
    let announced = JournalPos(heartbeat.journal_synced);
    if announced > tail.position() {
        tail.advance(announced).await?;
    }
    let known = Known {
        journal: announced,
        end: heartbeat.synced_lsn,
        timeline: TimelineId(heartbeat.timeline),
    };
    let live = tail.namespace().clone();
    let standby = attach(context, storage, (base, watch), tail, live, known).await?;
    Ok((standby, known))
}

/// Phases of a takeover: from whatever the node is, to the active that `life` holds then. Returns the
/// last phase, which is complete when this returns; the machine hears of the others at once.
pub(super) async fn take_over(context: &Context, life: &mut Life) -> Result<Phase> {
    let decision = context.driver.decision();
    let cause = decision.as_ref().map(|decision| &decision.cause);
    tracing::info!(?cause, "taking over");
    let mut phases = Phases::begin(life.sight.detect);
    let storage = match &life.body {
        Body::Standby(standby, _) => standby.storage.clone(),
        _ => life.storage(context).await?,
    };
    // Perhaps it was paused since the last look.
    context.load_control().await?;
    if context.driver.state() != State::TakingOver(Phase::Fence) {
        // Whoever waits for this goes on with what the node is now.
        return std::future::pending().await;
    }
    let tail = match &life.body {
        Body::Standby(standby, _) => Some(standby.tail.clone()),
        _ => None,
    };
    takeover::able::check(context, &storage, tail).await?;
    let followed = life.beat.as_ref().map_or(Epoch::NONE, |beat| beat.epoch);
    let (announced, pulse) = takeover::fence(context, &storage, life.seen, followed).await?;
    phases.end("fence");
    context.driver.tell(Event::EpochOwned(announced.epoch));
    let tail = match &life.body {
        Body::Standby(..) => from_standby(context, life, announced, pulse, &mut phases).await?,
        _ => from_nothing(context, life, storage, announced, pulse, &mut phases).await?,
    };
    if let Body::Active(active) = &mut life.body {
        active.order_log(context);
        active.tell_proxies(context, life.sight.horizons.clone());
        note(context, active, &life.sight, decision, phases, tail).await?;
    }
    Ok(Phase::Promote)
}

/// A running standby becomes the active.
async fn from_standby(
    context: &Context,
    life: &mut Life,
    announced: Announced,
    pulse: Pulse,
    phases: &mut Phases,
) -> Result<LogTail> {
    let Body::Standby(standby, _) = &mut life.body else {
        return Err(AgentError::Refused("no standby runs".to_owned()));
    };
    // From here on nobody can give up what this standby stands on; perhaps somebody did before.
    let stands = match standby.view.claim() {
        Some(claim) => claim.look(&standby.storage).await?,
        None => true,
    };
    if !stands {
        // Nobody else is active: this node owns the epoch, and must say why it does not go on.
        return Err(volume::error::Error::ClaimLost.into());
    }
    let question = Question::prepare(standby.postgres.options(), &standby.control);
    let followed = &standby.tail;
    let tail = JournalTail::new(
        standby.storage.clone(),
        followed.namespace().clone(),
        followed.place(),
    );
    let mut latest = Latest::recover_behind(tail, SystemTime::now().into()).await?;
    let limit = standby.log.replay_limit();
    let from = limit.end.max(announced.end);
    let timeline = limit.timeline.max(announced.timeline);
    let tail = takeover::fix_log(context, &mut latest, from, timeline).await?;
    phases.end("log_tail");
    context.driver.tell(Event::PhaseDone(Phase::LogTail));
    become_active(context, life, latest, tail, question, pulse, phases).await?;
    Ok(tail)
}

/// From the standby that `life` holds, behind the fixed end of the log, to the active.
async fn become_active(
    context: &Context,
    life: &mut Life,
    latest: Latest,
    tail: LogTail,
    question: Question,
    pulse: Pulse,
    phases: &mut Phases,
) -> Result<()> {
    let Body::Standby(standby, _) = &mut life.body else {
        return Err(AgentError::Refused("no standby runs".to_owned()));
    };
    takeover::replay(standby, latest.namespace().clone(), tail).await?;
    let size = context.layout.segment_size();
    let names = latest.namespace();
    let postgres = standby.postgres.options();
    let agreed = match standby.has_last_slots {
        true => Ok(None),
        false => slots::agree(&standby.storage, names, &standby.slots, postgres, size).await,
    };
    let (standby, question, catch_up) = match agreed {
        Ok(catch_up) => (&mut **standby, question, catch_up),
        Err(why) => {
            tracing::info!(why, "attaching again, with the active's slots");
            let (standby, question) = reattach(context, life, &latest, tail).await?;
            (standby, question, None)
        }
    };
    phases.end("replay");
    context.driver.tell(Event::PhaseDone(Phase::Replay));
    let (horizon, session) = question.ask().await.unzip();
    if let Some(session) = &session {
        takeover::keep_prepared(session).await;
    }
    takeover::settle(standby, &latest, tail).await;
    let promoting = takeover::promote(context, standby, latest, tail, horizon, session);
    let switched = promoting.await?;
    phases.end("promote");
    life.sight.lsns.promoted = switched.promoted;
    life.sight.horizons = switched.horizons.clone();
    match std::mem::take(&mut life.body) {
        Body::Standby(standby, _) => {
            let mut active = switched.into_active(*standby, pulse);
            if let Some(catch_up) = catch_up {
                active.tasks.spawn(catch_up.run());
            }
            life.body = Body::Active(Box::new(active));
            Ok(())
        }
        other => {
            life.body = other;
            Err(AgentError::Refused("no standby runs".to_owned()))
        }
    }
}

/// Puts a standby that attached at the last seal in the place of the one that `life` holds; it has replayed to the end of the log.
async fn reattach<'a>(
    context: &Context,
    life: &'a mut Life,
    latest: &Latest,
    tail: LogTail,
) -> Result<(&'a mut Standby, Question)> {
    if let Body::Standby(standby, _) = std::mem::take(&mut life.body) {
        drop_standby(*standby).await?;
    }
    let seal = sealed(context, latest, context.driver.before_last())?;
    let question = attach_behind(context, life, latest, &seal, tail).await?;
    let Body::Standby(standby, _) = &mut life.body else {
        return Err(AgentError::Refused("no standby runs".to_owned()));
    };
    takeover::replay(standby, latest.namespace().clone(), tail).await?;
    Ok((standby, question))
}

/// The seal that a takeover begins from.
fn sealed(context: &Context, latest: &Latest, before_last: bool) -> Result<Seal> {
    standby::choose(latest.seals().to_vec(), before_last)
        .filter(|seal| !seal.payload.is_empty())
        .ok_or_else(|| AgentError::NotInitialised(context.config.cluster.volume.clone()))
}

/// Attaches a standby at `seal`, with the log up to its fixed end. Returns the question for its horizon.
async fn attach_behind(
    context: &Context,
    life: &mut Life,
    latest: &Latest,
    seal: &Seal,
    tail: LogTail,
) -> Result<Question> {
    let storage = latest.storage().clone();
    // Should somebody else own the volume soon, what this node reads stays until it has noticed.
    let node = &context.me.node;
    let watch = ClaimWatch::begin(&storage, node.clone()).await?;
    let base = standby::claimed_base(&storage, &watch, node, seal).await?;
    let journal_tail = base.tail(&storage);
    let live = latest.namespace().clone();
    let known = Known {
        journal: JournalPos::START,
        end: tail.end,
        timeline: tail.timeline,
    };
    let mut standby = attach(context, storage, (base, watch), journal_tail, live, known).await?;
    standby.has_last_slots = true;
    let question = Question::prepare(standby.postgres.options(), &standby.control);
    life.body = Body::Standby(Box::new(standby), known);
    Ok(question)
}

/// Starts a volume that nobody serves: directly after a clean stop that nothing followed (N1),
/// otherwise by attaching at the last seal, replaying and promoting, never by plain crash recovery.
async fn from_nothing(
    context: &Context,
    life: &mut Life,
    storage: Arc<dyn Storage>,
    announced: Announced,
    pulse: Pulse,
    phases: &mut Phases,
) -> Result<LogTail> {
    let before_last = context.driver.before_last();
    life.sight.previous = life.beat.as_ref().map(|beat| beat.node.clone());
    life.sight.old_active = life.beat.as_ref().map(|beat| OldActive {
        epoch: beat.epoch,
        beat: beat.counter,
        state: beat.state.clone(),
        seen_before_ms: None,
    });
    let mut latest = Latest::recover(storage.clone(), SystemTime::now().into()).await?;
    let seal = sealed(context, &latest, before_last)?;
    let control = ControlFile::parse(&seal.payload)?;
    let from = seal.end.max(announced.end);
    let timeline = control.timeline.max(announced.timeline);
    let tail = takeover::fix_log(context, &mut latest, from, timeline).await?;
    phases.end("log_tail");
    context.driver.tell(Event::PhaseDone(Phase::LogTail));
    let clean = control.state == ClusterState::ShutDown
        && !before_last
        && !latest.changed_since_seal()
        && tail
            == LogTail {
                end: seal.end,
                timeline: control.timeline,
            };
    if clean
        && let Some(direct) = start_directly(&mut latest, &control, &seal.payload, tail).await?
    {
        context.driver.tell(Event::PhaseDone(Phase::Replay));
        // Nothing followed the shutdown, so what its checkpoint says is exact.
        let xid = Some(control.next_xid);
        life.sight.horizons = Horizon::begin(storage.as_ref(), latest.epoch(), xid).await?;
        let active = direct.open(context, latest, pulse, phases).await?;
        life.body = Body::Active(Box::new(active));
        return Ok(tail);
    }
    tracing::info!(end = %tail.end, "replaying the log from the last seal");
    let question = attach_behind(context, life, &latest, &seal, tail).await?;
    become_active(context, life, latest, tail, question, pulse, phases).await?;
    Ok(tail)
}

/// Everything a direct start needs that was checked before.
struct Direct {
    control: ControlFile,
    tail: LogTail,
}

/// The last condition of a direct start: the latest control file is the seal's (N1).
async fn start_directly(
    latest: &mut Latest,
    control: &ControlFile,
    sealed: &[u8],
    tail: LogTail,
) -> Result<Option<Direct>> {
    let file = latest.namespace().resolve(pgdata::layout::CONTROL_FILE)?;
    let first = latest.read_log_block(file, dax::ids::BlockIndex(0)).await?;
    let same = first.is_some_and(|block| block.starts_with(sealed));
    Ok(same.then(|| Direct {
        control: control.clone(),
        tail,
    }))
}

impl Direct {
    async fn open(
        self,
        context: &Context,
        latest: Latest,
        pulse: Pulse,
        phases: &mut Phases,
    ) -> Result<Active> {
        let storage = latest.storage().clone();
        let epoch = latest.epoch();
        let sealer = takeover::sealer_behind(context, &latest, &self.control, self.tail)?;
        let place = context.config.paths.private();
        let layout = context.layout.clone();
        let private = PrivateDir::prepare(&place, layout.as_ref(), false, context.ownership())?;
        let options = Options {
            cache_bytes: context.config.memory.cache.bytes() as u64,
            kernel_cache: context.config.memory.kernel_cache,
            ..Options::default()
        };
        let private = Arc::new(private);
        let view = ActiveView::open(
            latest,
            layout,
            Arc::clone(&private),
            sealer.clone(),
            None,
            options,
        );
        let view = Arc::new(view.await?);
        let mount = standby::show(context, view.clone())?;
        let configuration = read_configuration(&storage, &view.namespace()).await?;
        let mut pinned = settings::active(context.version);
        pinned.extend(context.warmth_settings(&configuration));
        pinned.extend(context.ordered_settings(&configuration));
        let options = context.start_options(&pinned);
        let file = context.node_file(&options, &configuration);
        files::put(context, &private, NODE_FILE, &file)?;
        let postgres = Postgres::start(&context.installation, options).await?;
        let session = postgres.wait_ready(START_WITHIN).await?;
        let started = run_of(&session).await;
        phases.end("promote");
        Ok(Active {
            storage,
            epoch,
            view,
            sealer,
            pulse: Some(pulse),
            log: LogOrder::default(),
            started,
            tasks: JoinSet::new(),
            postgres,
            mount,
        })
    }
}

/// Writes the change of the active down. It serves already: only a higher epoch may end that.
async fn note(
    context: &Context,
    active: &Active,
    sight: &Sight,
    decision: Option<Decision>,
    phases: Phases,
    tail: LogTail,
) -> Result<()> {
    context.note_libraries();
    match record(context, active, sight, decision, phases, tail).await {
        Err(error) if !error.is_superseded() => {
            tracing::warn!(%error, "serving, but the takeover is missing in the history");
            Ok(())
        }
        other => other,
    }
}

async fn record(
    context: &Context,
    active: &Active,
    sight: &Sight,
    decision: Option<Decision>,
    phases: Phases,
    tail: LogTail,
) -> Result<()> {
    // This node needs nothing kept for a standby any more.
    Claim::release(&active.storage, &context.me.node).await?;
    let timeline = ControlFile::parse(&read_control(&active.view).await?)?
        .timeline
        .0;
    let decision = decision.unwrap_or(Decision {
        cause: Cause::Started,
        by: Decider::Automatic,
    });
    let entry = HistoryEntry {
        number: 0,
        epoch: active.epoch,
        node: context.me.node.clone(),
        previous: sight.previous.clone(),
        cause: decision.cause,
        decided_by: decision.by,
        phases: phases.into_timings(),
        log_end: tail.end,
        lsns: sight.lsns,
        horizon: sight.horizons.last().and_then(|horizon| horizon.xid),
        timeline: timeline.max(tail.timeline.0),
        old_active: sight.old_active.clone(),
        unix_ms: unix_ms(),
    };
    append_history(active.storage.as_ref(), entry).await?;
    Horizon::prune(active.storage.as_ref()).await?;
    let postgres = &context.config.postgres;
    tracing::info!(
        epoch = %active.epoch,
        socket_directory = %context.config.paths.run().display(),
        port = postgres.port,
        listen_addresses = %postgres.listen_addresses,
        user = %postgres.superuser,
        "serving; understudy psql opens a session"
    );
    Ok(())
}

/// Stops a standby whose agent ends: its claim is given up. Without a majority of zones it stays, and the
/// active gives it back when this node has said nothing for long enough.
pub(crate) async fn leave(standby: Standby) -> Result<()> {
    let storage = standby.storage.clone();
    let claim = standby.view.claim().cloned();
    drop_standby(standby).await?;
    let released = async {
        match claim {
            Some(claim) => claim.release(&storage).await,
            None => Ok(()),
        }
    };
    match tokio::time::timeout(SAY_WITHIN, released).await {
        Ok(released) => Ok(released?),
        Err(_) => {
            tracing::info!(
                "this node's claim was not removed at the stop: the zones do not answer"
            );
            Ok(())
        }
    }
}

/// Stops a standby; everything private of it, and its view, is disposable.
pub(crate) async fn drop_standby(standby: Standby) -> Result<()> {
    let Standby {
        postgres,
        mount,
        feed,
        view,
        ..
    } = standby;
    if postgres.exit().is_none() {
        // A failed stop is followed by a kill, whose error counts.
        let stop = postgres.stop(StopMode::Immediate, STOP_WITHIN);
        drop(tokio::time::timeout(STOP_WITHIN, stop).await);
    }
    // Whoever waits in it for a zone that does not answer could not even be killed.
    mount.abort();
    postgres.kill().await?;
    drop(feed);
    mount.unmount()?;
    drop(view);
    Ok(())
}
