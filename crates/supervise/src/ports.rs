//! Free TCP ports, for clusters that run on one machine (demos, benchmarks, tests).
//!
//! Invariant: below the range from which the kernel takes ports for outgoing connections, so that
//! a client's connection cannot take the port of a node that is just being restarted.

use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 15_000;
const COUNT: u16 = 16_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port that nobody listens on. Each call of a process returns another one.
///
/// # Errors
/// All are taken.
pub fn free() -> io::Result<u16> {
    // Demos beside each other start at different places.
    let start = (std::process::id() % u32::from(COUNT / 32)) as u16 * 32;
    for _ in 0..COUNT {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = FIRST + offset;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    let text = format!("no free TCP port between {FIRST} and {}", FIRST + COUNT);
    Err(io::Error::new(io::ErrorKind::AddrInUse, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_free_and_not_given_twice() {
        let (one, two) = (free().unwrap(), free().unwrap());
        assert_ne!(one, two);
        // A cluster that starts beside this test may be quicker once, hardly three times.
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        assert!((0..3).any(|_| is_free(free().unwrap())));
    }
}
