//! What an agent tells proxies, over the direct channel and the registry.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coordination::address::Address;
use coordination::channel::{
    Handler, Identity, News, Notice, Party, Position, PositionSource, ProxyReport, Request, Server,
    Serving, StandbySeen, Watching, watch,
};
use coordination::records::{
    ActiveState, Heartbeat, Horizon, Incarnation, Member, MemberState, Record,
};
use dax::ids::{Epoch, NodeName, VolumeName};
use dax::memory::MemoryCluster;
use dax::storage::{Storage, VolumeSettings};
use parking_lot::Mutex;
use pgdata::xid::Xid8;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use volume::lsn::Lsn;

const LIMIT: Duration = Duration::from_secs(20);
const DRAIN: Duration = Duration::from_secs(30);

struct Silent;

#[async_trait]
impl Handler for Silent {
    async fn request(&self, _request: Request) -> Result<Value, String> {
        Err("not here".into())
    }

    async fn session(&self) -> Result<UnixStream, String> {
        Err("not here".into())
    }
}

/// An active whose proofs come when the test lets them.
struct Log {
    durable: Mutex<u64>,
    proofs: Semaphore,
    rounds: Mutex<u64>,
}

impl Log {
    fn new(durable: u64, proofs: usize) -> Arc<Log> {
        Arc::new(Log {
            durable: Mutex::new(durable),
            proofs: Semaphore::new(proofs),
            rounds: Mutex::new(0),
        })
    }
}

#[async_trait]
impl PositionSource for Log {
    fn durable(&self) -> Result<Lsn, String> {
        *self.rounds.lock() += 1;
        Ok(Lsn(*self.durable.lock()))
    }

    async fn confirm(&self) -> dax::Result<Epoch> {
        self.proofs.acquire().await.unwrap().forget();
        Ok(Epoch(3))
    }

    async fn shown(&self, durable: Lsn) -> Lsn {
        Lsn(durable.0 - 1)
    }
}

fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn party(node: &str) -> Party {
    let me = Identity {
        node: name(node),
        volume: VolumeName::new("main").unwrap(),
        incarnation: Incarnation("1".into()),
    };
    Party { me, tls: None }
}

async fn agent(node: &str) -> Server {
    let any = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(&any, party(node), Arc::new(Silent)).await;
    server.unwrap()
}

fn serving(node: &str, epoch: u32) -> Serving {
    Serving {
        epoch: Epoch(epoch),
        node: name(node),
        postgres: format!("{node}:5432").parse().unwrap(),
        horizons: vec![Horizon {
            epoch: Epoch(epoch),
            xid: Some(Xid8(700)),
        }],
        started: None,
    }
}

async fn register(registry: &dyn Storage, node: &str, channel: &Address) {
    let postgres = format!("{node}:5432").parse().unwrap();
    let incarnation = Incarnation("1".into());
    let member = Member {
        state: MemberState::Warm,
        updated: 1,
        ..Member::starting(name(node), incarnation, postgres, channel.clone())
    };
    member.store(registry).await.unwrap();
}

async fn next(news: &mut UnboundedReceiver<News>) -> News {
    let next = tokio::time::timeout(LIMIT, news.recv()).await;
    next.unwrap().unwrap()
}

/// A proxy that watches these agents, and has heard that `a` serves.
async fn proxy(servers: &[(&str, &Server)]) -> (Watching, UnboundedReceiver<News>) {
    let registry = MemoryCluster::new(VolumeSettings::default()).client();
    for (node, server) in servers {
        register(&*registry, node, server.address()).await;
    }
    let (watching, mut news) = watch(party("proxy"), registry, None);
    assert_eq!(next(&mut news).await, News::ActiveIs(serving("a", 3)));
    (watching, news)
}

#[tokio::test]
async fn new_active_is_known_at_once() {
    let (a, b) = (agent("a").await, agent("b").await);
    a.serve_proxies(serving("a", 3), Log::new(0, 0));
    let (_watching, mut news) = proxy(&[("a", &a), ("b", &b)]).await;
    let standbys = vec![StandbySeen {
        node: name("b"),
        postgres: "b:5432".parse().unwrap(),
        applied: Lsn(7),
        warm: true,
        started: None,
    }];
    a.tell_standbys(standbys.clone());
    loop {
        match next(&mut news).await {
            News::Standbys(seen) if seen == standbys => break,
            News::Standbys(seen) if seen.is_empty() => {}
            other => panic!("{other:?}"),
        }
    }
    a.announce(Notice::PostgresDead {
        epoch: Epoch(3),
        detail: "gone".into(),
    });
    assert_eq!(next(&mut news).await, News::ActiveGone(Epoch(3)));
    b.serve_proxies(serving("b", 4), Log::new(0, 0));
    assert_eq!(next(&mut news).await, News::ActiveIs(serving("b", 4)));
    // The old one is late, or was frozen.
    a.tell_standbys(Vec::new());
    b.tell_standbys(vec![]);
    b.retract();
    assert_eq!(next(&mut news).await, News::ActiveGone(Epoch(4)));
}

