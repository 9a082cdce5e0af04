//! One attach's hold on the claim of its node.
//!
//! A node's claim is one record, and whoever attaches under the node's name writes it: a machine that was
//! created anew while the old one was cut off, or a copy of it. So each attach draws a token at random, puts it
//! into what it registers, and counts the registrations: a claim with another token, or with a higher number than
//! it ever registered (it was put back to an older state, with its memory), is not the one that it stands on.
//!
//! ```text
//!   begin ──▶ everything, and what the former claim names ──▶ its own images, and the former ones ──▶ its own images
//!                                                                    │ until GRACE has passed
//! ```
//!
//! Invariant: what a claim names stays for [`GRACE`] after another attach has taken its place, as if it had been
//! revoked then; so whoever found it standing may rely on it for as long ([`super::standing`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dax::ids::NodeName;
use dax::storage::Storage;

use super::standing::Clock;
use crate::claim::{Claim, GRACE, Token, VALID_FOR};
use crate::error::Result;

/// More images of former claims than that are waited for, and not kept: who is started again and again would keep
/// more and more.
const FORMER_MAX: usize = 64;

/// See the module. Clones are the same hold.
#[derive(Clone)]
pub(super) struct Hold {
    node: NodeName,
    attach: Arc<str>,
    /// Registrations that were tried.
    number: Arc<AtomicU64>,
    clock: Clock,
    /// The claim that this one took the place of, and until when it is kept.
    former: Option<(Arc<Claim>, Duration)>,
}

impl Hold {
    /// Takes the place of whatever claim there is, also of one that was revoked, and claims everything.
    pub async fn begin(storage: &Arc<dyn Storage>, node: NodeName, clock: Clock) -> Result<Hold> {
        Claim::forget_revocation(storage, &node).await?;
        let former = Claim::load(storage, &node).await?;
        let former = former.filter(|former| !former.images.is_empty());
        let mut hold = Hold {
            attach: Token::random()?,
            number: Arc::default(),
            former: None,
            node,
            clock,
        };
        let first = Claim {
            everything: true,
            ..former
                .clone()
                .unwrap_or_else(|| Claim::everything(hold.node.clone()))
        };
        hold.register(storage, &first).await?;
        match former {
            Some(former) if former.images.len() > FORMER_MAX => tokio::time::sleep(GRACE).await,
            former => {
                let until = (hold.clock)() + GRACE;
                hold.former = former.map(|former| (Arc::new(former), until));
            }
        }
        Ok(hold)
    }

    /// Registers `claim` in place of the last one. False: what was registered did not stand, or may not have.
    pub async fn change(&self, storage: &Arc<dyn Storage>, claim: &Claim) -> Result<bool> {
        let stood = loop {
            let began = (self.clock)();
            if !self.stands(storage).await? {
                return Ok(false);
            }
            if (self.clock)() < began + VALID_FOR {
                break began;
            }
        };
        self.register(storage, claim).await?;
        // Should another attach have begun since we looked, it kept our images for us only so long.
        Ok(self.stands(storage).await? && (self.clock)() < stood + (GRACE - VALID_FOR))
    }

    async fn register(&self, storage: &Arc<dyn Storage>, claim: &Claim) -> Result<()> {
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        let attach = self.attach.to_string();
        let mut claim = self.with_former(claim.clone());
        claim.token = Token { attach, number };
        claim.put(storage).await
    }

    fn with_former(&self, mut claim: Claim) -> Claim {
        let kept = self.former.as_ref();
        if let Some((former, _)) = kept.filter(|(_, until)| (self.clock)() < *until) {
            let missing = former.images.iter().filter(|i| !claim.images.contains(i));
            let missing: Vec<_> = missing.cloned().collect();
            claim.images.extend(missing);
            claim.journal = claim.journal.min(former.journal);
            claim.log_from = claim.log_from.min(former.log_from);
        }
        claim
    }

    /// True if the claim that is registered is the one of this attach, and is not revoked. Without that nothing it
    /// reads can be relied on: it must attach afresh, and must not take over.
    pub async fn stands(&self, storage: &Arc<dyn Storage>) -> Result<bool> {
        let (claim, revoked) = tokio::try_join!(
            Claim::load(storage, &self.node),
            Claim::is_revoked(storage, &self.node)
        )?;
        Ok(!revoked && claim.is_some_and(|claim| self.is_mine(&claim.token)))
    }

    fn is_mine(&self, token: &Token) -> bool {
        *token.attach == *self.attach && token.number <= self.number.load(Ordering::Relaxed)
    }

