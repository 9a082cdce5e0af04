//! Tells the service manager that a process is ready, or which one is the main process: one datagram, as sd_notify(3) describes it.
//!
//! Nothing depends on it: without a service manager that wants to know, nothing is sent.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The process does what it is there for from now on.
pub fn ready() {
    tell("READY=1");
}

/// Another process of the service does it from now on: this one may end.
pub fn main_process_is(pid: u32) {
    tell(&format!("MAINPID={pid}"));
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = notify(&socket, state.as_bytes()) {
        tracing::warn!(%error, state, "cannot tell the service manager");
    }
}

fn notify(socket: &OsStr, state: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state, &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears_it_on_either_kind_of_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let name = format!("understudy-test-{}", std::process::id());
        let hidden = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let hidden = UnixDatagram::bind_addr(&hidden).unwrap();
        for (manager, told) in [
            (manager, path.into_os_string()),
            (hidden, format!("@{name}").into()),
        ] {
            notify(&told, b"READY=1").unwrap();
            let mut heard = [0; 64];
            let length = manager.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], b"READY=1");
        }
        assert!(notify(OsStr::new("/no/such/socket"), b"READY=1").is_err());
    }
}
