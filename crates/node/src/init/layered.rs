//! A database in a volume that is laid over an image of another one.
//!
//! ```text
//!   the image's data files ──▶ the volume's first seal (they stay where they are)
//!   everything else        ──▶ copied through the mount: configuration, log, control file
//!   a server of its own    ──▶ recovers, begins a timeline, runs the masks, is stopped
//!   the last seal, and the cluster's facts, as after `initdb`
//! ```
//!
//! Invariant: nobody but the server here has a session before the masks have run, and nothing counts until the cluster's facts are
//! written last.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dax::ids::FileId;
use dax::storage::{Storage, VolumeSettings};
use pgserver::{Postgres, StartOptions, StopMode};
use volume::layered::format_over;
use volume::lsn::Lsn;
use volume::seal::Base;
use volume::view::View;

use super::import::read_control;
use super::{
    Created, SuperuserPassword, conclude, copy_in, mounted, open, read_text, replace_text,
};
use crate::agent::context::{Host, connect};
use crate::agent::error::{AgentError, Result};
use crate::agent::prepare;
use crate::config::Config;
use coordination::records::{Filling, Record};
use coordination::room::unless_full;
use coordination::tier::{self, create_volume};

/// The file that a server takes its settings from, besides its configuration.
const AUTO_SETTINGS: &str = "postgresql.auto.conf";
const STOP_WITHIN: Duration = Duration::from_secs(600);

/// Everything that the new database is made of.
#[derive(Clone)]
pub struct Layered {
    /// How the volume is laid out, and what it is laid over.
    pub settings: VolumeSettings,
    /// The image.
    pub base: Base,
    /// Data files of the image that belong to the database.
    pub files: BTreeSet<FileId>,
    /// A directory with everything else. A server that is started on both recovers, and begins a timeline.
    pub rest: PathBuf,
    /// The line of its automatic settings from which on they are about recovery,
    pub recovery_settings: &'static str,
    /// and what stands there afterwards.
    pub settings_after: &'static str,
    /// Files for `psql`, before anybody else can connect; it begins in the database `postgres`.
    pub masks: Vec<PathBuf>,
    /// How long recovery may take.
    pub within: Duration,
    /// Recovery must not end before this.
    pub reach: Lsn,
    /// The image in a repository, if it is not in the zones yet.
    pub filling: Option<Filling>,
}

/// Durations of the parts, and where recovery ended.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Took {
    /// Making the volume, and copying what is not of the image.
    pub copy_ms: u64,
    /// Position of the log at which recovery ended.
    #[serde(skip)]
    pub end: Lsn,
    /// Recovery, until the server accepted sessions and had begun its timeline.
    pub recovery_ms: u64,
    /// Masks.
    pub mask_ms: u64,
    /// The last checkpoint, and the seal.
    pub seal_ms: u64,
}

/// Makes the volume and the database in it.
///
/// # Errors
/// Those of [`run`](super::run); recovery fails or does not end in time; a mask fails. Nothing counts then.
pub async fn over(config: &Config, layered: &Layered) -> Result<(Created, Took)> {
    let host = Host::check(config)?;
    let _only = prepare(config, &host)?;
    let began = Instant::now();
    create_volume(&config.cluster, &layered.settings).await?;
    if let Some(filling) = &layered.filling {
        let storage = tier::connect(&config.cluster, config.cluster.name.as_str()).await?;
        filling.store(storage.as_ref()).await?;
    }
    let storage = connect(config).await?;
    let filling = fill(config, &host, layered, &storage, began);
    unless_full(&storage, Box::pin(filling)).await
}

async fn fill(
    config: &Config,
    host: &Host,
    layered: &Layered,
    storage: &Arc<dyn Storage>,
    began: Instant,
) -> Result<(Created, Took)> {
    storage.own_epoch(&config.cluster.name).await?;
    format_over(storage, &layered.base, &layered.files).await?;
    let segment_size = read_control(&layered.rest)?.segment_size;
    let view = open(config, host, storage, segment_size).await?;
    let mount = mounted(config, &view)?;
    let data = mount.path().to_owned();
    copy_in(host, &layered.rest, &data).await?;
    let copy_ms = elapsed_ms(began);

    let began = Instant::now();
    let server = start(config, host, &data).await?;
    let session = server.wait_ready(layered.within).await?;
    session.wait_promoted(layered.within).await?;
    let reached = session.replayed().await?.unwrap_or_default();
    drop(session);
    let recovery_ms = elapsed_ms(began);

    let began = Instant::now();
    let masked = match reached >= layered.reach {
        true => mask(config, host, &layered.masks).await,
        false => Err(AgentError::Refused(format!(
            "recovery ended at {reached}, before {}",
            layered.reach
        ))),
    };
    let mask_ms = elapsed_ms(began);

    let began = Instant::now();
    server.stop(StopMode::Fast, STOP_WITHIN).await?;
    masked?;
    forget_recovery(&data, layered).await?;
    view.sync_all().await?;
    mount.unmount()?;
    let imported = SuperuserPassword::Imported;
    let created = conclude(config, host, storage, &view, imported).await?;
    let took = Took {
        copy_ms,
        end: reached,
        recovery_ms,
        mask_ms,
        seal_ms: elapsed_ms(began),
    };
    Ok((created, took))
}

fn elapsed_ms(began: Instant) -> u64 {
    began.elapsed().as_millis() as u64
}

/// Starts a server that nobody else can reach: its socket is in a directory of the agent's.
async fn start(config: &Config, host: &Host, data: &Path) -> Result<Postgres> {
    let hba = config.paths.run().join("branch_hba.conf");
    let written = std::fs::write(&hba, "local all all trust\n");
    written
        .map_err(|error| AgentError::system(format!("cannot write {}", hba.display()), error))?;
    let settings = [
        ("hba_file", hba.display().to_string()),
        ("ssl", "off".to_owned()),
        ("archive_mode", "off".to_owned()),
        ("archive_command", String::new()),
        ("synchronous_standby_names", String::new()),
        ("max_logical_replication_workers", "0".to_owned()),
    ];
    let options = StartOptions {
        data: data.to_owned(),
        run: config.paths.run(),
        log: config.paths.log(),
        port: config.postgres.port,
        listen_addresses: String::new(),
        superuser: config.postgres.superuser.clone(),
        settings: settings
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        run_as: host.run_as.clone(),
    };
    Ok(Postgres::start(&host.installation, options).await?)
}

async fn mask(config: &Config, host: &Host, masks: &[PathBuf]) -> Result<()> {
    for mask in masks {
        let mut psql = tokio::process::Command::new(host.installation.bin().join("psql"));
        psql.args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1"])
            .args(["--no-password", "--dbname", "postgres", "--host"])
            .arg(config.paths.run())
            .args(["--port", &config.postgres.port.to_string()])
            .args(["--username", &config.postgres.superuser, "--file"])
            .arg(mask)
            .env_remove("PGOPTIONS")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let ran = psql.output().await;
        let ran = ran.map_err(|error| AgentError::system("cannot run psql".to_owned(), error))?;
        if !ran.status.success() {
            let said = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
            let mask = mask.display();
            return Err(AgentError::Refused(format!("{mask} fails: {said}")));
        }
    }
    Ok(())
}

/// Takes the settings of recovery away.
async fn forget_recovery(data: &Path, layered: &Layered) -> Result<()> {
    let place = data.join(AUTO_SETTINGS);
    let text = read_text(&place).await?;
    let kept = text.split(layered.recovery_settings).next();
    let kept = kept.unwrap_or_default().trim_end();
    replace_text(&place, format!("{kept}\n{}", layered.settings_after)).await
}
