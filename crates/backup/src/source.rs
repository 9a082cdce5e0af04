//! A volume in the zones as backups read it: the image of its last seal, and the log, under a claim.
//!
//! Invariant: what is read belongs to the image or to the log that is durable, or it is an error. The claim keeps it from being
//! given back, and each read is vouched for by a look at the claim, as a standby's are.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use coordination::records::{ActiveState, Cluster, Filling, Heartbeat, Record};
use dax::ids::{BlockKey, Epoch, FileId, Generation, NodeName};
use dax::storage::{Lineage, Storage, VolumeSettings};
use futures_util::{StreamExt, TryStreamExt, stream};
use pgdata::control::ControlFile;
use pgdata::layout::{LOG, PostgresLayout};
use pgdata::segment::{SegmentName, SegmentSize};
use pgdata::timeline::{History, TimelineId};
use volume::claim::{Claim, Token};
use volume::error::Error as VolumeError;
use volume::image;
use volume::journal::{JournalPos, JournalTail};
use volume::lsn::Lsn;
use volume::namespace::Namespace;
use volume::seal::{self, Base, Seal};
use volume::standby::ClaimWatch;

use crate::error::{Error, Result};

/// Blocks that are read at once.
const READS_AT_ONCE: usize = 32;
/// How often beats of the active are looked at, and how long at most.
const BEATS_EVERY: Duration = Duration::from_millis(20);
const BEATS_WITHIN: Duration = Duration::from_secs(60);
const NOBODY_ANNOUNCES: &str = "nobody serves the database, so nobody says how far its log goes: start a node, or name a position";
const NOT_FILLED: &str =
    "the volume is being filled from a repository: wait until understudy status says no more of it";
const NOT_MADE: &str = "the database was not made yet: understudy init makes it";

/// How far the log is known to be durable.
#[derive(Debug, Clone)]
pub struct Shown {
    /// End of the durable WAL.
    pub end: Lsn,
    /// Its timelines.
    pub history: History,
}

/// A file of the log.
pub(crate) struct Segment {
    pub name: SegmentName,
    pub file: FileId,
    /// The end of what it has of the log.
    pub end: Lsn,
}

/// The volume as a backup reads it: as a standby that replays nothing.
pub struct Source {
    storage: Arc<dyn Storage>,
    node: NodeName,
    watch: ClaimWatch,
    claim: Claim,
    base: Base,
    live: JournalTail,
    control: ControlFile,
    layout: PostgresLayout,
}

impl Source {
    /// Claims the image of the last seal under this name, in the place of whatever claim that name had; and the log from
    /// `log_from` on, if that is needed and still there.
    ///
    /// # Errors
    /// [`Error::Refused`] if the database was not made yet; those of the zones.
    pub async fn claim(
        storage: Arc<dyn Storage>,
        node: NodeName,
        log_from: Option<Lsn>,
    ) -> Result<Source> {
        let seal = last_seal(&storage).await?;
        let source = Source::claim_image(storage, node, seal, log_from).await?;
        source.is_kept().await?;
        Ok(source)
    }

    /// Claims an image that somebody pinned before.
    ///
    /// # Errors
    /// Those of the zones.
    pub async fn claim_image(
        storage: Arc<dyn Storage>,
        node: NodeName,
        seal: Seal,
        log_from: Option<Lsn>,
    ) -> Result<Source> {
        let filling = Filling::load(storage.as_ref()).await?;
        if filling.is_some_and(|filling| !filling.done) {
            return Err(Error::Refused(NOT_FILLED.to_owned()));
        }
        let watch = ClaimWatch::begin(&storage, node.clone()).await?;
        let base = Base::load(&storage, &seal).await?;
        let control = parse_control(&seal)?;
        let mut claim = claim_on(&node, &seal);
        claim.log_from = log_from.map_or(seal.redo, |from| from.min(seal.redo));
        let mut source = Source {
            live: base.tail(&storage),
            layout: PostgresLayout::new(control.segment_size),
            storage,
            node,
            watch,
            claim,
            base,
            control,
        };
        source.narrow(source.claim.clone()).await?;
        Ok(source)
    }

