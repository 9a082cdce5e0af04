//! Filling a volume that is laid over another one: it gets copies of what it shows of the volumes below, and needs them no more.
//!
//! ```text
//!   newest row of each block, of all volumes below ──▶ the same row in the volume ──▶ still over the same volumes? ──▶ over none
//!                        ▲                                                                     │ no
//!                        └─────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A copy has the generation and the version of the block. Both are below all of the volume's own, so a copy hides nothing that the
//! volume wrote itself, whenever it arrives. Of several volumes below only the newest row is copied, so it hides nothing of those either.
//!
//! Invariant: the volume's row says that it lies over none only when everything that it shows is on a quorum in the volume itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dax::error::{Error, ErrorKind, Result};
use dax::ids::{BlockKey, Epoch, FileId, Generation, Version, VolumeName};
use dax::layer::Layer;
use dax::storage::Protocol;
use dax::wire::checksum;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::client::environment::{Asked, Delete, Environment, Look};
use crate::client::reads::decode;
use crate::config::Config;
use crate::driver::Driver;
use crate::removal::give_back;
use crate::row::{Chunk, Row, SEQ_END};
use crate::setup::Rows;
use crate::volumes;

/// Partitions that are copied at a time, and blocks of each that are read at a time: a served branch is to notice little of it.
const CHUNKS_AT_A_TIME: usize = 4;
const READS_AT_A_TIME: usize = 8;
/// Rows that are written together.
const ROWS_AT_A_TIME: usize = 32;
/// A request without an answer is made again after so long, so many times.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
const ATTEMPTS: usize = 60;
/// A partition that changes while it is read is read again so many times.
const LOOKS: usize = 5;

/// Partitions, by file.
pub(crate) type Work = BTreeMap<FileId, BTreeSet<u64>>;

/// Has the volume that `config` names need no volume below, and tells `progress` how many partitions of how many are copied. Repeating
/// is harmless; one that was interrupted begins again. The volume may be served meanwhile.
///
/// # Errors
/// `Conflict` if nobody has ever served the volume; `NotFound` if it is removed meanwhile; `Invalid` for a volume that is written as in
/// the paper's baselines; `Corrupt` if a block below is lost; `Unavailable`, `Denied`.
pub async fn fill_volume(
    config: &Config,
    progress: &mut (dyn FnMut(usize, usize) + Send),
) -> Result<()> {
    let (driver, opened) = Driver::open(config).await?;
    let volume = &config.volume;
    if opened.settings.protocol != Protocol::default() {
        let text = format!("volume {volume} is not written by quorums, so it is not filled");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    if driver.look(Look::Settled).await?.is_none() {
        // Its first epoch is that of its layer.
        let text = format!("volume {volume} was never served: it is filled afterwards");
        return Err(Error::new(ErrorKind::Conflict, text));
    }
    let rows = Rows {
        session: driver.session(),
        keyspace: &config.keyspace,
        replication: String::new(),
    };
    loop {
        let layers = layers(&driver, &rows, volume).await?;
        if layers.is_empty() {
            return Ok(());
        }
        let copied = copy_all(&driver, &rows, volume, &layers, progress).await;
        // Where one of them was filled itself meanwhile, the one below that may be gone.
        if self::layers(&driver, &rows, volume).await? != layers {
            continue;
        }
        copied?;
        let parent = insist(&driver, || volumes::detach(&rows, volume)).await?;
        if let Some(parent) = parent {
            insist(&driver, || volumes::disown(&rows, &parent, volume)).await?;
        }
        return Ok(());
    }
}

/// The volumes below, as the rows say. If the volume was removed, so are the copies.
async fn layers(driver: &Driver, rows: &Rows<'_>, volume: &VolumeName) -> Result<Vec<Layer>> {
    let layers = insist(driver, || volumes::below(rows, volume)).await?;
    if let Some(layers) = layers {
        return Ok(layers);
    }
    give_back(driver, volume).await?;
    let text = format!("volume {volume} was removed");
    Err(Error::new(ErrorKind::NotFound, text))
}

async fn copy_all(
    driver: &Driver,
    rows: &Rows<'_>,
    volume: &VolumeName,
    layers: &[Layer],
    progress: &mut (dyn FnMut(usize, usize) + Send),
) -> Result<()> {
    let copying = Copying::new(driver, volume, layers);
    let work = copying.survey().await?;
    let all = work.values().map(BTreeSet::len).sum();
    let mut copied = 0;
    for (file, chunks) in work {
        copying.copy(file, &chunks).await?;
        copied += chunks.len();
        progress(copied, all);
        if self::layers(driver, rows, volume).await? != layers {
            break;
        }
    }
    Ok(())
}

/// Copies what a volume shows of those below.
pub(crate) struct Copying<'a> {
    environment: &'a dyn Environment,
    volume: &'a VolumeName,
    layers: &'a [Layer],
    /// The last epoch that is not one of the volume's own.
    before: Epoch,
}

