//! The clock that hosts decide by.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Time since the machine started, with the time that it was suspended.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME);
    now.expect("Linux has this clock since 2.6.39").into()
}

/// The same in milliseconds.
pub fn since_boot_ms() -> u64 {
    u64::try_from(since_boot().as_millis()).unwrap_or(u64::MAX)
}

/// Names this run of the machine's kernel: what was written to a file and not synced is lost with it, and not before.
pub fn boot() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}
