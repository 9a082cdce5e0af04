//! Replication slots, which survive a takeover.
//!
//! ```text
//!   the active's server ── writes each slot's state ──▶ shared storage ── copied at an attach ──▶ the standby's server
//!                                                             └── read now and then: move forward, drop ──▶ (keeper)
//!                                                             └── read once more at a takeover ──▶ agree, or attach again
//! ```
//!
//! A server reads slots at its start only. What is stored is what a crash of the active would leave, so a server that starts on a
//! copy goes on as PostgreSQL goes on after a crash. One that runs follows by moving its copies forward. Where it cannot follow, a
//! takeover starts over from the last seal: slower, and never with other slots.
//!
//! Invariant: no server is promoted whose slots are not those that are stored, or that are further; and nothing is written to the
//! stored ones before.

mod compare;
pub(super) mod guard;
mod keeper;
mod server;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dax::storage::Storage;
use parking_lot::Mutex;
use pgdata::layout::{DECODING_SNAPSHOTS, LOG, SLOTS};
use pgdata::segment::{SegmentName, SegmentSize};
use pgdata::slot::{self, STATE_FILE, Slot};
use pgserver::{PostgresError, StartOptions};
use tokio::task::JoinSet;
use volume::latest::Latest;
use volume::lsn::Lsn;
use volume::namespace::Namespace;
use volume::private::PrivateDir;
use volume::view::Timestamp;

use self::compare::Step;
pub(super) use self::keeper::{Differs, Keeper};
use self::server::Server;
use super::context::Context;
use super::error::Result;
use super::files::{put, read_live};

/// A state that was being written.
const UNFINISHED_FILE: &[u8] = b"state.tmp";
/// How long a standby's server may take to answer at a takeover, when clients wait.
const WITHIN: Duration = Duration::from_secs(2);
/// How long reading from where a slot begins may hold a promotion up.
const MARKED_WITHIN: Duration = Duration::from_millis(300);
/// How often a slot of a promoted server is tried to be moved, and how long after a failure.
const TRIES: u32 = 10;
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Names of the slots that a standby's server began with and still has. Others are its own.
pub(super) type Copied = Arc<Mutex<BTreeSet<String>>>;

/// A slot as it is stored.
struct Stored {
    slot: Slot,
    file: Vec<u8>,
}

/// Slots that are stored, in a volume with these names.
async fn stored(storage: &Arc<dyn Storage>, names: &Namespace) -> Result<Vec<Stored>> {
    let mut found = Vec::new();
    let Ok(directory) = names.resolve(SLOTS) else {
        return Ok(found);
    };
    for (name, id) in names.directory(directory)? {
        // One that is being made or dropped, which a server removes at its start.
        if name.ends_with(b".tmp") {
            continue;
        }
        let Ok(state) = names.lookup(*id, STATE_FILE.as_bytes()) else {
            continue;
        };
        let file = read_live(storage, names, state).await?;
        match Slot::parse(&file) {
            Ok(slot) => found.extend(slot.map(|slot| Stored { slot, file })),
            // The database is worth more than a slot.
            Err(why) => {
                let name = String::from_utf8_lossy(name);
                tracing::error!(%why, "the slot {name} cannot be read, and is left out");
            }
        }
    }
    Ok(found)
}

/// Removes what a server that starts on the stored slots would remove, and one that runs does not: slots of sessions that are
/// gone, and what was not completed. Their names could not be used again, and no state be written.
pub(super) async fn remove_unfinished(latest: &mut Latest, now: Timestamp) -> Result<()> {
    let names = latest.namespace().clone();
    let Ok(slots) = names.resolve(SLOTS) else {
        return Ok(());
    };
    for (name, id) in names.directory(slots)? {
        if names.lookup(*id, UNFINISHED_FILE).is_ok() {
            latest.remove_file(*id, UNFINISHED_FILE, now)?;
        }
        let is_kept = match names.lookup(*id, STATE_FILE.as_bytes()) {
            Ok(_) if name.ends_with(b".tmp") => false,
            Ok(state) => {
                let file = read_live(latest.storage(), &names, state).await?;
                !matches!(Slot::parse(&file), Ok(None))
            }
            Err(_) => false,
        };
        if !is_kept && names.directory(*id).is_ok() {
            latest.remove_tree(slots, name, now)?;
        }
    }
    Ok(())
}

/// Puts copies of the stored slots where a standby's server finds them at its start, with what decoding begins from. Returns
/// their names.
pub(super) async fn copy(
    context: &Context,
    storage: &Arc<dyn Storage>,
    names: &Namespace,
    private: &PrivateDir,
) -> Result<BTreeSet<String>> {
    let stored = stored(storage, names).await?;
    for one in &stored {
        let path = format!("{SLOTS}/{}/{STATE_FILE}", one.slot.name);
        match one.slot.decoding {
            Some(_) => put(context, private, &path, &one.file)?,
            None => put(context, private, &path, &slot::without_rows(&one.file))?,
        }
    }
    if stored.iter().any(|one| one.slot.decoding.is_some())
        && let Ok(directory) = names.resolve(DECODING_SNAPSHOTS)
    {
        for (name, file) in names.directory(directory)? {
            let name = String::from_utf8_lossy(name);
            if name.ends_with(".snap") {
                let path = format!("{DECODING_SNAPSHOTS}/{name}");
                let bytes = read_live(storage, names, *file).await?;
                put(context, private, &path, &bytes)?;
            }
        }
    }
    Ok(stored.into_iter().map(|one| one.slot.name).collect())
}

