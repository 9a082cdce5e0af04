//! A zone as its process sees it: opens the store, runs the threads, stops them in order.
//!
//! ```text
//!   open ──▶ serving ──stop──▶ no new requests ──▶ queue worked off, synced ──▶ acks sent ──▶ closed
//!               └──engine fails──▶ connections cut, [`Zone::wait`] returns ──▶ closed
//! ```

use std::io;
use std::net::Shutdown;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::background;
use crate::commits::Commits;
use crate::config::StoreConfig;
use crate::connection::Conn;
use crate::engine::{DiskEngine, Engine, EngineError};
use crate::error::{OpenError, ZoneFailed};
use crate::fill::Filler;
use crate::greeting::Place;
use crate::janitor::Janitor;
use crate::meta;
use crate::network::Emulation;
use crate::receiver::Receiver;
use crate::shared::{FailOnPanic, Shared};
use crate::stream::{Listener, Stream};
use crate::volume::Volumes;

/// How long a stop waits for clients to take their answers.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// A zone server: replicas of many volumes in one directory.
///
/// Dropping it stops it.
pub struct Zone {
    shared: Arc<Shared>,
    /// Threads that carry out what receivers have read.
    workers: Mutex<Vec<JoinHandle<()>>>,
    listeners: Mutex<Vec<(String, JoinHandle<()>)>>,
    clients: Arc<Clients>,
}

/// The threads of connections.
struct Clients {
    last_id: AtomicU64,
    /// Commits, which receivers help to carry out.
    commits: Arc<Commits>,
    receivers: Mutex<Vec<JoinHandle<()>>>,
    senders: Mutex<Vec<JoinHandle<()>>>,
}

impl Clients {
    fn new(commits: Arc<Commits>) -> Clients {
        Clients {
            last_id: AtomicU64::default(),
            commits,
            receivers: Mutex::default(),
            senders: Mutex::default(),
        }
    }

