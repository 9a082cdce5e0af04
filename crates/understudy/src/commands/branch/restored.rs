//! A branch over an image of a repository: `branch create --repository`, and `rewind --repository`.
//!
//! ```text
//!   plan ─▶ a volume for the image ─▶ configuration and log ─▶ a volume over it ─▶ recovery ─▶ record "ready"
//!                 ▲                                                                               │
//!                 └── whoever serves the branch copies the image, piece after piece ◀─────────────┘
//! ```
//!
//! Invariant: as `create`'s. The volume of the image is in the branch's record before it is made.

use std::collections::BTreeSet;
use std::sync::Arc;

use backup::beneath::{COPIERS, Image};
use backup::repository::Repository;
use backup::restore::{Parts, Plan, Target, plan, restore};
use coordination::records::{Branch, Cluster, Filling, Heartbeat, Record};
use coordination::tier::create_volume;
use dax::ids::{Epoch, VolumeName};
use dax::layer::Layer;
use dax::storage::{Storage, VolumeSettings};
use node::config::Config;
use node::init::{Layered, over};
use volume::view::Ownership;

use super::config;
use super::making::{Made, Making, conclude};
use super::named::in_volume;
use crate::commands::backup::{opened, restore as moments};
use crate::exit::{Code, Failure};

/// Makes the branch.
pub(super) async fn make(
    making: &Making<'_>,
    place: &str,
    (storage, names): (&Arc<dyn Storage>, &Arc<dyn Storage>),
    branch: &mut Branch,
) -> anyhow::Result<Made> {
    let args = making.args;
    let repository = opened::open(place, args.from.key_file.as_deref())?;
    let plan = planned(&repository, &args.at, storage).await?;
    let image_volume = VolumeName::new(format!("{}-image", branch.volume))?;
    branch.parent = Some(image_volume.clone());
    branch.owns_parent = true;
    branch.store(names.as_ref()).await?;

    let secret = args.secret.secret_file.as_deref();
    let cluster = &making.parent.cluster;
    let there = in_volume(cluster, &image_volume, secret)?;
    let settings = VolumeSettings {
        layer: None,
        ..storage.settings().clone()
    };
    create_volume(&there, &settings).await?;

    let config = Config::load(&config::file(making.directory))?;
    let rest = making.directory.join("contents");
    restore(
        &repository,
        &plan,
        Parts::AllButBlocks,
        &rest,
        None,
        |_, _| (),
    )
    .await?;
    let beat = Heartbeat::load(storage.as_ref()).await?;
    let newest = beat.map_or(Epoch::NONE, |beat| beat.epoch);
    let key = there.moved.as_ref().and_then(|moved| moved.key.clone());
    let layer = Layer {
        parent: image_volume.clone(),
        image: Image::lineage(),
        first_epoch: Epoch(newest.0 + COPIERS),
        proof: None,
    };
    let manifest = plan.manifest().clone();
    let image = Image::of(repository, manifest, settings.block_size_bytes);
    let run_as = pgserver::run_as(&config.postgres.run_as)?;
    let layered = Layered {
        base: image.base(owner(run_as.as_ref()))?,
        files: image.ids().collect::<BTreeSet<_>>(),
        rest: rest.clone(),
        recovery_settings: backup::restore::RECOVERY_SETTINGS,
        settings_after: making.settings_after(),
        masks: making.masks()?,
        within: args.within,
        // The server refuses to end before the target.
        reach: plan.manifest().end,
        filling: Some(Filling {
            repository: opened::place(place)?,
            key_file: args
                .from
                .key_file
                .as_ref()
                .map(std::path::absolute)
                .transpose()?,
            image: plan.image.to_string(),
            into: image_volume,
            before_epoch: layer.first_epoch,
            key: key.clone(),
            next_file: 0,
            next_piece: 0,
            done: false,
        }),
        settings: settings.under(layer.proven(&branch.volume, key.as_ref())),
    };
    let (created, took) = Box::pin(over(&config, &layered)).await?;
    std::fs::remove_dir_all(&rest)?;
    branch.end = Some(took.end);
    conclude(names, storage, cluster, branch, secret).await?;
    Ok(Made {
        took,
        log_bytes: plan.log_end.bytes_since(plan.manifest().redo),
        bytes: created.bytes,
    })
}

/// The image to begin from. The repository must be of this database.
async fn planned(
    repository: &Repository,
    at: &str,
    storage: &Arc<dyn Storage>,
) -> anyhow::Result<Plan> {
    let owner = repository.owner().await?;
    let here = Cluster::load(storage.as_ref()).await?;
    let here = here.map(|cluster| cluster.system_identifier);
    if owner.as_ref().map(|owner| owner.system_identifier) != here {
        let said = match owner {
            Some(_) => "the repository has backups of another database",
            None => "there is no repository of backups",
        };
        return Err(Failure::new(Code::Refused, said.to_owned())
            .advise("Restore it elsewhere: understudy backup restore.")
            .into());
    }
    let (target, before) = match at {
        "now" => (Target::Latest, None),
        at => moments::moment(at)?,
    };
    Ok(plan(repository, target, before, None).await?)
}

fn owner(run_as: Option<&pgserver::RunAs>) -> Ownership {
    let (uid, gid) = match run_as {
        Some(run_as) => (run_as.uid, run_as.gid),
        None => (nix::unistd::Uid::effective(), nix::unistd::Gid::effective()),
    };
    Ownership {
        mode: 0o700,
        uid: uid.as_raw(),
        gid: gid.as_raw(),
    }
}
