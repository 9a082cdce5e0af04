//! A delay line: one direction of a connection. Pure: it is told the time and the link.
//!
//! Invariants: chunks come out in the order they went in, each once, never before its time, and none
//! while the link is cut.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Link;

/// Bytes on their way; beyond them the sender waits.
const MAX_BYTES: usize = 64 << 20;

/// A cut connection whose sender is gone is forgotten after so long, as the keepalive of a real one
/// would find.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(20);

/// What goes one way.
pub(super) struct DelayLine {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// When the last chunk is due: no later one is due before it.
    last_due: Instant,
    ended_at: Option<Instant>,
    chance: SmallRng,
}

struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Deliver(Vec<u8>),
    /// Nothing more will come.
    End,
    WaitUntil(Instant),
    /// Until something is put in, or the link changes.
    Wait,
}

impl DelayLine {
    /// An empty line; `seed` decides jitter and loss.
    pub fn new(now: Instant, seed: u64) -> DelayLine {
        DelayLine {
            chunks: VecDeque::new(),
            bytes: 0,
            last_due: now,
            ended_at: None,
            chance: SmallRng::seed_from_u64(seed),
        }
    }

    /// True if the sender has to wait.
    pub fn is_full(&self) -> bool {
        self.bytes >= MAX_BYTES
    }

    /// Sends a chunk on its way; `now` it leaves.
    pub fn put(&mut self, now: Instant, bytes: Vec<u8>, link: Option<&Link>) {
        let delay = link.map_or(Duration::ZERO, |link| self.delay(link));
        self.last_due = self.last_due.max(now + delay);
        self.bytes += bytes.len();
        let due = self.last_due;
        self.chunks.push_back(Chunk { due, bytes });
    }

    fn delay(&mut self, link: &Link) -> Duration {
        let mut delay = link.latency;
        if !link.jitter.is_zero() {
            delay += self.chance.random_range(Duration::ZERO..=link.jitter);
        }
        if link.loss > 0.0 && self.chance.random_bool(link.loss) {
            delay += link.rto;
        }
        delay
    }

    /// The sender has closed: that travels as well.
    pub fn end(&mut self, now: Instant, link: Option<&Link>) {
        self.put(now, Vec::new(), link);
        self.ended_at = Some(now);
    }

    /// What the receiver gets, if the link is not `cut`.
    pub fn next(&mut self, now: Instant, cut: bool) -> Next {
        if cut {
            return match self.ended_at.map(|at| at + FORGOTTEN_AFTER) {
                None => Next::Wait,
                Some(at) if now < at => Next::WaitUntil(at),
                Some(_) => Next::End,
            };
        }
        match self.chunks.front() {
            None => Next::Wait,
            Some(chunk) if now < chunk.due => Next::WaitUntil(chunk.due),
            Some(_) => self.deliver(),
        }
    }

    fn deliver(&mut self) -> Next {
        match self.chunks.pop_front() {
            Some(chunk) if !chunk.bytes.is_empty() => {
                self.bytes -= chunk.bytes.len();
                Next::Deliver(chunk.bytes)
            }
            _ => Next::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn link(latency: u32, jitter: u32, loss: f64) -> Link {
        Link {
            latency: MS * latency,
            jitter: MS * jitter,
            loss,
            ..Link::new("a", "b")
        }
    }

    #[test]
    fn chunks_travel_at_the_same_time() {
        let start = Instant::now();
        let mut line = DelayLine::new(start, 0);
        let far = link(50, 0, 0.0);
        for at in 0..10 {
            line.put(start + MS * at, vec![at as u8], Some(&far));
        }
        assert_eq!(line.next(start, false), Next::WaitUntil(start + MS * 50));
        for at in 0..10 {
            let due = start + MS * (50 + at);
            assert_eq!(line.next(due - MS / 2, false), Next::WaitUntil(due));
            assert_eq!(line.next(due, false), Next::Deliver(vec![at as u8]));
        }
        assert_eq!(line.next(start + MS * 1000, false), Next::Wait);
    }

    #[test]
    fn a_cut_holds_everything_and_then_gives_everything() {
        let start = Instant::now();
        let mut line = DelayLine::new(start, 0);
        line.put(start, vec![1], None);
        line.put(start, vec![2], None);
        assert_eq!(line.next(start + MS * 100_000, true), Next::Wait);
        line.end(start, None);
        let later = start + MS * 10_000;
        assert_eq!(
            line.next(later, true),
            Next::WaitUntil(start + FORGOTTEN_AFTER)
        );
        assert_eq!(line.next(later, false), Next::Deliver(vec![1]));
        assert_eq!(line.next(later, false), Next::Deliver(vec![2]));
        assert_eq!(line.next(later, false), Next::End);
    }

    #[test]
    fn a_cut_connection_without_a_sender_is_forgotten() {
        let start = Instant::now();
        let mut line = DelayLine::new(start, 0);
        line.put(start, vec![1], None);
        line.end(start, None);
        assert_eq!(line.next(start + FORGOTTEN_AFTER, true), Next::End);
    }

    #[test]
    fn a_lost_chunk_holds_up_what_follows() {
        let start = Instant::now();
        let mut line = DelayLine::new(start, 0);
        line.put(start, vec![1], Some(&link(10, 0, 1.0)));
        line.put(start, vec![2], Some(&link(10, 0, 0.0)));
        let due = start + MS * 210;
        assert_eq!(line.next(start, false), Next::WaitUntil(due));
        assert_eq!(line.next(due, false), Next::Deliver(vec![1]));
        assert_eq!(line.next(due, false), Next::Deliver(vec![2]));
    }

    proptest! {
        /// Whatever the link does: in order, each once, none early; the same seed, the same times.
        #[test]
        fn order_and_latency_are_kept(
            sent in proptest::collection::vec((0u32..20, 0u32..50, 0u32..30, 0.0..=1.0f64), 1..50),
            seed: u64,
        ) {
            let start = Instant::now();
            let mut lines = [DelayLine::new(start, seed), DelayLine::new(start, seed)];
            let mut at = start;
            let mut earliest = Vec::new();
            for (n, (pause, latency, jitter, loss)) in sent.iter().enumerate() {
                at += MS * *pause;
                for line in &mut lines {
                    line.put(at, vec![n as u8], Some(&link(*latency, *jitter, *loss)));
                }
                earliest.push(at + MS * *latency);
            }
            let mut now = start;
            for (n, earliest) in earliest.iter().enumerate() {
                let next = lines.each_mut().map(|line| loop {
                    match line.next(now, false) {
                        Next::WaitUntil(due) => now = due,
                        other => break other,
                    }
                });
                prop_assert_eq!(&next[0], &Next::Deliver(vec![n as u8]));
                prop_assert_eq!(&next[0], &next[1]);
                prop_assert!(now >= *earliest);
            }
        }
    }
}
