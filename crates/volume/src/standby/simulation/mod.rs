//! A standby's view under a model of PostgreSQL: the real active view, storage in memory and the real
//! standby view, with a small writer and a small redo on top, in histories that are chosen by a seed.
//!
//! ```text
//!   work ──▶ active: pool, backends, checkpoint ──▶ ActiveView, seals ─┐
//!     │                                                                ▼
//!     └──▶ log ──▶ standby: redo, pool, restartpoints ──▶ StandbyView, moves ──▶ takeover ──▶ active
//!           │                                                 │
//!           └──▶ truth, record by record ──▶ checkers ◀───────┘
//! ```
//!
//! - `page` and `log` say what a database is; [`log::Truth`] is what the log says.
//! - `active` is the writer. Pages are changed in a pool and written at any later moment, log first.
//!   Backends do one step at a time (`work` says which), so that a cut or a crash falls anywhere:
//!   between a drop's record and its files (N8), between a bulk writer's log and its pages (N2), in the
//!   middle of a copied or removed directory (N8, N9). `checkpoint` leads from the redo point to the seal.
//! - `redo` is PostgreSQL's: pages by their LSN, a bit that moves without one (H1), files made when they
//!   are missed, missing pages forgiven only before it is consistent. Every record says on which LSN it
//!   was made, so a lost change is noticed by the next one.
//! - `schedule` lets it all happen: crashes with any part of what was not synced, standbys that come, die
//!   and lag, takeovers that die themselves.
//!
//! Not in the model: bytes of the log (the standby is handed records), reads in the middle of a move
//! (N3), kernels' caches (N5), prepared transactions (H7). Replicas of a block that differ are `dax`'s
//! simulation's; here storage is one copy that loses what is not synced.
//!
//! What the checkers say when a rule is switched off ([`flaw::Flaw`]), and the first history to be
//! caught, of those from 0 on:
//!
//! | flaw | history | checker |
//! |---|---|---|
//! | `PastTheHorizon` | 43 | promoted server |
//! | `MovedTooEarly` | 10 | queries |
//! | `RestartedInPlace` | 3 | redo |
//! | `StampedByPage` | 394 | queries |
//! | `StampedByFeedback` | 48 | redo |
//! | `DroppedByEnd` | 80 | queries |
//! | `BulkIgnored` | 14 | redo |
//! | `DroppedWithoutVersion` | 391 | queries |
//! | `NamesTaken` | 1221 | redo |
//! | `WhiteoutsDropped` | 67 | queries |
//! | `CutsDropped` | 49 | queries |
//! | `UnloggedShown` | 33 | redo |
//! | `LatestNamesLeft` | 0 | switch |
//! | `LatestSizesLeft` | 11 | switch |
//! | `ControlNotPublished` | 0 | control file |
//! | `SealedBeforeSync` | 1 | queries |
//! | `EndBeforeCut` | 12 | queries |
//! | `LatestInsteadOfSealed` | 8 | queries |
//!
//! In half of the histories backends hesitate where a checkpoint may come between with consequences; the
//! two flaws that are about that, `DroppedWithoutVersion` and `NamesTaken`, are hardly caught otherwise.
//!
//! Numbers of relations come again much sooner than PostgreSQL's, which go round once in four billion;
//! so the case of a stub that is taken for a new relation's file comes up as well.
//!
//! History 12746 is why an empty file that redo opens becomes its own (`State::take`). An image has the
//! empty stub of an aborted relation; its number comes again within the same stretch between seals for a
//! table that stays empty, and redo takes the stub for its file; the next image, cut before that file was
//! made, has neither, so a move took the name away as a stub's.
//!
//! Not a fault: a seal is cut between the commit of a drop and its unlinking, with the redo pointer behind
//! the commit. Who attaches there has the file for good, as a stock server has after a crash at that
//! moment. If that standby takes over, the file is in every image since; another standby, whose own redo
//! had removed it, sees it again after a move. The catalogs do not have it and its number does not come
//! again while it is there, so nobody opens it. The checker excuses exactly those files
//! (`Active::orphans`); all others that a move brings back are faults.
//!
//! `make sim-standby` runs many, or one again. A seed gives the same history every time.

mod active;
mod census;
mod checkers;
mod checkpoint;
mod files;
pub(crate) mod flaw;
mod layout;
mod log;
mod page;
mod pool;
mod redo;
mod schedule;
mod standby;
mod tests;
mod trace;
mod work;
