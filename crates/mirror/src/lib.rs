//! The same transactions on a second, independent database.
//!
//! Implements the replication manager of CloudDBAppliance ("Towards Intra-Datacentre High-Availability in
//! CloudDBAppliance", Algorithms 1 to 4 and Figure 3): replication above the database. Nothing but rows is shared
//! between the two members, so that what one of them has wrong the other has not. Who is primary, and which transactions
//! there are, the zones decide: by their epochs, and by a log of rows that is durable on k of them.

pub mod core;
pub mod driver;
pub mod rows;
