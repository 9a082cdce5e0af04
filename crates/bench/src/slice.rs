//! A slice of a processor for a database server: a control group with a quota. So a machine with two processors shows how
//! nine servers scale, or what a database lets through where its own processor is the limit.
//!
//! Invariant: the group is gone when its [`Slice`] is dropped; whatever is left in it goes back to the group above.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::unistd::Pid;

/// Where control groups are.
const ROOT: &str = "/sys/fs/cgroup";
/// How often the quota begins anew: so short that a server that has used it up is not away for long.
const PERIOD_US: u32 = 20_000;

/// A group.
#[derive(Debug)]
pub(crate) struct Slice(PathBuf);

impl Slice {
    /// Makes a group whose processes may together use this share of one processor.
    pub fn create(name: &str, percent: u32) -> anyhow::Result<Slice> {
        let name = format!("understudy-bench-{}-{name}", std::process::id());
        let quota_us = PERIOD_US * percent / 100;
        let root = Path::new(ROOT);
        let (path, settings) = if root.join("cgroup.controllers").exists() {
            // Version 2: groups have the controllers that the group above gives them.
            let enabled = std::fs::write(root.join("cgroup.subtree_control"), "+cpu");
            enabled.context(NEEDS)?;
            let setting = ("cpu.max", format!("{quota_us} {PERIOD_US}"));
            (root.join(name), vec![setting])
        } else if root.join("cpu/cpu.cfs_quota_us").exists() || root.join("cpu/tasks").exists() {
            let settings = vec![
                ("cpu.cfs_period_us", PERIOD_US.to_string()),
                ("cpu.cfs_quota_us", quota_us.to_string()),
            ];
            (root.join("cpu").join(name), settings)
        } else {
            bail!(NEEDS);
        };
        std::fs::create_dir(&path).context(NEEDS)?;
        let slice = Slice(path);
        for (file, value) in settings {
            std::fs::write(slice.0.join(file), value).context(NEEDS)?;
        }
        Ok(slice)
    }

    /// Puts processes into it, and what they start from now on.
    pub fn add(&self, pids: &[Pid]) -> anyhow::Result<()> {
        for pid in pids {
            match std::fs::write(self.0.join("cgroup.procs"), pid.to_string()) {
                Ok(()) => {}
                // It has just ended.
                Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {}
                Err(error) => return Err(error).context("cannot put a process into its group"),
            }
        }
        Ok(())
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        let left = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        let above = self.0.with_file_name("cgroup.procs");
        for pid in left.lines() {
            // What has ended meanwhile need not go anywhere.
            let _ = std::fs::write(&above, pid);
        }
        if let Err(error) = std::fs::remove_dir(&self.0) {
            tracing::warn!(%error, group = %self.0.display(), "a control group stays");
        }
    }
}

const NEEDS: &str = "cannot limit the servers' processor: that needs root and the cpu controller of control groups \
                     below /sys/fs/cgroup (`--help` says how to leave out what needs it)";
