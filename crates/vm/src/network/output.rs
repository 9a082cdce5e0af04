//! What leaves the machine, and when; and which connections can go on after a takeover.
//!
//! Hold everything: a frame waits for the checkpoint that follows it. Clients have then seen nothing that the standby does not know, so
//! that all of their connections go on.
//!
//! Commit protection: of connections to PostgreSQL only what tells of an outcome waits ([`Conversation`]). Frames that passed early have
//! moved the client's side of TCP beyond the checkpoint; such a connection cannot go on. After a takeover each connection that the
//! checkpoint knows is asked where its client is, by a keepalive probe: one whose client is beyond is reset on both sides, so that
//! nobody waits for ever. A connection's beginning waits, so that the standby knows every connection that a client thinks established.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::conversation::Conversation;
use super::segment::{ACK, End, FIN, RST, SYN, Segment};
use crate::core::{Gate, Number};

/// How long after a takeover a client's bytes may be on their way to the machine.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);
/// Between two probes.
const PROBE_EVERY: Duration = Duration::from_millis(300);

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// Everything that leaves the machine: for any database, and connections go on.
    #[default]
    Everything,
    /// Of connections to PostgreSQL, what ends a transaction; everything else that leaves.
    Commits,
    /// Nothing: commits that clients were told are lost with the host. To measure what waiting costs.
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
}

/// A connection that is asked where its client is.
struct Probed {
    since: Duration,
    probed: Duration,
    /// How far the client has sent.
    sent: Option<u32>,
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
    port: u16,
    gate: Gate<Vec<u8>>,
    made: Number,
    released: Number,
    flows: BTreeMap<(End, End), Flow>,
    /// The last checkpoint that a frame of it waits for.
    waits_for: BTreeMap<(End, End), Number>,
    probed: BTreeMap<(End, End), Probed>,
    resets: u64,
}

