//! The volumes below, where the simulated volume lies over an image of another one, which lies over a third: one schedule of
//! four.
//!
//! The owners of both do nothing any more, so what the image shows is known for ever. Which schedules are layered, and what is
//! there, does not touch the chance of the others.

use dax::error::{ErrorKind, Result};
use dax::ids::{BlockKey, Epoch, FileId, Generation, Version, VolumeName};
use dax::layer::Layer;
use dax::simulation::history::{Content, NOTHING};
use dax::storage::{Lineage, Storage, VolumeSettings};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::flaw::Flaw;
use super::life::Actor;
use super::model::{Cell, Message, Mutation};
use super::places::{self, BLOCK_BYTES, bytes, of_bytes, place_below};
use super::world::World;
use crate::filling::Copying;
use crate::row::{self, Chunk};

/// The volumes below.
pub struct Below {
    /// Chance of looks at them.
    rng: SmallRng,
    /// The volume's row says that it lies over none,
    filled: bool,
    /// and they are gone.
    gone: bool,
}

/// A file of the volumes below, in which the child writes nothing.
pub const BELOW: FileId = FileId(8);
/// Blocks with generations, and as many that keep one version.
const BLOCKS: u64 = 8;
/// The last epoch that the parent had accepted.
const ACCEPTED: Epoch = Epoch(4);
/// One schedule of so many is layered: these.
const LAYERED: (u64, u64) = (4, 1);

fn g(epoch: u32, number: u32) -> Generation {
    Generation {
        epoch: Epoch(epoch),
        number,
    }
}

fn volume(name: &str) -> VolumeName {
    VolumeName::new(name).expect("a name")
}

/// The names of the volumes below, the next one first.
pub const NAMES: [&str; 2] = ["parent", "grandparent"];

/// Partitions of a volume below.
pub fn chunks() -> impl Iterator<Item = Chunk> {
    let last = places::key(BELOW, 2 * BLOCKS - 1).block.0;
    (0..=row::chunk_of(last, BLOCK_BYTES)).map(|chunk| (BELOW, chunk))
}

/// The parent's epochs begin with 2. Epoch 3 took over after generation 3 of epoch 2.
pub fn layers() -> Vec<Layer> {
    let first = Lineage::up_to(g(1, 2));
    let second = first.clone().continued(g(2, 0)).truncated(g(2, 3));
    let image = second.continued(g(3, 0)).truncated(g(3, 2));
    let layer = |at: usize, image, first_epoch| Layer {
        parent: volume(NAMES[at]),
        image,
        first_epoch,
        proof: None,
    };
    vec![layer(0, image, ACCEPTED.next()), layer(1, first, Epoch(2))]
}

/// Generations in which a volume below has a block, and whether each is of the image.
fn written(level: usize, block: u64) -> Vec<(Generation, bool)> {
    let all = match level {
        0 => vec![(g(2, 1), true), (g(2, 5), false), (g(3, 1), true)],
        _ => vec![(g(1, 1), true), (g(1, 5), false)],
    };
    let has = |at: &usize| (block >> at) & 1 == 1 || level == 1 && block.is_multiple_of(3);
    let mut written: Vec<_> = (0..all.len()).filter(has).map(|at| all[at]).collect();
    // What the parent has gone on with.
    written.extend((level == 0).then_some((g(4, 1), false)));
    written
}

fn content(level: usize, block: u64, generation: Generation) -> Content {
    let place = u64::from(generation.epoch.0) * 8 + u64::from(generation.number);
    1 << 40 | (level as u64) << 20 | block << 8 | place
}

/// Contents that a read as of `up_to` must show.
fn right(block: u64, up_to: Generation) -> Content {
    let newest = |level| {
        let written = written(level, block).into_iter();
        let shown = written.filter(|(generation, shown)| *shown && *generation <= up_to);
        let newest = shown.max().map(|(generation, _)| generation)?;
        Some(content(level, block, newest))
    };
    newest(0).or_else(|| newest(1)).unwrap_or(NOTHING)
}

/// Settings of a volume with these layers.
pub fn lay(settings: VolumeSettings, layers: &[Layer]) -> VolumeSettings {
    match layers.first() {
        Some(layer) => settings.under(layer.clone()),
        None => settings,
    }
}

impl World {
    /// Lays the volume over others, if this is such a schedule.
    pub fn lay(&mut self, seed: u64) {
        let (of, which) = LAYERED;
        if seed % of == which {
            self.lay_over(SmallRng::seed_from_u64(seed));
        }
    }

    pub fn lay_over(&mut self, mut rng: SmallRng) {
        self.coverage.one("layered volumes");
        for level in 0..NAMES.len() {
            for block in 0..BLOCKS {
                let single = (places::key(BELOW, BLOCKS + block), Generation::SINGLE, true);
                let key = places::key(BELOW, block);
                let written = written(level, block).into_iter();
                let written = written.map(|(generation, shown)| (key, generation, shown));
                for (key, generation, shown) in written.chain([single]) {
                    let content = content(level, block, generation);
                    self.put_below(&mut rng, level, (key, generation), shown, content);
                }
            }
        }
        self.below = Some(Below {
            rng,
            filled: false,
            gone: false,
        });
    }

