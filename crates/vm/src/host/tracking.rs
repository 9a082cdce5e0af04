//! Which pages of its memory QEMU has written.
//!
//! The preloaded library has registered QEMU's mapping (see `preload.c`). Here the kernel is asked for the pages that
//! were written since it was asked last; it protects them again in the same step, so that no write falls between.
//!
//! Other ways were weighed. Soft-dirty bits are not in every kernel, and cannot be read and reset in one step.
//! QEMU does not pass on what it knows of dirty pages. A `userfaultfd` belongs to the address space of the process that
//! made it, so making it for QEMU from outside would mean to run system calls in QEMU with a debugger's interface.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::guest::{PAGE, Run};
use super::{HostError, Result};

/// The library that QEMU loads.
pub(super) const PRELOAD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/preload.so"));
/// How many ranges one call returns.
const REGIONS: usize = 4096;

const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PROTECT_AGAIN: u64 = 1 << 0;
const CHECK_TRACKED: u64 = 1 << 1;

/// `struct page_region`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

nix::ioctl_readwrite!(pagemap_scan, b'f', 16, Scan);

/// What the preloaded library says about the mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    /// True if its pages stay in memory, even if the host swaps.
    pub(super) locked: bool,
}

impl Mapping {
    /// Reads the library's note; `None` if there is none yet.
    ///
    /// # Errors
    /// `Unfit` if the kernel refused, or the note cannot be understood.
    pub(super) fn noted(path: &Path) -> Result<Option<Mapping>> {
        match std::fs::read_to_string(path) {
            Ok(text) => Mapping::parse(&text).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(HostError::system(
                format!("cannot read {}", path.display()),
                error,
            )),
        }
    }

    fn parse(text: &str) -> Result<Mapping> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = |word: &str| u64::from_str_radix(word, 16).ok();
        if let ["tracked", start, end, locked] = words[..]
            && let (Some(start), Some(end)) = (number(start), number(end))
            && start < end
        {
            let locked = locked == "1";
            return Ok(Mapping { start, end, locked });
        }
        if let ["failed", step, errno] = words[..] {
            let errno = io::Error::from_raw_os_error(errno.parse().unwrap_or_default());
            let what = format!("the kernel does not track what QEMU writes ({step}: {errno})");
            return Err(HostError::unfit(what, super::requirements::TRACKING_HINT));
        }
        let what = format!("the library that was loaded into QEMU says {text:?}");
        Err(HostError::unfit(
            what,
            "Use the QEMU of the distribution, linked dynamically.",
        ))
    }
}

/// Finds written pages.
#[derive(Debug)]
pub struct Tracking {
    pagemap: File,
    mapping: Mapping,
    regions: Vec<Region>,
}

impl Tracking {
    /// Of the process that has the mapping.
    pub(super) fn open(pid: i32, mapping: Mapping) -> Result<Tracking> {
        let path = format!("/proc/{pid}/pagemap");
        let pagemap = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => HostError::unfit(
                format!("this process may not look at QEMU's memory ({path}: {error})"),
                "Run it as root, or as the user that QEMU runs as.",
            ),
            _ => HostError::system(format!("cannot open {path}"), error),
        })?;
        Ok(Tracking {
            pagemap,
            mapping,
            regions: vec![Region::default(); REGIONS],
        })
    }

    /// Adds the pages that were written since the last call.
    ///
    /// # Errors
    /// `System`; `Unfit` if the kernel cannot do it.
    pub fn written(&mut self, into: &mut Vec<Run>) -> Result<()> {
        let mut from = self.mapping.start;
        while from < self.mapping.end {
            let (found, scanned_to) = self.scan(from)?;
            // The kernel gets at least one page further, or it would ask for ever.
            debug_assert!(scanned_to > from);
            for region in &self.regions[..found] {
                into.push(Run {
                    first: (region.start - self.mapping.start) / PAGE as u64,
                    count: (region.end - region.start) / PAGE as u64,
                });
            }
            from = scanned_to;
        }
        Ok(())
    }

    /// One call of the kernel: how many regions it found, and how far it got.
    fn scan(&mut self, from: u64) -> Result<(usize, u64)> {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            flags: PROTECT_AGAIN | CHECK_TRACKED,
            start: from,
            end: self.mapping.end,
            vec: self.regions.as_mut_ptr() as u64,
            vec_len: REGIONS as u64,
            category_mask: PAGE_IS_WRITTEN,
            return_mask: PAGE_IS_WRITTEN,
            ..Scan::default()
        };
        // SAFETY: the structure is the kernel's, and `vec` has `vec_len` regions that live through the call.
        let found = unsafe { pagemap_scan(self.pagemap.as_raw_fd(), &raw mut scan) };
        let found = found.map_err(|error| match error {
            nix::errno::Errno::ENOTTY | nix::errno::Errno::EINVAL => HostError::unfit(
                format!("the kernel cannot tell which pages were written ({error})"),
                super::requirements::TRACKING_HINT,
            ),
            nix::errno::Errno::ESRCH => HostError::Ended {
                report: "its memory is gone".to_owned(),
            },
            _ => HostError::system("cannot find the pages that were written", error),
        })?;
        Ok((
            usize::try_from(found).unwrap_or(0).min(REGIONS),
            scan.walk_end,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_of_the_library_is_understood_or_refused() {
        let mapping = Mapping::parse("tracked 7f0000000000 7f0010000000 1\n").unwrap();
        assert_eq!(mapping.end - mapping.start, 256 << 20);
        assert!(mapping.locked);
        assert!(!Mapping::parse("tracked 1000 2000 0\n").unwrap().locked);
        let error = Mapping::parse("failed userfaultfd 1\n").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("userfaultfd: Operation not permitted"),
            "{error}"
        );
        assert!(error.hint().is_some_and(|hint| hint.contains("6.7")));
        for text in [
            "",
            "tracked",
            "tracked 2000 1000 1",
            "tracked x y 1",
            "failed",
            "hello there all",
        ] {
            Mapping::parse(text).unwrap_err();
        }
        let nowhere = Path::new("/nonexistent/note");
        assert_eq!(Mapping::noted(nowhere).unwrap(), None);
    }
}
