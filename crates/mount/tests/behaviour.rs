//! What the mount does when the view fails, waits, panics or is replaced, and how it ends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::fixture::Fixture;
use common::ram::{Caching, RamView};
use dax::error::ErrorKind as Kind;
use mount::{Mount, MountOptions};
use nix::errno::Errno;
use nix::libc;
use parking_lot::Mutex;
use volume::error::Error;
use volume::view::{Ino, RenameMode, Timestamp, View};

/// What a process that is to be killed says when its time has come.
const WAITS: &str = "it waits";

fn mounted(caching: Caching) -> (Arc<RamView>, Fixture) {
    let view = Arc::new(RamView::new(caching));
    let fixture = Fixture::new(view.clone());
    (view, fixture)
}

fn read_write(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options.truncate(false).open(path).unwrap()
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Errno {
    Errno::from_raw(result.unwrap_err().raw_os_error().unwrap())
}

fn storage(kind: Kind) -> Error {
    Error::Storage(dax::error::Error::new(kind, "injected"))
}

/// Takes a dead mount away when the test ends, however it does.
struct NothingLeft<'a>(&'a Path);

impl Drop for NothingLeft<'_> {
    fn drop(&mut self) {
        let _ = mount::detach_stale(self.0);
    }
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.contains(&format!(" {} ", path.display()))
}

#[test]
fn fenced_is_read_only() {
    for caching in [Caching::All, Caching::Nothing] {
        let (view, fixture) = mounted(caching);
        let file = read_write(&fixture.at("f"));
        file.write_all_at(b"before", 0).unwrap();
        view.set_fault(|operation| {
            let reads = ["lookup", "read", "open"].contains(&operation);
            (!reads).then(|| storage(Kind::Fenced))
        });
        assert_eq!(errno(file.write_all_at(b"after!", 0)), Errno::EROFS);
        assert_eq!(errno(file.sync_all()), Errno::EROFS);
        assert_eq!(errno(file.sync_data()), Errno::EROFS);
        assert_eq!(errno(file.set_len(1)), Errno::EROFS);
        assert_eq!(errno(File::create(fixture.at("g"))), Errno::EROFS);
        assert_eq!(errno(fs::create_dir(fixture.at("d"))), Errno::EROFS);
        assert_eq!(errno(fs::remove_file(fixture.at("f"))), Errno::EROFS);
        let directory = File::open(fixture.root()).unwrap();
        assert_eq!(errno(directory.sync_all()), Errno::EROFS);
        assert_eq!(fs::read(fixture.at("f")).unwrap(), b"before");
    }
}

