//! The processes of a server, whoever started it: those that run `postgres` on a node's directory.

use std::path::Path;

use nix::sys::signal::Signal;
use supervise::leftovers::Server;

use super::Result;

/// By what processes of a server on `data` are known.
pub(super) fn server(data: &Path) -> Server {
    Server {
        program: "postgres".to_owned(),
        data: data.to_owned(),
    }
}

/// Kills what is left of servers on `data`; see [`supervise::leftovers::clean`].
///
/// # Errors
/// [`Timeout`](supervise::ChildError::Timeout) if a process does not die (it hangs in the kernel).
pub fn clean(run: &Path, data: &Path) -> Result<usize> {
    Ok(supervise::leftovers::clean(run, &server(data))?)
}

/// Stops all processes of the server on `data` where they are; nobody is answered, no connection ends. Blocks.
pub fn freeze(data: &Path) {
    supervise::leftovers::signal_all(&server(data), Signal::SIGSTOP);
}

/// Lets them go on. Blocks.
pub fn thaw(data: &Path) {
    supervise::leftovers::signal_all(&server(data), Signal::SIGCONT);
}
