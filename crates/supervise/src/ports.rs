//! Free TCP ports, for clusters that run on one machine (demos, benchmarks, tests).
//!
//! Invariants: below the range from which the kernel takes ports for outgoing connections, so that
//! a client's connection cannot take the port of a node that is just being restarted. A process gives out ports of blocks that
//! it alone holds, as long as it lives: a port is given out long before somebody listens there. Asking listens nowhere.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};

use parking_lot::Mutex;
use tokio::net::TcpSocket;

const FIRST: u16 = 15_000;
const BLOCK: u16 = 32;
const BLOCKS: u16 = 500;

/// The blocks of this process, and the next port.
struct Held {
    blocks: Vec<UnixListener>,
    next: u16,
    end: u16,
}

static HELD: Mutex<Held> = Mutex::new(Held {
    blocks: Vec::new(),
    next: 0,
    end: 0,
});

impl Held {
    /// Takes another block, if there is one. An abstract socket of its name goes with the process.
    fn take_block(&mut self) -> bool {
        // Demos beside each other start at different places.
        let first = (std::process::id() % u32::from(BLOCKS)) as u16;
        let claimed = (0..BLOCKS).find_map(|turn| {
            let block = (first + turn) % BLOCKS;
            let address = UnixAddress::from_abstract_name(format!("understudy-ports-{block}"));
            Some((block, UnixListener::bind_addr(&address.ok()?).ok()?))
        });
        let Some((block, listener)) = claimed else {
            return false;
        };
        self.blocks.push(listener);
        self.next = FIRST + block * BLOCK;
        self.end = self.next + BLOCK;
        true
    }
}

/// A socket that has the address and does not listen. One that listened could keep the port from whoever asked: a child that another
/// thread has just forked has a copy of it until it runs its program.
fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Nothing, if a server can listen there.
///
/// # Errors
/// The address is in use, or is not this machine's.
pub fn check(address: SocketAddr) -> io::Result<()> {
    bound(address).map(drop)
}

/// A port that nobody listens on. No other call returns it, in this process or another one.
///
/// # Errors
/// All are taken.
pub fn free() -> io::Result<u16> {
    let mut held = HELD.lock();
    while held.next < held.end || held.take_block() {
        let port = held.next;
        held.next += 1;
        if check((Ipv4Addr::LOCALHOST, port).into()).is_ok() {
            return Ok(port);
        }
    }
    let last = FIRST + BLOCKS * BLOCK;
    let text = format!("no free TCP port between {FIRST} and {last}");
    Err(io::Error::new(io::ErrorKind::AddrInUse, text))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_port_is_free_and_not_given_twice() {
        let (one, two) = (free().unwrap(), free().unwrap());
        assert_ne!(one, two);
        assert!(TcpListener::bind(("127.0.0.1", free().unwrap())).is_ok());
    }

    /// Tests beside each other were given the same port, and listened there later.
    #[test]
    fn held_block_belongs_to_one_holder() {
        let port = free().unwrap();
        let block = (port - FIRST) / BLOCK;
        let address = UnixAddress::from_abstract_name(format!("understudy-ports-{block}")).unwrap();
        assert!(UnixListener::bind_addr(&address).is_err());
    }

    /// A server was refused its port by a child that was being started at that moment: it had a copy of the socket of whoever had
    /// looked whether the port is free.
    #[test]
    fn whoever_looks_keeps_the_port_from_nobody() {
        let address = (Ipv4Addr::LOCALHOST, free().unwrap()).into();
        let looks = bound(address).unwrap();
        let listens = TcpListener::bind(address).unwrap();
        drop(looks);
        assert!(check(address).is_err());
        drop(listens);
        check(address).unwrap();
    }
}
