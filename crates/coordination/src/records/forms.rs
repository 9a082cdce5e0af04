//! `forms`: which forms of what is stored may be written to the volume ([`dax::forms`]).
//!
//! Written by `init`, and raised by the active: because an operator wants it, or because the last node was upgraded.
//! Never lowered: what was written stays.

use dax::forms::Forms;
use dax::storage::{Authority, Storage};
use serde::{Deserialize, Serialize};

use super::{Member, MemberState, Record, Result};

/// What may be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenForms {
    /// The highest number that is allowed.
    pub written: Forms,
}

impl Record for WrittenForms {
    const PREFIX: &'static str = "forms";
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
    /// A node could not read what would be written.
    #[error(
        "node {node} reads forms up to {reads}: upgrade it first, or remove it from the cluster"
    )]
    Node {
        /// Its name.
        node: dax::ids::NodeName,
        /// What it reads.
        reads: Forms,
    },
}

impl WrittenForms {
    /// What may be in the volume; of one that was made by release 0.1, what that wrote.
    ///
    /// # Errors
    /// Of the storage tier, and `Damaged` if the record cannot be understood.
    pub async fn of(storage: &dyn Storage) -> Result<Forms> {
        let record = WrittenForms::load(storage).await?;
        Ok(record.unwrap_or_default().written)
    }

    /// Allows everything up to `to`, durably, and has this handle write it. Does nothing if more is allowed already. The
    /// handle owns the epoch; [`check_raise`] said that everybody can read it.
    ///
    /// # Errors
    /// Of the storage tier.
    pub async fn raise(storage: &dyn Storage, to: Forms) -> Result<Forms> {
        let now = WrittenForms::of(storage).await?.max(to);
        WrittenForms { written: now }.store(storage).await?;
        storage.use_forms(now);
        Ok(now)
    }
}

/// True if all nodes can read what is to be allowed; those that were stopped for good are not asked.
///
/// # Errors
/// Who cannot.
pub fn check_raise(to: Forms, nodes: &[Member]) -> std::result::Result<(), NotRaised> {
    if !to.is_known() {
        return Err(NotRaised::Unknown);
    }
    let mut running = nodes
        .iter()
        .filter(|node| node.state != MemberState::Stopped);
    match running.find(|node| node.reads < to) {
        None => Ok(()),
        Some(old) => Err(NotRaised::Node {
            node: old.name.clone(),
            reads: old.reads,
        }),
    }
}

/// The highest number that all nodes can read.
pub fn readable_by_all(nodes: &[Member]) -> Forms {
    let reads = nodes.iter().map(|node| node.reads);
    reads.min().unwrap_or(Forms::NEWEST).min(Forms::NEWEST)
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
        let old = member("old", Forms::WHOLE_BLOCKS);
        let new = member("new", Forms::NEWEST);
        let refused = check_raise(Forms::NEWEST, &[new.clone(), old.clone()]).unwrap_err();
        assert!(
            refused.to_string().contains("node old reads forms up to 0"),
            "{refused}"
        );
        let stopped = Member {
            state: MemberState::Stopped,
            ..old.clone()
        };
        assert_eq!(check_raise(Forms::NEWEST, &[new.clone(), stopped]), Ok(()));
        let newer = Forms(Forms::NEWEST.0 + 1);
        assert_eq!(
            check_raise(newer, &[member("newer", newer)]),
            Err(NotRaised::Unknown)
        );
        assert_eq!(readable_by_all(&[new, old]), Forms::WHOLE_BLOCKS);
    }

    #[tokio::test]
    async fn the_number_is_never_lowered() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let storage = cluster.client();
        storage
            .own_epoch(&NodeName::new("a").unwrap())
            .await
            .unwrap();
        assert_eq!(
            WrittenForms::of(&*storage).await.unwrap(),
            Forms::RELEASE_0_1
        );
        WrittenForms::raise(&*storage, Forms(7)).await.unwrap();
        let now = WrittenForms::raise(&*storage, Forms::RELEASE_0_1)
            .await
            .unwrap();
        assert_eq!(
            (now, WrittenForms::of(&*storage).await.unwrap()),
            (Forms(7), Forms(7))
        );
    }
}
