//! Exchanging zones while the cluster serves: one joins, one leaves, one takes another's place.
//!
//! ```text
//!   look who the members are ─▶ ask the newcomers which stores they are ─▶ order the active ─▶ watch it
//! ```
//!
//! The active carries an exchange out, and whoever takes over goes on with it; nothing here is needed for that, and
//! asking again for what is under way, or done, only watches it.

mod volumes;

use std::time::Duration;

use coordination::channel::Request;
use coordination::config::ClusterConfig;
use dax::client::identify;
use dax::ids::{StoreId, VolumeName, ZoneId};
use dax::membership::{Change, Member, Membership, usual_sync_replicas};
use serde_json::Value;
use tokio::time::Instant;

pub use self::volumes::{Exchanged, check_together};
use crate::operate::{OperateError, Operator, Result};

/// How often it is looked how far an exchange is.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long an agent may take to say how it is.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long an active may serve without a volume whose exchange is watched.
const MISSED_FOR: Duration = Duration::from_secs(90);
/// How long a zone may take to say which store it is.
const IDENTIFY_WITHIN: Duration = Duration::from_secs(10);

/// What is wanted of the zones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Addresses of those that come.
    pub joining: Vec<String>,
    /// Addresses, or store ids, of those that go.
    pub leaving: Vec<String>,
    /// Where those that come without taking another's place are; a zone of its own for each, if not given.
    pub zone: Option<u8>,
    /// Copies that make a write durable afterwards; as few as are safe, if not given.
    pub sync_replicas: Option<u8>,
}

/// How far an exchange is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// Blocks that the scrub which fills the newcomers has compared.
    pub blocks: u64,
    /// About so many there are; 0 if that is not known.
    pub blocks_total: u64,
    /// Copies that it has sent.
    pub copies: u64,
    /// Both old and new zones count already: it is about to end.
    pub joint: bool,
    /// What is left at the present speed.
    pub left: Option<Duration>,
}

/// How an exchange ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// As wanted; these are the members.
    Done(Membership),
    /// It was given up; these are the members.
    GivenUp(Membership),
}

fn refused<T>(why: impl Into<String>) -> Result<T> {
    Err(OperateError::Refused(why.into()))
}

fn not_now<T>(why: impl Into<String>) -> Result<T> {
    Err(OperateError::NotNow(why.into()))
}

/// The members, which Cassandra does not have.
///
/// # Errors
/// [`OperateError::Refused`] with what to do.
pub fn members(operator: &Operator, config: &ClusterConfig) -> Result<Membership> {
    if config.store.is_some() {
        return refused(
            "this cluster's storage tier is Cassandra, which looks after its own servers: add and remove them \
             with nodetool",
        );
    }
    match operator.storage.membership() {
        Some(membership) => Ok(membership),
        None => refused(
            "the volume's zones are not recorded yet: that happens once an active of this version has reached \
             all of them, each of this version, too",
        ),
    }
}

fn find<'m>(membership: &'m Membership, name: &str) -> Result<&'m Member> {
    let known = |m: &&Member| m.address == name || m.store.to_string() == name;
    let found = membership.everybody().find(known);
    found.ok_or_else(|| OperateError::Refused(format!("{name} is no zone of the volume")))
}

/// True if the members are as wanted.
fn is_done(membership: &Membership, wanted: &Wanted) -> bool {
    let has = |address: &String| membership.members.iter().any(|m| m.address == *address);
    let named = |name: &String| find(membership, name).is_ok();
    membership.change.is_none()
        && wanted.joining.iter().all(has)
        && !wanted.leaving.iter().any(named)
}

/// True if what is under way is what is wanted.
fn is_under_way(membership: &Membership, wanted: &Wanted) -> bool {
    let Some(change) = membership.change.as_ref().filter(|change| !change.back) else {
        return false;
    };
    let joins = |address: &String| change.joining.iter().any(|m| m.address == *address);
    let leaves =
        |name: &String| find(membership, name).is_ok_and(|m| change.leaving.contains(&m.store));
    change.joining.len() == wanted.joining.len()
        && change.leaving.len() == wanted.leaving.len()
        && wanted.joining.iter().all(joins)
        && wanted.leaving.iter().all(leaves)
}

