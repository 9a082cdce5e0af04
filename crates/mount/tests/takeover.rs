//! A standby's mount becomes the active's while processes work in it: they notice nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::fixture::Fixture;
use common::volume::{Everything, new_runtime, new_volume, owner};
use dax::ids::NodeName;
use dax::memory::MemoryCluster;
use dax::storage::{Storage, VolumeSettings};
use nix::errno::Errno;
use tempfile::TempDir;
use volume::active::{ActiveView, NoObserver, Options};
use volume::latest::Latest;
use volume::layout::FileClass;
use volume::lsn::Lsn;
use volume::private::PrivateDir;
use volume::seal::{Base, load_seals};
use volume::standby::{StandbyOptions, StandbyView};
use volume::view::{Timestamp, View};

const BLOCK: usize = 8192;
const NOW: Timestamp = Timestamp(0);
const LAYOUT: Everything = Everything(FileClass::Data);

/// One node's disk and mount.
struct Node<V> {
    view: V,
    fixture: Fixture,
}

fn private(place: &TempDir, standby: bool) -> Arc<PrivateDir> {
    Arc::new(PrivateDir::prepare(place.path(), &LAYOUT, standby, owner()).unwrap())
}

fn active(storage: Arc<dyn Storage>) -> Node<ActiveView> {
    let (runtime, place) = (new_runtime(), tempfile::tempdir().unwrap());
    let view = runtime.block_on(async {
        let latest = Latest::recover(storage, NOW).await.unwrap();
        let (layout, options) = (Arc::new(LAYOUT), Options::default());
        let private = private(&place, false);
        ActiveView::open(latest, layout, private, Arc::new(NoObserver), None, options).await
    });
    let view = view.unwrap();
    let fixture = Fixture::on(runtime, Arc::new(view.clone()) as Arc<dyn View>).keeping(place);
    Node { view, fixture }
}

fn standby(storage: Arc<dyn Storage>) -> Node<Arc<StandbyView>> {
    let (runtime, place) = (new_runtime(), tempfile::tempdir().unwrap());
    let view = runtime.block_on(async {
        let seals = load_seals(&storage).await.unwrap();
        let base = Base::load(&storage, seals.last().unwrap()).await.unwrap();
        let live = base.namespace.clone();
        let options = StandbyOptions {
            spill_dir: place.path().to_path_buf(),
            memory_bytes_max: 1 << 20,
            cache_bytes: 1 << 20,
            claim: None,
        };
        let private = private(&place, true);
        StandbyView::attach(storage, Arc::new(LAYOUT), base, live, private, options).unwrap()
    });
    let shown: Arc<dyn View> = view.clone();
    let fixture = Fixture::on(runtime, shown).keeping(place);
    Node { view, fixture }
}

async fn own(cluster: &Arc<MemoryCluster>, name: &str) -> Arc<dyn Storage> {
    let storage: Arc<dyn Storage> = cluster.client();
    storage
        .own_epoch(&NodeName::new(name).unwrap())
        .await
        .unwrap();
    storage
}

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options.truncate(false).open(path).unwrap()
}

fn block(file: &File, number: u64) -> u64 {
    let mut block = [0; BLOCK];
    file.read_exact_at(&mut block, number * BLOCK as u64)
        .unwrap();
    let (words, _) = block.as_chunks::<8>();
    let word = u64::from_le_bytes(words[0]);
    assert!(words.iter().all(|w| *w == words[0]), "torn block");
    word
}

fn put(file: &File, number: u64, word: u64) {
    let data = word.to_le_bytes().repeat(BLOCK / 8);
    file.write_all_at(&data, number * BLOCK as u64).unwrap();
}

