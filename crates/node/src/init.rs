//! Creating a cluster: a volume, a database in it, and a seal that nothing follows.
//!
//! The database is copied from a stopped data directory: an existing one, or what `initdb` made in the node's own.
//! Nothing counts until the record of the cluster's facts is written last: an `init` that
//! was interrupted is simply run again.

mod import;
mod layered;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use coordination::records::{
    ActiveState, Cause, Cluster, Decider, EngineFacts, Heartbeat, HistoryEntry, Lsns, Record,
    append_history, raise_forms, unix_ms,
};
use coordination::room::unless_full;
use coordination::tier::create_volume;
use dax::forms::Forms;
use dax::storage::{Storage, VolumeSettings};
use mount::child_io;
use pgdata::control::{CONTROL_FILE_BYTES, ControlFile};
use pgdata::layout::{CONTROL_FILE, LOG, PostgresLayout};
use pgdata::sealer::Sealer;
use pgdata::segment::{LOG_PAGE_BYTES, SegmentName, SegmentSize};
use pgdata::settings::{Configuration, DEFAULTS, check, with_node_file, without_controlled};
use pgdata::wal::{Follower, Start, Stop};
use pgserver::{InitdbOptions, Password};
use tokio::runtime::Handle;
use volume::active::{ActiveView, NoObserver, Options};
use volume::error::Error;
use volume::latest::{Latest, format};
use volume::lsn::Lsn;
use volume::private::PrivateDir;
use volume::view::{Ino, View};

pub use self::layered::{Layered, Took, over};
use crate::agent::context::{Host, connect, ownership};
use crate::agent::error::{AgentError, Result};
use crate::agent::prepare;
use crate::config::Config;

/// `initdb`'s option for the size of a log segment, in MiB.
const SEGMENT_OPTION: &str = "--wal-segsize";
/// What `init` is asked to make.
#[derive(Debug, Clone, Default)]
pub struct InitOptions {
    /// How the volume is laid out.
    pub settings: VolumeSettings,
    /// A stopped cluster's data directory to bring in, instead of a new database.
    pub import: Option<PathBuf>,
    /// The superuser's password, if a new database gets one.
    pub password: Option<Password>,
    /// Further arguments for `initdb`.
    pub initdb: Vec<String>,
}

/// What was made.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Created {
    /// Volume that holds the new database.
    pub volume: dax::ids::VolumeName,
    /// PostgreSQL's name of the cluster.
    pub system_identifier: u64,
    /// PostgreSQL's major version.
    pub postgres_major: u32,
    /// Bytes of files in the volume.
    pub bytes: u64,
    /// The role that may do everything.
    pub superuser: String,
    /// True if that role can log in over the network.
    pub superuser_password: SuperuserPassword,
}

/// What is known of the superuser's password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SuperuserPassword {
    /// It has the one that was given.
    Set,
    /// It has none: connections over TCP are refused.
    None,
    /// The database was imported: as it was there.
    Imported,
}

/// Creates a cluster.
///
/// # Errors
/// What is wrong with the configuration, the programs, the imported directory or the zones; that the
/// volume holds a database already.
pub async fn run(config: &Config, options: InitOptions) -> Result<Created> {
    let host = Host::check(config)?;
    if let Some(from) = &options.import {
        import::check(from, &host)?;
    }
    let _only = prepare(config, &host)?;
    create_volume(&config.cluster, &options.settings).await?;
    let storage = connect(config).await?;
    if Cluster::load(storage.as_ref()).await?.is_some() {
        return Err(AgentError::Initialised(config.cluster.volume.clone()));
    }
    if let Some(hosted) = EngineFacts::load(storage.as_ref()).await? {
        return Err(AgentError::Refused(format!(
            "the volume {} holds a database of {} already; choose another volume name",
            config.cluster.volume, hosted.engine
        )));
    }
    let filling = fill(config, &host, &options, Arc::clone(&storage));
    unless_full(&storage, Box::pin(filling)).await
}

