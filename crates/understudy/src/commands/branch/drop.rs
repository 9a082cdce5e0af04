//! `understudy branch drop`.
//!
//! Invariant: the record goes last, so whatever ends the command early can be repeated by the same name.

use std::path::Path;
use std::sync::Arc;

use coordination::records::{Branch, BranchState, Record, unix_ms};
use coordination::tier::{leave_out, remove_volume};
use dax::error::ErrorKind;
use dax::storage::Storage;
use volume::claim::Claim;
use volume::past::Pin;

use super::named::{claimant, find, in_volume, no_branch, parent};
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

/// Removes the volume, the pin, and last the record. Each step can be repeated.
pub(super) async fn drop_branch(
    registry: &Registry,
    names: &Arc<dyn Storage>,
    mut branch: Branch,
    secret: Option<&Path>,
) -> anyhow::Result<()> {
    let cluster = registry.config.cluster();
    if branch.volume == *cluster.stored_in() || branch.volume == cluster.volume {
        let name = &branch.name;
        let said = match branch.volume == cluster.volume {
            true => format!("{name} is the volume that the nodes' configurations name"),
            false => format!("the branch {name} is the database now"),
        };
        return Err(Failure::new(Code::Refused, said).into());
    }
    let before = branch.clone();
    branch.state = BranchState::Dropping;
    branch.store(names.as_ref()).await?;
    let left_out = leave_out(cluster, "drop", &branch.volume).await?;
    let removed = remove_volume(&in_volume(cluster, &branch.volume, secret)?).await;
    if let Some(left_out) = left_out {
        left_out.end(removed.is_ok()).await?;
    }
    if let Err(error) = removed {
        // Another volume lies over it: it is as good as before.
        if error.kind() == ErrorKind::Conflict {
            before.store(names.as_ref()).await?;
        }
        return Err(error.into());
    }
    match (&branch.parent, branch.owns_parent) {
        (Some(image), true) => remove_volume(&in_volume(cluster, image, secret)?).await?,
        _ => {
            let parent = parent(registry, &branch, secret).await?;
            Claim::release(&parent, &claimant(&branch.name)?).await?;
            if let Some(pin) = &branch.pin {
                Pin::remove(&parent, pin).await?;
            }
        }
    }
    names
        .remove_record(&branch.name(), Branch::AUTHORITY)
        .await?;
    Ok(())
}
