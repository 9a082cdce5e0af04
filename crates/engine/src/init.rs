//! Creating a database of any kind: a volume, what the server's own program makes in it, and a seal.
//!
//! Nothing counts until the record of what was made is written last: an `init` that was interrupted is simply run
//! again.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::SystemTime;

use coordination::records::{Cluster, EngineFacts, Record, raise_forms, unix_ms};
use coordination::room::unless_full;
use coordination::tier;
use dax::forms::Forms;
use dax::ids::VolumeName;
use dax::storage::{Storage, VolumeSettings};
use mount::{Mount, MountOptions, child_io};
use nix::unistd::{Uid, User};
use supervise::{RunAs, spawn};
use tokio::io::AsyncWriteExt;
use tokio::runtime::Handle;
use volume::active::{ActiveView, Options};
use volume::latest::format;
use volume::view::View;

use crate::agent::opened::{open_view, seal};
use crate::agent::{ownership, prepare_directory};
use crate::config::{Config, Kind};
use crate::error::{EngineError, Result};
use crate::layout::HostedLayout;
use crate::recipe::Recipe;
use crate::server;

/// What `init` is asked to make.
#[derive(Debug, Clone, Default)]
pub struct InitOptions {
    /// How the volume is laid out; the size of its blocks is the server's page size by default.
    pub settings: VolumeSettings,
    /// The password of the administrator, for connections over the network.
    pub password: Option<String>,
}

/// What was made.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Created {
    /// Volume that holds the new database.
    pub volume: VolumeName,
    /// What it holds.
    pub engine: EngineFacts,
    /// Bytes of files in the volume.
    pub bytes: u64,
    /// The Unix socket of the server on its node, if it has one there.
    pub socket: Option<PathBuf>,
    /// The account of the system that may administrate it without a password.
    pub owner: String,
    /// True if the administrator has a password.
    pub password: bool,
}

/// Creates a database.
///
/// # Errors
/// What is wrong with the configuration, the programs or the zones; that the volume holds a database already.
pub async fn run(config: &Config, options: InitOptions) -> Result<Created> {
    let run_as = RunAs::resolve(&config.engine.run_as)?;
    let _only = prepare_directory(config, run_as.as_ref())?;
    mount::detach_stale(&config.paths.mount())?;
    let owner = administrator()?;
    let mut settings = options.settings.clone();
    // Whether the programs are there, and the settings make sense, is known before a volume is made.
    let planned = config.recipe(BLOCK_BYTES_MAX, &owner)?;
    let version = server::version(&planned).await?;
    settings.block_size_bytes = settings
        .block_size_bytes
        .max(planned.page_bytes.min(BLOCK_BYTES_MAX));
    tier::create_volume(&config.cluster, &settings).await?;
    let storage = tier::connect(&config.cluster, config.cluster.name.as_str()).await?;
    let recipe = config.recipe(storage.settings().block_size_bytes, &owner)?;
    refuse_occupied(config, storage.as_ref()).await?;
    let filling = fill(config, &recipe, &options, run_as, &storage);
    let bytes = unless_full(&storage, Box::pin(filling)).await?;
    let facts = EngineFacts {
        engine: recipe.name.clone(),
        page_bytes: recipe.page_bytes,
        created_unix_ms: unix_ms(),
        version: version.map(|version| version.to_string()),
    };
    facts.store(storage.as_ref()).await?;
    raise_forms(storage.as_ref(), Forms::NEWEST).await?;
    storage.release().await?;
    Ok(Created {
        volume: config.cluster.volume.clone(),
        engine: facts,
        bytes,
        socket: (config.engine.kind == Kind::MariaDb)
            .then(|| crate::recipe::mariadb::socket(&config.places())),
        owner,
        password: options.password.is_some(),
    })
}

