//! The FUSE adapter: the one place where file operations become volume operations, and errors
//! become errno.
//!
//! ```text
//!   kernel ──▶ one thread reads requests ──▶ operation ──▶ view: at once, or a future that is polled here, and on
//!     ▲                                        │                        the runtime once it is woken
//!     └───────────── reply, exactly one ◀──────┴── gate: the place where views are switched
//! ```
//!
//! A [`Mount`] shows one [`volume::view::View`] at one directory. It knows nothing of blocks,
//! generations or PostgreSQL; it keeps these invariants for the view behind it:
//!
//! * **Order.** One thread reads requests. Operations that only touch memory are answered on it;
//!   the future of one that may wait is polled there before the next request is read. So
//!   requests reach the view in the order in which the kernel handed them over: a view takes its
//!   place in its own order in the first poll, and a cut (generations, N10) that comes after a
//!   request was received comes after its write, also when that write is held by back-pressure.
//! * **Whole pages.** A write of a database page reaches the view in one piece. There is no FUSE
//!   writeback cache, which splits 8 KiB into pages of its own and reorders them (N5); `max_write` is
//!   1 MiB, so aligned writes are split between database pages only; and where the kernel still
//!   splits inside one, because the writer's memory was not at hand, it is put together again
//!   (the module `joiner`).
//! * **One reply.** Every request is answered exactly once, also when the view panics (`EIO`) and
//!   after [`Mount::abort`] (`EIO`), so that a process using the mount can always be killed.
//! * **No visits.** The process that serves a mount never waits for it: its own work there is done by
//!   children ([`child_io`]), or it could not be killed.
//! * **Switching.** [`Mount::switch`] changes the view between two requests, when no change is
//!   under way in the old one, and takes the open handles along.
//!
//! What the kernel may cache comes from the view ([`volume::view::CachePolicy`],
//! [`volume::view::PageCache`]); see [`Mount::switch`] for why nothing stale survives a switch.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use mount::{Mount, MountOptions};
//! use volume::view::View;
//!
//! async fn show(view: Arc<dyn View>) -> mount::Result<()> {
//!     let runtime = tokio::runtime::Handle::current();
//!     let mount = Mount::start(view, MountOptions::new("/mnt/volume"), runtime)?;
//!     println!("{}", mount.path().display());
//!     mount.unmount()
//! }
//! ```

mod adapter;
mod attach;
pub mod child_io;
mod errno;
mod error;
mod gate;
mod handles;
mod joiner;
mod mount;
mod mountpoint;
mod opening;
mod operation;
mod translate;

pub use errno::errno_of;
pub use error::{Error, Result};
pub use mount::{Mount, MountOptions, Paused};
pub use mountpoint::detach_stale;
pub use operation::Requests;