/// A server on a standby opened its configuration just when the active put another one in its place: the kernel had
/// found the old one, which was gone when it was opened, and the server was told that there is none.
#[test]
fn a_file_that_was_replaced_behind_the_kernel_is_opened_as_the_new_one() {
    let (view, fixture) = mounted(Caching::All);
    for name in ["f", "g"] {
        fs::write(fixture.at(name), name).unwrap();
    }
    assert_eq!(fs::read(fixture.at("f")).unwrap(), b"f");
    let (from, to) = ((Ino::ROOT, &b"g"[..]), (Ino::ROOT, &b"f"[..]));
    view.rename(from, to, RenameMode::Replace, Timestamp(0))
        .unwrap();
    // The kernel says some time after the fact that a file was closed; as long as the old one counts as open, it may
    // be opened once more. There is a file at any moment.
    let mut seen = fs::read(fixture.at("f")).unwrap();
    for _ in 0..500 {
        if seen == b"g" {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        seen = fs::read(fixture.at("f")).unwrap();
    }
    assert_eq!(seen, b"g");
}

#[test]
fn errors_of_the_storage() {
    let (view, fixture) = mounted(Caching::Nothing);
    let file = read_write(&fixture.at("f"));
    file.write_all_at(b"data", 0).unwrap();
    let mut buffer = [0; 4];
    for (kind, expected) in [
        (Kind::Full, Errno::ENOSPC),
        (Kind::Corrupt, Errno::EIO),
        (Kind::Unavailable, Errno::EIO),
    ] {
        view.set_fault(move |operation| (operation != "open").then(|| storage(kind)));
        assert_eq!(errno(file.write_all_at(b"x", 0)), expected);
        assert_eq!(errno(file.read_at(&mut buffer, 0)), expected);
        assert_eq!(errno(file.sync_all()), expected);
    }
    view.set_fault(|_| None);
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(&buffer, b"data");
}

/// `open_datasync` of PostgreSQL: one request where the page cache is bypassed, two where the kernel uses it.
#[test]
fn a_synchronous_write_is_durable_when_it_returns() {
    for caching in [Caching::Nothing, Caching::All] {
        let (view, fixture) = mounted(caching);
        let mut options = OpenOptions::new();
        options.write(true).create(true).custom_flags(libc::O_DSYNC);
        let file = options.open(fixture.at("f")).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&asked);
        view.set_fault(move |operation| {
            record.lock().push(operation.to_owned());
            None
        });
        file.write_all_at(&[1; 8192], 0).unwrap();
        let asked = asked.lock().clone();
        assert_eq!(asked, ["write", "fsync"], "{caching:?}");
        view.set_fault(|operation| (operation == "fsync").then(|| storage(Kind::Unavailable)));
        assert_eq!(errno(file.write_all_at(&[2; 8192], 0)), Errno::EIO);
        view.set_fault(|_| None);
    }
}

#[test]
fn a_panicking_view_is_an_error_and_no_end() {
    let (view, fixture) = mounted(Caching::Nothing);
    let file = read_write(&fixture.at("f"));
    view.set_fault(|operation| match operation {
        "write" | "create" => panic!("injected"),
        _ => None,
    });
    assert_eq!(errno(file.write_all_at(b"x", 0)), Errno::EIO);
    assert_eq!(errno(File::create(fixture.at("g"))), Errno::EIO);
    view.set_fault(|_| None);
    file.write_all_at(b"x", 0).unwrap();
    File::create(fixture.at("g")).unwrap();
}

#[test]
fn waiting_requests_hold_up_no_others() {
    let (view, fixture) = mounted(Caching::Nothing);
    fs::write(fixture.at("f"), b"f").unwrap();
    view.hold(true);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| read_write(&fixture.at("f")).sync_all());
        let read = scope.spawn(|| fs::read(fixture.at("f")));
        view.wait_for_held(2);
        // Names and attributes are answered meanwhile.
        fs::create_dir(fixture.at("d")).unwrap();
        assert_eq!(fs::metadata(fixture.at("f")).unwrap().len(), 1);
        assert!(!sync.is_finished() && !read.is_finished());
        view.hold(false);
        sync.join().unwrap().unwrap();
        assert_eq!(read.join().unwrap().unwrap(), b"f");
    });
}

#[test]
fn requests_reach_the_view_while_earlier_ones_wait() {
    let (view, fixture) = mounted(Caching::Nothing);
    let file = read_write(&fixture.at("f"));
    file.set_len(1 << 20).unwrap();
    view.hold(true);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let file = &file;
            scope.spawn(move || file.write_all_at(b"x", number * 8192).unwrap());
            // The view has seen it, in order, though it cannot finish.
            while view.writes.lock().len() <= number as usize {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(*view.writes.lock(), [0, 8192, 16_384, 24_576]);
        view.hold(false);
    });
}