/// Where the oldest log begins that is there.
fn oldest_log(names: &Namespace, size: SegmentSize) -> Lsn {
    let Ok(log) = names.resolve(LOG).and_then(|id| names.directory(id)) else {
        return Lsn::ZERO;
    };
    let segments = log.keys().filter_map(|name| {
        let segment = SegmentName::parse(std::str::from_utf8(name).ok()?, size)?;
        Some(segment.range(size).start)
    });
    segments.min().unwrap_or(Lsn::ZERO)
}

/// Makes the slots of a standby's server those that are stored, but for how far those that decode are: that takes reading, and is
/// left to [`CatchUp`]. Returns it.
///
/// # Errors
/// Why they differ still: a server that attaches again has them.
pub(super) async fn agree(
    storage: &Arc<dyn Storage>,
    names: &Namespace,
    copied: &Copied,
    postgres: &StartOptions,
    size: SegmentSize,
) -> Result<Option<CatchUp>, String> {
    let copied = copied.lock().clone();
    let stored = stored(storage, names).await;
    let stored = stored.map_err(|error| error.to_string())?;
    if stored.is_empty() && copied.is_empty() {
        return Ok(None);
    }
    let stored: Vec<Slot> = stored.into_iter().map(|one| one.slot).collect();
    let oldest = oldest_log(names, size);
    let mut server = Server::new(postgres);
    let agreed = async {
        let plan = server.plan(&stored, &copied, oldest).await?;
        // Nothing is to be done now.
        if plan.differs.is_some() || plan.steps.iter().all(Step::decodes) {
            return Ok(plan);
        }
        for step in plan.steps.iter().filter(|step| !step.decodes()) {
            server.take(step).await?;
        }
        // What a server answers counts, not that it was asked.
        server.plan(&stored, &copied, oldest).await
    };
    let plan = match tokio::time::timeout(WITHIN, agreed).await {
        Ok(plan) => plan.map_err(|error: PostgresError| error.to_string())?,
        Err(_) => return Err(format!("the server did not answer within {WITHIN:?}")),
    };
    if let Some(why) = plan.differs {
        return Err(why);
    }
    if let Some(step) = plan.steps.iter().find(|step| !step.decodes()) {
        return Err(format!("{step:?} had no effect"));
    }
    let ahead = stored.iter().filter_map(|slot| {
        let confirmed = slot
            .decoding
            .as_ref()
            .filter(|_| !slot.is_invalid)?
            .confirmed;
        Some(Step::Advance {
            name: slot.name.clone(),
            from: confirmed,
            to: confirmed,
            decodes: true,
        })
    });
    let steps: Vec<Step> = ahead.collect();
    let is_marked =
        |step: &&Step| matches!(step, Step::Advance { name, .. } if plan.marks.contains(name));
    mark_changed(&mut server, steps.iter().filter(is_marked).cloned()).await;
    Ok(Some(CatchUp { server, steps }))
}

/// Has a standby's server take its slots that decode for changed, as far as that takes no time.
///
/// At its first checkpoint a promoted server removes what its slots do not need, and writes those of them that have changed, before that.
/// Copies that the standby has moved may need less than the stored ones. They are in a directory of its own, and unchanged since: if the
/// server died then, before [`CatchUp`] is done, the next one would begin with stored slots that lack what they need.
async fn mark_changed(server: &mut Server, steps: impl Iterator<Item = Step>) {
    let mut steps = steps.peekable();
    if steps.peek().is_none() || !server.decodes_on_standby().await.unwrap_or(false) {
        return;
    }
    let mut marking = JoinSet::new();
    for step in steps {
        let mut own = server.within(MARKED_WITHIN);
        marking.spawn(async move { own.take(&step).await });
    }
    while let Some(marked) = marking.join_next().await {
        if let Ok(Err(error)) = marked {
            tracing::debug!(%error, "a slot is not marked before the promotion");
        }
    }
}

/// Moves slots of a promoted server that decode to where the stored ones are: a subscriber has confirmed it, and rows of the
/// catalogs that it was decoded with may be gone. Nobody else can use a slot while it moves.
///
/// Slots that are there already are moved as well, which makes the server write them: the stored state may be older than the
/// copy in all but what was confirmed, and the log that it needs is removed.
pub(super) struct CatchUp {
    server: Server,
    steps: Vec<Step>,
}

impl CatchUp {
    /// Moves the slots, and has the server write all of them.
    pub(super) async fn run(mut self) {
        let mut moving = JoinSet::new();
        for step in self.steps {
            moving.spawn(advance(self.server.another(), step));
        }
        moving.join_all().await;
        if let Err(error) = self.server.checkpoint().await {
            tracing::warn!(%error, "the slots were not written after the takeover; the next checkpoint does it");
        }
    }
}

/// Moves a slot, once nobody uses it.
async fn advance(mut server: Server, step: Step) {
    for _ in 0..TRIES {
        match server.take(&step).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(?step, %error, "a slot does not move this time"),
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
    // A subscriber has it, and moves it.
    tracing::info!(?step, "a slot is left where it is");
}
