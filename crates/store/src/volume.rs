//! The volumes of a zone as its threads share them. Invariant: what stands here is durable; the
//! committer changes it after the fsync that covers the change.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use dax::error::{Error, ErrorKind};
use dax::forms::Forms;
#[cfg(test)]
use dax::ids::Epoch;
use dax::ids::{BlockKey, VolumeName};
use dax::layer::{FILL, FILLED, Layer};
use dax::membership::Membership;
use dax::sightings::{Runs, Sightings};
use dax::storage::{EpochGrant, Retention, Traffic, Usage, VolumeSettings};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::engine::{Engine, EngineError};
use crate::error::OpenError;
use crate::filling::FillState;
use crate::keys::{VolumeId, decode_record};
#[cfg(test)]
use crate::layers::LayerFlaw;
use crate::meta::{self, Forgiven, VolumeMeta};
use crate::meter::Meter;
use crate::parking::Parked;

/// Above this many candidates, about 16 MiB, a volume is scanned whole instead.
const MAX_CANDIDATES: usize = 500_000;

/// One volume of this zone.
pub(crate) struct Volume {
    pub id: VolumeId,
    pub name: VolumeName,
    pub settings: VolumeSettings,
    /// Record of the volume, with what is decided and not durable yet.
    decided: Mutex<VolumeMeta>,
    rebuilding: AtomicBool,
    restored: AtomicBool,
    /// It is removed, or is about to be, durably.
    removed: AtomicBool,
    forgiven: Mutex<Option<Forgiven>>,
    /// That of `forgiven`, for every acknowledgement.
    lift: AtomicU64,
    grant: Mutex<EpochGrant>,
    membership: Mutex<Option<Box<Membership>>>,
    sightings: Mutex<Arc<Sightings>>,
    /// Which forms may be in it: whoever reads less is not let in.
    forms: AtomicU32,
    retention: Mutex<Option<Retention>>,
    slots: AtomicU64,
    candidates: Mutex<Candidates>,
    parked: Mutex<Parked>,
    past_blocks: AtomicU64,
    opened: Instant,
    meter: Mutex<Meter>,
    /// Bytes of answers that wait for its clients.
    waiting_bytes: AtomicUsize,
    connections: AtomicUsize,
    pub fill: FillState,
}

/// Blocks that may have a version to drop.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    pub blocks: BTreeSet<BlockKey>,
    /// Too many to name, or not known yet: look at every block.
    pub everything: bool,
}

impl Volume {
    /// The layer, until this zone has all that it shows. Whoever goes by it asks before he looks for the volume's own blocks.
    pub fn layer(&self) -> Option<&Layer> {
        let layer = self.settings.layer.as_deref();
        layer.filter(|_| !self.fill.is_done())
    }

    /// The accepted epoch.
    pub fn grant(&self) -> EpochGrant {
        self.grant.lock().clone()
    }

    /// Makes a durable grant known.
    pub fn publish_grant(&self, grant: EpochGrant) {
        *self.grant.lock() = grant;
    }

    /// True if this replica lost the volume and does not have all of it again: it answers nothing
    /// that would count in a quorum.
    pub fn is_rebuilding(&self) -> bool {
        self.rebuilding.load(Ordering::SeqCst)
    }

    /// Makes it known that the volume is complete again, durably.
    pub fn publish_rebuilt(&self) {
        self.restored.store(true, Ordering::SeqCst);
        self.rebuilding.store(false, Ordering::SeqCst);
    }

    /// True if this replica was rebuilt once.
    pub fn is_restored(&self) -> bool {
        self.restored.load(Ordering::SeqCst)
    }

