//! Volumes whose zones are exchanged together. A database that is in a branch needs the volumes that it left, and those that it lies over.
//!
//! Invariants: they are exchanged from the bottom, so that what is read there is on a full quorum of the zones that the next one has. An
//! exchange that was interrupted between two of them is gone on with before another one begins.

use std::collections::{BTreeSet, HashMap};

use coordination::config::ClusterConfig;
use coordination::records::{Filling, Record};
use coordination::tier;
use dax::ids::VolumeName;
use dax::membership::Membership;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Wanted, find, is_done, is_under_way, members, not_now, refused};
use crate::operate::{Operator, Result};

/// A volume whose zones are exchanged.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchanged {
    /// Its name.
    pub name: VolumeName,
    /// True if the database is in it.
    pub own: bool,
    /// Its zones.
    pub members: Membership,
    /// How far its scrub is, as the active says it.
    pub(super) scrub: Value,
    /// False if the active is of a release that takes orders for the database's own volume alone, without a name.
    pub(super) by_name: bool,
}

/// A volume in a status of the active: its own, or one of the others.
#[derive(Debug, Clone, Deserialize)]
struct Told {
    volume: VolumeName,
    parent: Option<VolumeName>,
    members: Option<Membership>,
    #[serde(default)]
    scrub: Value,
    #[serde(default)]
    others: Vec<Told>,
}

impl Exchanged {
    /// True if its zones are as wanted.
    pub fn is_done(&self, wanted: &Wanted) -> bool {
        is_done(&self.members, wanted)
    }

    /// Addresses of its zones after what is wanted.
    pub(super) fn after(&self, wanted: &Wanted) -> Result<BTreeSet<String>> {
        let of = |members: &[dax::membership::Member]| {
            let addresses = members.iter().map(|member| member.address.clone());
            addresses.collect::<BTreeSet<_>>()
        };
        if self.is_done(wanted) || is_under_way(&self.members, wanted) {
            return Ok(of(&self.members.outcome().0));
        }
        let mut after = of(&self.members.members);
        for name in &wanted.leaving {
            after.remove(&find(&self.members, name)?.address);
        }
        after.extend(wanted.joining.iter().cloned());
        Ok(after)
    }
}

/// The volumes in a status, each behind the one that it lies over. An active that does not name the database's own volume has `name`, and
/// as its zones those that it says, or else these.
fn volumes_in(
    status: &Value,
    name: &VolumeName,
    zones: Option<Membership>,
) -> Result<Vec<Exchanged>> {
    let by_name = status["volume"].is_string();
    let mut status = status.clone();
    if !by_name {
        status["volume"] = name.as_str().into();
        if status["members"].is_null() {
            status["members"] = json!(zones);
        }
    }
    let Ok(own) = serde_json::from_value::<Told>(status) else {
        return refused("the active says nothing of its volumes");
    };
    let mut all: Vec<(bool, Told)> = own
        .others
        .iter()
        .map(|other| (false, other.clone()))
        .collect();
    all.push((true, own));
    let parents: HashMap<_, _> = all
        .iter()
        .map(|(_, one)| (one.volume.clone(), one.parent.clone()))
        .collect();
    let below = |volume: &VolumeName| parents.get(volume).cloned().flatten();
    all.sort_by_key(|(_, one)| {
        let chain = std::iter::successors(Some(one.volume.clone()), below);
        chain.take(parents.len() + 1).count()
    });
    let mut volumes = Vec::new();
    for (own, one) in all {
        let Some(members) = one.members else {
            return refused(format!(
                "the zones of the volume {} are not recorded yet",
                one.volume
            ));
        };
        volumes.push(Exchanged {
            name: one.volume,
            own,
            members,
            scrub: one.scrub,
            by_name,
        });
    }
    Ok(volumes)
}

/// Refuses what would leave the volumes with other zones than each other. Returns how many zones each has afterwards.
///
/// # Errors
/// [`OperateError::Refused`](crate::operate::OperateError::Refused) with what to do.
pub fn check_together(volumes: &[Exchanged], wanted: &Wanted) -> Result<usize> {
    let mut first: Option<(&VolumeName, BTreeSet<String>)> = None;
    for volume in volumes {
        let after = volume.after(wanted)?;
        match &first {
            None => first = Some((&volume.name, after)),
            Some((_, same)) if *same == after => {}
            Some((other, _)) => {
                return refused(format!(
                    "the volumes {other} and {} would have other zones than each other: end the exchange that was interrupted first, by \
                     the same command",
                    volume.name
                ));
            }
        }
    }
    let done = volumes.iter().find(|volume| volume.is_done(wanted));
    let copies = done.map(|done| done.members.sync_replicas);
    if let (Some(copies), Some(asked)) = (copies, wanted.sync_replicas)
        && copies != asked
        && !volumes.iter().all(|volume| volume.is_done(wanted))
    {
        return refused(format!(
            "the exchange began with {copies} synchronous copies: end it with as many"
        ));
    }
    Ok(first.map_or(0, |(_, zones)| zones.len()))
}

