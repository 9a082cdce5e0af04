//! Loopback addresses for clusters beside each other: each has a block of its own, 127.90.B.1 to .8.
//!
//! Invariant: who holds the socket on a block's last address has the block, so it is free again when its
//! process ends in whatever way.

use std::net::{IpAddr, Ipv4Addr, TcpListener};

use super::error::{Result, ServerError};

/// The most nodes that a block has room for.
pub const MAX_NODES: u8 = 8;
const BLOCKS: u8 = 250;
const RESERVED_PORT: u16 = 9042;
/// JMX listens on 127.0.0.1 only, so each node has a port of its own there.
const FIRST_JMX_PORT: u16 = 12_000;

/// A block that belongs to this process.
#[derive(Debug)]
pub(super) struct Block {
    number: u8,
    _reserved: TcpListener,
}

impl Block {
    /// The block of that number, or any if it is not given.
    pub fn reserve(wanted: Option<u8>) -> Result<Block> {
        if let Some(number) = wanted {
            return Block::try_reserve(number).ok_or(ServerError::NoAddress);
        }
        // Processes that start at once begin at different places.
        let start = (std::process::id() % u32::from(BLOCKS)) as u8;
        (0..BLOCKS)
            .find_map(|n| {
                Block::try_reserve(((u16::from(start) + u16::from(n)) % u16::from(BLOCKS)) as u8)
            })
            .ok_or(ServerError::NoAddress)
    }

    fn try_reserve(number: u8) -> Option<Block> {
        let reserved = TcpListener::bind((address(number, u8::MAX - 1), RESERVED_PORT)).ok()?;
        Some(Block {
            number,
            _reserved: reserved,
        })
    }

    pub fn number(&self) -> u8 {
        self.number
    }

    /// The address of a node, counted from 0.
    pub fn address(&self, node: u8) -> IpAddr {
        IpAddr::V4(address(self.number, node + 1))
    }

    pub fn jmx_port(&self, node: u8) -> u16 {
        FIRST_JMX_PORT + u16::from(self.number) * u16::from(MAX_NODES) + u16::from(node)
    }
}

fn address(block: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 90, block, host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_beside_each_other_have_nothing_in_common() {
        let (one, other) = (Block::reserve(None).unwrap(), Block::reserve(None).unwrap());
        assert_ne!(one.address(0), other.address(0));
        assert_ne!(one.jmx_port(0), other.jmx_port(0));
        assert!(matches!(
            Block::reserve(Some(one.number())),
            Err(ServerError::NoAddress)
        ));
        let number = one.number();
        drop(one);
        assert_eq!(Block::reserve(Some(number)).unwrap().number(), number);
    }
}
