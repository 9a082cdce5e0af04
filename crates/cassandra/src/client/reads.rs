//! Reads (DAX 3.1) and ReadPromote (DAX 5).

use std::sync::Arc;

use dax::error::{Error, ErrorKind, Result};
use dax::ids::{BlockKey, Epoch, FileId, Generation, Version, VolumeName};
use dax::storage::Block;
use dax::writer::Reading;
use dax::writer::packing::unpack;
use dax::writer::pending::Seq;

use super::Inner;
use super::environment::{Asked, Found};
use crate::row::{self, Stored};
#[cfg(test)]
use crate::simulation::Flaw;

/// A read or a promotion, which ends also if its caller went away. Until then, the version list does not forget what
/// is written of the block.
struct UnderWay<'a> {
    inner: &'a Inner,
    key: BlockKey,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        state.writer.handle.end_read(self.key);
    }
}

impl Inner {
    /// Begins a read; the answer, if it is here.
    fn begin(&self, read: &mut Reading) -> Result<(UnderWay<'_>, Option<Option<Block>>)> {
        let mut state = self.state.lock();
        state.writer.handle.check_fence()?;
        let answer = state.writer.begin_read(read);
        let (inner, key) = (self, read.key);
        Ok((UnderWay { inner, key }, answer))
    }

