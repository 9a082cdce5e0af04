//! Volumes whose zones are exchanged together. A database that is in a branch needs the volumes that it left, and those that it lies over.
//!
//! Invariant: they are exchanged from the bottom, so that what is read there is on a full quorum of the zones that the next one has.

use std::collections::HashMap;

use coordination::config::ClusterConfig;
use coordination::records::{Filling, Record};
use coordination::tier;
use dax::ids::VolumeName;
use dax::membership::Membership;
use serde::Deserialize;
use serde_json::Value;

use super::{Wanted, is_done, members, refused};
use crate::operate::{OperateError, Operator, Result};

/// A volume whose zones are exchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchanged {
    /// Its name; `None` for the database's own.
    pub name: Option<VolumeName>,
    /// Its zones.
    pub members: Membership,
}

impl Exchanged {
    /// True if its zones are as wanted.
    pub fn is_done(&self, wanted: &Wanted) -> bool {
        is_done(&self.members, wanted)
    }
}

/// What the active says of a volume besides its own.
#[derive(Debug, Clone, Deserialize)]
struct Other {
    volume: VolumeName,
    parent: Option<VolumeName>,
    members: Option<Membership>,
    #[serde(default)]
    scrub: Value,
}

/// What the active says of all of them, each behind the one that it lies over.
fn others_of(status: &Value) -> Vec<Other> {
    let mut others: Vec<Other> =
        serde_json::from_value(status["others"].clone()).unwrap_or_default();
    let parents: HashMap<_, _> = others
        .iter()
        .map(|other| (other.volume.clone(), other.parent.clone()))
        .collect();
    let below = |volume: &VolumeName| parents.get(volume).cloned().flatten();
    others.sort_by_key(|other| {
        let all = std::iter::successors(Some(other.volume.clone()), below);
        all.take(parents.len() + 1).count()
    });
    others
}

/// The members of a volume, as the active knows them.
pub(super) fn members_in(status: &Value, volume: Option<&VolumeName>) -> Option<Membership> {
    match volume {
        None => serde_json::from_value(status["members"].clone()).ok(),
        Some(volume) => {
            let mut others = others_of(status).into_iter();
            others.find(|other| other.volume == *volume)?.members
        }
    }
}

/// How far the scrub of a volume is that is not the database's own.
pub(super) fn scrub_of(status: &Value, volume: &VolumeName) -> Value {
    let mut others = others_of(status).into_iter();
    let other = others.find(|other| other.volume == *volume);
    other.map_or(Value::Null, |other| other.scrub)
}

impl Operator {
    /// The volumes whose zones are exchanged together, in the order in which that has to happen: the database's own is the last.
    ///
    /// # Errors
    /// [`OperateError::Refused`] if the active does not look after all of them at present.
    pub async fn exchanged(&self, config: &ClusterConfig) -> Result<Vec<Exchanged>> {
        let own = Exchanged {
            name: None,
            members: members(self, config)?,
        };
        let needed = self.needed(config).await?;
        if needed.is_empty() {
            return Ok(vec![own]);
        }
        let (_, status) = self.serving().await?;
        let mut all = Vec::new();
        for Other {
            volume, members, ..
        } in others_of(&status)
        {
            let members = members.ok_or_else(|| {
                let why = format!("the zones of the volume {volume} are not recorded yet");
                OperateError::Refused(why)
            })?;
            all.push(Exchanged {
                name: Some(volume),
                members,
            });
        }
        let is_known =
            |volume: &&VolumeName| all.iter().any(|one| one.name.as_ref() == Some(volume));
        if let Some(unknown) = needed.iter().find(|volume| !is_known(volume)) {
            return refused(format!(
                "the active does not look after the volume {unknown} at present, which the database needs: ask again"
            ));
        }
        all.push(own);
        Ok(all)
    }

    /// Volumes besides its own that the database needs.
    async fn needed(&self, config: &ClusterConfig) -> Result<Vec<VolumeName>> {
        let mut needed = Vec::new();
        let mut storages = vec![self.storage.clone()];
        if config.moves() > 0 {
            for (way, storage) in tier::left(config, self.by()).await? {
                needed.push(way.stored_in().clone());
                storages.push(storage);
            }
        }
        for storage in storages {
            let Some(filling) = Filling::load(storage.as_ref()).await? else {
                continue;
            };
            if !filling.done {
                return refused(
                    "the image that the database lies over is still copied from its repository: wait for that, as \
                     understudy status shows it",
                );
            }
            needed.push(filling.into);
        }
        Ok(needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // hazard: ZONE-47
    #[test]
    fn a_volume_is_exchanged_before_those_that_lie_over_it() {
        let other = |volume: &str, parent: Option<&str>| serde_json::json!({ "volume": volume, "parent": parent });
        let status = serde_json::json!({ "others": [
            other("upper", Some("middle")), other("middle", Some("main")), other("apart", None), other("main", None),
        ] });
        let names: Vec<String> = others_of(&status)
            .iter()
            .map(|other| other.volume.to_string())
            .collect();
        assert_eq!(names, ["apart", "main", "middle", "upper"]);
        assert!(
            others_of(&serde_json::json!({})).is_empty(),
            "an older active"
        );
    }
}
