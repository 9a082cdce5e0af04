//! Pins: records `pin/<name>` that keep an image as long as they are there.
//!
//! ```text
//!   put: making ── the seal is still kept ──▶ making ── refreshed, work done ──▶ kept ── removed ──▶ gone
//!     └── it is not: removed                    └── silent for long: its name is dropped, and it is removed
//! ```
//!
//! Invariants: a pin that stands was durable before its seal was last seen as kept, so every later look of the reclaimer finds
//! it. Nobody but who asks for it removes one in state *kept*. A name is drawn at random and never used twice; a maker that
//! slept through the loss of its pin finds the name among those dropped.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use dax::ids::{FileId, Generation};
use dax::storage::{Authority, Storage};
use serde::{Deserialize, Serialize};

use super::{FORMAT, Index, KeptSeal, check_format, encode, is_allowed, load_seal, not_allowed};
use crate::claim::Token;
use crate::error::{Error, Result};
use crate::lsn::Lsn;
use crate::seal::{self, Seal};

/// Prefix of the records' names.
pub const PIN_PREFIX: &str = "pin/";

/// How far a pin is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PinState {
    /// Its maker is at work, and says so again and again.
    Making,
    /// It stays until it is removed.
    Kept,
}

impl fmt::Display for PinState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PinState::Making => "making",
            PinState::Kept => "kept",
        })
    }
}

/// A record that keeps an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    format: u32,
    /// Its name, which nobody else has or will have.
    pub name: String,
    /// Purpose, as people read it.
    pub purpose: String,
    /// How far it is.
    pub state: PinState,
    /// Grows whenever its maker says that it is at work.
    pub number: u64,
    /// The seal of the image.
    seal: KeptSeal,
    /// The image and its seal have no file with a higher id: what was made later is not kept for it.
    pub newest_file: FileId,
    /// Log that is kept: from here on, or none.
    pub log: Option<Lsn>,
}

impl Pin {
    /// Pins the image of a seal, or of the last one; with the log from its redo on, or none. The pin is in state *making*.
    ///
    /// # Errors
    /// [`Error::NotKept`] if the image is not kept; `Denied` where a program that does not look at pins may own the volume.
    pub async fn make(
        storage: &Arc<dyn Storage>,
        purpose: &str,
        generation: Option<Generation>,
        with_log: bool,
    ) -> Result<Pin> {
        if !is_allowed(storage).await? {
            return Err(not_allowed());
        }
        let seal = find(storage, generation).await?.ok_or(Error::NotKept)?;
        Pin::put_on(storage, purpose, seal, with_log, true).await
    }

    /// Pins the image of a seal that was read some time ago. It may have left since; only a test does not look.
    pub(crate) async fn put_on(
        storage: &Arc<dyn Storage>,
        purpose: &str,
        seal: Seal,
        with_log: bool,
        is_looked_at: bool,
    ) -> Result<Pin> {
        let pin = Pin {
            format: FORMAT,
            name: Token::random()?.to_string(),
            purpose: purpose.to_owned(),
            state: PinState::Making,
            number: 0,
            newest_file: seal.newest_needed(),
            log: with_log.then_some(seal.redo),
            seal: KeptSeal::new(seal),
        };
        pin.put(storage).await?;
        match !is_looked_at || is_kept(storage, pin.generation()).await? {
            true => Ok(pin),
            false => pin.lost(storage).await,
        }
    }

    /// Says that its maker is at work.
    ///
    /// # Errors
    /// [`Error::NotKept`] if the pin was given up in the meantime.
    pub async fn refresh(mut self, storage: &Arc<dyn Storage>) -> Result<Pin> {
        self.number += 1;
        self.put(storage).await?;
        let index = Index::load(storage).await?;
        match index.dropped.contains(&self.name) {
            false => Ok(self),
            true => self.lost(storage).await,
        }
    }

