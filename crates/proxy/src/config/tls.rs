//! Encryption: of clients' connections, and of those to servers.

use std::path::PathBuf;

use dax::error::Error;
use dax::tls::PostgresServer;
use serde::Deserialize;

/// The proxy's certificate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// File with the certificate, and with those that lead to its authority.
    pub certificate: PathBuf,
    /// File with the key of `certificate`.
    pub key: PathBuf,
    /// Refuses connections that are not encrypted.
    #[serde(default)]
    pub require: bool,
}

impl TlsConfig {
    /// Reads the files.
    ///
    /// # Errors
    /// If one cannot be read, or others than its owner can open the key.
    pub fn load(&self) -> Result<PostgresServer, Error> {
        PostgresServer::load(self.certificate.clone(), self.key.clone())
    }
}

/// What servers must prove, as libpq's `sslmode` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerTlsMode {
    /// Connections are not encrypted.
    Disable,
    /// Connections are encrypted if the server offers it.
    #[default]
    Prefer,
    /// Connections must be encrypted.
    Require,
    /// In addition, the certificate must be from an authority in `root`.
    VerifyCa,
    /// In addition, the certificate must be for the address that is connected to.
    VerifyFull,
}

impl ServerTlsMode {
    /// As it is written in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            ServerTlsMode::Disable => "disable",
            ServerTlsMode::Prefer => "prefer",
            ServerTlsMode::Require => "require",
            ServerTlsMode::VerifyCa => "verify-ca",
            ServerTlsMode::VerifyFull => "verify-full",
        }
    }
}

/// `[server_tls]`: how connections to servers are protected. Those on this machine (sockets in a directory) are not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerTls {
    /// Proof that is required of servers, spelled as libpq's `sslmode`.
    pub mode: ServerTlsMode,
    /// File with the certificates of authorities, in PEM form. Required with `verify-ca` and `verify-full`.
    pub root: Option<PathBuf>,
}

impl ServerTls {
    /// True if mode and file go together.
    ///
    /// # Errors
    /// What is wrong with `root`.
    pub fn check(&self) -> Result<(), &'static str> {
        use ServerTlsMode as Mode;
        match (self.mode, &self.root) {
            (Mode::VerifyCa | Mode::VerifyFull, None) => {
                Err("is missing: name the file of the authority that the certificate must be from")
            }
            (Mode::Disable | Mode::Prefer, Some(_)) => {
                Err("has no effect with this mode: write mode = \"verify-full\", or leave it out")
            }
            _ => Ok(()),
        }
    }
}