    async fn narrow(&mut self, claim: Claim) -> Result<()> {
        match self.watch.change(&self.storage, &claim).await? {
            true => {
                self.claim = claim;
                Ok(())
            }
            false => Err(VolumeError::ClaimLost.into()),
        }
    }

    /// Says that the claim is still needed, and that no log before `from` is.
    ///
    /// # Errors
    /// The claim was given up by the active: it kept more log than `storage.max_retained_wal` allows, or nobody heard of it for ten minutes.
    pub async fn keep(&mut self, from: Lsn) -> Result<()> {
        let mut claim = self.claim.clone();
        claim.log_from = claim.log_from.max(from);
        if claim.images.is_empty() {
            claim.journal = self.live.position();
        }
        self.narrow(claim).await
    }

    /// The image is not read any more: what was dropped since then may be given back.
    ///
    /// # Errors
    /// As [`Source::keep`].
    pub async fn let_image_go(&mut self) -> Result<()> {
        self.claim.images.clear();
        self.keep(self.claim.log_from).await
    }

    /// Stands on the image of the last seal.
    ///
    /// # Errors
    /// As [`Source::claim`].
    pub async fn advance(&mut self) -> Result<()> {
        let seal = last_seal(&self.storage).await?;
        let mut claim = claim_on(&self.node, &seal);
        claim.log_from = self.claim.log_from.min(seal.redo);
        self.narrow(claim).await?;
        self.base = Base::load(&self.storage, &seal).await?;
        self.control = parse_control(&seal)?;
        self.is_kept().await
    }

    /// Only an image that is kept after it was claimed stays.
    async fn is_kept(&self) -> Result<()> {
        let kept = seal::load_seals(&self.storage).await?;
        let mut kept = kept.iter();
        match kept.any(|one| one.generation == self.base.seal.generation) {
            true => Ok(()),
            false => Err(VolumeError::ClaimLost.into()),
        }
    }

    /// Gives the claim up.
    ///
    /// # Errors
    /// Those of the zones.
    pub async fn release(self) -> Result<()> {
        Ok(self.watch.release(&self.storage).await?)
    }

    /// The image that it stands on.
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// The seal whose image it stands on.
    pub fn seal(&self) -> &Seal {
        &self.base.seal
    }

    /// The control file of that.
    pub fn control(&self) -> &ControlFile {
        &self.control
    }

    /// The last seal that there is by now.
    pub(crate) async fn newest_seal(&self) -> Result<Seal> {
        last_seal(&self.storage).await
    }

    /// The volume.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Bytes in a block.
    pub(crate) fn block_bytes(&self) -> u64 {
        u64::from(self.storage.settings().block_size_bytes)
    }

    /// How the volume is laid out.
    pub fn settings(&self) -> &VolumeSettings {
        self.storage.settings()
    }

    /// Facts about the database, as `init` left them.
    ///
    /// # Errors
    /// [`Error::Refused`] if there are none.
    pub async fn cluster(&self) -> Result<Cluster> {
        let cluster = Cluster::load(self.storage.as_ref()).await?;
        cluster.ok_or_else(|| Error::Refused(NOT_MADE.to_owned()))
    }

    /// The image's names.
    pub(crate) fn image(&self) -> &Namespace {
        &self.base.namespace
    }

    /// The names of now, as far as [`Source::look`] has seen them.
    pub(crate) fn live(&self) -> &Namespace {
        self.live.namespace()
    }

    /// The classes of paths.
    pub(crate) fn layout(&self) -> &PostgresLayout {
        &self.layout
    }

    /// Bytes in a segment of the log.
    pub fn segment_size(&self) -> SegmentSize {
        self.control.segment_size
    }

