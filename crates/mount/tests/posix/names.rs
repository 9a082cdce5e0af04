//! Links, renames, odd names.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::stat::{Mode, SFlag, mknod};

pub fn hard_links(root: &Path) {
    let (a, b) = (root.join("a"), root.join("b"));
    fs::write(&a, b"one file").unwrap();
    fs::hard_link(&a, &b).unwrap();
    let (meta_a, meta_b) = (fs::metadata(&a).unwrap(), fs::metadata(&b).unwrap());
    assert_eq!(meta_a.ino(), meta_b.ino());
    assert_eq!(meta_a.nlink(), 2);
    fs::write(&b, b"changed").unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"changed");
    let taken = fs::hard_link(&a, &b).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    fs::remove_file(&a).unwrap();
    assert_eq!(fs::metadata(&b).unwrap().nlink(), 1);
    assert_eq!(fs::read(&b).unwrap(), b"changed");
    fs::create_dir(root.join("d")).unwrap();
    let directory = fs::hard_link(root.join("d"), root.join("e")).unwrap_err();
    assert_eq!(directory.raw_os_error(), Some(Errno::EPERM as i32));
}

pub fn symbolic_links(root: &Path) {
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/f"), b"through").unwrap();
    symlink("d/f", root.join("link")).unwrap();
    assert_eq!(fs::read_link(root.join("link")).unwrap(), Path::new("d/f"));
    assert_eq!(fs::read(root.join("link")).unwrap(), b"through");
    let meta = fs::symlink_metadata(root.join("link")).unwrap();
    assert!(meta.is_symlink());
    assert_eq!(meta.len(), 3);
    symlink("nowhere", root.join("broken")).unwrap();
    assert_eq!(
        fs::read(root.join("broken")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    symlink("loop", root.join("loop")).unwrap();
    let refused = File::open(root.join("loop")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ELOOP as i32));
    assert!(fs::read_link(root.join("d/f")).is_err());
    fs::remove_file(root.join("link")).unwrap();
    assert_eq!(fs::read(root.join("d/f")).unwrap(), b"through");
}

pub fn rename_over(root: &Path) {
    let (a, b) = (root.join("a"), root.join("b"));
    fs::write(&a, b"new").unwrap();
    fs::write(&b, b"old").unwrap();
    let old = File::open(&b).unwrap();
    fs::rename(&a, &b).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"new");
    assert!(!a.exists());
    assert_eq!(std::io::read_to_string(&old).unwrap(), "old");
    assert_eq!(old.metadata().unwrap().nlink(), 0);
    // Two names of one file: nothing happens.
    fs::hard_link(&b, &a).unwrap();
    fs::rename(&a, &b).unwrap();
    assert!(a.exists() && b.exists());
    let missing = fs::rename(root.join("missing"), &b).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

fn rename_with(root: &Path, from: &str, to: &str, flags: RenameFlags) -> nix::Result<()> {
    renameat2(AT_FDCWD, &root.join(from), AT_FDCWD, &root.join(to), flags)
}

pub fn rename_no_replace(root: &Path) {
    fs::write(root.join("a"), b"a").unwrap();
    fs::write(root.join("b"), b"b").unwrap();
    let flag = RenameFlags::RENAME_NOREPLACE;
    assert_eq!(rename_with(root, "a", "b", flag), Err(Errno::EEXIST));
    assert_eq!(fs::read(root.join("b")).unwrap(), b"b");
    assert_eq!(rename_with(root, "a", "c", flag), Ok(()));
    assert_eq!(fs::read(root.join("c")).unwrap(), b"a");
}

pub fn rename_exchange(root: &Path) {
    fs::write(root.join("a"), b"a").unwrap();
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/in"), b"in").unwrap();
    let flag = RenameFlags::RENAME_EXCHANGE;
    assert_eq!(rename_with(root, "a", "d", flag), Ok(()));
    assert_eq!(fs::read(root.join("d")).unwrap(), b"a");
    assert_eq!(fs::read(root.join("a/in")).unwrap(), b"in");
    assert_eq!(rename_with(root, "a", "none", flag), Err(Errno::ENOENT));
}

pub fn rename_directories(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/b/f"), b"f").unwrap();
    fs::create_dir(root.join("c")).unwrap();
    fs::rename(root.join("a/b"), root.join("c/d")).unwrap();
    assert_eq!(fs::read(root.join("c/d/f")).unwrap(), b"f");
    assert_eq!(fs::read(root.join("c/d/../d/f")).unwrap(), b"f");
    // Over an empty directory, not over a full one, not over a file, no file over it.
    fs::rename(root.join("c/d"), root.join("a")).unwrap();
    fs::create_dir(root.join("e")).unwrap();
    fs::write(root.join("file"), b"").unwrap();
    let error = |from: &str, to: &str| {
        let e = fs::rename(root.join(from), root.join(to)).unwrap_err();
        Errno::from_raw(e.raw_os_error().unwrap())
    };
    assert_eq!(error("e", "a"), Errno::ENOTEMPTY);
    assert_eq!(error("e", "file"), Errno::ENOTDIR);
    assert_eq!(error("file", "e"), Errno::EISDIR);
}

pub fn rename_into_itself(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    let e = fs::rename(root.join("a"), root.join("a/b/c")).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(Errno::EINVAL as i32));
}

