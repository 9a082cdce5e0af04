//! `understudy branch`.

mod choose;
mod config;
mod create;
mod drop;
mod fill;
mod making;
mod named;
mod promote;
mod reset;
mod restored;
mod rewind;

use coordination::records::{Branch, BranchState, Record};
use serde_json::json;

pub(super) use self::rewind::run as rewind;

use super::notes::until;
use super::registry::{Registry, in_time};
use crate::cli;
use crate::exit::Code;

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
        cli::Branch::Reset(args) => {
            tokio::select! {
                made = Box::pin(reset::run(args)) => made,
                () = super::process::interrupted() => Ok(Code::Interrupted),
            }
        }
        cli::Branch::Drop(args) => drop::run(args).await,
        cli::Branch::Fill(args) => fill::run(args).await,
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
        "{:<20} {:<10} {:<18} {:<20} {:<30} kept",
        "name", "state", "ends at", "asked for", "volume"
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
            "{:<20} {state:<10} {end:<18} {:<20} {:<30} {}",
            branch.name,
            branch.at,
            branch.volume.as_str(),
            branch
                .expires_unix_ms
                .map_or("until it is dropped".to_owned(), until)
        );
    }
    Ok(Code::Ok)
}
