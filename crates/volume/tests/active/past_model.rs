//! Pins, thinning and takeovers in any order, against a model: what an image had when it was sealed.

use std::collections::BTreeMap;
use std::sync::Arc;

use dax::ids::{BlockKey, FileId};
use dax::storage::Storage;
use proptest::prelude::*;
use volume::error::Error;
use volume::past::{Pin, Policy, load_seal};
use volume::seal::{Base, Seal};
use volume::view::{Ino, NewInode, Timestamp, View};

use crate::common::{BLOCK, Life, Volume};
use crate::past::{Hand, open, policy};

const FILES: usize = 4;
const BLOCKS: u64 = 3;

#[derive(Debug, Clone)]
enum Step {
    Write(usize, u64),
    Unlink(usize),
    Seal,
    /// Pins the n-th of all images that there ever were, from the last one on.
    Pin(usize),
    /// Makes a pin stay.
    Keep(usize),
    Drop(usize),
    Pass(i64),
    TakeOver,
    Policy(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..FILES, 0..BLOCKS).prop_map(|(file, block)| Step::Write(file, block)),
        1 => (0..FILES).prop_map(Step::Unlink),
        6 => Just(Step::Seal),
        2 => (0usize..6).prop_map(Step::Pin),
        1 => (0usize..4).prop_map(Step::Keep),
        1 => (0usize..4).prop_map(Step::Drop),
        2 => (1i64..40).prop_map(Step::Pass),
        1 => Just(Step::TakeOver),
        1 => (0usize..3).prop_map(Step::Policy),
    ];
    prop::collection::vec(step, 1..60)
}

/// The first byte of each block of each file, by name.
type Contents = BTreeMap<String, Vec<u8>>;

struct World {
    volume: Volume,
    hand: Hand,
    policy: Option<Policy>,
    life: Life,
    now: Contents,
    images: Vec<(Seal, Contents)>,
    pins: Vec<Pin>,
    written: u8,
}

impl World {
    async fn new() -> World {
        let (volume, hand) = (Volume::format().await, Hand::default());
        let life = open(&volume, &hand, None).await;
        let first = life.view.seals().into_iter();
        World {
            images: first.map(|seal| (seal, Contents::new())).collect(),
            life,
            volume,
            hand,
            policy: None,
            now: Contents::new(),
            pins: Vec::new(),
            written: 0,
        }
    }