#[tokio::test]
async fn questions_that_come_during_a_proof_wait_for_the_next() {
    let a = agent("a").await;
    let log = Log::new(10, 0);
    a.serve_proxies(serving("a", 3), log.clone());
    let (watching, mut news) = proxy(&[("a", &a)]).await;
    let rounds = async |wanted| {
        while *log.rounds.lock() < wanted {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    watching.ask(1, false);
    rounds(1).await;
    *log.durable.lock() = 20;
    watching.ask(2, false);
    watching.ask(3, false);
    log.proofs.add_permits(1);
    let position = |durable| {
        Some(Position {
            epoch: Epoch(3),
            durable: Lsn(durable),
            shown: None,
        })
    };
    assert_eq!(next(&mut news).await, News::Position(1, position(10)));
    rounds(2).await;
    log.proofs.add_permits(1);
    assert_eq!(next(&mut news).await, News::Position(2, position(20)));
    assert_eq!(next(&mut news).await, News::Position(3, position(20)));
    assert_eq!(*log.rounds.lock(), 2);
    // Who stops being the active answers nobody.
    watching.ask(4, false);
    rounds(3).await;
    a.retract();
    let mut last = [next(&mut news).await, next(&mut news).await];
    last.sort_by_key(|news| matches!(news, News::ActiveGone(_)));
    let expected = [News::Position(4, None), News::ActiveGone(Epoch(3))];
    assert_eq!(last, expected);
    watching.ask(5, false);
    assert_eq!(next(&mut news).await, News::Position(5, None));
}

/// Others who wait for the same answer need not know.
#[tokio::test]
async fn shown_position_of_the_active_is_told_on_request() {
    let a = agent("a").await;
    a.serve_proxies(serving("a", 3), Log::new(10, 2));
    let (watching, mut news) = proxy(&[("a", &a)]).await;
    for (number, shown) in [(1, None), (2, Some(Lsn(9)))] {
        watching.ask(number, shown.is_some());
        let position = Position {
            epoch: Epoch(3),
            durable: Lsn(10),
            shown,
        };
        assert_eq!(
            next(&mut news).await,
            News::Position(number, Some(position))
        );
    }
}

#[tokio::test]
async fn a_hold_waits_for_proxies_to_drain() {
    let a = agent("a").await;
    a.serve_proxies(serving("a", 3), Log::new(0, 0));
    // Nobody is there yet.
    a.hold(Epoch(3), DRAIN, DRAIN).await;
    a.resume(Epoch(3));
    let (watching, mut news) = proxy(&[("a", &a)]).await;
    watching.report(ProxyReport {
        listen: "127.0.0.1:6432".into(),
        clients: 5,
        ..ProxyReport::default()
    });
    let reported = || a.proxies().iter().any(|proxy| proxy.report.is_some());
    while !reported() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let holding = a.hold(Epoch(3), DRAIN, 2 * DRAIN);
    let draining = async {
        let hold = next(&mut news).await;
        let News::Hold { drain } = hold else {
            panic!("{hold:?}");
        };
        assert!(drain <= DRAIN);
        watching.drained();
    };
    tokio::time::timeout(LIMIT, async { tokio::join!(holding, draining) })
        .await
        .unwrap();
    a.resume(Epoch(3));
    assert_eq!(next(&mut news).await, News::Resume);
    // One that never answers is waited for no longer than that.
    a.hold(Epoch(3), Duration::from_millis(20), DRAIN).await;
    assert!(matches!(next(&mut news).await, News::Hold { .. }));
    drop(watching);
    a.hold(Epoch(3), DRAIN, DRAIN).await;
}

#[tokio::test]
async fn registry_tells_where_the_channel_is_silent() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let owner = cluster.client();
    let epoch = owner.own_epoch(&name("a")).await.unwrap();
    let nobody: Address = "127.0.0.1:1".parse().unwrap();
    register(&*owner, "a", &nobody).await;
    let horizons = Horizon::begin(&*owner, epoch, Some(Xid8(800)))
        .await
        .unwrap();
    let mut beat = Heartbeat {
        epoch,
        counter: 1,
        node: name("a"),
        synced_lsn: Lsn(1),
        journal_synced: 0,
        timeline: 1,
        starts: 0,
        configured: 0,
        interval_ms: 200,
        state: ActiveState::Serving,
    };
    beat.store(&*owner).await.unwrap();
    let (watching, mut news) = watch(party("proxy"), cluster.client(), None);
    let serving = Serving {
        horizons,
        epoch,
        ..serving("a", 0)
    };
    assert_eq!(next(&mut news).await, News::ActiveIs(serving));
    watching.ask(1, false);
    assert_eq!(next(&mut news).await, News::Position(1, None));
    beat.state = ActiveState::PostgresDead;
    beat.store(&*owner).await.unwrap();
    assert_eq!(next(&mut news).await, News::ActiveGone(epoch));
}
