//! The life of a repository, with a fault at every step of it.
//!
//! A life copies log and an image, expires, and restores. It is repeated with each fault at each of its requests to the store, and
//! with zones that are away. Then the process begins again, and everything is as if nothing had happened.

mod database;
mod filled;
mod store;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use coordination::records::{Cluster, Record};
use dax::ids::NodeName;

use self::database::{Database, Files, SEGMENT};
use self::store::{Fault, Store};
use crate::archive::{Archiver, Copied};
use crate::create::{How, Pace, create};
use crate::error::{Error, Result};
use crate::expire::{Policy, expire};
use crate::manifest;
use crate::repository::Repository;
use crate::restore::{Parts, Target, plan, restore};
use crate::source::Source;
use crate::verify::verify;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// After this time a process that was killed counts as gone.
const SILENCE: Duration = Duration::from_secs(600);

fn name() -> NodeName {
    NodeName::new("archiver").unwrap()
}

fn policy() -> Policy {
    Policy {
        keep: "all for 36h".parse().unwrap(),
        log_for: DAY,
        grace: DAY,
    }
}

/// Log, an image, log, an expiry: an archiver's work, once.
async fn archive(database: &Database, repository: &Repository) -> Result<()> {
    let mut source = Source::claim(database.reader(), name(), None).await?;
    let cluster = Cluster::load(database.reader().as_ref()).await?.unwrap();
    repository.belong_to("db", &cluster).await?;
    let redo = source.seal().redo;
    let mut archiver = Archiver::begin(&source, repository, redo).await?;
    copy_log(&mut archiver, &mut source, repository).await?;
    let how = How {
        pace: Pace::new(None),
        is_full: false,
    };
    create(&mut source, &mut archiver, repository, &how, |_| ()).await?;
    source.let_image_go().await?;
    copy_log(&mut archiver, &mut source, repository).await?;
    expire(repository, &policy()).await?;
    source.release().await
}

async fn copy_log(
    archiver: &mut Archiver,
    source: &mut Source,
    repository: &Repository,
) -> Result<()> {
    let copied = archiver.copy(source).await?;
    assert!(matches!(copied, Copied::To(_)), "{copied:?}");
    archiver.tip().unwrap().put(repository).await
}

/// Restores the latest moment, and compares: what is restored is what the database had. Returns true if something was.
async fn restored(database: &Database, repository: &Repository) -> Result<bool> {
    let plan = plan(repository, Target::Latest, None, None).await?;
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("then");
    let done = restore(
        repository,
        &plan,
        Parts::Everything,
        &directory,
        None,
        |_, _| (),
    )
    .await;
    let is_whole = directory.join("recovery.signal").exists();
    assert_eq!(done.is_ok(), is_whole, "nothing starts from a half");
    done?;
    let image = manifest::Manifest::load(repository, &plan.image).await?;
    assert_eq!(files_of(&directory), database.images[&image.generation]);
    let end = plan.log_end.0 as usize;
    let from = image.redo.0 as usize / SEGMENT * SEGMENT;
    assert!(
        log_of(&directory, end - from) == database.log[from..end],
        "the log is another one"
    );
    Ok(true)
}

fn files_of(directory: &Path) -> Files {
    let data = std::fs::read_dir(directory.join("base/5")).unwrap();
    let files = data.map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (
            format!("base/5/{name}"),
            std::fs::read(entry.path()).unwrap(),
        )
    });
    files.collect()
}

/// So much of the log, from the first segment on.
fn log_of(directory: &Path, len: usize) -> Vec<u8> {
    let log = std::fs::read_dir(directory.join("understudy_log")).unwrap();
    let mut segments: Vec<_> = log.map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    let mut all = Vec::new();
    for segment in segments {
        all.extend(std::fs::read(segment).unwrap());
    }
    all.truncate(len);
    all
}

