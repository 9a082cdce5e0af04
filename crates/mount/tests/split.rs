//! Database pages reach the view whole, also where the kernel sends them in two requests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::fixture::Fixture;
use common::ram::{Caching, RamView};
use nix::libc;

const PAGE: u64 = 8192;

fn mounted(caching: Caching) -> (Arc<RamView>, Fixture) {
    let view = Arc::new(RamView::new(caching));
    let fixture = Fixture::new(view.clone());
    (view, fixture)
}

/// A file of 16 pages of ones.
fn filled(view: &RamView, path: &Path) -> File {
    fs::write(path, vec![1; 16 * PAGE as usize]).unwrap();
    view.writes.lock().clear();
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

fn page(file: &File) -> Vec<u8> {
    let mut page = vec![0; PAGE as usize];
    file.read_exact_at(&mut page, PAGE).unwrap();
    page
}

fn half() -> Vec<u8> {
    let mut page = vec![1; PAGE as usize];
    page[..5000].fill(2);
    page
}

#[test]
fn two_halves_arrive_as_one() {
    let (view, fixture) = mounted(Caching::All);
    let file = filled(&view, &fixture.at("f"));
    file.write_all_at(&[2; 5000], PAGE).unwrap();
    assert!(view.writes.lock().is_empty(), "it waits for the rest");
    assert!(page(&file) == half(), "but is read");
    file.write_all_at(&[3; 3192 + 8192], PAGE + 5000).unwrap();
    assert_eq!(*view.writes.lock(), [PAGE]);
    let mut whole = vec![2; 5000];
    whole.resize(PAGE as usize, 3);
    assert!(page(&file) == whole);
}

#[test]
fn a_half_is_read_past_the_page_cache() {
    let (view, fixture) = mounted(Caching::All);
    let file = filled(&view, &fixture.at("f"));
    file.write_all_at(&[2; 5000], PAGE).unwrap();
    // SAFETY: a call without pointers.
    let dropped = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(dropped, 0);
    assert!(page(&file) == half());
    assert!(view.writes.lock().is_empty());
}

// A clean stop once lost the last half of a page that a hosted server had written: the mount still had it when everything
// was synced.
// hazard: ENGINE-9
#[test]
fn a_half_whose_rest_does_not_come() {
    let (view, fixture) = mounted(Caching::All);
    let path = fixture.at("f");
    let arrives = |act: &dyn Fn(File)| {
        let file = filled(&view, &path);
        file.write_all_at(&[2; 5000], PAGE).unwrap();
        assert!(view.writes.lock().is_empty());
        act(file);
        let first = *view.writes.lock().first().unwrap();
        assert_eq!(first, PAGE);
        assert!(page(&File::open(&path).unwrap()) == half());
    };
    arrives(&|file| file.sync_data().unwrap());
    arrives(&|file| file.set_len(15 * PAGE).unwrap());
    arrives(&|file| file.write_all_at(&[9; 8192], 4 * PAGE).unwrap());
    arrives(&|file| {
        drop(file);
        while view.writes.lock().is_empty() {
            std::thread::yield_now(); // the kernel tells of the end later
        }
    });
    arrives(&|file| {
        // A server has ended, and what it left is made durable before the kernel tells of its last handles.
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(fixture.mount.settle());
        drop(file);
    });
    let file = filled(&view, &path);
    file.write_all_at(&[2; 5000], PAGE).unwrap();
    fixture.mount.unmount().unwrap();
    assert_eq!(*view.writes.lock(), [PAGE]);
}

#[test]
fn short_writes_at_the_end_do_not_wait() {
    let (view, fixture) = mounted(Caching::All);
    let file = filled(&view, &fixture.at("f"));
    file.write_all_at(b"a record", 16 * PAGE).unwrap();
    assert_eq!(*view.writes.lock(), [16 * PAGE]);
    file.write_all_at(b"more", 16 * PAGE + 8).unwrap();
    assert_eq!(view.writes.lock().len(), 2);
}

/// Memory shared as PostgreSQL's is, which the kernel unmaps again and again while it is written
/// from.
#[test]
fn memory_that_is_not_at_hand() {
    const LEN: usize = 64 << 10;
    const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;
    const FLAGS: i32 = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping at an address that the kernel chooses.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), LEN, PROTECTION, FLAGS, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    let address = memory as usize;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the mapping lives until the scope ends; shared memory keeps its contents.
                unsafe { libc::madvise(address as *mut libc::c_void, LEN, libc::MADV_DONTNEED) };
            }
        });
        for caching in [Caching::All, Caching::Nothing] {
            let (view, fixture) = mounted(caching);
            let file = filled(&view, &fixture.at("f"));
            for (number, shift) in (0..2000).flat_map(|n| [(n, 128), (n, 4096), (n, 5000)]) {
                let at = (number % 16 * PAGE) as i64;
                let from = (address + shift) as *const libc::c_void;
                // SAFETY: a page from `shift` on is inside the mapping.
                let written = unsafe { libc::pwrite(file.as_raw_fd(), from, PAGE as usize, at) };
                assert_eq!(written, PAGE as isize);
            }
            let writes = view.writes.lock();
            assert_eq!(writes.len(), 6000);
            assert!(writes.iter().all(|offset| offset.is_multiple_of(PAGE)));
        }
        stop.store(true, Ordering::Relaxed);
    });
}
