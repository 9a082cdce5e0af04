//! What happened, step by step: always as a hash, so that two runs of a seed can be compared; as text
//! where somebody wants to read it.

use std::hash::Hasher;

use crate::client::core::Time;
use crate::writer::IdHasher;

/// The trace of one schedule.
pub struct Trace {
    hash: IdHasher,
    print: bool,
    steps: u64,
}

impl Trace {
    /// An empty trace; with `print`, steps are printed as they come.
    pub fn new(print: bool) -> Trace {
        Trace {
            hash: IdHasher::default(),
            print,
            steps: 0,
        }
    }

    /// One step: its kind, and what tells it from others of its kind. The text is made only if
    /// somebody reads it.
    pub fn step(&mut self, now: Time, kind: u8, what: [u64; 3], text: impl FnOnce() -> String) {
        self.steps += 1;
        self.hash.write_u64(now.as_nanos() as u64);
        self.hash.write_u8(kind);
        what.into_iter().for_each(|n| self.hash.write_u64(n));
        if self.print {
            println!("{:>10.3} ms  {}", now.as_secs_f64() * 1e3, text());
        }
    }

    /// Two runs of a seed give the same.
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }
}
