//! Long lines between network namespaces: delay, loss and cuts for every ordered pair, for whatever runs
//! there. (The kernel's own emulation, netem, is not in every kernel.)
//!
//! Each end is a TUN device; every packet that leaves one is carried to another here. Invariant: packets of
//! one pair stay in order, and none arrives before its delay is over. What decides that is [`Line`], which
//! has no clock; threads around it read, wait and write.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Larger than any packet of a TUN device with its usual MTU.
const PACKET_BYTES: usize = 64 * 1024;
/// How often threads look whether all is over.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The highest IPv4 address bytes name the end.
const DESTINATION_BYTE: usize = 19;

nix::ioctl_write_ptr_bad!(
    /// Makes an open `/dev/net/tun` the device that is named: `TUNSETIFF`.
    set_interface,
    nix::request_code_write!(b'T', 202, size_of::<libc::c_int>()),
    libc::ifreq
);

/// What one direction between two ends does to packets.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Quality {
    /// How long a packet travels.
    pub delay: Duration,
    /// Of so many packets in a thousand nothing arrives; 1000: cut.
    pub loss_permille: u16,
}

/// Packets on their way from one end to another. Moments are since some fixed one.
#[derive(Debug, Default)]
struct Line {
    quality: Quality,
    travelling: VecDeque<(Duration, Vec<u8>)>,
}

impl Line {
    /// Takes a packet at a moment; `draw` is below 1000 and decides whether it is lost.
    fn send(&mut self, now: Duration, packet: &[u8], draw: u16) {
        if draw < self.quality.loss_permille {
            return;
        }
        let earliest = self
            .travelling
            .back()
            .map_or(Duration::ZERO, |(due, _)| *due);
        let due = (now + self.quality.delay).max(earliest);
        self.travelling.push_back((due, packet.to_vec()));
    }

    /// When the next one arrives.
    fn due(&self) -> Option<Duration> {
        self.travelling.front().map(|(due, _)| *due)
    }

    /// The next one that has arrived.
    fn receive(&mut self, now: Duration) -> Option<Vec<u8>> {
        let arrived = self.due().is_some_and(|due| due <= now);
        let (_, packet) = arrived.then(|| self.travelling.pop_front())??;
        Some(packet)
    }
}

/// Everything that travels to one end.
#[derive(Debug)]
struct Arrivals {
    /// By the end they come from.
    lines: Mutex<Vec<Line>>,
    sent: Condvar,
}

/// One end: its last address byte, its device, what travels there, and how much it has sent to each.
#[derive(Debug)]
struct End {
    address: u8,
    device: File,
    arrivals: Arrivals,
    sent_bytes: Vec<AtomicU64>,
}

/// Running lines between some ends. Dropping it stops them.
#[derive(Debug)]
pub struct Wan {
    ends: Arc<Vec<End>>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Wan {
    /// Joins devices, each with the last byte of its IPv4 address. All lines are perfect at first.
    pub fn join(devices: Vec<(u8, File)>) -> Wan {
        let count = devices.len();
        let end = |(address, device)| End {
            address,
            device,
            arrivals: Arrivals {
                lines: Mutex::new((0..count).map(|_| Line::default()).collect()),
                sent: Condvar::new(),
            },
            sent_bytes: (0..count).map(|_| AtomicU64::new(0)).collect(),
        };
        let ends: Arc<Vec<End>> = Arc::new(devices.into_iter().map(end).collect());
        let over = Arc::new(AtomicBool::new(false));
        let zero = Instant::now();
        let mut threads = Vec::new();
        for at in 0..count {
            for work in [leave, arrive] {
                let (ends, over) = (Arc::clone(&ends), Arc::clone(&over));
                threads.push(std::thread::spawn(move || work(&ends, at, zero, &over)));
            }
        }
        Wan {
            ends,
            over,
            threads,
        }
    }

    /// Changes what the line from one end to another does to packets that are sent from now on.
    pub fn set(&self, from: usize, to: usize, quality: Quality) {
        let mut lines = self.ends[to].arrivals.lines.lock();
        lines[from].quality = quality;
    }

    /// What it does.
    pub fn quality(&self, from: usize, to: usize) -> Quality {
        self.ends[to].arrivals.lines.lock()[from].quality
    }

    /// Bytes of all packets that an end has sent to another.
    pub fn sent_bytes(&self, from: usize, to: usize) -> u64 {
        self.ends[from].sent_bytes[to].load(Ordering::Relaxed)
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::warn!("a thread of the emulated network panicked");
            }
        }
    }
}

