//! After a takeover: which connections can go on, and what makes them.
//!
//! Each connection that the checkpoint knows is asked where its client is, by a keepalive probe: one whose client is beyond the checkpoint
//! is reset on both sides, so that nobody waits for ever.
//!
//! A client whose segments did not arrive waits longer each time before it sends them again, and would go on waiting after the takeover.
//! It is told that they did not arrive while the machine could not be reached, and sends them at once (RFC 6069).

use std::time::Duration;

use super::super::segment::{ACK, End, RST, Segment};
use super::{Flow, Frames, Output, is_after};

/// How long after a takeover a client's bytes may be on their way to the machine.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);
/// Between two probes.
const PROBE_EVERY: Duration = Duration::from_millis(300);

/// How often a client is told that a segment did not arrive: each time takes one doubling of its patience back.
const TOLD: usize = 6;

impl Flow {
    /// What makes the client send again what did not arrive, if there is something: first what did arrive, as far as the machine knows.
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
    /// How far the client has sent.
    sent: Option<u32>,
}

impl Output {
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
        let may_be_beyond = self.flows.iter().filter(|(_, flow)| !flow.waits);
        self.probed = may_be_beyond.map(|(key, _)| probed(key)).collect();
        let mut frames = self.probe();
        frames.out.extend(self.flows.values().flat_map(Flow::wakes));
        frames
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

    /// True if [`tick`](Output::tick) has something to do.
    pub fn is_settling(&self) -> bool {
        !self.probed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::segment::end;
    use super::super::Protection;
    use super::super::tests::{BEGIN, PORT, connected, says};
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

    #[test]
    fn connections_that_waited_for_nothing_go_on() {
        let (mut output, seq) = connected();
        let flows = output.made(Number(2));
        let now = Duration::from_secs(5);
        let mut survivor = Output::new(Protection::Commits, PORT);
        let probes = survivor.take_over(flows.clone(), now);
        assert_eq!(probes.out.len(), 1 + 1 + TOLD);
        assert_eq!(survivor.comes(&client(500, seq)), Frames::default());
        assert_eq!(survivor.tick(now + SETTLES_WITHIN), Frames::default());
        assert!(!survivor.is_settling());
        assert_eq!(survivor.resets(), 0);
    }

    #[test]
    fn a_client_that_can_only_wait_is_never_reset_and_is_told_what_did_not_arrive() {
        let (mut output, seq) = connected();
        output.protect(Protection::Everything);
        let flows = output.made(Number(2));
        let now = Duration::from_secs(5);
        let mut survivor = Output::new(Protection::Everything, PORT);
        let frames = survivor.take_over(flows, now);
        let arrived = Segment::parse(&frames.out[0]).unwrap();
        assert_eq!((arrived.seq, arrived.ack), (seq, 500));
        // The number of what the client sends again.
        assert_eq!(frames.out[1][58 + 8..][..4], 500_u32.to_be_bytes());
        assert_eq!(frames.out.len(), 1 + TOLD);
        // It had sent something that the machine never got.
        assert_eq!(survivor.comes(&client(540, seq)), Frames::default());
        assert_eq!(survivor.tick(now + SETTLES_WITHIN), Frames::default());
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
