//! Images of the past: they are read back after takeovers and from a zone that was rebuilt, and the zones are rid of them when
//! nobody wants them any more.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use dax::ids::{BlockKey, FileId, Generation};
use dax::storage::Storage;
use node::config::Config;
use serde_json::Value;
use tokio_postgres::Client as Session;
use volume::image::read_block;
use volume::past::{Index, Pin, load_seal};
use volume::seal::{Base, Seal, load_seals};

use crate::operator::{json, understudy};
use crate::stage::{Stage, TIMEOUT};
use crate::verbs::until;

const KEEP: &str = "keep = [\"all for 1h\"]";
/// Images beyond the last two that there must be before the first takeover.
const IMAGES: usize = 4;

/// A table as a file, at the time of a pin.
struct Pinned {
    pin: Pin,
    path: String,
    file: FileId,
    bytes: Vec<u8>,
}

/// A table is written over and rewritten after its image was pinned. Two takeovers and the loss of a zone's disk follow, and
/// then of another zone, so that what is read comes from the copy that was rebuilt.
// hazard: PAST-1, PAST-3, PAST-6
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn an_image_is_read_back_after_takeovers_and_from_a_zone_that_was_rebuilt() -> Result<()> {
    let mut stage = Stage::with_options("past", &["north", "south"], |options| {
        options.past.push(KEEP.to_owned());
    })
    .await?;
    let storage = registry(&stage).await?;
    let pinned = pin_table(&mut stage, &storage).await?;
    for round in 0..IMAGES + 2 {
        let session = session(&mut stage).await?;
        let change = format!("UPDATE still SET n = n + {round}; CHECKPOINT");
        session.batch_execute(&change).await?;
        stage.commits(20).await?;
    }
    let session = session(&mut stage).await?;
    for command in ["VACUUM FULL still", "CHECKPOINT"] {
        session.batch_execute(command).await?;
    }
    let images = Index::load(&storage).await?.images;
    ensure!(images.len() >= IMAGES, "{images:#?}");

    let first = take_over(&mut stage).await?;
    rebuild_zone(&mut stage, 1).await?;
    // From now on every quorum needs the zone that was rebuilt.
    stage.cluster.kill_zone(2).context("zone 2 runs")?;
    stage.commits(50).await?;
    check_images(&storage, &pinned).await?;
    stage.cluster.start_node(&first)?;
    stage.cluster.wait_follows(&first, TIMEOUT).await?;
    let second = take_over(&mut stage).await?;
    ensure!(second != first, "{first} took over");
    check_images(&storage, &pinned).await?;
    stage.cluster.start_zone(2)?;
    stage.cluster.start_node(&second)?;
    stage.cluster.wait_follows(&second, TIMEOUT).await?;

    forget(&mut stage, &storage, &pinned).await?;
    stage.verify().await
}

pub async fn registry(stage: &Stage) -> Result<Arc<dyn Storage>> {
    let config = Config::load(&stage.cluster.node("north")?.config)?;
    Ok(coordination::tier::connect(&config.cluster, "test").await?)
}

async fn session(stage: &mut Stage) -> Result<Session> {
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    Ok(connect(&stage.cluster.server(&active)?.config()).await?)
}

/// Makes a table that nothing changes by itself, and pins an image that has it.
async fn pin_table(stage: &mut Stage, storage: &Arc<dyn Storage>) -> Result<Pinned> {
    let session = session(stage).await?;
    let make =
        "CREATE TABLE still (n int, pad text) WITH (autovacuum_enabled = false, fillfactor = 50)";
    session.batch_execute(make).await?;
    let fill = "INSERT INTO still SELECT n, repeat('x', 100) FROM generate_series(1, 2000) AS n";
    session.batch_execute(fill).await?;
    session.batch_execute("VACUUM (FREEZE) still").await?;
    session.batch_execute("CHECKPOINT").await?;
    let sql =
        "SELECT pg_relation_filepath('still'), pg_read_binary_file(pg_relation_filepath('still'))";
    let row = session.query_one(sql, &[]).await?;
    let (path, bytes): (String, Vec<u8>) = (row.get(0), row.get(1));
    ensure!(bytes.len() > 200_000, "{} bytes", bytes.len());
    let pin = Pin::make(storage, "test", None, false).await?;
    let pin = pin.keep(storage).await?;
    let base = Base::load(storage, &pin.load_seal(storage).await?).await?;
    let file = base.namespace.resolve(&path)?;
    let pinned = Pinned {
        pin,
        path,
        file,
        bytes,
    };
    check_image(storage, &pinned.pin.load_seal(storage).await?, &pinned).await?;
    Ok(pinned)
}

/// Kills the active; returns its name when another one serves.
async fn take_over(stage: &mut Stage) -> Result<String> {
    let (killed, at) = stage.kill_active().await?;
    stage.outage_after(at).await?;
    stage.commits(50).await?;
    session(stage).await?.batch_execute("CHECKPOINT").await?;
    Ok(killed)
}