/// How many copies a write waits for after a change of zones, if nobody says: as many as is usual for so many, and no fewer
/// than before unless there are fewer zones.
fn sync_replicas_after(before: &Membership, after: &[Member]) -> u8 {
    let usual = usual_sync_replicas(after);
    match after.len() < before.members.len() {
        true => usual,
        false => usual.max(before.sync_replicas),
    }
}

impl Operator {
    /// Begins what is wanted of a volume, one of `all`, unless it is under way or done already.
    ///
    /// # Errors
    /// [`OperateError::Refused`] if another exchange is under way or this one is invalid;
    /// [`OperateError::Channel`] if the active did not take the order.
    pub async fn begin_exchange(
        &self,
        config: &ClusterConfig,
        volume: &Exchanged,
        all: &[Exchanged],
        wanted: &Wanted,
    ) -> Result<()> {
        let membership = &volume.members;
        if is_done(membership, wanted) || is_under_way(membership, wanted) {
            return Ok(());
        }
        if let Some(change) = &membership.change {
            return refused(format!(
                "another exchange is under way ({}): wait for it, or give it up with understudy zone cancel",
                describe(membership, change)
            ));
        }
        let mut wanted = wanted.clone();
        let done = all.iter().find(|other| other.is_done(&wanted));
        if let Some(done) = done {
            wanted.sync_replicas = Some(done.members.sync_replicas);
        }
        let change = change(config, volume, &wanted).await?;
        let order = Request::Exchange {
            joining: change.joining,
            leaving: change.leaving,
            sync_replicas: change.sync_replicas,
        };
        self.order_in(volume, order).await
    }

    /// Gives up what is under way. Returns the volume in which that was.
    ///
    /// # Errors
    /// As [`begin_exchange`](Operator::begin_exchange); [`OperateError::Refused`] if another volume has the new zones already.
    pub async fn cancel_exchange(&self, config: &ClusterConfig) -> Result<Exchanged> {
        members(self, config)?;
        let volumes = self.volumes(config).await?;
        let mut changing = volumes.iter();
        let Some(volume) = changing.find(|volume| volume.members.change.is_some()) else {
            return refused("no exchange of zones is under way");
        };
        let has_ended = |other: &&Exchanged| other.members.is_target_of(&volume.members);
        let goes_back = |change: &Change| change.back;
        let is_back = volume.members.change.as_ref().is_some_and(goes_back);
        if let Some(ended) = volumes.iter().find(has_ended).filter(|_| !is_back) {
            return refused(format!(
                "the volume {} has the new zones already: repeat the exchange until it has ended, and exchange them back then",
                ended.name
            ));
        }
        self.order_in(volume, Request::CancelExchange).await?;
        Ok(volume.clone())
    }

    async fn order_in(&self, volume: &Exchanged, order: Request) -> Result<()> {
        let order = match volume.by_name {
            true => Request::InVolume {
                volume: volume.name.clone(),
                order: Box::new(order),
            },
            false => order,
        };
        self.order(order).await
    }

