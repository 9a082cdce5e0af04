//! `[tls]`: who belongs to the cluster, for all that its parts say to each other.

use std::path::PathBuf;

use dax::tls::Files;
use serde::Deserialize;

use super::ConfigError;

/// `[tls]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// The cluster's identity, the same file on every machine.
    pub identity: Option<PathBuf>,
    /// Instead, of an authority of the operator's: this machine's certificate,
    pub certificate: Option<PathBuf>,
    /// its key,
    pub key: Option<PathBuf>,
    /// and the authority's certificate.
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