impl Operator {
    /// The volumes whose zones are exchanged together, in the order in which that has to happen.
    ///
    /// # Errors
    /// [`OperateError::Refused`](crate::operate::OperateError::Refused) if the active does not look after all of them at present.
    pub async fn exchanged(&self, config: &ClusterConfig) -> Result<Vec<Exchanged>> {
        members(self, config)?;
        let needed = self.needed(config).await?;
        let all = self.volumes(config).await?;
        let is_known = |volume: &&VolumeName| all.iter().any(|one| one.name == **volume);
        match needed.iter().find(|volume| !is_known(volume)) {
            None => Ok(all),
            Some(unknown) => not_now(format!(
                "the active does not look after the volume {unknown} at present, which the database needs: ask again, or upgrade the active"
            )),
        }
    }

    /// Those that the active says it owns.
    pub(super) async fn volumes(&self, config: &ClusterConfig) -> Result<Vec<Exchanged>> {
        let (_, status) = self.serving().await?;
        volumes_in(&status, config.stored_in(), self.storage.membership())
    }

    /// Volumes that the database needs, as their records say.
    async fn needed(&self, config: &ClusterConfig) -> Result<Vec<VolumeName>> {
        let mut needed = vec![config.stored_in().clone()];
        let own = Filling::load(self.storage.as_ref()).await?;
        if own.as_ref().is_some_and(|filling| !filling.done) {
            return refused(
                "the image that the database lies over is still copied from its repository: wait for that, as \
                 understudy status shows it",
            );
        }
        needed.extend(own.map(|filling| filling.into));
        if config.moves() > 0 {
            for (way, storage) in tier::left(config, self.by()).await? {
                needed.push(way.stored_in().clone());
                // Nobody copies an image for a volume that the database has left.
                let filling = Filling::load(storage.as_ref()).await?;
                needed.extend(filling.map(|filling| filling.into));
            }
        }
        Ok(needed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{replace, three};
    use super::*;

    fn told(volume: &str, parent: Option<&str>, members: &Membership) -> Value {
        json!({ "volume": volume, "parent": parent, "members": members })
    }

    fn volumes(status: &Value) -> Vec<Exchanged> {
        volumes_in(status, &VolumeName::new("named").unwrap(), Some(three())).unwrap()
    }

    fn names(status: &Value) -> Vec<String> {
        let names = volumes(status).into_iter().map(|one| one.name.to_string());
        names.collect()
    }

    // After a rewind that was undone, the database is below the branch that it has left.
    // hazard: ZONE-47
    #[test]
    fn a_volume_is_exchanged_before_those_that_lie_over_it() {
        let members = three();
        let mut status = told("upper", Some("middle"), &members);
        status["others"] = json!([
            told("middle", Some("main"), &members),
            told("apart", None, &members),
            told("main", None, &members),
        ]);
        assert_eq!(names(&status), ["apart", "main", "middle", "upper"]);
        assert!(volumes(&status)[3].own);
        let mut back = told("main", None, &members);
        back["others"] = json!([told("branch", Some("main"), &members)]);
        assert_eq!(names(&back), ["main", "branch"]);
        let older = json!({ "members": members });
        assert_eq!(names(&older), ["named"]);
        assert!(!volumes(&older)[0].by_name && volumes(&back)[0].by_name);
        let engine = json!({ "engine": "mariadb" });
        assert_eq!(volumes(&engine)[0].members, members, "it tells of none");
    }

    // hazard: ZONE-47
    #[test]
    fn another_exchange_waits_for_the_one_that_was_interrupted_between_two_volumes() {
        let with = |lower: &Membership, upper: &Membership| {
            let mut status = told("upper", Some("lower"), upper);
            status["others"] = json!([told("lower", None, lower)]);
            volumes(&status)
        };
        let before = three();
        let mut after = before.clone();
        after.members[2] = super::super::tests::member(4);
        let interrupted = with(&after, &before);
        assert_eq!(check_together(&interrupted, &replace(4, 3)).unwrap(), 3);
        for other in [replace(5, 2), replace(5, 3)] {
            let error = check_together(&interrupted, &other).unwrap_err();
            assert!(!error.to_string().is_empty());
        }
        assert_eq!(
            check_together(&with(&before, &before), &replace(5, 2)).unwrap(),
            3
        );
        let more = Wanted {
            sync_replicas: Some(3),
            ..replace(4, 3)
        };
        let error = check_together(&interrupted, &more).unwrap_err();
        assert!(error.to_string().contains("began with 2"), "{error}");
    }
}
