//! `understudy zone`: shows the zones that keep the volume, and exchanges them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context;
use coordination::config::ClusterConfig;
use dax::membership::Membership;
use dax::storage::ReplicaStatus;
use operations::operate::{OperateError, Operator};
use operations::zones::{Exchanged, Outcome, Progress, Wanted, check_together, describe, members};
use serde_json::{Value, json};

use super::operate::explain;
use super::registry::{Registry, in_time};
use crate::cli::{self, Asking, Exchanging};
use crate::exit::{Code, Failure};

/// Fewer zones than this bear no loss.
const SAFE_ZONES: usize = 3;
/// A takeover is over sooner, and what the active owns besides is found.
const ACTIVE_WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Runs what was asked for.
pub async fn run(command: cli::Zone) -> anyhow::Result<Code> {
    match command {
        cli::Zone::List(args) => list(&args.asking).await,
        cli::Zone::Cancel(args) => cancel(&args.asking).await,
        cli::Zone::Add(args) => {
            let wanted = Wanted {
                joining: args.addresses,
                zone: args.zone,
                sync_replicas: args.exchanging.sync_copies,
                ..Wanted::default()
            };
            exchange(&args.exchanging, wanted, false).await
        }
        cli::Zone::Replace(args) => {
            let wanted = Wanted {
                joining: vec![args.new],
                leaving: vec![args.old],
                sync_replicas: args.exchanging.sync_copies,
                ..Wanted::default()
            };
            exchange(&args.exchanging, wanted, false).await
        }
        cli::Zone::Remove(args) => {
            let wanted = Wanted {
                leaving: args.addresses,
                sync_replicas: args.exchanging.sync_copies,
                ..Wanted::default()
            };
            exchange(&args.exchanging, wanted, !args.force).await
        }
    }
}

async fn open(asking: &Asking) -> anyhow::Result<(Registry, Operator)> {
    let registry = Registry::open(&asking.config).await?;
    let operator = registry.operator()?;
    Ok((registry, operator))
}

async fn list(asking: &Asking) -> anyhow::Result<Code> {
    let (registry, operator) = open(asking).await?;
    // A zone that was away may not have heard of a change; some zone of every quorum has.
    let asked = in_time(async { Ok(registry.storage.accepted_epoch().await?) });
    let is_current = asked.await.is_ok();
    if !is_current {
        eprintln!("understudy: too few zones answer, so the members may have changed since");
    }
    let cluster = registry.config.cluster();
    let membership = members(&operator, cluster).map_err(explain)?;
    let replicas = registry.storage.replicas();
    let others = match operator.exchanged(cluster).await {
        Ok(volumes) => others(&volumes, &membership),
        // Only the active knows them.
        Err(error) => {
            eprintln!("understudy: other volumes that the database needs are not shown: {error}");
            Vec::new()
        }
    };
    match asking.json {
        true => println!(
            "{}",
            json!({ "members": membership, "replicas": replicas, "is_current": is_current, "others": others })
        ),
        false => {
            print!("{}", table(&membership, &replicas));
            for other in others.iter().filter(|other| other["same"] == false) {
                println!(
                    "the volume {}, which the database needs, has other zones: repeat the exchange",
                    other["volume"].as_str().unwrap_or("?")
                );
            }
        }
    }
    Ok(Code::Ok)
}

/// Volumes besides the database's own, and whether they have the same zones.
fn others(volumes: &[Exchanged], own: &Membership) -> Vec<Value> {
    let stores = |of: &Membership| {
        let stores = of.members.iter().map(|member| member.store);
        stores.collect::<BTreeSet<_>>()
    };
    let others = volumes.iter().filter(|volume| !volume.own);
    let others = others.map(|volume| {
        let same = stores(&volume.members) == stores(own);
        json!({ "volume": volume.name, "members": volume.members, "same": same })
    });
    others.collect()
}

fn table(membership: &Membership, replicas: &[ReplicaStatus]) -> String {
    let mut text = format!(
        "{:>4}  {:<16}  {:<28}  {}\n",
        "zone", "store", "address", "state"
    );
    for member in membership.everybody() {
        let joins = !membership.members.contains(member);
        let change = membership.change.as_ref();
        let leaves = change.is_some_and(|c| !c.back && c.leaving.contains(&member.store));
        let replica = replicas.iter().find(|r| r.store == Some(member.store));
        let state = match replica {
            _ if joins => "joining",
            Some(replica) if replica.rebuilding => "rebuilding",
            _ if leaves => "leaving",
            Some(replica) if replica.up => "up",
            _ => "not reached from here",
        };
        let (zone, store) = (member.zone.0, member.store.to_string());
        text += &format!("{zone:>4}  {store:<16}  {:<28}  {state}\n", member.address);
    }
    let (copies, sync) = (membership.members.len(), membership.sync_replicas);
    text += &format!("{copies} copies of every block, {sync} of which make a commit durable\n");
    if let Some(change) = &membership.change {
        text += &format!("under way: {}\n", describe(membership, change));
    }
    text
}

async fn cancel(asking: &Asking) -> anyhow::Result<Code> {
    let (registry, operator) = open(asking).await?;
    let cluster = registry.config.cluster();
    let volume = operator.cancel_exchange(cluster).await.map_err(explain)?;
    let outcome = operator
        .watch_exchange(cluster, &volume.name, None, |_| ())
        .await
        .map_err(explain)?;
    let (Outcome::Done(members) | Outcome::GivenUp(members)) = outcome;
    match asking.json {
        true => println!("{}", json!({ "cancelled": true, "members": members })),
        false => println!("given up; the zones are as they were"),
    }
    Ok(Code::Ok)
}