/// Whether `one` is after `other`, as TCP counts.
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
            port,
            gate,
            made: Number::default(),
            released: Number::default(),
            flows: BTreeMap::new(),
            waits_for: BTreeMap::new(),
            probed: BTreeMap::new(),
            resets: 0,
        }
    }

    /// The machine sends a frame; what may leave at once.
    pub fn leaves(&mut self, frame: Vec<u8>) -> Option<Vec<u8>> {
        let passes = match self.protection {
            Protection::Everything => false,
            Protection::Commits => self.passes(&frame),
            Protection::Nothing => {
                // Followed all the same: a survivor resets what cannot go on.
                self.passes(&frame);
                true
            }
        };
        if passes {
            Some(frame)
        } else {
            self.gate.put(frame)
        }
    }

    fn passes(&mut self, frame: &[u8]) -> bool {
        let Some(segment) = Segment::parse(frame) else {
            const ARP: [u8; 2] = [8, 6];
            return frame.get(12..14) == Some(&ARP);
        };
        if segment.from.port != self.port {
            return false;
        }
        let key = (segment.from, segment.to);
        let passes = self.follow(key, &segment);
        if segment.has(RST) {
            self.flows.remove(&key);
            self.waits_for.remove(&key);
            return false;
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

    /// Takes a segment of the machine into account; whether what it says may pass.
    fn follow(&mut self, key: (End, End), segment: &Segment<'_>) -> bool {
        if segment.has(SYN) {
            let flow = Flow {
                machine: segment.from,
                client: segment.to,
                next: segment.end(),
                expects: segment.ack,
                conversation: Conversation::default(),
            };
            self.flows.insert(key, flow);
            return false;
        }
        let flow = self.flows.entry(key).or_insert_with(|| Flow {
            machine: segment.from,
            client: segment.to,
            next: segment.seq,
            expects: segment.ack,
            conversation: Conversation::opaque(),
        });
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
        self.flows.values().cloned().collect()
    }

    /// A checkpoint is safe.
    pub fn release(&mut self, number: Number) -> Vec<Vec<u8>> {
        self.released = self.released.max(number);
        let released = self.released;
        self.waits_for.retain(|_, by| *by > released);
        self.gate.release(number)
    }

    /// Nothing waits any more.
    pub fn open(&mut self) -> Vec<Vec<u8>> {
        self.waits_for.clear();
        self.gate.open()
    }

    /// Checkpoints are counted from 1 again, for another standby.
    pub fn begin(&mut self) {
        self.made = Number::default();
        self.released = Number::default();
        self.gate.made(Number::default());
        self.waits_for.clear();
    }

    /// How many frames wait.
    pub fn waiting(&self) -> usize {
        self.gate.len()
    }

    /// Connections that were reset after a takeover.
    pub fn resets(&self) -> u64 {
        self.resets
    }

    /// The machine runs on here, with these connections.
    pub fn take_over(&mut self, flows: Vec<Flow>, now: Duration) -> Frames {
        self.flows = flows
            .into_iter()
            .map(|flow| ((flow.machine, flow.client), flow))
            .collect();
        let probed = |key: &(End, End)| {
            (
                *key,
                Probed {
                    since: now,
                    probed: now,
                    sent: None,
                },
            )
        };
        self.probed = self.flows.keys().map(probed).collect();
        self.probe()
    }

    fn probe(&self) -> Frames {
        let flows = self.probed.keys().filter_map(|key| self.flows.get(key));
        let probe = |flow: &Flow| {
            Segment {
                from: flow.machine,
                to: flow.client,
                seq: flow.next.wrapping_sub(1),
                ack: flow.expects,
                flags: ACK,
                payload: &[],
            }
            .build()
        };
        Frames {
            out: flows.map(probe).collect(),
            to_machine: Vec::new(),
        }
    }

    /// A client sends a frame. It goes to the machine in any case; more may have to be sent.
    pub fn comes(&mut self, frame: &[u8]) -> Frames {
        let mut frames = Frames::default();
        if self.probed.is_empty() {
            return frames;
        }
        let Some(segment) = Segment::parse(frame) else {
            return frames;
        };
        let key = (segment.to, segment.from);
        let Some(probed) = self.probed.get_mut(&key).filter(|_| segment.has(ACK)) else {
            return frames;
        };
        probed.sent.get_or_insert(segment.end());
        if self
            .flows
            .get(&key)
            .is_some_and(|flow| is_after(segment.ack, flow.next))
        {
            self.reset(key, segment.ack, segment.end(), &mut frames);
        }
        frames
    }

    fn reset(
        &mut self,
        key: (End, End),
        client_expects: u32,
        client_sent: u32,
        frames: &mut Frames,
    ) {
        self.probed.remove(&key);
        let Some(flow) = self.flows.remove(&key) else {
            return;
        };
        self.resets += 1;
        let reset = |from, to, seq, ack| {
            let segment = Segment {
                from,
                to,
                seq,
                ack,
                flags: RST | ACK,
                payload: &[],
            };
            segment.build()
        };
        frames.out.push(reset(
            flow.machine,
            flow.client,
            client_expects,
            client_sent,
        ));
        frames
            .to_machine
            .push(reset(flow.client, flow.machine, flow.expects, flow.next));
    }

    /// Time passes, after a takeover.
    pub fn tick(&mut self, now: Duration) -> Frames {
        let mut frames = Frames::default();
        let mut done = Vec::new();
        let mut again = false;
        for (key, probed) in &mut self.probed {
            if now >= probed.since + SETTLES_WITHIN {
                done.push((*key, probed.sent));
            } else if probed.sent.is_none() && now >= probed.probed + PROBE_EVERY {
                probed.probed = now;
                again = true;
            }
        }
        if again {
            frames = self.probe();
        }
        for (key, sent) in done {
            self.probed.remove(&key);
            // The machine has not got what the client sent, and the client does not send it again.
            if let (Some(flow), Some(sent)) = (self.flows.get(&key), sent)
                && is_after(sent, flow.expects)
            {
                let next = flow.next;
                self.reset(key, next, sent, &mut frames);
            }
        }
        frames
    }

    /// Whether [`tick`](Output::tick) has something to do.
    pub fn is_settling(&self) -> bool {
        !self.probed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::segment::end;
    use super::*;

    const PORT: u16 = 5432;

    fn says(seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let (from, to) = (end(1, PORT), end(2, 40_000));
        Segment {
            from,
            to,
            seq,
            ack: 500,
            flags,
            payload,
        }
        .build()
    }

    fn client(seq: u32, ack: u32) -> Vec<u8> {
        let (from, to) = (end(2, 40_000), end(1, PORT));
        Segment {
            from,
            to,
            seq,
            ack,
            flags: ACK,
            payload: &[],
        }
        .build()
    }

    const BEGIN: &[u8] = b"C\0\0\0\x0aBEGIN\0Z\0\0\0\x05T";
    const COMMIT: &[u8] = b"C\0\0\0\x0bCOMMIT\0Z\0\0\0\x05I";
    const READY: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";

    /// A connection with a transaction, all of it released.
    fn connected() -> (Output, u32) {
        let mut output = Output::new(Protection::Commits, PORT);
        output.hold();
        assert_eq!(output.leaves(says(99, SYN | ACK, b"")), None);
        assert_eq!(output.leaves(says(100, ACK, READY)), None);
        output.made(Number(1));
        assert_eq!(output.release(Number(1)).len(), 2);
        (output, 100 + READY.len() as u32)
    }

    #[test]
    fn everything_waits_for_its_checkpoint() {
        let mut output = Output::new(Protection::Everything, PORT);
        output.hold();
        let frame = says(100, ACK, b"");
        assert_eq!(output.leaves(frame.clone()), None);
        output.made(Number(1));
        assert_eq!(output.leaves(says(100, ACK, BEGIN)), None);
        assert_eq!(output.release(Number(1)), [frame]);
        assert_eq!(output.open().len(), 1);
        assert!(output.leaves(says(100, ACK, b"")).is_some());
    }

    #[test]
    fn without_protection_nothing_waits_and_connections_are_known() {
        let mut output = Output::new(Protection::Nothing, PORT);
        output.hold();
        assert!(output.leaves(says(99, SYN | ACK, b"")).is_some());
        assert!(output.leaves(says(100, ACK, READY)).is_some());
        assert_eq!(output.made(Number(1)).len(), 1);
    }

    #[test]
    fn with_commit_protection_outcomes_wait_and_the_rest_stays_in_order() {
        let (mut output, mut seq) = connected();
        assert!(output.leaves(says(seq, ACK, BEGIN)).is_some());
        // Once more: it may be what waits.
        assert!(output.leaves(says(seq, ACK, BEGIN)).is_none());
        output.made(Number(2));
        output.release(Number(2));
        seq += BEGIN.len() as u32;
        assert!(output.leaves(says(seq, ACK, COMMIT)).is_none());
        seq += COMMIT.len() as u32;
        assert!(
            output.leaves(says(seq, ACK, BEGIN)).is_none(),
            "behind what waits"
        );
        output.made(Number(3));
        assert_eq!(output.release(Number(2)).len(), 0);
        assert_eq!(output.release(Number(3)).len(), 2);
        seq += BEGIN.len() as u32;
        assert!(output.leaves(says(seq, ACK, b"")).is_some());
    }

    #[test]
    fn connections_that_waited_for_nothing_go_on() {
        let (mut output, seq) = connected();
        let flows = output.made(Number(2));
        let now = Duration::from_secs(5);
        let mut survivor = Output::new(Protection::Commits, PORT);
        let probes = survivor.take_over(flows.clone(), now);
        assert_eq!(probes.out.len(), 1);
        assert_eq!(survivor.comes(&client(500, seq)), Frames::default());
        assert_eq!(survivor.tick(now + SETTLES_WITHIN), Frames::default());
        assert!(!survivor.is_settling());
        assert_eq!(survivor.resets(), 0);
    }

    #[test]
    fn connections_beyond_the_checkpoint_are_reset_on_both_sides() {
        let (mut output, seq) = connected();
        let flows = output.made(Number(2));
        // What passed after the checkpoint: the client has it, and the survivor never said it.
        assert!(output.leaves(says(seq, ACK, BEGIN)).is_some());
        let now = Duration::from_secs(5);
        let mut survivor = Output::new(Protection::Commits, PORT);
        survivor.take_over(flows.clone(), now);
        let frames = survivor.comes(&client(500, seq + BEGIN.len() as u32));
        let to_client = Segment::parse(&frames.out[0]).unwrap();
        assert_eq!(
            (to_client.seq, to_client.has(RST)),
            (seq + BEGIN.len() as u32, true)
        );
        let to_machine = Segment::parse(&frames.to_machine[0]).unwrap();
        assert_eq!((to_machine.seq, to_machine.has(RST)), (500, true));

        // The machine that was lost had acknowledged what the client sent.
        let mut survivor = Output::new(Protection::Commits, PORT);
        survivor.take_over(flows, now);
        assert_eq!(survivor.comes(&client(540, seq)), Frames::default());
        assert_eq!(survivor.tick(now + SETTLES_WITHIN).out.len(), 1);
        assert_eq!(survivor.resets(), 1);
    }
}
