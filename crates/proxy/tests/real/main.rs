//! The proxy before real servers: a primary and a streaming standby of stock PostgreSQL.

mod admin;
mod clients;
mod crowd;
mod drivers;
mod entry;
mod functions;
mod idle;
mod input;
mod kept;
mod limits;
mod pools;
mod program;
mod reads;
mod restart;
mod server;
mod service;
mod site;
mod stats;
mod takeover;
mod tls;
mod truth;
mod wire;
