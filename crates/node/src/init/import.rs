//! Looking at an existing, stopped data directory that is to be brought in.

use std::fs;
use std::io;
use std::path::Path;

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
