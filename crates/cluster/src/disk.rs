//! Disks of their own for zones, which can be emptied, and which have as much room as one says: file systems in
//! memory, whose size can be changed while they are used. Nothing fills a real disk. One that can lose power is a file system
//! of its own (ext4) on a loop device over such memory: what was not synced is gone then, and places of its files can be unreadable.
//!
//! Invariant: a [`Disk`] that is dropped is not mounted any more.

mod sectors;

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::statvfs;

use self::sectors::Sectors;

/// Memory for the file system that holds an image, besides the image itself.
const IMAGE_SPARE: u64 = 64 << 20;
/// A process that was killed may hold files a little longer.
const UNMOUNT_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of a block of a disk that can lose power.
const BLOCK_BYTES: u64 = 4096;
/// `EXT4_GOING_FLAGS_NOLOGFLUSH`: neither data nor the file system's own log is written any more.
const NOTHING_WRITTEN: u32 = 2;

// EXT4_IOC_SHUTDOWN, whose number says that it reads, and which writes.
nix::ioctl_write_ptr_bad!(
    /// Shuts a file system down as it is on its disk.
    shut_down,
    nix::request_code_read!(b'X', 125, size_of::<u32>()),
    u32
);

// FIBMAP, whose number says nothing.
nix::ioctl_readwrite_bad!(
    /// Block of the disk that a block of a file is in; none is 0.
    block_of,
    1,
    nix::libc::c_int
);

/// Runs a command that must work.
fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(output.status.success(), "{command:?}: {}", said.trim());
    Ok(())
}

/// A mounted disk. See the module.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    /// The image on a disk below, if it is one that can lose power.
    image: Option<(Sectors, Box<Disk>)>,
}

impl Disk {
    /// Mounts an empty one of so many bytes at a directory, which is made.
    ///
    /// # Errors
    /// The caller is not root, or the directory cannot be made.
    pub fn mount(path: &Path, bytes: u64) -> anyhow::Result<Disk> {
        std::fs::create_dir_all(path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        let size = format!("size={bytes},mode=755");
        let none: Option<&str> = None;
        mount(none, path, Some("tmpfs"), MsFlags::empty(), Some(&*size)).with_context(|| {
            format!("cannot mount a disk at {}; that needs root", path.display())
        })?;
        Ok(Disk {
            path: path.to_owned(),
            image: None,
        })
    }

    /// Mounts a disk that can [lose power](Disk::lose_power), and be [unreadable](Disk::fail_reads) in places.
    ///
    /// # Errors
    /// As of [`mount`](Disk::mount); also if there are no loop devices, or no FUSE.
    pub fn mount_losing(path: &Path, bytes: u64) -> anyhow::Result<Disk> {
        let below = Disk::mount(&path.with_extension("below"), bytes + IMAGE_SPARE)?;
        let image = below.path.join("image");
        File::create(&image)?.set_len(bytes)?;
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0", "-b", &BLOCK_BYTES.to_string()])
            .arg(&image))?;
        let sectors = Sectors::mount(&image, &path.with_extension("sectors"))?;
        std::fs::create_dir_all(path)?;
        let disk = Disk {
            path: path.to_owned(),
            image: Some((sectors, Box::new(below))),
        };
        disk.mount_image()?;
        Ok(disk)
    }

