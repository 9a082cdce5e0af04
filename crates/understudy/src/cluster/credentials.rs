//! A cluster's secret and its volume's key, in files of its directory: everything on this machine runs
//! as authenticated as everywhere else.

use std::path::{Path, PathBuf};

use dax::credentials::{Secret, write_new};
use dax::ids::VolumeName;

/// The volume of every cluster on this machine.
pub(super) const VOLUME: &str = "demo";

/// Where the files are.
#[derive(Debug)]
pub(super) struct Credentials {
    pub secret: PathBuf,
    pub key: PathBuf,
    /// What orders over HTTP must show.
    pub token: PathBuf,
}

impl Credentials {
    /// Makes a secret, and the volume's key from it.
    pub fn write(dir: &Path) -> anyhow::Result<Credentials> {
        let files = Credentials {
            secret: dir.join("zones.secret"),
            key: dir.join("volume.key"),
            token: dir.join("rest.token"),
        };
        let secret = Secret::random()?;
        write_new(&files.secret, &secret.to_hex())?;
        let key = secret.key(&VolumeName::new(VOLUME)?);
        write_new(&files.key, &key.to_hex())?;
        write_new(&files.token, &Secret::random()?.to_hex())?;
        Ok(files)
    }
}
