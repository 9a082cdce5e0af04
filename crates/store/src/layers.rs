//! Layered volumes: what a read finds in the volumes below, and who may be laid over whom.
//!
//! Invariant: where this zone does not have the whole of the volume below, a read is answered with "unavailable" unless the
//! child has a block of its own; never with the word that there is nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use dax::credentials::Secret;
use dax::error::{Error, ErrorKind};
use dax::ids::{BlockKey, Generation, Version, VolumeName};
use dax::layer::{Layer, MAX_LAYERS};
use dax::membership::Membership;
use dax::storage::{Lineage, VolumeSettings};

use crate::engine::{Engine, EngineError, Found};
use crate::keys::{Slot, VolumeId};
use crate::volume::{Volume, Volumes};

/// A block of a volume below, and which volume has it.
pub(crate) type Below = Option<(Arc<Volume>, Found)>;

/// One thing done wrong on purpose, for the simulation.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerFlaw {
    /// A child begins with epoch 1.
    FirstEpochIgnored,
    /// Blocks of one version come from the layer.
    SingleFallsThrough,
    /// A block that a volume does not have while it is rebuilt is not there.
    BelievedWhileRebuilding,
    /// A fill believes the same.
    FilledWhileRebuilding,
    /// A copy is put in the place of what the child wrote last.
    CopyReplaces,
    /// A volume is marked as filled before a pass has seen everything.
    FilledEarly,
    /// Files that were removed are copied all the same.
    RemovedComesBack,
    /// A volume that was rebuilt is taken for filled.
    RebuiltIsFilled,
}

/// True if a volume below may have what a read as of `up_to` is to find, or something newer than what was found: until a volume is
/// filled, a copy of its own may be older than what the layer shows. Blocks of one version are of no volume below.
pub(crate) fn may_be_below(
    _volumes: &Volumes,
    layer: &Layer,
    found: Option<&Found>,
    up_to: Generation,
) -> bool {
    #[cfg(test)]
    if _volumes.layer_flaw() == Some(LayerFlaw::SingleFallsThrough) && found.is_none() {
        return true;
    }
    up_to != Generation::SINGLE && !found.is_some_and(|found| is_own(layer, found))
}

/// True if what was found is no copy of the image.
fn is_own(layer: &Layer, found: &Found) -> bool {
    age(found).0.epoch >= layer.first_epoch
}

/// Age of a block. A damaged one is older than any other of its generation.
fn age(found: &Found) -> (Generation, Option<Version>) {
    match found {
        Found::Block(block) => (block.generation, Some(block.version)),
        Found::Corrupt(generation) => (*generation, None),
    }
}

/// The newer one of a block of a volume itself and one of a volume below, with that volume.
pub(crate) fn newer(own: Option<Found>, below: Below) -> (Option<Found>, Option<Arc<Volume>>) {
    match (own, below) {
        (Some(own), Some((_, below))) if age(&own) >= age(&below) => (Some(own), None),
        (_, Some((volume, below))) => (Some(below), Some(volume)),
        (own, None) => (own, None),
    }
}

/// Reads a block that `volume` has no version of, in the volumes below.
///
/// # Errors
/// The inner one if this zone cannot tell.
pub(crate) fn newest(
    (volumes, engine): (&Volumes, &dyn Engine),
    volume: &Volume,
    key: BlockKey,
    up_to: Generation,
) -> Result<Result<Below, Error>, EngineError> {
    look(volumes, volume, |parent, layer| {
        #[cfg(test)]
        if up_to == Generation::SINGLE {
            let volume = parent.id;
            return engine.get(&Slot {
                volume,
                key,
                generation: up_to,
            });
        }
        newest_of(engine, parent.id, key, &layer.shown(up_to))
    })
}

/// The same of exactly one generation.
pub(crate) fn exactly(
    (volumes, engine): (&Volumes, &dyn Engine),
    volume: &Volume,
    key: BlockKey,
    generation: Generation,
) -> Result<Result<Below, Error>, EngineError> {
    look(volumes, volume, |parent, layer| {
        let shown = generation != Generation::SINGLE && layer.image.contains(generation);
        let volume = parent.id;
        let slot = Slot {
            volume,
            key,
            generation,
        };
        match shown {
            true => engine.get(&slot),
            false => Ok(None),
        }
    })
}

fn look(
    volumes: &Volumes,
    volume: &Volume,
    find: impl Fn(&Volume, &Layer) -> Result<Option<Found>, EngineError>,
) -> Result<Result<Below, Error>, EngineError> {
    let mut below: Option<Arc<Volume>> = None;
    let mut newest: Below = None;
    // That of the volume itself was looked at by whoever asks, before he looked for a block of its own.
    let mut is_layered = volume.settings.layer.is_some();
    for _ in 0..=MAX_LAYERS {
        let child = below.as_deref().unwrap_or(volume);
        let Some(layer) = child.settings.layer.as_ref().filter(|_| is_layered) else {
            return Ok(Ok(newest));
        };
        let parent = match complete(volumes, child, layer) {
            Ok(parent) => parent,
            Err(error) => return Ok(Err(error)),
        };
        let deeper = parent.layer();
        is_layered = deeper.is_some();
        if let Some(found) = find(&parent, layer)? {
            let is_last = deeper.is_none_or(|layer| is_own(layer, &found));
            newest = match newer(Some(found), newest) {
                (found, None) => found.map(|found| (parent.clone(), found)),
                (found, Some(volume)) => found.map(|found| (volume, found)),
            };
            if is_last {
                return Ok(Ok(newest));
            }
        }
        if parent.is_removed() {
            // The child was filled meanwhile, and this is what is left of its parent.
            return Ok(Err(unavailable(child, layer, "which was removed")));
        }
        below = Some(parent);
    }
    Ok(Err(too_deep(&volume.name)))
}