    /// Reads how far the log is durable, and its names up to there. `None` if a new timeline begins just now.
    ///
    /// # Errors
    /// Those of the zones.
    pub async fn look(&mut self) -> Result<Option<Shown>> {
        let Some(beat) = Heartbeat::load(self.storage.as_ref()).await? else {
            return Ok(None);
        };
        self.live.advance(JournalPos(beat.journal_synced)).await?;
        let names = self.live.namespace();
        let directory = names.directory(names.resolve(LOG)?)?;
        let histories = directory
            .keys()
            .filter_map(|name| TimelineId::from_history_file_name(std::str::from_utf8(name).ok()?));
        let newest = histories.max().unwrap_or(self.control.timeline);
        let newest = newest.max(self.control.timeline);
        if TimelineId(beat.timeline) > newest {
            return Ok(None);
        }
        let history = match self.history_file(newest).await? {
            Some(text) => History::parse(newest, &String::from_utf8_lossy(&text))
                .map_err(|error| VolumeError::Damaged(error.to_string()))?,
            None => History::of_first(newest),
        };
        let begin = history.branches().begin();
        let end = match beat.timeline == newest.0 {
            true => beat.synced_lsn.max(begin),
            // Announced by the one before: how far the newest goes nobody has said yet.
            false => begin,
        };
        // The log of an image is durable to its end, even if no beat has announced its last record yet.
        let end = end.max(self.seal().end);
        Ok(Some(Shown { end, history }))
    }

    /// Reads them, with everything in them that was durable when this was called: a beat announces the log that was durable when
    /// it was begun, and the beat after the next is begun later than now.
    ///
    /// # Errors
    /// [`Error::Refused`] if nobody announces anything.
    pub async fn look_anew(&mut self) -> Result<Shown> {
        let beat = async |storage| {
            let beat = Heartbeat::load(storage).await?;
            Ok::<_, Error>(beat.map_or((Epoch::NONE, 0), |beat| (beat.epoch, beat.counter)))
        };
        let first = Heartbeat::load(self.storage.as_ref()).await?;
        let first = first.ok_or_else(|| Error::Refused(NOT_MADE.to_owned()))?;
        let is_over = matches!(first.state, ActiveState::Released { .. });
        let second_next = (first.epoch, first.counter + 2);
        let deadline = tokio::time::Instant::now() + BEATS_WITHIN;
        while !is_over && beat(self.storage.as_ref()).await? < second_next {
            if tokio::time::Instant::now() > deadline {
                return Err(Error::Refused(NOBODY_ANNOUNCES.to_owned()));
            }
            tokio::time::sleep(BEATS_EVERY).await;
        }
        loop {
            match self.look().await? {
                Some(shown) => return Ok(shown),
                // A takeover announces its timeline before the history is there.
                None => tokio::time::sleep(BEATS_EVERY).await,
            }
        }
    }

