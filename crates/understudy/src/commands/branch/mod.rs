//! `understudy branch`.

mod choose;
mod config;
mod create;
mod fill;
mod named;
mod promote;
mod rewind;

use coordination::records::{Branch, BranchState, Record};
use coordination::tier::{leave_out, remove_volume};
use serde_json::json;
use volume::claim::Claim;
use volume::past::Pin;

pub(super) use self::rewind::run as rewind;

use self::named::{claimant, find, in_volume, no_branch, parent};
use super::registry::{Registry, in_time};
use crate::cli;
use crate::exit::{Code, Failure};

pub(super) async fn run(command: cli::Branch) -> anyhow::Result<Code> {
    match command {
        cli::Branch::Create(args) => {
            tokio::select! {
                created = Box::pin(create::run(args)) => created,
                () = super::process::interrupted() => Ok(Code::Interrupted),
            }
        }
        cli::Branch::List(args) => list(args).await,
        cli::Branch::Run(args) => {
            let node = cli::Node {
                config: config::file(&args.directory),
                until_stdin_closes: args.until_stdin_closes,
            };
            super::node::run(node).await
        }
        cli::Branch::Promote(args) => promote::run(args).await,
        cli::Branch::Fill(args) => fill::run(args).await,
        cli::Branch::Drop(args) => drop_branch(args).await,
    }
}

async fn list(args: cli::ListBranches) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.config).await?;
    let names = registry.named().await?;
    let branches = in_time(async { Ok(Branch::list(names.as_ref()).await?) }).await?;
    let current = registry.config.cluster().stored_in();
    if args.json {
        let shown = branches.iter().map(|branch| {
            let mut shown = json!(branch);
            shown["current"] = json!(branch.volume == *current);
            shown
        });
        println!("{}", json!(shown.collect::<Vec<_>>()));
        return Ok(Code::Ok);
    }
    println!(
        "{:<20} {:<10} {:<18} {:<20} volume",
        "name", "state", "ends at", "asked for"
    );
    for branch in branches {
        let state = match branch.state {
            _ if branch.volume == *current => "current",
            BranchState::Making => "making",
            BranchState::Ready => "ready",
            BranchState::Dropping => "dropping",
        };
        let end = branch
            .end
            .map_or_else(|| "-".to_owned(), |end| end.to_string());
        println!(
            "{:<20} {state:<10} {end:<18} {:<20} {}",
            branch.name, branch.at, branch.volume
        );
    }
    Ok(Code::Ok)
}

/// Removes the volume, the pin, and last the record. Each step can be repeated.
async fn drop_branch(args: cli::DropBranch) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.config).await?;
    let names = registry.named().await?;
    let Some(mut branch) = find(&names, &args.name).await? else {
        return Err(no_branch(&args.name));
    };
    let cluster = registry.config.cluster();
    if branch.volume == *cluster.stored_in() || branch.volume == cluster.volume {
        let said = match branch.volume == cluster.volume {
            true => format!(
                "{} is the volume that the nodes' configurations name",
                args.name
            ),
            false => format!("the branch {} is the database now", args.name),
        };
        return Err(Failure::new(Code::Refused, said).into());
    }
    branch.state = BranchState::Dropping;
    branch.store(names.as_ref()).await?;
    let secret = args.secret.secret_file.as_deref();
    let left_out = leave_out(cluster, "drop", &branch.volume).await?;
    let removed = remove_volume(&in_volume(cluster, &branch.volume, secret)?).await;
    if let Some(left_out) = left_out {
        left_out.end(removed.is_ok()).await?;
    }
    removed?;
    let parent = parent(&registry, &branch, secret).await?;
    Claim::release(&parent, &claimant(&args.name)?).await?;
    if let Some(pin) = &branch.pin {
        Pin::remove(&parent, pin).await?;
    }
    names
        .remove_record(&branch.name(), Branch::AUTHORITY)
        .await?;
    println!(
        "branch {} is gone; its directory on this machine is yours to remove",
        args.name
    );
    Ok(Code::Ok)
}
