//! The machine on this host: QEMU, its memory, and which pages were written.