pub fn long_names(root: &Path) {
    let longest = "n".repeat(255);
    fs::write(root.join(&longest), b"x").unwrap();
    assert_eq!(fs::read(root.join(&longest)).unwrap(), b"x");
    let too_long = root.join("n".repeat(256));
    let errors = [
        fs::write(&too_long, b"").unwrap_err(),
        fs::read(&too_long).unwrap_err(),
        fs::create_dir(&too_long).unwrap_err(),
        symlink("x", &too_long).unwrap_err(),
        fs::rename(root.join(&longest), &too_long).unwrap_err(),
        fs::hard_link(root.join(&longest), &too_long).unwrap_err(),
        fs::remove_file(&too_long).unwrap_err(),
        fs::remove_dir(&too_long).unwrap_err(),
    ];
    for e in errors {
        assert_eq!(e.raw_os_error(), Some(Errno::ENAMETOOLONG as i32));
    }
}

pub fn deep_paths(root: &Path) {
    let mut path = root.to_path_buf();
    for level in 0..60 {
        path.push(format!("level-{level}"));
        fs::create_dir(&path).unwrap();
    }
    fs::write(path.join("f"), b"deep").unwrap();
    assert_eq!(fs::read(path.join("f")).unwrap(), b"deep");
    assert_eq!(path.canonicalize().unwrap(), path);
    fs::remove_dir_all(root.join("level-0")).unwrap();
    assert!(!root.join("level-0").exists());
}

pub fn special_files(root: &Path) {
    let mode = Mode::from_bits_truncate(0o644);
    mknod(&root.join("file"), SFlag::S_IFREG, mode, 0).unwrap();
    assert_eq!(fs::metadata(root.join("file")).unwrap().len(), 0);
    let pipe = mknod(&root.join("pipe"), SFlag::S_IFIFO, mode, 0);
    assert_eq!(pipe, Err(Errno::EPERM));
    let socket = std::os::unix::net::UnixListener::bind(root.join("socket"));
    assert_eq!(
        socket.unwrap_err().raw_os_error(),
        Some(Errno::EPERM as i32)
    );
}

pub fn not_a_directory(root: &Path) {
    fs::write(root.join("f"), b"").unwrap();
    let below = fs::read(root.join("f/g")).unwrap_err();
    assert_eq!(below.raw_os_error(), Some(Errno::ENOTDIR as i32));
    let list = fs::read_dir(root.join("f")).unwrap_err();
    assert_eq!(list.raw_os_error(), Some(Errno::ENOTDIR as i32));
    let remove = fs::remove_dir(root.join("f")).unwrap_err();
    assert_eq!(remove.raw_os_error(), Some(Errno::ENOTDIR as i32));
    let write = fs::write(root, b"").unwrap_err();
    assert_eq!(write.raw_os_error(), Some(Errno::EISDIR as i32));
}

pub fn negative_names(root: &Path) {
    let path = root.join("f");
    for round in 0..3 {
        assert!(!path.exists());
        fs::write(&path, format!("{round}")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{round}"));
        fs::rename(&path, root.join("g")).unwrap();
        assert!(!path.exists());
        fs::create_dir(&path).unwrap();
        assert!(path.is_dir());
        fs::remove_dir(&path).unwrap();
    }
}

pub fn odd_names(root: &Path) {
    let names = ["sp ace", "new\nline", "-", "ünï", "\u{1}"];
    for name in names {
        let path = root.join(name);
        fs::write(&path, name).unwrap();
        assert_eq!(fs::read(&path).unwrap(), name.as_bytes());
    }
    assert_eq!(fs::read_dir(root).unwrap().count(), names.len());
}
