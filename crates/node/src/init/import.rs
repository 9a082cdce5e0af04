//! Bringing in an existing, stopped data directory.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::unistd::{Gid, Uid};
use pgdata::control::{ClusterState, ControlFile};
use pgdata::layout::{CONTROL_FILE, LOG};

use crate::agent::context::Host;
use crate::agent::error::{AgentError, Result};

/// Refuses a directory that cannot be brought in, before anything is made.
pub(super) fn check(from: &Path, host: &Host) -> Result<()> {
    let refuse = |why: String| Err(AgentError::Refused(format!("{}: {why}", from.display())));
    let control = read_control(from)?;
    if control.state != ClusterState::ShutDown {
        return refuse("was not shut down cleanly; start it once and stop it with \"fast\"".into());
    }
    if from.join("postmaster.pid").exists() {
        return refuse("a server runs on it; stop it first".into());
    }
    let version = fs::read_to_string(from.join("PG_VERSION")).map_err(|e| read_error(from, e))?;
    if let Ok(major) = version.trim().parse() {
        host.installation.require_major(major)?;
    }
    let is_link = |path: &Path| path.symlink_metadata().is_ok_and(|m| m.is_symlink());
    if is_link(&from.join(LOG)) {
        return refuse(format!(
            "{LOG} is a symbolic link; move the log into the directory"
        ));
    }
    let tablespaces = from.join("pg_tblspc");
    let mut entries = fs::read_dir(&tablespaces).map_err(|e| read_error(&tablespaces, e))?;
    if entries.next().is_some() {
        return refuse("has tablespaces outside of it, which a volume cannot hold".into());
    }
    Ok(())
}

/// The control file of a data directory.
pub(super) fn read_control(from: &Path) -> Result<ControlFile> {
    let place = from.join(CONTROL_FILE);
    let bytes = fs::read(&place).map_err(|e| read_error(&place, e))?;
    Ok(ControlFile::parse(&bytes)?)
}

fn read_error(place: &Path, source: io::Error) -> AgentError {
    AgentError::system(format!("cannot read {}", place.display()), source)
}

/// Removes everything below a directory (what an interrupted `init` left).
pub(super) fn empty(directory: &Path) -> Result<()> {
    let failed = |e| AgentError::system(format!("cannot empty {}", directory.display()), e);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Private directories are made for every life, and are empty.
        let removed = match entry.file_type().map_err(failed)?.is_dir() {
            true => fs::remove_dir_all(entry.path()),
            false => fs::remove_file(entry.path()),
        };
        removed.map_err(failed)?;
    }
    Ok(())
}

/// Copies a tree of files and directories, with permissions, for `owner`.
pub(super) fn copy(from: &Path, to: &Path, owner: Option<(Uid, Gid)>) -> Result<()> {
    let entries = fs::read_dir(from).map_err(|e| read_error(from, e))?;
    for entry in entries {
        let entry = entry.map_err(|e| read_error(from, e))?;
        let target = to.join(entry.file_name());
        copy_one(&entry, &target, owner).map_err(|e| {
            AgentError::system(format!("cannot copy {}", entry.path().display()), e)
        })?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            copy(&entry.path(), &target, owner)?;
        }
    }
    Ok(())
}

fn copy_one(entry: &fs::DirEntry, target: &Path, owner: Option<(Uid, Gid)>) -> io::Result<()> {
    let found = entry.metadata()?;
    if found.is_dir() {
        match fs::create_dir(target) {
            // Private directories exist already.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    } else {
        fs::copy(entry.path(), target)?;
    }
    fs::set_permissions(
        target,
        fs::Permissions::from_mode(found.permissions().mode() & 0o7777),
    )?;
    if let Some((uid, gid)) = owner {
        nix::unistd::chown(target, Some(uid), Some(gid))?;
    }
    Ok(())
}