/// Writes a block again and again, each time seeing what it wrote before, through one handle or a
/// new one each time.
fn keep_writing(
    path: &Path,
    number: u64,
    reopen: bool,
    stop: &AtomicBool,
    rounds: &AtomicU64,
) -> u64 {
    let mut file = open(path);
    let mut word = 0;
    while word == 0 || !stop.load(Ordering::Relaxed) {
        word += 1;
        put(&file, number, word);
        if reopen {
            file = open(path);
        }
        assert_eq!(block(&file, number), word);
        assert!(fs::metadata(path).unwrap().len() >= 8 * BLOCK as u64);
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    file.sync_all().unwrap();
    word
}

/// True if the kernel has a block in its page cache.
fn is_resident(file: &File, number: u64) -> bool {
    let mut there = [0u8; BLOCK / 4096];
    let at = i64::try_from(number * BLOCK as u64).unwrap();
    // SAFETY: maps a range of the file for this call only, and `there` has a byte for each page.
    unsafe {
        let (read, shared) = (nix::libc::PROT_READ, nix::libc::MAP_SHARED);
        let map = nix::libc::mmap(
            std::ptr::null_mut(),
            BLOCK,
            read,
            shared,
            file.as_raw_fd(),
            at,
        );
        assert!(map != nix::libc::MAP_FAILED);
        assert_eq!(nix::libc::mincore(map, BLOCK, there.as_mut_ptr()), 0);
        nix::libc::munmap(map, BLOCK);
    }
    there.iter().all(|page| page & 1 == 1)
}

/// Writes blocks through a handle from before a switch, which bypasses the kernel's cache, while others
/// read them through handles that use it: nobody reads what is older than a write that was answered.
fn write_past_readers(old: &File, path: &Path) {
    const BLOCKS: u64 = 8;
    let written: [AtomicU64; BLOCKS as usize] = Default::default();
    for number in 0..BLOCKS {
        written[number as usize].store(block(old, number), Ordering::SeqCst);
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let file = open(path);
                while !done.load(Ordering::Relaxed) {
                    for number in 0..BLOCKS {
                        let least = written[number as usize].load(Ordering::SeqCst);
                        let mut bytes = [0; 8];
                        file.read_exact_at(&mut bytes, number * BLOCK as u64)
                            .unwrap();
                        assert!(u64::from_le_bytes(bytes) >= least, "block {number}");
                    }
                }
            });
        }
        for word in 10_000..10_400 {
            let number = word % BLOCKS;
            put(old, number, word);
            written[number as usize].store(word, Ordering::SeqCst);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn processes_notice_nothing() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let setup = new_runtime();
    let old = active(setup.block_on(new_volume(&cluster)));
    let file = open(&old.fixture.at("f"));
    (0..8).for_each(|number| put(&file, number, 1000 + number));
    fs::write(old.fixture.at("dropped"), b"dropped").unwrap();
    fs::create_dir(old.fixture.at("base")).unwrap();
    fs::write(old.fixture.at("base/old"), b"old").unwrap();
    old.fixture.runtime.block_on(async {
        let cut = old.view.cut().await.unwrap();
        old.view
            .commit_seal(cut, Lsn(10), Lsn(20), vec![])
            .await
            .unwrap();
    });
    // Not in the image of the seal, and not redone: gone with the old active.
    put(&file, 7, 77);
    file.sync_all().unwrap();

    let new = standby(cluster.client());
    let at = |name: &str| new.fixture.at(name);
    let kept = open(&at("f"));
    assert_eq!(block(&kept, 7), 1007);
    put(&kept, 5, 55);
    let made = open(&at("made"));
    put(&made, 0, 42);
    let dropped = open(&at("dropped"));
    fs::remove_file(at("dropped")).unwrap();
    // The kernel keeps the directory of the image, not the one that is made here.
    fs::create_dir(at("base/inner")).unwrap();
    fs::write(at("base/inner/new"), b"new").unwrap();
    assert_eq!(fs::read(at("base/old")).unwrap(), b"old");

    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let more_rounds = || {
        let until = rounds.load(Ordering::Relaxed) + 50;
        while rounds.load(Ordering::Relaxed) < until {
            std::thread::yield_now();
        }
    };
    let becoming = std::thread::scope(|scope| {
        let writers =
            [("f", 0, false), ("f", 1, true), ("made", 8, false)].map(|(name, number, reopen)| {
                let (path, stop, rounds) = (at(name), &stop, &rounds);
                put(&made, 8, 0);
                scope.spawn(move || (number, keep_writing(&path, number, reopen, stop, rounds)))
            });
        more_rounds();
        let switched = new.fixture.runtime.block_on(async {
            let storage = own(&cluster, "new").await;
            let latest = Latest::recover(storage, NOW).await.unwrap();
            let (observer, options) = (Arc::new(NoObserver), Options::default());
            let becoming = new.view.become_active(latest, observer, options, NOW).await;
            becoming.unwrap()
        });
        more_rounds();
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            let (number, word) = writer.join().unwrap();
            let file = if number == 8 { &made } else { &kept };
            assert_eq!(block(file, number), word);
        }
        switched
    });

    // Old handles and new ones see the same.
    let again = open(&at("f"));
    for (number, word) in [(2, 1002), (5, 55), (7, 1007)] {
        assert_eq!((block(&kept, number), block(&again, number)), (word, word));
    }
    assert_eq!(block(&made, 0), 42);
    // The kernel caches again, for those who open now.
    assert!(is_resident(&again, 2));
    write_past_readers(&kept, &at("f"));
    // A file without a name in the view ends with the switch; its handle says so.
    let gone = dropped.read_at(&mut [0; 7], 0).unwrap_err();
    assert_eq!(gone.raw_os_error(), Some(Errno::ENOENT as i32));
    assert!(!at("dropped").exists());
    assert_eq!(fs::read(at("base/old")).unwrap(), b"old");
    assert_eq!(fs::read(at("base/inner/new")).unwrap(), b"new");
    fs::remove_dir_all(at("base/inner")).unwrap();
    fs::create_dir(at("base/inner")).unwrap();
    fs::write(at("base/inner/again"), b"again").unwrap();

    // The old active is fenced: it may not even pretend.
    let refused = file.write_all_at(b"x", 0).and_then(|()| file.sync_all());
    assert_eq!(
        refused.unwrap_err().raw_os_error(),
        Some(Errno::EROFS as i32)
    );

    // What the new one made durable is what the next finds.
    put(&kept, 3, 33);
    new.fixture.runtime.block_on(async {
        let cut = becoming.cut().await.unwrap();
        becoming
            .commit_seal(cut, Lsn(30), Lsn(40), vec![])
            .await
            .unwrap();
    });
    let expected = |file: &File| (0..8).map(|number| block(file, number)).collect::<Vec<_>>();
    let words = expected(&again);
    let next = active(setup.block_on(own(&cluster, "next")));
    assert_eq!(expected(&open(&next.fixture.at("f"))), words);
    assert_eq!(block(&open(&next.fixture.at("made")), 0), 42);
    assert!(!next.fixture.at("dropped").exists());
    let names = fs::read_dir(next.fixture.at("base/inner")).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["again"]);
    let refused = kept.write_all_at(b"x", 0).and_then(|()| kept.sync_all());
    assert_eq!(
        refused.unwrap_err().raw_os_error(),
        Some(Errno::EROFS as i32)
    );
}

