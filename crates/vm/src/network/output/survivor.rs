//! After a takeover: which connections can go on, and what makes them.
//!
//! Each connection that the checkpoint knows is asked where its client is, by a keepalive probe: one whose client is beyond the checkpoint
//! is reset on both sides, so that nobody waits for ever. What the machine says meanwhile is held: a client that is beyond would take the
//! rest of it for what follows, and have read bytes of two machines.
//!
//! ```text
//!   Asked ── the client is not beyond ──▶ Answered ── what it sent has arrived, or 1 s is over ──▶ goes on
//!     │                                      └── what it sent is lost ──▶ reset
//!     └── it is beyond, or silent for 10 s ──▶ reset
//! ```
//!
//! Invariant: nothing that the machine says on a connection which may be beyond the checkpoint reaches the client, or is counted as said,
//! before the client has told where it is.
//!
//! A client whose segments did not arrive waits longer each time before it sends them again, and would go on waiting after the takeover.
//! It is told that they did not arrive while the machine could not be reached, and sends them at once (RFC 6069).

use std::time::Duration;

use super::super::segment::{ACK, End, RST, Segment};
use super::{Flow, Frames, Output, is_after};

/// How long after a takeover a client's bytes may be on their way to the machine.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);
/// How long a client may take to say where it is.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Frames of a connection that wait for its client's answer. The machine sends the others again.
const HELD_FRAMES: usize = 64;
/// Between two probes.
const PROBE_EVERY: Duration = Duration::from_millis(300);

/// How often a client is told that a segment did not arrive: each time takes one doubling of its patience back.
const TOLD: usize = 6;

impl Flow {
    /// Segments that make the client send again what did not arrive, if there is something: first what did arrive, as far as the machine knows.
    fn wakes(&self) -> impl Iterator<Item = Vec<u8>> + use<> {
        let arrived = Segment {
            from: self.machine,
            to: self.client,
            seq: self.next,
            ack: self.expects,
            flags: ACK,
            payload: &[],
        };
        let lost = Segment {
            from: self.client,
            to: self.machine,
            seq: self.expects,
            ack: self.next,
            ..arrived
        };
        let told = std::iter::repeat_n(lost.unreachable(), TOLD);
        std::iter::once(arrived.build()).chain(told)
    }
}

/// A connection that is asked where its client is.
pub(super) struct Probed {
    since: Duration,
    probed: Duration,
    /// How far the client has sent, once it has answered.
    sent: Option<u32>,
    /// Frames of the machine since.
    held: Vec<Vec<u8>>,
}

impl Output {
    /// Connections that were reset after a takeover.
    pub fn resets(&self) -> u64 {
        self.resets
    }

