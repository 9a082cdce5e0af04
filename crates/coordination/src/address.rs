//! Where a peer listens: a TCP host and port, or a Unix socket.
//!
//! Owns the textual form that configuration, registry records and the command line share:
//! `127.0.0.1:7101`, `[::1]:7101`, `db1.example:7101` or `unix:/run/understudy/zone-a`.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest path a Unix socket can be bound to on Linux, in bytes.
pub const UNIX_PATH_MAX: usize = 107;

/// An address to listen on or to connect to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    /// A host name or IP address (IPv6 without brackets), and a port.
    Tcp {
        /// Host name or IP address.
        host: String,
        /// Port.
        port: u16,
    },
    /// An absolute path of a Unix socket.
    Unix(PathBuf),
}

/// Why a text is no [`Address`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no address: {why}; write \"host:port\" or \"unix:/absolute/path\"")]
pub struct AddressError {
    text: String,
    why: &'static str,
}

impl Address {
    /// True if only processes of this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Unix(_) => true,
            Address::Tcp { host, .. } => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }

    /// True if it means every address of this machine, so that peers cannot connect to it as is.
    pub fn is_wildcard(&self) -> bool {
        match self {
            Address::Unix(_) => false,
            Address::Tcp { host, .. } => host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let refuse = |why| AddressError {
            text: text.to_owned(),
            why,
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                _ if !path.starts_with('/') => Err(refuse("the socket's path is not absolute")),
                _ if path.len() > UNIX_PATH_MAX => {
                    Err(refuse("the socket's path is longer than 107 bytes"))
                }
                _ => Ok(Address::Unix(PathBuf::from(path))),
            };
        }
        let (host, port) = text
            .rsplit_once(':')
            .ok_or_else(|| refuse("it has no port"))?;
        let port = port.parse().map_err(|_| refuse("its port is no number"))?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        if bare.is_none() && host.contains(':') {
            return Err(refuse("an IPv6 address needs [brackets]"));
        }
        let host = bare.unwrap_or(host);
        if host.is_empty() {
            return Err(refuse("it has no host"));
        }
        Ok(Address::Tcp {
            host: host.to_owned(),
            port,
        })
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;
    fn try_from(text: String) -> Result<Address, AddressError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for text in [
            "127.0.0.1:7101",
            "[::1]:7101",
            "db1.example:5432",
            "unix:/run/u/a",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_reason() {
        for (text, why) in [
            ("db1", "no port"),
            (":1", "no host"),
            ("db1:x", "no number"),
            ("::1:7", "brackets"),
            ("unix:a", "not absolute"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn knows_what_is_local() {
        let local = |t: &str| t.parse::<Address>().unwrap().is_local();
        assert!(
            local("127.0.0.1:1") && local("[::1]:1") && local("unix:/a") && local("localhost:1")
        );
        assert!(!local("0.0.0.0:1") && !local("db1:1"));
        assert!("0.0.0.0:1".parse::<Address>().unwrap().is_wildcard());
    }
}