/// Makes the database in the volume, and seals it. Returns the bytes of its files.
async fn fill(
    config: &Config,
    recipe: &Recipe,
    options: &InitOptions,
    run_as: Option<RunAs>,
    storage: &Arc<dyn Storage>,
) -> Result<u64> {
    storage.own_epoch(&config.cluster.name).await?;
    let root = ownership(run_as.as_ref());
    match format(storage, root, SystemTime::now().into()).await {
        // An earlier init did not finish.
        Ok(_) | Err(volume::error::Error::Exists) => {}
        Err(e) => return Err(e.into()),
    }
    let layout = HostedLayout::new(recipe.private.clone());
    let private = config.paths.private();
    let view = open_view(
        Arc::clone(storage),
        layout,
        &private,
        root,
        Options::default(),
    )
    .await?;
    populate(config, recipe, options, run_as, &view).await?;
    view.sync_all().await?;
    seal(&view).await?;
    Ok(view.namespace().inodes().map(|(_, inode)| inode.size).sum())
}

/// The largest block that is chosen by itself.
const BLOCK_BYTES_MAX: u32 = 64 << 10;

async fn refuse_occupied(config: &Config, storage: &dyn Storage) -> Result<()> {
    let postgres = Cluster::load(storage).await?.is_some();
    if postgres || EngineFacts::load(storage).await?.is_some() {
        return Err(EngineError::Refused(format!(
            "the volume {} holds a database already; choose another volume name",
            config.cluster.volume
        )));
    }
    Ok(())
}

/// The account that runs this process.
fn administrator() -> Result<String> {
    let uid = Uid::effective();
    let user = User::from_uid(uid)
        .map_err(|e| EngineError::system("cannot look up this user", e.into()))?;
    let user = user
        .ok_or_else(|| EngineError::Machine(format!("there is no user with the number {uid}")))?;
    Ok(user.name)
}

/// Puts a database into the mounted volume.
async fn populate(
    config: &Config,
    recipe: &Recipe,
    options: &InitOptions,
    run_as: Option<RunAs>,
    view: &ActiveView,
) -> Result<()> {
    let shown = Arc::new(view.clone());
    let mount = Mount::start(
        shown,
        MountOptions::new(config.paths.mount()),
        Handle::current(),
    )?;
    let made = make(config, recipe, options, run_as, mount.path()).await;
    let unmounting = tokio::task::spawn_blocking(move || mount.unmount());
    unmounting.await.expect("unmounting does not panic")?;
    made
}

async fn make(
    config: &Config,
    recipe: &Recipe,
    options: &InitOptions,
    run_as: Option<RunAs>,
    data: &Path,
) -> Result<()> {
    // What an interrupted init left.
    let emptied = data.to_owned();
    let emptying = tokio::task::spawn_blocking(move || child_io::empty(&emptied));
    let emptied = emptying.await.expect("emptying a directory does not panic");
    emptied.map_err(|e| EngineError::system(format!("cannot empty {}", data.display()), e))?;
    server::empty_tmp(&config.paths.tmp(), run_as.as_ref())?;
    if let Some(init) = &recipe.init {
        server::run(init, run_as.clone()).await?;
    }
    match &options.password {
        Some(password) if config.engine.kind == Kind::MariaDb => {
            set_password(recipe, password, run_as).await
        }
        Some(_) => Err(EngineError::Refused(
            "a password can be set for MariaDB only; set it with the server's own tools".to_owned(),
        )),
        None => Ok(()),
    }
}

/// Gives MariaDB's root a password besides the socket, and lets it connect from other machines. The statement goes
/// to the server's standard input, where no list of processes shows it.
async fn set_password(recipe: &Recipe, password: &str, run_as: Option<RunAs>) -> Result<()> {
    let quoted = password.replace('\\', "\\\\").replace('\'', "\\'");
    let statements = format!(
        "FLUSH PRIVILEGES;\nCREATE USER root@'%' IDENTIFIED BY '{quoted}';\nGRANT ALL ON *.* TO root@'%' WITH GRANT \
         OPTION;\n"
    );
    let mut command = spawn::command(&recipe.server.program, "MYSQL");
    command.args(&recipe.server.arguments).arg("--bootstrap");
    spawn::prepare(&mut command, run_as, None);
    let failed = |e| EngineError::system("cannot run the server to set the password", e);
    let mut child = tokio::process::Command::from(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let mut input = child.stdin.take().expect("its standard input is a pipe");
    input
        .write_all(statements.as_bytes())
        .await
        .map_err(failed)?;
    drop(input);
    let output = child.wait_with_output().await.map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    Err(EngineError::Program {
        program: recipe.server.program.display().to_string(),
        output: String::from_utf8_lossy(&output.stderr).replace(password, "*****"),
    })
}
