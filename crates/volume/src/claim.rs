//! Claims: what a standby needs kept, as records `claim/<node>` that the active's reclaimer reads.
//!
//! A standby first claims everything, then reads the seals, then narrows its claim to the one it
//! attached at. The reclaimer puts a new seal first and reads the claims after, so it cannot miss
//! a claim whose owner saw older seals than those it keeps. A move of the base goes the same way:
//! claim both images, then read the seals again; the new one must still be among them.
//!
//! Who gives up somebody else's claim says so in a record `revoked/<node>` first, which only the next
//! attach removes: an owner that was about to change its claim cannot bring it back to life. Who attaches under
//! the same name takes the claim's place, which a [`Token`] tells the one before.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dax::ids::NodeName;
use dax::storage::{Authority, Lineage, Storage};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::journal::JournalPos;
use crate::lsn::Lsn;

/// How long what a revoked claim names stays, from when the revocation is durable. A live standby has this long to
/// notice, and whoever found no revocation may rely on what it reads for at least as long.
pub const GRACE: Duration = Duration::from_secs(30);
/// How long a standby relies on a look at its claim ([`crate::standby::ClaimWatch`]).
pub const VALID_FOR: Duration = Duration::from_secs(10);

/// Prefix of the records' names.
pub const CLAIM_PREFIX: &str = "claim/";
/// Prefix of the records that say that a claim was given up by somebody else.
const REVOKED_PREFIX: &str = "revoked/";

/// Who registered a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// The attach, which draws this at random. Empty: a version that drew none.
    pub attach: String,
    /// Grows with each registration of that attach.
    pub number: u64,
}

impl Token {
    /// A name that no other attach has: from the kernel's random source.
    pub(crate) fn random() -> Result<Arc<str>> {
        let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        Ok(uuid.trim().into())
    }
}

/// What one standby needs kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Who claims.
    pub node: NodeName,
    /// The images it reads: its base, or two during a move.
    pub images: Vec<Lineage>,
    /// The oldest journal position whose namespace it reads; files that left the namespace later
    /// stay. It follows the journal from here as well.
    pub journal: JournalPos,
    /// The oldest log position that its database may ask for.
    pub log_from: Lsn,
    /// Keep everything: it has not chosen a seal yet.
    pub everything: bool,
    /// Who registered it last.
    #[serde(default)]
    pub token: Token,
}

impl Claim {
    /// The first claim of an attach.
    pub fn everything(node: NodeName) -> Claim {
        Claim {
            node,
            images: Vec::new(),
            journal: JournalPos::START,
            log_from: Lsn::ZERO,
            everything: true,
            token: Token::default(),
        }
    }

    /// The record's name.
    pub fn record_name(node: &NodeName) -> String {
        format!("{CLAIM_PREFIX}{node}")
    }

    /// Registers or replaces the claim durably, whoever's it is. A standby does it by its
    /// [`ClaimWatch`](crate::standby::ClaimWatch).
    pub async fn put(&self, storage: &Arc<dyn Storage>) -> Result<()> {
        let json = serde_json::to_vec(self).expect("a claim has string keys only");
        let name = Claim::record_name(&self.node);
        storage
            .put_record(&name, Bytes::from(json), Authority::Node)
            .await?;
        Ok(())
    }

    /// The claim of a node, if it has one.
    pub async fn load(storage: &Arc<dyn Storage>, node: &NodeName) -> Result<Option<Claim>> {
        let name = Claim::record_name(node);
        let record = storage.get_record(&name).await?;
        record.map(|value| Claim::parse(&name, &value)).transpose()
    }

    fn parse(name: &str, value: &[u8]) -> Result<Claim> {
        serde_json::from_slice(value)
            .map_err(|e| Error::Damaged(format!("the record {name} does not parse: {e}")))
    }

    /// An attach begins: that earlier claims of the node were revoked does not concern its own.
    pub(crate) async fn forget_revocation(
        storage: &Arc<dyn Storage>,
        node: &NodeName,
    ) -> Result<()> {
        if Claim::is_revoked(storage, node).await? {
            let revoked = Claim::revocation(node);
            storage.remove_record(&revoked, Authority::Node).await?;
        }
        Ok(())
    }

