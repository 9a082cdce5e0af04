//! Changing a claim that stands.

use std::sync::Arc;

use dax::ids::Generation;
use dax::storage::Storage;
use volume::claim::Claim;
use volume::seal;
use volume::standby::ClaimWatch;

use super::super::error::Result;

/// What became of a change of the claim.
pub(in crate::agent) enum Claimed {
    /// It stands so, and the image that was needed is kept.
    Kept(Claim),
    /// It stands so, but the image that was needed may be gone.
    Gone,
    /// It was given up by the active, or another attach took its place: nothing that it names can be relied on.
    Lost,
}

/// Registers `claim` in place of the last one. If `needed` is not used yet, it must still be one of
/// the kept seals afterwards: then no reclaimer can have missed the claim (see [`volume::claim`]).
pub(in crate::agent) async fn claim(
    storage: Arc<dyn Storage>,
    watch: ClaimWatch,
    claim: Claim,
    needed: Option<Generation>,
) -> Result<Claimed> {
    if !watch.change(&storage, &claim).await? {
        return Ok(Claimed::Lost);
    }
    let Some(needed) = needed else {
        return Ok(Claimed::Kept(claim));
    };
    let kept = seal::load_seals(&storage).await?;
    Ok(match kept.iter().any(|seal| seal.generation == needed) {
        true => Claimed::Kept(claim),
        false => Claimed::Gone,
    })
}

#[cfg(test)]
mod tests {
    use dax::ids::NodeName;
    use dax::memory::MemoryCluster;
    use dax::storage::VolumeSettings;
    use volume::latest::format;
    use volume::view::{Ownership, Timestamp};

    use super::*;

    #[tokio::test]
    async fn a_new_image_counts_only_if_it_is_kept_after_it_was_claimed() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let storage: Arc<dyn Storage> = cluster.client();
        let node = NodeName::new("south").unwrap();
        storage.own_epoch(&node).await.unwrap();
        let owner = Ownership {
            mode: 0o700,
            uid: 0,
            gid: 0,
        };
        format(&storage, owner, Timestamp(0)).await.unwrap();
        let sealed = seal::load_seals(&storage).await.unwrap()[0].generation;
        let wanted = Claim::everything(node.clone());
        let watch = ClaimWatch::begin(&storage, node.clone()).await.unwrap();
        let try_claim = |needed| claim(Arc::clone(&storage), watch.clone(), wanted.clone(), needed);

        let kept = try_claim(Some(sealed)).await.unwrap();
        assert!(matches!(kept, Claimed::Kept(claim) if claim == wanted));
        let gone = try_claim(Some(Generation::MAX)).await.unwrap();
        assert!(matches!(gone, Claimed::Gone));
        Claim::revoke(&storage, &node).await.unwrap();
        for needed in [None, Some(sealed)] {
            assert!(matches!(try_claim(needed).await.unwrap(), Claimed::Lost));
        }
    }
}