    /// Record of the volume, for the committer to change and make durable.
    pub fn decided(&self) -> MutexGuard<'_, VolumeMeta> {
        self.decided.lock()
    }

    /// True if it is removed.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::SeqCst)
    }

    /// Nothing changes it any more.
    pub fn set_removed(&self) {
        self.removed.store(true, Ordering::SeqCst);
    }

    /// The error of a question that a rebuilding replica must not answer.
    pub fn check_complete(&self) -> Result<(), Error> {
        match self.is_rebuilding() {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::Unavailable,
                format!("volume {} is being rebuilt in this zone", self.name),
            )),
        }
    }

    /// Who the volume's members are, as far as this store was told.
    pub fn membership(&self) -> Option<Box<Membership>> {
        self.membership.lock().clone()
    }

    /// Makes a durable membership known.
    pub fn publish_membership(&self, membership: Box<Membership>) {
        *self.membership.lock() = Some(membership);
    }

    /// How far the volume's stores were seen to be, as this one was told.
    pub fn sightings(&self) -> Arc<Sightings> {
        self.sightings.lock().clone()
    }

    /// Makes durable sightings known.
    pub fn publish_sightings(&self, sightings: Arc<Sightings>) {
        *self.sightings.lock() = sightings;
    }

    /// Makes it known, durably, that the volume is to be rebuilt, as this run was told.
    pub fn publish_went_back(&self, forgiven: Forgiven) {
        self.lift.store(forgiven.lift, Ordering::SeqCst);
        *self.forgiven.lock() = Some(forgiven);
        self.fill.set_done(false);
        self.rebuilding.store(true, Ordering::SeqCst);
    }

    /// That the store was told that it had gone back.
    pub fn forgiven(&self) -> Option<Forgiven> {
        *self.forgiven.lock()
    }

    /// The number of a commit of the store, as the volume's clients are told.
    pub fn told(&self, commit: u64) -> u64 {
        commit.saturating_add(self.lift.load(Ordering::SeqCst))
    }

    /// The store's runs, as far as they count for this volume.
    pub fn runs(&self, runs: &Runs) -> Runs {
        match self.forgiven() {
            Some(Forgiven { run, lift }) => runs.forgiven(run, lift),
            None => runs.clone(),
        }
    }

    /// The error of a question whose answer a client that goes by older members would count; `counts` says whether it
    /// may.
    pub fn check_known(&self, counts: impl FnOnce(&Membership) -> bool) -> Result<(), Error> {
        let membership = self.membership.lock();
        match membership.as_ref().is_none_or(|kept| counts(kept)) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Unavailable,
                format!("volume {} has other zones than this client uses", self.name),
            )),
        }
    }

    /// Which forms of what is stored may be in it, as far as this store was told.
    pub fn forms(&self) -> Forms {
        Forms(self.forms.load(Ordering::SeqCst))
    }

    /// Makes a durable number known; it never becomes lower.
    pub fn publish_forms(&self, forms: Forms) {
        self.forms.fetch_max(forms.0, Ordering::SeqCst);
    }

    /// What must be kept.
    pub fn retention(&self) -> Option<Retention> {
        self.retention.lock().clone()
    }

    /// Makes a durable retention known.
    pub fn publish_retention(&self, retention: Retention) {
        *self.retention.lock() = Some(retention);
    }

    /// How many versions of blocks are stored.
    pub fn slots(&self) -> u64 {
        self.slots.load(Ordering::Relaxed)
    }

    /// Makes a durable count known.
    pub fn publish_slots(&self, slots: u64) {
        self.slots.store(slots, Ordering::Relaxed);
    }

    /// Bytes of the blocks that are stored, all generations.
    pub fn used_bytes(&self) -> u64 {
        self.slots() * u64::from(self.settings.block_size_bytes)
    }

    /// Counts what was done for the volume's clients.
    pub fn count(&self, what: &Traffic) {
        let now = self.opened.elapsed();
        self.meter.lock().count(now, what);
    }

    /// What is kept of it, and done for it.
    pub fn usage(&self) -> Usage {
        let (since_start, recent, window) = self.meter.lock().read(self.opened.elapsed());
        Usage {
            blocks: self.slots(),
            used_bytes: self.used_bytes(),
            since_start,
            recent,
            past_blocks: self.past_blocks.load(Ordering::Relaxed),
            relatives: Vec::new(),
            fill: self
                .settings
                .layer
                .as_ref()
                .map(|_| self.fill.told(self.is_rebuilding())),
            recent_ms: u32::try_from(window.as_millis()).unwrap_or(u32::MAX),
        }
    }

    /// Counts bytes of an answer that waits for a client; how many do.
    pub fn add_waiting(&self, bytes: usize) -> usize {
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// They wait no more.
    pub fn end_waiting(&self, bytes: usize) {
        // What was counted before the connection had its volume was not counted here.
        let less = |waiting: usize| Some(waiting.saturating_sub(bytes));
        let _ = self
            .waiting_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Notes that a block got a version that a later retention may make superfluous.
    pub fn add_candidates(&self, keys: impl IntoIterator<Item = BlockKey>) {
        let mut candidates = self.candidates.lock();
        if candidates.everything {
            return;
        }
        candidates.blocks.extend(keys);
        if candidates.blocks.len() > MAX_CANDIDATES {
            drop(candidates);
            self.add_everything();
        }
    }

    /// Any block may have such a version.
    pub fn add_everything(&self) {
        let mut candidates = self.candidates.lock();
        candidates.blocks.clear();
        candidates.everything = true;
    }

    /// Blocks that wait for an image to leave.
    pub fn parked(&self) -> MutexGuard<'_, Parked> {
        self.parked.lock()
    }

    /// Makes known how many versions are parked: who asks must not wait for the janitor, which may move a million of them.
    pub fn publish_past_blocks(&self) {
        let parked: u64 = self.parked().images().map(|(_, versions)| versions).sum();
        self.past_blocks.store(parked, Ordering::Relaxed);
    }

    /// Takes the candidates out.
    pub fn take_candidates(&self) -> Candidates {
        std::mem::take(&mut *self.candidates.lock())
    }
}

