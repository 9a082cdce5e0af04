//! Holes, allocation, room.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::{Whence, lseek};

use crate::contents::{new_file, pattern};

pub fn holes_read_as_zeros(root: &Path) {
    let path = root.join("f");
    let file = new_file(&path);
    file.set_len(10_000).unwrap();
    file.write_all_at(b"x", 30_000).unwrap();
    let mut expected = vec![0; 30_000];
    expected.push(b'x');
    assert_eq!(fs::read(&path).unwrap(), expected);
}

pub fn fallocate_extends(root: &Path) {
    let path = root.join("f");
    let file = new_file(&path);
    file.write_all_at(b"abc", 0).unwrap();
    fallocate(&file, FallocateFlags::empty(), 1, 20_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 20_001);
    fallocate(&file, FallocateFlags::empty(), 0, 10).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 20_001);
    let mut expected = b"abc".to_vec();
    expected.resize(20_001, 0);
    assert_eq!(fs::read(&path).unwrap(), expected);
}

pub fn fallocate_keeps_size(root: &Path) {
    let file = new_file(&root.join("f"));
    file.write_all_at(b"abc", 0).unwrap();
    fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, 20_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    let refused = fallocate(&file, FallocateFlags::FALLOC_FL_COLLAPSE_RANGE, 0, 8192);
    assert_eq!(refused, Err(Errno::EOPNOTSUPP));
}

fn zeroed(path: &Path, flags: FallocateFlags, offset: usize, len: usize) {
    let file = new_file(path);
    let mut data = pattern(60_000, 5);
    file.write_all_at(&data, 0).unwrap();
    // The page cache must forget them too.
    assert_eq!(fs::read(path).unwrap(), data);
    fallocate(&file, flags, offset as i64, len as i64).unwrap();
    let end = (offset + len).min(data.len());
    data[offset..end].fill(0);
    if !flags.contains(FallocateFlags::FALLOC_FL_KEEP_SIZE) {
        data.resize((offset + len).max(data.len()), 0);
    }
    assert_eq!(fs::read(path).unwrap(), data);
}

pub fn punched_holes(root: &Path) {
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    zeroed(&root.join("aligned"), flags, 8192, 16_384);
    zeroed(&root.join("odd"), flags, 5_000, 20_001);
    zeroed(&root.join("inside"), flags, 100, 50);
    zeroed(&root.join("beyond"), flags, 50_000, 50_000);
}

pub fn zero_range(root: &Path) {
    let zero = FallocateFlags::FALLOC_FL_ZERO_RANGE;
    zeroed(&root.join("grow"), zero, 50_000, 50_000);
    zeroed(
        &root.join("keep"),
        zero | FallocateFlags::FALLOC_FL_KEEP_SIZE,
        50_000,
        50_000,
    );
}

pub fn seek_data_and_hole(root: &Path) {
    let file = new_file(&root.join("f"));
    file.write_all_at(b"abc", 20_000).unwrap();
    // Where holes are is ours to say, but never that data is a hole.
    assert!(lseek(&file, 0, Whence::SeekData).unwrap() <= 20_000);
    assert_eq!(lseek(&file, 20_000, Whence::SeekData), Ok(20_000));
    assert_eq!(lseek(&file, 20_000, Whence::SeekHole), Ok(20_003));
    assert_eq!(lseek(&file, 20_003, Whence::SeekData), Err(Errno::ENXIO));
    assert_eq!(lseek(&file, 0, Whence::SeekEnd), Ok(20_003));
}

pub fn room(root: &Path) {
    let stat = nix::sys::statvfs::statvfs(root).unwrap();
    assert!(stat.blocks() > 0);
    assert!(stat.blocks_free() <= stat.blocks());
    assert!(stat.files_free() > 0);
    assert_eq!(stat.name_max(), 255);
    assert!(stat.fragment_size() >= 512);
}
