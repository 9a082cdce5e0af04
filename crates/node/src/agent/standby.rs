//! A standby's parts, and attaching them.
//!
//! Order matters: the claim comes before the seal is read (so what the seal needs stays), the log is
//! shown at least up to the seal's W, and PostgreSQL starts last. Everything private is made anew:
//! every restart of a standby's PostgreSQL is a fresh attach (N4).

use std::sync::Arc;

use dax::ids::{Generation, NodeName};
use dax::storage::{Lineage, Storage};
use mount::{Mount, MountOptions};
use parking_lot::Mutex;
use pgdata::control::{Capacity, ControlFile};
use pgdata::feed::Feed;
use pgdata::layout::{CONTROL_FILE, TWO_PHASE};
use pgdata::settings::{self, Configuration, NODE_FILE, StandbyOptions as Pinned};
use pgdata::timeline::TimelineId;
use pgdata::warmth::BUFFERS_FILE;
use pgserver::Postgres;
use tokio::runtime::Handle;
use volume::claim::{Claim, Token};
use volume::error::Error;
use volume::journal::{JournalPos, JournalTail};
use volume::lsn::Lsn;
use volume::namespace::Namespace;
use volume::private::PrivateDir;
use volume::seal::{self, Base, Seal};
use volume::standby::{ClaimWatch, StandbyOptions, StandbyView};
use volume::view::View;

use super::context::Context;
use super::error::{AgentError, Result};
use super::files::{put, read_file, read_live};
use super::log::SharedLog;
use super::moving::claiming::{Claimed, claim as claim_image};
use super::prefetch::{Prefetcher, Setup};
use super::slots;

/// How far the shared log is known to go when a standby attaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub journal: JournalPos,
    pub end: Lsn,
    pub timeline: TimelineId,
}

impl Known {
    /// The most of both: what is known does not become less.
    pub(crate) fn max(self, other: Known) -> Known {
        Known {
            journal: self.journal.max(other.journal),
            end: self.end.max(other.end),
            timeline: self.timeline.max(other.timeline),
        }
    }
}

/// A running standby. Dropping it stops its PostgreSQL and unmounts.
pub(crate) struct Standby {
    pub storage: Arc<dyn Storage>,
    pub tail: JournalTail,
    pub view: Arc<StandbyView>,
    pub log: Arc<SharedLog>,
    pub feed: Feed,
    // PostgreSQL goes before the mount that it works on.
    pub postgres: Postgres,
    pub mount: Mount,
    pub control: ControlFile,
    /// What its PostgreSQL was started with.
    pub capacity: Capacity,
    /// Reads ahead of redo, if that is wanted.
    pub prefetcher: Option<Prefetcher>,
    /// Slots that its PostgreSQL was started with, and still has.
    pub slots: slots::Copied,
    /// True if nobody can have changed them since.
    pub has_last_slots: bool,
}

/// Chooses the seal to attach at: the last, or the one before it if redo from the last failed (N7).
pub(crate) fn choose(seals: Vec<Seal>, before_last: bool) -> Option<Seal> {
    let back = if before_last && seals.len() > 1 { 2 } else { 1 };
    let at = seals.len().checked_sub(back)?;
    seals.into_iter().nth(at)
}

/// Claims, then loads the image to stand on.
pub(crate) async fn load_base(
    context: &Context,
    storage: &Arc<dyn Storage>,
    before_last: bool,
) -> Result<(Base, ClaimWatch)> {
    let node = &context.me.node;
    let watch = ClaimWatch::begin(storage, node.clone()).await?;
    let seal = choose(seal::load_seals(storage).await?, before_last)
        .filter(|seal| !seal.payload.is_empty())
        .ok_or_else(|| AgentError::NotInitialised(context.config.cluster.volume.clone()))?;
    let base = claimed_base(storage, &watch, node, &seal).await?;
    Ok((base, watch))
}

/// Loads the image of a seal, and lets the claim on everything name that alone.
pub(crate) async fn claimed_base(
    storage: &Arc<dyn Storage>,
    watch: &ClaimWatch,
    node: &NodeName,
    seal: &Seal,
) -> Result<Base> {
    let base = Base::load(storage, seal).await?;
    let claim = Claim {
        node: node.clone(),
        images: vec![seal.lineage.clone()],
        journal: seal.journal,
        log_from: seal.redo,
        everything: false,
        token: Token::default(),
    };
    let needed = Some(seal.generation);
    match claim_image(Arc::clone(storage), watch.clone(), claim, needed).await? {
        Claimed::Kept(_) => Ok(base),
        // It took so long that the claim on everything was given up.
        Claimed::Gone | Claimed::Lost => Err(Error::ClaimLost.into()),
    }
}

