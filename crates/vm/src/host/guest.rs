//! What the engine needs of a machine that runs, and a checkpoint made of it.
//!
//! Invariant of [`checkpoint`]: pages, device state and the cut of the disk are of one moment, between `pause` and
//! `resume`, in which nothing of the machine moves. If a step fails, the machine stays paused, and nothing of it may
//! leave the host: a page that was scanned but not copied is not named again.

use std::time::{Duration, Instant};

use super::Result;

/// Bytes of a page of the guest's memory.
pub const PAGE: usize = 4096;

/// Pages that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// The number of the first: its address in the guest's memory file, in pages.
    pub first: u64,
    /// How many; at least 1.
    pub count: u64,
}

impl Run {
    /// The numbers of its pages.
    pub fn pages(self) -> std::ops::Range<u64> {
        self.first..self.first + self.count
    }

    /// How many bytes they have.
    pub fn bytes(self) -> usize {
        // A count of pages of this process's memory fits.
        usize::try_from(self.count).map_or(usize::MAX, |count| count * PAGE)
    }
}

/// A machine that runs on this host.
pub trait Guest: Send {
    /// How many pages its memory has.
    fn pages(&self) -> u64;

    /// Stops its processors, and waits until its devices have finished what they were doing.
    ///
    /// # Errors
    /// See [`HostError`](super::HostError), as for all of these.
    fn pause(&mut self) -> Result<()>;

    /// The opposite.
    ///
    /// # Errors
    /// See [`pause`](Guest::pause).
    fn resume(&mut self) -> Result<()>;

    /// Adds the pages that were written since the last call, in ascending order; the first call begins, and names any
    /// page. A machine that runs may be asked too: what it writes meanwhile is named by the next call at the latest. So
    /// a copy begins with this, then come the [`populated`](Guest::populated) pages, and then what was written
    /// meanwhile.
    ///
    /// # Errors
    /// See [`pause`](Guest::pause).
    fn written(&mut self, into: &mut Vec<Run>) -> Result<()>;

    /// Adds the pages that anybody has ever touched. All others are zero.
    ///
    /// # Errors
    /// See [`pause`](Guest::pause).
    fn populated(&self, into: &mut Vec<Run>) -> Result<()>;

    /// Adds the contents of pages. While the machine runs they may be of several moments; such pages are named again.
    ///
    /// # Errors
    /// See [`pause`](Guest::pause).
    fn read(&self, run: Run, into: &mut Vec<u8>) -> Result<()>;

    /// Begins to save the state of processors and devices, which [`devices`](Guest::devices) waits for. Only while it is paused.
    ///
    /// # Errors
    /// See [`pause`](Guest::pause).
    fn begin_devices(&mut self) -> Result<()>;

    /// Adds what must be known of its processors and devices to go on elsewhere. Only while it is paused.
    ///
    /// # Errors
    /// See [`pause`](Guest::pause).
    fn devices(&mut self, into: &mut Vec<u8>) -> Result<()>;

    /// Does in advance, while it runs, what can be done of the next checkpoint. Nothing depends on it but how long that takes.
    ///
    /// # Errors
    /// See [`pause`](Guest::pause).
    fn prepare(&mut self) -> Result<()>;
}

/// How long each step of a checkpoint took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timing {
    /// Stopping the machine.
    pub pause: Duration,
    /// Finding what was written.
    pub scan: Duration,
    /// Copying it.
    pub copy: Duration,
    /// Cutting the disk, and what else the caller did meanwhile.
    pub cut: Duration,
    /// Waiting for the state of processors and devices, which was being saved meanwhile.
    pub devices: Duration,
    /// Letting it go on.
    pub resume: Duration,
}

impl Timing {
    /// How long the machine stood still, at most.
    pub fn paused(&self) -> Duration {
        self.pause + self.scan + self.copy + self.devices + self.cut + self.resume
    }
}

/// What a checkpoint consists of, beside the disk. Used again and again, so that nothing is allocated in the pause.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The pages that were written.
    pub runs: Vec<Run>,
    /// Their contents, one after the other.
    pub contents: Vec<u8>,
    /// Processors and devices.
    pub devices: Vec<u8>,
}

impl Checkpoint {
    /// Every page with its contents.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let numbers = self.runs.iter().flat_map(|run| run.pages());
        numbers.zip(self.contents.chunks_exact(PAGE))
    }

    fn clear(&mut self) {
        self.runs.clear();
        self.contents.clear();
        self.devices.clear();
    }
}

/// Takes a checkpoint: pauses the machine, takes what changed since the last one, has the caller `cut` the disk and
/// mark what has left the machine until now, and lets it go on.
///
/// # Errors
/// See the trait, and `cut`. The machine stays paused, unless it is only the next checkpoint that could not be prepared.
pub fn checkpoint<E: From<super::HostError>>(
    guest: &mut dyn Guest,
    into: &mut Checkpoint,
    cut: impl FnOnce() -> Result<(), E>,
) -> Result<Timing, E> {
    let timing = last_checkpoint(guest, into, cut)?;
    let mut watch = Watch(Instant::now());
    guest.resume()?;
    let resume = watch.lap();
    guest.prepare()?;
    Ok(Timing { resume, ..timing })
}