    /// Gives the receivers a moment to read what has arrived.
    fn wait_received(&self) {
        let until = Instant::now() + STOP_PATIENCE;
        let busy = || self.receivers.lock().iter().any(|t| !t.is_finished());
        while busy() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Zone {
    /// Opens the zone in `dir`, creating it if there is none.
    ///
    /// # Errors
    /// See [`OpenError`]; each says what to do.
    pub fn open(dir: impl AsRef<Path>, config: StoreConfig) -> Result<Zone, OpenError> {
        let dir = dir.as_ref();
        std::fs::create_dir_all(dir).map_err(|source| OpenError::Directory {
            dir: dir.into(),
            source,
        })?;
        let network = config.network.clone().map(Emulation::open).transpose()?;
        let network = network.map(Arc::new);
        meta::check_format_file(dir)?;
        let engine = DiskEngine::open(dir, config.cache_bytes)?;
        let zone = Zone::over(Box::new(engine), dir, config, network)?;
        meta::note_format(dir)?;
        Ok(zone)
    }

    /// Opens the zone over an engine that is open already.
    pub(crate) fn over(
        engine: Box<dyn Engine>,
        dir: &Path,
        config: StoreConfig,
        network: Option<Arc<Emulation>>,
    ) -> Result<Zone, OpenError> {
        meta::check_format(&*engine, dir)?;
        let id = meta::store_id(&*engine, dir)?;
        let run = dax::ids::StoreId::random()
            .map_err(OpenError::Random)?
            .number();
        let runs = meta::begin_run(&*engine, dir, run)?;
        let volumes = Volumes::load(&*engine, dir)?;
        let shared = Arc::new(Shared::new(
            config,
            network,
            dir.into(),
            (id, runs),
            engine,
            volumes,
        ));
        let next_removal = resume_tasks(&shared)?;
        let commits = Arc::new(Commits::new(shared.clone(), next_removal));
        let zone = Zone {
            workers: Mutex::default(),
            listeners: Mutex::default(),
            clients: Arc::new(Clients::new(commits.clone())),
            shared: shared.clone(),
        };
        if let Some(network) = &shared.network {
            network.start().map_err(OpenError::Thread)?;
        }
        zone.start("committer", move || commits.run())?;
        let janitor = Janitor::new(shared.clone());
        zone.start("janitor", move || {
            background::give_way();
            janitor.run();
        })?;
        let filler = Filler::new(shared.clone());
        zone.start("fill", move || {
            background::give_way();
            filler.run();
        })?;
        let for_inventories = shared.clone();
        zone.start("inventory", move || {
            background::give_way();
            for_inventories.inventories.run(&for_inventories);
        })?;
        let for_checkpoints = shared.clone();
        zone.start("checkpoints", move || {
            for_checkpoints.checkpoints.run(&for_checkpoints);
        })?;
        for _ in 0..shared.config.read_threads {
            let shared = shared.clone();
            zone.start("reads", move || shared.reads.run(&shared))?;
        }
        Ok(zone)
    }

    fn start(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), OpenError> {
        let shared = self.shared.clone();
        let thread = spawn(name, move || {
            let _guard = FailOnPanic(&shared);
            body();
        });
        self.workers.lock().push(thread.map_err(OpenError::Thread)?);
        Ok(())
    }

    /// Accepts connections on `host:port` or `unix:/path`, in the background, and returns the address
    /// (with the port that was chosen if it was 0). May be called for several addresses.
    ///
    /// # Errors
    /// [`OpenError::AddressInUse`], [`OpenError::Address`]; [`OpenError::Unprotected`] if the zone has no
    /// certificates and other machines could connect.
    pub fn serve(&self, listen: &str) -> Result<String, OpenError> {
        let listener = Listener::bind(listen)?;
        let failed = |source| OpenError::Address {
            address: listen.into(),
            source,
        };
        let address = listener.address().map_err(failed)?;
        if self.shared.config.tls.is_none() && !listener.is_local().map_err(failed)? {
            let address = listen.into();
            return Err(OpenError::Unprotected { address });
        }
        let (shared, clients) = (self.shared.clone(), self.clients.clone());
        let thread = spawn("listener", move || accept(&shared, &clients, &listener));
        let thread = thread.map_err(OpenError::Thread)?;
        let id = self.shared.id;
        tracing::info!(%address, dir = %self.shared.dir.display(), %id, "zone serves");
        self.listeners.lock().push((address.clone(), thread));
        Ok(address)
    }

    /// Bytes of the file system to leave free; see [`StoreConfig::reserve_bytes`].
    pub fn set_reserve_bytes(&self, bytes: u64) {
        self.shared.reserve_bytes.store(bytes, Ordering::Relaxed);
    }

    /// How many slots are stored, of all volumes and those that were removed.
    #[cfg(test)]
    pub(crate) fn stored_slots(&self) -> usize {
        use std::ops::Bound::Included;
        let all = (Included([0; 28]), Included([255; 28]));
        self.shared.engine.slots(all).count()
    }

    #[cfg(test)]
    pub(crate) fn network(&self) -> Option<&Arc<Emulation>> {
        self.shared.network.as_ref()
    }

    /// Waits until the zone has been stopped or has failed.
    ///
    /// # Errors
    /// Why it failed.
    pub fn wait(&self) -> Result<(), ZoneFailed> {
        self.shared.wait_ended();
        self.failure()
    }

    /// True if the zone failed so far.
    ///
    /// # Errors
    /// Why it failed.
    pub fn failure(&self) -> Result<(), ZoneFailed> {
        match self.shared.failure() {
            Some(why) => Err(ZoneFailed(why)),
            None => Ok(()),
        }
    }

    /// Stops: takes no more requests, makes durable and acknowledges what was received, and closes
    /// the store. May be called from any thread, repeatedly.
    ///
    /// # Errors
    /// The reason, if the zone failed. Acknowledged writes are safe even then.
    pub fn stop(&self) -> Result<(), ZoneFailed> {
        self.shared.begin_stop();
        for (address, thread) in self.listeners.lock().drain(..) {
            // A connection wakes the listener up to see that it is to stop.
            while !thread.is_finished() && Stream::connect(&address).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
            join(thread);
        }
        for conn in self.shared.conns.lock().values() {
            conn.stop_reading();
        }
        let conns: Vec<_> = self.shared.conns.lock().values().cloned().collect();
        self.clients.wait_received();
        // A receiver that is left waits for a client that does not read its answers.
        let waiting = self
            .clients
            .receivers
            .lock()
            .iter()
            .any(|t| !t.is_finished());
        if waiting {
            conns.iter().for_each(|conn| conn.close());
        }
        drain(&self.clients.receivers);
        self.shared.reads.close();
        self.shared.tasks.close();
        self.shared.fills.close();
        self.shared.inventories.close();
        self.shared.checkpoints.close();
        self.shared.queue.close();
        drain(&self.workers);
        conns.iter().for_each(|conn| conn.finish());
        drain(&self.clients.senders);
        if let Some(network) = &self.shared.network {
            network.stop(STOP_PATIENCE);
        }
        self.failure()
    }
}

impl Drop for Zone {
    fn drop(&mut self) {
        // A failure was logged where it happened.
        let _ = self.stop();
    }
}

/// Gives the janitor the work that the last run left. Returns the next number of a removal.
pub(crate) fn resume_tasks(shared: &Shared) -> Result<u64, OpenError> {
    let broken = |error: EngineError| error.at_open(&shared.dir);
    let mut next = 1;
    for volume in shared.volumes.all() {
        let removals = shared.engine.meta_prefix(&meta::removals_key(volume.id));
        for (key, json) in removals.map_err(broken)? {
            let number = meta::removal_number(&key);
            next = next.max(number + 1);
            let removal = meta::from_json(&shared.dir, &json)?;
            shared.tasks.remove(volume.clone(), number, removal);
        }
        shared.tasks.scan(volume);
    }
    for volume in shared.volumes.removed_ids() {
        shared.tasks.purge(volume);
    }
    Ok(next)
}

/// Accepts connections until the zone stops.
fn accept(shared: &Arc<Shared>, clients: &Clients, listener: &Listener) {
    loop {
        let accepted = listener.accept(shared.config.tls.as_ref());
        if shared.is_stopping() {
            return;
        }
        let started = accepted.and_then(|(stream, peer)| {
            let stream = match &shared.network {
                Some(network) => network.relay(stream)?,
                None => stream,
            };
            let result = start_client(shared, clients, &stream, peer);
            if result.is_err() {
                stream.shutdown(Shutdown::Both);
            }
            result
        });
        if let Err(error) = started {
            // Usually too many open files or threads, until some connections end.
            tracing::warn!(%error, "cannot take a connection");
            std::thread::sleep(Duration::from_millis(100));
        }
        clients.receivers.lock().retain(|t| !t.is_finished());
        clients.senders.lock().retain(|t| !t.is_finished());
    }
}

fn start_client(
    shared: &Arc<Shared>,
    clients: &Clients,
    stream: &Stream,
    peer: String,
) -> io::Result<()> {
    let Some(place) = Place::take(shared) else {
        return Err(io::Error::other("too many clients are being greeted"));
    };
    let id = clients.last_id.fetch_add(1, Ordering::Relaxed) + 1;
    let conn = Arc::new(Conn::new(id, peer, stream)?);
    let commits = clients.commits.clone();
    let input = stream.try_clone()?;
    let receiver = Receiver::new(shared.clone(), commits, conn.clone(), input, place);
    let sender = conn.clone();
    let sender = spawn("sender", move || sender.run_sender())?;
    clients.senders.lock().push(sender);
    shared.conns.lock().insert(id, conn.clone());
    let started = spawn("receiver", move || receiver.run());
    match started {
        Ok(thread) => clients.receivers.lock().push(thread),
        Err(e) => {
            shared.conns.lock().remove(&id);
            conn.close();
            return Err(e);
        }
    }
    Ok(())
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(format!("zone-{name}"))
        .spawn(body)
}

fn drain(threads: &Mutex<Vec<JoinHandle<()>>>) {
    let threads = std::mem::take(&mut *threads.lock());
    threads.into_iter().for_each(join);
}

fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() {
        // A panic was logged, and has failed the zone where that matters.
        let _ = thread.join();
    }
}