    /// The machine runs on here, with these connections.
    pub fn take_over(&mut self, flows: Vec<Flow>) -> Frames {
        let now = self.now;
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
                    held: Vec::new(),
                },
            )
        };
        let may_be_beyond = self.flows.iter().filter(|(_, flow)| !flow.waits);
        self.probed = may_be_beyond.map(|(key, _)| probed(key)).collect();
        let mut frames = self.probe();
        frames.out.extend(self.flows.values().flat_map(Flow::wakes));
        frames
    }

    /// True if the client of a connection is asked where it is, and has not answered.
    pub(super) fn is_asked(&self, flow: &Flow) -> bool {
        let probed = self.probed.get(&(flow.machine, flow.client));
        probed.is_some_and(|probed| probed.sent.is_none())
    }

    /// A frame of a connection whose client has not said yet where it is waits for that; others are given back.
    pub(super) fn wait_for_client(&mut self, frame: Vec<u8>) -> Option<Vec<u8>> {
        if self.probed.is_empty() {
            return Some(frame);
        }
        let key = Segment::parse(&frame).map(|segment| (segment.from, segment.to));
        let asked = key.and_then(|key| self.probed.get_mut(&key));
        let Some(asked) = asked.filter(|probed| probed.sent.is_none()) else {
            return Some(frame);
        };
        if asked.held.len() < HELD_FRAMES {
            asked.held.push(frame);
        }
        None
    }

    fn probe(&self) -> Frames {
        let asked = self.probed.iter().filter(|(_, it)| it.sent.is_none());
        let flows = asked.filter_map(|(key, _)| self.flows.get(key));
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
        let Some(segment) = Segment::parse(frame) else {
            return frames;
        };
        let key = (segment.to, segment.from);
        if segment.has(RST) {
            self.forget(&key);
            self.probed.remove(&key);
            return frames;
        }
        let Some(probed) = self.probed.get_mut(&key).filter(|_| segment.has(ACK)) else {
            return frames;
        };
        if probed.sent.is_some() {
            return frames;
        }
        // Nothing that the machine has said since is counted yet.
        let flow = self.flows.get(&key);
        if flow.is_some_and(|flow| is_after(segment.ack, flow.next)) {
            self.reset(key, segment.ack, segment.end(), &mut frames);
            return frames;
        }
        probed.sent = Some(segment.end());
        let held = std::mem::take(&mut probed.held);
        frames.out = held.into_iter().filter_map(|it| self.leaves(it)).collect();
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
    pub fn tick(&mut self) -> Frames {
        let now = self.now;
        let mut frames = Frames::default();
        let mut done = Vec::new();
        let mut again = false;
        for (key, probed) in &mut self.probed {
            let within = match probed.sent {
                Some(_) => SETTLES_WITHIN,
                None => ANSWERS_WITHIN,
            };
            if now >= probed.since + within {
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
            let is_silent = sent.is_none();
            self.probed.remove(&key);
            let Some(flow) = self.flows.get(&key) else {
                continue;
            };
            // The machine has not got what the client sent, and the client does not send it again; or nobody knows where it is.
            let (next, sent) = (flow.next, sent.unwrap_or(flow.expects));
            if is_silent || is_after(sent, flow.expects) {
                self.reset(key, next, sent, &mut frames);
            }
        }
        frames
    }

    /// True if [`tick`](Output::tick) has something to do.
    pub fn is_settling(&self) -> bool {
        !self.probed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::segment::end;
    use super::super::Protection;
    use super::super::tests::{BEGIN, PORT, READY, connected, says};
    use super::*;
    use crate::core::Number;

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

    /// Time passes.
    fn later(survivor: &mut Output, length: Duration) -> Frames {
        survivor.at(survivor.now + length);
        survivor.tick()
    }

    #[test]
    fn connections_that_waited_for_nothing_go_on() {
        let (mut output, seq) = connected();
        let flows = output.made(Number(2));
        let mut survivor = Output::new(Protection::Commits, PORT);
        let probes = survivor.take_over(flows.clone());
        assert_eq!(probes.out.len(), 1 + 1 + TOLD);
        assert_eq!(survivor.comes(&client(500, seq)), Frames::default());
        assert_eq!(later(&mut survivor, SETTLES_WITHIN), Frames::default());
        assert!(!survivor.is_settling());
        assert_eq!(survivor.resets(), 0);
    }

    // hazard: VM-18
    #[test]
    fn a_client_that_can_only_wait_is_never_reset_and_is_told_what_did_not_arrive() {
        let (mut output, seq) = connected();
        output.protect(Protection::Everything);
        let flows = output.made(Number(2));
        let mut survivor = Output::new(Protection::Everything, PORT);
        let frames = survivor.take_over(flows);
        let arrived = Segment::parse(&frames.out[0]).unwrap();
        assert_eq!((arrived.seq, arrived.ack), (seq, 500));
        // The number of what the client sends again.
        assert_eq!(frames.out[1][58 + 8..][..4], 500_u32.to_be_bytes());
        assert_eq!(frames.out.len(), 1 + TOLD);
        // It had sent something that the machine never got.
        assert_eq!(survivor.comes(&client(540, seq)), Frames::default());
        assert_eq!(later(&mut survivor, SETTLES_WITHIN), Frames::default());
    }

    // hazard: VM-31
    #[test]
    fn connections_beyond_the_checkpoint_are_reset_on_both_sides() {
        let (mut output, seq) = connected();
        let flows = output.made(Number(2));
        // What passed after the checkpoint: the client has it, and the survivor never said it.
        assert!(output.leaves(says(seq, ACK, BEGIN)).is_some());
        let mut survivor = Output::new(Protection::Commits, PORT);
        survivor.take_over(flows.clone());
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
        survivor.take_over(flows);
        assert_eq!(survivor.comes(&client(540, seq)), Frames::default());
        assert_eq!(later(&mut survivor, SETTLES_WITHIN).out.len(), 1);
        assert_eq!(survivor.resets(), 1);
    }

    /// The server spoke first, and what it had said since counted: a client that had read beyond the checkpoint looked as if it had not,
    /// and read the rest of what the survivor said behind bytes of the machine that was lost.
    // hazard: VM-32
    #[test]
    fn output_waits_until_its_client_has_shown_its_position() {
        let (mut output, seq) = connected();
        let flows = output.made(Number(2));
        assert!(output.leaves(says(seq, ACK, BEGIN)).is_some());
        let beyond = client(500, seq + BEGIN.len() as u32);
        let survivor = || {
            let mut survivor = Output::new(Protection::Commits, PORT);
            survivor.open();
            survivor.take_over(flows.clone());
            assert_eq!(survivor.leaves(says(seq, ACK, READY)), None);
            survivor
        };
        let frames = survivor().comes(&beyond);
        assert_eq!((frames.out.len(), frames.to_machine.len()), (1, 1));
        assert!(Segment::parse(&frames.out[0]).unwrap().has(RST));
        // One that is not beyond hears it as soon as it has answered.
        let frames = survivor().comes(&client(500, seq));
        assert_eq!(frames.out, [says(seq, ACK, READY)]);
        // Of one that does not answer nobody knows; it is asked again before it is given up.
        let mut survivor = survivor();
        assert!(!later(&mut survivor, PROBE_EVERY).out.is_empty());
        assert!(survivor.is_settling());
        let frames = later(&mut survivor, ANSWERS_WITHIN);
        assert!(Segment::parse(&frames.out[0]).unwrap().has(RST));
        assert_eq!(survivor.resets(), 1);
        assert!(!survivor.is_settling());
    }

    /// It is protected again before the client has answered, and lost.
    // hazard: VM-32
    #[test]
    fn a_second_survivor_asks_clients_that_did_not_answer_the_first() {
        let (mut output, _) = connected();
        let flows = output.made(Number(2));
        let mut survivor = Output::new(Protection::Everything, PORT);
        survivor.take_over(flows);
        let flows = survivor.made(Number(1));
        let mut second = Output::new(Protection::Everything, PORT);
        second.take_over(flows);
        assert!(second.is_settling());
    }
}