    async fn step(&mut self, step: &Step) {
        let reader = self.volume.reader();
        match *step {
            Step::Write(file, block) => {
                let name = format!("f{file}");
                let ino = match self.life.find(&name) {
                    Some(attr) => attr.ino,
                    None => self.life.create(&name, NewInode::File).ino,
                };
                self.written = self.written % 250 + 1;
                let data = vec![self.written; BLOCK];
                self.life.write(ino, block * BLOCK as u64, data).await;
                let blocks = self.now.entry(name).or_default();
                let len = blocks.len().max(block as usize + 1);
                blocks.resize(len, 0);
                blocks[block as usize] = self.written;
            }
            Step::Unlink(file) => {
                let name = format!("f{file}");
                if self.now.remove(&name).is_some() {
                    let view = &self.life.view;
                    view.unlink(Ino::ROOT, name.as_bytes(), Timestamp(3))
                        .unwrap();
                }
            }
            Step::Seal => {
                let sealed = self.life.seal(0).await;
                self.images.push((sealed, self.now.clone()));
                self.life.view.reclaim().await.unwrap();
            }
            Step::Pin(back) => {
                let Some((seal, _)) = self.images.iter().rev().nth(back) else {
                    return;
                };
                let pin = Pin::make(&reader, "model", Some(seal.generation), false).await;
                match pin {
                    Ok(pin) => self.pins.push(pin),
                    Err(Error::NotKept) => assert!(back > 1, "the last two are always kept"),
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Keep(at) if at < self.pins.len() => {
                self.pins[at] = self.pins[at].clone().keep(&reader).await.unwrap();
            }
            Step::Drop(at) if at < self.pins.len() => {
                let gone = self.pins.remove(at);
                Pin::remove(&reader, &gone.name).await.unwrap();
            }
            Step::Keep(_) | Step::Drop(_) => {}
            Step::Pass(minutes) => self.hand.pass(minutes),
            Step::TakeOver => {
                // The next owner goes on with the last image.
                let sealed = self.life.seal(0).await;
                self.images.push((sealed, self.now.clone()));
                self.life = open(&self.volume, &self.hand, self.policy.clone()).await;
                self.life.view.reclaim().await.unwrap();
            }
            Step::Policy(which) => {
                let rules = [
                    None,
                    Some("all for 30m"),
                    Some("all for 10m, hourly for 6h"),
                ];
                self.policy = rules[which].and_then(policy);
                self.life.view.keep_past(self.policy.clone());
            }
        }
    }

    async fn check_image(&self, reader: &Arc<dyn Storage>, seal: &Seal) {
        let of = |one: &&(Seal, Contents)| one.0.generation == seal.generation;
        let expected = &self.images.iter().find(of).unwrap().1;
        let base = Base::load(reader, seal).await.unwrap();
        let mut found = Contents::new();
        for (name, id) in base.namespace.directory(FileId(Ino::ROOT.0)).unwrap() {
            let inode = base.namespace.file(*id).unwrap();
            let mut blocks = Vec::new();
            for block in 0..inode.size.div_ceil(BLOCK as u64) {
                let key = BlockKey::new(*id, block);
                let read = volume::image::read_block(reader, &seal.lineage, inode, key);
                blocks.push(read.await.unwrap().map_or(0, |found| found.data[0]));
            }
            found.insert(String::from_utf8_lossy(name).into_owned(), blocks);
        }
        assert_eq!(&found, expected, "{}", seal.generation);
    }

    /// Checks that all that a pin, the past or a seal has reads as it was.
    async fn check(&self) {
        let reader = self.volume.reader();
        for pin in &self.pins {
            let seal = pin.load_seal(&reader).await.unwrap();
            self.check_image(&reader, &seal).await;
        }
        for image in self.life.view.past().await.images {
            let seal = load_seal(&reader, image.generation).await.unwrap();
            self.check_image(&reader, &seal.unwrap()).await;
        }
        for seal in volume::seal::load_seals(&reader).await.unwrap() {
            if self
                .images
                .iter()
                .any(|(one, _)| one.generation == seal.generation)
            {
                self.check_image(&reader, &seal).await;
            }
        }
    }

    /// Without pins and policy nothing is left but the present and the last two seals.
    async fn end(mut self) {
        let reader = self.volume.reader();
        for pin in std::mem::take(&mut self.pins) {
            Pin::remove(&reader, &pin.name).await.unwrap();
        }
        self.life.view.keep_past(None);
        for _ in 0..4 {
            self.step(&Step::Seal).await;
        }
        assert!(self.life.view.past().await.images.is_empty());
        let namespace = self.life.view.namespace();
        let blocks: u64 = namespace
            .inodes()
            .map(|(_, inode)| inode.size.div_ceil(BLOCK as u64))
            .sum();
        let stored = self.volume.cluster.stored_versions() as u64;
        // Journal, snapshot, and the lists of the last seals.
        let most = blocks + 24;
        assert!(stored <= most, "{stored} versions of {blocks} blocks");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    // hazard: PAST-1, PAST-2, PAST-3, PAST-6
    #[test]
    fn what_is_kept_reads_as_it_was_and_nothing_else_stays(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new().await;
            for step in &steps {
                world.step(step).await;
                if matches!(step, Step::Seal | Step::TakeOver | Step::Drop(_)) {
                    world.check().await;
                }
            }
            world.end().await;
        });
    }
}
