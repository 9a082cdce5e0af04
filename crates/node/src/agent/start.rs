//! The ways into and out of a role: joining as a standby, taking over from one, starting a volume
//! that nobody serves, and leaving.

use std::sync::Arc;
use std::time::Duration;

use dax::error::ErrorKind;
use dax::ids::{Epoch, NodeName};
use dax::storage::Storage;
use pgdata::control::{ClusterState, ControlFile};
use pgdata::settings;
use pgdata::timeline::TimelineId;
use volume::active::{ActiveView, Options};
use volume::claim::Claim;
use volume::journal::{JournalPos, JournalTail};
use volume::latest::Latest;
use volume::private::PrivateDir;
use volume::seal::Base;

use super::active::{Active, read_control};
use super::context::{Context, unix_ms, wall_clock};
use super::error::{AgentError, Result};
use super::standby::{self, Known, Standby, attach, load_base, read_configuration};
use crate::postgres::{Postgres, StopMode};
use crate::records::{Cause, Heartbeat, HistoryEntry, Member, Record, append_history};
use crate::takeover::log_tail::LogTail;
use crate::takeover::{self, Phases, Pulse};

/// How long PostgreSQL may take to start when nothing has to be replayed.
const START_WITHIN: Duration = Duration::from_secs(60);
/// How long a standby's server may take to stop before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Attaches to the active that beats.
pub(crate) async fn join(
    context: &Context,
    storage: Arc<dyn Storage>,
    heartbeat: &Heartbeat,
    before_last: bool,
) -> Result<(Standby, Known)> {
    let base = load_base(context, &storage, before_last).await?;
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
    let standby = attach(context, storage, base, tail, live, known).await?;
    Ok((standby, known))
}

/// A running standby becomes the active.
pub(crate) async fn take_over(
    context: &Context,
    standby: Standby,
    cause: Cause,
    detect: Duration,
    previous: Option<NodeName>,
    seen: Epoch,
) -> Result<Active> {
    tracing::info!(?cause, "taking over");
    let mut phases = Phases::begin(Some(detect));
    let (announced, pulse) = takeover::fence(context, &standby.storage, seen).await?;
    phases.end("fence");
    // From here on nobody can give up what this standby stands on; perhaps somebody did before.
    if !Claim::stands(&standby.storage, &context.me.node).await? {
        let why = "this standby's claim was given up; it must attach afresh";
        return Err(dax::error::Error::new(ErrorKind::Conflict, why).into());
    }
    let followed = &standby.tail;
    let tail = JournalTail::new(
        standby.storage.clone(),
        followed.namespace().clone(),
        followed.place(),
    );
    let mut latest = Latest::recover_behind(tail, wall_clock()).await?;
    let horizon = standby.log.horizon();
    let from = horizon.end.max(announced.end);
    let timeline = horizon.timeline.max(announced.timeline);
    let tail = takeover::fix_log(context, &mut latest, from, timeline).await?;
    phases.end("log_tail");
    let active = takeover::promote(context, standby, latest, tail, pulse, &mut phases).await?;
    note(context, &active, cause, previous, phases, tail).await?;
    Ok(active)
}

