//! The disk: which checkpoint a write belongs to, what may be referred to, and that the copy has what was written.

use std::io;
use std::sync::Arc;

use super::*;
use crate::encoding::Encoder;

fn disk() -> (tempfile::TempDir, Arc<Disk>) {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::create(&directory.path().join("image"), 1 << 20).unwrap();
    (directory, disk)
}

fn bytes(offset: u64, byte: u8, len: usize) -> Write {
    Write {
        offset,
        contents: Contents::Bytes(vec![byte; len]),
    }
}

#[test]
fn a_write_belongs_to_the_checkpoint_that_follows_it() {
    let (_directory, disk) = disk();
    disk.write(bytes(0, 9, 10)).unwrap();
    disk.record(u64::MAX);
    disk.write(bytes(0, 1, 4096)).unwrap();
    disk.write(bytes(4096, 2, 512)).unwrap();
    let cut = disk.cut();
    assert_eq!(cut.writes, [bytes(0, 1, 4096), bytes(4096, 2, 512)]);
    let zeros = Write {
        offset: 8192,
        contents: Contents::Zeros(100_000),
    };
    disk.write(zeros.clone()).unwrap();
    let cut = disk.cut();
    assert_eq!(cut.writes, std::slice::from_ref(&zeros));
    let mut sent = Vec::new();
    encode(&[bytes(5, 1, 3), zeros.clone()], &mut sent);
    assert_eq!(
        decode(&sent, disk.bytes()).unwrap(),
        [bytes(5, 1, 3), zeros]
    );
    assert!(decode(&sent, 8192).is_err());
    assert!(decode(&sent[1..], disk.bytes()).is_err());
}

// hazard: VM-10
#[test]
fn a_block_that_was_written_after_it_was_read_is_not_one_to_refer_to() {
    let (_directory, disk) = disk();
    disk.write(bytes(0, 1, 4096)).unwrap();
    disk.write(bytes(4096, 2, 4096)).unwrap();
    disk.record(u64::MAX);
    disk.read(0, &mut [0; 8192]).unwrap();
    disk.write(bytes(4100, 3, 1)).unwrap();
    let cut = disk.cut();
    assert_eq!(cut.reads.find(&[1; 4096]), Some(0));
    assert_eq!(cut.reads.find(&[2; 4096]), None);
    // What happens after the cut says nothing about the disk at the checkpoint.
    disk.write(bytes(0, 4, 1)).unwrap();
    assert_eq!(cut.reads.find(&[1; 4096]), Some(0));
    assert_eq!(disk.cut().reads.find(&[1; 4096]), None);
}

proptest::proptest! {
    #[test]
    fn the_other_disk_has_what_was_written(
        writes in proptest::collection::vec((0..12_u64, 0..5_u64, proptest::prelude::any::<u8>(), 0..4_u8), 1..40),
    ) {
        let (_one, disk) = self::disk();
        let (_other, copy) = self::disk();
        let mut sent = Encoder::new(3);
        disk.record(u64::MAX);
        for (block, part, byte, kind) in writes {
            let offset = block * 4096 + if kind == 0 { part * 512 } else { 0 };
            let write = match kind {
                1 => Write { offset, contents: Contents::Zeros(5000) },
                0 => bytes(offset, byte, 512),
                _ => {
                    let mut contents = vec![7; 8192];
                    contents[part as usize * 900..][..10].fill(byte);
                    Write { offset, contents: Contents::Bytes(contents) }
                }
            };
            disk.write(write).unwrap();
            if kind != 2 {
                let mut out = Vec::new();
                for write in disk.cut().writes {
                    encode_differing(&write, &mut sent, &mut out);
                }
                copy.apply(&decode(&out, copy.bytes()).unwrap()).unwrap();
            }
        }
        let mut out = Vec::new();
        for write in disk.cut().writes {
            encode_differing(&write, &mut sent, &mut out);
        }
        copy.apply(&decode(&out, copy.bytes()).unwrap()).unwrap();
        let (mut a, mut b) = (vec![0; 1 << 17], vec![0; 1 << 17]);
        disk.look(0, &mut a).unwrap();
        copy.look(0, &mut b).unwrap();
        proptest::prop_assert!(a == b);
    }
}

/// Writes 100 blocks of the disk on another thread, and says after each that it did.
fn write_on(disk: &Arc<Disk>) -> std::sync::mpsc::Receiver<io::Result<()>> {
    let (disk, (sender, written)) = (disk.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        for block in 0..100 {
            let _ = sender.send(disk.write(bytes(block * 4096, 1, 4096)));
        }
    });
    written
}

/// How many writes were done until nothing happened for a while.
fn done(written: &std::sync::mpsc::Receiver<io::Result<()>>) -> usize {
    let mut done = 0;
    while let Ok(result) = written.recv_timeout(std::time::Duration::from_millis(300)) {
        result.unwrap();
        done += 1;
    }
    done
}

