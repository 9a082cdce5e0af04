//! Checkpoints of a machine that runs: made while it stands still, encoded and sent while it goes on.
//!
//! Invariant: what a checkpoint covers was written, and what waits for it was said, before the machine stood still for it.

use std::sync::mpsc as threads;
use std::time::Instant;

use super::{Engine, EngineError, PART_BYTES, Protection, Result};
use crate::core::{Number, Session};
use crate::disk::{self, Cut, Reads};
use crate::driver::hub::{Hub, Order};
use crate::encoding::{Counts, Encoder, Packer, Page, put_state};
use crate::host::{checkpoint, last_checkpoint};
use crate::network::Flow;
use crate::standby::{CheckpointPart, End, add};

impl Engine {
    /// Makes a checkpoint, and sends it.
    pub(super) fn make(&mut self, orders: &threads::Receiver<Order>) -> Result<()> {
        let (Some(machine), Some((disk, _)), Some(protection)) =
            (&mut self.machine, &self.disk, &mut self.protection)
        else {
            return Ok(());
        };
        let switch = &self.hub.switch;
        // What leaves from the first checkpoint on waits; what left before is in it.
        if protection.made == Number::default() {
            switch.hold();
        }
        let number = protection.made.next();
        let tuning = self.hub.tuning();
        protection.encoder.compress(tuning.compression);
        protection.blocks.compress(tuning.compression);
        protection.packer.compress(tuning.compression);
        let began = Instant::now();
        // QEMU flushes when it stops the machine; most of that can be done before. If it fails, QEMU's and the guest's own fail too.
        if let Err(error) = disk.flush() {
            tracing::warn!(%error, "the machine's disk cannot be flushed");
        }
        disk.begin();
        let mut seen: (Cut, Vec<Flow>) = Default::default();
        let cut = || {
            seen = (disk.cut(), switch.made(number));
            Ok::<(), EngineError>(())
        };
        let is_last = protection.is_last;
        let timing = match is_last {
            false => checkpoint(machine, &mut self.taken, cut)?,
            true => {
                self.runs = false;
                last_checkpoint(machine, &mut self.taken, cut)?
            }
        };
        protection.made = number;
        protection.next = began + tuning.checkpoint_interval;
        if !tuning.read_tracking {
            seen.0.reads = Reads::default();
        }
        let waits = disk.take_waits();
        self.hub.stats.lock().begun(number, began, &timing, waits);
        let session = protection.session.clone();
        self.hub.act(|guard, out| guard.made(number, is_last, out));
        self.send(&session, number, seen);
        self.is_interrupted(orders);
        Ok(())
    }

    /// The machine runs meanwhile. If the connection breaks, the guard hears of it from there.
    fn send(&mut self, session: &Session, number: Number, seen: (Cut, Vec<Flow>)) {
        let Some(protection) = &mut self.protection else {
            return;
        };
        let Protection {
            encoder,
            blocks,
            packer,
            ..
        } = protection;
        let (cut, flows) = seen;
        let mut sent = Sent {
            hub: &self.hub,
            packer,
            session,
            number,
            parts: 0,
            sum: 0,
            bytes: 0,
        };
        let mut part = Vec::new();
        let mut disk_bytes = 0;
        for write in &cut.writes {
            disk_bytes += write.len();
            disk::encode_differing(write, blocks, &mut part);
            if part.len() >= PART_BYTES {
                sent.part(CheckpointPart::Writes(Some(number)), &mut part);
            }
        }
        sent.part(CheckpointPart::Writes(Some(number)), &mut part);
        let mut counts = Counts::default();
        for (at, contents) in self.taken.pages() {
            let page = std::iter::once((at, contents));
            counts.add(&encode(encoder, page, &cut, &mut part));
            if part.len() >= PART_BYTES {
                sent.part(CheckpointPart::Pages(Some(number)), &mut part);
            }
        }
        sent.part(CheckpointPart::Pages(Some(number)), &mut part);
        put_state(&protection.devices, &self.taken.devices, &mut part);
        protection.devices.clone_from(&self.taken.devices);
        let bytes = sent.end(flows, &part);
        self.hub.stats.lock().sent(&counts, disk_bytes, bytes);
    }
}

/// A checkpoint on its way.
struct Sent<'a> {
    hub: &'a Hub,
    packer: &'a mut Packer,
    session: &'a Session,
    number: Number,
    parts: u32,
    sum: u64,
    bytes: u64,
}

impl Sent<'_> {
    /// Sends what was gathered, if anything was.
    fn part(&mut self, part: CheckpointPart, gathered: &mut Vec<u8>) {
        if gathered.is_empty() {
            return;
        }
        let bytes = self.packer.pack(gathered);
        gathered.clear();
        self.parts += 1;
        self.sum = add(self.sum, &bytes);
        self.bytes += bytes.len() as u64;
        self.hub.send_part(self.session, part, bytes);
    }

    fn end(self, flows: Vec<Flow>, devices: &[u8]) -> u64 {
        let devices = self.packer.pack(devices);
        let end = End {
            number: self.number,
            parts: self.parts,
            sum: add(self.sum, &devices),
            flows,
        };
        let bytes = self.bytes + devices.len() as u64;
        self.hub
            .send_part(self.session, CheckpointPart::End(end), devices);
        bytes
    }
}

/// Encodes pages that were written.
pub(super) fn encode<'a>(
    encoder: &mut Encoder,
    pages: impl Iterator<Item = (u64, &'a [u8])>,
    cut: &Cut,
    out: &mut Vec<u8>,
) -> Counts {
    let mut counts = Counts::default();
    for (number, contents) in pages {
        let page: &Page = contents
            .try_into()
            .expect("a page has the length of a page");
        let number = u32::try_from(number).expect("a machine has less than 16 TB");
        encoder.put(number, page, |page| cut.reads.find(page), &mut counts, out);
    }
    counts
}
