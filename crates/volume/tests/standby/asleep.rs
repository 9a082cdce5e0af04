//! A standby that slept while its claim was given up: it answers what it stood on, or not at all. And an active
//! that slept while another one took over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dax::storage::Storage;
use volume::claim::{Claim, GRACE, VALID_FOR};
use volume::error::Error;
use volume::seal::{Seal, load_seals};
use volume::standby::{ClaimWatch, Clock, StandbyView};

use super::support::{BLOCK, Database, Volume, blocks, node, shared};

const FILE: &str = "base/5/1000";

/// A clock that the test moves.
#[derive(Default)]
struct Hours(Arc<AtomicU64>);

impl Hours {
    fn clock(&self) -> Clock {
        let seconds = Arc::clone(&self.0);
        Arc::new(move || Duration::from_secs(seconds.load(Ordering::Relaxed)))
    }

    fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_secs() + 1, Ordering::Relaxed);
    }
}

/// A volume of one file, sealed, and a standby on it that has read nothing yet and goes by `hours`, if it looks at
/// its claim.
async fn scene(hours: Option<&Hours>) -> (Volume, Database, Arc<StandbyView>, Database) {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    active.put(FILE, &blocks(&[1, 2, 3])).await;
    let seal = active.seal(100).await;
    let storage = shared(&volume.cluster.client());
    let clock = hours.unwrap_or(&Hours::default()).clock();
    let watch = claim_image(&storage, &seal, clock).await;
    let (view, standby) = volume
        .attach_claiming(&seal, 1 << 20, hours.map(|_| watch))
        .await;
    (volume, active, view, standby)
}

/// South attaches at a seal.
async fn claim_image(storage: &Arc<dyn Storage>, seal: &Seal, clock: Clock) -> ClaimWatch {
    let watch = ClaimWatch::begin_by(storage, node("south"), clock);
    let watch = watch.await.unwrap();
    assert!(watch.change(storage, &of_image(seal)).await.unwrap());
    watch
}

fn of_image(seal: &Seal) -> Claim {
    Claim {
        images: vec![seal.lineage.clone()],
        journal: seal.journal,
        log_from: seal.redo,
        everything: false,
        ..Claim::everything(node("south"))
    }
}

/// The active gives up what south claims, as slowly as it must, and writes all blocks anew.
async fn forget(volume: &Volume, active: &Database, hours: &Hours) {
    let storage = active.active.as_ref().unwrap().storage().clone();
    Claim::revoke(&storage, &node("south")).await.unwrap();
    hours.pass(GRACE);
    Claim::give_back(&storage, &node("south")).await.unwrap();
    for round in [200, 300, 400] {
        active.write(FILE, 0, &blocks(&[7, 8, 9])).await.unwrap();
        active.seal(round).await;
        active.active.as_ref().unwrap().reclaim().await.unwrap();
    }
    let seals = load_seals(&shared(&volume.cluster.client())).await;
    assert_eq!(seals.unwrap().len(), 2);
}

fn firsts(file: Vec<u8>) -> Vec<u8> {
    file.chunks(BLOCK).map(|block| block[0]).collect()
}

/// What it is about: blocks that were given back read as empty pages.
// hazard: NODE-4
#[tokio::test]
async fn standby_that_does_not_look_reads_empty_pages() {
    let (volume, active, _, standby) = scene(None).await;
    forget(&volume, &active, &Hours::default()).await;
    assert_eq!(firsts(standby.read(FILE).await.unwrap()), [0, 0, 0]);
}

// hazard: NODE-4
#[tokio::test]
async fn a_standby_that_slept_and_lost_its_claim_answers_nothing() {
    let hours = Hours::default();
    let (volume, active, view, standby) = scene(Some(&hours)).await;
    let ino = standby.ino(FILE).unwrap();
    let first = standby.view.read(ino, 0, BLOCK as u32).await.unwrap();
    assert_eq!(first[0], 1);
    forget(&volume, &active, &hours).await;
    // What it holds itself is as right as ever.
    let first = standby.view.read(ino, 0, BLOCK as u32).await.unwrap();
    assert_eq!(first[0], 1);
    for block in [1, 2] {
        let read = standby.view.read(ino, block * BLOCK as u64, 1).await;
        assert!(matches!(read, Err(Error::ClaimLost)), "{read:?}");
    }
    view.claim().unwrap().lost().await;
    let learned = view.learn_versions().await;
    assert!(matches!(learned, Err(Error::ClaimLost)), "{learned:?}");
}