    fn mount_image(&self) -> anyhow::Result<()> {
        let (image, _) = self.image.as_ref().context("a disk in memory")?;
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(image.path())
            .arg(&self.path))
    }

    /// Loses power, and has it again: what was not synced is gone. Nobody may use it.
    ///
    /// # Errors
    /// It is a disk that cannot, or somebody uses it.
    pub fn lose_power(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.image.is_some(), "this disk cannot lose power");
        let root = File::open(&self.path)?;
        // SAFETY: the file is open, and the kernel reads a number from there.
        unsafe { shut_down(root.as_raw_fd(), &NOTHING_WRITTEN) }
            .context("the file system cannot be shut down")?;
        drop(root);
        let deadline = Instant::now() + UNMOUNT_WITHIN;
        while let Err(error) = umount2(&self.path, MntFlags::empty()) {
            anyhow::ensure!(Instant::now() < deadline, "a disk is in use: {error}");
            std::thread::sleep(Duration::from_millis(50));
        }
        self.mount_image()
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that its files take.
    ///
    /// # Errors
    /// It is not mounted any more.
    pub fn used_bytes(&self) -> anyhow::Result<u64> {
        let said = statvfs(&self.path).context("cannot tell what a disk holds")?;
        Ok((said.blocks() - said.blocks_free()) * said.fragment_size())
    }

    /// Gives it so many bytes in all, which may be hardly more than it holds.
    ///
    /// # Errors
    /// It holds more than that.
    pub fn resize(&self, bytes: u64) -> anyhow::Result<()> {
        if self.image.is_some() {
            return self.fill_up(bytes);
        }
        let size = format!("size={bytes}");
        let none: Option<&str> = None;
        mount(none, &self.path, none, MsFlags::MS_REMOUNT, Some(&*size))
            .context("cannot change the size of a disk")
    }

    /// Takes the room beyond so many bytes, with a file that nobody reads.
    fn fill_up(&self, bytes: u64) -> anyhow::Result<()> {
        let ballast = self.path.join("ballast");
        if ballast.exists() {
            std::fs::remove_file(&ballast)?;
        }
        let said = statvfs(&self.path).context("cannot tell how large a disk is")?;
        let too_much = (said.blocks() * said.fragment_size()).saturating_sub(bytes);
        if too_much > 0 {
            let file = File::create(&ballast)?;
            let bytes = i64::try_from(too_much)?;
            nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, bytes)?;
        }
        Ok(())
    }

    /// Removes everything, as if it was a new one. Nobody may use it.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn wipe(&self) -> anyhow::Result<()> {
        if let Some((image, _)) = &self.image {
            image.mend();
        }
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            match path.is_dir() {
                true => std::fs::remove_dir_all(&path)?,
                false => std::fs::remove_file(&path)?,
            }
        }
        Ok(())
    }

    /// Changes a bit of each of `count` bytes behind each other in one of its files; `place` says where. Returns
    /// which file, and from where on; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be changed.
    pub fn rot(&self, place: u32, count: u64) -> anyhow::Result<Option<(PathBuf, u64)>> {
        let Some((path, at, left)) = self.place(place)? else {
            return Ok(None);
        };
        flip(&path, at, count.min(left))?;
        Ok(Some((path, at)))
    }

    /// Has a block of one of its files be unreadable until it is written again; `place` says where. Returns which file, and from where
    /// on; `None` if nothing is there.
    ///
    /// # Errors
    /// It is a disk that cannot.
    pub fn fail_reads(&self, place: u32) -> anyhow::Result<Option<(PathBuf, u64)>> {
        let (image, _) = self.image.as_ref().context("a disk in memory")?;
        let Some((path, at, _)) = self.place(place)? else {
            return Ok(None);
        };
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        file.sync_all()?;
        let at = at / BLOCK_BYTES * BLOCK_BYTES;
        let mut block = i32::try_from(at / BLOCK_BYTES)?;
        // SAFETY: the file is open, and the kernel reads and writes a number there.
        unsafe { block_of(file.as_raw_fd(), &mut block) }.context("no place of a file is told")?;
        if block == 0 {
            return Ok(None);
        }
        let first = u64::try_from(block)? * BLOCK_BYTES;
        image.fail(first..first + BLOCK_BYTES);
        // What the kernel remembers of the file would be readable: it forgets whole folios only, which may be large.
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        Ok(Some((path, at)))
    }

    /// Blocks that are unreadable still.
    pub fn unreadable(&self) -> usize {
        self.image.as_ref().map_or(0, |(image, _)| image.failing())
    }

    /// A byte of one of the files, and how many there are from there to the end of the file.
    fn place(&self, place: u32) -> anyhow::Result<Option<(PathBuf, u64, u64)>> {
        let mut files = Vec::new();
        collect(&self.path, &mut files)?;
        files.sort();
        let bytes: u64 = files.iter().map(|(_, length)| *length).sum();
        if bytes == 0 {
            return Ok(None);
        }
        // Every byte of the disk is as likely as every other.
        let mut at = u64::try_from((u128::from(bytes) * u128::from(place)) >> 32).unwrap_or(0);
        for (path, length) in files {
            if at < length {
                return Ok(Some((path, at, length - at)));
            }
            at -= length;
        }
        Ok(None)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = umount2(&self.path, MntFlags::MNT_DETACH) {
            tracing::warn!(%error, path = %self.path.display(), "cannot unmount a disk");
        }
    }
}

