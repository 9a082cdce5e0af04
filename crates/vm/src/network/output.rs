//! What leaves the machine, and when; and which connections can go on after a takeover.
//!
//! Hold everything: a frame waits for the checkpoint that follows it. Clients have then seen nothing that the standby does not know, so
//! that all of their connections go on.
//!
//! Commit protection: of connections to PostgreSQL only what tells of an outcome waits ([`Conversation`]). Frames that passed early have
//! moved the client's side of TCP beyond the checkpoint; such a connection cannot go on ([`survivor`]). A connection's beginning waits, so
//! that the standby knows every connection that a client thinks established.
//!
//! Invariant: nothing is sent once the standby may have taken over, however long this host stood still before it sends.

#[cfg(test)]
mod streams_test;
mod survivor;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::conversation::Conversation;
use super::segment::{End, FIN, RST, SYN, Segment};
use crate::core::{Gate, Number};
use survivor::Probed;

/// Connections that the machine has ended, and whose last segments may have to be sent again.
const ENDED_KEPT: usize = 256;
/// Connections that are followed. Whoever asks for connections and goes away leaves them behind half open.
const FLOWS_KEPT: usize = 8192;
/// Bytes of frames that wait; more are lost, as in any queue of a network, and TCP sends them again.
const WAITING_BYTES: usize = 64 << 20;

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// Everything that leaves the machine. For any database; a takeover leaves connections open.
    #[default]
    Everything,
    /// Answers of PostgreSQL that end a transaction, and everything of other connections.
    Commits,
    /// None: acknowledged commits are lost with the host. To measure the cost of waiting.
    Nothing,
}

/// A connection of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    machine: End,
    client: End,
    /// What the machine sends next, and expects next.
    next: u32,
    expects: u32,
    conversation: Conversation,
    /// Everything that it says waits: its client is not beyond any checkpoint.
    waits: bool,
    /// The machine has said more than that it accepts the connection.
    #[serde(skip)]
    is_established: bool,
    /// When the machine said something last, in frames.
    #[serde(skip)]
    used: u64,
    /// The machine has ended it: a survivor need not know of it.
    #[serde(skip)]
    has_ended: bool,
}

/// Frames that are to be sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// To clients.
    pub out: Vec<Vec<u8>>,
    /// To the machine.
    pub to_machine: Vec<Vec<u8>>,
}

/// The output of a machine.
pub struct Output {
    protection: Protection,
    /// From the next checkpoint on.
    wanted: Protection,
    port: u16,
    gate: Gate<Vec<u8>>,
    waiting_bytes: usize,
    lost: u64,
    /// The other host may run the machine: nothing passes until the gate is opened.
    holds_all: bool,
    now: Duration,
    /// From then on the other host may run the machine, if one may: nothing is sent, not even what a checkpoint covers.
    until: Option<Duration>,
    made: Number,
    released: Number,
    flows: BTreeMap<(End, End), Flow>,
    frames: u64,
    /// Those of them that the machine has ended, in order.
    ended: VecDeque<(End, End)>,
    /// The last checkpoint that a frame of it waits for.
    waits_for: BTreeMap<(End, End), Number>,
    probed: BTreeMap<(End, End), Probed>,
    resets: u64,
}

/// True if `one` is after `other`, as TCP counts.
fn is_after(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) > 0
}

impl Output {
    /// Of a machine whose PostgreSQL listens at `port`.
    pub fn new(protection: Protection, port: u16) -> Output {
        let mut gate = Gate::default();
        if protection == Protection::Nothing {
            gate.open();
        }
        Output {
            protection,
            wanted: protection,
            port,
            gate,
            waiting_bytes: 0,
            lost: 0,
            holds_all: false,
            now: Duration::ZERO,
            until: None,
            made: Number::default(),
            released: Number::default(),
            flows: BTreeMap::new(),
            frames: 0,
            ended: VecDeque::new(),
            waits_for: BTreeMap::new(),
            probed: BTreeMap::new(),
            resets: 0,
        }
    }

