//! Secrets and keys in files. Invariant: a file that others than its owner can open is not read, and
//! none is written that they could.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use zeroize::Zeroizing;

use super::{Secret, VolumeKey};
use crate::error::{Error, ErrorKind, Result};

/// No secret is longer.
const MAX_BYTES: u64 = 4096;

impl Secret {
    /// Reads a secret from its file; see [`Secret::parse`].
    ///
    /// # Errors
    /// `Invalid` if it cannot be read, others can read it, or it is no secret.
    pub fn load(path: &Path) -> Result<Secret> {
        Secret::parse(&read(path, MAX_BYTES)?).map_err(|error| about(path, error))
    }
}

impl VolumeKey {
    /// Reads a key from its file; see [`VolumeKey::parse`].
    ///
    /// # Errors
    /// `Invalid` if it cannot be read, others can read it, or it is no key.
    pub fn load(path: &Path) -> Result<VolumeKey> {
        VolumeKey::parse(&read(path, MAX_BYTES)?).map_err(|error| about(path, error))
    }
}

/// Writes a secret or key as text, and a line end, into a new file that only its owner can open.
///
/// # Errors
/// `Conflict` if the file exists, `Invalid` if it cannot be written.
pub fn write_new(path: &Path, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(path);
    let mut file = opened.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            let message = format!("{} exists, and is not overwritten", path.display());
            Error::new(ErrorKind::Conflict, message)
        }
        _ => failed("write", path, error),
    })?;
    let written = file.write_all(text.as_bytes());
    let written = written.and_then(|()| file.write_all(b"\n"));
    let written = written.and_then(|()| file.sync_all());
    written.map_err(|error| failed("write", path, error))
}

/// Reads a file of at most `max_bytes` that only its owner can open.
pub(crate) fn read(path: &Path, max_bytes: u64) -> Result<Zeroizing<Vec<u8>>> {
    let file = File::open(path).map_err(|error| failed("read", path, error))?;
    let metadata = file
        .metadata()
        .map_err(|error| failed("read", path, error))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        let path = path.display();
        let message = format!("others than its owner can open {path}; run: chmod 600 {path}");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    // At once, so that no copy is left behind by growing.
    let expected = metadata.len().min(max_bytes) as usize;
    let mut contents = Zeroizing::new(Vec::with_capacity(expected + 1));
    let mut limited = file.take(max_bytes + 1);
    limited
        .read_to_end(&mut contents)
        .map_err(|error| failed("read", path, error))?;
    if contents.len() as u64 > max_bytes {
        let message = format!("{} is too long for what it should hold", path.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(contents)
}

fn failed(verb: &str, path: &Path, error: std::io::Error) -> Error {
    let message = format!("cannot {verb} {}", path.display());
    Error::with_source(ErrorKind::Invalid, message, error)
}

fn about(path: &Path, error: Error) -> Error {
    Error::new(error.kind(), format!("{}: {error}", path.display()))
}