/// The machine was paused, its clock as well.
// hazard: NODE-4
#[tokio::test]
async fn a_standby_whose_clock_stood_still_answers_nothing_either() {
    let hours = Hours::default();
    let (volume, active, _, standby) = scene(Some(&hours)).await;
    let ino = standby.ino(FILE).unwrap();
    standby.view.read(ino, 0, 1).await.unwrap();
    forget(&volume, &active, &Hours::default()).await;
    let read = standby.view.read(ino, BLOCK as u64, 1).await;
    assert!(matches!(read, Err(Error::ClaimLost)), "{read:?}");
}

#[tokio::test]
async fn a_standby_that_slept_and_kept_its_claim_goes_on() {
    let hours = Hours::default();
    let (_volume, _active, view, standby) = scene(Some(&hours)).await;
    let ino = standby.ino(FILE).unwrap();
    standby.view.read(ino, 0, 1).await.unwrap();
    hours.pass(60 * VALID_FOR);
    assert_eq!(firsts(standby.read(FILE).await.unwrap()), [1, 2, 3]);
    assert!(!view.claim().unwrap().is_lost());
}

/// A machine called south is created anew while the first one is cut off.
// hazard: NODE-7
#[tokio::test]
async fn a_standby_whose_name_another_one_has_taken_answers_nothing() {
    let hours = Hours::default();
    let (volume, active, view, standby) = scene(Some(&hours)).await;
    let ino = standby.ino(FILE).unwrap();
    let read = async |block: u64| standby.view.read(ino, block * BLOCK as u64, 1).await;
    assert_eq!(read(0).await.unwrap()[0], 1);
    let storage = shared(&volume.cluster.client());
    let mut others = None;
    for round in [200, 300, 400] {
        active.write(FILE, 0, &blocks(&[7, 8, 9])).await.unwrap();
        let seal = active.seal(round).await;
        if others.is_none() {
            others = Some(claim_image(&storage, &seal, hours.clock()).await);
        }
        active.active.as_ref().unwrap().reclaim().await.unwrap();
        // What the first one found standing stays as long as it may rely on that.
        let narrow = others.as_ref().unwrap();
        if round == 300 {
            assert_eq!(read(1).await.unwrap()[0], 2);
            hours.pass(GRACE);
            assert!(narrow.change(&storage, &of_image(&seal)).await.unwrap());
        }
    }
    let late = read(2).await;
    assert!(matches!(late, Err(Error::ClaimLost)), "{late:?}");
    view.claim().unwrap().lost().await;
}

/// Its machine is put back to a snapshot with its memory.
// hazard: NODE-7
#[tokio::test]
async fn a_standby_that_finds_what_it_claimed_later_answers_nothing() {
    let hours = Hours::default();
    let (volume, active, view, standby) = scene(Some(&hours)).await;
    let storage = shared(&volume.cluster.client());
    let mut later = Claim::load(&storage, &node("south"))
        .await
        .unwrap()
        .unwrap();
    for round in [200, 300, 400] {
        active.write(FILE, 0, &blocks(&[7, 8, 9])).await.unwrap();
        later.images = vec![active.seal(round).await.lineage];
        later.token.number += 1;
        later.put(&storage).await.unwrap();
        active.active.as_ref().unwrap().reclaim().await.unwrap();
    }
    let read = standby.read(FILE).await;
    assert!(matches!(read, Err(Error::ClaimLost)), "{read:?}");
    assert!(view.claim().unwrap().is_lost());
}

/// Its successor went on from an older image, and gave back what only its own had.
// hazard: NODE-5
#[tokio::test]
async fn an_active_that_slept_while_another_took_over_reads_no_empty_pages() {
    let (volume, _, view, _) = scene(None).await;
    let asleep = volume.open_again(volume.owning("second").await).await;
    let (storage, active) = volume.take_over(&view).await;
    Claim::release(&shared(&storage), &node("south"))
        .await
        .unwrap();
    for round in [200, 300, 400] {
        active.write(FILE, 0, &blocks(&[7, 8, 9])).await.unwrap();
        active.seal(round).await;
        active.active.as_ref().unwrap().reclaim().await.unwrap();
    }
    let read = asleep.read(FILE).await;
    assert!(matches!(&read, Err(e) if e.is_fenced()), "{read:?}");
}