/// Starts a volume that nobody serves: directly after a clean stop that nothing followed (N1),
/// otherwise by attaching at the last seal, replaying and promoting, never by plain crash recovery.
pub(crate) async fn start(
    context: &Context,
    storage: Arc<dyn Storage>,
    before_last: bool,
    previous: Option<NodeName>,
    seen: Epoch,
) -> Result<Active> {
    let mut phases = Phases::begin(None);
    let (announced, pulse) = takeover::fence(context, &storage, seen).await?;
    phases.end("fence");
    let mut latest = Latest::recover(storage.clone(), wall_clock()).await?;
    let seal = standby::choose(latest.seals().to_vec(), before_last)
        .filter(|seal| !seal.payload.is_empty())
        .ok_or_else(|| AgentError::NotInitialised(context.config.volume.clone()))?;
    let control = ControlFile::parse(&seal.payload)?;
    let from = seal.end.max(announced.end);
    let timeline = control.timeline.max(announced.timeline);
    let tail = takeover::fix_log(context, &mut latest, from, timeline).await?;
    phases.end("log_tail");
    let clean = control.state == ClusterState::ShutDown
        && !before_last
        && !latest.changed_since_seal()
        && tail
            == LogTail {
                end: seal.end,
                timeline: control.timeline,
            };
    if clean
        && let Some(active) = start_directly(&mut latest, &control, &seal.payload, tail).await?
    {
        let active = active.open(context, latest, pulse, &mut phases).await?;
        note(context, &active, Cause::Started, previous, phases, tail).await?;
        return Ok(active);
    }
    tracing::info!(end = %tail.end, "replaying the log from the last seal");
    let base = Base::load(&storage, &seal).await?;
    let journal_tail = base.tail(&storage);
    let live = latest.namespace().clone();
    let known = Known {
        journal: JournalPos::START,
        end: tail.end,
        timeline: tail.timeline,
    };
    let standby = attach(context, storage, base, journal_tail, live, known).await?;
    let active = takeover::promote(context, standby, latest, tail, pulse, &mut phases).await?;
    note(context, &active, Cause::Started, previous, phases, tail).await?;
    Ok(active)
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
        let view = ActiveView::open(
            latest,
            layout,
            Arc::new(private),
            sealer.clone(),
            None,
            options,
        );
        let view = Arc::new(view.await?);
        let mount = standby::show(context, view.clone())?;
        let configuration = read_configuration(&storage, &view.namespace()).await?;
        let mut pinned = settings::active(context.version);
        pinned.extend(context.warmth_settings(&configuration));
        let options = context.start_options(&pinned);
        let postgres = Postgres::start(&context.installation, options).await?;
        postgres.wait_ready(START_WITHIN).await?;
        phases.end("promote");
        Ok(Active {
            storage,
            epoch,
            view,
            sealer,
            pulse: Some(pulse),
            postgres,
            mount,
        })
    }
}

/// Writes the change of the active down. It serves already: only a higher epoch may end that.
async fn note(
    context: &Context,
    active: &Active,
    cause: Cause,
    previous: Option<NodeName>,
    phases: Phases,
    tail: LogTail,
) -> Result<()> {
    match record(context, active, cause, previous, phases, tail).await {
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
    cause: Cause,
    previous: Option<NodeName>,
    phases: Phases,
    tail: LogTail,
) -> Result<()> {
    // This node needs nothing kept for a standby any more.
    Claim::release(&active.storage, &context.me.node).await?;
    let timeline = ControlFile::parse(&read_control(&active.view).await?)?
        .timeline
        .0;
    let entry = HistoryEntry {
        number: 0,
        epoch: active.epoch,
        node: context.me.node.clone(),
        previous,
        cause,
        phases: phases.into_timings(),
        log_end: tail.end,
        timeline: timeline.max(tail.timeline.0),
        unix_ms: unix_ms(),
    };
    append_history(active.storage.as_ref(), entry).await?;
    tracing::info!(epoch = %active.epoch, "serving");
    Ok(())
}

/// Stops a standby whose agent ends: its claim is given up.
pub(crate) async fn leave(context: &Context, standby: Standby) -> Result<()> {
    let storage = standby.storage.clone();
    drop_standby(standby).await?;
    Claim::release(&storage, &context.me.node).await?;
    storage
        .remove_record(
            &format!("{}{}", Member::PREFIX, context.me.node),
            Member::AUTHORITY,
        )
        .await?;
    Ok(())
}

/// Stops a standby; everything private of it is disposable.
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
        drop(postgres.stop(StopMode::Immediate, STOP_WITHIN).await);
    }
    postgres.kill().await?;
    drop(feed);
    mount.unmount()?;
    drop(view);
    Ok(())
}
