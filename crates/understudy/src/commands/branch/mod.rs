//! `understudy branch`.

mod choose;
mod config;
mod create;
mod named;

use coordination::records::{Branch, BranchState, Record};
use coordination::tier::remove_volume;
use serde_json::json;
use volume::claim::Claim;
use volume::past::Pin;

use self::named::{claimant, find};
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
        cli::Branch::Drop(args) => drop_branch(args).await,
    }
}

async fn list(args: cli::ListBranches) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.config).await?;
    let storage = &registry.storage;
    let branches = in_time(async { Ok(Branch::list(storage.as_ref()).await?) }).await?;
    if args.json {
        println!("{}", json!(branches));
        return Ok(Code::Ok);
    }
    println!(
        "{:<20} {:<10} {:<18} {:<20} volume",
        "name", "state", "ends at", "asked for"
    );
    for branch in branches {
        let state = match branch.state {
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
    let storage = &registry.storage;
    let Some(mut branch) = find(storage, &args.name).await? else {
        let said = format!("there is no branch {}", args.name);
        return Err(Failure::new(Code::Refused, said).into());
    };
    branch.state = BranchState::Dropping;
    branch.store(storage.as_ref()).await?;
    let mut cluster = registry.config.cluster().clone();
    cluster.volume = branch.volume.clone();
    let key = tempfile::NamedTempFile::new()?;
    if cluster.key.is_some() {
        let secret = args.secret.secret_file.as_deref();
        std::fs::write(
            key.path(),
            config::key_of(&branch.volume, secret)?.to_hex().as_bytes(),
        )?;
        cluster.key = Some(key.path().to_owned());
    }
    remove_volume(&cluster).await?;
    Claim::release(storage, &claimant(&args.name)?).await?;
    if let Some(pin) = &branch.pin {
        Pin::remove(storage, pin).await?;
    }
    storage
        .remove_record(&branch.name(), Branch::AUTHORITY)
        .await?;
    println!(
        "branch {} is gone; its directory on this machine is yours to remove",
        args.name
    );
    Ok(Code::Ok)
}
