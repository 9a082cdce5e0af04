//! How many files the process may have open, sockets among them.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Files that are open beside clients' connections: those to servers, and what the process itself needs.
const OTHERS: u64 = 500;

/// Lets this process, and what it starts from now on, have so many files open. Otherwise returns how many it may have.
///
/// # Errors
/// The limit, if it cannot be raised so far.
pub fn raise(needed: u64) -> Result<(), u64> {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return Ok(());
    };
    if soft >= needed {
        return Ok(());
    }
    // Some may raise even the hard limit.
    let is_allowed = [needed.max(hard), hard].into_iter().any(|hard| {
        let soft = needed.min(hard);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).is_ok() && soft == needed
    });
    is_allowed.then_some(()).ok_or(hard.max(soft))
}

/// Lets the process have a socket for each of so many clients, or says what to do if it may not.
pub fn allow(clients: usize) {
    let needed = clients as u64 + OTHERS;
    if let Err(allowed) = raise(needed) {
        tracing::warn!(
            needed,
            allowed,
            "fewer files may be open than the clients need that max_clients allows: raise the limit \
             (LimitNOFILE in a unit of systemd, ulimit -n in a shell), or lower max_clients"
        );
    }
}
