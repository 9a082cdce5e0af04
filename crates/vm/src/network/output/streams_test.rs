//! Takeovers under a conversation, from seeds: what a client reads is what one machine said.
//!
//! A server says rows within transactions, which pass at once, and commits, which wait. Frames are lost. At some moment the machine runs
//! on elsewhere from a checkpoint, and says something else from there on. Judged is: the client's bytes are the beginning of what one of
//! the two machines said; a client that is not reset can go on.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::super::segment::{ACK, RST, SYN, Segment, end};
use super::tests::{BEGIN, COMMIT, LATER, PORT, READY};
use super::*;

const FIRST: u32 = 99;
const STEPS: u32 = 120;

/// The server's side of the connection.
#[derive(Clone, Default)]
struct Server {
    said: Vec<u8>,
    acknowledged: usize,
    machine: u8,
    is_inside: bool,
    is_reset: bool,
}

impl Server {
    fn segment(&self, from: usize) -> Vec<u8> {
        let (machine, client) = (end(1, PORT), end(2, 40_000));
        Segment {
            from: machine,
            to: client,
            seq: FIRST + 1 + from as u32,
            ack: 500,
            flags: ACK,
            payload: &self.said[from..],
        }
        .build()
    }

    /// Says something new, or again what nobody has acknowledged.
    fn says(&mut self, rng: &mut SmallRng) -> Option<Vec<u8>> {
        if self.is_reset {
            return None;
        }
        if rng.random_bool(0.3) {
            return (self.acknowledged < self.said.len()).then(|| self.segment(self.acknowledged));
        }
        let from = self.said.len();
        let ends = rng.random_bool(0.2);
        match (self.is_inside, ends) {
            (false, _) => self.said.extend_from_slice(BEGIN),
            (true, true) => self.said.extend_from_slice(COMMIT),
            (true, false) => {
                let row = [self.machine, rng.random()];
                self.said.extend_from_slice(&[b'D', 0, 0, 0, 6]);
                self.said.extend_from_slice(&row);
            }
        }
        self.is_inside = !(self.is_inside && ends);
        Some(self.segment(from))
    }
}

struct World {
    rng: SmallRng,
    output: Output,
    server: Server,
    made: Vec<(Number, Server, Vec<Flow>)>,
    /// All that the lost machine said.
    lost: Vec<u8>,
    on_the_way: VecDeque<Vec<u8>>,
    read: Vec<u8>,
    is_reset: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let mut output = Output::new(Protection::Commits, PORT);
        output.hold();
        let server = Server {
            said: READY.to_vec(),
            ..Server::default()
        };
        let accepts = Segment {
            from: end(1, PORT),
            to: end(2, 40_000),
            seq: FIRST,
            ack: 500,
            flags: SYN | ACK,
            payload: &[],
        };
        output.leaves(accepts.build());
        output.leaves(server.segment(0));
        let flows = output.made(Number(1));
        let on_the_way = output.release(Number(1), LATER).into();
        World {
            rng: SmallRng::seed_from_u64(seed),
            output,
            made: vec![(Number(1), server.clone(), flows)],
            server,
            lost: Vec::new(),
            on_the_way,
            read: Vec::new(),
            is_reset: false,
        }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..8) {
            0..=2 => {
                let said = self.server.says(&mut self.rng);
                let frame = said.and_then(|frame| self.output.leaves(frame));
                self.on_the_way.extend(frame);
            }
            3 | 4 => {
                let arrives = self.rng.random_bool(0.8);
                if let Some(frame) = self.on_the_way.pop_front().filter(|_| arrives) {
                    self.client_hears(&frame);
                }
            }
            5 => self.client_answers(),
            6 => {
                let number = self.made.last().map_or(Number(1), |(made, ..)| made.next());
                let flows = self.output.made(number);
                self.made.push((number, self.server.clone(), flows));
            }
            _ => {
                let known = self.rng.random_range(0..self.made.len());
                let number = self.made[known].0;
                self.made.drain(..known);
                self.on_the_way.extend(self.output.release(number, LATER));
            }
        }
    }

    fn client_hears(&mut self, frame: &[u8]) {
        let Some(segment) = Segment::parse(frame) else {
            return;
        };
        let expects = FIRST + 1 + self.read.len() as u32;
        if segment.has(RST) {
            self.is_reset |= segment.seq == expects;
        }
        let known = expects.wrapping_sub(segment.seq) as usize;
        if !self.is_reset && !segment.has(SYN) && known <= segment.payload.len() {
            self.read.extend_from_slice(&segment.payload[known..]);
        }
    }

    fn client_answers(&mut self) {
        if self.is_reset {
            return;
        }
        let read = self.read.len();
        let answer = Segment {
            from: end(2, 40_000),
            to: end(1, PORT),
            seq: 500,
            ack: FIRST + 1 + read as u32,
            flags: ACK,
            payload: &[],
        };
        let frames = self.output.comes(&answer.build());
        self.server.is_reset |= !frames.to_machine.is_empty();
        self.on_the_way.extend(frames.out);
        if read <= self.server.said.len() {
            self.server.acknowledged = self.server.acknowledged.max(read);
        }
    }

    /// Any checkpoint that the standby holds: whatever was released is covered by all of them.
    fn take_over(&mut self) {
        let known = self.rng.random_range(0..self.made.len());
        let (_, server, flows) = self.made.swap_remove(known);
        // What a machine that is lost has sent arrives, or does not, before somebody else has its address.
        while let Some(frame) = self.on_the_way.pop_front() {
            if self.rng.random_bool(0.7) {
                self.client_hears(&frame);
            }
        }
        self.lost = std::mem::replace(&mut self.server, server).said;
        self.server.machine = 1;
        self.output = Output::new(Protection::Commits, PORT);
        self.output.open();
        let frames = self.output.take_over(flows);
        self.on_the_way.extend(frames.out);
        self.made.clear();
        self.made.push((Number(0), self.server.clone(), Vec::new()));
    }

    fn judge(&self, seed: u64) {
        let is_one = self.lost.starts_with(&self.read) || self.server.said.starts_with(&self.read);
        assert!(is_one, "seed {seed}: bytes of two machines");
    }
}

#[test]
fn a_client_reads_what_one_machine_said() {
    let (mut resets, mut went_on) = (0, 0);
    for seed in 0..3_000 {
        let mut world = World::new(seed);
        let before = world.rng.random_range(0..STEPS);
        for _ in 0..before {
            world.step();
        }
        world.take_over();
        for _ in 0..STEPS {
            world.step();
            world.judge(seed);
        }
        resets += u32::from(world.is_reset);
        went_on += u32::from(!world.lost.starts_with(&world.read) && !world.is_reset);
    }
    assert!(
        resets > 100 && went_on > 1000,
        "{resets} were reset, {went_on} went on"
    );
}
