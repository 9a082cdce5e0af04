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
//! - `chain` is the log's files alone, under a model of how PostgreSQL goes from timeline to timeline.
//! - `schedule` lets it all happen: crashes with any part of what was not synced, standbys that come, die
//!   and lag, takeovers that die themselves.
//!
//! Not in the model: bytes of the log, except in `chain` (the standby is handed records), reads in the middle of a move
//! (N3), kernels' caches (N5), prepared transactions (H7). Replicas of a block that differ are `dax`'s
//! simulation's; here storage is one copy that loses what is not synced.
//!
//! What the checkers say when a rule is switched off ([`flaw::Flaw`]), and the first history to be
//! caught, of those from 0 on:
//!
//! | flaw | history | checker |
//! |---|---|---|
//! | `PastTheLimit` | 22 | seals |
//! | `MovedTooEarly` | 10 | queries |
//! | `RestartedInPlace` | 3 | redo |
//! | `StampedByPage` | 3 | queries |
//! | `StampedByFeedback` | 3 | queries |
//! | `DroppedByEnd` | 95 | queries |
//! | `BulkIgnored` | 29 | queries |
//! | `DroppedWithoutVersion` | 31 | queries |
//! | `NamesTaken` | 51 | redo |
//! | `OwnTailsTaken` | 73 | redo |
//! | `RestByFeedback` | 7 | redo |
//! | `TakenBeforeWritten` | 169 | a fenced server's reads |
//! | `WhiteoutsDropped` | 15 | queries |
//! | `CutsDropped` | 167 | queries |
//! | `UnloggedShown` | 33 | redo |
//! | `LatestNamesLeft` | 0 | switch |
//! | `LatestSizesLeft` | 29 | switch |
//! | `ControlNotPublished` | 0 | control file |
//! | `SealedBeforeSync` | 10 | kept images |
//! | `EndBeforeCut` | 66 | queries |
//! | `KeptFromEarlier` | 2263 | queries |
//! | `AnswersAfterSleep` | 180 | queries |
//! | `LatestInsteadOfSealed` | 2 | future |
//! | `ConfirmedEarly` | 14 | acknowledged commits |
//! | `ConfirmedOutOfOrder` | 86 | acknowledged commits |
//! | `SealedBeforeItsLog` | 214 | seals |
//! | `EndOfTheDurable` | 174 | queries |
//! | `DeadLogShown` | 2 | the chain of the log |
//! | `TimelineBeforeItsLog` | 1 | the chain of the log |
//! | `PinsIgnored` | 82 | kept images |
//! | `PinUnchecked` | 18 | kept images |
//!
//! In half of the histories backends hesitate where a checkpoint may come between with consequences
//! (`DroppedWithoutVersion` and `NamesTaken` are about that).
//! In one of four standbys live long and follow closely, so their bases move again and again below one
//! overlay; and half of the overlays have room for two pages in memory, the rest goes to the disk.
//! `KeptFromEarlier` needs both.
//! In another one of four transactions go on changing what they made, are often rolled back right before a
//! cut with that unsynced (`OwnTailsTaken`), and new actives may be fenced while they write the overlay back:
//! what they show from then on is what the standby showed, or an error (`TakenBeforeWritten`).
//!
//! In one of eight the log is ordered (`ordered`): what the database takes for synced is on its way, lands in any order, and
//! is lost with a crash if it has not; pages and files are written ahead of it all the same. Clients are told of
//! their commits by what is confirmed (`ConfirmedEarly`, `ConfirmedOutOfOrder`), and a seal must not be stated before
//! its log is durable (`SealedBeforeItsLog`), nor with the W that is durable when it is cut (`EndOfTheDurable`).
//!
//! In another one of eight standbys sleep now and then, and the active may give up what they claim meanwhile, or another
//! node take their name: when they wake up they answer as ever, or notice; nothing in between (`AnswersAfterSleep`).
//!
//! In another one of eight images are pinned and kept by a policy (`pinned`), and read to the last as they did when they were
//! sealed (`PinsIgnored`, `PinUnchecked`).
//!
//! A move may be tried in the middle of a record as well, as it is when redo is taken to be at rest: redo
//! at rest is redo that has applied all that is shown (`RestByFeedback`).
//!
//! Numbers of relations come again much sooner than PostgreSQL's, which go round once in four billion;
//! so the case of a stub that is taken for a new relation's file comes up as well.
//!
//! History 12746 is why an empty file that redo opens becomes its own (`State::take`). An image has the
//! empty stub of an aborted relation; its number comes again within the same stretch between seals for a
//! table that stays empty, and redo takes the stub for its file; the next image, cut before that file was
//! made, has neither, so a move took the name away as a stub's.
//!
//! History 5027 is why a directory keeps its id at a takeover although redo had removed it and made it again
//! (`switch_plan`'s `same_in_base`). The successor replayed the copy of a database that its base had already, and gave
//! the directory a new id, its files the old ones. Another standby had adopted the directory by its old id. When it
//! took over in its turn it put the old directory in place, of which the files were no part any more.
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
mod chain;
mod checkers;
mod checkpoint;
mod files;
pub(crate) mod flaw;
mod layout;
mod log;
mod ordered;
mod page;
mod pinned;
mod pool;
mod redo;
mod schedule;
mod sleep;
mod standby;
mod task;
mod tests;
mod trace;
mod tree;
mod work;
