//! `understudy branch fill`: the zones copy what a branch shows of its parent, which it needs no more then. Apache Cassandra copies
//! nothing by itself: there, the command does.
//!
//! ```text
//!   record "fill" ─▶ each zone copies ─▶ all zones have all, twice in a row ─▶ record "filled" ─▶ all zones know it ─▶ pin goes
//! ```
//!
//! The zones do it by themselves. Whatever ends the command early, they go on; repeating it waits for them again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination::config::ClusterConfig;
use coordination::records::{Branch, BranchState, Filling, Record};
use coordination::tier;
use dax::error::ErrorKind;
use dax::ids::{StoreId, Version};
use dax::layer::{FILL, FILLED};
use dax::storage::{Authority, Fill, Storage};
use serde_json::json;
use volume::past::Pin;

use super::named::{find, in_volume, is_of_kind, no_branch, parent};
use crate::cli;
use crate::commands::registry::{Registry, in_time};
use crate::exit::{Code, Failure};

const LOOK_EVERY: Duration = Duration::from_millis(500);
const PRINT_EVERY: Duration = Duration::from_secs(5);
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Those that have answered: stores and members that a second look has to find again.
type Who = (Vec<Option<StoreId>>, Option<Version>);

/// One look at all zones of a branch.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// Some zone does not count at present, or has not said how far it is.
    Missing,
    /// The least that a zone has done, in percent.
    Filling(u64),
    /// All zones have everything.
    Done(Who),
    /// And all of them know it.
    Ended,
}

