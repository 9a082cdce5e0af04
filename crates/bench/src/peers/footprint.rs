//! What a run costs: processor time by process, bytes written to the disk and sent between machines,
//! memory.
//!
//! Invariant: everything is a difference of the kernel's own counters. The disk's counter is of the whole
//! device, all copies of all machines, so nothing else may write to it meanwhile.

use std::collections::BTreeMap;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nix::unistd::{Pid, SysconfVar, sysconf};
use serde::{Deserialize, Serialize};

use super::system::{Machines, System};
use cluster::process::family;

/// What the kernel counts a device's writes in.
const SECTOR_BYTES: u64 = 512;

/// What a run cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Footprint {
    /// Processor time in seconds, by component and program ("active/postgres").
    pub cpu_seconds: BTreeMap<String, f64>,
    /// Memory at the end in bytes, by component and program; what processes share is counted once.
    pub memory_bytes: BTreeMap<String, u64>,
    /// Written to the disk by all machines, where the disk can be told.
    pub disk_bytes: Option<u64>,
    /// Sent between the machines of the system; what goes to clients is left out.
    pub network_bytes: u64,
    /// How often any processor went from one thread to another, those of the clients included.
    #[serde(default)]
    pub switches: u64,
    /// How often programs had to be woken up, by component and program; of those that ran all the time.
    #[serde(default)]
    pub wakeups: BTreeMap<String, u64>,
    /// What the system itself counts on the active's machine: flushes, and requests of the kernel.
    #[serde(default)]
    pub work: BTreeMap<String, u64>,
}

/// Counters at one moment.
pub(super) struct Counters {
    switches: u64,
    wakeups: BTreeMap<String, u64>,
    work: BTreeMap<String, u64>,
    cpu_seconds: BTreeMap<String, f64>,
    disk_bytes: Option<u64>,
    network_bytes: u64,
}

impl Counters {
    /// Reads them.
    pub async fn read(
        system: &dyn System,
        machines: &Machines,
        dir: &Path,
    ) -> anyhow::Result<Counters> {
        Ok(Counters {
            switches: switches()?,
            wakeups: by_program(system, wakeups),
            work: system.work().await?,
            cpu_seconds: by_program(system, cpu_seconds),
            disk_bytes: disk_bytes(dir),
            network_bytes: machines.sites.exchanged_bytes()?,
        })
    }

    /// What has been used since.
    pub async fn until(
        &self,
        system: &dyn System,
        machines: &Machines,
        dir: &Path,
    ) -> anyhow::Result<Footprint> {
        let now = Counters::read(system, machines, dir).await?;
        let used = |(name, seconds): (String, f64)| {
            let before = self.cpu_seconds.get(&name).copied().unwrap_or_default();
            (name, seconds - before)
        };
        let more = |now: BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            let since = |(name, count): (String, u64)| {
                let more = count.saturating_sub(before.get(&name).copied().unwrap_or_default());
                (more > 0).then_some((name, more))
            };
            now.into_iter().filter_map(since).collect()
        };
        let disk = now.disk_bytes.zip(self.disk_bytes);
        Ok(Footprint {
            cpu_seconds: now.cpu_seconds.into_iter().map(used).collect(),
            memory_bytes: by_program(system, memory_bytes),
            disk_bytes: disk.map(|(now, before)| now.saturating_sub(before)),
            network_bytes: now.network_bytes.saturating_sub(self.network_bytes),
            switches: now.switches.saturating_sub(self.switches),
            wakeups: more(now.wakeups, &self.wakeups),
            work: more(now.work, &self.work),
        })
    }
}

impl Footprint {
    /// What was done for each of so many transactions, besides using processors: switches, the wake-ups of each program,
    /// and what the system counts; what happens less than once in a hundred is left out.
    pub(super) fn work_each(&self, transactions: u64) -> impl Iterator<Item = (String, f64)> {
        let all = std::iter::once(("switches".to_owned(), self.switches));
        let wakeups = self.wakeups.iter();
        let wakeups = wakeups.map(|(name, count)| (format!("wake-ups of {name}"), *count));
        let work = self.work.iter().map(|(name, count)| (name.clone(), *count));
        let each = all.chain(wakeups).chain(work);
        each.map(move |(name, count)| (name, count as f64 / transactions.max(1) as f64))
            .filter(|(_, each)| *each >= 0.01)
    }
}

/// Adds up something of all processes, by component and program.
fn by_program<T: std::ops::AddAssign + Default>(
    system: &dyn System,
    value: impl Fn(Pid) -> Option<T>,
) -> BTreeMap<String, T> {
    let mut sums = BTreeMap::new();
    for (component, top) in system.processes() {
        for pid in family(top) {
            let program = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            if let (Ok(program), Some(value)) = (program, value(pid)) {
                let name = format!("{component}/{}", program.trim());
                *sums.entry(name).or_default() += value;
            }
        }
    }
    sums
}

/// Processor time of a process and of its children that have ended, in seconds.
pub(crate) fn cpu_seconds(pid: Pid) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks_a_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    Some(cpu_ticks(&stat)? as f64 / ticks_a_second as f64)
}

/// `utime`, `stime`, `cutime` and `cstime` together: fields 14 to 17 of `/proc/<pid>/stat`.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The name in parentheses may contain anything, also parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    fields
        .get(11..15)?
        .iter()
        .map(|field| field.parse::<u64>().ok())
        .sum()
}

/// How often the threads of a process have waited for something.
fn wakeups(pid: Pid) -> Option<u64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let waits = |thread: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
        field(&text, "voluntary_ctxt_switches:")
    };
    Some(threads.filter_map(waits).sum())
}

/// How often the processors have changed threads.
fn switches() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    field(&text, "ctxt").context("the kernel does not count switches")
}

/// The number in the line that begins with this.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// A process's share of the memory that it has mapped.
pub(crate) fn memory_bytes(pid: Pid) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// What was ever written to the device that a directory is on.
fn disk_bytes(dir: &Path) -> Option<u64> {
    let device = std::fs::metadata(dir).ok()?.st_dev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    written_bytes(&std::fs::read_to_string(path).ok()?)
}

/// The seventh field of a block device's `stat`.
fn written_bytes(stat: &str) -> Option<u64> {
    let sectors: u64 = stat.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * SECTOR_BYTES)
}

/// Brings everything that was written to the disk, so that it is counted.
pub(super) async fn flush(system: &dyn System) -> anyhow::Result<()> {
    for server in system.servers() {
        // The other node of a system without standby is not there.
        if let Ok(client) = cluster::clients::session::connect(&server.config()).await {
            client
                .batch_execute("CHECKPOINT")
                .await
                .context("no checkpoint")?;
        }
    }
    tokio::task::spawn_blocking(nix::unistd::sync).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_has_the_children_that_ended() {
        let stat = "42 (post) gres) S 1 42 42 0 -1 4194560 100 0 0 0 10 20 300 4000 20 0 1 0 99";
        assert_eq!(cpu_ticks(stat), Some(4330));
        assert_eq!(cpu_ticks("42 (x) S 1"), None);
    }

    #[test]
    fn written_bytes_are_sectors() {
        let stat = "  5066  143  301642  1234  9113  7310  2048  77 0 1 2 0 0 0 0 0 0";
        assert_eq!(written_bytes(stat), Some(1024 * 1024));
        assert_eq!(written_bytes(""), None);
    }
}
