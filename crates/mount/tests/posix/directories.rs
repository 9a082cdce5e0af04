//! Listing, removing, syncing directories.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

fn names(path: &Path) -> BTreeSet<String> {
    fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

pub fn many_names_while_removing(root: &Path) {
    const NAMES: usize = 10_000;
    let name = |n: usize| format!("name-{n:05}");
    let source = root.join("source");
    File::create(&source).unwrap();
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for n in 0..NAMES {
        File::create(many.join(name(n))).unwrap();
    }
    let mut seen = BTreeSet::new();
    let mut listing = fs::read_dir(&many).unwrap();
    // While listing, every second name goes, and new ones come.
    for _ in 0..100 {
        seen.insert(listing.next().unwrap().unwrap().file_name());
    }
    for n in (1..NAMES).step_by(2) {
        fs::remove_file(many.join(name(n))).unwrap();
    }
    File::create(many.join("late")).unwrap();
    for entry in listing {
        let fresh = seen.insert(entry.unwrap().file_name());
        assert!(fresh, "listed twice");
    }
    for n in (0..NAMES).step_by(2) {
        assert!(seen.contains(std::ffi::OsStr::new(&name(n))), "{n} missed");
    }
    let now = names(&many);
    assert_eq!(now.len(), NAMES / 2 + 1);
    fs::remove_dir_all(&many).unwrap();
    assert_eq!(names(root), BTreeSet::from(["source".to_owned()]));
}

pub fn rewinding(root: &Path) {
    fs::create_dir(root.join("d")).unwrap();
    File::create(root.join("d/a")).unwrap();
    let mut dir = Dir::open(&root.join("d"), OFlag::O_RDONLY, Mode::empty()).unwrap();
    let list = |dir: &mut Dir| -> BTreeSet<Vec<u8>> {
        let name =
            |entry: nix::Result<nix::dir::Entry>| entry.unwrap().file_name().to_bytes().to_vec();
        // The iterator rewinds when it is dropped.
        dir.iter().map(name).collect()
    };
    let expect = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
    assert_eq!(list(&mut dir), expect(&[".", "..", "a"]));
    File::create(root.join("d/b")).unwrap();
    fs::remove_file(root.join("d/a")).unwrap();
    assert_eq!(list(&mut dir), expect(&[".", "..", "b"]));
}

pub fn removing_directories(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    let full = fs::remove_dir(root.join("a")).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(Errno::ENOTEMPTY as i32));
    let unlink = nix::unistd::unlink(&root.join("a"));
    assert_eq!(unlink, Err(Errno::EISDIR));
    fs::remove_dir(root.join("a/b")).unwrap();
    fs::remove_dir(root.join("a")).unwrap();
    assert!(names(root).is_empty());
    let again = fs::remove_dir(root.join("a")).unwrap_err();
    assert_eq!(again.raw_os_error(), Some(Errno::ENOENT as i32));
}

pub fn syncing(root: &Path) {
    fs::create_dir(root.join("d")).unwrap();
    let file = File::create(root.join("d/f")).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    File::open(root.join("d")).unwrap().sync_all().unwrap();
    File::open(root).unwrap().sync_all().unwrap();
    // As PostgreSQL does: through a descriptor that only reads.
    File::open(root.join("d/f")).unwrap().sync_all().unwrap();
}

pub fn removed_while_open(root: &Path) {
    fs::create_dir(root.join("d")).unwrap();
    let open = File::open(root.join("d")).unwrap();
    fs::remove_dir(root.join("d")).unwrap();
    let here = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
    assert!(File::create(Path::new(&here).join("f")).is_err());
    drop(open);
    fs::create_dir(root.join("d")).unwrap();
    assert!(names(&root.join("d")).is_empty());
}

pub fn working_directory(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    let output = std::process::Command::new("sh")
        .args([
            "-c",
            "echo hello > f && cat ../b/f && ls .. && cd ../.. && ls",
        ])
        .current_dir(root.join("a/b"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\nb\na\n");
}