/// Attaches at `base`, which this node claims by its watch, and starts PostgreSQL as a standby on it. `live` is the journal followed to
/// what is `known` to be durable.
pub(crate) async fn attach(
    context: &Context,
    storage: Arc<dyn Storage>,
    (base, watch): (Base, ClaimWatch),
    tail: JournalTail,
    live: Namespace,
    known: Known,
) -> Result<Standby> {
    let sealed_end = base.seal.end;
    let control = ControlFile::parse(&base.seal.payload)?;
    let shared = read_configuration(&storage, &live).await?;
    let mut configuration = shared.clone();
    // As the active this node would be started with its own parameters.
    for (name, value) in &context.config.postgres.parameters {
        configuration.set(name, value.to_string());
    }
    let capacity = configuration
        .capacity()
        .max(control.capacity)
        .max(active_capacity(&storage, &live).await?);
    let private = prepare_private(context, &storage, &base).await?;
    seed_buffers(context, &storage, &live, &private).await;
    let slots = slots::copy(context, &storage, &live, &private).await?;
    let memory = &context.config.memory;
    let options = StandbyOptions {
        spill_dir: context.config.paths.spill(),
        memory_bytes_max: memory.overlay.bytes() as u64,
        cache_bytes: memory.cache.bytes() as u64,
        claim: Some(watch),
    };
    let layout = context.layout.clone();
    let view = StandbyView::attach(
        storage.clone(),
        layout,
        base,
        live.clone(),
        Arc::clone(&private),
        options,
    )?;
    tokio::spawn(learn_versions(Arc::clone(&view)));
    let log = SharedLog::new(
        Arc::clone(&view),
        control.system_identifier,
        context.layout.segment_size(),
        control.timeline,
    );
    log.show(live, known.end.max(sealed_end), known.timeline)
        .await?;
    let prefetcher = start_prefetcher(context, &view, &log, &control, &configuration);
    let mount = show(context, view.clone())?;
    let feed = bind_feed(context, &log)?;
    let pinned = Pinned {
        primary_conninfo: feed.connection_string(),
        capacity,
        archive_mode: configuration.get("archive_mode").map(str::to_owned),
        query_delay: context.config.standby.max_streaming_delay,
        feedback: context.config.standby.feedback,
        reads_ahead: prefetcher.is_some(),
        cleans_ahead: !configuration.tunes_background_writer(),
    };
    let mut pinned = settings::standby(context.version, &pinned);
    pinned.extend(context.warmth_settings(&configuration));
    // After a promotion the same process is the active.
    pinned.extend(context.ordered_settings(&configuration));
    let options = context.start_options(&pinned);
    put(
        context,
        &private,
        NODE_FILE,
        &context.node_file(&options, &shared),
    )?;
    let postgres = Postgres::start(&context.installation, options).await?;
    Ok(Standby {
        storage,
        tail,
        view,
        log,
        feed,
        postgres,
        mount,
        control,
        capacity,
        prefetcher,
        slots: Arc::new(Mutex::new(slots)),
        has_last_slots: false,
    })
}

/// Reads what the active wrote last, so that those blocks are read from one zone. Nothing depends on it.
async fn learn_versions(view: Arc<StandbyView>) {
    match view.learn_versions().await {
        Ok(blocks) => tracing::debug!(blocks, "learned versions from the last lists of blocks"),
        Err(error) => tracing::debug!(%error, "the last lists of blocks were not read"),
    }
}