    /// Makes it stay, whether its maker lives or not.
    ///
    /// # Errors
    /// As [`Pin::refresh`].
    pub async fn keep(mut self, storage: &Arc<dyn Storage>) -> Result<Pin> {
        self.state = PinState::Kept;
        self.refresh(storage).await
    }

    async fn lost(self, storage: &Arc<dyn Storage>) -> Result<Pin> {
        Pin::remove(storage, &self.name).await?;
        Err(Error::NotKept)
    }

    /// Removes a pin: its image may be gone from now on.
    ///
    /// # Errors
    /// Those of the zones.
    pub async fn remove(storage: &Arc<dyn Storage>, name: &str) -> Result<()> {
        let name = Pin::record_name(name);
        Ok(storage.remove_record(&name, Authority::Node).await?)
    }

    /// Removes a pin of somebody else under the epoch's authority.
    pub(crate) async fn give_up(storage: &Arc<dyn Storage>, name: &str) -> Result<()> {
        let name = Pin::record_name(name);
        Ok(storage.remove_record(&name, Authority::Owner).await?)
    }

    /// All pins.
    ///
    /// # Errors
    /// `Damaged` if one is no pin: nothing is given back then.
    pub async fn all(storage: &Arc<dyn Storage>) -> Result<Vec<Pin>> {
        let records = storage.list_records(PIN_PREFIX).await?;
        let pins = records
            .into_iter()
            .map(|(name, value)| Pin::parse(&name, &value));
        pins.collect()
    }

    /// A pin by its name.
    ///
    /// # Errors
    /// As [`Pin::all`].
    pub async fn load(storage: &Arc<dyn Storage>, name: &str) -> Result<Option<Pin>> {
        let name = Pin::record_name(name);
        let record = storage.get_record(&name).await?;
        record.map(|value| Pin::parse(&name, &value)).transpose()
    }

    /// Reads a record.
    ///
    /// # Errors
    /// `Damaged` if it is no pin.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Pin> {
        let pin: Pin = super::parse(name, bytes)?;
        check_format(name, pin.format)?;
        pin.seal.check(name)?;
        Ok(pin)
    }

    /// The record's name.
    fn record_name(name: &str) -> String {
        format!("{PIN_PREFIX}{name}")
    }

    /// The generation that its image ends with.
    pub fn generation(&self) -> Generation {
        self.seal.seal.generation
    }

    /// The seal of its image: that which is kept, or else as it was when the pin was made.
    ///
    /// # Errors
    /// Those of the zones, and `Damaged`.
    pub async fn load_seal(&self, storage: &Arc<dyn Storage>) -> Result<Seal> {
        let kept = load_seal(storage, self.generation()).await?;
        Ok(kept.unwrap_or_else(|| self.seal()))
    }

    /// The seal as it was when the pin was made.
    pub fn seal(&self) -> Seal {
        self.seal.seal()
    }

    /// Registers or replaces it durably.
    async fn put(&self, storage: &Arc<dyn Storage>) -> Result<()> {
        let name = Pin::record_name(&self.name);
        let bytes = Bytes::from(encode(self));
        Ok(storage.put_record(&name, bytes, Authority::Node).await?)
    }
}

/// The seal of a generation, or the last one.
async fn find(storage: &Arc<dyn Storage>, generation: Option<Generation>) -> Result<Option<Seal>> {
    let mut seals = seal::load_seals(storage).await?;
    let Some(generation) = generation else {
        return Ok(seals.pop());
    };
    let found = seals.into_iter().find(|one| one.generation == generation);
    match found {
        Some(seal) => Ok(Some(seal)),
        None => load_seal(storage, generation).await,
    }
}

/// True if the image of a generation is kept for whoever pins it. The order counts: the index names a seal before it leaves.
async fn is_kept(storage: &Arc<dyn Storage>, generation: Generation) -> Result<bool> {
    let seals = seal::load_seals(storage).await?;
    if seals.iter().any(|one| one.generation == generation) {
        return Ok(true);
    }
    let index = Index::load(storage).await?;
    Ok(index.get(generation).is_some_and(|image| !image.closed))
}