    /// Says that the claim of another node does not stand any more, whatever that node writes, until it
    /// attaches again. What it claims stays until it is [given back](Self::give_back).
    pub async fn revoke(storage: &Arc<dyn Storage>, node: &NodeName) -> Result<()> {
        let name = Claim::revocation(node);
        storage
            .put_record(&name, Bytes::from_static(b"{}"), Authority::Node)
            .await?;
        Ok(())
    }

    fn revocation(node: &NodeName) -> String {
        format!("{REVOKED_PREFIX}{node}")
    }

    /// The nodes whose claims were revoked and that have not attached again since.
    pub async fn revoked(storage: &Arc<dyn Storage>) -> Result<BTreeSet<NodeName>> {
        let records = storage.list_records(REVOKED_PREFIX).await?;
        let names = records
            .iter()
            .filter_map(|(name, _)| name.strip_prefix(REVOKED_PREFIX));
        Ok(names.filter_map(|name| NodeName::new(name).ok()).collect())
    }

    /// Gives the own claim up, by which nobody reads any more.
    pub async fn release(storage: &Arc<dyn Storage>, node: &NodeName) -> Result<()> {
        let name = Claim::record_name(node);
        storage.remove_record(&name, Authority::Node).await?;
        Ok(())
    }

    /// Gives somebody else's claim up, which was [revoked](Self::revoke) at least [`GRACE`] ago. `storage` owns
    /// the epoch: one that lost it, and sleeps, gives nothing back when it wakes up.
    pub async fn give_back(storage: &Arc<dyn Storage>, node: &NodeName) -> Result<()> {
        let name = Claim::record_name(node);
        storage.remove_record(&name, Authority::Owner).await?;
        Ok(())
    }

    /// True if the claim of `node` was given up by somebody else, and it has not attached since.
    pub(crate) async fn is_revoked(storage: &Arc<dyn Storage>, node: &NodeName) -> Result<bool> {
        let revocation = Claim::revocation(node);
        Ok(storage.get_record(&revocation).await?.is_some())
    }

    /// All claims.
    pub async fn all(storage: &Arc<dyn Storage>) -> Result<Vec<Claim>> {
        let records = storage.list_records(CLAIM_PREFIX).await?;
        let claims = records
            .into_iter()
            .map(|(name, value)| Claim::parse(&name, &value));
        claims.collect()
    }
}

#[cfg(test)]
mod tests {
    use dax::memory::MemoryCluster;
    use dax::storage::VolumeSettings;

    use super::*;
    use crate::standby::ClaimWatch;

    #[tokio::test]
    async fn a_revoked_claim_stands_again_only_after_a_new_attach() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let storage: Arc<dyn Storage> = cluster.client();
        let node = NodeName::new("south").unwrap();
        let begin = || ClaimWatch::begin(&storage, node.clone());
        let first = begin().await.unwrap();
        assert!(first.look(&storage).await.unwrap());
        Claim::revoke(&storage, &node).await.unwrap();
        assert!(!first.look(&storage).await.unwrap());
        assert_eq!(Claim::all(&storage).await.unwrap().len(), 1);
        let revoked = Claim::revoked(&storage).await.unwrap();
        assert!(revoked.iter().eq([&node]));
        storage
            .own_epoch(&NodeName::new("north").unwrap())
            .await
            .unwrap();
        let claimed = Claim::load(&storage, &node).await.unwrap().unwrap();
        Claim::give_back(&storage, &node).await.unwrap();
        assert!(Claim::all(&storage).await.unwrap().is_empty());
        // The owner was asleep in the middle of narrowing its claim.
        claimed.put(&storage).await.unwrap();
        assert!(!first.look(&storage).await.unwrap());
        let second = begin().await.unwrap();
        assert!(second.look(&storage).await.unwrap());
        assert!(Claim::revoked(&storage).await.unwrap().is_empty());
        assert!(!first.look(&storage).await.unwrap());
    }
}
