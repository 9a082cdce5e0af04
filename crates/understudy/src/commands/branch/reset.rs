//! `understudy branch reset`: a new branch in the place of an old one.
//!
//! ```text
//!   "NAME-new" is made ─▶ the old one is "NAME-old" as well ─▶ NAME is the new one ─▶ its node's files ─▶ "NAME-old" is dropped
//! ```
//!
//! Invariant: the name always leads to a whole branch. What ends the command early leaves "NAME-new" or "NAME-old", which the next
//! reset, or `branch drop`, removes.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use coordination::records::{Branch, BranchState, Record, unix_ms};
use coordination::tier;
use dax::storage::Storage;
use serde_json::json;

use super::config;
use super::create::create;
use super::drop::drop_branch;
use super::making::After;
use super::named::{Scratch, find, in_volume, is_stopped, no_branch};
use crate::cli;
use crate::commands::registry::{Registry, in_time};
use crate::exit::{Code, Failure};

pub(super) async fn run(args: cli::ResetBranch) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.config).await?;
    let names = registry.named().await?;
    let secret = args.secret.secret_file.as_deref();
    let directory = std::path::absolute(&args.directory)?;
    let [new, old] = names_of(&args.name)?;
    let branch = resettable(&registry, &names, &args.name, secret).await?;
    // Of a reset that was interrupted.
    let mut left = Vec::new();
    for name in [&new, &old] {
        left.extend(find(&names, name).await?);
    }
    if let Some(other) = left
        .iter()
        .find(|left| left.reset_of.as_ref() != Some(&args.name))
    {
        let said = format!("there is a branch {}, whose name a reset needs", other.name);
        return Err(Failure::new(Code::Refused, said).into());
    }
    let volumes = left.iter().chain([&branch]).map(|branch| &branch.volume);
    if config::check(&directory, volumes)? != branch.volume {
        config::renew(&directory, &branch.volume, secret)?;
    }
    for left in left {
        drop_branch(&registry, &names, left, secret).await?;
    }
    let place = Scratch::create(&registry)?;
    let making = cli::CreateBranch {
        name: new.clone(),
        config: args.config.clone(),
        directory: place.path().to_owned(),
        at: args.at.clone(),
        no_checkpoint: args.no_checkpoint,
        from: cli::FromRepository {
            repository: None,
            key_file: None,
        },
        port: None,
        mask: args.mask.clone(),
        ttl: None,
        secret: args.secret.clone(),
        within: args.within,
        json: args.json,
    };
    let created = create(
        &registry,
        &making,
        place.path(),
        After::Reset(args.name.clone()),
    )
    .await?;
    // That took a while.
    let again = resettable(&registry, &names, &args.name, secret).await?;
    let made = find(&names, &new).await?;
    if again.volume != branch.volume || made.is_none_or(|made| made.volume != created.branch.volume)
    {
        let said = format!("somebody else resets the branch {}", args.name);
        return Err(Failure::new(Code::Refused, said).into());
    }
    let before = Branch {
        name: old.clone(),
        reset_of: Some(args.name.clone()),
        ..branch.clone()
    };
    before.store(names.as_ref()).await?;
    let kept_ms = branch
        .expires_unix_ms
        .map(|at| at.saturating_sub(branch.created_unix_ms));
    let fresh = Branch {
        name: args.name.clone(),
        reset_of: None,
        expires_unix_ms: kept_ms.map(|ms| unix_ms() + ms),
        ..created.branch.clone()
    };
    fresh.store(names.as_ref()).await?;
    let temporary = Branch::record_name(&new);
    names.remove_record(&temporary, Branch::AUTHORITY).await?;
    config::renew(&directory, &fresh.volume, secret)?;
    drop_branch(&registry, &names, before, secret)
        .await
        .with_context(|| format!("the branch is new, but what it was stays as {old}"))?;
    match args.json {
        true => println!(
            "{}",
            json!({
                "name": args.name, "volume": fresh.volume, "end": fresh.end.map(|end| end.to_string()), "total_ms": created.total_ms,
            })
        ),
        false => println!("branch {}: {}", args.name, created.took()),
    }
    Ok(Code::Ok)
}

/// The branch, if it can be reset: it is whole, not the database, and nobody serves it.
async fn resettable(
    registry: &Registry,
    names: &Arc<dyn Storage>,
    name: &str,
    secret: Option<&Path>,
) -> anyhow::Result<Branch> {
    let branch = find(names, name).await?.ok_or_else(|| no_branch(name))?;
    let cluster = registry.config.cluster();
    let refused = |said: &str| Failure::new(Code::Refused, format!("the branch {name} {said}"));
    if branch.volume == *cluster.stored_in() || branch.volume == cluster.volume {
        return Err(refused("is the database, or was it at first")
            .advise("understudy rewind takes the database back to a moment.")
            .into());
    }
    if branch.state != BranchState::Ready {
        return Err(refused("is not complete")
            .advise(format!(
                "understudy branch drop {name} removes what was made of it."
            ))
            .into());
    }
    let there = in_volume(cluster, &branch.volume, secret)?;
    let storage = in_time(async { Ok(tier::connect(&there, "reset").await?) }).await?;
    is_stopped(&storage, name).await?;
    Ok(branch)
}

/// Names that a reset needs besides.
fn names_of(name: &str) -> anyhow::Result<[String; 2]> {
    let names = ["new", "old"].map(|suffix| format!("{name}-{suffix}"));
    match names.iter().all(|name| cli::branch_name(name).is_ok()) {
        true => Ok(names),
        false => {
            let said = format!("the name {name} is too long for a reset");
            Err(Failure::new(Code::Refused, said)
                .advise("Drop the branch, and create it again.")
                .into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_needs_names_that_a_drop_takes() {
        assert_eq!(names_of("test").unwrap(), ["test-new", "test-old"]);
        assert!(names_of(&"x".repeat(26)).is_ok());
        let error = names_of(&"x".repeat(27)).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }
}
