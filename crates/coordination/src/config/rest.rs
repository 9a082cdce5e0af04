//! `[rest]`: where load balancers, monitoring and operators ask over HTTP.

use std::path::PathBuf;

use dax::tls::WebFiles;
use serde::Deserialize;

use super::{ConfigError, tls};
use crate::address::Address;

/// `[rest]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RestConfig {
    /// Address to listen on, `host:port`.
    pub listen: Address,
    /// Address at which others reach the interface, if it is not `listen`.
    pub advertise: Option<Address>,
    /// File with the token that requests which change something (POST) must show. Without a token they are refused.
    pub token: Option<PathBuf>,
    /// File with the certificate for HTTPS. Without it, HTTP is served.
    pub certificate: Option<PathBuf>,
    /// File with the key of `certificate`, if the key is not in the same file.
    pub key: Option<PathBuf>,
    /// File with an authority. Requests with a certificate of this authority need no token. Requires `certificate`.
    pub client_ca: Option<PathBuf>,
}

impl Default for RestConfig {
    fn default() -> Self {
        RestConfig {
            listen: Address::Tcp {
                host: "127.0.0.1".to_owned(),
                port: 8008,
            },
            advertise: None,
            token: None,
            certificate: None,
            key: None,
            client_ca: None,
        }
    }
}

impl RestConfig {
    /// Where others reach it.
    pub fn advertised(&self) -> &Address {
        self.advertise.as_ref().unwrap_or(&self.listen)
    }

    /// What HTTPS needs, if that is wanted.
    pub fn files(&self) -> Option<WebFiles> {
        let certificate = self.certificate.clone()?;
        Some(WebFiles {
            key: self.key.clone().unwrap_or_else(|| certificate.clone()),
            certificate,
            client_authority: self.client_ca.clone(),
        })
    }

    /// Refuses what cannot work.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] that says what to change.
    pub fn check(&self) -> Result<(), ConfigError> {
        let is_tcp = |address: &Address| matches!(address, Address::Tcp { .. });
        if !is_tcp(&self.listen) {
            let why = "HTTP is served over TCP only: host:port";
            return Err(ConfigError::invalid("rest.listen", why));
        }
        tls::absolute(&[
            ("rest.token", &self.token),
            ("rest.certificate", &self.certificate),
            ("rest.key", &self.key),
            ("rest.client_ca", &self.client_ca),
        ])?;
        if self.certificate.is_none() && (self.key.is_some() || self.client_ca.is_some()) {
            let why = "without a certificate nothing is protected; give one";
            return Err(ConfigError::invalid("rest.certificate", why));
        }
        Ok(())
    }
}