    fn begin_promotion(&self, key: BlockKey) -> UnderWay<'_> {
        self.state.lock().writer.handle.begin_read(key);
        UnderWay { inner: self, key }
    }

    pub(super) async fn read(
        self: &Arc<Self>,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Block>> {
        let found = self.read_stored(Reading::new(key, up_to)).await?;
        if up_to == Generation::SINGLE && self.must_fix_absence(key, found.as_ref()) {
            return self.promote(key).await;
        }
        Ok(found.and_then(Stored::into_block))
    }

    /// A dead epoch's write may still arrive where a block of its time, which keeps one version, is absent:
    /// whoever owns the epoch now says so first (C2). What an older epoch has said hides only what is older still.
    fn must_fix_absence(&self, key: BlockKey, found: Option<&Stored>) -> bool {
        let said_in = match found {
            Some(stored) if !stored.data.is_empty() => return false,
            Some(stored) => stored.version.epoch,
            None => Epoch::NONE,
        };
        #[cfg(test)]
        if found.is_some() && self.has_flaw(Flaw::OldAbsenceBelieved) {
            return false;
        }
        let made_in = key.file.0 >> FileId::COUNTER_BITS;
        let own = self.state.lock().writer.handle.epoch();
        own.is_some_and(|own| made_in < u64::from(own.0) && said_in < own)
    }

    /// The newest version up to a generation, or the one that a sealed image has. Nothing if none was ever
    /// written, or that is known.
    async fn read_stored(self: &Arc<Self>, mut read: Reading) -> Result<Option<Stored>> {
        let (_under_way, answer) = self.begin(&mut read)?;
        if let Some(block) = answer {
            return Ok(block.map(|block| Stored {
                version: block.version,
                generation: block.generation,
                data: block.data,
            }));
        }
        if let Some(known) = read.known()
            && let Some(answer) = self.read_one(&read, known.version).await?
        {
            return Ok(answer);
        }
        self.read_quorum(&read).await
    }

    pub(super) async fn read_expected(
        self: &Arc<Self>,
        key: BlockKey,
        up_to: Generation,
        version: Version,
    ) -> Result<Option<Block>> {
        let read = Reading::expecting(key, up_to, version);
        let found = self.read_stored(read).await?;
        Ok(found.and_then(Stored::into_block))
    }

    /// Read(1): the nearest replica's answer, if it is what must be found.
    async fn read_one(&self, read: &Reading, known: Version) -> Result<Option<Option<Stored>>> {
        let found = match self.select_known(read.key, read.up_to, known).await {
            Ok(found) => found,
            // The quorum read tells whether that is bad.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unavailable) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let mut state = self.state.lock();
        let handle = &mut state.writer.handle;
        let takes = read.takes(handle, version_of(found.as_ref()));
        #[cfg(test)]
        let takes = takes || self.has_flaw(Flaw::UncheckedReads);
        if takes {
            handle.counters.reads_one += 1;
            return Ok(Some(found));
        }
        handle.counters.reads_stale += 1;
        Ok(None)
    }

    /// A quorum's answer, which is on a quorum when it is here.
    async fn read_quorum(self: &Arc<Self>, read: &Reading) -> Result<Option<Stored>> {
        let Reading { key, up_to, .. } = *read;
        let mut found = self.ask_quorum(key, up_to).await?;
        if read.is_behind(version_of(found.as_ref())).is_some() {
            // Never go back behind what a quorum holds.
            let all = self.select_newest(Asked::All, key, up_to).await;
            found = all.ok().flatten();
            if let Some(version) = read.is_behind(version_of(found.as_ref())) {
                return Err(lost(key, version));
            }
        }
        self.observe(version_of(found.as_ref()))?;
        let newest = found.as_ref().map(|s| (s.generation, s.version));
        read.learn(&mut self.state.lock().writer.handle, newest);
        Ok(found)
    }

    pub(super) async fn select(
        &self,
        volume: &VolumeName,
        asked: Asked,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Stored>> {
        let chunk = self.chunk_of(key);
        let environment = &self.environment;
        let found = environment.read_block(volume, asked, chunk, key, up_to);
        decode(key, found.await?)
    }

    /// What a quorum has of a block up to a generation.
    async fn ask_quorum(
        self: &Arc<Self>,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Stored>> {
        if up_to != Generation::SINGLE {
            let newest = || self.select_newest(Asked::Quorum, key, up_to);
            return self.persist(newest).await;
        }
        let found = self.persist(|| self.select_single(key)).await;
        #[cfg(test)]
        let found = self.single_below(key, found).await;
        found
    }

    pub(super) async fn read_promote(self: &Arc<Self>, key: BlockKey) -> Result<Option<Block>> {
        self.check_writer()?;
        let settled = self.state.lock().writer.handle.is_settled(key);
        match settled {
            true => self.read_settled(key).await,
            false => self.promote(key).await,
        }
    }

    /// What this handle wrote, or chose in another promotion: but not before a quorum holds it.
    async fn read_settled(self: &Arc<Self>, key: BlockKey) -> Result<Option<Block>> {
        let pending = self.state.lock().writer.pending_single(key);
        let found = match pending {
            Some(block) => {
                self.state.lock().writer.handle.counters.reads_pending += 1;
                Some(block)
            }
            None => {
                let read = Reading::new(key, Generation::SINGLE);
                let found = self.read_stored(read).await?;
                found.and_then(Stored::into_block)
            }
        };
        let upto = found.as_ref().map_or(0, |block| block.version.seq);
        self.acknowledge_promotion(key, upto).await?;
        Ok(found.and_then(row::present))
    }

    /// Chooses what survives: what a quorum has, written again in this epoch; also that there is nothing.
    /// Behind the gate, or a deposed owner would tell what its successor did not choose.
    async fn promote(self: &Arc<Self>, key: BlockKey) -> Result<Option<Block>> {
        // What is written meanwhile must be known, or what was found before would hide it.
        let _under_way = self.begin_promotion(key);
        let found = self.ask_quorum(key, Generation::SINGLE).await?;
        if let Some(stored) = &found {
            self.observe(stored.version)?;
        }
        let found = found.and_then(Stored::into_block);
        #[cfg(test)]
        if self.has_flaw(Flaw::PromotionWithoutRewrite) {
            self.pass_gate().await?;
            return Ok(found);
        }
        let written = {
            let mut state = self.state.lock();
            match state.writer.handle.is_settled(key) {
                // Written or promoted while this was asking: that counts.
                true => None,
                false => {
                    let version = state.writer.promote(key, found.as_ref())?;
                    self.pump(&mut state);
                    Some(version)
                }
            }
        };
        let Some(version) = written else {
            return self.read_settled(key).await;
        };
        self.acknowledge_promotion(key, version.seq).await?;
        Ok(found.map(|block| Block { version, ..block }))
    }

    /// A block as it was written.
    pub(super) fn unpacked(&self, found: Option<Block>) -> Result<Option<Block>> {
        let Some(mut block) = found else {
            return Ok(None);
        };
        block.data = unpack(block.data, self.settings.block_size_bytes as usize)?;
        Ok(Some(block))
    }

    async fn acknowledge_promotion(&self, key: BlockKey, upto: Seq) -> Result<()> {
        #[cfg(test)]
        if self.has_flaw(Flaw::PromotionWithoutGate) {
            return self.wait_synced(Some(key.file), upto).await;
        }
        self.acknowledge(Some(key.file), upto).await
    }
}

fn version_of(found: Option<&Stored>) -> Version {
    found.map_or(Version::ZERO, |stored| stored.version)
}

/// What a row has of a block, if there is a row.
pub(crate) fn decode(key: BlockKey, found: Option<Found>) -> Result<Option<Stored>> {
    let Some(found) = found else {
        return Ok(None);
    };
    let stored = Stored::decode(key, found.generation, found.version, found.cell);
    stored.map(Some).ok_or_else(|| {
        let what = format!("block {key} fails its checksum");
        Error::new(ErrorKind::Corrupt, what)
    })
}

fn lost(key: BlockKey, version: Version) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("no replica has version {version} of block {key} any more"),
    )
}
