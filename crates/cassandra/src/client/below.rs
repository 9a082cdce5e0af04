//! Reads of a layered volume: its own blocks and, where it has none, those of the images below.
//!
//! ```text
//!   own ──┬── there ──▶ that                                     both are asked at once: blocks of an image do not change
//!   below ┘── none ──▶ the image in the parent ── none ──▶ the one below that ...
//!                        found, or nowhere ──▶ once more all that are above it: they may have been filled meanwhile
//! ```
//!
//! Invariants: blocks of one version never come from below; where a volume below cannot be asked, a block that the ones above do
//! not have is not absent: the read fails, and is made again.

use std::pin::pin;

use dax::error::Result;
use dax::ids::{BlockKey, Generation, Version};
use dax::layer::Layer;
use futures_util::future::{Either, select, try_join_all};

use super::Inner;
use super::environment::Asked;
use crate::row::Stored;
#[cfg(test)]
use crate::simulation::Flaw;

impl Inner {
    /// The newest version up to a generation.
    pub(super) async fn select_newest(
        &self,
        asked: Asked,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Stored>> {
        let own = self.select(&self.config.volume, asked, key, up_to);
        if self.layers.is_empty() || up_to == Generation::SINGLE {
            return own.await;
        }
        let (own, below) = (pin!(own), pin!(self.select_below(asked, key, up_to)));
        let (found, below) = match select(own, below).await {
            Either::Left((found, below)) => (found?, Either::Left(below)),
            Either::Right((below, own)) => (own.await?, Either::Right(below)),
        };
        let below = match (found, below) {
            (Some(found), _) => return Ok(Some(found)),
            (None, Either::Left(below)) => below.await?,
            (None, Either::Right(below)) => below?,
        };
        self.settle(asked, key, up_to, below).await
    }

    /// A volume that is filled first gets what it showed, and then that goes from below. So what was found below, or nowhere, counts if
    /// the volumes above it have nothing of the block afterwards either.
    async fn settle(
        &self,
        asked: Asked,
        key: BlockKey,
        up_to: Generation,
        below: Option<(usize, Stored)>,
    ) -> Result<Option<Stored>> {
        let (mut level, mut found) = match below {
            Some((level, found)) => (level, Some(found)),
            None => (self.layers.len(), None),
        };
        #[cfg(test)]
        if self.has_flaw(Flaw::BelowNotSettled) {
            return Ok(found);
        }
        while level > 0 {
            let above = (0..level).map(|level| self.select_level(level, asked, key, up_to));
            let above = try_join_all(above).await?;
            let Some((at, newer)) = (0..).zip(above).find_map(|(at, one)| Some((at, one?))) else {
                break;
            };
            (level, found) = (at, Some(newer));
        }
        Ok(found)
    }

    /// The newest version that the volume itself has, at level 0, or the image of a layer.
    async fn select_level(
        &self,
        level: usize,
        asked: Asked,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Stored>> {
        match level.checked_sub(1) {
            None => self.select(&self.config.volume, asked, key, up_to).await,
            Some(layer) => {
                let layer = &self.layers[layer];
                self.select_image(layer, asked, key, up_to).await
            }
        }
    }

    /// One replica's answer about a block that has this version: the volume is asked whose epochs have it.
    pub(super) async fn select_known(
        &self,
        key: BlockKey,
        up_to: Generation,
        version: Version,
    ) -> Result<Option<Stored>> {
        let is_below = |layer: &&Layer| version.epoch < layer.first_epoch;
        match self.layers.iter().take_while(is_below).last() {
            Some(layer) => self.select_image(layer, Asked::One, key, up_to).await,
            None => {
                self.select(&self.config.volume, Asked::One, key, up_to)
                    .await
            }
        }
    }

    /// The first of the layers that has it, and at which level.
    async fn select_below(
        &self,
        asked: Asked,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<(usize, Stored)>> {
        for (level, layer) in (1..).zip(&self.layers) {
            let found = self.select_image(layer, asked, key, up_to).await;
            #[cfg(test)]
            let found = match self.has_flaw(Flaw::UnaskedIsAbsent) {
                true => found.or(Ok(None)),
                false => found,
            };
            if let Some(found) = found? {
                return Ok(Some((level, found)));
            }
        }
        Ok(None)
    }

    /// The newest version that the image of a layer has. Blocks of one version are in none.
    async fn select_image(
        &self,
        layer: &Layer,
        asked: Asked,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Stored>> {
        let image = layer.shown(up_to);
        let mut up_to = image.end();
        while up_to != Generation::SINGLE {
            let Some(found) = self.select(&layer.parent, asked, key, up_to).await? else {
                return Ok(None);
            };
            let is_shown = image.contains(found.generation);
            #[cfg(test)]
            let is_shown = is_shown || self.has_flaw(Flaw::ImageNotAsked);
            match (found.generation, is_shown) {
                (Generation::SINGLE, _) => return Ok(None),
                (_, true) => return Ok(Some(found)),
                (generation, false) => up_to = image.floor(generation).unwrap_or_default(),
            }
        }
        Ok(None)
    }

    /// One of the flaws: what the parent has of a block that keeps one version.
    #[cfg(test)]
    pub(super) async fn single_below(
        &self,
        key: BlockKey,
        own: Result<Option<Stored>>,
    ) -> Result<Option<Stored>> {
        match (self.layers.first(), &own) {
            (Some(layer), Ok(None)) if self.has_flaw(Flaw::SingleFallsThrough) => {
                self.select(&layer.parent, Asked::Quorum, key, Generation::SINGLE)
                    .await
            }
            _ => own,
        }
    }
}
