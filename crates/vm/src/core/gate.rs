//! What the machine says, until it may be heard.
//!
//! Invariant: while the gate holds, what was put in leaves in order, and only once the checkpoint that follows it is safe.

use std::collections::VecDeque;

use super::record::Number;

/// Holds output back by checkpoints.
#[derive(Debug)]
pub struct Gate<T> {
    holds: bool,
    /// The last checkpoint that was made.
    made: Number,
    /// Each with the checkpoint that covers it.
    held: VecDeque<(Number, T)>,
}

impl<T> Default for Gate<T> {
    fn default() -> Gate<T> {
        Gate {
            holds: true,
            made: Number::default(),
            held: VecDeque::new(),
        }
    }
}

impl<T> Gate<T> {
    /// Output of the machine: given back if it may be heard now.
    pub fn put(&mut self, output: T) -> Option<T> {
        if !self.holds {
            return Some(output);
        }
        self.held.push_back((self.made.next(), output));
        None
    }

    /// A checkpoint was made while the machine stood still: what was put in so far belongs to it.
    pub fn made(&mut self, number: Number) {
        self.made = number;
    }

    /// From now on output waits.
    pub fn hold(&mut self) {
        self.holds = true;
    }

    /// The checkpoint is safe, and so are all before it.
    pub fn release(&mut self, number: Number) -> Vec<T> {
        let covered = self.held.partition_point(|(by, _)| *by <= number);
        self.held
            .drain(..covered)
            .map(|(_, output)| output)
            .collect()
    }

    /// Nothing waits any more: nobody can take over who does not know of it.
    pub fn open(&mut self) -> Vec<T> {
        self.holds = false;
        self.held.drain(..).map(|(_, output)| output).collect()
    }

    /// The machine is gone, and nobody shall hear what it said.
    pub fn discard(&mut self) {
        self.holds = true;
        self.held.clear();
        self.made = Number::default();
    }

    /// How much waits.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// True if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// True if output waits for checkpoints.
    pub fn holds(&self) -> bool {
        self.holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_waits_for_the_checkpoint_that_follows_it() {
        let mut gate = Gate::default();
        assert_eq!(gate.put("a"), None);
        gate.made(Number(1));
        assert_eq!(gate.put("b"), None);
        assert_eq!(gate.release(Number(1)), ["a"]);
        assert!(gate.release(Number(1)).is_empty());
        gate.made(Number(2));
        assert_eq!(gate.put("c"), None);
        assert_eq!(gate.release(Number(2)), ["b"]);
        assert_eq!(gate.open(), ["c"]);
        assert_eq!(gate.put("d"), Some("d"));
        gate.hold();
        assert_eq!(gate.put("e"), None);
        gate.discard();
        assert!(gate.open().is_empty());
    }
}