#[test]
fn a_pause_waits_for_changes_and_holds_back_requests() {
    let (view, fixture) = mounted(Caching::Nothing);
    let file = read_write(&fixture.at("f"));
    view.hold(true);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| file.write_all_at(b"first", 0));
        view.wait_for_held(1);
        fixture.runtime.block_on(async {
            let pausing = fixture.mount.pause();
            let waited = tokio::time::timeout(Duration::from_millis(50), pausing).await;
            assert!(waited.is_err(), "a write is under way");
            // Given up: requests pass again.
            let size = tokio::task::block_in_place(|| fs::metadata(fixture.at("f")).unwrap().len());
            assert_eq!(size, 0);
            view.hold(false);
            let paused = fixture.mount.pause().await;
            let stat = scope.spawn(|| fs::metadata(fixture.at("f")).unwrap().len());
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(!stat.is_finished());
            drop(paused);
            assert_eq!(tokio::task::block_in_place(|| stat.join().unwrap()), 5);
        });
        write.join().unwrap().unwrap();
    });
}

#[test]
fn a_switch_takes_open_files_along() {
    let (old, fixture) = mounted(Caching::Nothing);
    let path = fixture.at("f");
    fs::write(&path, vec![1; 20_000]).unwrap();
    let file = read_write(&path);
    let gone = read_write(&fixture.at("gone"));
    gone.write_all_at(b"unlinked", 0).unwrap();
    fs::remove_file(fixture.at("gone")).unwrap();
    let lost = {
        let new = Arc::new(old.fork(Caching::All));
        new.poke("f", 8192, &[2; 8192]);
        let lost = read_write(&fixture.at("lost"));
        let switched = fixture.runtime.block_on(fixture.mount.switch(new.clone()));
        switched.unwrap();
        assert_eq!(old.opens(), 0);
        assert_eq!(new.opens(), 2, "without the lost one");
        lost
    };
    // Seen at once, through old and new handles.
    let mut expected = vec![1; 20_000];
    expected[8192..16_384].fill(2);
    let mut buffer = vec![0; 20_000];
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == expected);
    assert!(fs::read(&path).unwrap() == expected);
    gone.read_exact_at(&mut buffer[..8], 0).unwrap();
    assert_eq!(&buffer[..8], b"unlinked");
    assert_eq!(errno(lost.read_at(&mut buffer, 0)), Errno::ENOENT);
    assert!(!fixture.at("lost").exists());
    // Old (direct) and new (cached) handles stay coherent.
    let young = read_write(&path);
    for round in 0..10u8 {
        file.write_all_at(&[round; 100], 8000).unwrap();
        young.read_exact_at(&mut buffer[..100], 8000).unwrap();
        assert_eq!(buffer[..100], [round; 100]);
        young.write_all_at(&[!round; 100], 8000).unwrap();
        file.read_exact_at(&mut buffer[..100], 8000).unwrap();
        assert_eq!(buffer[..100], [!round; 100]);
    }
    drop((file, gone, lost, young));
    // The view may let the kernel cache now, so it stays.
    let again = fixture
        .runtime
        .block_on(fixture.mount.switch(Arc::new(old.fork(Caching::All))));
    assert!(matches!(again, Err(mount::Error::CachingView)));
}

// hazard: N5
#[test]
fn changes_of_a_view_without_caching_are_seen_at_once() {
    let (view, fixture) = mounted(Caching::Nothing);
    fs::write(fixture.at("f"), b"one").unwrap();
    let file = File::open(fixture.at("f")).unwrap();
    assert_eq!(fs::read(fixture.at("f")).unwrap(), b"one");
    view.poke("f", 0, b"two!");
    assert_eq!(fs::read(fixture.at("f")).unwrap(), b"two!");
    assert_eq!(file.metadata().unwrap().len(), 4);
    let end = nix::unistd::lseek(&file, 0, nix::unistd::Whence::SeekEnd);
    assert_eq!(end, Ok(4));
    assert!(!fixture.at("g").exists());
    let ownership = volume::view::Ownership {
        mode: 0o644,
        uid: 0,
        gid: 0,
    };
    let new = volume::view::NewInode::File;
    let now = volume::view::Timestamp(0);
    view.create(volume::view::Ino::ROOT, b"g", new, ownership, now)
        .unwrap();
    assert!(fixture.at("g").exists());
    view.unlink(volume::view::Ino::ROOT, b"g", now).unwrap();
    assert!(!fixture.at("g").exists());
}

