//! The proxy before real servers: a primary and a streaming standby of stock PostgreSQL.

mod admin;
mod clients;
mod crowd;
mod drivers;
mod idle;
mod input;
mod reads;
mod server;
mod site;
mod takeover;
mod tls;