    /// Watches an exchange in a volume until it has ended; `tell` hears how far it is. While nobody serves, it waits.
    ///
    /// # Errors
    /// [`OperateError`]
    pub async fn watch_exchange(
        &self,
        config: &ClusterConfig,
        volume: &VolumeName,
        wanted: Option<&Wanted>,
        mut tell: impl FnMut(&Progress),
    ) -> Result<Outcome> {
        let mut speed = Speed::default();
        let mut missed_since: Option<Instant> = None;
        loop {
            let volumes = self.volumes(config).await.ok();
            let is_told = volumes.is_some();
            let found = volumes.and_then(|all| all.into_iter().find(|one| one.name == *volume));
            match found {
                Some(Exchanged {
                    members,
                    scrub,
                    own,
                    ..
                }) => {
                    missed_since = None;
                    let Some(change) = &members.change else {
                        let done = wanted.is_some_and(|wanted| is_done(&members, wanted));
                        return Ok(match done {
                            true => Outcome::Done(members),
                            false => Outcome::GivenUp(members),
                        });
                    };
                    // The command's handle is of the database's own.
                    let total = if own { self.blocks().await } else { 0 };
                    tell(&speed.progress(&scrub, change.joint, total));
                }
                None if is_told => {
                    let since = *missed_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > MISSED_FOR {
                        return refused(format!(
                            "the active does not own the volume {volume} any more: repeat the command"
                        ));
                    }
                }
                None => {}
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// About how many blocks each zone keeps.
    async fn blocks(&self) -> u64 {
        let usage = tokio::time::timeout(ANSWER_WITHIN, self.storage.usage()).await;
        let usage = usage
            .ok()
            .and_then(std::result::Result::ok)
            .unwrap_or_default();
        usage
            .iter()
            .map(|(_, usage)| usage.blocks)
            .max()
            .unwrap_or(0)
    }
}

/// Returns the change that is wanted, for the members that a volume has.
async fn change(config: &ClusterConfig, volume: &Exchanged, wanted: &Wanted) -> Result<Change> {
    let membership = &volume.members;
    let mut leaving = Vec::new();
    for name in &wanted.leaving {
        leaving.push(find(membership, name)?.clone());
    }
    let mut change = Change {
        leaving: leaving.iter().map(|m| m.store).collect(),
        ..Change::default()
    };
    let next = membership
        .members
        .iter()
        .map(|m| m.zone.0 + 1)
        .max()
        .unwrap_or(0);
    for (at, address) in wanted.joining.iter().enumerate() {
        let store = newcomer(config, address, !volume.by_name).await?;
        let place = leaving.get(at).map(|m| m.zone);
        let own = wanted
            .zone
            .unwrap_or(next.saturating_add((at - leaving.len().min(at)) as u8));
        change.joining.push(Member {
            store,
            address: address.clone(),
            zone: place.unwrap_or(ZoneId(own)),
        });
    }
    let mut after = membership.clone();
    after.change = Some(change.clone());
    let after = after.target();
    change.sync_replicas = wanted
        .sync_replicas
        .unwrap_or_else(|| sync_replicas_after(membership, &after));
    Ok(change)
}

/// Which store a newcomer is. It must hold nothing of the volume: the active asks that, if it is not of an `older` release.
async fn newcomer(config: &ClusterConfig, address: &str, older: bool) -> Result<StoreId> {
    let client = config.client("zone")?;
    let asked = tokio::time::timeout(IDENTIFY_WITHIN, identify(&client, address)).await;
    let Ok(asked) = asked else {
        return refused(format!(
            "{address} does not answer: start the zone there first (understudy store)"
        ));
    };
    let identity = match asked {
        Ok(identity) => identity,
        Err(error) => return refused(format!("{address} cannot be used: {error}")),
    };
    if older && identity.knows_volume {
        return refused(format!(
            "{address} holds something of the volume already, which may be old: stop it, empty its directory, \
             start it, and ask again"
        ));
    }
    Ok(identity.store)
}

/// An exchange in words.
pub fn describe(membership: &Membership, change: &Change) -> String {
    let joining: Vec<&str> = change.joining.iter().map(|m| m.address.as_str()).collect();
    let leaving = change.leaving.iter().map(|store| {
        let member = membership.member(*store);
        member.map_or_else(|| store.to_string(), |m| m.address.clone())
    });
    let leaving: Vec<String> = leaving.collect();
    let (joining, leaving) = (joining.join(", "), leaving.join(", "));
    let what = match (joining.is_empty(), leaving.is_empty()) {
        (false, false) => format!("{joining} for {leaving}"),
        (false, true) => format!("{joining} joins"),
        _ => format!("{leaving} leaves"),
    };
    match change.back {
        true => format!("{what}; being given up"),
        false => what,
    }
}

/// Estimates from how fast it went so far.
#[derive(Debug, Default)]
struct Speed {
    first: Option<(Instant, u64)>,
}

impl Speed {
    fn progress(&mut self, scrub: &Value, joint: bool, total: u64) -> Progress {
        let number = |name: &str| scrub[name].as_u64().unwrap_or(0);
        let running = scrub["running"].as_bool() == Some(true);
        let blocks = if running { number("blocks") } else { 0 };
        let now = Instant::now();
        let (since, before) = *self.first.get_or_insert((now, blocks));
        if blocks < before {
            // Another scrub, or another active's.
            self.first = Some((now, blocks));
        }
        let (took, done) = (now.duration_since(since), blocks.saturating_sub(before));
        let left = (done > 0 && total > 0)
            .then(|| took.mul_f64(total.saturating_sub(blocks) as f64 / done as f64));
        Progress {
            blocks,
            blocks_total: match total {
                0 => 0,
                total => total.max(blocks),
            },
            copies: if running { number("mended") } else { 0 },
            joint,
            left,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dax::ids::Version;
    use dax::storage::VolumeSettings;

    pub(super) fn member(number: u8) -> Member {
        Member {
            store: StoreId::new(number.into()).unwrap(),
            address: format!("zone{number}:7101"),
            zone: ZoneId(number),
        }
    }

    pub(super) fn three() -> Membership {
        let members = (1..=3).map(member).collect();
        Membership::first(&VolumeSettings::default(), members, Membership::FIRST).unwrap()
    }

    /// A volume made with three copies of each commit had two after a zone was replaced.
    // hazard: ZONE-17
    #[test]
    fn changes_never_wait_for_fewer_copies_unless_there_are_fewer_zones() {
        let after =
            |numbers: &[u8]| -> Vec<Member> { numbers.iter().map(|n| member(*n)).collect() };
        let mut before = three();
        assert_eq!(sync_replicas_after(&before, &after(&[1, 2, 4])), 2);
        assert_eq!(sync_replicas_after(&before, &after(&[1, 2, 3, 4, 5])), 3);
        before.sync_replicas = 3;
        assert_eq!(sync_replicas_after(&before, &after(&[1, 2, 4])), 3);
        let five = Membership {
            members: after(&[1, 2, 3, 4, 5]),
            ..before
        };
        assert_eq!(sync_replicas_after(&five, &after(&[1, 2, 3])), 2);
    }

    fn version(seq: u64) -> Version {
        Version {
            seq,
            ..Membership::FIRST
        }
    }

    pub(super) fn replace(new: u8, old: u8) -> Wanted {
        Wanted {
            joining: vec![member(new).address],
            leaving: vec![member(old).address],
            ..Wanted::default()
        }
    }

    #[test]
    fn wanted_exchange_is_recognized_while_it_runs_and_when_it_is_done() {
        let (before, wanted) = (three(), replace(4, 3));
        assert!(!is_done(&before, &wanted) && !is_under_way(&before, &wanted));
        let change = Change {
            joining: vec![member(4)],
            leaving: vec![member(3).store],
            sync_replicas: 2,
            ..Change::default()
        };
        let begun = before.begin(change, version(2)).unwrap();
        assert!(is_under_way(&begun, &wanted) && !is_done(&begun, &wanted));
        assert!(!is_under_way(&begun, &replace(5, 3)), "another newcomer");
        let by_id = Wanted {
            leaving: vec![member(3).store.to_string()],
            ..wanted.clone()
        };
        assert!(is_under_way(&begun, &by_id));
        assert_eq!(
            describe(&begun, begun.change.as_ref().unwrap()),
            "zone4:7101 for zone3:7101"
        );
        let done = begun.joint(version(3)).done(version(4));
        assert!(is_done(&done, &wanted) && !is_under_way(&done, &wanted));
        let given_up = begun.cancel(version(3)).unwrap();
        assert!(!is_done(&given_up, &wanted));
    }
}
