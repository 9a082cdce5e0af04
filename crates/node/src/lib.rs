//! The node: everything between the storage tier and one PostgreSQL server.
//!
//! Pure cores: [`detector`] decides whether the active is gone, [`machine`] decides what this node
//! does next. Thin drivers: [`postgres`] runs the server as a child, [`channel`] talks to other
//! nodes, [`records`] reads and writes the registry, [`config`] is what the operator wrote.

pub mod address;
pub mod agent;
pub mod channel;
pub mod config;
pub mod detector;
pub mod init;
pub mod machine;
pub mod postgres;
pub mod records;
pub(crate) mod takeover;
