//! What no database looks at: not every view keeps these.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

pub fn names_in_no_encoding(root: &Path) {
    let path = root.join(OsStr::from_bytes(b"\xff\xfe"));
    fs::write(&path, b"x").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"x");
    let listed = fs::read_dir(root).unwrap().next().unwrap().unwrap();
    assert_eq!(listed.path(), path);
}

pub fn times_move(root: &Path) {
    let past = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
    let path = root.join("f");
    let file = File::create(&path).unwrap();
    let moved = |what: &str, path: &Path, act: &dyn Fn()| {
        File::open(path).unwrap().set_times(past).unwrap();
        act();
        assert!(fs::metadata(path).unwrap().mtime() > 0, "{what}");
    };
    moved("write", &path, &|| file.write_all_at(b"x", 0).unwrap());
    moved("truncate", &path, &|| file.set_len(100).unwrap());
    moved("create", root, &|| {
        drop(File::create(root.join("g")).unwrap())
    });
    moved("rename", root, &|| {
        fs::rename(root.join("g"), root.join("h")).unwrap();
    });
    moved("remove", root, &|| fs::remove_file(root.join("h")).unwrap());
    let before = fs::metadata(&path).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    let ctime = |meta: &fs::Metadata| (meta.ctime(), meta.ctime_nsec());
    assert!(ctime(&after) > ctime(&before));
}

pub fn link_counts(root: &Path) {
    let count = |path: &Path| fs::metadata(path).unwrap().nlink();
    let before = count(root);
    fs::create_dir_all(root.join("a/b")).unwrap();
    assert_eq!(count(root), before + 1);
    assert_eq!(count(&root.join("a")), 3);
    fs::create_dir(root.join("c")).unwrap();
    fs::rename(root.join("a/b"), root.join("c/b")).unwrap();
    assert_eq!(count(&root.join("a")), 2);
    assert_eq!(count(&root.join("c")), 3);
    fs::remove_dir(root.join("c/b")).unwrap();
    assert_eq!(count(&root.join("c")), 2);
}
