//! Images that are pinned or kept by a policy, while actives seal, are replaced and reclaim: each reads to the last as it did
//! when it was sealed. Makers of pins are slow, so the seal that they have read may have left when the pin is put.
//!
//! All by a clock and chances of its own, so that nothing else in a history depends on them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use dax::forms::{Forms, WrittenForms};
use dax::ids::{BlockKey, Generation};
use dax::storage::{Authority, Storage};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::Coverage;

use super::active::Active;
use super::checkers::{Held, broken};
use super::flaw::Flaw;
use super::page::PAGE_BYTES;
use super::trace::say;
use crate::active::Clock;
use crate::error::Error;
use crate::image;
use crate::layout::FileClass;
use crate::past::{Pin, Policy, load_seal};
use crate::seal::{Base, Seal, load_seals};
use crate::view::Timestamp;

const PINS_MAX: usize = 3;
/// Seals that a maker may have read, at most.
const READ_MAX: usize = 6;

/// Blocks of the database's files that are not zeros.
type Contents = BTreeMap<BlockKey, Vec<u8>>;

pub(super) struct Pinned {
    rng: SmallRng,
    flaw: Option<Flaw>,
    minutes: Arc<AtomicI64>,
    policy: Option<Policy>,
    seals: Vec<(Seal, Contents)>,
    pins: Vec<Pin>,
}

async fn contents(storage: &Arc<dyn Storage>, seal: &Seal) -> Held<Contents> {
    let base = Base::load(storage, seal).await?;
    let mut contents = Contents::new();
    for (file, inode) in base.namespace.inodes() {
        if inode.class != FileClass::Data {
            continue;
        }
        for block in 0..inode.size.div_ceil(PAGE_BYTES) {
            let key = BlockKey::new(file, block);
            let read = image::read_block(storage, &seal.lineage, inode, key).await?;
            contents.extend(read.map(|found| (key, found.data.to_vec())));
        }
        // That it is there counts, too.
        contents.insert(
            BlockKey::new(file, u64::MAX),
            inode.size.to_be_bytes().to_vec(),
        );
    }
    Ok(contents)
}

impl Pinned {
    pub async fn new(seed: u64, flaw: Option<Flaw>, storage: &Arc<dyn Storage>) -> Held<Pinned> {
        let written = WrittenForms {
            written: Forms::PINS,
        };
        let json = serde_json::to_vec(&written).expect("it has string keys only");
        let put = storage.put_record(Forms::RECORD, json.into(), Authority::Owner);
        put.await.map_err(Error::from)?;
        let mut rng = SmallRng::seed_from_u64(!seed);
        let rules = ["all for 1h", "all for 20m, hourly for 6h"];
        let rules = rules.get(rng.random_range(0..3));
        Ok(Pinned {
            rng,
            flaw,
            minutes: Arc::default(),
            policy: rules.map(|rules| Policy {
                keep: rules.parse().expect("they are rules"),
                space: None,
            }),
            seals: Vec::new(),
            pins: Vec::new(),
        })
    }

    /// An active begins.
    pub fn begin(&self, active: &Active) {
        let minutes = Arc::clone(&self.minutes);
        let now = move || Timestamp(minutes.load(Ordering::Relaxed) * 60_000_000_000);
        active.view.use_clock(Clock::new(now));
        active.view.keep_past(self.policy.clone());
        active
            .view
            .ignore_pins(self.flaw == Some(Flaw::PinsIgnored));
    }

    /// The active has sealed.
    pub async fn sealed(
        &mut self,
        active: &Active,
        seal: &Seal,
        coverage: &mut Coverage,
    ) -> Held<()> {
        self.minutes
            .fetch_add(self.rng.random_range(0..30), Ordering::Relaxed);
        let storage: Arc<dyn Storage> = active.storage.clone();
        let sealed = contents(&storage, seal).await?;
        self.seals.push((seal.clone(), sealed));
        active.view.reclaim().await?;
        match self.rng.random_range(0..4) {
            0 if self.pins.len() < PINS_MAX => self.pin(&storage, coverage).await?,
            1 if !self.pins.is_empty() => {
                let gone = self.pins.remove(self.rng.random_range(0..self.pins.len()));
                Pin::remove(&storage, &gone.name).await?;
                coverage.one("pins dropped");
            }
            2 if !self.pins.is_empty() => {
                let at = self.rng.random_range(0..self.pins.len());
                self.pins[at] = self.pins[at].clone().keep(&storage).await?;
            }
            _ => {}
        }
        self.check(active, coverage).await
    }

    /// A maker pins what it has read some time ago.
    async fn pin(&mut self, storage: &Arc<dyn Storage>, coverage: &mut Coverage) -> Held<()> {
        let back = self.rng.random_range(0..READ_MAX.min(self.seals.len()));
        let (seal, _) = &self.seals[self.seals.len() - 1 - back];
        let is_looked_at = self.flaw != Some(Flaw::PinUnchecked);
        match Pin::put_on(storage, "model", seal.clone(), false, is_looked_at).await {
            Ok(pin) => {
                say(|| format!("{} is pinned", pin.generation()));
                coverage.one("pins");
                self.pins.push(pin);
            }
            Err(Error::NotKept) => coverage.one("pins that came too late"),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Checks that all that is pinned or kept reads as it did.
    pub async fn check(&self, active: &Active, coverage: &mut Coverage) -> Held<()> {
        let storage: Arc<dyn Storage> = active.storage.clone();
        let mut images = load_seals(&storage).await?;
        for pin in &self.pins {
            images.push(pin.load_seal(&storage).await?);
        }
        for image in active.view.past().await.images {
            let seal = load_seal(&storage, image.generation).await?;
            let missing = || broken(KEPT, format!("{} has no seal", image.generation));
            images.push(seal.ok_or_else(missing)?);
            coverage.one("looks at kept images");
        }
        for seal in images {
            self.check_image(&storage, &seal).await?;
        }
        Ok(())
    }

    async fn check_image(&self, storage: &Arc<dyn Storage>, seal: &Seal) -> Held<()> {
        let same = |(one, _): &&(Seal, Contents)| one.generation == seal.generation;
        let Some((_, expected)) = self.seals.iter().find(same) else {
            return Ok(());
        };
        let gone =
            |generation: Generation, what: String| broken(KEPT, format!("{generation}: {what}"));
        let found = contents(storage, seal).await;
        let found = found.map_err(|error| gone(seal.generation, error.what))?;
        let keys = expected.keys().chain(found.keys());
        let mut other = keys.filter(|key| expected.get(*key) != found.get(*key));
        match other.next() {
            None => Ok(()),
            Some(key) => Err(gone(seal.generation, format!("{key} reads otherwise"))),
        }
    }
}

const KEPT: &str = "images that are pinned or kept";
