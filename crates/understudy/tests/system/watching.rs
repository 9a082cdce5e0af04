//! What a real cluster tells a proxy: who serves, positions that standbys reach, and when to hold.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use cluster::clients::session::connect;
use cluster::scratch::Scratch;
use cluster::{Cluster, Options, programs};
use coordination::channel::{News, Party, Position, Serving, Watching, watch};
use coordination::tier;
use dax::ids::NodeName;
use node::config::Config;
use tokio::sync::mpsc::UnboundedReceiver;
use volume::lsn::Lsn;

use crate::stage::{TIMEOUT, program};

/// A proxy that serves nobody.
struct Proxy {
    watching: Watching,
    news: UnboundedReceiver<News>,
    asked: u64,
}

impl Proxy {
    async fn start(cluster: &Cluster) -> Result<Proxy> {
        let mut config = Config::load(&cluster.node("north")?.config)?.cluster;
        config.name = NodeName::new("proxy")?;
        let registry = tier::connect(&config, "proxy").await?;
        let (watching, news) = watch(Party::new(&config)?, registry, None);
        Ok(Proxy {
            watching,
            news,
            asked: 0,
        })
    }

    async fn next(&mut self) -> Result<News> {
        let next = tokio::time::timeout(TIMEOUT, self.news.recv()).await;
        next.context("no news")?.context("nobody watches any more")
    }

    /// The first news that `wanted` takes.
    async fn until<T>(&mut self, wanted: impl Fn(News) -> Option<T>) -> Result<T> {
        loop {
            if let Some(found) = wanted(self.next().await?) {
                return Ok(found);
            }
        }
    }

    async fn active(&mut self) -> Result<Serving> {
        self.until(|news| match news {
            News::ActiveIs(serving) => Some(serving),
            _ => None,
        })
        .await
    }

    async fn position(&mut self) -> Result<Position> {
        self.asked += 1;
        let asked = self.asked;
        self.watching.ask(asked, false);
        let answer = self.until(|news| match news {
            News::Position(number, position) if number == asked => Some(position),
            _ => None,
        });
        answer.await?.context("no position")
    }

    /// Waits until a standby has replayed up to there.
    async fn applied(&mut self, at: Lsn) -> Result<()> {
        self.until(|news| match news {
            News::Standbys(standbys) => standbys.iter().any(|s| s.applied >= at).then_some(()),
            _ => None,
        })
        .await
    }

    /// Holds when it is told to, and says that it has drained; ends when it may go on. The active that it heard of on the way.
    async fn hold(&mut self) -> Result<Option<Serving>> {
        self.until(|news| matches!(news, News::Hold { .. }).then_some(()))
            .await?;
        self.watching.drained();
        let mut serving = None;
        loop {
            match self.next().await? {
                News::ActiveIs(next) => serving = Some(next),
                News::Resume => return Ok(serving),
                News::Hold { .. } => bail!("told twice to hold"),
                _ => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_proxy_is_told_who_serves_how_far_standbys_are_and_when_to_hold() -> Result<()> {
    let scratch = Scratch::new("watching")?;
    let bin = programs::find(None)?;
    let mut options = Options::new(scratch.path(), &bin, program());
    options.heartbeat = "wide".into();
    let mut cluster = Cluster::create(options)?;
    cluster.start().await?;
    let mut proxy = Proxy::start(&cluster).await?;
    let first = proxy.active().await?;
    ensure!(first.node.as_str() == "north", "{first:?}");
    ensure!(
        first
            .horizons
            .last()
            .is_some_and(|h| h.epoch == first.epoch),
        "{first:?}"
    );

    // What is committed before the question is below the position, and the standby gets there.
    let client = connect(&cluster.server("north")?.config()).await?;
    client.batch_execute("CREATE TABLE t (n int)").await?;
    for n in 1..=20 {
        let before = "SELECT pg_current_wal_insert_lsn()::text";
        client
            .batch_execute(&format!("BEGIN; INSERT INTO t VALUES ({n})"))
            .await?;
        let before: String = client.query_one(before, &[]).await?.get(0);
        client.batch_execute("COMMIT").await?;
        let position = proxy.position().await?;
        let before = lsn(&before)?;
        ensure!(
            position.durable > before,
            "{position:?} is not above {before}"
        );
        ensure!(position.epoch == first.epoch);
        let asked = Instant::now();
        proxy.applied(position.durable).await?;
        println!("replayed and told {:?} after the position", asked.elapsed());
        let standby = connect(&cluster.server("south")?.config()).await?;
        let seen: i64 = standby
            .query_one("SELECT count(*) FROM t", &[])
            .await?
            .get(0);
        ensure!(seen >= n, "{seen} rows of {n}");
    }

    // Planned work holds it: a switchover, and a restart in place.
    let config = cluster.node("north")?.config.display().to_string();
    let switch = ["switchover", "--config", &config];
    let (done, held) = tokio::join!(cluster.run(&switch), proxy.hold());
    done?;
    let second = held?.context("it was told of no other active")?;
    ensure!(second.node.as_str() == "south" && second.epoch > first.epoch);
    ensure!(second.horizons.len() > first.horizons.len(), "{second:?}");
    let restart = ["restart", "south", "--config", &config];
    let (done, held) = tokio::join!(cluster.run(&restart), proxy.hold());
    done?;
    // Another run of the server, which may be told before the hold is over; the epoch goes on.
    let again = held?.unwrap_or_else(|| second.clone());
    ensure!(
        again.node == second.node && again.epoch == second.epoch,
        "{again:?}"
    );
    ensure!(proxy.position().await?.epoch == second.epoch);

    // And a takeover reaches it.
    cluster.wait_follows("north", TIMEOUT).await?;
    cluster.kill_node("south").context("it runs")?;
    let third = proxy.active().await?;
    ensure!(third.node.as_str() == "north" && third.epoch > second.epoch);
    ensure!(proxy.position().await?.epoch == third.epoch);
    cluster.shutdown();
    scratch.succeed()
}

fn lsn(text: &str) -> Result<Lsn> {
    let (high, low) = text.split_once('/').context("no position")?;
    let half = |digits| u64::from_str_radix(digits, 16);
    Ok(Lsn(half(high)? << 32 | half(low)?))
}
