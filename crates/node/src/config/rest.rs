//! `[rest]`: where load balancers, monitoring and operators ask over HTTP.

use std::path::PathBuf;

use serde::Deserialize;

use super::ConfigError;
use crate::address::Address;

/// `[rest]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RestConfig {
    /// Where to listen, `host:port`.
    pub listen: Address,
    /// Where others reach it, if that differs.
    pub advertise: Option<Address>,
    /// The file with the token that requests which change something must show. Without one they are
    /// refused.
    pub token: Option<PathBuf>,
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
        }
    }
}

impl RestConfig {
    /// Where others reach it.
    pub fn advertised(&self) -> &Address {
        self.advertise.as_ref().unwrap_or(&self.listen)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let is_tcp = |address: &Address| matches!(address, Address::Tcp { .. });
        if !is_tcp(&self.listen) {
            let why = "HTTP is served over TCP only: host:port";
            return Err(ConfigError::invalid("rest.listen", why));
        }
        match &self.token {
            Some(token) if !token.is_absolute() => {
                let why = format!("{token:?} is not absolute");
                Err(ConfigError::invalid("rest.token", why))
            }
            _ => Ok(()),
        }
    }
}