async fn exchange(args: &Exchanging, wanted: Wanted, careful: bool) -> anyhow::Result<Code> {
    let asking = &args.asking;
    let (registry, operator) = open(asking).await?;
    let cluster = registry.config.cluster();
    let mut told = ProgressPrinter::new(asking.json);
    let (done, members) = loop {
        // As they are now: somebody else may have ordered the same meanwhile.
        let volumes = exchanged(&operator, cluster).await?;
        let left = check_together(&volumes, &wanted).map_err(explain)?;
        if careful && left < SAFE_ZONES {
            let why = format!(
                "{left} zones would be left, and none of them could fail without commits waiting for it"
            );
            return Err(Failure::new(Code::Refused, why)
                .advise("If that is what you want: --force.")
                .into());
        }
        let Some(volume) = volumes.iter().find(|volume| !volume.is_done(&wanted)) else {
            let own = volumes.into_iter().find(|volume| volume.own);
            break (true, own.context("the active has a volume")?.members);
        };
        operator
            .begin_exchange(cluster, volume, &volumes, &wanted)
            .await
            .map_err(explain)?;
        if args.no_wait {
            match asking.json {
                true => println!("{}", json!({ "begun": true, "volume": volume.name })),
                false if volumes.len() > 1 => println!(
                    "begun in one of several volumes: the same command, without --no-wait, goes on with it and the others"
                ),
                false => println!("begun; see how far it is: understudy zone list"),
            }
            return Ok(Code::Ok);
        }
        if volumes.len() > 1 && !asking.json {
            eprintln!(
                "understudy: the zones of the volume {} are exchanged",
                volume.name
            );
        }
        let watched = operator.watch_exchange(cluster, &volume.name, Some(&wanted), |progress| {
            told.tell(progress);
        });
        match watched.await.map_err(explain)? {
            Outcome::Done(_) => {}
            Outcome::GivenUp(members) => break (false, members),
        }
    };
    if asking.json {
        println!("{}", json!({ "done": done, "members": members }));
    }
    if !done {
        let failure = Failure::new(Code::Failed, "the exchange was given up");
        return Err(failure
            .advise("List the zones: understudy zone list.")
            .into());
    }
    if !asking.json {
        print!("{}", table(&members, &registry.storage.replicas()));
        for address in &wanted.leaving {
            println!("{address} is no zone any more: stop it, and remove its directory");
        }
    }
    Ok(Code::Ok)
}

/// The volumes, also through a takeover.
async fn exchanged(operator: &Operator, cluster: &ClusterConfig) -> anyhow::Result<Vec<Exchanged>> {
    let deadline = Instant::now() + ACTIVE_WITHIN;
    loop {
        match operator.exchanged(cluster).await {
            Err(OperateError::NotNow(_)) if Instant::now() < deadline => {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            found => return found.map_err(explain),
        }
    }
}

/// Prints the progress when it has changed.
struct ProgressPrinter {
    json: bool,
    last: String,
}

impl ProgressPrinter {
    fn new(json: bool) -> ProgressPrinter {
        let last = String::new();
        ProgressPrinter { json, last }
    }

    fn tell(&mut self, progress: &Progress) {
        let text = match self.json {
            true => as_json(progress).to_string(),
            false => in_words(progress),
        };
        if text == self.last {
            return;
        }
        match self.json {
            true => println!("{text}"),
            false => eprintln!("understudy: {text}"),
        }
        self.last = text;
    }
}

fn as_json(progress: &Progress) -> Value {
    json!({
        "blocks": progress.blocks,
        "blocks_total": progress.blocks_total,
        "copies_sent": progress.copies,
        "joint": progress.joint,
        "left_seconds": progress.left.map(|left| left.as_secs()),
    })
}

fn in_words(progress: &Progress) -> String {
    if progress.joint {
        return "old and new zones count together; what was written meanwhile is on its way"
            .to_owned();
    }
    let Progress {
        blocks,
        blocks_total,
        copies,
        ..
    } = progress;
    if *blocks == 0 {
        return "recorded; waiting for the scrub that compares the zones".to_owned();
    }
    if *blocks_total == 0 {
        return format!("{blocks} blocks compared, {copies} sent");
    }
    let percent = blocks * 100 / blocks_total;
    let left = progress
        .left
        .map(|left| Duration::from_secs(left.as_secs().max(1)));
    let left = left.map_or(String::new(), |left| {
        format!(", about {} left", humantime::format_duration(left))
    });
    format!("{percent} % compared, {copies} blocks sent{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_an_estimate() {
        let mut progress = Progress {
            blocks: 250,
            blocks_total: 1000,
            copies: 200,
            joint: false,
            left: Some(Duration::from_secs(75)),
        };
        assert_eq!(
            in_words(&progress),
            "25 % compared, 200 blocks sent, about 1m 15s left"
        );
        progress.left = None;
        assert_eq!(in_words(&progress), "25 % compared, 200 blocks sent");
        assert_eq!(as_json(&progress)["left_seconds"], Value::Null);
        progress.blocks_total = 0;
        assert_eq!(in_words(&progress), "250 blocks compared, 200 sent");
    }
}
