//! The active writes what the control record says of PostgreSQL's parameters where every node sees it:
//! into the managed part of the shared `postgresql.conf`.
//!
//! In front of that it writes what suits this node's distance from the zones, whenever that is something else
//! ([`group_commit`](super::group_commit)).
//!
//! The heartbeat repeats which version is written, once it is durable, so standbys reload when they
//! have followed the journal to it. A version that cannot be written is tried again, and the status
//! says so.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coordination::records::Control;
use mount::child_io;
use parking_lot::Mutex;
use pgdata::settings::{with_node_file, with_parameters, with_suitable};
use tokio::sync::watch;

use super::group_commit::Suitable;

const FILE: &str = "postgresql.conf";
/// A file of its own until it is whole.
const PARTIAL: &str = "postgresql.conf.understudy";
/// How long to wait before trying again.
const PAUSE: Duration = Duration::from_secs(5);

/// Status of the shared configuration.
#[derive(Clone, Default)]
pub(super) struct ConfigStatus {
    /// The version that is in the shared configuration.
    pub(super) version: Arc<AtomicU64>,
    /// Why a newer one is not.
    pub(super) trouble: Arc<Mutex<Option<String>>>,
}

/// Writes what is suitable, and each new version until it is dropped, and has PostgreSQL `reload` them; what fails is
/// tried again.
pub(super) async fn run(
    mut control: watch::Receiver<Control>,
    mount: PathBuf,
    reload: impl Fn() + Send,
    told: ConfigStatus,
    mut suitable: watch::Receiver<Suitable>,
) {
    // A standby that was promoted may not have read the last change.
    let mut unread = true;
    let mut written: Suitable = None;
    let mut includes = false;
    loop {
        // A database of an earlier version does not have the line.
        if !includes {
            let included = edit(&mount, with_node_file).await;
            includes = included.is_ok();
            if let Err(error) = included {
                tracing::warn!(%error, "postgresql.conf does not include this node's file yet");
            }
        }
        // The newest that is known; an earlier one that could not be written does not matter any more.
        let fitting = suitable.borrow_and_update().clone();
        let fits = fitting.is_none() || fitting == written;
        let fits = match fitting {
            Some(parameters) if !fits => match fit(&mount, &parameters).await {
                Ok(changed) => {
                    if changed || unread {
                        reload();
                        unread = false;
                    }
                    written = Some(parameters);
                    true
                }
                Err(error) => {
                    tracing::info!(%error, "commit_delay has not been adapted to the distance of the zones yet");
                    false
                }
            },
            _ => fits,
        };
        let wanted = control.borrow_and_update().clone();
        // Nothing was ever edited, or nothing is known yet.
        if wanted.version > told.version.load(Ordering::Acquire) {
            let parameters = wanted.parameters.clone();
            let change = move |text: &str| with_node_file(&with_parameters(text, &parameters));
            match edit(&mount, change).await {
                Ok(changed) => {
                    if changed {
                        tracing::info!(version = wanted.version, "PostgreSQL's parameters changed");
                    }
                    if changed || unread {
                        reload();
                        unread = false;
                    }
                    told.version.store(wanted.version, Ordering::Release);
                    *told.trouble.lock() = None;
                }
                Err(error) => {
                    tracing::warn!(%error, "PostgreSQL's parameters were not written");
                    *told.trouble.lock() = Some(error.to_string());
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            }
        }
        tokio::select! {
            changed = control.changed() => if changed.is_err() { return },
            // Nobody tells any more where nothing is to be adapted.
            Ok(()) = suitable.changed() => {}
            () = tokio::time::sleep(PAUSE), if !fits || !includes => {}
        }
    }
}

/// Writes what is suitable. Whether that changed anything.
async fn fit(directory: &Path, parameters: &BTreeMap<String, String>) -> io::Result<bool> {
    let parameters = parameters.clone();
    let change = move |text: &str| with_node_file(&with_suitable(text, &parameters));
    edit(directory, change).await
}

async fn edit(
    directory: &Path,
    change: impl FnOnce(&str) -> String + Send + 'static,
) -> io::Result<bool> {
    let directory = directory.to_owned();
    let written = tokio::task::spawn_blocking(move || write(&directory, change)).await;
    written.unwrap_or_else(|gone| Err(io::Error::other(gone)))
}

/// Changes the file in `directory`, which is this process's own mount, durably. Whether it did.
fn write(directory: &Path, change: impl FnOnce(&str) -> String) -> io::Result<bool> {
    let place = directory.join(FILE);
    let before = String::from_utf8(child_io::read(&place)?).map_err(io::Error::other)?;
    let text = change(&before);
    if text == before {
        return Ok(false);
    }
    child_io::replace(&place, &directory.join(PARTIAL), text.as_bytes())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn the_file_changes_only_if_it_must_and_stays_its_owners() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join(FILE);
        std::fs::write(&place, "port = 1\n").unwrap();
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o600)).unwrap();
        let wanted = BTreeMap::from([("work_mem".to_owned(), "8MB".to_owned())]);
        let set = |text: &str| with_parameters(text, &wanted);
        assert!(write(directory.path(), set).unwrap());
        assert!(!write(directory.path(), set).unwrap());
        let text = std::fs::read_to_string(&place).unwrap();
        assert!(text.starts_with("port = 1\n") && text.contains("work_mem = '8MB'"));
        assert_eq!(std::fs::metadata(&place).unwrap().mode() & 0o777, 0o600);
        let none = BTreeMap::new();
        assert!(write(directory.path(), |text| with_parameters(text, &none)).unwrap());
        assert_eq!(std::fs::read_to_string(&place).unwrap(), "port = 1\n");
        assert!(!directory.path().join(PARTIAL).exists());
    }

    /// Waits until the file has this delay in front, and PostgreSQL was asked to read it so often.
    async fn becomes(place: &Path, delay: Option<&str>, reloads: (&AtomicU64, u64)) {
        let says = || {
            let text = std::fs::read_to_string(place).unwrap_or_default();
            let is_so = match delay {
                Some(delay) => text.contains(&format!("commit_delay = '{delay}'")),
                None => !text.contains("commit_delay = '"),
            };
            is_so && reloads.0.load(Ordering::Relaxed) >= reloads.1
        };
        while !says() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    #[tokio::test]
    async fn settings_that_become_suitable_later_are_written_and_read() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join(FILE);
        std::fs::write(&place, "port = 1\n").unwrap();
        let (_control, controlled) = watch::channel(Control::default());
        let (tell, suitable) = watch::channel(None);
        let counted = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&counted);
        let reload = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        let mount = directory.path().to_owned();
        let running = tokio::spawn(run(
            controlled,
            mount,
            reload,
            ConfigStatus::default(),
            suitable,
        ));
        let delay = |us: &str| Some(BTreeMap::from([("commit_delay".to_owned(), us.to_owned())]));
        let finished = async {
            becomes(&place, None, (&counted, 0)).await;
            tell.send_replace(delay("3000"));
            becomes(&place, Some("3000"), (&counted, 1)).await;
            tell.send_replace(delay("3900"));
            becomes(&place, Some("3900"), (&counted, 2)).await;
            // It cannot be written; the newest is, once it can.
            std::fs::remove_file(&place).unwrap();
            std::fs::create_dir(&place).unwrap();
            tell.send_replace(delay("5100"));
            tokio::time::sleep(Duration::from_millis(20)).await;
            std::fs::remove_dir(&place).unwrap();
            std::fs::write(&place, "commit_delay = 7\n").unwrap();
            tell.send_replace(delay("6700"));
            becomes(&place, Some("6700"), (&counted, 3)).await;
            tell.send_replace(Some(BTreeMap::new()));
            becomes(&place, None, (&counted, 4)).await;
        };
        let done = tokio::time::timeout(Duration::from_secs(20), finished).await;
        assert!(done.is_ok() && !running.is_finished());
        running.abort();
        assert_eq!(
            std::fs::read_to_string(&place).unwrap(),
            with_node_file("commit_delay = 7\n")
        );
    }
}
