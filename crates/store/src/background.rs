//! Threads for work that nobody waits for: compaction, and the janitor. They give way to those that commit and
//! read when the processor is full, and have all of it when it is not.
//!
//! Invariant: they lag for as long as the processor is full, not for ever: at [`NICE`] a thread still has a share,
//! and an engine whose flushes lag makes writers wait in the end.

use std::panic::resume_unwind;

/// What their niceness is above that of the process: a third of another thread's share.
const NICE: i32 = 5;

/// The calling thread, and those that it starts from now on, give way to others. One that may not just goes on.
pub(crate) fn give_way() {
    let lowered = rustix::process::nice(NICE);
    if let Err(error) = lowered {
        tracing::debug!(%error, "background work has the priority of all else");
    }
}

/// Runs something whose threads shall give way.
pub(crate) fn started_by<T: Send>(start: impl FnOnce() -> T + Send) -> T {
    let started = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            give_way();
            start()
        });
        thread.join()
    });
    started.unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> i32 {
        rustix::process::getpriority_process(None).unwrap()
    }

    #[test]
    fn threads_started_in_the_background_give_way_and_their_starter_does_not() {
        let before = own();
        let inside = started_by(|| std::thread::spawn(own).join().unwrap());
        assert_eq!(inside, (before + NICE).min(19));
        assert_eq!(own(), before);
    }
}
