//! `understudy branch promote`: a branch takes the place of the database.
//!
//! ```text
//!   own the branch's epoch, above the database's ─▶ horizons, control ─▶ own the database's epoch (nobody serves) ─▶ record "moved"
//! ```
//!
//! Invariant: the record "moved" is the exchange. What ends the command before it changes nothing; a node that takes over in between
//! has the record refused.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination::config::ClusterConfig;
use coordination::records::{
    ActiveState, Branch, BranchState, Control, Heartbeat, Horizon, Moved, Record, unix_ms,
};
use coordination::tier;
use dax::ids::{Epoch, NodeName};
use dax::storage::Storage;
use serde_json::json;

use super::named::{find, in_volume};
use super::no_branch;
use crate::cli;
use crate::commands::registry::{Registry, in_time};
use crate::exit::{Code, Failure};

/// How long it is waited for a node that serves.
const SERVED_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A database that goes on in another volume.
pub(super) struct Promoted {
    /// Name of the branch that it was until then.
    pub left: String,
    /// Time until a node served, from when none did.
    pub served_ms: Option<u64>,
}

impl Promoted {
    /// What a person wants to know.
    pub(super) fn print(&self, name: &str) {
        let served = match self.served_ms {
            Some(ms) => format!("served again after {:.1} s", ms as f64 / 1000.0),
            None => "no node serves it yet".to_owned(),
        };
        println!(
            "the branch {name} is the database now ({served})\n\
             undo it:       understudy branch promote {}",
            self.left
        );
    }
}

pub(super) async fn run(args: cli::PromoteBranch) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.config).await?;
    let secret = args.secret.secret_file.as_deref();
    let promoted = exchange(&registry, &args.name, secret).await?;
    match args.json {
        true => println!(
            "{}",
            json!({ "branch": args.name, "left": promoted.left, "pause_ms": promoted.served_ms })
        ),
        false => promoted.print(&args.name),
    }
    Ok(Code::Ok)
}

/// Puts the branch in the place of the database.
pub(super) async fn exchange(
    registry: &Registry,
    name: &str,
    secret: Option<&Path>,
) -> anyhow::Result<Promoted> {
    registry.postgres()?;
    let names = registry.named().await?;
    let cluster = registry.config.cluster();
    let found = find(&names, name).await?;
    let branch = found.ok_or_else(|| no_branch(name))?;
    if branch.volume == *cluster.stored_in() {
        let said = format!("the branch {name} is the database already");
        return Err(Failure::new(Code::Refused, said).into());
    }
    if branch.state != BranchState::Ready {
        let said = format!("the branch {name} is not complete");
        return Err(Failure::new(Code::Refused, said)
            .advise(format!("understudy branch drop {name} removes what was made of it."))
            .into());
    }
    let left = keep_name(&names, cluster).await?;
    let there = in_volume(cluster, &branch.volume, secret)?;
    let target = in_time(async { Ok(tier::connect(&there, "promote").await?) }).await?;
    let me = NodeName::new("promote")?;
    let beat = own(&target, &registry.storage, name, &me).await?;
    forget_horizons(&registry.storage, &target).await?;
    if let Some(control) = Control::load(registry.storage.as_ref()).await? {
        control.store(target.as_ref()).await?;
    }

    let began = Instant::now();
    let source = in_time(async { Ok(tier::connect(cluster, "promote").await?) }).await?;
    let last = source.own_epoch(&me).await?;
    // Somebody may have taken over since.
    let mut epoch = target.epoch().unwrap_or_default();
    while epoch <= last {
        epoch = target.own_epoch(&me).await?;
    }
    forget_horizons(&source, &target).await?;
    let vacant = Heartbeat {
        epoch,
        counter: 1,
        state: ActiveState::Released { to: None },
        ..beat
    };
    vacant.store(target.as_ref()).await?;
    let moved = there.moved.as_ref().map(|moved| Moved {
        unix_ms: unix_ms(),
        ..moved.clone()
    });
    let moved = moved.expect("it is the way to another volume");
    moved.store(source.as_ref()).await?;
    source.release().await?;
    target.release().await?;
    let served = tokio::time::timeout(SERVED_WITHIN, is_served(&target, epoch)).await;
    Ok(Promoted {
        left,
        served_ms: match served {
            Ok(served) => served.map(|()| Some(began.elapsed().as_millis() as u64))?,
            Err(_) => None,
        },
    })
}

/// Sees to it that what the database has been until now has a name. Returns that.
async fn keep_name(names: &Arc<dyn Storage>, cluster: &ClusterConfig) -> anyhow::Result<String> {
    let volume = cluster.stored_in();
    let branches = in_time(async { Ok(Branch::list(names.as_ref()).await?) }).await?;
    if let Some(known) = branches.into_iter().find(|branch| branch.volume == *volume) {
        return Ok(known.name);
    }
    // The one that the configurations name has never been a branch.
    let first = Branch {
        name: volume.to_string(),
        state: BranchState::Ready,
        volume: volume.clone(),
        parent: None,
        pin: None,
        at: "-".to_owned(),
        end: None,
        created_unix_ms: unix_ms(),
    };
    first.store(names.as_ref()).await?;
    Ok(first.name)
}

/// Owns an epoch of the branch above every one of the database, so that proxies take it for newer. Returns the branch's last beat.
async fn own(
    target: &Arc<dyn Storage>,
    database: &Arc<dyn Storage>,
    name: &str,
    me: &NodeName,
) -> anyhow::Result<Heartbeat> {
    let beat = Heartbeat::load(target.as_ref()).await?;
    let beat = beat.ok_or_else(|| {
        Failure::new(Code::Refused, format!("the branch {name} holds no database"))
    })?;
    // Nobody serves a volume that the database has left, whatever its last beat says.
    let was_left = Moved::load(target.as_ref()).await?.is_some();
    if !was_left && !matches!(beat.state, ActiveState::Released { .. }) {
        let said = format!("the branch {name} is served by {}, or was not stopped in order", beat.node);
        return Err(Failure::new(Code::Refused, said)
            .advise("Stop its nodes first. If they were killed, start one again and stop it.")
            .into());
    }
    let above = database.accepted_epoch().await?.epoch.next();
    while target.own_epoch(me).await? <= above {}
    Ok(beat)
}

/// Nothing is known in the branch of commits whose answers were lost in another history: their ids may be others' there.
async fn forget_horizons(
    database: &Arc<dyn Storage>,
    target: &Arc<dyn Storage>,
) -> anyhow::Result<()> {
    let epoch = target.epoch().unwrap_or_default();
    let of_both = [
        Horizon::known(database.as_ref()).await?,
        Horizon::known(target.as_ref()).await?,
    ];
    let epochs = of_both.iter().flatten().map(|horizon| horizon.epoch);
    let epochs: BTreeSet<Epoch> = epochs.chain([epoch]).collect();
    let recorded = Horizon::list(target.as_ref()).await?;
    for epoch in epochs {
        let unknown = Horizon { epoch, xid: None };
        if !recorded.contains(&unknown) {
            unknown.store(target.as_ref()).await?;
        }
    }
    Ok(())
}

/// Waits until a node serves in a later epoch than this one.
async fn is_served(storage: &Arc<dyn Storage>, after: Epoch) -> anyhow::Result<()> {
    loop {
        let beat = Heartbeat::load(storage.as_ref()).await?;
        if beat.is_some_and(|beat| beat.epoch > after && beat.state == ActiveState::Serving) {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
