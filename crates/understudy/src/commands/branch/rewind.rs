//! `understudy rewind`: a branch at the moment, in the place of the database.

use serde_json::json;

use super::create::create;
use super::making::After;
use super::named::{Scratch, drop_advice};
use super::promote;
use crate::cli;
use crate::commands::registry::Registry;
use crate::exit::Code;

/// Runs the command. Whatever ends it before the exchange changes nothing of the database.
pub async fn run(args: cli::Rewind) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.config).await?;
    let cluster = registry.config.cluster();
    let name = format!("rewind-{}", cluster.moves() + 1);
    let place = Scratch::create(&registry)?;
    let directory = place.path().to_owned();
    let branch = cli::CreateBranch {
        name: name.clone(),
        config: args.config.clone(),
        directory: directory.clone(),
        at: args.to.clone(),
        no_checkpoint: true,
        from: args.from.clone(),
        port: None,
        mask: Vec::new(),
        ttl: None,
        secret: args.secret.clone(),
        within: args.within,
        json: args.json,
    };
    let created = tokio::select! {
        created = Box::pin(create(&registry, &branch, &directory, After::Database)) => created,
        () = crate::commands::process::interrupted() => return Ok(drop_advice(&name)),
    };
    let created = created?;
    // It is the nodes' configurations by which the database is served.
    if let Err(error) = place.remove() {
        tracing::warn!(%error, "cannot remove {}", directory.display());
    }
    let secret = args.secret.secret_file.as_deref();
    let promoted = promote::exchange(&registry, &name, secret).await?;
    let end = created.branch.end.map(|end| end.to_string());
    if args.json {
        let shown = json!({
            "branch": name, "end": end, "branch_ms": created.total_ms, "pause_ms": promoted.served_ms,
            "left": promoted.left, "volume": created.branch.volume,
        });
        println!("{shown}");
        return Ok(Code::Ok);
    }
    println!("branch {name}: {}", created.took());
    promoted.print(&name);
    Ok(Code::Ok)
}
