//! The copy that a following begins with: disk and memory, made while the machine runs.
//!
//! ```text
//!   disk ─▶ pages that there are ─▶ pages that were written meanwhile ─▶ ... ─▶ few are left: the first checkpoint
//!     └───────┴──────── what is written to the disk meanwhile follows at once, and does not gather here ──────┘
//! ```
//!
//! Invariant: what was written after it was copied is copied again, or belongs to the first checkpoint.

use std::sync::mpsc as threads;
use std::time::Instant;

use super::checkpoints::encode;
use super::{Engine, PART_BYTES, Protection, Result, system};
use crate::core::{Number, Session};
use crate::disk::{self, Cut, Disk};
use crate::driver::hub::Order;
use crate::encoding::{Encoder, Packer};
use crate::host::{Guest, PAGE, Run};
use crate::standby::CheckpointPart;

/// Pages that are read at a time.
const PAGES_AT_ONCE: u64 = 256;
/// The copy ends when fewer pages than this were written during a round, or after so many rounds.
const FEW_PAGES: u64 = 2_000;
const ROUNDS: usize = 8;

/// A following that is being begun.
struct Copy<'a> {
    session: &'a Session,
    disk: &'a Disk,
    encoder: Encoder,
    orders: &'a threads::Receiver<Order>,
}

impl Engine {
    /// Copies everything to the standby while the machine runs, until little is left for the first checkpoint.
    pub(super) fn protect(
        &mut self,
        session: Session,
        orders: &threads::Receiver<Order>,
    ) -> Result<()> {
        let (Some((disk, _)), Some(machine)) = (&self.disk, &mut self.machine) else {
            return Ok(());
        };
        let disk = disk.clone();
        let room = usize::try_from(machine.pages() / 10).unwrap_or(usize::MAX);
        self.hub.begin_following();
        self.hub.switch.begin();
        disk.record(self.hub.config.journal_mb << 20);
        // From now on what is written is known.
        machine.written(&mut Vec::new())?;
        let began = Instant::now();
        let mut copy = Copy {
            session: &session,
            disk: &disk,
            encoder: Encoder::new(room),
            orders,
        };
        if !self.copy_disk(&copy)? || !self.copy_memory(&mut copy)? {
            return Ok(());
        }
        let encoder = copy.encoder;
        tracing::info!(standby = %session.standby, took = ?began.elapsed(), "the standby has a copy");
        self.protection = Some(Protection {
            session,
            encoder,
            blocks: Encoder::new(room),
            packer: Packer::new(),
            devices: Vec::new(),
            made: Number::default(),
            next: Instant::now(),
            is_last: false,
        });
        Ok(())
    }

    /// True if all of it was sent, and nobody wants an end.
    fn copy_disk(&mut self, copy: &Copy<'_>) -> Result<bool> {
        let unreadable = || system("the disk cannot be read");
        let mut at = 0;
        while let Some((begin, end)) = copy.disk.extent(at).map_err(unreadable())? {
            at = end.min(begin + PART_BYTES as u64);
            let mut bytes = vec![0; (at - begin) as usize];
            copy.disk.look(begin, &mut bytes).map_err(unreadable())?;
            if !self.copied(copy, CheckpointPart::Image { offset: begin }, bytes) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// See [`copy_disk`](Engine::copy_disk). The last scan is of the first checkpoint, and so are the pages that it names: they are sent
    /// before it.
    fn copy_memory(&mut self, copy: &mut Copy<'_>) -> Result<bool> {
        let mut runs = Vec::new();
        if let Some(machine) = &self.machine {
            machine.populated(&mut runs)?;
        }
        for round in 0..=ROUNDS {
            let pages: u64 = runs.iter().map(|run| run.count).sum();
            tracing::debug!(round, pages, "pages are copied while the machine runs");
            for run in split(&runs) {
                let Some(machine) = &self.machine else {
                    return Ok(false);
                };
                let contents = &mut self.taken.contents;
                contents.clear();
                machine.read(run, contents)?;
                let pages = run.pages().zip(contents.chunks_exact(PAGE));
                let mut out = Vec::new();
                encode(&mut copy.encoder, pages, &Cut::default(), &mut out);
                if !out.is_empty() && !self.copied(copy, CheckpointPart::Pages(None), out) {
                    return Ok(false);
                }
            }
            if (round > 0 && pages < FEW_PAGES) || round == ROUNDS {
                break;
            }
            runs.clear();
            if let Some(machine) = &mut self.machine {
                machine.written(&mut runs)?;
            }
        }
        Ok(self.copied_writes(copy))
    }

    /// Sends a part, and what was written to the disk meanwhile, which otherwise would gather. Whether the copy goes on.
    fn copied(&mut self, copy: &Copy<'_>, part: CheckpointPart, bytes: Vec<u8>) -> bool {
        self.hub.send_part(copy.session, part, bytes)
            && self.copied_writes(copy)
            && !self.is_interrupted(copy.orders)
    }

    /// A machine that writes faster than the connection takes it has a long journal: a part that takes longer to send than silence lasts
    /// would break the connection.
    fn copied_writes(&self, copy: &Copy<'_>) -> bool {
        let mut out = Vec::new();
        let send = |out: &mut Vec<u8>| {
            let part = std::mem::take(out);
            self.hub
                .send_part(copy.session, CheckpointPart::Writes(None), part)
        };
        for write in &copy.disk.cut().writes {
            disk::encode(std::slice::from_ref(write), &mut out);
            if out.len() >= PART_BYTES && !send(&mut out) {
                return false;
            }
        }
        out.is_empty() || send(&mut out)
    }
}

/// Runs of a length that can be read at a time.
fn split(runs: &[Run]) -> impl Iterator<Item = Run> + use<> {
    let runs: Vec<Run> = runs.to_vec();
    runs.into_iter().flat_map(|run| {
        let firsts = (run.first..run.first + run.count).step_by(PAGES_AT_ONCE as usize);
        firsts.map(move |first| Run {
            first,
            count: PAGES_AT_ONCE.min(run.first + run.count - first),
        })
    })
}
