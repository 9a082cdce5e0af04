//! Three zones of the release that this is compiled with, and a volume in them that has one of everything. The directory of
//! the first zone is what `crates/store/src/golden/zone-*.tar.gz` holds. Run by `scripts/golden-zone`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dax::client::{Client, ClientConfig, create_volume};
use dax::ids::{BlockIndex, BlockKey, FileId, Generation, NodeName, VolumeName};
use dax::storage::{Authority, Lineage, Retention, Storage, SyncScope, VolumeSettings};
use store::{StoreConfig, Zone};

type Error = Box<dyn std::error::Error>;

/// A block whose first bytes say what it is.
fn contents(file: u64, block: u64, round: u8) -> Bytes {
    let mut data: Vec<u8> = (0..8192u32).map(|at| (at / 64) as u8).collect();
    data[..8].copy_from_slice(&file.to_le_bytes());
    data[8..16].copy_from_slice(&block.to_le_bytes());
    data[4096] = round;
    data.into()
}

fn key(file: u64, block: u64) -> BlockKey {
    BlockKey {
        file: FileId(file),
        block: BlockIndex(block),
    }
}

async fn durable_everywhere(client: &Client) -> Result<(), Error> {
    client.csync(SyncScope::Volume).await?;
    while client.replicas().iter().any(|r| r.pending_bytes > 0) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn fill(addresses: Vec<String>) -> Result<(), Error> {
    let mut config = ClientConfig::new(VolumeName::new("golden")?, addresses, "golden");
    config.differences_bytes_max = 1 << 20;
    create_volume(&config, &VolumeSettings::default()).await?;
    let client: Arc<Client> = Client::connect(config).await?;
    let epoch = client.own_epoch(&NodeName::new("north")?).await?;
    let generation = |number| Generation { epoch, number };
    // Files 10 and 11: data, in two generations; the second is written as a difference.
    for round in 1..=2u8 {
        for block in 0..16 {
            for file in [10, 11] {
                client.write(key(file, block), generation(round.into()), contents(file, block, round))?;
            }
        }
        durable_everywhere(&client).await?;
    }
    // File 20: the end of a log, which grows, in pieces.
    let mut page = vec![0; 8192];
    for end in (256..=4096).step_by(256) {
        page[end - 256..end].fill((end / 256) as u8);
        client.write(key(20, 0), Generation::SINGLE, page.clone().into())?;
        durable_everywhere(&client).await?;
    }
    client.put_record("owned", Bytes::from_static(b"{\"of\":\"the owner\"}"), Authority::Owner).await?;
    client.put_record("free", Bytes::from_static(b"{\"of\":\"anybody\"}"), Authority::Node).await?;
    client.put_record("gone", Bytes::from_static(b"x"), Authority::Owner).await?;
    client.remove_record("gone", Authority::Owner).await?;
    client.retain(Retention { images: vec![Lineage::up_to(generation(2))] }).await?;
    // Members are recorded, and sightings told, in the background.
    while client.membership().is_none() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(8)).await;
    Ok(())
}

fn main() -> Result<(), Error> {
    let dir = std::env::args().nth(1).ok_or("which directory?")?;
    let dir = Path::new(&dir);
    let mut zones = Vec::new();
    let mut addresses = Vec::new();
    for number in 1..=3 {
        let config = StoreConfig { reserve_bytes: 0, ..StoreConfig::default() };
        let zone = Zone::open(dir.join(format!("zone{number}")), config)?;
        let socket = dir.join(format!("{number}.sock"));
        addresses.push(zone.serve(&format!("unix:{}", socket.display()))?);
        zones.push(zone);
    }
    tokio::runtime::Runtime::new()?.block_on(fill(addresses))?;
    for zone in &zones {
        zone.stop()?;
    }
    Ok(())
}
