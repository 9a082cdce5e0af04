//! The node: everything between the storage tier and one PostgreSQL server.
//!
//! The [`agent`] joins the parts into a node's lives, [`takeover`] has the steps from a standby to
//! the active, [`init`] creates a cluster. Pure cores: [`detector`] decides whether the active is
//! gone, [`machine`] what this node is and does next. Thin drivers: [`postgres`] runs the server as a child, [`channel`] talks to other nodes,
//! [`records`] reads and writes the registry, [`rest`] answers over HTTP, [`config`] is what the
//! operator wrote.

pub mod address;
pub mod agent;
pub mod channel;
pub mod config;
pub mod configure;
pub mod detector;
pub mod handover;
pub mod init;
pub mod machine;
pub mod operate;
pub mod postgres;
pub mod records;
pub(crate) mod rest;
pub mod service;
pub mod store;
pub(crate) mod takeover;
