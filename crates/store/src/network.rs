//! Emulated distances, for tests, demonstrations and benchmarks on one machine: the transport of a
//! zone server delays, loses and cuts what it exchanges with clients, as a file says that is watched.
//!
//! ```text
//!            ┌────────── relay (one per connection) ───────────┐
//!   client ─▶ socket ─▶ line to the server ─▶ pair of sockets ─▶ receiver
//!          ◀─ socket ◀─ line to the client ◀─ pair of sockets ◀─ sender
//! ```
//!
//! Invariants: the bytes of a connection keep their order; many may be on their way at once, so that
//! latency does not bound throughput; a server without a network file pays nothing.
//!
//! Not emulated: bandwidth, and anything but connections to zone servers (the agents' channel,
//! PostgreSQL's own clients).

pub(crate) mod file;
mod line;
mod relay;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::OpenError;
use crate::stream::Stream;

pub use file::{Link, Network, NetworkError};
use relay::Relay;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Which distances to emulate.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Emulated {
    /// The file that says them ([`Network`]); watched.
    pub file: PathBuf,
    /// The zone that this server is in, as the file names it.
    pub zone: String,
}

/// The distances that are in force, and the connections they apply to.
pub(crate) struct Emulation {
    config: Emulated,
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    network: Arc<Network>,
    /// The file as it was seen last, good or bad.
    seen: Result<String, String>,
    relays: Vec<Weak<Relay>>,
    threads: Vec<JoinHandle<()>>,
    relayed: u64,
    ended: bool,
}

impl Emulation {
    /// Reads the file.
    pub fn open(config: Emulated) -> Result<Emulation, OpenError> {
        let refused = |source| OpenError::Network {
            path: config.file.clone(),
            source,
        };
        let text = std::fs::read_to_string(&config.file);
        let text = text.map_err(|e| refused(NetworkError::from(e)))?;
        let network = Network::parse(&text).map_err(refused)?;
        tracing::warn!(
            file = %config.file.display(), zone = config.zone,
            "emulating a network: messages to and from clients are delayed, and connections may be cut"
        );
        Ok(Emulation {
            state: Mutex::new(State {
                network: Arc::new(network),
                seen: Ok(text),
                relays: Vec::new(),
                threads: Vec::new(),
                relayed: 0,
                ended: false,
            }),
            ended: Condvar::new(),
            config,
        })
    }

    /// Follows the file in a thread of its own, until [`stop`](Emulation::stop).
    pub fn start(self: &Arc<Emulation>) -> std::io::Result<()> {
        let emulation = self.clone();
        let thread = std::thread::Builder::new().name("zone-network".into());
        let thread = thread.spawn(move || emulation.watch())?;
        self.state.lock().threads.push(thread);
        Ok(())
    }

    fn watch(&self) {
        while self.wait_next() {
            let text = std::fs::read_to_string(&self.config.file);
            // Lines ask for their link while they are locked, so they are not woken under our lock.
            for relay in self.look_at(text.map_err(|e| e.to_string())) {
                relay.wake();
            }
        }
    }

    /// Waits until it is time to look at the file; false if that is not wanted any more.
    fn wait_next(&self) -> bool {
        let next = Instant::now() + LOOK_EVERY;
        let mut state = self.state.lock();
        while !state.ended && !self.ended.wait_until(&mut state, next).timed_out() {}
        !state.ended
    }

    /// Takes over what the file says, if that is new and makes sense; the connections to tell.
    fn look_at(&self, text: Result<String, String>) -> Vec<Arc<Relay>> {
        let mut state = self.state.lock();
        if text == state.seen {
            return Vec::new();
        }
        state.seen = text;
        let parsed = match &state.seen {
            Ok(text) => Network::parse(text).map_err(|e| e.to_string()),
            Err(error) => Err(error.clone()),
        };
        let file = self.config.file.display();
        match parsed {
            Ok(network) => {
                tracing::info!(%file, "the emulated network changed");
                state.network = Arc::new(network);
                state.relays.iter().filter_map(Weak::upgrade).collect()
            }
            Err(error) => {
                tracing::error!(
                    %file, error,
                    "the network file is invalid; its previous contents remain in force"
                );
                Vec::new()
            }
        }
    }

    /// The link to a client in `zone`, if its distance is emulated.
    fn link(&self, zone: &str) -> Option<Link> {
        let network = self.state.lock().network.clone();
        network.link(&self.config.zone, zone).cloned()
    }

    /// Puts the emulated network between a client's socket and the stream that is returned.
    pub fn relay(self: &Arc<Emulation>, socket: Stream) -> std::io::Result<Stream> {
        let (ours, theirs) = Stream::pair()?;
        let mut state = self.state.lock();
        state.relayed += 1;
        let seed = state.network.seed.wrapping_add(state.relayed << 1);
        let relay = Arc::new(Relay::new(self.clone(), socket, ours, seed));
        state.relays.retain(|relay| relay.strong_count() > 0);
        state.relays.push(Arc::downgrade(&relay));
        state.threads.retain(|thread| !thread.is_finished());
        let threads = relay.start()?;
        state.threads.extend(threads);
        Ok(theirs)
    }

    /// Ends the watch, and every connection after it has had `timeout` to deliver what is on its way.
    pub fn stop(&self, timeout: Duration) {
        let (relays, threads) = {
            let mut state = self.state.lock();
            state.ended = true;
            self.ended.notify_all();
            (
                std::mem::take(&mut state.relays),
                std::mem::take(&mut state.threads),
            )
        };
        let until = Instant::now() + timeout;
        while threads.iter().any(|t| !t.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let relays = relays.iter().filter_map(Weak::upgrade);
        relays.for_each(|relay| relay.close());
        for thread in threads {
            // A relay that panicked has cut its connection, which is all it could do.
            let _ = thread.join();
        }
    }
}
