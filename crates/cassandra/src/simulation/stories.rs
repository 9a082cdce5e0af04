//! Histories by hand, where a rule is worth one: each ends well, and badly without the rule.

use std::time::Duration;

use bytes::Bytes;
use dax::ids::{BlockKey, Epoch, Generation, NodeName};
use dax::storage::{Authority, Storage, SyncScope};
use futures_util::future::join;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::oneshot;

use super::below::{BELOW, layers};
use super::executor::{Executor, Stage};
use super::flaw::Flaw;
use super::life::Actor;
use super::model::{Cell, Message, Mutation};
use super::places::{self, OTHER, SINGLES, bytes, name_of, of_bytes, place_of};
use super::world::World;
use crate::config::{Fencing, LEASE};
use crate::row;

const SINGLE: Generation = Generation::SINGLE;

/// A world in which nothing goes wrong by itself.
struct Scene {
    stage: Stage,
    executor: Executor,
}

impl Scene {
    fn new(seed: u64, flaw: Option<Flaw>) -> Scene {
        let mut world = World::new(seed, flaw, false);
        world.calm = true;
        world.fencing = Fencing::Lease(LEASE);
        let stage = Stage::new(world);
        Scene {
            executor: Executor::new(stage.clone()),
            stage,
        }
    }

    fn client(&self) -> Actor {
        Actor::new(&self.stage, 0)
    }

    /// Goes on until this has ended.
    fn run<T, F>(&mut self, actor: &Actor, task: impl FnOnce(Actor) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (done, mut ended) = oneshot::channel();
        let task = task(actor.clone());
        actor.spawn(async move { drop(done.send(task.await)) });
        loop {
            while self.executor.step().is_some() {}
            if let Ok(result) = ended.try_recv() {
                return result;
            }
            self.stage.lock().turn(Duration::MAX).expect("it ends");
        }
    }

    /// A new owner of the next epoch, whose predecessor waits for nothing.
    fn owner(&mut self, epoch: u32) -> Actor {
        let owner = self.client();
        let owned = self.run(&owner, |actor| async move {
            let name = NodeName::new("node").unwrap();
            actor.client.own_epoch(&name).await
        });
        assert_eq!(owned.unwrap(), Epoch(epoch));
        owner
    }

    fn release(&mut self, owner: &Actor) {
        self.run(owner, |actor| async move { actor.client.release().await })
            .unwrap();
    }

    fn read(&mut self, actor: &Actor, key: BlockKey) -> Option<u64> {
        let found = self.run(actor, move |actor| async move {
            actor.client.read(key, SINGLE).await.unwrap()
        });
        found.map(|block| of_bytes(Some(&block.data)))
    }

    /// What the owner of a dead epoch had sent arrives everywhere.
    fn late_write(&mut self, key: BlockKey, epoch: u32) {
        let version = dax::ids::Version {
            epoch: Epoch(epoch),
            seq: 1000,
        };
        let cell = Cell::live(row::timestamp(version), bytes(7));
        let mutation = Mutation::one(place_of(key, SINGLE), cell);
        let cluster = &mut self.stage.lock().cluster;
        for node in 0..3 {
            cluster.deliver(node, Message::Mutate(0, 0, mutation.clone()));
        }
    }
}

/// The first owner promotes that a block is absent. The second one writes it, and dies while that is under way. The
/// third one reads the block, finds what the first one has said, and tells that there is nothing. Then the write of
/// the second arrives.
fn absence_of_an_older_epoch(flaw: Option<Flaw>) -> Option<u64> {
    let mut scene = Scene::new(1, flaw);
    let key = places::key(SINGLES, 0);
    let first = scene.owner(1);
    let found = scene.run(&first, move |actor| async move {
        actor.client.read_promote(key).await.unwrap()
    });
    assert_eq!(found, None);
    scene.release(&first);
    let second = scene.owner(2);
    scene.release(&second);
    let third = scene.owner(3);
    assert_eq!(scene.read(&third, key), None);
    scene.late_write(key, 2);
    let reader = scene.client();
    scene.read(&reader, key)
}

