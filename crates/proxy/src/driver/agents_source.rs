//! A cluster of Understudy, as its agents and its registry tell of it.
//!
//! Positions come with proof that the active's epoch stood ([`coordination::channel`]). When the active is about to stop on
//! purpose, its agent is told when no transaction is open here any more.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use coordination::channel::{self, Party, ProxyReport, StandbySeen, Watching};
use coordination::config::ClusterConfig;
use dax::storage::Storage;
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::core::outcome::Horizon;
use crate::core::topology::{News, ServerRun, Standby};

use super::cluster::Cluster;
use super::source::{Position, Source, SourceError};

/// How often it is looked whether transactions are open, during a hold.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How often agents are told how this proxy is.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Tells what the agents tell.
pub struct AgentsSource {
    watching: Arc<Watching>,
    news: Mutex<Option<UnboundedReceiver<channel::News>>>,
    asked: Mutex<HashMap<u64, oneshot::Sender<Option<channel::Position>>>>,
    last: AtomicU64,
    listen: String,
    spares: Vec<String>,
}

impl AgentsSource {
    /// Watches the cluster of this registry, as `me`, for a proxy with this configuration. Must be called inside a tokio runtime.
    pub fn new(
        me: Party,
        registry: Arc<dyn Storage>,
        cluster: Option<ClusterConfig>,
        config: &Config,
    ) -> AgentsSource {
        let (watching, news) = channel::watch(me, registry, cluster);
        AgentsSource {
            watching: Arc::new(watching),
            news: Mutex::new(Some(news)),
            asked: Mutex::default(),
            last: AtomicU64::new(0),
            listen: config.listen.to_string(),
            spares: config.reads.spares.clone(),
        }
    }

    fn answer(&self, number: u64, position: Option<channel::Position>) {
        if let Some(asker) = self.asked.lock().remove(&number) {
            // Who asked may have gone.
            let _ = asker.send(position);
        }
    }

    fn report(&self, cluster: &Cluster) {
        let report = ProxyReport {
            listen: self.listen.clone(),
            ..cluster.report()
        };
        self.watching.report(report);
    }
}

/// Says that no transaction is open, once that is so; ends with the hold.
struct Draining(JoinHandle<()>);

impl Draining {
    fn begin(watching: Arc<Watching>, cluster: Arc<Cluster>) -> Draining {
        Draining(tokio::spawn(async move {
            // Who was about to begin when the hold was heard of has begun by then.
            tokio::time::sleep(LOOK_EVERY).await;
            while cluster.open_transactions() > 0 {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            watching.drained();
        }))
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn standby(seen: StandbySeen, spares: &[String]) -> Standby {
    Standby {
        is_spare: spares.iter().any(|spare| spare == seen.node.as_str()),
        name: seen.node.as_str().into(),
        address: seen.postgres.to_string().into(),
        replayed: seen.applied,
        run: seen.started.map(|started| ServerRun(started.0)),
    }
}

#[async_trait]
impl Source for AgentsSource {
    async fn run(self: Arc<Self>, cluster: Arc<Cluster>) {
        let Some(mut news) = self.news.lock().take() else {
            return;
        };
        let mut draining = None;
        let mut report = tokio::time::interval(REPORT_EVERY);
        loop {
            let news = tokio::select! {
                news = news.recv() => match news {
                    Some(news) => news,
                    None => return,
                },
                _ = report.tick() => {
                    self.report(&cluster);
                    continue;
                }
            };
            match news {
                channel::News::ActiveIs(serving) => {
                    let horizons = serving.horizons.iter();
                    let horizons = horizons.map(|h| (h.epoch, h.xid.map(|xid| Horizon(xid.0))));
                    cluster.hear(News::ActiveIs {
                        epoch: serving.epoch,
                        address: serving.postgres.to_string().into(),
                        run: serving.started.map(|started| ServerRun(started.0)),
                        horizons: horizons.collect(),
                    });
                }
                // Its connections break; whoever serves next is told.
                channel::News::ActiveGone(_) => {}
                channel::News::Standbys(standbys) => {
                    let standbys = standbys.into_iter();
                    let standbys = standbys.map(|one| standby(one, &self.spares)).collect();
                    cluster.hear(News::Standbys(standbys));
                }
                channel::News::Position(number, position) => self.answer(number, position),
                channel::News::Hold { .. } => {
                    cluster.hear(News::Hold);
                    let watching = Arc::clone(&self.watching);
                    draining = Some(Draining::begin(watching, Arc::clone(&cluster)));
                }
                channel::News::Resume => {
                    draining.take();
                    cluster.hear(News::Resume);
                }
            }
        }
    }

    async fn position(&self, shown: bool) -> Result<Position, SourceError> {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (asker, answer) = oneshot::channel();
        self.asked.lock().insert(number, asker);
        self.watching.ask(number, shown);
        let position = answer.await.ok().flatten();
        let position = position.ok_or_else(|| SourceError("no active answers".to_owned()))?;
        Ok(Position {
            epoch: position.epoch,
            lsn: position.durable,
            is_proven: true,
            // An agent of release 0.1 does not tell.
            shown: position.shown.unwrap_or(position.durable),
        })
    }
}
