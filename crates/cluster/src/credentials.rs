//! A cluster's identity, its zones' secret and its volume's key, in files of its directory.

use std::path::{Path, PathBuf};

use dax::credentials::{Secret, write_new};
use dax::ids::VolumeName;
use dax::tls::new_identity;

/// The volume of every cluster on this machine.
pub(super) const VOLUME: &str = "demo";

/// Where the files are.
#[derive(Debug)]
pub(super) struct Credentials {
    /// None for plaintext.
    pub identity: Option<PathBuf>,
    pub secret: PathBuf,
    pub key: PathBuf,
    /// What orders over HTTP must show.
    pub token: PathBuf,
}

impl Credentials {
    /// Makes an identity if wanted, a secret, and the volume's key from it.
    pub fn write(dir: &Path, tls: bool) -> anyhow::Result<Credentials> {
        let files = Credentials {
            identity: tls.then(|| dir.join("cluster.pem")),
            secret: dir.join("zones.secret"),
            key: dir.join("volume.key"),
            token: dir.join("rest.token"),
        };
        if let Some(identity) = &files.identity {
            new_identity(identity)?;
        }
        let secret = Secret::random()?;
        write_new(&files.secret, &secret.to_hex())?;
        let key = secret.key(&VolumeName::new(VOLUME)?);
        write_new(&files.key, &key.to_hex())?;
        write_new(&files.token, &Secret::random()?.to_hex())?;
        Ok(files)
    }
}
