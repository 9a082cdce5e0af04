//! Reading and writing.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::libc;

pub fn new_file(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap()
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 ^ seed).collect()
}

pub fn odd_offsets(root: &Path) {
    let file = new_file(&root.join("f"));
    let mut model = vec![0; 40_000];
    for (i, (offset, len)) in [
        (0, 1),
        (1, 8192),
        (8191, 2),
        (8192, 8192),
        (3, 5),
        (20_000, 17_001),
        (39_999, 1),
        (12_345, 4096),
    ]
    .into_iter()
    .enumerate()
    {
        let data = pattern(len, i as u8 + 1);
        file.write_all_at(&data, offset as u64).unwrap();
        model[offset..offset + len].copy_from_slice(&data);
    }
    assert_eq!(fs::read(root.join("f")).unwrap(), model);
    for (offset, len) in [(0, 40_000), (1, 1), (8191, 3), (16_383, 8193), (39_990, 10)] {
        let mut part = vec![0; len];
        file.read_exact_at(&mut part, offset as u64).unwrap();
        assert_eq!(part, model[offset..offset + len], "{len} at {offset}");
    }
}

pub fn short_read_at_the_end(root: &Path) {
    let file = new_file(&root.join("f"));
    file.write_all_at(b"0123456789", 0).unwrap();
    let mut buffer = [0xff; 20];
    assert_eq!(file.read_at(&mut buffer, 4).unwrap(), 6);
    assert_eq!(&buffer[..7], b"456789\xff");
    assert_eq!(file.read_at(&mut buffer, 10).unwrap(), 0);
    assert_eq!(file.read_at(&mut buffer, 1 << 40).unwrap(), 0);
}

pub fn append(root: &Path) {
    let path = root.join("f");
    let open = || {
        let mut options = OpenOptions::new();
        options.append(true).create(true).open(&path).unwrap()
    };
    let (mut one, mut two) = (open(), open());
    one.write_all(b"one.").unwrap();
    two.write_all(b"two.").unwrap();
    one.seek(SeekFrom::Start(0)).unwrap();
    one.write_all(b"three.").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one.two.three.");
}

pub fn exclusive_create(root: &Path) {
    let path = root.join("f");
    let create = || OpenOptions::new().write(true).create_new(true).open(&path);
    create().unwrap();
    assert_eq!(create().unwrap_err().kind(), ErrorKind::AlreadyExists);
    fs::remove_file(&path).unwrap();
    create().unwrap();
}

pub fn truncating_open(root: &Path) {
    let path = root.join("f");
    fs::write(&path, pattern(30_000, 1)).unwrap();
    let before = new_file(&path);
    let file = File::create(&path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert_eq!(before.metadata().unwrap().len(), 0);
    file.write_all_at(b"x", 10).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"\0\0\0\0\0\0\0\0\0\0x");
}

pub fn shrink_and_grow(root: &Path) {
    let path = root.join("f");
    let file = new_file(&path);
    let data = pattern(50_000, 7);
    file.write_all_at(&data, 0).unwrap();
    // In the middle of a block, then out again: what was cut must read as zeros.
    file.set_len(20_001).unwrap();
    assert_eq!(fs::read(&path).unwrap(), data[..20_001]);
    file.set_len(45_000).unwrap();
    let mut expected = data[..20_001].to_vec();
    expected.resize(45_000, 0);
    assert_eq!(fs::read(&path).unwrap(), expected);
    // On a block's edge, and by writing beyond the end.
    file.set_len(16_384).unwrap();
    file.write_all_at(b"end", 40_000).unwrap();
    let mut expected = data[..16_384].to_vec();
    expected.resize(40_000, 0);
    expected.extend(b"end");
    assert_eq!(fs::read(&path).unwrap(), expected);
    file.set_len(0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    let refused = nix::unistd::truncate(root, 0);
    assert_eq!(refused, Err(nix::errno::Errno::EISDIR));
}

pub fn sparse(root: &Path) {
    let file = new_file(&root.join("f"));
    let far = 3 << 30;
    file.write_all_at(b"far", far).unwrap();
    assert_eq!(file.metadata().unwrap().len(), far + 3);
    let mut part = vec![1; 10_000];
    file.read_exact_at(&mut part, far - 9_997).unwrap();
    assert!(part[..9_997].iter().all(|byte| *byte == 0));
    assert_eq!(&part[9_997..], b"far");
    file.read_exact_at(&mut part, 12_345).unwrap();
    assert!(part.iter().all(|byte| *byte == 0));
}

pub fn concurrent_writers(root: &Path) {
    const BLOCK: usize = 8192;
    const BLOCKS: usize = 64;
    let path = root.join("f");
    new_file(&path).set_len((BLOCK * BLOCKS) as u64).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let path = &path;
            scope.spawn(move || {
                let file = new_file(path);
                for round in 0..3 {
                    for block in (writer..BLOCKS).step_by(4) {
                        let data = vec![(block + round) as u8; BLOCK];
                        file.write_all_at(&data, (block * BLOCK) as u64).unwrap();
                    }
                }
                file.sync_data().unwrap();
            });
        }
    });
    let contents = fs::read(&path).unwrap();
    for (number, block) in contents.chunks(BLOCK).enumerate() {
        assert!(block.iter().all(|byte| *byte == (number + 2) as u8));
    }
}