async fn fill(
    config: &Config,
    host: &Host,
    options: &InitOptions,
    storage: Arc<dyn Storage>,
) -> Result<Created> {
    storage.own_epoch(&config.cluster.name).await?;
    let root = ownership(host.run_as.as_ref());
    match format(&storage, root, SystemTime::now().into()).await {
        // An earlier init did not finish.
        Ok(_) | Err(Error::Exists) => {}
        Err(e) => return Err(e.into()),
    }
    let segment_size = match &options.import {
        Some(from) => import::read_control(from)?.segment_size,
        None => segment_size(&options.initdb)?,
    };
    let view = open(config, host, &storage, segment_size).await?;
    populate(config, host, options, &view).await?;
    let password = match (&options.import, &options.password) {
        (Some(_), _) => SuperuserPassword::Imported,
        (None, Some(_)) => SuperuserPassword::Set,
        (None, None) => SuperuserPassword::None,
    };
    conclude(config, host, &storage, &view, password).await
}

/// Opens the volume for writing.
async fn open(
    config: &Config,
    host: &Host,
    storage: &Arc<dyn Storage>,
    segment_size: SegmentSize,
) -> Result<ActiveView> {
    let latest = Latest::recover(storage.clone(), SystemTime::now().into()).await?;
    let layout = Arc::new(PostgresLayout::new(segment_size));
    let root = ownership(host.run_as.as_ref());
    let place = config.paths.private();
    let private = Arc::new(PrivateDir::prepare(&place, layout.as_ref(), false, root)?);
    let observer = Arc::new(NoObserver);
    Ok(ActiveView::open(latest, layout, private, observer, None, Options::default()).await?)
}

/// Seals the database, which was shut down, and writes the cluster's facts.
async fn conclude(
    config: &Config,
    host: &Host,
    storage: &Arc<dyn Storage>,
    view: &ActiveView,
    superuser_password: SuperuserPassword,
) -> Result<Created> {
    let control = seal(view).await?;
    let bytes = view.namespace().inodes().map(|(_, inode)| inode.size).sum();
    finish(config, host, storage, &control).await?;
    Ok(Created {
        volume: config.cluster.volume.clone(),
        system_identifier: control.system_identifier,
        postgres_major: host.installation.version().major,
        bytes,
        superuser: config.postgres.superuser.clone(),
        superuser_password,
    })
}

/// What `initdb` is told.
fn initdb_arguments(options: &InitOptions) -> Result<Vec<String>> {
    let size = segment_size(&options.initdb)?.bytes() >> 20;
    let ours = vec!["--no-sync".to_owned(), format!("{SEGMENT_OPTION}={size}")];
    Ok([ours, options.initdb.clone()].concat())
}

/// The size of a log segment: as the operator says, else small, because a promotion copies the last
/// segment block by block (PostgreSQL's `XLogFileCopy`) while clients wait.
fn segment_size(arguments: &[String]) -> Result<SegmentSize> {
    let told = arguments
        .iter()
        .enumerate()
        .rev()
        .find_map(
            |(at, argument)| match argument.strip_prefix(SEGMENT_OPTION)? {
                "" => arguments.get(at + 1).map(String::as_str),
                value => value.strip_prefix('='),
            },
        );
    let Some(told) = told else {
        return Ok(SegmentSize::SMALL);
    };
    let bytes = told.parse().ok().and_then(|mib: u32| mib.checked_shl(20));
    bytes.and_then(SegmentSize::new).ok_or_else(|| {
        let why = format!("{SEGMENT_OPTION} {told}: use a power of two from 1 to 1024 (MiB)");
        AgentError::Refused(why)
    })
}

