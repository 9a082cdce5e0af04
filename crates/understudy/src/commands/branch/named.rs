//! A branch by its name: its record, the volume that it is in, and the name that its image is claimed by.

use std::fs::{File, Permissions, TryLockError};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use coordination::config::ClusterConfig;
use coordination::records::{ActiveState, Branch, Heartbeat, Moved, Record, unix_ms};
use coordination::tier;
use dax::credentials::VolumeKey;
use dax::error::ErrorKind;
use dax::ids::{NodeName, VolumeName};
use dax::storage::Storage;
use node::config::Paths;

use super::config::key_of;
use crate::commands::registry::{Registry, in_time};
use crate::exit::{Code, Failure};

/// Prefix of directories of branches that are made in the place of another. Short: a server's socket in it has a path of at most 107 bytes.
const SCRATCH: &str = ".branch-";

/// The branch with this name.
pub(super) async fn find(storage: &Arc<dyn Storage>, name: &str) -> anyhow::Result<Option<Branch>> {
    let record = Branch::record_name(name);
    in_time(async { Ok(Branch::load_named(storage.as_ref(), &record).await?) }).await
}

/// Name by which the image of a branch is claimed while the branch is made.
pub(super) fn claimant(name: &str) -> anyhow::Result<NodeName> {
    Ok(NodeName::new(format!("branch-{name}"))?)
}

/// The way to another volume of the database's, in the same zones.
pub(super) fn in_volume(
    cluster: &ClusterConfig,
    volume: &VolumeName,
    secret: Option<&Path>,
) -> anyhow::Result<ClusterConfig> {
    let key = match &cluster.key {
        None => None,
        Some(file) if *volume == cluster.volume => Some(VolumeKey::load(file)?),
        Some(_) => Some(key_of(volume, secret)?),
    };
    let moved = Moved {
        number: cluster.moves() + 1,
        volume: volume.clone(),
        key,
        unix_ms: unix_ms(),
    };
    Ok(cluster.moved_to(Some(moved)))
}

/// A handle to the volume that the image of a branch is of.
pub(super) async fn parent(
    registry: &Registry,
    branch: &Branch,
    secret: Option<&Path>,
) -> anyhow::Result<Arc<dyn Storage>> {
    let cluster = registry.config.cluster();
    let parent = branch.parent.as_ref().unwrap_or(&cluster.volume);
    if parent == cluster.stored_in() {
        return Ok(Arc::clone(&registry.storage));
    }
    let there = in_volume(cluster, parent, secret)?;
    in_time(async { Ok(tier::connect(&there, "command").await?) }).await
}

/// An interrupted command leaves something that has a name: says how that is removed.
pub(super) fn drop_advice(name: &str) -> Code {
    eprintln!(
        "the branch {name} is not complete: understudy branch drop {name} removes what was made"
    );
    Code::Interrupted
}

/// True if an error of the zones is of this kind.
pub(super) fn is_of_kind(error: &anyhow::Error, kind: ErrorKind) -> bool {
    let error = error.downcast_ref::<dax::Error>();
    error.is_some_and(|error| error.kind() == kind)
}

/// The refusal of a name that no branch has.
pub(super) fn no_branch(name: &str) -> anyhow::Error {
    let said = format!("there is no branch {name}");
    Failure::new(Code::Refused, said)
        .advise("understudy branch list shows them.")
        .into()
}

/// The last beat in a branch that nobody serves.
///
/// # Errors
/// Refused if somebody does, or died without a word.
pub(super) async fn is_stopped(target: &Arc<dyn Storage>, name: &str) -> anyhow::Result<Heartbeat> {
    let beat = Heartbeat::load(target.as_ref()).await?;
    let beat = beat.ok_or_else(|| {
        let said = format!("the branch {name} holds no database");
        Failure::new(Code::Refused, said)
    })?;
    // Nobody serves a volume that the database has left, whatever its last beat says.
    let was_left = Moved::load(target.as_ref()).await?.is_some();
    if was_left || matches!(beat.state, ActiveState::Released { .. }) {
        return Ok(beat);
    }
    let said = format!(
        "the branch {name} is served by {}, or was not stopped in order",
        beat.node
    );
    Err(Failure::new(Code::Refused, said)
        .advise("Stop its nodes first. If they were killed, start one again and stop it.")
        .into())
}

/// A directory for a branch that is made in the place of another: nobody else's, so that a second command that is refused leaves the
/// first alone. It is locked while its command lives.
pub(super) struct Scratch {
    directory: tempfile::TempDir,
    _lock: File,
}

