//! A real server whose log the agent cannot follow: its commits wait, and the agent makes an end of it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use coordination::channel::{Handler, Identity, Party, Request};
use coordination::records::Incarnation;
use dax::ids::{Epoch, NodeName, VolumeName};
use dax::memory::MemoryCluster;
use dax::storage::{Storage, VolumeSettings};
use pgdata::layout::PostgresLayout;
use pgdata::segment::SegmentSize;
use pgdata::timeline::TimelineId;
use pgserver::{InitdbOptions, Installation, Postgres, RunAs};
use tempfile::TempDir;
use tokio::net::UnixStream;
use volume::active::{NoObserver, Options, WriteObserver};
use volume::latest::{self, Latest};
use volume::private::PrivateDir;
use volume::view::{Ownership, Timestamp};

use super::super::serving::kill_unfollowed;
use super::*;
use crate::machine::Event as Happened;

/// Where the log of a new server begins.
const START: Lsn = Lsn(0x100_0000);
const PATIENCE: Duration = Duration::from_secs(60);

/// Nobody asks it anything.
struct Silent;

#[async_trait]
impl Handler for Silent {
    async fn request(&self, _: Request) -> Result<serde_json::Value, String> {
        Err("not here".to_owned())
    }

    async fn session(&self) -> Result<UnixStream, String> {
        Err("not here".to_owned())
    }
}

async fn server() -> Arc<Server> {
    let me = Identity {
        node: NodeName::new("a").unwrap(),
        volume: VolumeName::new("main").unwrap(),
        incarnation: Incarnation("1".into()),
    };
    let address = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(&address, Party { me, tls: None }, Arc::new(Silent));
    Arc::new(server.await.unwrap())
}

fn installation() -> Installation {
    let chosen = std::env::var_os("UNDERSTUDY_POSTGRES_BIN").map(PathBuf::from);
    let newest = || {
        let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed");
        let bins = versions.map(|version| version.unwrap().path().join("bin"));
        bins.max().expect("PostgreSQL is installed")
    };
    Installation::find(&chosen.unwrap_or_else(newest)).unwrap()
}

fn directory(path: &Path, run_as: Option<&RunAs>) {
    std::fs::create_dir(path).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
    if let Some(user) = run_as {
        nix::unistd::chown(path, Some(user.uid), Some(user.gid)).unwrap();
    }
}

/// A server that was started for an ordered log.
async fn postgres(place: &Path) -> Postgres {
    std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (data, run) = (place.join("pgdata"), place.join("run"));
    let run_as = RunAs::resolve("postgres").unwrap();
    for path in [&data, &run] {
        directory(path, run_as.as_ref());
    }
    let initdb = InitdbOptions {
        data: data.clone(),
        superuser: "postgres".into(),
        arguments: vec!["--locale=C".into(), "--no-sync".into()],
        password: None,
        run_as: run_as.clone(),
    };
    installation().initdb(&initdb).await.unwrap();
    let pinned = settings::ordered();
    let pinned = pinned
        .into_iter()
        .map(|set| (set.name.to_owned(), set.value));
    let options = StartOptions {
        data,
        run,
        log: place.join("log"),
        // It is but part of the socket's name.
        port: 5432,
        listen_addresses: String::new(),
        superuser: "postgres".into(),
        settings: pinned.chain([("fsync".into(), "off".into())]).collect(),
        run_as,
    };
    Postgres::start(&installation(), options).await.unwrap()
}

/// A view that nothing is written to.
async fn view(place: &Path) -> Arc<ActiveView> {
    let (now, owner) = (
        Timestamp(1),
        Ownership {
            mode: 0o700,
            uid: 0,
            gid: 0,
        },
    );
    let storage = MemoryCluster::new(VolumeSettings::default()).client();
    storage
        .own_epoch(&NodeName::new("a").unwrap())
        .await
        .unwrap();
    let shared: Arc<dyn Storage> = storage.clone();
    latest::format(&shared, owner, now).await.unwrap();
    let recovered = Latest::recover(storage, now).await.unwrap();
    let layout = Arc::new(PostgresLayout::new(SegmentSize::DEFAULT));
    let private = PrivateDir::prepare(place, &*layout, false, owner).unwrap();
    let (private, observer) = (Arc::new(private), Arc::new(NoObserver));
    let view = ActiveView::open(
        recovered,
        layout,
        private,
        observer,
        None,
        Options::default(),
    );
    Arc::new(view.await.unwrap())
}

/// Of the log that it sees the first page is missing.
fn sealer_that_is_stuck() -> Arc<Sealer> {
    const PATH: &str = "pg_wal/000000010000000000000001";
    const PAGE: usize = 8192;
    let layout = Arc::new(PostgresLayout::new(SegmentSize::DEFAULT));
    let sealer = Sealer::new(layout, START, TimelineId::FIRST, None, 131_072, Epoch(1));
    sealer.log_written(PATH, 5 * PAGE as u64, &Bytes::from(vec![1; PAGE]));
    let token = sealer.log_sync_started(PATH);
    sealer.log_synced(PATH, token);
    assert_eq!(sealer.stuck(), Some(START));
    sealer
}

/// Commits waited for what nobody would ever confirm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_followed_ends_its_server() {
    let (place, private) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let postgres = postgres(place.path()).await;
    let session = postgres.wait_ready(PATIENCE).await.unwrap();
    let log = LogOrder::default();
    let parts = Parts {
        postgres: postgres.options().clone(),
        sealer: sealer_that_is_stuck(),
        view: view(private.path()).await,
        told: Arc::clone(&log.told),
        given_up: log.given_up.clone(),
        at_most: watch::Sender::default(),
        needed: watch::Sender::default(),
    };
    let _ordering = Ordering::start(server().await, parts);
    let commits = tokio::spawn(async move {
        let commit = "SELECT pg_logical_emit_message(true, 'x', 'y')";
        session.value(commit).await
    });
    let why = tokio::time::timeout(PATIENCE, log.given_up()).await;
    assert_eq!(why.expect("it is given up"), GivenUp::Unfollowed(START));
    assert!(!commits.is_finished(), "it waits");
    let happened = kill_unfollowed(&postgres, START).await;
    assert!(
        matches!(&happened, Happened::PostgresExited { redo_failed: false, report } if report.contains("0/1000000")),
        "{happened:?}"
    );
    assert!(postgres.exit().is_some(), "before anybody hears of it");
    commits.await.unwrap().expect_err("it was never confirmed");
}