/// Puts a database into the mounted volume.
async fn populate(
    config: &Config,
    host: &Host,
    options: &InitOptions,
    view: &ActiveView,
) -> Result<()> {
    let mount = mounted(config, view)?;
    let data = mount.path().to_owned();
    // What an interrupted init left.
    visit("empty", &data, child_io::empty).await?;
    match &options.import {
        Some(from) => copy_in(host, from, &data).await?,
        None => {
            let made = config.paths.initdb();
            initdb(config, host, options, &made).await?;
            copy_in(host, &made, &data).await?;
            gone(&made)?;
        }
    }
    add_defaults(&mount.path().join("postgresql.conf")).await?;
    view.sync_all().await?;
    mount.unmount()?;
    Ok(())
}

/// Makes a database beside the mount: `initdb` writes the same pages many times over.
async fn initdb(config: &Config, host: &Host, options: &InitOptions, data: &Path) -> Result<()> {
    gone(data)?;
    let refused = |e| AgentError::system(format!("cannot make {}", data.display()), e);
    config.paths.make_initdb(host.owner()).map_err(refused)?;
    let initdb = InitdbOptions {
        data: data.to_owned(),
        superuser: config.postgres.superuser.clone(),
        arguments: initdb_arguments(options)?,
        password: options.password.clone(),
        run_as: host.run_as.clone(),
    };
    Ok(host.installation.initdb(&initdb).await?)
}

/// Removes a database that is in the volume by now, or that an earlier init left.
fn gone(data: &Path) -> Result<()> {
    match std::fs::remove_dir_all(data) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            let what = format!("cannot remove {}", data.display());
            Err(AgentError::system(what, e))
        }
        _ => Ok(()),
    }
}

fn mounted(config: &Config, view: &ActiveView) -> Result<mount::Mount> {
    let shown = Arc::new(view.clone());
    let options = mount::MountOptions::new(config.paths.mount());
    Ok(mount::Mount::start(shown, options, Handle::current())?)
}

/// Has something done in the mount, by children: this process could not be killed while it waits for itself.
async fn visit<T: Send + 'static>(
    what: &str,
    place: &Path,
    work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let there = place.to_owned();
    let done = tokio::task::spawn_blocking(move || work(&there)).await;
    let done = done.expect("running a program does not panic");
    done.map_err(|e| AgentError::system(format!("cannot {what} {}", place.display()), e))
}

/// Copies a directory's contents into the mount, for the server's user.
async fn copy_in(host: &Host, from: &Path, data: &Path) -> Result<()> {
    let from = from.to_owned();
    let owner = host
        .owner()
        .map(|(user, group)| (user.as_raw(), group.as_raw()));
    let copy = move |to: &Path| child_io::copy_into(&from, to, owner);
    visit("copy the database to", data, copy).await
}