/// Maps a file, runs `use_it` on the bytes, unmaps.
fn with_map<T>(file: &File, len: usize, write: bool, use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
    // SAFETY: a fresh mapping of an open file at an address that the kernel chooses.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(address, libc::MAP_FAILED, "{}", nix::errno::Errno::last());
    // SAFETY: `len` bytes were just mapped there, nobody else knows of them, and reading callers
    // do not write to the slice.
    let bytes = unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), len) };
    let result = use_it(bytes);
    // SAFETY: the slice is not used any more; writes are pushed to the file first.
    unsafe {
        libc::msync(address, len, libc::MS_SYNC);
        libc::munmap(address, len);
    }
    result
}

pub fn mapped_reading(root: &Path) {
    let path = root.join("f");
    let data = pattern(100_000, 3);
    fs::write(&path, &data).unwrap();
    let file = File::open(&path).unwrap();
    with_map(&file, data.len(), false, |bytes| assert!(*bytes == data));
}

pub fn mapped_shared_writing(root: &Path) {
    let path = root.join("f");
    fs::write(&path, pattern(20_000, 3)).unwrap();
    let file = new_file(&path);
    with_map(&file, 20_000, true, |bytes| {
        bytes[5] = b'!';
        bytes[16_383..16_390].copy_from_slice(b"written");
    });
    drop(file);
    let mut expected = pattern(20_000, 3);
    expected[5] = b'!';
    expected[16_383..16_390].copy_from_slice(b"written");
    assert_eq!(fs::read(&path).unwrap(), expected);
}

pub fn large_writes(root: &Path) {
    let path = root.join("f");
    let data = pattern(5 * 1024 * 1024 + 77, 9);
    let mut file = new_file(&path);
    file.seek(SeekFrom::Start(8191)).unwrap();
    file.write_all(&data).unwrap();
    let mut back = Vec::new();
    file.seek(SeekFrom::Start(8191)).unwrap();
    file.read_to_end(&mut back).unwrap();
    assert!(back == data);
}

pub fn unlinked_while_open(root: &Path) {
    let path = root.join("f");
    let file = new_file(&path);
    file.write_all_at(b"still here", 0).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap_err().kind(), ErrorKind::NotFound);
    fs::write(&path, b"another").unwrap();
    file.write_all_at(b"STILL", 0).unwrap();
    file.sync_all().unwrap();
    let mut buffer = [0; 10];
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(&buffer, b"STILL here");
    file.set_len(3).unwrap();
    let meta = file.metadata().unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!((meta.len(), meta.nlink()), (3, 0));
    assert_eq!(fs::read(&path).unwrap(), b"another");
}

pub fn two_handles_agree(root: &Path) {
    let path = root.join("f");
    let (one, two) = (new_file(&path), new_file(&path));
    let mut buffer = [0; 4];
    for round in 0..20u32 {
        one.write_all_at(&round.to_le_bytes(), 8190).unwrap();
        two.read_exact_at(&mut buffer, 8190).unwrap();
        assert_eq!(buffer, round.to_le_bytes());
        assert_eq!(two.metadata().unwrap().len(), 8194);
    }
}
