//! What a host counts.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::core::Number;
use crate::encoding::Counts;
use crate::host::Timing;

/// Checkpoints that are looked back at.
const KEPT: usize = 2_000;

/// Counts of a protected machine.
#[derive(Debug, Default)]
pub struct Stats {
    epochs: u64,
    counts: Counts,
    disk_bytes: u64,
    sent_bytes: u64,
    disk_waits: u64,
    pub takeovers: u64,
    /// How long the last takeover took from the decision until the machine ran.
    pub takeover: Duration,
    pauses: VecDeque<Timing>,
    /// Checkpoints that the standby does not hold yet, and since when they are being made.
    under_way: VecDeque<(Number, Instant)>,
    /// From the beginning of a checkpoint until the standby held it.
    safe: VecDeque<Duration>,
}

/// Numbers of checkpoints, for the status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointStats {
    /// Checkpoints that were made.
    pub epochs: u64,
    /// Pages that had been written.
    pub pages: u64,
    /// Of those, as they had been sent.
    pub pages_unchanged: u64,
    /// Of those, named as a block of the disk.
    pub pages_as_blocks: u64,
    /// Of those, told by how they differ.
    pub pages_differing: u64,
    /// Bytes of these pages, and of what was written to the disk.
    pub raw_bytes: u64,
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// How often the machine's disk waited because the standby was slow.
    pub disk_waits: u64,
    /// How long the machine stood still for a checkpoint, of the last 2,000 since the settings changed: the median.
    pub pause_ms_p50: f64,
    /// What 95 % stay below.
    pub pause_ms_p95: f64,
    /// What 99 % stay below.
    pub pause_ms_p99: f64,
    /// What the median checkpoint was paused for.
    pub parts_p50: Parts,
    /// The same of those that no more than 1 % exceed.
    pub parts_p99: Parts,
    /// From the beginning of a checkpoint until the standby held it: the median.
    pub safe_ms_p50: f64,
    /// What 99 % stay below.
    pub safe_ms_p99: f64,
    /// How often this host took over.
    pub takeovers: u64,
    /// How long the last one took from the decision until the machine ran.
    pub takeover_ms: f64,
}

/// The steps of a checkpoint, in milliseconds, each by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// QEMU stops the machine.
    pub stop: f64,
    /// Pages that were written are found.
    pub scan: f64,
    /// They are copied.
    pub copy: f64,
    /// What is left then of the time in which QEMU saves processors and devices.
    pub devices: f64,
    /// Disk and network are cut.
    pub cut: f64,
    /// QEMU lets the machine go on.
    pub resume: f64,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What this share stays below, in milliseconds.
fn quantile(times: impl Iterator<Item = Duration>, share: f64) -> f64 {
    let mut sorted: Vec<Duration> = times.collect();
    sorted.sort_unstable();
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at).copied().map_or(0.0, ms)
}

fn keep<T>(all: &mut VecDeque<T>, one: T) {
    if all.len() == KEPT {
        all.pop_front();
    }
    all.push_back(one);
}

impl Stats {
    /// The machine stood still for a checkpoint, which will be on its way.
    pub fn begun(&mut self, number: Number, began: Instant, timing: &Timing, disk_waits: u64) {
        self.epochs += 1;
        self.disk_waits += disk_waits;
        keep(&mut self.pauses, *timing);
        if number == Number::default().next() {
            self.under_way.clear();
        }
        keep(&mut self.under_way, (number, began));
    }

    /// It was sent.
    pub fn sent(&mut self, counts: &Counts, disk_bytes: u64, sent_bytes: u64) {
        self.counts.add(counts);
        self.disk_bytes += disk_bytes;
        self.sent_bytes += sent_bytes;
    }

    /// The standby holds it, and all before it.
    pub fn held(&mut self, number: Number) {
        while let Some((_, began)) = self.under_way.pop_front_if(|(it, _)| *it <= number) {
            keep(&mut self.safe, began.elapsed());
        }
    }

    /// Times are measured anew.
    pub fn begin_anew(&mut self) {
        self.pauses.clear();
        self.safe.clear();
    }

    fn parts(&self, share: f64) -> Parts {
        let part = |of: fn(&Timing) -> Duration| quantile(self.pauses.iter().map(of), share);
        Parts {
            stop: part(|timing| timing.pause),
            scan: part(|timing| timing.scan),
            copy: part(|timing| timing.copy),
            devices: part(|timing| timing.devices),
            cut: part(|timing| timing.cut),
            resume: part(|timing| timing.resume),
        }
    }

    pub fn told(&self) -> CheckpointStats {
        let pause = |share| quantile(self.pauses.iter().map(Timing::paused), share);
        let safe = |share| quantile(self.safe.iter().copied(), share);
        CheckpointStats {
            epochs: self.epochs,
            pages: self.counts.pages,
            pages_unchanged: self.counts.unchanged,
            pages_as_blocks: self.counts.blocks,
            pages_differing: self.counts.differing,
            raw_bytes: self.counts.pages * 4096 + self.disk_bytes,
            sent_bytes: self.sent_bytes,
            disk_waits: self.disk_waits,
            pause_ms_p50: pause(0.5),
            pause_ms_p95: pause(0.95),
            pause_ms_p99: pause(0.99),
            parts_p50: self.parts(0.5),
            parts_p99: self.parts(0.99),
            safe_ms_p50: safe(0.5),
            safe_ms_p99: safe(0.99),
            takeovers: self.takeovers,
            takeover_ms: ms(self.takeover),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_safe_when_the_standby_holds_it() {
        let mut stats = Stats::default();
        let (now, timing) = (Instant::now(), Timing::default());
        for number in 1..=3 {
            stats.begun(Number(number), now, &timing, 1);
        }
        assert_eq!(stats.safe.len(), 0);
        stats.held(Number(2));
        assert_eq!((stats.safe.len(), stats.under_way.len()), (2, 1));
        // Another standby: what was under way to the one before is held by nobody.
        stats.begun(Number(1), now, &timing, 0);
        stats.held(Number(1));
        assert_eq!((stats.safe.len(), stats.under_way.len()), (3, 0));
        assert_eq!((stats.told().epochs, stats.told().disk_waits), (4, 3));
    }
}