impl Scratch {
    /// Makes one in the node's directory, and removes those of commands that were killed. Where the path of that leaves no room for a
    /// server's socket, it is made where temporary files are.
    pub(super) fn create(registry: &Registry) -> anyhow::Result<Scratch> {
        let data = registry.postgres()?.paths.data();
        for left in std::fs::read_dir(data)?.flatten() {
            if left.file_name().to_string_lossy().starts_with(SCRATCH)
                && let Err(error) = remove_left(&left.path())
            {
                tracing::warn!(%error, "cannot remove {}", left.path().display());
            }
        }
        let place = roomy(data);
        let directory = tempfile::Builder::new()
            .prefix(SCRATCH)
            // PostgreSQL's user passes through.
            .permissions(Permissions::from_mode(0o711))
            .tempdir_in(&place)
            .with_context(|| format!("cannot make a directory in {}", place.display()))?;
        let lock = locked(directory.path())?;
        let lock = lock.context("another command removes the new directory: try again")?;
        Ok(Scratch {
            directory,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn remove(self) -> std::io::Result<()> {
        self.directory.close()
    }
}

/// Where there is room for the path of a server's socket: in this directory, or among temporary files.
fn roomy(data: &Path) -> PathBuf {
    let node = data.join(format!("{SCRATCH}123456/node"));
    match Paths::new(node).check_socket() {
        Ok(()) => data.to_owned(),
        Err(_) => std::env::temp_dir(),
    }
}

/// Removes the directory of a command that was killed, with the mount that it may have left there.
fn remove_left(directory: &Path) -> anyhow::Result<()> {
    let Some(_lock) = locked(directory)? else {
        return Ok(());
    };
    let node = directory.join("node");
    mount::detach_stale(&node.join("pgdata"))?;
    Ok(std::fs::remove_dir_all(directory)?)
}

/// The lock of a directory; `None` if somebody else has it.
fn locked(directory: &Path) -> std::io::Result<Option<File>> {
    let file = File::open(directory)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use dax::ids::Epoch;
    use dax::memory::MemoryCluster;
    use dax::storage::VolumeSettings;

    use super::*;

    #[test]
    fn a_directory_is_locked_as_long_as_its_command_lives() {
        let directory = tempfile::tempdir().unwrap();
        let lock = locked(directory.path()).unwrap();
        assert!(lock.is_some() && locked(directory.path()).unwrap().is_none());
        drop(lock);
        assert!(locked(directory.path()).unwrap().is_some());
    }

    /// A node in a directory with a long name runs, so its branches are made too: there is no "too long for the Unix socket" in the
    /// middle of a rewind.
    #[test]
    fn a_branch_is_made_where_its_server_can_have_a_socket() {
        let longest = "/".to_owned() + &"d".repeat(87);
        assert!(Paths::new(&longest).check_socket().is_ok());
        assert_eq!(roomy(Path::new(&longest)), std::env::temp_dir());
        let usual = Path::new("/var/lib/understudy/north");
        assert_eq!(roomy(usual), usual);
        assert!(
            Paths::new(roomy(Path::new(&longest)).join(".branch-123456/node"))
                .check_socket()
                .is_ok()
        );
    }

    #[tokio::test]
    async fn a_branch_that_somebody_serves_is_not_exchanged() {
        let branch: Arc<dyn Storage> = {
            let cluster = MemoryCluster::new(VolumeSettings::default());
            let owner = cluster.client();
            owner
                .own_epoch(&NodeName::new("north").unwrap())
                .await
                .unwrap();
            owner
        };
        let error = is_stopped(&branch, "test").await.unwrap_err();
        assert!(error.to_string().contains("no database"), "{error}");
        let beat = |state| Heartbeat {
            epoch: Epoch(1),
            counter: 3,
            node: NodeName::new("north").unwrap(),
            synced_lsn: volume::lsn::Lsn(8),
            journal_synced: 0,
            timeline: 1,
            starts: 0,
            configured: 0,
            interval_ms: 0,
            state,
        };
        for state in [
            ActiveState::Serving,
            ActiveState::TakingOver,
            ActiveState::PostgresDead,
        ] {
            beat(state).store(branch.as_ref()).await.unwrap();
            let error = is_stopped(&branch, "test").await.unwrap_err();
            assert!(error.to_string().contains("served by north"), "{error}");
        }
        let released = ActiveState::Released { to: None };
        beat(released).store(branch.as_ref()).await.unwrap();
        assert_eq!(is_stopped(&branch, "test").await.unwrap().counter, 3);
    }
}