    /// It is this late, by the clock that [`release`](Output::release) counts by. A host that stood still does not know how long: it is told
    /// before anything leaves.
    pub fn at(&mut self, now: Duration) {
        self.now = now;
    }

    /// True if no other host can run the machine yet.
    fn is_alone(&self) -> bool {
        self.until.is_none_or(|until| self.now < until)
    }

    /// What waits, from the next checkpoint on.
    pub fn wanted(&self) -> Protection {
        self.wanted
    }

    /// Something else waits. That begins with a checkpoint, which knows of the connections what a survivor needs then; or at once, if none
    /// are made.
    pub fn protect(&mut self, protection: Protection) {
        self.wanted = protection;
        if !self.gate.holds() && self.protection != Protection::Nothing {
            self.protection = protection;
        }
    }

    /// The machine sends a frame; what may leave at once.
    pub fn leaves(&mut self, frame: Vec<u8>) -> Option<Vec<u8>> {
        let frame = self.wait_for_client(frame)?;
        // Followed in any case: what waits can change, and a survivor resets what cannot go on.
        let passes = self.passes(&frame);
        if self.protection == Protection::Nothing || (passes && !self.holds_all) {
            return Some(frame);
        }
        let len = frame.len();
        if self.gate.holds() && self.waiting_bytes + len > WAITING_BYTES {
            self.lost += 1;
            return None;
        }
        let passed = self.gate.put(frame);
        if passed.is_none() {
            self.waiting_bytes += len;
        }
        passed
    }

    /// Frames that need not wait any more.
    fn freed(&mut self, frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        self.waiting_bytes -= frames.iter().map(Vec::len).sum::<usize>();
        frames
    }

    fn passes(&mut self, frame: &[u8]) -> bool {
        let Some(segment) = Segment::parse(frame) else {
            const ARP: [u8; 2] = [8, 6];
            let is_arp = frame.get(12..14) == Some(&ARP);
            return is_arp && self.protection != Protection::Everything && self.is_alone();
        };
        let key = (segment.from, segment.to);
        let may_pass = self.follow(key, &segment);
        let passes = may_pass && !self.waits(segment.from.port) && self.is_alone();
        if segment.has(RST) {
            self.forget(&key);
            return false;
        }
        if segment.has(FIN) {
            self.end(key);
        }
        let in_order = self
            .waits_for
            .get(&key)
            .is_none_or(|by| *by <= self.released);
        if !(passes && in_order) {
            self.waits_for.insert(key, self.made.next());
        }
        passes && in_order
    }

    /// True if everything waits that the machine says from this port.
    fn waits(&self, port: u16) -> bool {
        match self.protection {
            Protection::Everything => true,
            Protection::Commits => port != self.port,
            Protection::Nothing => false,
        }
    }

    fn forget(&mut self, key: &(End, End)) {
        self.flows.remove(key);
        self.waits_for.remove(key);
        self.ended.retain(|ended| ended != key);
    }

    /// The machine says nothing more on this connection.
    fn end(&mut self, key: (End, End)) {
        let Some(flow) = self.flows.get_mut(&key).filter(|flow| !flow.has_ended) else {
            return;
        };
        flow.has_ended = true;
        self.ended.push_back(key);
        if self.ended.len() > ENDED_KEPT
            && let Some(oldest) = self.ended.front().copied()
        {
            self.forget(&oldest);
        }
    }

    /// Forgets a quarter of too many connections: first those of which the machine has heard nothing but that somebody wants one, then
    /// those that have been silent for longest. One that speaks again is followed again, and waits with all that it says.
    fn forget_some(&mut self) {
        if self.flows.len() <= FLOWS_KEPT {
            return;
        }
        let uses = self.flows.iter();
        let mut uses: Vec<_> = uses
            .map(|(key, flow)| (flow.is_established, flow.used, *key))
            .collect();
        uses.sort_unstable();
        for (_, _, key) in &uses[..FLOWS_KEPT / 4] {
            self.forget(key);
        }
    }

