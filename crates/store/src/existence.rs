//! How a volume comes into being in this zone, and how it is removed for good.
//!
//! ```text
//!   unknown ──CreateVolume──▶ there ──RemoveVolume, closed──▶ closed ──RemoveVolume──▶ removed, its blocks go
//!                               ▲                               │
//!                               └─────a later epoch─────────────┘
//! ```
//!
//! Invariants: a volume with others laid over it is not removed, and nothing is laid over a closed one: whoever has closed it
//! in all zones can remove it in all. A name is never used twice: what was read under it is never taken for something else.

use std::collections::BTreeSet;
use std::sync::Arc;

use dax::error::{Error, ErrorKind};
use dax::ids::{Epoch, StoreId, VolumeName};
use dax::membership::Membership;
use dax::replica::Fence;
use dax::storage::VolumeSettings;
use dax::wire::Response;

use crate::committer::{Committer, Round};
use crate::connection::Conn;
use crate::decide::{error, hear, mark};
use crate::engine::EngineError;
use crate::keys::VolumeId;
use crate::layers;
use crate::meta::{self, VolumeMeta, to_json};
use crate::volume::Volume;

impl Committer {
    /// Makes a volume, or says why not.
    pub(crate) fn create(
        &mut self,
        (name, settings): (VolumeName, VolumeSettings),
        rebuilding: bool,
        membership: Option<Box<Membership>>,
        round: &mut Round,
    ) -> Response {
        let may = settings
            .check()
            .and_then(|()| self.check_new(&name, &settings, rebuilding, membership.as_deref()));
        match may {
            Err(e) => return error(&e),
            Ok(()) if self.shared.volumes.get(&name).is_some() => return Response::Done,
            Ok(()) => {}
        }
        let id = VolumeId(self.next_volume);
        self.next_volume += 1;
        let layer = settings.layer.as_ref();
        let parent = layer.and_then(|layer| self.shared.volumes.get(&layer.parent));
        let mut about = VolumeMeta::new(id, settings);
        about.rebuilding = rebuilding;
        if rebuilding {
            tracing::warn!(volume = %name, "a volume that exists elsewhere was lost here: its owner sends it again");
            // This directory may be an old copy, from before the child was made.
            let may_be_old =
                |parent: &Arc<Volume>| !parent.is_rebuilding() && !parent.is_restored();
            about.doubts_layer = parent.as_ref().is_some_and(may_be_old);
        } else if let Some(parent) = &parent {
            about.forgiven = parent.forgiven();
        }
        round
            .metas
            .insert(meta::volume_key(&name), Some(to_json(&about)));
        // It may be seen before it is durable: nobody can write to it before that, because nobody
        // can own an epoch earlier than in a later round, or in this one and be answered.
        let volume = self.shared.volumes.insert(name, about);
        if let Some(membership) = membership {
            round
                .metas
                .insert(meta::members_key(id), Some(to_json(&membership)));
            volume.publish_membership(membership);
        }
        if let Some(parent) = parent.filter(|_| !rebuilding) {
            // A store that lacks blocks of the parent is denied by the child's clients, too.
            let sightings = parent.sightings();
            let key = meta::sightings_key(id);
            round.metas.insert(key, Some(to_json(&*sightings)));
            volume.publish_sightings(sightings);
        }
        self.fences.insert(id, Fence::new(volume.grant()));
        Response::Done
    }

    /// Refuses a volume that may not be made; one that exists must be as it is wanted.
    fn check_new(
        &self,
        name: &VolumeName,
        settings: &VolumeSettings,
        rebuilding: bool,
        membership: Option<&Membership>,
    ) -> Result<(), Error> {
        let conflict = |text: String| Err(Error::new(ErrorKind::Conflict, text));
        if let Some(volume) = self.shared.volumes.get(name) {
            return is_as_wanted(&volume, settings, membership);
        }
        if self.shared.volumes.is_removed(name) {
            return conflict(format!(
                "volume {name} was removed: give the new one another name"
            ));
        }
        let secret = self.shared.config.secret.as_ref();
        let Some(parent) =
            layers::check_new(&self.shared.volumes, secret, name, settings, rebuilding)?
        else {
            return Ok(());
        };
        let accepted = self.fences.get(&parent.id).map(|fence| fence.grant().epoch);
        let closed = parent.decided().closed;
        if closed.is_some() && closed == accepted && !rebuilding {
            return conflict(format!("volume {} is about to be removed", parent.name));
        }
        match rebuilding || has_same_members(&parent, settings, membership) {
            false => conflict(format!(
                "volume {name} would have other zones than {}, which it is laid over, or these are changing",
                parent.name
            )),
            true => Ok(()),
        }
    }

