//! `understudy branch promote`: a branch takes the place of the database.
//!
//! ```text
//!   own the branch's epoch, above the database's ─▶ control, horizons, beat ─▶ own the database's epoch (nobody serves) ─▶ record "moved"
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
    ActiveState, Branch, BranchState, Control, Heartbeat, Horizon, Record, unix_ms,
};
use coordination::tier;
use dax::error::ErrorKind;
use dax::ids::{Epoch, NodeName};
use dax::storage::Storage;
use serde_json::json;

use super::named::{find, in_volume, is_stopped, no_branch};
use crate::cli;
use crate::commands::registry::{Registry, in_time};
use crate::exit::{Code, Failure};

/// Name of this command as an owner.
const CLIENT: &str = "promote";
/// Nodes may be faster so many times.
const TRIES: u32 = 5;
/// Takeovers of the database that may happen while a try is under way.
const TAKEOVERS: u32 = 4;
/// Time to wait for a node that serves.
const SERVED_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A database that goes on in another volume.
pub(super) struct Promoted {
    /// Name of the branch that it was until then.
    pub left: String,
    /// Time until a node served, from when none did.
    pub served_ms: Option<u64>,
}

impl Promoted {
    /// Tells a person, with the way back.
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
            .advise(format!(
                "understudy branch drop {name} removes what was made of it."
            ))
            .into());
    }
    let left = keep_name(&names, cluster).await?;
    if branch.expires_unix_ms.is_some() {
        let kept = Branch {
            expires_unix_ms: None,
            ..branch.clone()
        };
        kept.store(names.as_ref()).await?;
    }
    let there = in_volume(cluster, &branch.volume, secret)?;
    let target = in_time(async { Ok(tier::connect(&there, CLIENT).await?) }).await?;
    let me = NodeName::new(CLIENT)?;
    let beat = is_stopped(&target, name).await?;
    if let Some(control) = Control::load(registry.storage.as_ref()).await? {
        control.store(target.as_ref()).await?;
    }
    let mut tries = TRIES;
    let (target, epoch, began) = loop {
        let (target, epoch) = own_above(&there, &registry.storage, &me).await?;
        forget_horizons(&registry.storage, &target).await?;
        let vacant = Heartbeat {
            epoch,
            counter: 1,
            state: ActiveState::Released { to: None },
            ..beat.clone()
        };
        vacant.store(target.as_ref()).await?;
        // Somebody may drop or reset it meanwhile.
        let now = find(&names, name).await?;
        if now.is_none_or(|now| now.volume != branch.volume || now.state != BranchState::Ready) {
            let said = format!("somebody drops or resets the branch {name}");
            return Err(Failure::new(Code::Refused, said).into());
        }
        tries -= 1;
        let source = tier::connect(cluster, CLIENT).await?;
        let began = Instant::now();
        match leave(source.as_ref(), cluster, &there, epoch, &me).await {
            Ok(()) => break (target, epoch, began),
            Err(error) if error.is_fenced() && tries > 0 => {
                tracing::info!(%error, "a node was faster: trying again");
            }
            Err(error) => return Err(error.into()),
        }
    };
    // It costs time alone if a node is there already, or this is not heard.
    let _ = target.release().await;
    let looking = tier::connect(&there, CLIENT).await?;
    let served = tokio::time::timeout(SERVED_WITHIN, is_served(&looking, epoch)).await;
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
        owns_parent: false,
        at: "-".to_owned(),
        end: None,
        created_unix_ms: unix_ms(),
        expires_unix_ms: None,
        reset_of: None,
    };
    first.store(names.as_ref()).await?;
    Ok(first.name)
}

/// Owns an epoch of the branch that is above those of the database, also of takeovers that happen meanwhile: proxies take the later
/// one for newer.
async fn own_above(
    there: &ClusterConfig,
    database: &Arc<dyn Storage>,
    me: &NodeName,
) -> dax::Result<(Arc<dyn Storage>, Epoch)> {
    let above = Epoch(database.accepted_epoch().await?.epoch.0 + TAKEOVERS);
    loop {
        // A handle owns one epoch, for good.
        let target = tier::connect(there, CLIENT).await?;
        let epoch = target.own_epoch(me).await?;
        if epoch > above {
            return Ok((target, epoch));
        }
        // The next one has no lease to wait for then.
        let _ = target.release().await;
    }
}

