//! A standby's view: a sealed generation under a private overlay, and the live log up to the
//! replay limit.
//!
//! `state` is the pure core: one immutable value that every operation looks at once.
//! `overlay` is what the standby's PostgreSQL changed, `ops` and `contents` how it changes;
//! `rebase` moves the base forward; `blocks` and `spill` keep the contents of changed blocks. `view` is the mountable driver
//! around it: `fetch` reads blocks, `prefetch` before they are asked for, `known` remembers them from
//! base to base, `standing` vouches for what the storage says, `gate` stops operations for the `switch`, at which the view
//! becomes the active's.

mod ahead;
mod blocks;
mod contents;
mod fetch;
mod gate;
mod hidden;
mod hold;
mod known;
mod listing;
mod moves;
mod ops;
mod overlay;
mod prefetch;
mod rebase;
mod spill;
mod standing;
mod state;
mod switch;
mod switch_blocks;
mod switch_plan;
mod switch_publish;
mod view;
mod view_io;
mod view_names;

#[cfg(test)]
mod rebase_test;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod state_test;
#[cfg(test)]
mod switch_plan_test;
#[cfg(test)]
mod testing;

pub use self::ahead::PrefetchStats;
pub use self::fetch::Residence;
pub use self::known::ReadStats;
pub use self::moves::MovePlan;
pub use self::overlay::is_created;
pub use self::standing::{ClaimWatch, Clock};
pub use self::view::{OverlayStats, StandbyOptions, StandbyView};