/// All files below a directory, with their lengths.
fn collect(dir: &Path, files: &mut Vec<(PathBuf, u64)>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        // What goes away just now cannot rot.
        match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => collect(&path, files)?,
            Ok(found) => files.push((path, found.len())),
            Err(_) => {}
        }
    }
    Ok(())
}

fn flip(path: &Path, at: u64, count: u64) -> anyhow::Result<()> {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)?;
    let mut bytes = vec![0; usize::try_from(count)?];
    file.read_exact_at(&mut bytes, at)?;
    bytes.iter_mut().for_each(|byte| *byte ^= 1);
    file.write_all_at(&bytes, at)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_the_room_it_is_given_can_rot_and_is_gone_in_the_end() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::mount(&dir.path().join("disk"), 8 << 20).unwrap();
        let file = disk.path().join("file");
        std::fs::write(&file, vec![7; 1 << 20]).unwrap();
        assert_eq!(disk.used_bytes().unwrap(), 1 << 20);
        disk.resize((1 << 20) + 4096).unwrap();
        let more = std::fs::write(disk.path().join("more"), vec![7; 1 << 20]);
        assert_eq!(more.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        std::fs::remove_file(disk.path().join("more")).unwrap();
        disk.resize(8 << 20).unwrap();
        std::fs::write(disk.path().join("more"), vec![7; 1 << 20]).unwrap();
        let (path, at) = disk.rot(0, 4).unwrap().unwrap();
        assert_eq!((path, at), (file.clone(), 0));
        let bytes = std::fs::read(&file).unwrap();
        assert_eq!(bytes[..5], [6, 6, 6, 6, 7]);
        disk.wipe().unwrap();
        assert_eq!(disk.rot(0, 4).unwrap(), None);
        let path = disk.path().to_owned();
        drop(disk);
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!table.contains(path.to_str().unwrap()));
    }

    #[test]
    fn a_block_that_failed_is_read_by_nobody_until_it_is_written() {
        if !nix::unistd::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::mount_losing(&dir.path().join("disk"), 64 << 20).unwrap();
        let path = disk.path().join("file");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let (failed, at) = disk.fail_reads(1 << 31).unwrap().unwrap();
        assert_eq!(failed, path);
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let mut block = vec![0; 4096];
        for _ in 0..3 {
            let error = file.read_exact_at(&mut block, at).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(nix::libc::EIO));
        }
        file.read_exact_at(&mut block, 0).unwrap();
        assert_eq!((block[0], disk.unreadable()), (7, 1));
        file.write_all_at(&[8; 4096], at).unwrap();
        file.sync_all().unwrap();
        file.read_exact_at(&mut block, at).unwrap();
        assert_eq!((block[0], disk.unreadable()), (8, 0));
        drop(file);
        disk.fail_reads(1 << 31).unwrap().unwrap();
        disk.wipe().unwrap();
        assert_eq!(disk.unreadable(), 0);
    }

    #[test]
    fn unsynced_writes_are_gone_with_the_power() {
        if !nix::unistd::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::mount_losing(&dir.path().join("disk"), 64 << 20).unwrap();
        let file = |name: &str| disk.path().join(name);
        std::fs::write(file("synced"), vec![7; 1 << 20]).unwrap();
        File::open(file("synced")).unwrap().sync_all().unwrap();
        File::open(disk.path()).unwrap().sync_all().unwrap();
        std::fs::write(file("lost"), vec![7; 1 << 20]).unwrap();
        disk.lose_power().unwrap();
        assert_eq!(std::fs::read(file("synced")).unwrap(), vec![7; 1 << 20]);
        assert!(!file("lost").exists());
        // The file system keeps some for itself.
        disk.resize(disk.used_bytes().unwrap() + (4 << 20)).unwrap();
        assert!(std::fs::write(file("large"), vec![7; 8 << 20]).is_err());
        disk.resize(64 << 20).unwrap();
        std::fs::write(file("large"), vec![7; 8 << 20]).unwrap();
    }
}