    /// Keeps a membership, or says why not.
    pub(crate) fn exchange(
        &self,
        volume: &Arc<Volume>,
        conn: &Conn,
        membership: Box<Membership>,
        round: &mut Round,
    ) -> Response {
        match layers::check_members(&self.shared.volumes, volume, &membership) {
            Err(e) => error(&e),
            Ok(()) => hear(volume, conn, membership, round),
        }
    }

    /// Removes a volume for good, or closes it.
    pub(crate) fn remove_volume(
        &mut self,
        volume: &Arc<Volume>,
        epoch: Epoch,
        close: bool,
        round: &mut Round,
    ) -> Result<Response, EngineError> {
        let children = layers::over(&self.shared.volumes, &volume.name);
        if !children.is_empty() {
            let children: Vec<&str> = children.iter().map(|child| child.as_str()).collect();
            let text = format!(
                "volume {} stays: {} lies over it",
                volume.name,
                children.join(", ")
            );
            return Ok(error(&Error::new(ErrorKind::Conflict, text)));
        }
        if close {
            mark(volume, round, |about| about.closed = Some(epoch));
            return Ok(Response::Done);
        }
        if volume.decided().closed != Some(epoch) {
            let text = format!("volume {} is not closed by {epoch}", volume.name);
            return Ok(error(&Error::new(ErrorKind::Conflict, text)));
        }
        let id = volume.id;
        let lists = [
            meta::record_key(id, ""),
            meta::removals_key(id),
            meta::gone_files_key(id),
        ];
        let mut gone = vec![
            meta::volume_key(&volume.name),
            meta::epoch_key(id),
            meta::members_key(id),
            meta::sightings_key(id),
            meta::retention_key(id),
            meta::slots_key(id),
        ];
        for prefix in &lists {
            match self.shared.engine.meta_prefix(prefix) {
                Ok(entries) => gone.extend(entries.into_iter().map(|(key, _)| key.to_vec())),
                Err(e) => return e.told().map(|told| error(&told)),
            }
        }
        let is_listed = |key: &Vec<u8>| lists.iter().any(|prefix| key.starts_with(prefix));
        round.metas.retain(|key, _| !is_listed(key));
        round.metas.extend(gone.into_iter().map(|key| (key, None)));
        let removed = meta::removed_key(&volume.name);
        round.metas.insert(removed, Some(meta::removed_value(id)));
        round.forget(id);
        volume.set_removed();
        round.removed.push(volume.clone());
        Ok(Response::Done)
    }
}

/// True if a volume that is laid over `parent` would be on the same stores, with quorums that meet those of the parent.
fn has_same_members(
    parent: &Volume,
    settings: &VolumeSettings,
    membership: Option<&Membership>,
) -> bool {
    match (parent.membership(), membership) {
        (Some(kept), Some(wanted)) => kept.change.is_none() && kept.is_like(wanted),
        (None, None) => {
            let copies = |of: &VolumeSettings| (of.replicas, of.sync_replicas, of.zones);
            copies(settings) == copies(&parent.settings)
        }
        _ => false,
    }
}

fn stores(membership: &Membership) -> BTreeSet<StoreId> {
    membership.members.iter().map(|m| m.store).collect()
}

/// True if a volume that exists is the one that somebody wants to make.
///
/// # Errors
/// `Conflict` if it has other settings, or other zones: somebody else makes it at the same time, in another way.
fn is_as_wanted(
    volume: &Volume,
    settings: &VolumeSettings,
    membership: Option<&Membership>,
) -> Result<(), Error> {
    let name = &volume.name;
    if volume.settings != *settings {
        let message = format!(
            "volume {name} exists with other settings: {:?}",
            volume.settings
        );
        return Err(Error::new(ErrorKind::Conflict, message));
    }
    let kept = volume.membership();
    let differs = kept.zip(membership).is_some_and(|(kept, wanted)| {
        kept.version == wanted.version && stores(&kept) != stores(wanted)
    });
    if differs {
        let message = format!(
            "volume {name} was created with other zones: all nodes must list the same ones"
        );
        return Err(Error::new(ErrorKind::Conflict, message));
    }
    Ok(())
}