    /// Gives the claim up, by which nobody reads any more, unless it is another's by now.
    pub async fn release(&self, storage: &Arc<dyn Storage>) -> Result<()> {
        let claim = Claim::load(storage, &self.node).await?;
        if claim.is_some_and(|claim| self.is_mine(&claim.token)) {
            Claim::release(storage, &self.node).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use dax::ids::{Epoch, Generation};
    use dax::memory::MemoryCluster;
    use dax::storage::{Lineage, VolumeSettings};

    use super::*;
    use crate::journal::JournalPos;

    fn node() -> NodeName {
        NodeName::new("south").unwrap()
    }

    fn image(number: u32) -> Lineage {
        let epoch = Epoch(1);
        Lineage::up_to(Generation { epoch, number })
    }

    fn wanted(number: u32) -> Claim {
        Claim {
            images: vec![image(number)],
            journal: JournalPos(number.into()),
            everything: false,
            ..Claim::everything(node())
        }
    }

    struct Scene {
        storage: Arc<dyn Storage>,
        seconds: Arc<AtomicU64>,
    }

    impl Scene {
        fn new() -> Scene {
            Scene {
                storage: MemoryCluster::new(VolumeSettings::default()).client(),
                seconds: Arc::default(),
            }
        }

        async fn begin(&self) -> Hold {
            let seconds = Arc::clone(&self.seconds);
            let clock = Arc::new(move || Duration::from_secs(seconds.load(Ordering::Relaxed)));
            Hold::begin(&self.storage, node(), clock).await.unwrap()
        }

        async fn change(&self, hold: &Hold, number: u32) -> bool {
            hold.change(&self.storage, &wanted(number)).await.unwrap()
        }

        async fn stands(&self, hold: &Hold) -> bool {
            hold.stands(&self.storage).await.unwrap()
        }

        async fn claimed(&self) -> Claim {
            let mut all = Claim::all(&self.storage).await.unwrap();
            assert_eq!(all.len(), 1);
            all.remove(0)
        }
    }

    #[tokio::test]
    async fn the_claim_of_another_attach_is_not_ones_own() {
        let scene = Scene::new();
        let first = scene.begin().await;
        assert!(scene.change(&first, 1).await && scene.stands(&first).await);
        let second = scene.begin().await;
        assert!(!scene.stands(&first).await);
        assert!(
            !scene.change(&first, 2).await,
            "it would take the place of the other one"
        );
        first.release(&scene.storage).await.unwrap();
        assert!(scene.change(&second, 3).await && scene.stands(&second).await);
        second.release(&scene.storage).await.unwrap();
        assert!(!scene.stands(&second).await);
    }

    /// Whoever found its claim standing relies on that for a while.
    #[tokio::test]
    async fn images_of_a_former_claim_stay_for_the_grace() {
        let scene = Scene::new();
        let first = scene.begin().await;
        assert!(scene.change(&first, 1).await);
        for _ in 0..2 {
            scene.begin().await;
        }
        let last = scene.begin().await;
        assert!(scene.change(&last, 5).await);
        let claim = scene.claimed().await;
        assert_eq!(claim.images, [image(5), image(1)]);
        assert_eq!(claim.journal, JournalPos(1));
        scene.seconds.fetch_add(GRACE.as_secs(), Ordering::Relaxed);
        assert!(scene.change(&last, 5).await);
        let claim = scene.claimed().await;
        assert_eq!(
            (claim.images, claim.journal),
            (vec![image(5)], JournalPos(5))
        );
    }

    /// A machine that is put back to a snapshot with its memory finds what it registered later.
    #[tokio::test]
    async fn a_hold_that_was_put_back_does_not_stand() {
        let scene = Scene::new();
        let hold = scene.begin().await;
        assert!(scene.change(&hold, 1).await);
        let number = hold.number.load(Ordering::Relaxed);
        let put_back = Hold {
            number: Arc::new(number.into()),
            ..hold.clone()
        };
        assert!(scene.stands(&put_back).await);
        assert!(scene.change(&hold, 2).await);
        assert!(!scene.stands(&put_back).await && !scene.change(&put_back, 1).await);
        assert_eq!(scene.claimed().await.images, [image(2)]);
    }

    /// A version before this wrote no token.
    #[tokio::test]
    async fn a_claim_without_a_token_is_read_and_is_nobodys() {
        let scene = Scene::new();
        let hold = scene.begin().await;
        let mut old = serde_json::to_value(wanted(1)).unwrap();
        old.as_object_mut().unwrap().remove("token");
        let name = Claim::record_name(&node());
        let record = serde_json::to_vec(&old).unwrap().into();
        let put = scene
            .storage
            .put_record(&name, record, dax::storage::Authority::Node);
        put.await.unwrap();
        assert_eq!(scene.claimed().await, wanted(1));
        assert!(!scene.stands(&hold).await);
    }
}
