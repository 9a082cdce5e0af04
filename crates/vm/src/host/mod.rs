//! The machine on this host: QEMU, its memory, and which pages were written.
//!
//! ```text
//!   Machine ── QMP (stop, cont, device state) ──▶ QEMU, unmodified ── NBD ──▶ crate::disk
//!      │                                            │  └─ frames ──▶ crate::network
//!      │ read, write                                │ mmap
//!      ▼                                            ▼
//!   Memory ─────────── one file of a tmpfs ─────────┘
//!      ▲                                            │ its mapping, registered by the preloaded library
//!      └── Tracking: PAGEMAP_SCAN of QEMU's process ◀┘
//! ```
//!
//! Owns QEMU's process and the file that is the guest's memory. Invariant: a page that was written since the last scan
//! is named by the next one, whoever wrote it: the processor, or QEMU for a device. What the engine needs of a machine
//! is the trait [`Guest`], which tests implement without QEMU.
//!
//! Everything here blocks; the engine is a thread of its own.

mod accelerator;
mod error;
mod guest;
mod machine;
mod memory;
mod process;
pub mod qmp;
mod requirements;
mod spec;
mod tracking;

pub use accelerator::{Acceleration, Accelerator, choose};
pub use error::{HostError, Result};
pub use guest::{Checkpoint, Guest, PAGE, Run, Timing, checkpoint, last_checkpoint};
pub use machine::{Machine, Start};
pub use memory::Memory;
pub use requirements::{check, version};
pub use spec::{Mac, Network, Spec};
pub use tracking::Tracking;