/// Reads a configuration file in the mount.
async fn read_text(place: &Path) -> Result<String> {
    let text = visit("read", place, child_io::read).await?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Replaces a configuration file in the mount.
async fn replace_text(place: &Path, text: String) -> Result<()> {
    let replace = move |place: &Path| {
        let partial = place.with_extension("conf.partial");
        child_io::replace(place, &partial, text.as_bytes())
    };
    visit("change", place, replace).await
}

async fn add_defaults(place: &Path) -> Result<()> {
    let text = read_text(place).await?;
    if let Err(refusals) = check(&Configuration::parse([text.as_str()])) {
        let reasons: Vec<String> = refusals.iter().map(ToString::to_string).collect();
        return Err(AgentError::Refused(reasons.join("; ")));
    }
    if text.contains(DEFAULTS) {
        return Ok(());
    }
    replace_text(
        place,
        with_node_file(&(without_controlled(&text) + DEFAULTS)),
    )
    .await
}

/// Seals what is there: a database that was shut down (N1).
async fn seal(view: &ActiveView) -> Result<ControlFile> {
    let bytes = read(view, CONTROL_FILE, 0, CONTROL_FILE_BYTES as u32).await?;
    let control = ControlFile::parse(&bytes)?;
    let end = end_of_checkpoint(view, &control).await?;
    let layout = Arc::new(PostgresLayout::new(control.segment_size));
    let sealer = Sealer::new(
        layout,
        end,
        control.timeline,
        None,
        control.blocks_per_segment,
        view.epoch(),
    );
    sealer.seal_shutdown(view, &bytes).await?;
    Ok(control)
}

/// The end of the shutdown checkpoint's record, which is the last one.
async fn end_of_checkpoint(view: &ActiveView, control: &ControlFile) -> Result<Lsn> {
    const PAGE: u64 = LOG_PAGE_BYTES as u64;
    let size = control.segment_size;
    let mut follower = Follower::new(size, Start::Record(control.checkpoint));
    let mut found = None;
    while let Stop::Missing(at) = follower.stop() {
        let page = Lsn(at.0 - at.0 % PAGE);
        let name = SegmentName::holding(control.timeline, page, size).file_name(size);
        let read = read(
            view,
            &format!("{LOG}/{name}"),
            size.offset(page),
            PAGE as u32,
        )
        .await;
        let bytes = match read {
            Err(AgentError::Volume(Error::NotFound)) => break,
            other => other?,
        };
        follower.feed(page, &bytes, &mut |record| {
            found.get_or_insert(record.end);
        });
        if follower.stop() == Stop::Missing(at) {
            break;
        }
    }
    let missing = || {
        let at = control.checkpoint;
        AgentError::Refused(format!("the log holds no checkpoint record at {at}"))
    };
    found.ok_or_else(missing)
}

async fn read(view: &ActiveView, path: &str, offset: u64, len: u32) -> Result<bytes::Bytes> {
    let file = view.namespace().resolve(path)?;
    Ok(view.read(Ino(file.0), offset, len).await?)
}

/// Writes what other nodes must find; the cluster's facts come last.
async fn finish(
    config: &Config,
    host: &Host,
    storage: &Arc<dyn Storage>,
    control: &ControlFile,
) -> Result<()> {
    let epoch = storage.epoch().unwrap_or_default();
    let beat = Heartbeat {
        epoch,
        counter: 1,
        node: config.cluster.name.clone(),
        synced_lsn: control.checkpoint,
        journal_synced: 0,
        timeline: control.timeline.0,
        starts: 0,
        configured: 0,
        interval_ms: 0,
        state: ActiveState::Released { to: None },
    };
    beat.store(storage.as_ref()).await?;
    let entry = HistoryEntry {
        number: 0,
        epoch,
        node: config.cluster.name.clone(),
        previous: None,
        cause: Cause::Created,
        decided_by: Decider::Operator,
        phases: Vec::new(),
        log_end: control.checkpoint,
        lsns: Lsns::default(),
        horizon: None,
        old_active: None,
        timeline: control.timeline.0,
        unix_ms: unix_ms(),
    };
    append_history(storage.as_ref(), entry).await?;
    let cluster = Cluster {
        system_identifier: control.system_identifier,
        postgres_major: host.installation.version().major,
        wal_segment_bytes: control.segment_size.bytes() as u32,
        page_bytes: control.block_size_bytes,
        data_checksums: control.data_checksum_version > 0,
        superuser: config.postgres.superuser.clone(),
        created_unix_ms: unix_ms(),
        libraries: Some(host.libraries.clone()),
    };
    cluster.store(storage.as_ref()).await?;
    raise_forms(storage.as_ref(), Forms::NEWEST).await?;
    // The first node need not wait for anything.
    Ok(storage.release().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_segments_are_small_unless_somebody_says_otherwise() {
        let size = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
            segment_size(&arguments).map(SegmentSize::bytes)
        };
        assert_eq!(size(&["--locale=C"]).unwrap(), 4 << 20);
        assert_eq!(size(&["--wal-segsize=64"]).unwrap(), 64 << 20);
        assert_eq!(size(&["--wal-segsize", "1", "-k"]).unwrap(), 1 << 20);
        for wrong in ["3", "0", "4096", "much", ""] {
            let error = size(&[&format!("--wal-segsize={wrong}")]).unwrap_err();
            assert!(error.to_string().contains("power of two"), "{error}");
        }
    }
}
