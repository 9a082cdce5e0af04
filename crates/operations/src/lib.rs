//! What operators and their programs do with a running cluster.
//!
//! ```text
//!   command line ──▶ operate, handover, configure ──▶ registry: wishes for the whole cluster
//!   HTTP ──▶ rest ──┘        │
//!             │              └──▶ agents, over the channel: orders to one node
//!             └──▶ checks, metrics, page: what this node and the registry say
//! ```
//!
//! Invariants: nothing here holds anything up that is needed for correctness, and whoever gives up waiting
//! leaves a cluster that goes on. What gets into the control record can be used by every node
//! ([`configure`]). Over HTTP, what changes something needs a token or a certificate ([`rest`]).
//!
//! Takeovers are switched off while a network is worked on:
//!
//! ```no_run
//! use operations::operate::Operator;
//!
//! # async fn pause(operator: Operator) -> Result<(), Box<dyn std::error::Error>> {
//! operator.pause(Some("maintenance of the network".to_owned())).await?;
//! # Ok(())
//! # }
//! ```

pub mod configure;
pub mod handover;
pub mod operate;
pub mod rest;
mod serving;
pub mod upgrade;
pub mod zones;
