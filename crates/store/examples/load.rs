//! How fast is a volume over zones in this process? Writes, syncs and reads through the real client.
//!
//! `cargo run --release -p store --example load -- [zones] [writes per sync] [seconds]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dax::client::{Client, ClientConfig, create_volume};
use dax::ids::{BlockKey, FileId, Generation, NodeName, VolumeName};
use dax::storage::{Storage, SyncScope, VolumeSettings};
use store::{StoreConfig, Zone};

const BLOCKS: u64 = 50_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<u64> = std::env::args()
        .skip(1)
        .map(|a| a.parse())
        .collect::<Result<_, _>>()?;
    let arg = |i: usize, default| args.get(i).copied().unwrap_or(default);
    let (zones, per_sync, seconds) = (arg(0, 3), arg(1, 16), arg(2, 5));
    let dir = tempfile::tempdir_in(".")?;
    let mut servers = Vec::new();
    let mut addresses = Vec::new();
    for zone in 0..zones {
        let path = dir.path().join(zone.to_string());
        let server = Zone::open(&path, StoreConfig::default())?;
        addresses.push(server.serve(&format!("unix:{}.socket", path.display()))?);
        servers.push(server);
    }
    let volume = VolumeName::new("load")?;
    let replicas = u8::try_from(zones)?;
    let settings = VolumeSettings {
        ..VolumeSettings::spread(replicas, 1)
    };
    let config = ClientConfig::new(volume, addresses, "load");
    create_volume(&config, &settings).await?;
    let client = Client::connect(config).await?;
    client.own_epoch(&NodeName::new("load")?).await?;
    let time = Duration::from_secs(seconds);
    write(&client, per_sync, time).await?;
    read(&client, time).await?;
    Ok(())
}

/// A cheap walk that visits blocks in no order.
fn next(at: u64) -> u64 {
    (at + 30_011) % BLOCKS
}

fn key(block: u64) -> BlockKey {
    BlockKey::new(FileId(7), block)
}

async fn write(client: &Arc<Client>, per_sync: u64, time: Duration) -> dax::Result<()> {
    let noise: Vec<u8> = (0..8192u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let data = Bytes::from(noise);
    let (start, mut block, mut syncs) = (Instant::now(), 0, Vec::new());
    while start.elapsed() < time {
        for _ in 0..per_sync {
            block = next(block);
            client.write_room(data.len()).await?;
            client.write(key(block), Generation::SINGLE, data.clone())?;
        }
        let begun = Instant::now();
        client.csync(SyncScope::Volume).await?;
        syncs.push(begun.elapsed());
    }
    let seconds = start.elapsed().as_secs_f64();
    let writes = syncs.len() as f64 * per_sync as f64;
    syncs.sort();
    println!(
        "{:.0} writes/s in {:.0} syncs/s of {per_sync}; a sync takes p50 {:?}, p99 {:?}",
        writes / seconds,
        syncs.len() as f64 / seconds,
        syncs[syncs.len() / 2],
        syncs[syncs.len() * 99 / 100],
    );
    Ok(())
}

async fn read(client: &Arc<Client>, time: Duration) -> dax::Result<()> {
    let (start, mut block, mut times) = (Instant::now(), 0, Vec::new());
    while start.elapsed() < time {
        block = next(block);
        let begun = Instant::now();
        client.read(key(block), Generation::SINGLE).await?;
        times.push(begun.elapsed());
    }
    let seconds = start.elapsed().as_secs_f64();
    times.sort();
    println!(
        "{:.0} reads/s, one at a time; p50 {:?}, p99 {:?}",
        times.len() as f64 / seconds,
        times[times.len() / 2],
        times[times.len() * 99 / 100],
    );
    Ok(())
}