/// Begins to read ahead of redo, before PostgreSQL starts to.
fn start_prefetcher(
    context: &Context,
    view: &Arc<StandbyView>,
    log: &Arc<SharedLog>,
    control: &ControlFile,
    configuration: &Configuration,
) -> Option<Prefetcher> {
    let config = &context.config;
    let degree = usize::from(config.standby.prefetch);
    if degree == 0 {
        return None;
    }
    let own = config.postgres.parameters.get("shared_buffers");
    let own = own.map(ToString::to_string);
    let block_bytes = u64::from(view.storage().settings().block_size_bytes);
    let page_bytes = u64::from(control.block_size_bytes);
    let buffers = own.as_deref().or(configuration.get("shared_buffers"));
    let buffers = settings::buffers(buffers, page_bytes);
    Some(Prefetcher::start(Setup {
        view: Arc::clone(view),
        log: Arc::clone(log),
        redo: control.redo,
        segment_size: context.layout.segment_size(),
        blocks_per_segment: control.blocks_per_segment,
        page_bytes,
        block_bytes,
        degree,
        buffers: usize::try_from(buffers).unwrap_or(usize::MAX),
        cache_blocks: config.memory.cache.bytes() / block_bytes as usize,
        hot: context.skips.take_hot(),
    }))
}

/// Mounts a view where PostgreSQL works.
pub(crate) fn show(context: &Context, view: Arc<dyn View>) -> Result<Mount> {
    let options = MountOptions::new(context.config.paths.mount());
    let mount = Mount::start(view, options, Handle::current())?;
    context.board.watch_mount(&mount);
    Ok(mount)
}

fn bind_feed(context: &Context, log: &Arc<SharedLog>) -> Result<Feed> {
    let directory = context.config.paths.feed();
    let failed = |e| AgentError::system(format!("cannot listen in {}", directory.display()), e);
    let version = context.installation.version().to_string();
    let port = context.config.postgres.port;
    let feed = Feed::bind(&directory, port, &version, log.clone()).map_err(failed)?;
    if let Some((uid, gid)) = context.run_as.as_ref().map(|r| r.owner()) {
        // It is for its owner only.
        nix::unistd::chown(&feed.socket(), Some(uid), Some(gid)).map_err(|e| failed(e.into()))?;
    }
    Ok(feed)
}

/// Makes the private files that a standby starts with (rule 6).
async fn prepare_private(
    context: &Context,
    storage: &Arc<dyn Storage>,
    base: &Base,
) -> Result<Arc<PrivateDir>> {
    let place = context.config.paths.private();
    let private = PrivateDir::prepare(&place, context.layout.as_ref(), true, context.ownership())?;
    put(context, &private, CONTROL_FILE, &base.seal.payload)?;
    put(context, &private, "standby.signal", b"")?;
    let Ok(directory) = base.namespace.resolve(TWO_PHASE) else {
        return Ok(Arc::new(private));
    };
    for (name, file) in base.namespace.directory(directory)? {
        let bytes = read_file(storage, &base.seal.lineage, &base.namespace, *file).await?;
        let name = String::from_utf8_lossy(name);
        put(context, &private, &format!("{TWO_PHASE}/{name}"), &bytes)?;
    }
    Ok(Arc::new(private))
}

/// Gives the new server the active's list of blocks to load; what cannot be read only costs warmth.
async fn seed_buffers(
    context: &Context,
    storage: &Arc<dyn Storage>,
    live: &Namespace,
    private: &PrivateDir,
) {
    let list = match live.resolve(BUFFERS_FILE) {
        Ok(file) => read_live(storage, live, file).await,
        Err(_) => return,
    };
    let seeded = list.and_then(|list| put(context, private, BUFFERS_FILE, &list));
    if let Err(error) = seeded {
        tracing::info!(%error, "the active's list of blocks in memory was not loaded");
    }
}

/// Settings that the active's PostgreSQL was started with, as its control file says, sealed or not (N12).
pub(crate) async fn active_capacity(
    storage: &Arc<dyn Storage>,
    live: &Namespace,
) -> Result<Capacity> {
    let latest = Lineage::up_to(Generation::MAX);
    let file = live.resolve(CONTROL_FILE)?;
    let bytes = read_file(storage, &latest, live, file).await?;
    Ok(ControlFile::parse(&bytes)?.capacity)
}

/// The shared configuration, as far as a standby's command line depends on it (N12).
pub(crate) async fn read_configuration(
    storage: &Arc<dyn Storage>,
    live: &Namespace,
) -> Result<Configuration> {
    let mut texts = Vec::new();
    for name in ["postgresql.conf", "postgresql.auto.conf"] {
        match live.resolve(name) {
            Ok(file) => {
                let bytes = read_live(storage, live, file).await?;
                texts.push(String::from_utf8_lossy(&bytes).into_owned());
            }
            Err(Error::NotFound) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(Configuration::parse(texts.iter().map(String::as_str)))
}