// hazard: CASS-1
#[test]
fn absence_seen_by_an_older_epoch_is_confirmed_before_it_is_reported() {
    assert_eq!(absence_of_an_older_epoch(None), None);
    let believed = absence_of_an_older_epoch(Some(Flaw::OldAbsenceBelieved));
    assert_eq!(believed, Some(7));
}

/// A record is promoted, and put while that is under way. What is there once both have ended?
fn promoted_and_put(seed: u64, flaw: Option<Flaw>) -> Option<Bytes> {
    let mut scene = Scene::new(seed, flaw);
    let owner = scene.owner(1);
    scene.run(&owner, move |actor| async move {
        let (name, value) = (name_of(OTHER), Bytes::from(bytes(1)));
        let promoted = actor.client.promote_record(&name);
        let put = actor.client.put_record(&name, value, Authority::Owner);
        let (promoted, put) = join(promoted, put).await;
        promoted.unwrap();
        put.unwrap();
        actor.client.get_record(&name).await.unwrap()
    })
}

// hazard: CASS-2
#[test]
fn a_promotion_does_not_undo_a_put() {
    let mut seeds = 0..20;
    let value = Some(Bytes::from(bytes(1)));
    assert!(
        seeds
            .clone()
            .all(|seed| promoted_and_put(seed, None) == value)
    );
    let undone = |seed| promoted_and_put(seed, Some(Flaw::PutsOverlap)).is_none();
    assert!(seeds.any(undone));
}

/// The first owner of a layered volume reads a block that the volume below has: as it is there, after it has written it itself, and
/// as of the image. Then somebody else reads it.
// hazard: LAYER-1, LAYER-2
#[test]
fn a_block_of_its_own_hides_the_one_below_and_the_image_stays() {
    let mut scene = Scene::new(1, None);
    let rng = SmallRng::seed_from_u64(1);
    scene.stage.lock().lay_over(rng);
    let (key, first) = (places::key(BELOW, 7), layers()[0].first_epoch);
    let image = layers()[0].image.end();
    let owner = scene.owner(first.0);
    let read = |scene: &mut Scene, actor: &Actor, up_to| {
        let found = scene.run(actor, move |actor| async move {
            actor.client.read(key, up_to).await.unwrap()
        });
        found.map(|block| (block.generation, of_bytes(Some(&block.data))))
    };
    let below = read(&mut scene, &owner, Generation::MAX).unwrap();
    assert!(below.0 <= image, "{below:?}");
    assert_eq!(read(&mut scene, &owner, Generation::MAX), Some(below));
    let counters = owner.client.counters();
    assert_eq!((counters.reads_quorum, counters.reads_one), (1, 1));
    let generation = Generation {
        epoch: first,
        number: 1,
    };
    scene.run(&owner, move |actor| async move {
        let data = Bytes::from(bytes(7));
        actor.client.write(key, generation, data).unwrap();
        actor.client.csync(SyncScope::Volume).await.unwrap();
    });
    let reader = scene.client();
    for actor in [&owner, &reader] {
        assert_eq!(
            read(&mut scene, actor, Generation::MAX),
            Some((generation, 7))
        );
        assert_eq!(read(&mut scene, actor, image), Some(below));
    }
}

/// The contents that a client which knows of no volume below reads of a block that the volume below has, once the volume was filled. `removed` files
/// are so before.
fn filled(removed: bool) -> Option<u64> {
    let mut scene = Scene::new(1, None);
    scene.stage.lock().lay_over(SmallRng::seed_from_u64(1));
    let layers = layers();
    let owner = scene.owner(layers[0].first_epoch.0);
    scene.run(&owner, move |actor| async move {
        if removed {
            actor.client.remove_files(&[BELOW]).await.unwrap();
        }
        actor.fill(&layers).await.unwrap();
    });
    scene.stage.lock().fill_below(true);
    let reader = scene.client();
    let found = scene.run(&reader, |actor| async move {
        let key = places::key(BELOW, 7);
        actor.client.read(key, Generation::MAX).await.unwrap()
    });
    found.map(|block| of_bytes(Some(&block.data)))
}

// hazard: LAYER-11
#[test]
fn a_fill_brings_no_file_back_that_the_volume_has_removed() {
    assert!(filled(false).is_some());
    assert_eq!(filled(true), None);
}
