//! `understudy branch drop`.
//!
//! Invariant: the record goes last, so whatever ends the command early can be repeated by the same name.

use std::path::Path;
use std::sync::Arc;

use coordination::config::ClusterConfig;
use coordination::records::{Branch, BranchState, Record, unix_ms};
use coordination::tier::{current, leave_out, remove_volume};
use dax::error::ErrorKind;
use dax::storage::Storage;
use volume::claim::Claim;
use volume::past::Pin;

use super::named::{claimant, find, in_volume, is_of_kind, no_branch, parent};
use crate::cli;
use crate::commands::registry::{Registry, in_time};
use crate::exit::{Code, Failure};

pub(super) async fn run(args: cli::DropBranch) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.config).await?;
    let names = registry.named().await?;
    let secret = args.secret.secret_file.as_deref();
    if let Some(name) = args.name {
        let branch = find(&names, &name).await?;
        let branch = branch.ok_or_else(|| no_branch(&name))?;
        drop_branch(&registry, &names, branch, secret).await?;
        println!("branch {name} is gone; its directory on this machine is yours to remove");
        return Ok(Code::Ok);
    }
    drop_expired(&registry, &names, secret).await
}

/// Removes the branches whose time is over, the youngest first: it may be one of an older one.
async fn drop_expired(
    registry: &Registry,
    names: &Arc<dyn Storage>,
    secret: Option<&Path>,
) -> anyhow::Result<Code> {
    let mut branches = in_time(async { Ok(Branch::list(names.as_ref()).await?) }).await?;
    branches.retain(|branch| branch.is_expired(unix_ms()));
    branches.sort_by_key(|branch| std::cmp::Reverse(branch.created_unix_ms));
    let mut code = Code::Ok;
    for branch in branches {
        let name = branch.name.clone();
        // It may have been promoted since.
        let now = find(names, &name).await?;
        if !now.is_some_and(|now| now.is_expired(unix_ms())) {
            continue;
        }
        match drop_branch(registry, names, branch, secret).await {
            Ok(()) => println!("branch {name} is gone"),
            Err(error) => {
                eprintln!("branch {name} stays: {error:#}");
                code = Code::Failed;
            }
        }
    }
    Ok(code)
}

/// Removes the volume, the pin, and last the record. Each step can be repeated. Of two records of one volume, which an interrupted reset
/// leaves, it removes this one alone.
pub(super) async fn drop_branch(
    registry: &Registry,
    names: &Arc<dyn Storage>,
    branch: Branch,
    secret: Option<&Path>,
) -> anyhow::Result<()> {
    let all = in_time(async { Ok(Branch::list(names.as_ref()).await?) }).await?;
    let is_same = |other: &&Branch| other.name == branch.name && other.volume == branch.volume;
    let Some(mut branch) = all.iter().find(is_same).cloned() else {
        return Err(no_branch(&branch.name));
    };
    let has_other_name =
        |other: &Branch| other.name != branch.name && other.volume == branch.volume;
    if !all.iter().any(has_other_name) {
        let cluster = registry.config.cluster();
        let there = in_volume(cluster, &branch.volume, secret)?;
        is_not_the_database(&branch, cluster).await?;
        // A name that is being dropped is not promoted.
        branch.state = BranchState::Dropping;
        branch.store(names.as_ref()).await?;
        if let Err(error) = remove(&there, &branch).await {
            // Another volume lies over it, or it is the database by now: it is as good as before.
            if is_of_kind(&error, ErrorKind::Conflict) {
                let is_whole = branch.end.is_some() || branch.at == "-";
                branch.state = match is_whole {
                    true => BranchState::Ready,
                    false => BranchState::Making,
                };
                branch.store(names.as_ref()).await?;
            }
            return Err(error);
        }
        give_back(registry, &branch, secret).await?;
    }
    names
        .remove_record(&branch.name(), Branch::AUTHORITY)
        .await?;
    Ok(())
}

/// Looks once more where the database is: it may have been moved since the command began.
async fn is_not_the_database(branch: &Branch, cluster: &ClusterConfig) -> anyhow::Result<()> {
    let first = cluster.moved_to(None);
    let (current, _) = in_time(async { Ok(current(&first, "drop").await?) }).await?;
    let name = &branch.name;
    let said = match &branch.volume {
        volume if *volume == cluster.volume => {
            format!("{name} is the volume that the nodes' configurations name")
        }
        volume if volume == current.stored_in() => format!("the branch {name} is the database now"),
        _ => return Ok(()),
    };
    Err(Failure::new(Code::Refused, said).into())
}

async fn remove(there: &ClusterConfig, branch: &Branch) -> anyhow::Result<()> {
    let left_out = leave_out(there, "drop", &branch.volume).await?;
    let removed = remove_volume(there).await;
    if let Some(left_out) = left_out {
        // Some zones may be rid of it already, unless another volume lies over it: then none is.
        let stays = removed
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Conflict);
        if let Err(error) = left_out.end(!stays).await {
            tracing::warn!(%error, "nodes that start do not find the way to the database through the branch's volume");
        }
    }
    Ok(removed?)
}

/// Gives back what was kept for the branch in the volume that it was laid over.
async fn give_back(
    registry: &Registry,
    branch: &Branch,
    secret: Option<&Path>,
) -> anyhow::Result<()> {
    if let (Some(image), true) = (&branch.parent, branch.owns_parent) {
        let image = in_volume(registry.config.cluster(), image, secret)?;
        return Ok(remove_volume(&image).await?);
    }
    let parent = match parent(registry, branch, secret).await {
        // It was dropped after the branch was filled.
        Err(error) if is_of_kind(&error, ErrorKind::NotFound) => return Ok(()),
        found => found?,
    };
    Claim::release(&parent, &claimant(&branch.name)?).await?;
    if let Some(pin) = &branch.pin {
        Pin::remove(&parent, pin).await?;
    }
    Ok(())
}
