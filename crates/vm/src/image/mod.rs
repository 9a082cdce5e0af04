//! Images of machines: a directory with a kernel, its first file system, and a disk with a database.
//!
//! | file | what it is |
//! |---|---|
//! | `kernel`, `initrd` | what QEMU starts |
//! | `disk.raw` | an ext4 file system; a machine gets a copy of it |
//! | `image.toml` | what is in it ([`Manifest`]) |
//!
//! Nothing is installed or changed in the guest at run time: it learns its address from the kernel's command line
//! ([`address`]), starts its database, and stops cleanly when its power button is pressed. Database and kernel are
//! Debian's, unmodified.

mod create;
mod initrd;
mod work;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use create::{Create, Progress, create};

/// What the guest's first program says on the console.
pub(crate) const STARTED: &str = "understudy: the kernel has started";
/// Told to the kernel, it makes that program power off right then.
pub(crate) const ONLY_START: &str = "understudy.only-start";
/// The layout of an image's directory.
const FORMAT: u32 = 1;
const MANIFEST: &str = "image.toml";

/// Why an image could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Something about this host, or what was asked for, must change first.
    #[error("{what}")]
    Refused {
        /// What does not fit.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// A program that makes the image failed.
    #[error("{program} failed ({status}):\n{output}")]
    Program {
        /// Name of the program that failed.
        program: String,
        /// How it ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// What is in the directory is no image.
    #[error("{path} is no image: {why}")]
    Damaged {
        /// Directory of the image.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The operating system said no.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Shorthand for results of this module.
pub type Result<T, E = ImageError> = std::result::Result<T, E>;

impl ImageError {
    fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> ImageError {
        ImageError::System {
            what: what.into(),
            source: source.into(),
        }
    }

    fn refused(what: impl Into<String>, hint: impl Into<String>) -> ImageError {
        ImageError::Refused {
            what: what.into(),
            hint: hint.into(),
        }
    }

    /// What an operator can do about it, if that is known.
    pub fn hint(&self) -> Option<&str> {
        match self {
            ImageError::Refused { hint, .. } => Some(hint),
            ImageError::Program { .. } => {
                Some("If packages are not found, see the sources of apt on this host.")
            }
            ImageError::Damaged { .. } => Some("Create it again with \"understudy vm create\"."),
            ImageError::System { .. } => None,
        }
    }
}

/// A database that an image can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Database {
    /// PostgreSQL; its superuser is `postgres`.
    PostgreSql,
    /// MariaDB; its administrator is `root`.
    MariaDb,
}

impl Database {
    /// The port that it listens on, in the guest.
    pub fn port(self) -> u16 {
        match self {
            Database::PostgreSql => 5432,
            Database::MariaDb => 3306,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Database::PostgreSql => "postgresql",
            Database::MariaDb => "mariadb",
        }
    }
}

/// What an image says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: u32,
    /// Database that the image has.
    pub database: Database,
    /// What the database says its version is.
    pub version: String,
    /// The release of Debian that it has.
    pub suite: String,
    /// The kernel's release.
    pub kernel: String,
    /// Bytes of the disk.
    pub disk_bytes: u64,
}

/// An image that was made completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    directory: PathBuf,
    /// What is in it.
    pub manifest: Manifest,
}

impl Image {
    /// Opens the image in a directory.
    ///
    /// # Errors
    /// `Damaged` if it has none that can be used.
    pub fn open(directory: &Path) -> Result<Image> {
        let damaged = |why: String| ImageError::Damaged {
            path: directory.to_owned(),
            why,
        };
        let text = std::fs::read_to_string(directory.join(MANIFEST))
            .map_err(|error| damaged(format!("{MANIFEST}: {error}")))?;
        let manifest: Manifest =
            toml::from_str(&text).map_err(|error| damaged(error.message().to_owned()))?;
        if manifest.format != FORMAT {
            return Err(damaged(format!(
                "its format is {}, not {FORMAT}",
                manifest.format
            )));
        }
        let image = Image {
            directory: directory.to_owned(),
            manifest,
        };
        for file in [image.kernel(), image.initrd(), image.disk()] {
            if !file.is_file() {
                return Err(damaged(format!("there is no {}", file.display())));
            }
        }
        Ok(image)
    }

    /// The kernel.
    pub fn kernel(&self) -> PathBuf {
        self.directory.join("kernel")
    }

    /// The kernel's first file system.
    pub fn initrd(&self) -> PathBuf {
        self.directory.join("initrd")
    }

    /// The disk as it was made.
    pub fn disk(&self) -> PathBuf {
        self.directory.join("disk.raw")
    }
}

/// What the kernel is told so that the guest has this address, in a network of `prefix` bits.
pub fn address(guest: Ipv4Addr, prefix: u8, gateway: Option<Ipv4Addr>) -> String {
    let gateway = gateway
        .map(|gateway| format!(" understudy.gateway={gateway}"))
        .unwrap_or_default();
    format!("understudy.address={guest}/{prefix}{gateway}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_images_are_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Image::open(directory.path());
        let manifest = |format: u32| {
            let text = toml::to_string(&Manifest {
                format,
                database: Database::MariaDb,
                version: "mariadbd 10".to_owned(),
                suite: "bookworm".to_owned(),
                kernel: "6.1".to_owned(),
                disk_bytes: 5,
            });
            std::fs::write(directory.path().join(MANIFEST), text.unwrap()).unwrap();
        };
        assert!(matches!(open(), Err(ImageError::Damaged { .. })));
        manifest(FORMAT + 1);
        assert!(open().unwrap_err().to_string().contains("format"));
        manifest(FORMAT);
        assert!(open().unwrap_err().to_string().contains("kernel"));
        for file in ["kernel", "initrd", "disk.raw"] {
            std::fs::write(directory.path().join(file), "x").unwrap();
        }
        assert_eq!(open().unwrap().manifest.database, Database::MariaDb);
        std::fs::write(directory.path().join(MANIFEST), "format = ").unwrap();
        assert!(open().unwrap_err().hint().is_some());
    }

    #[test]
    fn an_address_is_told_to_the_kernel() {
        let guest = Ipv4Addr::new(10, 1, 0, 2);
        assert_eq!(address(guest, 24, None), "understudy.address=10.1.0.2/24");
        let gateway = Some(Ipv4Addr::new(10, 1, 0, 1));
        assert!(address(guest, 24, gateway).ends_with(" understudy.gateway=10.1.0.1"));
    }
}
