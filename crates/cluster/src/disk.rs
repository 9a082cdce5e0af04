//! Disks of their own for zones, which can be emptied, and which have as much room as one says: file systems in
//! memory, whose size can be changed while they are used. Nothing fills a real disk, and no loop devices are needed.
//!
//! Invariant: a [`Disk`] that is dropped is not mounted any more.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::statvfs;

/// A mounted disk. See the module.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
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
        })
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
        let size = format!("size={bytes}");
        let none: Option<&str> = None;
        mount(none, &self.path, none, MsFlags::MS_REMOUNT, Some(&*size))
            .context("cannot change the size of a disk")
    }

    /// Removes everything. Nobody may use it.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn wipe(&self) -> anyhow::Result<()> {
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
                flip(&path, at, count.min(length - at))?;
                return Ok(Some((path, at)));
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
}
