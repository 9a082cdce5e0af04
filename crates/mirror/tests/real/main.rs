//! Managers with two real servers of stock PostgreSQL.

mod applications;
mod cases;
mod checks;
mod codes;
mod commits;
mod copies;
mod corpus;
mod decisions;
mod defined;
mod differences;
mod failures;
mod hangs;
mod logs;
mod members;
mod moving;
mod privileges;
mod proofs;
mod regress;
mod returns;
mod rows;
#[path = "../../../proxy/tests/real/server.rs"]
#[expect(dead_code, reason = "the proxy's tests use more of it")]
mod server;
mod single;
mod site;
mod statements;
mod suite;
mod tls;
mod upgrades;
mod verifying;
