//! Who is compared, and what each does for a load.

use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use cassandra::{Client, Config, create_volume};
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, NodeName, VolumeName};
use dax::storage::{Storage, SyncScope, VolumeSettings};
use rand::Rng;
use rand::rngs::SmallRng;

use super::driver::Driver;
use super::{KEYSPACE, Load};

/// The data centre that clients are in.
const HERE: &str = "dc1";
/// Blocks of each client: eight partitions.
pub(super) const BLOCKS: u64 = 1024;
/// Blocks of each client's log, which follow those: written one after the other, and again from the first on.
const LOG_BLOCKS: u64 = 1024;
/// Blocks that a transaction reads,
const READS: usize = 8;
/// and how many of them it changes.
const CHANGES: usize = 3;

/// How every side reaches the cluster: the nearest data centre coordinates.
pub(super) fn config(contact_points: Vec<String>) -> anyhow::Result<Config> {
    let volume = VolumeName::new("bench")?;
    let mut config = Config::new(contact_points, KEYSPACE, volume)?;
    config.data_centre = Some(HERE.to_owned());
    Ok(config)
}

/// Who does the work.
#[derive(Debug, Clone)]
pub(super) enum Side {
    Ours(Ours),
    Driver(Driver),
}

/// The block path: strong optimistic I/O (DAX 5).
#[derive(Debug, Clone)]
pub(super) struct Ours {
    client: Arc<Client>,
    epoch: Epoch,
}

impl Ours {
    /// Makes the keyspace and a volume, and owns it.
    pub(super) async fn open(config: &Config) -> anyhow::Result<Ours> {
        create_volume(config, &VolumeSettings::default()).await?;
        let client = Client::connect(config.clone()).await?;
        let epoch = client.own_epoch(&NodeName::new("bench")?).await?;
        Ok(Ours { client, epoch })
    }

    fn file(&self, client: u16) -> FileId {
        FileId::new(self.epoch, u64::from(client) + 1)
    }

    fn key(&self, client: u16, block: u64) -> BlockKey {
        BlockKey {
            file: self.file(client),
            block: BlockIndex(block),
        }
    }

    async fn read(&self, client: u16, block: u64) -> anyhow::Result<()> {
        let found = self
            .client
            .read(self.key(client, block), Generation::SINGLE);
        found.await?.context("a block is not there").map(drop)
    }
}

/// What a transaction touches.
#[derive(Debug, PartialEq)]
struct Transaction {
    /// All different; the first [`CHANGES`] of them are changed.
    reads: Vec<u64>,
    log: u64,
}

impl Transaction {
    /// The `number`th of a client, from 0 on.
    fn choose(number: u64, chance: &mut SmallRng) -> Transaction {
        let reads = rand::seq::index::sample(chance, BLOCKS as usize, READS);
        Transaction {
            reads: reads.iter().map(|block| block as u64).collect(),
            log: BLOCKS + number % LOG_BLOCKS,
        }
    }
}

impl Side {
    /// As the report calls it.
    pub fn name(&self) -> &'static str {
        match self {
            Side::Ours(_) => "block_path",
            Side::Driver(side) => side.name(),
        }
    }

    /// Does the `number`th operation of a client, from 0 on. `chance` decides which blocks it is about, equally
    /// on every side.
    pub async fn act(
        &self,
        load: Load,
        client: u16,
        number: u64,
        chance: &mut SmallRng,
    ) -> anyhow::Result<()> {
        match load {
            Load::Commit => self.commit(client, number % BLOCKS).await,
            Load::Read => self.read(client, chance.random_range(0..BLOCKS)).await,
            Load::Transaction => {
                let transaction = Transaction::choose(number, chance);
                self.transact(client, &transaction).await
            }
        }
    }

    /// A block written and durable.
    pub async fn commit(&self, client: u16, block: u64) -> anyhow::Result<()> {
        self.write(client, block).await?;
        self.sync(client).await
    }

    /// Reads wait for each other, as those of an index and its table do; writes wait for what the side's rules say.
    async fn transact(&self, client: u16, transaction: &Transaction) -> anyhow::Result<()> {
        for &block in &transaction.reads {
            self.read(client, block).await?;
        }
        for &block in transaction.reads.iter().take(CHANGES) {
            self.write(client, block).await?;
        }
        self.write(client, transaction.log).await?;
        self.sync(client).await
    }

    async fn read(&self, client: u16, block: u64) -> anyhow::Result<()> {
        match self {
            Side::Ours(side) => side.read(client, block).await,
            Side::Driver(side) => side.read(client, block).await,
        }
    }

    /// Through the block path nothing is waited for here.
    async fn write(&self, client: u16, block: u64) -> anyhow::Result<()> {
        match self {
            Side::Ours(side) => {
                let key = side.key(client, block);
                side.client.write(key, Generation::SINGLE, contents())?;
                Ok(())
            }
            Side::Driver(side) => side.write(client, block, contents()).await,
        }
    }

    /// Waits for everything that the client wrote. The driver alone has waited for every write already.
    async fn sync(&self, client: u16) -> anyhow::Result<()> {
        match self {
            Side::Ours(side) => {
                let scope = SyncScope::File(side.file(client));
                Ok(side.client.csync(scope).await?)
            }
            Side::Driver(_) => Ok(()),
        }
    }
}

/// A block that does not compress well.
fn contents() -> Bytes {
    let mut block = vec![0; 8192];
    rand::fill(&mut block[..]);
    block.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn the_same_seed_gives_the_same_transactions() {
        let some = |seed| {
            let mut chance = SmallRng::seed_from_u64(seed);
            let choose = |number| Transaction::choose(number, &mut chance);
            (0..3).map(choose).collect::<Vec<_>>()
        };
        assert_eq!(some(1), some(1));
        assert_ne!(some(1), some(2));
    }

    #[test]
    fn a_transaction_reads_different_blocks_and_none_of_the_log() {
        let mut chance = SmallRng::seed_from_u64(1);
        for number in 0..2 * LOG_BLOCKS {
            let mut transaction = Transaction::choose(number, &mut chance);
            transaction.reads.sort_unstable();
            transaction.reads.dedup();
            assert_eq!(transaction.reads.len(), READS);
            assert!(transaction.reads.iter().all(|block| *block < BLOCKS));
            assert!((BLOCKS..BLOCKS + LOG_BLOCKS).contains(&transaction.log));
        }
    }
}
