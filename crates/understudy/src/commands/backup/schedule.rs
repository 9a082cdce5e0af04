//! Drills by schedule: beside the archive, as a process of its own, so that the log is copied meanwhile.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use backup::config::Config;
use backup::drill::Drill;
use backup::error::Error;
use backup::repository::Repository;
use coordination::records::unix_ms;
use node::config::PostgresConfig;
use tokio::process::{Child, Command};

/// The wait before one that could not be tried is tried again, and between looks.
const AGAIN_AFTER: Duration = Duration::from_secs(3600);

/// A drill that is due from time to time.
pub(super) struct Schedule {
    every: Duration,
    command: Vec<String>,
    running: Option<Child>,
    tried: Option<Instant>,
}

impl Schedule {
    /// As the configuration wants it, with the node's PostgreSQL; `None` if it wants none.
    pub(super) fn new(config: &Config, server: &PostgresConfig) -> Option<Schedule> {
        let directory = config.drill_directory.as_ref()?;
        let text = |path: &PathBuf| path.display().to_string();
        let mut command = vec![
            "backup".to_owned(),
            "drill".to_owned(),
            "--repository".to_owned(),
            config.repository.clone(),
            "--directory".to_owned(),
            text(directory),
            "--bin".to_owned(),
            text(&server.bin),
            "--superuser".to_owned(),
            server.superuser.clone(),
            "--owner".to_owned(),
            server.run_as.clone(),
        ];
        if let Some(file) = &config.key_file {
            command.extend(["--key-file".to_owned(), text(file)]);
        }
        Some(Schedule {
            every: config.drill_every?,
            command,
            running: None,
            tried: None,
        })
    }

    /// Begins one if it is due, and tells of one that has ended. `last` is the end of the last one that was noted.
    pub(super) fn look(&mut self, last: Option<&Drill>) -> std::io::Result<()> {
        if let Some(child) = &mut self.running {
            let Some(status) = child.try_wait()? else {
                return Ok(());
            };
            match status.success() {
                true => tracing::info!("a restore was tried, and all was well"),
                false => {
                    tracing::error!(%status, "a test restore failed: see understudy timeline")
                }
            }
            self.running = None;
        }
        let age = last.map(|drill| unix_ms().saturating_sub(drill.ended_unix_ms));
        let is_due = age.is_none_or(|age| Duration::from_millis(age) >= self.every);
        let waits = self
            .tried
            .is_some_and(|when| when.elapsed() < AGAIN_AFTER.min(self.every));
        if is_due && !waits {
            self.tried = Some(Instant::now());
            let mut command = Command::new(std::env::current_exe()?);
            command.args(&self.command).stdin(Stdio::null());
            command.stdout(Stdio::null()).kill_on_drop(true);
            self.running = Some(command.spawn()?);
        }
        Ok(())
    }
}

/// The last drill that was noted.
pub(super) async fn last(repository: &Repository) -> Result<Option<Drill>, Error> {
    match Drill::last(repository).await {
        // A note that cannot be read is none: the next drill replaces it.
        Err(Error::Damaged { .. } | Error::Missing(_)) => Ok(None),
        found => found,
    }
}
