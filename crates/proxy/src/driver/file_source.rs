//! A cluster that a file tells of: for a PostgreSQL with streaming standbys that is not run by Understudy.
//!
//! Whoever promotes a standby writes the file: the epoch must grow, and the horizon must be taken on the
//! standby after its replay has ended and before it is promoted. Nothing proves here that an active is still
//! active; the file's word counts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dax::ids::Epoch;
use serde::Deserialize;
use volume::lsn::Lsn;

use crate::config::Config;
use crate::core::outcome::Horizon;
use crate::core::topology::{News, ServerRun, Standby};
use crate::core::version::parse_lsn;

use super::catalog::{OwnLogin, OwnSession};
use super::cluster::Cluster;
use super::dial::Dialer;
use super::login::{REPLAYED, read_replayed};
use super::source::{Position, Source, SourceError};

/// How often the file, and the standbys, are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A standby that has not answered by then is asked again later; what is known of the others must not wait for it.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Number of the active's term of office. It grows with each takeover.
    epoch: u32,
    /// Address of the active.
    active: String,
    /// A planned switchover is under way: no transaction begins.
    #[serde(default)]
    held: bool,
    /// Takeovers so far, by which commits in doubt are decided.
    #[serde(default)]
    takeovers: Vec<Takeover>,
    /// Standbys that may serve reads.
    #[serde(default)]
    standbys: Vec<Named>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Takeover {
    /// Epoch that began with the takeover.
    epoch: u32,
    /// First transaction id that no transaction before the takeover can have: `pg_snapshot_xmax(pg_current_snapshot())` on the
    /// standby, after its replay ended and before it was promoted.
    horizon: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    /// Name of the standby.
    name: String,
    /// Address of the standby.
    address: String,
    /// Marks a spare, which gets the share `reads.spare` of the reads.
    #[serde(default)]
    spare: bool,
}

/// Tells what a file tells.
pub struct FileSource {
    path: PathBuf,
    login: OwnLogin,
    active: OwnSession,
    last: parking_lot::Mutex<Option<File>>,
}

impl FileSource {
    /// Watches the file at `path`; asks servers as the configuration says.
    ///
    /// # Errors
    /// If the authorities of the servers' certificates cannot be read.
    pub fn new(path: PathBuf, config: &Config) -> Result<FileSource, dax::error::Error> {
        let dialer = Dialer::new(&config.server_tls)?;
        let login = OwnLogin::new(config, dialer);
        Ok(FileSource {
            path,
            active: OwnSession::new(login.clone()),
            login,
            last: parking_lot::Mutex::new(None),
        })
    }

    fn read(&self) -> Option<File> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        match toml::from_str(&text) {
            Ok(file) => Some(file),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "invalid cluster_file");
                None
            }
        }
    }

    fn tell(&self, file: &File, cluster: &Cluster) {
        let takeovers = file.takeovers.iter();
        let horizons =
            takeovers.map(|takeover| (Epoch(takeover.epoch), takeover.horizon.map(Horizon)));
        cluster.hear(News::ActiveIs {
            epoch: Epoch(file.epoch),
            address: file.active.as_str().into(),
            // The file does not know of runs.
            run: None,
            horizons: horizons.collect(),
        });
        cluster.hear(if file.held { News::Hold } else { News::Resume });
    }

    async fn ask(&self, file: &File) -> Result<Lsn, SourceError> {
        let client = self.active.on(&file.active.as_str().into()).await;
        let client = client.map_err(|error| SourceError(error.to_string()))?;
        lsn(
            &client,
            "SELECT pg_catalog.pg_current_wal_insert_lsn()::text",
        )
        .await
    }
}

async fn lsn(client: &tokio_postgres::Client, text: &str) -> Result<Lsn, SourceError> {
    let row = client.query_one(text, &[]).await;
    let row = row.map_err(|error| SourceError(error.to_string()))?;
    let text: Option<String> = row.get(0);
    let lsn = text.as_deref().and_then(parse_lsn);
    lsn.ok_or_else(|| SourceError("no position".to_owned()))
}

/// How far a standby has replayed, and which run of it says so.
async fn replayed(client: &tokio_postgres::Client) -> Result<(Lsn, ServerRun), SourceError> {
    let row = client.query_one(REPLAYED, &[]).await;
    let row = row.map_err(|error| SourceError(error.to_string()))?;
    read_replayed(row.get(0)).ok_or_else(|| SourceError("no position".to_owned()))
}

/// A standby as it is known, and the session that it is asked by.
struct Look {
    named: Named,
    session: Option<tokio_postgres::Client>,
    last: Option<Standby>,
}

impl Look {
    fn new(named: Named) -> Look {
        Look {
            named,
            session: None,
            last: None,
        }
    }

    /// How the standby is; as it was, if it keeps still.
    async fn again(&mut self, login: &OwnLogin) -> Option<Standby> {
        if let Ok(found) = tokio::time::timeout(ANSWERS_WITHIN, self.ask(login)).await {
            self.last = found;
        }
        self.last.clone()
    }

    async fn ask(&mut self, login: &OwnLogin) -> Option<Standby> {
        let is_closed = |session: &tokio_postgres::Client| session.is_closed();
        if self.session.as_ref().is_none_or(is_closed) {
            self.session = None;
            self.session = login.to_server(&self.named.address).await.ok();
        }
        let (replayed, run) = replayed(self.session.as_ref()?).await.ok()?;
        Some(Standby {
            name: self.named.name.as_str().into(),
            address: self.named.address.as_str().into(),
            replayed,
            run: Some(run),
            is_spare: self.named.spare,
        })
    }
}

#[async_trait]
impl Source for FileSource {
    async fn run(self: Arc<Self>, cluster: Arc<Cluster>) {
        let mut looks: Vec<Look> = Vec::new();
        loop {
            if let Some(file) = self.read() {
                let is_news = self.last.lock().as_ref() != Some(&file);
                if is_news {
                    self.tell(&file, &cluster);
                    looks = file.standbys.iter().cloned().map(Look::new).collect();
                    *self.last.lock() = Some(file);
                }
            }
            let found = looks.iter_mut().map(|look| look.again(&self.login));
            let found = futures_util::future::join_all(found).await;
            if !looks.is_empty() {
                cluster.hear(News::Standbys(found.into_iter().flatten().collect()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn position(&self, _: bool) -> Result<Position, SourceError> {
        let file = self.last.lock().clone();
        let file = file.ok_or_else(|| SourceError("the file was not read yet".to_owned()))?;
        let lsn = self.ask(&file).await?;
        Ok(Position {
            epoch: Epoch(file.epoch),
            lsn,
            is_proven: true,
            // Nobody tells.
            shown: lsn,
        })
    }
}
