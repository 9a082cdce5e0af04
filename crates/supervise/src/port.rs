//! Whether a server will find its port free.

use std::io::ErrorKind;
use std::net::ToSocketAddrs;

use super::{ChildError, Result, ports};

/// Tries the addresses of a list with commas, so that the most common mistake gets a clear message. An unknown
/// name, or an address that is not this machine's, is the server's to explain.
///
/// # Errors
/// [`ChildError::PortInUse`]
pub fn check_port(listen_addresses: &str, port: u16) -> Result<()> {
    let hosts = listen_addresses.split(',').map(str::trim);
    for host in hosts.filter(|h| !h.is_empty()) {
        let host = if host == "*" { "0.0.0.0" } else { host };
        let addresses = (host, port).to_socket_addrs().into_iter().flatten();
        for address in addresses {
            let tried = ports::check(address);
            if tried.is_err_and(|e| e.kind() == ErrorKind::AddrInUse) {
                return Err(ChildError::PortInUse {
                    address: host.to_owned(),
                    port,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_port_that_somebody_has_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = check_port("127.0.0.1, ::1", port).unwrap_err();
        assert!(error.to_string().contains(&port.to_string()));
        drop(taken);
        check_port("127.0.0.1", port).unwrap();
    }
}