/// The volume below, if this zone has the whole of it.
pub(crate) fn complete(
    volumes: &Volumes,
    child: &Volume,
    layer: &Layer,
) -> Result<Arc<Volume>, Error> {
    let unavailable = |why: &str| unavailable(child, layer, why);
    let Some(parent) = volumes.get(&layer.parent) else {
        return Err(unavailable("which is not"));
    };
    #[cfg(test)]
    match volumes.layer_flaw() {
        Some(LayerFlaw::BelievedWhileRebuilding) => return Ok(parent),
        Some(LayerFlaw::FilledWhileRebuilding) if volumes.is_filling() => return Ok(parent),
        _ => {}
    }
    if parent.is_rebuilding() {
        return Err(unavailable("which is being rebuilt"));
    }
    match child.decided().doubts_layer && !parent.is_restored() {
        true => Err(unavailable("which may have gone back")),
        false => Ok(parent),
    }
}

fn unavailable(child: &Volume, layer: &Layer, why: &str) -> Error {
    let text = format!(
        "volume {} lies over {}, {why} in this zone",
        child.name, layer.parent
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// The newest version of a block that an image has. Blocks of one version are in none.
fn newest_of(
    engine: &dyn Engine,
    volume: VolumeId,
    key: BlockKey,
    image: &Lineage,
) -> Result<Option<Found>, EngineError> {
    let mut up_to = image.end();
    while up_to != Generation::SINGLE {
        let Some(found) = engine.newest(volume, key, up_to)? else {
            return Ok(None);
        };
        let generation = match &found {
            Found::Block(block) => block.generation,
            Found::Corrupt(generation) => *generation,
        };
        if generation == Generation::SINGLE {
            return Ok(None);
        }
        if image.contains(generation) {
            return Ok(Some(found));
        }
        match image.floor(generation) {
            Some(floor) => up_to = floor,
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// Refuses a new volume that cannot be laid over the one that it names; `rebuild` says that it exists elsewhere. Returns the
/// volume below, if it has one.
pub(crate) fn check_new(
    volumes: &Volumes,
    secret: Option<&Secret>,
    child: &VolumeName,
    settings: &VolumeSettings,
    rebuild: bool,
) -> Result<Option<Arc<Volume>>, Error> {
    let Some(layer) = &settings.layer else {
        return Ok(None);
    };
    check_proof(secret, child, layer)?;
    let parent = match volumes.get(&layer.parent) {
        Some(parent) => parent,
        // The parent's own owner brings it here.
        None if rebuild => return Ok(None),
        None if volumes.is_removed(&layer.parent) => {
            let text = format!("volume {} was removed", layer.parent);
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        None => {
            let text = format!(
                "no volume {} in this zone to lay {child} over",
                layer.parent
            );
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
    };
    settings.check_parent(&parent.settings)?;
    if depth(volumes, &parent) >= MAX_LAYERS {
        return Err(too_deep(child));
    }
    Ok(Some(parent))
}

/// Refuses an exchange of a layered volume's members before the volume below has exchanged its own. What is durable there is on
/// a full quorum of its members then; a quorum of others might miss it.
pub(crate) fn check_members(
    volumes: &Volumes,
    child: &Volume,
    membership: &Membership,
) -> Result<(), Error> {
    let layer = child.settings.layer.as_ref();
    let needed = membership.begins() && !child.fill.is_ended();
    let Some(layer) = layer.filter(|_| needed) else {
        return Ok(());
    };
    let kept = volumes
        .get(&layer.parent)
        .and_then(|parent| parent.membership());
    match kept.is_some_and(|kept| kept.is_target_of(membership)) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "volume {} lies over {}: exchange the zones of that one first",
                child.name, layer.parent
            ),
        )),
    }
}

fn check_proof(secret: Option<&Secret>, child: &VolumeName, layer: &Layer) -> Result<(), Error> {
    let Some(secret) = secret else { return Ok(()) };
    match layer.is_proven(child, &secret.key(&layer.parent)) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Denied,
            format!(
                "{child} may not be laid over {}: that was not allowed with the key of {0}",
                layer.parent
            ),
        )),
    }
}

/// Names of the volumes that lie over one, and need it here or in another zone.
pub(crate) fn over(volumes: &Volumes, parent: &VolumeName) -> BTreeSet<VolumeName> {
    let needs = |volume: &Arc<Volume>| {
        let layer = volume.settings.layer.as_ref();
        let over = layer.is_some_and(|layer| layer.parent == *parent);
        over && !volume.is_removed() && !volume.fill.told(volume.is_rebuilding()).ended
    };
    let all = volumes.all().into_iter().filter(needs);
    all.map(|volume| volume.name.clone()).collect()
}

/// How many volumes are below.
fn depth(volumes: &Volumes, volume: &Arc<Volume>) -> usize {
    let below = |volume: &Arc<Volume>| volumes.get(&volume.layer()?.parent);
    let below = std::iter::successors(Some(volume.clone()), below);
    below.skip(1).take(MAX_LAYERS + 1).count()
}

fn too_deep(child: &VolumeName) -> Error {
    let text = format!("volume {child} would have more than {MAX_LAYERS} volumes below it");
    Error::new(ErrorKind::Invalid, text)
}