/// Pages of a file that the kernel has cached.
fn cached_pages(file: &File) -> u64 {
    const CACHESTAT: nix::libc::c_long = 451;
    let (range, mut found) = ([0u64; 2], [0u64; 5]);
    // SAFETY: the kernel reads two words and writes five, as its documentation says.
    let asked = unsafe {
        nix::libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            range.as_ptr(),
            found.as_mut_ptr(),
            0,
        )
    };
    if asked == 0 { found[0] } else { 0 }
}

/// PostgreSQL announces what it will read (`posix_fadvise`), and the kernel reads that into its cache
/// although the standby's handles bypass it. What is cached so is not what the new active shows.
#[test]
fn kernel_forgets_pages_read_ahead_on_a_standby() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let setup = new_runtime();
    let old = active(setup.block_on(new_volume(&cluster)));
    let file = open(&old.fixture.at("f"));
    let seal = |end| {
        old.fixture.runtime.block_on(async {
            let cut = old.view.cut().await.unwrap();
            let seal = old.view.commit_seal(cut, Lsn(end), Lsn(end), vec![]);
            seal.await.unwrap()
        })
    };
    (0..8).for_each(|number| put(&file, number, 1000 + number));
    seal(10);
    let new = standby(cluster.client());
    let kept = open(&new.fixture.at("f"));
    let willneed = nix::libc::POSIX_FADV_WILLNEED;
    // SAFETY: a system call on an open file that touches no memory of ours.
    let advised = unsafe { nix::libc::posix_fadvise(kept.as_raw_fd(), 0, 0, willneed) };
    assert_eq!(advised, 0);
    for _ in 0..100 {
        if cached_pages(&kept) > 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    println!("{} pages cached on the standby", cached_pages(&kept));
    (0..8).for_each(|number| put(&file, number, 2000 + number));
    let sealed = seal(20);
    new.fixture.runtime.block_on(async {
        let base = new.view.load_next(&sealed).await.unwrap();
        new.view.show_log(base.namespace.clone(), sealed.end);
        let plan = new.view.plan_move(base).await.unwrap();
        assert!(new.view.move_base(plan).unwrap());
        let latest = Latest::recover(own(&cluster, "new").await, NOW)
            .await
            .unwrap();
        let (observer, options) = (Arc::new(NoObserver), Options::default());
        let becoming = new.view.become_active(latest, observer, options, NOW);
        let paused = new.fixture.mount.pause().await;
        paused.install(Arc::new(becoming.await.unwrap())).unwrap();
    });
    let again = open(&new.fixture.at("f"));
    for number in 0..8 {
        assert_eq!(block(&again, number), 2000 + number);
    }
}