#[test]
fn creating_a_name_that_the_kernel_does_not_know_yet() {
    let (view, fixture) = mounted(Caching::All);
    // The kernel remembers that there is no such name.
    assert!(!fixture.at("f").exists());
    let ownership = volume::view::Ownership {
        mode: 0o644,
        uid: nix::unistd::geteuid().as_raw(),
        gid: 0,
    };
    let new = volume::view::NewInode::File;
    let now = volume::view::Timestamp(0);
    let root = volume::view::Ino::ROOT;
    view.create(root, b"f", new.clone(), ownership, now)
        .unwrap();
    view.create(root, b"g", new, ownership, now).unwrap();
    view.poke("f", 0, b"there");
    let exclusive = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(fixture.at("f"));
    assert_eq!(exclusive.unwrap_err().kind(), ErrorKind::AlreadyExists);
    let mut buffer = [0; 5];
    let file = read_write(&fixture.at("f"));
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(&buffer, b"there");
    assert_eq!(
        File::create(fixture.at("f"))
            .unwrap()
            .metadata()
            .unwrap()
            .len(),
        0
    );
}

#[test]
fn aborting_frees_who_waits() {
    let (view, fixture) = mounted(Caching::Nothing);
    fs::write(fixture.at("f"), b"f").unwrap();
    let file = read_write(&fixture.at("f"));
    view.hold(true);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| fs::read(fixture.at("f")));
        let write = scope.spawn(|| file.write_all_at(b"g", 0));
        view.wait_for_held(2);
        assert!(fixture.mount.is_alive());
        fixture.mount.abort();
        assert!(!fixture.mount.is_alive());
        assert_eq!(errno(read.join().unwrap()), Errno::EIO);
        assert_eq!(errno(write.join().unwrap()), Errno::EIO);
    });
    assert_eq!(errno(fs::metadata(fixture.at("f"))), Errno::EIO);
    drop(file);
    fixture.mount.unmount().unwrap();
    assert!(!is_mounted(fixture.root()));
}

#[test]
fn unmounting_ends_everything() {
    let (view, fixture) = mounted(Caching::All);
    fs::write(fixture.at("f"), b"f").unwrap();
    assert!(is_mounted(fixture.root()));
    fixture.mount.unmount().unwrap();
    assert!(!is_mounted(fixture.root()));
    assert!(!fixture.mount.is_alive());
    assert_eq!(view.opens(), 0);
    assert_eq!(fs::read_dir(fixture.root()).unwrap().count(), 0);
    fixture.mount.unmount().unwrap();
}

#[test]
fn unmounting_while_in_use() {
    let (view, fixture) = mounted(Caching::Nothing);
    let file = read_write(&fixture.at("f"));
    fs::remove_file(fixture.at("f")).unwrap();
    view.hold(true);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| file.write_all_at(b"x", 0));
        view.wait_for_held(1);
        fixture.mount.unmount().unwrap();
        assert!(!is_mounted(fixture.root()));
        waits.join().unwrap().unwrap_err();
    });
    file.write_all_at(b"x", 0).unwrap_err();
    assert_eq!(view.opens(), 0);
    assert_eq!(view.inodes(), 1, "the unlinked file is given back");
}

#[test]
fn unmounting_while_paused() {
    let (_view, fixture) = mounted(Caching::Nothing);
    let paused = fixture.runtime.block_on(fixture.mount.pause());
    fixture.mount.unmount().unwrap();
    drop(paused);
    assert!(!is_mounted(fixture.root()));
}

