//! Permissions, owners, times, locks.

use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, chown, geteuid};

/// A user who is neither root nor whoever runs the tests.
const STRANGER: u32 = 64_321;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn sh_as(uid: u32, script: &str, directory: &Path) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(directory);
    if geteuid().is_root() {
        // This also drops the supplementary groups.
        command.uid(uid).gid(uid);
    }
    command.stderr(std::process::Stdio::null());
    command.status().unwrap().success()
}

pub fn modes(root: &Path) {
    let path = root.join("f");
    fs::write(&path, b"").unwrap();
    for bits in [0o600, 0o755, 0o4755, 0o2711, 0o1777, 0o0] {
        chmod(&path, bits);
        assert_eq!(mode(&path), bits);
        assert!(fs::metadata(&path).unwrap().is_file());
    }
    fs::create_dir(root.join("d")).unwrap();
    chmod(&root.join("d"), 0o700);
    assert_eq!(mode(&root.join("d")), 0o700);
}

pub fn umask(root: &Path) {
    // The umask belongs to the process, so a child has its own.
    let script = "umask 027 && : > f && mkdir d && ln -s f l";
    assert!(sh_as(geteuid().as_raw(), script, root));
    assert_eq!(mode(&root.join("f")), 0o640);
    assert_eq!(mode(&root.join("d")), 0o750);
    assert_eq!(mode(&root.join("l")), 0o777);
    let open = |name: &str, mode| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(mode);
        options.open(root.join(name)).unwrap()
    };
    open("private", 0o600);
    assert_eq!(mode(&root.join("private")), 0o600);
    // A file may be created that its creator could not open again.
    open("closed", 0o000).write_all_at(b"x", 0).unwrap();
    assert_eq!(mode(&root.join("closed")), 0o000);
}

pub fn owners(root: &Path) {
    let path = root.join("f");
    fs::write(&path, b"").unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(meta.uid(), geteuid().as_raw());
    let to = |uid: Option<u32>, gid: Option<u32>| {
        chown(&path, uid.map(Uid::from_raw), gid.map(Gid::from_raw))
    };
    if !geteuid().is_root() {
        assert_eq!(to(Some(STRANGER), None), Err(Errno::EPERM));
        return;
    }
    to(Some(7), Some(8)).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (7, 8));
    to(None, Some(9)).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (7, 9));
}

pub fn times(root: &Path) {
    let path = root.join("f");
    let file = File::create(&path).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    file.set_times(FileTimes::new().set_modified(then)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), then);
    // An access time alone changes nothing: mounted noatime.
    let other = then + Duration::from_secs(60);
    file.set_times(FileTimes::new().set_accessed(other))
        .unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(meta.modified().unwrap(), then);
    assert_eq!(meta.accessed().unwrap(), then);
    assert!(Command::new("touch").arg(&path).status().unwrap().success());
    let touched = fs::metadata(&path).unwrap().modified().unwrap();
    assert!(touched > SystemTime::now() - Duration::from_secs(600));
}

pub fn set_id_bits_go(root: &Path) {
    let path = root.join("f");
    fs::write(&path, b"program").unwrap();
    chmod(root, 0o777);
    chmod(&path, 0o6777);
    if geteuid().is_root() {
        assert!(sh_as(STRANGER, "echo x >> f", root));
        assert_eq!(mode(&path), 0o777);
        chmod(&path, 0o6777);
        chown(&path, Some(Uid::from_raw(7)), None).unwrap();
        assert_eq!(mode(&path), 0o777);
    } else {
        assert!(sh_as(0, "echo x >> f", root));
        assert_eq!(mode(&path), 0o777);
    }
}

pub fn group_of_directory(root: &Path) {
    let shared = root.join("shared");
    fs::create_dir(&shared).unwrap();
    let group = if geteuid().is_root() {
        chown(&shared, None, Some(Gid::from_raw(4321))).unwrap();
        4321
    } else {
        nix::unistd::getegid().as_raw()
    };
    chmod(&shared, 0o2775);
    fs::write(shared.join("f"), b"").unwrap();
    fs::create_dir(shared.join("d")).unwrap();
    assert_eq!(fs::metadata(shared.join("f")).unwrap().gid(), group);
    assert_eq!(fs::metadata(shared.join("d")).unwrap().gid(), group);
    assert_eq!(mode(&shared.join("d")) & 0o2000, 0o2000);
    assert_eq!(mode(&shared.join("f")) & 0o2000, 0);
}

pub fn other_users(root: &Path) {
    chmod(root, 0o755);
    fs::write(root.join("secret"), b"s").unwrap();
    chmod(&root.join("secret"), 0o600);
    fs::write(root.join("public"), b"p").unwrap();
    chmod(&root.join("public"), 0o644);
    fs::create_dir(root.join("closed")).unwrap();
    fs::write(root.join("closed/f"), b"f").unwrap();
    chmod(&root.join("closed"), 0o700);
    if !geteuid().is_root() {
        // Nobody else may come in; what we take from ourselves is gone all the same.
        chmod(&root.join("secret"), 0o000);
        assert!(!sh_as(0, "cat secret", root));
        chmod(&root.join("closed"), 0o000);
        assert!(!sh_as(0, "ls closed", root));
        chmod(&root.join("closed"), 0o700);
        return;
    }
    assert!(sh_as(STRANGER, "cat public", root));
    for refused in [
        "cat secret",
        "echo x >> public",
        "cat closed/f",
        "ls closed",
        ": > new",
        "mkdir new",
        "rm public",
        "mv public other",
        "chmod 777 public",
        "ln public link",
    ] {
        assert!(!sh_as(STRANGER, refused, root), "{refused}");
    }
    chmod(root, 0o777);
    assert!(sh_as(STRANGER, "mkdir mine && echo x > mine/f", root));
    assert_eq!(fs::metadata(root.join("mine/f")).unwrap().uid(), STRANGER);
}

pub fn sticky_directory(root: &Path) {
    chmod(root, 0o1777);
    fs::write(root.join("f"), b"").unwrap();
    if geteuid().is_root() {
        assert!(!sh_as(STRANGER, "rm -f f", root));
        assert!(sh_as(STRANGER, ": > own && rm own", root));
    }
    fs::remove_file(root.join("f")).unwrap();
}

pub fn no_extended_attributes(root: &Path) {
    let path = root.join("f");
    fs::write(&path, b"").unwrap();
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let mut value = [0u8; 16];
    // SAFETY: both strings end with a zero byte, and the buffer is as long as is said.
    let got = unsafe {
        nix::libc::getxattr(
            path.as_ptr(),
            c"user.test".as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    assert_eq!((got, Errno::last()), (-1, Errno::EOPNOTSUPP));
}

pub fn locks(root: &Path) {
    let path = root.join("f");
    fs::write(&path, b"").unwrap();
    let (one, two) = (File::open(&path).unwrap(), File::open(&path).unwrap());
    one.lock().unwrap();
    assert!(two.try_lock().is_err());
    one.unlock().unwrap();
    two.try_lock().unwrap();
}