    /// The text of a timeline's history; `None` if it has no file.
    pub(crate) async fn history_file(&self, timeline: TimelineId) -> Result<Option<Bytes>> {
        let path = format!("{LOG}/{}", timeline.history_file_name());
        match self.live().resolve(&path) {
            Ok(file) => Ok(Some(self.read_whole(self.live(), file).await?)),
            Err(VolumeError::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A part of a file that has one version, as it is now; by names which it had: whatever left them since the claim is kept.
    pub(crate) async fn read_live(
        &self,
        names: &Namespace,
        file: FileId,
        bytes: std::ops::Range<u64>,
    ) -> Result<Bytes> {
        self.read(&latest(), names, file, bytes).await
    }

    /// The whole of such a file.
    pub(crate) async fn read_whole(&self, names: &Namespace, file: FileId) -> Result<Bytes> {
        let size = names.file(file)?.size;
        self.read_live(names, file, 0..size).await
    }

    /// A part of a file of the image.
    pub(crate) async fn read_image(
        &self,
        file: FileId,
        bytes: std::ops::Range<u64>,
    ) -> Result<Bytes> {
        let Base {
            seal, namespace, ..
        } = &self.base;
        self.read(&seal.lineage, namespace, file, bytes).await
    }

    /// The file that has the log from the beginning of a segment on, and where that ends: of the newest timeline that has one,
    /// which begins with a copy of what is before its fork. `None` if it was given back.
    pub(crate) fn segment_at(&self, shown: &Shown, start: Lsn) -> Result<Option<Segment>> {
        let size = self.segment_size();
        for name in SegmentName::candidates(&shown.history, start, size) {
            let path = format!("{LOG}/{}", name.file_name(size));
            let file = match self.live().resolve(&path) {
                Err(VolumeError::NotFound) => retained(self.live(), name, size),
                found => Some(found?),
            };
            if let Some(file) = file {
                let range = name.range(size);
                let end = shown.history.branches().end_of(name.timeline.0, &range);
                let end = shown.end.min(end.unwrap_or(range.end));
                return Ok(Some(Segment { name, file, end }));
            }
        }
        Ok(None)
    }

    /// A part of a segment.
    pub(crate) async fn read_log(
        &self,
        segment: &Segment,
        bytes: std::ops::Range<u64>,
    ) -> Result<Bytes> {
        self.read(&latest(), self.live(), segment.file, bytes).await
    }

    /// Reads whole blocks, and returns what was asked for of them. Behind the end of the file there are zeros.
    async fn read(
        &self,
        lineage: &Lineage,
        names: &Namespace,
        file: FileId,
        bytes: std::ops::Range<u64>,
    ) -> Result<Bytes> {
        let inode = names.file(file)?;
        let block_bytes = self.block_bytes();
        let first = bytes.start / block_bytes;
        let read = |block| async move {
            let key = BlockKey::new(file, block);
            let found = image::read_block(&self.storage, lineage, inode, key).await?;
            self.watch.vouch(&self.storage, found.is_some()).await?;
            Ok::<_, Error>(found)
        };
        let blocks = stream::iter(first..bytes.end.div_ceil(block_bytes)).map(read);
        let mut blocks = blocks.buffered(READS_AT_ONCE);
        let mut all = BytesMut::new();
        while let Some(block) = blocks.try_next().await? {
            let filled = all.len() + block_bytes as usize;
            if let Some(block) = block {
                all.extend_from_slice(&block.data);
            }
            all.resize(filled, 0);
        }
        let skipped = (bytes.start - first * block_bytes) as usize;
        let len = (bytes.end - bytes.start) as usize;
        Ok(all.freeze().slice(skipped..skipped + len))
    }
}

/// The lineage that files of one version are read by.
fn latest() -> Lineage {
    Lineage::up_to(Generation::MAX)
}

/// A segment that was removed, and is kept for who may need it.
fn retained(names: &Namespace, segment: SegmentName, size: SegmentSize) -> Option<FileId> {
    let directory = names.retained(names.resolve(LOG).ok()?)?;
    directory.get(segment.file_name(size).as_bytes()).copied()
}

async fn last_seal(storage: &Arc<dyn Storage>) -> Result<Seal> {
    let seals = seal::load_seals(storage).await?;
    let last = seals.into_iter().next_back();
    last.filter(|seal| !seal.payload.is_empty())
        .ok_or_else(|| Error::Refused(NOT_MADE.to_owned()))
}

fn parse_control(seal: &Seal) -> Result<ControlFile> {
    let parsed = ControlFile::parse(&seal.payload);
    parsed.map_err(|error| VolumeError::Damaged(error.to_string()).into())
}

fn claim_on(node: &NodeName, seal: &Seal) -> Claim {
    Claim {
        node: node.clone(),
        images: vec![seal.lineage.clone()],
        journal: seal.journal,
        log_from: seal.redo,
        everything: false,
        token: Token::default(),
    }
}