    /// The volumes that the volume needs.
    pub fn layers_below(&self) -> Vec<Layer> {
        match &self.below {
            Some(below) if !below.filled => layers(),
            _ => Vec::new(),
        }
    }

    /// The volume needs the others no more; `gone` if they are not there either.
    pub fn fill_below(&mut self, gone: bool) {
        if let Some(below) = &mut self.below {
            below.filled = true;
            if gone && !std::mem::replace(&mut below.gone, true) {
                self.coverage.one("volumes filled");
            }
        }
    }

    /// Which of the volumes below this is, if it is one of them, and whether it is there.
    pub fn level(&self, volume: &VolumeName) -> Option<(usize, bool)> {
        let level = NAMES.iter().position(|name| *name == volume.as_str())?;
        Some((level, self.below.as_ref().is_some_and(|below| !below.gone)))
    }

    /// On as many replicas as make it durable, at least; what is of no image may be on one alone.
    fn put_below(
        &mut self,
        rng: &mut SmallRng,
        level: usize,
        (key, generation): (BlockKey, Generation),
        durable: bool,
        content: Content,
    ) {
        let version = Version {
            epoch: generation.epoch.max(Epoch(1)),
            seq: u64::from(generation.number) + 1,
        };
        let cell = Cell::live(row::timestamp(version), bytes(content));
        let mutation = Mutation::one(place_below(level, key, generation), cell);
        let (nodes, quorum) = (self.cluster.setup().nodes, self.cluster.setup().quorum());
        let least = if durable { quorum } else { 1 };
        let (first, count) = (rng.random_range(0..nodes), rng.random_range(least..=nodes));
        for node in (first..first + count).map(|node| node % nodes) {
            let message = Message::Mutate(0, 0, mutation.clone());
            self.cluster.deliver(node, message);
            self.cluster.sync_log(node);
        }
    }
}

impl Actor {
    /// Reads what the volumes below show, now and then.
    pub fn look_below(&self) {
        let Some((block, up_to)) = self.world(|world| {
            let rng = &mut world.below.as_mut()?.rng;
            let block = rng.random_range(0..2 * BLOCKS);
            let some = [g(1, 2), g(2, 3), g(3, 2), Generation::MAX, Generation::MAX];
            let up_to = match block {
                BLOCKS.. => Generation::SINGLE,
                _ => some[rng.random_range(0..some.len())],
            };
            rng.random_bool(0.5).then_some((block, up_to))
        }) else {
            return;
        };
        let actor = self.clone();
        self.spawn(async move { actor.read_below(block, up_to).await });
    }

    /// Fills the volume, now and then. Nobody owns anything for that.
    pub fn fill_below(&self) {
        let layers = self.world(|world| {
            let now = |below: &mut Below| !below.filled && below.rng.random_bool(0.03);
            let now = world.below.as_mut().is_some_and(now);
            let mut layers = world.layers_below();
            if now && world.has(Flaw::FilledFromAll) {
                layers[0].image = Lineage::up_to(Generation::MAX);
            }
            now.then_some(layers)
        });
        if let Some(layers) = layers {
            let actor = self.clone();
            self.spawn(async move {
                match actor.fill(&layers).await {
                    Ok(()) => actor.world(|world| world.fill_below(true)),
                    // Somebody else was quicker, or it is done again.
                    Err(error) if error.kind() == ErrorKind::Unavailable => {}
                    Err(_) if actor.world(|world| world.layers_below().is_empty()) => {}
                    Err(error) => actor.failed(&error),
                }
            });
        }
    }

    /// As `fill_volume` does.
    pub async fn fill(&self, layers: &[Layer]) -> Result<()> {
        let volume = volume("v");
        let copying = Copying::new(self.environment(), &volume, layers);
        let work = copying.survey().await?;
        self.world(|world| {
            if world.has(Flaw::FilledTooEarly) {
                world.fill_below(false);
            }
        });
        for (file, chunks) in work {
            copying.copy(file, &chunks).await?;
        }
        Ok(())
    }

    async fn read_below(&self, block: u64, up_to: Generation) {
        let key = places::key(BELOW, block);
        let found = match self.client.read(key, up_to).await {
            Ok(found) => of_bytes(found.as_ref().map(|block| &block.data[..])),
            Err(error) => return self.failed(&error),
        };
        let right = match up_to {
            Generation::SINGLE => NOTHING,
            up_to => right(block, up_to),
        };
        let is_inside = up_to != Generation::SINGLE && up_to < layers()[0].image.end();
        self.world(|world| {
            // The volume has no images but from its own first one on, and copies are of that.
            if is_inside && world.layers_below().is_empty() {
                return;
            }
            world.coverage.one("reads of the volumes below");
            if found != right {
                let what = format!("{found} was read of {key} up to {up_to}, and not {right}");
                world.recorder.wrong("layers", what);
            }
        });
    }

    /// An epoch is owned, which must be above those of the parent.
    pub fn check_first_epoch(&self, epoch: Epoch) {
        self.world(|world| {
            if world.below.is_some() && epoch <= ACCEPTED {
                let what = format!("{epoch} was one of the parent's");
                world.recorder.wrong("layers", what);
            }
        });
    }
}
