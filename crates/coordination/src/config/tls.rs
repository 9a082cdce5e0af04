//! `[tls]`: who belongs to the cluster, for all that its parts say to each other.

use std::path::PathBuf;

use dax::tls::Files;
use serde::Deserialize;

use super::ConfigError;

/// `[tls]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// File with the cluster's certificate and key, the same on every machine. `understudy init` creates it.
    pub identity: Option<PathBuf>,
    /// File with this machine's certificate, if you have an authority of your own in place of `identity`.
    pub certificate: Option<PathBuf>,
    /// File with the key of `certificate`.
    pub key: Option<PathBuf>,
    /// File with the authority's certificate.
    pub ca: Option<PathBuf>,
}

impl TlsConfig {
    /// The files, if there are any.
    pub fn files(&self) -> Option<Files> {
        if let Some(identity) = &self.identity {
            return Some(Files::Identity(identity.clone()));
        }
        Some(Files::Authority {
            certificate: self.certificate.clone()?,
            key: self.key.clone()?,
            authority: self.ca.clone()?,
        })
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let given = [
            ("tls.identity", &self.identity),
            ("tls.certificate", &self.certificate),
            ("tls.key", &self.key),
            ("tls.ca", &self.ca),
        ];
        absolute(&given)?;
        let own = given[1..].iter().filter(|(_, path)| path.is_some()).count();
        match (&self.identity, own) {
            (None, 0 | 3) | (Some(_), 0) => Ok(()),
            (Some(_), _) => Err(ConfigError::invalid(
                "tls.identity",
                "give either the cluster's identity or certificate, key and ca",
            )),
            (None, _) => Err(ConfigError::invalid(
                "tls",
                "certificate, key and ca belong together; or give the cluster's identity",
            )),
        }
    }
}

/// Refuses paths that depend on where a program was started.
pub(super) fn absolute(given: &[(&str, &Option<PathBuf>)]) -> Result<(), ConfigError> {
    let relative = given.iter().find_map(|(key, path)| {
        let path = path.as_ref().filter(|path| !path.is_absolute())?;
        Some((key, path))
    });
    match relative {
        Some((key, path)) => Err(ConfigError::invalid(
            key,
            format!("{path:?} is not absolute"),
        )),
        None => Ok(()),
    }
}
