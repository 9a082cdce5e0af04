//! The guest's first file system: busybox, the modules that a disk and a network card need, and one script.
//!
//! Written in the archive format that kernels read (cpio, `newc`), not compressed: it is read from memory.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{ImageError, Result};

const SCRIPT: &str = include_str!("guest/initrd-init");
/// In the order in which they are loaded. Those that a kernel has not as modules it has built in.
const MODULES: [&str; 17] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_blk",
    "crc16",
    "libcrc32c",
    "crc32c_generic",
    "mbcache",
    "jbd2",
    "ext4",
    // The power button.
    "button",
    "evdev",
];

/// Writes the archive: `modules` has the kernel's modules somewhere below it.
pub(super) fn write(into: &mut impl Write, busybox: &Path, modules: &Path) -> Result<()> {
    let failed = |e| ImageError::system("cannot write the initrd", e);
    let program = std::fs::read(busybox)
        .map_err(|e| ImageError::system(format!("cannot read {}", busybox.display()), e))?;
    let mut archive = Archive { into, number: 0 };
    for directory in ["proc", "sys", "dev", "disk", "modules"] {
        archive.add(directory, DIRECTORY, &[]).map_err(failed)?;
    }
    archive.add("busybox", PROGRAM, &program).map_err(failed)?;
    archive
        .add("init", PROGRAM, SCRIPT.as_bytes())
        .map_err(failed)?;
    let mut found = Vec::new();
    find(modules, &mut found)?;
    for (number, name) in MODULES.iter().enumerate() {
        let Some(path) = found.iter().find(|path| is_module(path, name)) else {
            continue;
        };
        archive
            .add(&format!("modules/{number:02}-{name}"), FILE, &module(path)?)
            .map_err(failed)?;
    }
    archive.end().map_err(failed)
}

/// Files below a directory.
fn find(directory: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    let failed = |e| ImageError::system(format!("cannot list {}", directory.display()), e);
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            find(&entry.path(), into)?;
        } else {
            into.push(entry.path());
        }
    }
    Ok(())
}

/// True if a file is this module, packed or not.
fn is_module(path: &Path, name: &str) -> bool {
    let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let ending = file.strip_prefix(name).unwrap_or_default();
    matches!(ending, ".ko" | ".ko.xz" | ".ko.zst" | ".ko.gz")
}

/// The module, unpacked.
fn module(path: &Path) -> Result<Vec<u8>> {
    let unpacker = match path.extension().and_then(OsStr::to_str) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => {
            return std::fs::read(path)
                .map_err(|e| ImageError::system(format!("cannot read {}", path.display()), e));
        }
    };
    let failed = |e| ImageError::system(format!("cannot run {unpacker}"), e);
    let mut child = Command::new(unpacker)
        .arg("-dc")
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut unpacked = Vec::new();
    if let Some(output) = &mut child.stdout {
        output.read_to_end(&mut unpacked).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(unpacked);
    }
    Err(ImageError::Program {
        program: unpacker.to_owned(),
        status: status.to_string(),
        output: path.display().to_string(),
    })
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const END: &str = "TRAILER!!!";

struct Archive<'a, W> {
    into: &'a mut W,
    number: u32,
}

impl<W: Write> Archive<'_, W> {
    /// A header of thirteen fields of eight digits after the magic number, the name, and the contents, each up to a
    /// multiple of four bytes.
    fn add(&mut self, name: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
        let too_large = |_| io::Error::from(io::ErrorKind::FileTooLarge);
        let length = u32::try_from(contents.len()).map_err(too_large)?;
        let name_length = u32::try_from(name.len() + 1).map_err(too_large)?;
        let links = if mode == DIRECTORY { 2 } else { 1 };
        self.number += 1;
        let fields = [
            self.number,
            mode,
            0,
            0,
            links,
            0,
            length,
            0,
            0,
            0,
            0,
            name_length,
            0,
        ];
        let mut head = b"070701".to_vec();
        for field in fields {
            head.extend(format!("{field:08x}").bytes());
        }
        head.extend(name.bytes());
        head.push(0);
        head.resize(head.len().next_multiple_of(4), 0);
        self.into.write_all(&head)?;
        self.into.write_all(contents)?;
        let fill = contents.len().next_multiple_of(4) - contents.len();
        self.into.write_all(&[0; 4][..fill])
    }

    fn end(mut self) -> io::Result<()> {
        self.add(END, 0, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_has_what_the_first_script_needs() {
        let directory = tempfile::tempdir().unwrap();
        let kernel = directory.path().join("lib/modules/6.1/kernel/drivers");
        std::fs::create_dir_all(&kernel).unwrap();
        std::fs::write(kernel.join("virtio.ko"), "module").unwrap();
        std::fs::write(kernel.join("virtio_blk.ko"), "block").unwrap();
        std::fs::write(kernel.join("other.ko"), "other").unwrap();
        let busybox = directory.path().join("box");
        std::fs::write(&busybox, "program").unwrap();
        let mut archive = Vec::new();
        write(&mut archive, &busybox, directory.path()).unwrap();
        assert!(archive.len().is_multiple_of(4));
        let text = String::from_utf8_lossy(&archive).into_owned();
        let places: Vec<usize> = [
            "busybox\0",
            "init\0",
            "modules/01-virtio\0",
            "modules/08-virtio_blk\0",
            END,
        ]
        .iter()
        .map(|name| text.find(name).unwrap_or_else(|| panic!("{name}")))
        .collect();
        assert!(places.is_sorted(), "{places:?}");
        assert!(!text.contains("other"));
    }

    #[test]
    fn packed_modules_are_unpacked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("virtio.ko");
        std::fs::write(&path, "module").unwrap();
        assert!(Command::new("gzip").arg(&path).status().unwrap().success());
        let packed = directory.path().join("virtio.ko.gz");
        assert!(is_module(&packed, "virtio") && !is_module(&packed, "virti"));
        assert_eq!(module(&packed).unwrap(), b"module");
        std::fs::write(&packed, "damaged").unwrap();
        assert!(matches!(module(&packed), Err(ImageError::Program { .. })));
    }
}