    /// Takes a segment of the machine into account; whether what it says may pass.
    fn follow(&mut self, key: (End, End), segment: &Segment<'_>) -> bool {
        self.frames += 1;
        let used = self.frames;
        if segment.has(SYN) {
            let flow = Flow {
                machine: segment.from,
                client: segment.to,
                next: segment.end(),
                expects: segment.ack,
                conversation: match key.0.port == self.port {
                    true => Conversation::default(),
                    false => Conversation::opaque(),
                },
                waits: false,
                is_established: false,
                used,
                has_ended: false,
            };
            if self
                .flows
                .insert(key, flow)
                .is_some_and(|flow| flow.has_ended)
            {
                self.ended.retain(|ended| *ended != key);
            }
            self.forget_some();
            return false;
        }
        let flow = self.flows.entry(key).or_insert_with(|| Flow {
            machine: segment.from,
            client: segment.to,
            next: segment.seq,
            expects: segment.ack,
            conversation: Conversation::opaque(),
            waits: false,
            is_established: true,
            used,
            has_ended: false,
        });
        flow.is_established = true;
        flow.used = used;
        if is_after(segment.ack, flow.expects) {
            flow.expects = segment.ack;
        }
        if segment.payload.is_empty() && !segment.has(FIN) {
            return true;
        }
        if is_after(segment.seq, flow.next) {
            flow.conversation = Conversation::opaque();
        }
        let is_next = segment.seq == flow.next;
        if is_after(segment.end(), flow.next) {
            if !is_next {
                flow.conversation = Conversation::opaque();
            }
            flow.next = segment.end();
        }
        // What is sent once more may be what waits.
        is_next && flow.conversation.says(segment.payload) && !segment.has(FIN)
    }

    /// From now on what leaves waits, as it is protected.
    pub fn hold(&mut self) {
        if self.protection != Protection::Nothing {
            self.gate.hold();
        }
    }

    /// A checkpoint was made while the machine stood still. The connections as it has them.
    pub fn made(&mut self, number: Number) -> Vec<Flow> {
        self.made = number;
        self.gate.made(number);
        if self.wanted != self.protection {
            self.protection = self.wanted;
            self.hold();
        }
        let open = self.flows.values().filter(|flow| !flow.has_ended);
        open.map(|flow| Flow {
            // The client of one that is asked may be beyond any checkpoint.
            waits: self.waits(flow.machine.port) && !self.is_asked(flow),
            ..flow.clone()
        })
        .collect()
    }

    /// A checkpoint is safe, and the standby that holds it does not take over before `until`.
    pub fn release(&mut self, number: Number, until: Duration) -> Vec<Vec<u8>> {
        self.until = Some(until);
        if !self.is_alone() {
            // The next one releases these frames as well, or the standby says them.
            return Vec::new();
        }
        self.released = self.released.max(number);
        let released = self.released;
        self.waits_for.retain(|_, by| *by > released);
        let frames = self.gate.release(number);
        self.freed(frames)
    }

    /// Nothing passes any more that does not wait for a checkpoint, until [`open`](Output::open).
    pub fn hold_all(&mut self) {
        self.holds_all = true;
        self.hold();
    }

    /// Nothing waits any more.
    pub fn open(&mut self) -> Vec<Vec<u8>> {
        self.protection = self.wanted;
        self.holds_all = false;
        self.until = None;
        self.waits_for.clear();
        let frames = self.gate.open();
        self.freed(frames)
    }

    /// Checkpoints are counted from 1 again, for another standby.
    pub fn begin(&mut self) {
        self.until = None;
        self.made = Number::default();
        self.released = Number::default();
        self.gate.made(Number::default());
        self.waits_for.clear();
    }

    /// How many frames wait.
    pub fn waiting(&self) -> usize {
        self.gate.len()
    }

    /// How many were lost because too many waited.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}