/// Has the database leave its volume: from when `source` owns the epoch nobody serves there, and whoever would take over finds the
/// record. Whoever moves it at the same time owns an epoch before this one, and is seen, or a later one, and fences this.
async fn leave(
    source: &dyn Storage,
    from: &ClusterConfig,
    there: &ClusterConfig,
    epoch: Epoch,
    me: &NodeName,
) -> dax::Result<()> {
    if source.own_epoch(me).await? >= epoch {
        let said = "nodes took over many times meanwhile";
        return Err(dax::Error::new(ErrorKind::Fenced, said));
    }
    if let Some(other) = tier::has_moved(from, source).await? {
        let _ = source.release().await;
        let said = format!(
            "the database was moved to the volume {} meanwhile",
            other.volume
        );
        return Err(dax::Error::new(ErrorKind::Conflict, said));
    }
    if let Some(moved) = &there.moved {
        moved.store(source).await?;
    }
    let _ = source.release().await;
    Ok(())
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

#[cfg(test)]
mod tests {
    use dax::ids::VolumeName;
    use dax::memory::MemoryCluster;
    use dax::storage::VolumeSettings;

    use super::*;

    async fn with_horizons(horizons: &[(u32, u64)]) -> Arc<dyn Storage> {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let owner: Arc<dyn Storage> = cluster.client();
        owner
            .own_epoch(&NodeName::new("north").unwrap())
            .await
            .unwrap();
        for (epoch, xid) in horizons {
            let horizon = serde_json::json!({ "epoch": epoch, "xid": xid });
            let horizon: Horizon = serde_json::from_value(horizon).unwrap();
            horizon.store(owner.as_ref()).await.unwrap();
        }
        owner
    }

    // hazard: MOVE-2
    #[tokio::test]
    async fn no_horizon_of_another_history_tells_of_a_commit_in_doubt() {
        let database = with_horizons(&[(2, 100), (5, 300)]).await;
        let branch = with_horizons(&[(3, 150), (5, 200)]).await;
        forget_horizons(&database, &branch).await.unwrap();
        let known = Horizon::known(branch.as_ref()).await.unwrap();
        let epochs: Vec<u32> = known.iter().map(|horizon| horizon.epoch.0).collect();
        assert_eq!(epochs, [1, 2, 3, 5], "the one of this command as well");
        assert!(
            known.iter().all(|horizon| horizon.xid.is_none()),
            "{known:?}"
        );
    }

    // hazard: MOVE-6
    #[tokio::test]
    async fn of_two_that_move_the_database_at_once_one_is_refused() {
        let text = "name = \"north\"\nvolume = \"main\"\nzones = [\"localhost:1\"]\n";
        let from = ClusterConfig::parse(text, None).unwrap();
        let to = |volume: &str| in_volume(&from, &VolumeName::new(volume).unwrap(), None).unwrap();
        let (one, other) = (to("one"), to("other"));
        let volume = MemoryCluster::new(VolumeSettings::default());
        let me = NodeName::new(CLIENT).unwrap();
        let leave = async |there: &ClusterConfig, epoch| {
            let source = volume.client();
            leave(source.as_ref(), &from, there, Epoch(epoch), &me).await
        };
        let low = leave(&one, 1).await.unwrap_err();
        assert!(low.is_fenced(), "a branch whose epoch is not above: {low}");
        leave(&one, 9).await.unwrap();
        let second = leave(&other, 9).await.unwrap_err();
        assert_eq!(second.kind(), ErrorKind::Conflict, "{second}");
        let there = tier::has_moved(&from, volume.client().as_ref()).await;
        assert_eq!(there.unwrap(), one.moved);
    }
}