/// As [`checkpoint`], but the machine stays paused. Devices are saved while pages are copied: what the guest's memory holds is complete
/// once the machine has stopped, and saving devices does not change it.
///
/// # Errors
/// See [`checkpoint`].
pub fn last_checkpoint<E: From<super::HostError>>(
    guest: &mut dyn Guest,
    into: &mut Checkpoint,
    cut: impl FnOnce() -> Result<(), E>,
) -> Result<Timing, E> {
    into.clear();
    let mut watch = Watch(Instant::now());
    guest.pause()?;
    guest.begin_devices()?;
    let pause = watch.lap();
    guest.written(&mut into.runs)?;
    let scan = watch.lap();
    for run in &into.runs {
        guest.read(*run, &mut into.contents)?;
    }
    let copy = watch.lap();
    cut()?;
    let cut = watch.lap();
    guest.devices(&mut into.devices)?;
    Ok(Timing {
        pause,
        scan,
        copy,
        cut,
        devices: watch.lap(),
        resume: Duration::ZERO,
    })
}

struct Watch(Instant);

impl Watch {
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}

#[cfg(test)]
mod tests {
    use super::super::HostError;
    use super::*;

    /// Writes down what it is told.
    #[derive(Default)]
    struct Fake {
        told: Vec<String>,
        fails_at: Option<&'static str>,
    }

    impl Fake {
        fn tell(&mut self, what: &'static str) -> Result<()> {
            self.told.push(what.to_owned());
            if self.fails_at == Some(what) {
                return Err(HostError::unfit(what, ""));
            }
            Ok(())
        }
    }

    impl Guest for Fake {
        fn pages(&self) -> u64 {
            8
        }
        fn pause(&mut self) -> Result<()> {
            self.tell("pause")
        }
        fn resume(&mut self) -> Result<()> {
            self.tell("resume")
        }
        fn written(&mut self, into: &mut Vec<Run>) -> Result<()> {
            into.extend([Run { first: 1, count: 2 }, Run { first: 6, count: 1 }]);
            self.tell("written")
        }
        fn populated(&self, into: &mut Vec<Run>) -> Result<()> {
            into.push(Run { first: 0, count: 8 });
            Ok(())
        }
        fn read(&self, run: Run, into: &mut Vec<u8>) -> Result<()> {
            for page in run.pages() {
                into.extend(std::iter::repeat_n(page as u8, PAGE));
            }
            Ok(())
        }
        fn begin_devices(&mut self) -> Result<()> {
            self.tell("begin devices")
        }
        fn devices(&mut self, into: &mut Vec<u8>) -> Result<()> {
            into.extend(b"devices");
            self.tell("devices")
        }
        fn prepare(&mut self) -> Result<()> {
            self.tell("prepare")
        }
    }

    #[test]
    fn everything_is_taken_while_the_machine_stands_still() {
        let mut fake = Fake::default();
        let mut taken = Checkpoint::default();
        for _ in 0..2 {
            // The second one holds nothing of the first.
            let mut cuts = 0;
            let cut = || {
                cuts += 1;
                Ok::<(), HostError>(())
            };
            checkpoint(&mut fake, &mut taken, cut).unwrap();
            assert_eq!(cuts, 1);
        }
        let steps = [
            "pause",
            "begin devices",
            "written",
            "devices",
            "resume",
            "prepare",
        ];
        assert_eq!(fake.told[..6], steps.map(str::to_owned));
        let pages: Vec<(u64, u8)> = taken.pages().map(|(n, bytes)| (n, bytes[9])).collect();
        assert_eq!(pages, [(1, 1), (2, 2), (6, 6)]);
        assert_eq!(taken.devices, b"devices");
    }

    #[test]
    fn a_machine_whose_checkpoint_failed_stays_paused() {
        for step in ["pause", "begin devices", "written", "devices"] {
            let mut fake = Fake {
                fails_at: Some(step),
                ..Fake::default()
            };
            let mut taken = Checkpoint::default();
            let cut = || Ok::<(), HostError>(());
            checkpoint(&mut fake, &mut taken, cut).unwrap_err();
            assert!(!fake.told.contains(&"resume".to_owned()), "{step}");
        }
        let mut fake = Fake::default();
        let refuse = || Err(HostError::unfit("no", ""));
        checkpoint(&mut fake, &mut Checkpoint::default(), refuse).unwrap_err();
        assert!(!fake.told.contains(&"resume".to_owned()));
    }

    #[test]
    fn after_its_last_checkpoint_a_machine_stays_paused() {
        let mut fake = Fake::default();
        let mut taken = Checkpoint::default();
        let cut = || Ok::<(), HostError>(());
        last_checkpoint(&mut fake, &mut taken, cut).unwrap();
        assert_eq!(taken.pages().count(), 3);
        assert_eq!(taken.devices, b"devices");
        assert_eq!(fake.told.last().map(String::as_str), Some("devices"));
    }
}