/// Makes a TUN device in this process's network namespace; it lasts as long as the file.
///
/// # Errors
/// The caller is not root, the kernel has no TUN devices, or the name is taken.
pub fn device(name: &str) -> anyhow::Result<File> {
    let path = "/dev/net/tun";
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.with_context(|| format!("cannot open {path}"))?;
    let mut ifr_name = [0; libc::IFNAMSIZ];
    // The last byte stays zero.
    for (to, from) in ifr_name
        .iter_mut()
        .take(libc::IFNAMSIZ - 1)
        .zip(name.bytes())
    {
        *to = from as libc::c_char;
    }
    let request = libc::ifreq {
        ifr_name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            // Both fit: they are 1 and 0x1000.
            ifru_flags: (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short,
        },
    };
    // SAFETY: the file is open, and `request` is a valid `ifreq` for the length of the call.
    unsafe { set_interface(file.as_raw_fd(), &request) }
        .with_context(|| format!("cannot make the device {name}"))?;
    Ok(file)
}

/// Reads what leaves an end, and sends it on its way.
fn leave(ends: &[End], from: usize, zero: Instant, over: &AtomicBool) {
    let mut random = SmallRng::seed_from_u64(from as u64);
    let mut packet = vec![0; PACKET_BYTES];
    let mut device = &ends[from].device;
    let timeout = PollTimeout::try_from(LOOK_EVERY).unwrap_or(PollTimeout::ZERO);
    while !over.load(Ordering::Relaxed) {
        let mut ready = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        if !matches!(poll(&mut ready, timeout), Ok(1..)) {
            continue;
        }
        let Ok(length) = device.read(&mut packet) else {
            // The namespace and its device are gone.
            return;
        };
        let packet = &packet[..length];
        let is_ip4 = packet.first().is_some_and(|first| first >> 4 == 4);
        let to = packet.get(DESTINATION_BYTE).filter(|_| is_ip4);
        let Some(to) = to.and_then(|to| ends.iter().position(|end| end.address == *to)) else {
            continue;
        };
        ends[from].sent_bytes[to].fetch_add(length as u64, Ordering::Relaxed);
        let arrivals = &ends[to].arrivals;
        let draw = random.random_range(0..1000);
        arrivals.lines.lock()[from].send(zero.elapsed(), packet, draw);
        arrivals.sent.notify_one();
    }
}

/// Hands over what arrives at an end.
fn arrive(ends: &[End], to: usize, zero: Instant, over: &AtomicBool) {
    let arrivals = &ends[to].arrivals;
    let mut device = &ends[to].device;
    while !over.load(Ordering::Relaxed) {
        let mut lines = arrivals.lines.lock();
        let next = lines
            .iter_mut()
            .filter(|line| line.due().is_some())
            .min_by_key(|line| line.due());
        let now = zero.elapsed();
        let wait = match next {
            Some(line) => match line.receive(now) {
                Some(packet) => {
                    drop(lines);
                    // A device that is down loses packets, as a machine that is off does.
                    let _ = device.write(&packet);
                    continue;
                }
                None => line.due().map_or(LOOK_EVERY, |due| due.saturating_sub(now)),
            },
            None => LOOK_EVERY,
        };
        arrivals.sent.wait_for(&mut lines, wait.min(LOOK_EVERY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn packets_arrive_after_their_delay_and_in_order() {
        let mut line = Line::default();
        line.quality.delay = ms(35);
        line.send(ms(0), b"one", 999);
        line.quality.delay = ms(5);
        line.send(ms(10), b"two", 999);
        assert_eq!(line.receive(ms(34)), None);
        assert_eq!(line.due(), Some(ms(35)));
        assert_eq!(line.receive(ms(35)), Some(b"one".to_vec()));
        assert_eq!(line.receive(ms(35)), Some(b"two".to_vec()));
        assert_eq!(line.receive(ms(99)), None);
    }

    #[test]
    fn a_lossy_line_loses_its_share_and_a_cut_one_everything() {
        let mut line = Line::default();
        line.quality.loss_permille = 100;
        (0..1000).for_each(|draw| line.send(ms(0), b"x", draw));
        assert_eq!(line.travelling.len(), 900);
        line.quality.loss_permille = 1000;
        (0..1000).for_each(|draw| line.send(ms(0), b"x", draw));
        assert_eq!(line.travelling.len(), 900);
    }
}