#[test]
fn a_mount_that_somebody_else_ends() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let start = || {
        let view = Arc::new(RamView::new(Caching::All));
        let options = MountOptions::new(directory.path());
        Mount::start(view, options, runtime.handle().clone()).unwrap()
    };
    let first = start();
    let name = match nix::unistd::geteuid().is_root() {
        true => "umount",
        false => "fusermount3",
    };
    let mut command = Command::new(name);
    if name == "fusermount3" {
        command.arg("-u");
    }
    assert!(command.arg(directory.path()).status().unwrap().success());
    let limit = Duration::from_secs(10);
    let ended = runtime.block_on(async { tokio::time::timeout(limit, first.ended()).await });
    ended.unwrap();
    assert!(!first.is_alive());
    // A newer mount in the same place survives the end of the older one.
    let second = start();
    drop(first);
    fs::write(directory.path().join("f"), b"second").unwrap();
    assert!(second.is_alive());
    drop(second);
    assert!(!is_mounted(directory.path()));
}

#[test]
fn a_dead_process_leaves_a_mount() {
    const VARIABLE: &str = "MOUNT_AND_DIE_AT";
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let start = |path: &Path| {
        let view = Arc::new(RamView::new(Caching::All));
        Mount::start(view, MountOptions::new(path), runtime.handle().clone()).unwrap()
    };
    if let Some(path) = std::env::var_os(VARIABLE) {
        std::mem::forget(start(path.as_ref()));
        std::process::exit(77); // nothing is dropped
    }
    let directory = tempfile::tempdir().unwrap();
    let _guard = NothingLeft(directory.path());
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_dead_process_leaves_a_mount"])
        .env(VARIABLE, directory.path())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(child.code(), Some(77));
    assert_eq!(errno(fs::read_dir(directory.path())), Errno::ENOTCONN);
    let mount = start(directory.path());
    fs::write(directory.path().join("f"), b"alive").unwrap();
    drop(mount);
    assert!(!is_mounted(directory.path()));
    assert!(!mount::detach_stale(directory.path()).unwrap());
}

/// An agent that was killed while its own thread waited for a file of its own mount stayed, as a zombie with the
/// mount and all its locks: the kernel ends the connection with the last thread, and that one waited for an answer.
#[test]
fn process_killed_while_it_visits_its_own_mount_is_gone() {
    const VARIABLE: &str = "VISIT_THE_OWN_MOUNT_AT";
    if let Some(path) = std::env::var_os(VARIABLE) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let view = Arc::new(RamView::new(Caching::Nothing));
        let options = MountOptions::new(&path);
        let _mount = Mount::start(view.clone(), options, runtime.handle().clone()).unwrap();
        let file = Path::new(&path).join("f");
        fs::write(&file, b"text").unwrap();
        view.hold(true);
        let visiting = std::thread::spawn(move || mount::child_io::read(&file));
        view.wait_for_held(1);
        eprintln!("{WAITS}");
        let _ = visiting.join();
        unreachable!("nobody lets it go on");
    }
    let directory = tempfile::tempdir().unwrap();
    let _guard = NothingLeft(directory.path());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("process_killed_while_it_visits_its_own_mount_is_gone")
        .env(VARIABLE, directory.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = io::BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == WAITS));
    child.kill().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let mut command = Command::new("umount");
            let ended = command.arg("-f").arg(directory.path()).status();
            panic!("it cannot be killed; umount -f: {ended:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(errno(fs::read_dir(directory.path())), Errno::ENOTCONN);
}

#[test]
fn mount_points_that_cannot_be_used() {
    let (_view, fixture) = mounted(Caching::All);
    let start = |path: &Path| {
        let view = Arc::new(RamView::new(Caching::All));
        let runtime = fixture.runtime.handle().clone();
        Mount::start(view, MountOptions::new(path), runtime).unwrap_err()
    };
    assert!(matches!(
        start(fixture.root()),
        mount::Error::AlreadyMounted { .. }
    ));
    fs::write(fixture.at("f"), b"").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let missing = start(&directory.path().join("missing"));
    assert!(missing.hint().unwrap().contains("mkdir -p"), "{missing}");
    fs::write(directory.path().join("f"), b"").unwrap();
    let full = start(directory.path());
    assert!(full.to_string().contains("not empty"), "{full}");
    assert!(matches!(
        start(&directory.path().join("f")),
        mount::Error::NotDirectory(_)
    ));
}