/// A database, and a repository that has an image of it which expires with the next one.
async fn before() -> (Database, Store) {
    let mut database = Database::new().await;
    let store = Store::default();
    for _ in 0..2 {
        archive(&database, &open(&store).await.unwrap())
            .await
            .unwrap();
        database.round().await;
        store.pass(DAY);
    }
    (database, store)
}

/// A process that begins.
async fn open(store: &Store) -> Result<Repository> {
    let repository = Repository::over(Arc::new(store.clone()));
    repository.owner().await?;
    Ok(repository)
}

/// Everything is there and right; a process that begins now archives and restores.
async fn goes_on(database: &mut Database, store: &Store) {
    let repository = open(store).await.unwrap();
    let verified = verify(&repository, |_, _| ()).await.unwrap();
    assert_eq!(verified.wrong, Vec::<String>::new());
    assert!(restored(database, &repository).await.unwrap());
    store.pass(SILENCE);
    archive(database, &repository).await.unwrap();
    for _ in 0..2 {
        database.round().await;
        store.pass(DAY);
        archive(database, &repository).await.unwrap();
    }
    let verified = verify(&repository, |_, _| ()).await.unwrap();
    assert_eq!(verified.wrong, Vec::<String>::new());
    assert!(restored(database, &repository).await.unwrap());
    let images = manifest::images(&repository).await.unwrap();
    assert_eq!(images.len(), 2, "the others expired: {images:?}");
}

#[tokio::test]
async fn one_life() {
    let (mut database, store) = before().await;
    archive(&database, &open(&store).await.unwrap())
        .await
        .unwrap();
    let images = manifest::images(&open(&store).await.unwrap())
        .await
        .unwrap();
    assert_eq!(images.len(), 2, "the first of three has expired");
    goes_on(&mut database, &store).await;
}

/// A process that is killed, or a store that refuses or does not answer, leaves a repository that is whole.
// hazard: BACKUP-8, BACKUP-14, BACKUP-16
#[tokio::test]
async fn a_life_that_ends_at_any_step_leaves_nothing_wrong() {
    every_fault(Fault::is_honest, async |database, store, what| {
        println!("{what}");
        goes_on(database, store).await;
    })
    .await;
}

/// A store that lies is found out by who verifies, or nobody sees a difference.
// hazard: BACKUP-4
#[tokio::test]
async fn a_store_that_lies_restores_nothing_wrong() {
    let is_lie = |fault: Fault| !fault.is_honest();
    every_fault(is_lie, async |database, store, what| {
        let repository = open(store).await.unwrap();
        let verified = verify(&repository, |_, _| ()).await;
        let is_whole = verified.is_ok_and(|verified| verified.wrong.is_empty());
        // It compares what it restores.
        match restored(database, &repository).await {
            Ok(_) => {}
            Err(
                Error::Damaged { .. }
                | Error::Missing(_)
                | Error::OutOfReach { .. }
                | Error::Refused(_),
            ) => {
                assert!(!is_whole, "{what}: verify found nothing");
            }
            Err(error) => panic!("{what}: {error:?}"),
        }
    })
    .await;
}

async fn life(database: &Database, store: &Store) -> Result<bool> {
    let repository = open(store).await?;
    archive(database, &repository).await?;
    restored(database, &repository).await
}

/// Lives with each of these faults at each of their steps.
async fn every_fault(
    is_one: impl Fn(Fault) -> bool,
    check: impl AsyncFn(&mut Database, &Store, &str),
) {
    for fault in Fault::ALL.into_iter().filter(|fault| is_one(*fault)) {
        let (mut database, mut begun) = before().await;
        for step in 0.. {
            // Who archives again changes the database.
            if fault.is_honest() {
                (database, begun) = before().await;
            }
            let store = begun.copy();
            store.arm(Some((step, fault)));
            let restored = life(&database, &store).await;
            let steps = store.steps();
            store.arm(None);
            let what = format!("{fault:?} at step {step} of {steps}: {restored:?}");
            check(&mut database, &store, &what).await;
            if step >= steps {
                break;
            }
        }
    }
}