/// One of the places for connections of a volume.
pub(crate) struct Seat(Arc<Volume>);

impl Seat {
    /// A place among at most `max`, if one is free.
    pub fn take(volume: &Arc<Volume>, max: usize) -> Option<Seat> {
        let before = volume.connections.fetch_add(1, Ordering::Relaxed);
        let seat = Seat(volume.clone());
        (before < max).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All volumes of a zone.
#[derive(Default)]
pub(crate) struct Volumes {
    by_name: RwLock<HashMap<VolumeName, Arc<Volume>>>,
    /// Names of removed volumes, and their ids, which nobody may use again.
    removed: Mutex<HashMap<VolumeName, VolumeId>>,
    /// Wrong on purpose.
    #[cfg(test)]
    flaw: Option<LayerFlaw>,
    #[cfg(test)]
    filling: AtomicBool,
}

impl Volumes {
    /// Reads them from the engine.
    pub fn load(engine: &dyn Engine, dir: &Path) -> Result<Volumes, OpenError> {
        Volumes::default().loaded(engine, dir)
    }

    /// Adds the volumes that the engine has.
    pub fn loaded(self, engine: &dyn Engine, dir: &Path) -> Result<Volumes, OpenError> {
        let broken = |error: EngineError| error.at_open(dir);
        let volumes = self;
        for (key, value) in engine.meta_prefix(meta::VOLUMES).map_err(broken)? {
            let name = String::from_utf8_lossy(&key[meta::VOLUMES.len()..]).into_owned();
            let name = VolumeName::new(name).map_err(|source| OpenError::NotUnderstood {
                dir: dir.into(),
                source: Box::new(source),
            })?;
            let about: VolumeMeta = meta::from_json(dir, &value)?;
            let volume = volumes.insert(name, about);
            if let Some(json) = engine.meta(&meta::epoch_key(volume.id)).map_err(broken)? {
                volume.publish_grant(meta::from_json(dir, &json)?);
            }
            if let Some(json) = engine.meta(&meta::members_key(volume.id)).map_err(broken)? {
                volume.publish_membership(meta::from_json(dir, &json)?);
            }
            let key = meta::sightings_key(volume.id);
            if let Some(json) = engine.meta(&key).map_err(broken)? {
                volume.publish_sightings(Arc::new(meta::from_json(dir, &json)?));
            }
            let key = meta::record_key(volume.id, Forms::RECORD);
            let record = engine.meta(&key).map_err(broken)?;
            if let Some(forms) = record.and_then(decode_record).and_then(meta::written_forms) {
                volume.publish_forms(forms);
            }
            for name in [FILL, FILLED] {
                let key = meta::record_key(volume.id, name);
                if engine.meta(&key).map_err(broken)?.is_some() {
                    volume.fill.publish(name);
                }
            }
            let key = meta::retention_key(volume.id);
            if let Some(json) = engine.meta(&key).map_err(broken)? {
                volume.publish_retention(meta::from_json(dir, &json)?);
            }
            let slots = engine.meta(&meta::slots_key(volume.id)).map_err(broken)?;
            let slots = slots.and_then(|bytes| bytes.first_chunk().copied());
            volume.publish_slots(slots.map_or(0, u64::from_be_bytes));
        }
        for (key, value) in engine.meta_prefix(meta::REMOVED).map_err(broken)? {
            let removed = meta::removed_volume(&key, &value);
            let (name, id) = removed.ok_or_else(|| OpenError::NotUnderstood {
                dir: dir.into(),
                source: "a volume that was removed".into(),
            })?;
            volumes.removed.lock().insert(name, id);
        }
        Ok(volumes)
    }

    /// Adds a volume that is durable.
    pub fn insert(&self, name: VolumeName, about: VolumeMeta) -> Arc<Volume> {
        let epoch = about.settings.unowned();
        #[cfg(test)]
        let epoch = match self.flaw {
            Some(LayerFlaw::FirstEpochIgnored) => Epoch::NONE,
            _ => epoch,
        };
        let forms = match &about.settings.layer {
            // Nobody is kept out before a record says so.
            None => Forms::WHOLE_BLOCKS,
            Some(_) => Forms::PINS,
        };
        let volume = Arc::new(Volume {
            id: VolumeId(about.id),
            name: name.clone(),
            settings: about.settings.clone(),
            restored: AtomicBool::new(about.restored),
            removed: AtomicBool::new(false),
            rebuilding: AtomicBool::new(about.rebuilding),
            forgiven: Mutex::new(about.forgiven),
            lift: AtomicU64::new(about.forgiven.map_or(0, |forgiven| forgiven.lift)),
            fill: FillState::new(about.filled),
            decided: Mutex::new(about),
            grant: Mutex::new(EpochGrant {
                epoch,
                owner: String::new(),
            }),
            membership: Mutex::new(None),
            sightings: Mutex::default(),
            forms: AtomicU32::new(forms.0),
            retention: Mutex::new(None),
            slots: AtomicU64::new(0),
            candidates: Mutex::default(),
            parked: Mutex::default(),
            past_blocks: AtomicU64::new(0),
            opened: Instant::now(),
            meter: Mutex::default(),
            waiting_bytes: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        });
        self.by_name.write().insert(name, volume.clone());
        volume
    }

    /// A volume by name.
    pub fn get(&self, name: &VolumeName) -> Option<Arc<Volume>> {
        let found = self.by_name.read().get(name).cloned();
        found.filter(|volume| !volume.is_removed())
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Volume>> {
        self.by_name.read().values().cloned().collect()
    }

    /// Makes a durable removal known.
    pub fn remove(&self, volume: &Volume) {
        self.removed.lock().insert(volume.name.clone(), volume.id);
        self.by_name.write().remove(&volume.name);
    }

    /// True if a volume of this name was removed.
    pub fn is_removed(&self, name: &VolumeName) -> bool {
        self.removed.lock().contains_key(name)
            || self
                .by_name
                .read()
                .get(name)
                .is_some_and(|volume| volume.is_removed())
    }

    /// Ids of the volumes that were removed.
    pub fn removed_ids(&self) -> Vec<VolumeId> {
        self.removed.lock().values().copied().collect()
    }

    /// A fill looks, and nobody else.
    #[cfg(test)]
    pub fn set_filling(&self, filling: bool) {
        self.filling.store(filling, Ordering::SeqCst);
    }

    #[cfg(test)]
    pub fn is_filling(&self) -> bool {
        self.filling.load(Ordering::SeqCst)
    }

    #[cfg(test)]
    pub fn layer_flaw(&self) -> Option<LayerFlaw> {
        self.flaw
    }

    /// With something broken.
    #[cfg(test)]
    pub fn broken(flaw: Option<LayerFlaw>) -> Volumes {
        Volumes {
            flaw,
            ..Volumes::default()
        }
    }
}