pub(super) async fn run(args: cli::FillBranch) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.config).await?;
    let names = registry.named().await?;
    let name = &args.name;
    let branch = find(&names, name).await?.ok_or_else(|| no_branch(name))?;
    if branch.state != BranchState::Ready {
        let said = format!("the branch {name} is not complete");
        return Err(Failure::new(Code::Refused, said).into());
    }
    let secret = args.secret.secret_file.as_deref();
    let there = in_volume(registry.config.cluster(), &branch.volume, secret)?;
    let storage = in_time(async { Ok(tier::connect(&there, "fill").await?) }).await?;
    let filling = Filling::load(storage.as_ref()).await?;
    if filling.is_some_and(|filling| !filling.done) {
        let said = format!("the image of {name} is still copied from its repository");
        return Err(Failure::new(Code::Refused, said)
            .advise("Wait until understudy status says no more of it.")
            .into());
    }
    let began = Instant::now();
    tokio::select! {
        filled = fill(&there, &storage, name, args.json) => filled?,
        () = crate::commands::process::interrupted() => {
            match there.store {
                Some(_) => eprintln!("nothing is lost; understudy branch fill {name} begins again"),
                None => eprintln!("the zones go on; understudy branch fill {name} waits for them again"),
            }
            return Ok(Code::Interrupted);
        }
    }
    if let Some(pin) = &branch.pin {
        match parent(&registry, &branch, secret).await {
            Ok(parent) => Pin::remove(&parent, pin).await?,
            // It was dropped when the zones had ended, before this command did.
            Err(error) if is_of_kind(&error, ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    if let (Some(image), true) = (&branch.parent, branch.owns_parent) {
        // First, so that nobody looks for the volume any more.
        let record = Filling::PREFIX;
        storage.remove_record(record, Filling::AUTHORITY).await?;
        tier::remove_volume(&in_volume(registry.config.cluster(), image, secret)?).await?;
    }
    let filled = Branch {
        owns_parent: false,
        parent: None,
        pin: None,
        ..branch
    };
    filled.store(names.as_ref()).await?;
    match args.json {
        true => println!(
            "{}",
            json!({ "branch": name, "total_ms": began.elapsed().as_millis() as u64 })
        ),
        false => println!("the branch {name} needs no other volume now"),
    }
    Ok(Code::Ok)
}

/// Copies what the branch shows, or has the zones do so.
async fn fill(
    there: &ClusterConfig,
    storage: &Arc<dyn Storage>,
    name: &str,
    quiet: bool,
) -> anyhow::Result<()> {
    if storage.settings().layer.is_none() {
        return Ok(());
    }
    let mut printed = None;
    let mut progress = |copied: usize, all: usize| {
        if !quiet && is_due(&mut printed) {
            println!("{name}: {} %", copied * 100 / all.max(1));
        }
    };
    match tier::fill_volume(there, &mut progress).await? {
        true => Ok(()),
        false => fill_zones(storage, name, quiet).await,
    }
}

/// Has the zones copy, and says when all have everything.
async fn fill_zones(storage: &Arc<dyn Storage>, name: &str, quiet: bool) -> anyhow::Result<()> {
    put(storage, FILL).await?;
    let mut before = None;
    let mut printed = None;
    let mut fills = Vec::new();
    loop {
        let (found, now) = look(storage).await?;
        for address in begun_again(&fills, &now) {
            eprintln!(
                "{name}: the zone at {address} has to begin again; its log says why, such as no room for the copies"
            );
        }
        fills = now;
        if !quiet && is_due(&mut printed) {
            match &found {
                Look::Missing => println!("{name}: waits until all zones can be asked"),
                Look::Filling(percent) => println!("{name}: {percent} % in all zones"),
                Look::Done(_) | Look::Ended => {}
            }
        }
        match found {
            Look::Ended => return Ok(()),
            Look::Done(who) if before.as_ref() == Some(&who) => {
                put(storage, FILLED).await?;
                before = Some(who);
            }
            Look::Done(who) => before = Some(who),
            Look::Missing | Look::Filling(_) => before = None,
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// True if the last progress was printed long ago; it is printed now then.
fn is_due(printed: &mut Option<Instant>) -> bool {
    let is_due = printed.is_none_or(|at| at.elapsed() >= PRINT_EVERY);
    if is_due {
        *printed = Some(Instant::now());
    }
    is_due
}

async fn put(storage: &Arc<dyn Storage>, record: &str) -> anyhow::Result<()> {
    let value = b"{}".to_vec().into();
    in_time(async { Ok(storage.put_record(record, value, Authority::Node).await?) }).await
}

/// Progress of each zone that has answered, by its address.
type Fills = Vec<(String, Fill)>;

/// Zones that could not copy everything they had looked at.
fn begun_again<'a>(before: &Fills, now: &'a Fills) -> impl Iterator<Item = &'a str> {
    let before: HashMap<String, u64> = before
        .iter()
        .map(|(address, fill)| (address.clone(), fill.looked))
        .collect();
    let again = now.iter().filter(move |(address, fill)| {
        !fill.done && before.get(address).is_some_and(|had| fill.looked < *had)
    });
    again.map(|(address, _)| address.as_str())
}

async fn look(storage: &Arc<dyn Storage>) -> anyhow::Result<(Look, Fills)> {
    let usage = tokio::time::timeout(ANSWERED_WITHIN, storage.usage()).await;
    let usage = usage.unwrap_or_else(|_| Ok(Vec::new()))?;
    let (replicas, members) = (storage.replicas(), storage.membership());
    let address = |replica| {
        let at = replicas.iter().find(|status| status.replica == replica);
        at.map_or("?", |status| &status.address).to_owned()
    };
    if let Some((replica, _)) = usage.iter().find(|(_, usage)| usage.fill.is_none()) {
        let said = format!(
            "the zone server at {} cannot fill a branch",
            address(*replica)
        );
        return Err(Failure::new(Code::Refused, said)
            .advise("It is of an older release: upgrade it.")
            .into());
    }
    let fills = usage
        .iter()
        .filter_map(|(replica, usage)| Some((*replica, usage.fill?)));
    let fills: Fills = fills
        .map(|(replica, fill)| (address(replica), fill))
        .collect();
    let changing = members.as_ref().is_some_and(|m| m.change.is_some());
    if changing || usage.len() < replicas.len() {
        return Ok((Look::Missing, fills));
    }
    let stores = replicas.iter().map(|status| status.store).collect();
    let found = judge(&fills, (stores, members.map(|m| m.version)));
    Ok((found, fills))
}

/// Judges the answers of all zones.
fn judge(fills: &[(String, Fill)], who: Who) -> Look {
    let percent = |(_, fill): &(String, Fill)| match fill.done {
        true => 100,
        // The last percent is the committer's.
        false => (fill.looked * 100 / fill.all.max(1)).min(99),
    };
    match fills.iter().map(percent).min() {
        Some(100) if fills.iter().all(|(_, fill)| fill.ended) => Look::Ended,
        Some(100) => Look::Done(who),
        Some(percent) => Look::Filling(percent),
        None => Look::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_is_filled_when_all_zones_are_and_know_it() {
        let fill = |done, ended, looked| {
            let fill = Fill {
                done,
                ended,
                looked,
                all: 200,
            };
            ("zone".to_owned(), fill)
        };
        let who = || (vec![StoreId::new(1), StoreId::new(2)], None);
        let look = |fills: &[(String, Fill)]| judge(fills, who());
        assert_eq!(look(&[]), Look::Missing);
        let full = || fill(true, false, 200);
        assert_eq!(look(&[full(), fill(false, false, 50)]), Look::Filling(25));
        // What was written meanwhile is looked at as well.
        assert_eq!(look(&[full(), fill(false, false, 300)]), Look::Filling(99));
        let ended = || fill(true, true, 0);
        assert_eq!(look(&[full(), ended()]), Look::Done(who()));
        assert_eq!(look(&[ended(), ended()]), Look::Ended);
        let again = |before, now| begun_again(&vec![before], &vec![now]).count();
        assert_eq!(again(fill(false, false, 9), fill(false, false, 10)), 0);
        assert_eq!(again(fill(false, false, 10), fill(false, false, 0)), 1);
        assert_eq!(again(fill(false, false, 10), ended()), 0);
    }
}
