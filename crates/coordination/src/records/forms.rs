//! `forms`: which forms of what is stored may be written to the volume ([`dax::forms`]).
//!
//! Written by `init`, and raised by the active when an operator says that an upgrade is finished. It is not raised by
//! itself: from then on there is no way back to the release before, and whether one is needed is seen under load only.
//! Never lowered: what was written stays.

use std::time::Duration;

use dax::forms::{Forms, WrittenForms};
use dax::storage::{Authority, ReplicaStatus, Storage};

use super::{Member, MemberState, Record, Result};

/// How long zones may take to record the number.
const RECORDED_WITHIN: Duration = Duration::from_secs(15);

impl Record for WrittenForms {
    const PREFIX: &'static str = Forms::RECORD;
    const AUTHORITY: Authority = Authority::Owner;
}

/// Why the number is not raised.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRaised {
    /// This program would not know what it allows.
    #[error(
        "this program knows forms up to {}: upgrade the active first",
        Forms::NEWEST
    )]
    Unknown,
    /// These could not read what would be written, or would let in who cannot; in words.
    #[error("{}: upgrade or remove what is behind first", .0.join(", "))]
    Behind(Vec<String>),
}

/// Returns what may be in the volume; for one that was made by release 0.1, what that wrote.
///
/// # Errors
/// Of the storage tier, and `Damaged` if the record cannot be understood.
pub async fn written_forms(storage: &dyn Storage) -> Result<Forms> {
    let record = WrittenForms::load(storage).await?;
    Ok(record.unwrap_or_default().written)
}

/// Allows everything up to `to`, durably, and has this handle write it; returns what is allowed now. Does nothing if more
/// is allowed already. The handle owns the epoch; [`check_raise`] said that everybody can read it.
///
/// # Errors
/// Of the storage tier.
pub async fn raise_forms(storage: &dyn Storage, to: Forms) -> Result<Forms> {
    let now = written_forms(storage).await?.max(to);
    WrittenForms { written: now }.store(storage).await?;
    storage.use_forms(now);
    Ok(now)
}

/// Ends an upgrade, as an operator wants it of the active: allows all that this program knows, if everybody reads it.
///
/// # Errors
/// In words, with what to do.
pub async fn finish_upgrade(storage: &dyn Storage) -> std::result::Result<Forms, String> {
    if storage.epoch().is_none() {
        return Err("this node is not the active, which alone ends an upgrade".to_owned());
    }
    let finished = async {
        let nodes = Member::list(storage).await.map_err(|e| e.to_string())?;
        check_raise(Forms::NEWEST, &nodes, &storage.replicas()).map_err(|e| e.to_string())?;
        let raised = raise_forms(storage, Forms::NEWEST).await;
        raised.map_err(|error| error.to_string())
    };
    let in_time = tokio::time::timeout(RECORDED_WITHIN, finished).await;
    let forms = in_time.unwrap_or_else(|_| Err("too few zones answer: try again".to_owned()))?;
    tracing::info!(%forms, "the upgrade is finished: there is no way back to a release that reads less");
    Ok(forms)
}

/// Refuses unless all nodes can read what is to be allowed, and all zones know it. Nodes that were stopped in order are
/// not asked: they look at the number before they do anything, or are refused by the zones.
///
/// # Errors
/// All that are behind.
pub fn check_raise(
    to: Forms,
    nodes: &[Member],
    zones: &[ReplicaStatus],
) -> std::result::Result<(), NotRaised> {
    if !to.is_known() {
        return Err(NotRaised::Unknown);
    }
    let running = nodes
        .iter()
        .filter(|node| node.state != MemberState::Stopped && node.reads < to)
        .map(|node| format!("node {} reads forms up to {}", node.name, node.reads));
    let zones = zones.iter().filter(|zone| zone.reads < Some(to));
    let zones = zones.map(|zone| match zone.reads {
        Some(reads) => format!("zone {} knows forms up to {reads}", zone.address),
        None => format!("zone {} does not answer", zone.address),
    });
    let behind: Vec<String> = running.chain(zones).collect();
    match behind.is_empty() {
        true => Ok(()),
        false => Err(NotRaised::Behind(behind)),
    }
}

#[cfg(test)]
mod tests {
    use dax::ids::NodeName;
    use dax::memory::MemoryCluster;
    use dax::storage::VolumeSettings;

    use super::*;
    use crate::address::Address;
    use crate::records::Incarnation;

    fn member(name: &str, reads: Forms) -> Member {
        let address = || Address::Unix("/run/u/a".into());
        let node = NodeName::new(name).unwrap();
        Member {
            reads,
            ..Member::starting(node, Incarnation("1".into()), address(), address())
        }
    }

    #[test]
    fn everybody_has_to_read_what_is_allowed() {
        let (old, new) = (
            member("old", Forms::RELEASE_0_1),
            member("new", Forms::NEWEST),
        );
        let stopped = Member {
            state: MemberState::Stopped,
            ..old.clone()
        };
        let mut zones = MemoryCluster::new(VolumeSettings::default())
            .client()
            .replicas();
        let check = |nodes: &[&Member], zones: &[ReplicaStatus]| {
            let nodes: Vec<Member> = nodes.iter().map(|node| (*node).clone()).collect();
            check_raise(Forms::NEWEST, &nodes, zones).map_err(|error| error.to_string())
        };
        assert_eq!(check(&[&new, &stopped], &zones), Ok(()));
        zones[1].reads = Some(Forms::RELEASE_0_1);
        zones[2].reads = None;
        let refused = check(&[&new, &old], &zones).unwrap_err();
        for behind in [
            "node old reads forms up to 1".to_owned(),
            format!("zone {} knows forms up to 1", zones[1].address),
            format!("zone {} does not answer", zones[2].address),
        ] {
            assert!(refused.contains(&behind), "{behind:?} in {refused}");
        }
        assert!(!refused.contains("node new"), "{refused}");
        let newer = Forms(Forms::NEWEST.0 + 1);
        assert_eq!(
            check_raise(newer, &[member("newer", newer)], &[]),
            Err(NotRaised::Unknown)
        );
    }

    #[tokio::test]
    async fn the_number_is_never_lowered() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let storage = cluster.client();
        let me = NodeName::new("a").unwrap();
        storage.own_epoch(&me).await.unwrap();
        let before = written_forms(&*storage).await.unwrap();
        assert_eq!(before, Forms::RELEASE_0_1);
        raise_forms(&*storage, Forms(7)).await.unwrap();
        let now = raise_forms(&*storage, Forms::RELEASE_0_1).await.unwrap();
        let kept = written_forms(&*storage).await.unwrap();
        assert_eq!((now, kept), (Forms(7), Forms(7)));
    }
}