impl Copying<'_> {
    /// `layers` are those of `volume`, the next one first; there is one.
    pub fn new<'a>(
        environment: &'a dyn Environment,
        volume: &'a VolumeName,
        layers: &'a [Layer],
    ) -> Copying<'a> {
        let first = layers
            .first()
            .map_or(Epoch::NONE, |layer| layer.first_epoch);
        Copying {
            environment,
            volume,
            layers,
            before: Epoch(first.0.saturating_sub(1)),
        }
    }

    /// Everything that there is to copy.
    pub async fn survey(&self) -> Result<Work> {
        let mut work = Work::new();
        for layer in self.layers {
            let mut attempts = 0;
            loop {
                let mut each = |(file, chunk): Chunk| {
                    work.entry(file).or_default().insert(chunk);
                };
                let parent = &layer.parent;
                match self.environment.scan_chunks(parent, &mut each).await {
                    Ok(()) => break,
                    Err(error) => wait(self.environment, error, &mut attempts).await?,
                }
            }
        }
        Ok(work)
    }

    /// Copies a file, unless the volume has removed it.
    pub async fn copy(&self, file: FileId, chunks: &BTreeSet<u64>) -> Result<()> {
        let environment = self.environment;
        // The notes come first, so that whoever removes the volume, or looks for remains, finds what was copied. Who removes the file
        // takes them away, for good.
        let noted = chunks.iter().copied().map(|chunk| self.note((file, chunk)));
        run(noted).await?;
        let there = self.noted(file, chunks).await?;
        let copies = there.iter().copied();
        run(copies.map(|chunk| self.copy_chunk((file, chunk)))).await?;
        let left = self.noted(file, chunks).await?;
        let last = Version {
            epoch: self.before,
            seq: SEQ_END - 1,
        };
        for chunk in there.difference(&left) {
            let copies = Delete::Chunk((file, *chunk));
            insist(environment, || environment.delete(copies, last)).await?;
        }
        Ok(())
    }

    async fn note(&self, chunk: Chunk) -> Result<()> {
        let version = Version {
            epoch: self.before,
            seq: 0,
        };
        let environment = self.environment;
        insist(environment, || environment.write_chunk(chunk, version)).await
    }

    async fn noted(&self, file: FileId, chunks: &BTreeSet<u64>) -> Result<BTreeSet<u64>> {
        let environment = self.environment;
        let listed = insist(environment, || environment.list_chunks(file)).await?;
        Ok(listed
            .into_iter()
            .filter(|one| chunks.contains(one))
            .collect())
    }

    async fn copy_chunk(&self, chunk: Chunk) -> Result<()> {
        let mut looks = 1;
        loop {
            match self.copy_rows(chunk).await {
                // A row went away between two looks, because a volume below was filled.
                Err(error) if error.kind() == ErrorKind::Corrupt && looks < LOOKS => looks += 1,
                done => return done,
            }
        }
    }

    async fn copy_rows(&self, chunk: Chunk) -> Result<()> {
        let environment = self.environment;
        let mut newest: BTreeMap<i64, (Generation, &Layer)> = BTreeMap::new();
        // The lowest first: what one of them has got of those below it was there before it went there.
        for layer in self.layers.iter().rev() {
            let listed = insist(environment, || environment.list_rows(&layer.parent, chunk));
            for (block, generation) in listed.await? {
                if generation == Generation::SINGLE || !layer.image.contains(generation) {
                    continue;
                }
                let shown = newest.entry(block).or_insert((generation, layer));
                if shown.0 <= generation {
                    *shown = (generation, layer);
                }
            }
        }
        let newest: Vec<_> = newest.into_iter().collect();
        let reads = (0..newest.len()).map(|at| {
            let (block, (generation, layer)) = newest[at];
            self.read(&layer.parent, chunk, block, generation)
        });
        let reads = stream::iter(reads).buffer_unordered(READS_AT_A_TIME);
        let rows: Vec<Row> = reads.try_collect().await?;
        for some in rows.chunks(ROWS_AT_A_TIME) {
            insist(environment, || environment.write_rows(chunk, some)).await?;
        }
        Ok(())
    }

    async fn read(
        &self,
        parent: &VolumeName,
        chunk: Chunk,
        block: i64,
        generation: Generation,
    ) -> Result<Row> {
        let (environment, asked) = (self.environment, Asked::Quorum);
        let key = BlockKey::new(chunk.0, block as u64);
        let found = insist(environment, || {
            environment.read_block(parent, asked, chunk, key, generation)
        });
        let found = decode(key, found.await?)?.filter(|found| found.generation == generation);
        let Some(found) = found else {
            let volume = self.volume;
            let text = format!(
                "block {key} of {generation}, which {volume} shows, is not in volume {parent} any more"
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        };
        Ok(Row {
            key,
            generation,
            version: found.version,
            checksum: checksum(key, generation, found.version, &found.data),
            data: found.data,
        })
    }
}

/// Runs all of them, a few at a time.
async fn run<F>(all: impl Iterator<Item = F>) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let all = stream::iter(all).buffer_unordered(CHUNKS_AT_A_TIME);
    all.try_collect::<()>().await
}

async fn insist<T, F>(environment: &dyn Environment, mut attempt: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut attempts = 0;
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) => wait(environment, error, &mut attempts).await?,
        }
    }
}

/// Waits before a request is made again, if that may help.
async fn wait(environment: &dyn Environment, error: Error, attempts: &mut usize) -> Result<()> {
    if error.kind() != ErrorKind::Unavailable || *attempts == ATTEMPTS {
        return Err(error);
    }
    *attempts += 1;
    environment.sleep(AGAIN_AFTER).await;
    Ok(())
}