// hazard: VM-15
#[test]
fn while_the_standby_is_slow_writes_wait_and_no_more_is_kept_than_there_is_room_for() {
    let (_directory, disk) = disk();
    disk.record(10 * 4096);
    let written = write_on(&disk);
    assert_eq!(done(&written), 10);
    assert!(disk.journal_bytes() < 11 * 4096);
    // The machine does not stop before all of its writes are done.
    disk.begin();
    assert_eq!(done(&written), 90);
    assert_eq!(disk.cut().writes.len(), 100);
    assert_eq!((disk.journal_bytes(), disk.take_waits()), (0, 1));
}

// hazard: VM-15
#[test]
fn writes_go_on_when_their_checkpoint_was_taken_or_nobody_needs_them() {
    let (_directory, disk) = disk();
    disk.record(10 * 4096);
    let written = write_on(&disk);
    assert_eq!(done(&written), 10);
    assert_eq!(disk.cut().writes.len(), 10);
    assert_eq!(done(&written), 10);
    disk.forget();
    assert_eq!(done(&written), 80);

    disk.record(0);
    let written = write_on(&disk);
    assert_eq!(done(&written), 0);
    disk.close();
    let error = written.recv().unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
}

// hazard: VM-15
#[test]
fn blocks_that_were_read_are_remembered_only_so_far() {
    let (_directory, disk) = disk();
    disk.record(u64::MAX);
    disk.write(bytes(0, 1, 4096)).unwrap();
    disk.read(0, &mut [0; 4096]).unwrap();
    let mut reads = disk.cut().reads;
    for block in 1..2 * Reads::MOST as u64 {
        reads.read(block * 4096, &[0; 4096]);
    }
    assert_eq!(reads.find(&[1; 4096]), Some(0));
    assert_eq!(reads.len(), Reads::MOST);
}

#[test]
fn an_image_that_was_closed_is_written_no_more() {
    let (_directory, disk) = disk();
    disk.close();
    assert!(disk.write(bytes(0, 1, 1)).is_err());
    assert!(disk.apply(&[bytes(0, 1, 1)]).is_err());
}

#[test]
fn durable_blocks_are_not_flushed_again() {
    let (directory, disk) = disk();
    // What others have written to the image is not known.
    assert!(disk.flush().unwrap());
    assert!(!disk.flush().unwrap());
    disk.write(bytes(0, 1, 10)).unwrap();
    assert!(disk.flush().unwrap());
    assert!(!disk.flush().unwrap());
    disk.record(u64::MAX);
    disk.write(Write {
        offset: 4096,
        contents: Contents::Zeros(10),
    })
    .unwrap();
    disk.cut();
    assert!(disk.flush().unwrap());
    disk.apply(&[bytes(0, 2, 10)]).unwrap();
    assert!(disk.flush().unwrap());
    // Opened again, by whom nothing is known.
    let again = Disk::open(&directory.path().join("image")).unwrap();
    assert!(again.flush().unwrap());
}

// hazard: VM-11, VM-24
#[test]
fn a_flush_that_failed_is_not_forgotten() {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let directory = tempfile::tempdir().unwrap();
    let image = File::create(directory.path().join("image")).unwrap();
    // A pipe cannot be flushed; later the disk can, as after an error of a device that the kernel has told once.
    let (pipe, _other_end) = nix::unistd::pipe().unwrap();
    let number = pipe.as_raw_fd();
    let disk = Disk::of(File::from(pipe)).unwrap();
    disk.flush().unwrap_err();
    // SAFETY: the number is the disk's file, which is open, and stays its number.
    let mut file = unsafe { OwnedFd::from_raw_fd(number) };
    nix::unistd::dup2(&image, &mut file).unwrap();
    std::mem::forget(file);
    image.sync_data().unwrap();
    disk.flush().unwrap_err();
}

/// It was readable by every user of the host.
// hazard: VM-30
#[test]
fn an_image_is_for_nobody_else_to_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    File::create(&path).unwrap();
    Disk::create(&path, 4096).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// QEMU stopped the machine without a word when the host's file system was full: nobody was told.
// hazard: VM-29
#[test]
fn a_request_that_fails_is_told_of() {
    use std::io::{Read as _, Write as _};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    std::fs::write(&path, [0; 4096]).unwrap();
    let read_only = Disk::of(File::open(&path).unwrap()).unwrap();
    let socket = directory.path().join("nbd");
    let _server = serve(read_only.clone(), &socket).unwrap();
    let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    client.write_all(&[0, 0, 0, 0]).unwrap();
    client.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    client.read_exact(&mut [0; 8 + 2 + 124]).unwrap();
    let request = [
        &0x2560_9513_u32.to_be_bytes()[..],
        &[0, 0, 0, 1],
        &[7; 8],
        &[0; 8],
        &512_u32.to_be_bytes(),
        &[1; 512],
    ];
    client.write_all(&request.concat()).unwrap();
    let mut answer = [0; 16];
    client.read_exact(&mut answer).unwrap();
    assert_ne!(answer[4..8], [0; 4]);
    let trouble = read_only.take_trouble().unwrap();
    assert!(trouble.contains("cannot be written"), "{trouble}");
    assert_eq!(read_only.take_trouble(), None);
}
