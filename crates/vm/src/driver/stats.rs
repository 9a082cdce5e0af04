//! What a host counts.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::encoding::Counts;

/// Checkpoints that are looked back at.
const KEPT: usize = 2_000;

/// Counts of a protected machine.
#[derive(Debug, Default)]
pub struct Stats {
    pub epochs: u64,
    pub counts: Counts,
    pub disk_bytes: u64,
    pub sent_bytes: u64,
    pub takeovers: u64,
    /// How long the last takeover took from the decision until the machine ran.
    pub takeover: Duration,
    pauses: VecDeque<Duration>,
}

/// What of it is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
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
    /// How long the machine stood still for a checkpoint, of the last 2,000: the median, and what 95 % stay below.
    pub pause_ms_p50: f64,
    /// See there.
    pub pause_ms_p95: f64,
    /// How often this host took over.
    pub takeovers: u64,
    /// How long the last one took from the decision until the machine ran.
    pub takeover_ms: f64,
}

impl Stats {
    pub fn made(&mut self, paused: Duration, counts: &Counts, disk_bytes: u64, sent_bytes: u64) {
        self.epochs += 1;
        self.counts.add(counts);
        self.disk_bytes += disk_bytes;
        self.sent_bytes += sent_bytes;
        if self.pauses.len() == KEPT {
            self.pauses.pop_front();
        }
        self.pauses.push_back(paused);
    }

    fn pause_ms(&self, share: f64) -> f64 {
        let mut sorted: Vec<Duration> = self.pauses.iter().copied().collect();
        sorted.sort_unstable();
        let at = (sorted.len() as f64 * share) as usize;
        sorted
            .get(at)
            .map_or(0.0, |pause| pause.as_secs_f64() * 1e3)
    }

    pub fn told(&self) -> Told {
        Told {
            epochs: self.epochs,
            pages: self.counts.pages,
            pages_unchanged: self.counts.unchanged,
            pages_as_blocks: self.counts.blocks,
            pages_differing: self.counts.differing,
            raw_bytes: self.counts.pages * 4096 + self.disk_bytes,
            sent_bytes: self.sent_bytes,
            pause_ms_p50: self.pause_ms(0.5),
            pause_ms_p95: self.pause_ms(0.95),
            takeovers: self.takeovers,
            takeover_ms: self.takeover.as_secs_f64() * 1e3,
        }
    }
}