/// A zone loses its disk, and has everything again.
async fn rebuild_zone(stage: &mut Stage, zone: usize) -> Result<()> {
    stage.cluster.kill_zone(zone).context("it runs")?;
    let dir = stage.cluster.options().dir.join(format!("zone-{zone}"));
    std::fs::remove_dir_all(dir)?;
    stage.commits(50).await?;
    stage.cluster.start_zone(zone)?;
    let config = stage.cluster.node("north")?.config.clone();
    let look = async || json(&understudy(&["status", "--json"], &config)?);
    let is_whole = |status: &Value| {
        let replicas = status["replicas"].as_array();
        let whole = |replica: &Value| {
            replica["up"] == true && replica["rebuilding"] == false && replica["missed_blocks"] == 0
        };
        replicas.is_some_and(|all| all.len() == 3 && all.iter().all(whole))
            && status["scrub"]["completed_unix_ms"].is_u64()
    };
    until("the zone is rebuilt", look, is_whole).await?;
    Ok(())
}

/// Checks that the table reads as it was where it is pinned, and that every image that is kept can be read.
async fn check_images(storage: &Arc<dyn Storage>, pinned: &Pinned) -> Result<()> {
    check_image(storage, &pinned.pin.load_seal(storage).await?, pinned).await?;
    let images = Index::load(storage).await?.images;
    println!("{} images are kept", images.len());
    let mut read_back = 0;
    for image in images {
        let seal = load_seal(storage, image.generation).await?;
        let seal = seal.with_context(|| format!("{} has no seal", image.generation))?;
        let base = Base::load(storage, &seal).await?;
        // The first image is that of an empty volume.
        let Ok(catalog) = base.namespace.resolve("base/5/1259") else {
            continue;
        };
        let inode = base.namespace.file(catalog)?;
        let key = BlockKey::new(catalog, 0);
        let read = read_block(storage, &seal.lineage, inode, key).await?;
        ensure!(read.is_some(), "{} lacks its catalog", image.generation);
        read_back += 1;
    }
    ensure!(read_back >= IMAGES, "only {read_back} images are read back");
    Ok(())
}

async fn check_image(storage: &Arc<dyn Storage>, seal: &Seal, pinned: &Pinned) -> Result<()> {
    let base = Base::load(storage, seal).await?;
    let file = base.namespace.resolve(&pinned.path)?;
    let inode = base.namespace.file(file)?;
    let block_bytes = u64::from(storage.settings().block_size_bytes);
    let mut bytes = Vec::new();
    for block in 0..inode.size.div_ceil(block_bytes) {
        let read = read_block(storage, &seal.lineage, inode, BlockKey::new(file, block)).await?;
        match read {
            Some(found) => bytes.extend_from_slice(&found.data),
            None => bytes.resize(bytes.len() + block_bytes as usize, 0),
        }
    }
    ensure!(
        bytes == pinned.bytes,
        "{} of {} reads otherwise",
        pinned.path,
        seal.generation
    );
    Ok(())
}

/// Removes the pin and the rules, and waits until the zones have given back what was kept for them.
async fn forget(stage: &mut Stage, storage: &Arc<dyn Storage>, pinned: &Pinned) -> Result<()> {
    let before = past_blocks(storage).await?;
    Pin::remove(storage, &pinned.pin.name).await?;
    for node in ["north", "south"] {
        let config = &stage.cluster.node(node)?.config;
        let text = std::fs::read_to_string(config)?;
        ensure!(text.contains(KEEP), "{text}");
        std::fs::write(config, text.replace(KEEP, ""))?;
    }
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let standby = stage.cluster.names().find(|name| **name != active);
    let standby = standby.context("two nodes")?.to_owned();
    stage.cluster.stop_node(&standby, TIMEOUT)?;
    stage.cluster.start_node(&standby)?;
    stage.cluster.wait_follows(&standby, TIMEOUT).await?;
    // Its successor has no rules.
    let killed = take_over(stage).await?;
    stage.cluster.start_node(&killed)?;
    stage.cluster.wait_follows(&killed, TIMEOUT).await?;
    let look = async || {
        session(stage).await?.batch_execute("CHECKPOINT").await?;
        let images = Index::load(storage).await?.images.len();
        let records = storage.list_records("past/").await?.len();
        let seals = load_seals(storage).await?.len();
        let block = storage
            .read(BlockKey::new(pinned.file, 0), Generation::MAX)
            .await?;
        Ok((
            images,
            records,
            seals,
            block.is_some(),
            past_blocks(storage).await?,
        ))
    };
    let is_gone = |(images, records, seals, block, blocks): &(usize, usize, usize, bool, u64)| {
        (*images, *records, *seals, *block) == (0, 0, 2, false) && *blocks < before
    };
    let left = until("the past is gone", look, is_gone).await?;
    println!("{before} blocks of the past before, {} after", left.4);
    Ok(())
}

/// Versions of blocks that the zones store besides the newest, all together.
async fn past_blocks(storage: &Arc<dyn Storage>) -> Result<u64> {
    let usage = storage.usage().await?;
    Ok(usage.iter().map(|(_, usage)| usage.past_blocks).sum())
}
