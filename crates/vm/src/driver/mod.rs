//! What does what the core decides: sockets, tasks, threads, clocks, programs.

pub mod config;
mod engine;
mod hub;
mod link;
mod stats;
mod status;
mod wire;
mod zones;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dax::ids::NodeName;
use dax::tls::Tls;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::core::{Guard, Record};
use crate::host::{self, HostError, Network, Spec};
use crate::image::{self, Image, ImageError};
use crate::network::Switch;
use config::{Config, ConfigError};
use hub::{Hub, Job, Order};
use wire::Shape;
use zones::Zones;

pub use hub::Reread;
pub use stats::{CheckpointStats, Parts};
pub use status::Status;
pub use wire::{Question, ask};
pub use zones::Open;

const TICK: Duration = Duration::from_millis(10);
/// How long the end of the machine's thread is waited for.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Why a host cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// This host cannot run machines.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The operating system said no.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// Why not.
        source: std::io::Error,
    },
}

fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> RunError {
    let what = what.into();
    |source| RunError::System { what, source }
}

impl RunError {
    /// What an operator can do about it, if that is known.
    pub fn hint(&self) -> Option<&str> {
        match self {
            RunError::Image(error) => error.hint(),
            RunError::Host(error) => error.hint(),
            RunError::Config(_) | RunError::System { .. } => None,
        }
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, RunError> {
    TcpListener::bind(address)
        .await
        .map_err(system(format!("cannot listen at {address}")))
}

/// The machine as this host has it.
fn spec(config: &Config, image: &Image) -> Result<(Spec, host::Acceleration), RunError> {
    std::fs::create_dir_all(&config.run)
        .map_err(system(format!("cannot make {}", config.run.display())))?;
    let run_as = match &config.run_as {
        Some(user) => supervise::RunAs::resolve(user).map_err(HostError::from)?,
        None => None,
    };
    let (guest, bits) = config.network()?;
    let (kernel, initrd) = (image.kernel(), image.initrd());
    let remembered = config.run.join("accelerator");
    let acceleration = host::choose(&config.qemu, &kernel, &initrd, &remembered)?;
    let memory_dir = config.memory_dir.clone().unwrap_or_else(|| {
        let name: String = config.mac.chars().filter(char::is_ascii_hexdigit).collect();
        format!(
            "/dev/shm/understudy-vm-{name}-{}",
            config.peer_listen.port()
        )
        .into()
    });
    let spec = Spec {
        qemu: config.qemu.clone(),
        accelerator: acceleration.accelerator,
        memory: config.memory_mb << 20,
        cpus: config.cpus,
        kernel,
        initrd,
        append: image::address(guest, bits, config.gateway),
        disk: config.run.join("disk"),
        network: Network::Stream(config.run.join("net")),
        mac: config.card()?,
        memory_dir,
        run: config.run.join("qemu"),
        console: config.run.join("console.log"),
        log: config.run.join("qemu.log"),
        run_as,
    };
    host::check(&spec)?;
    Ok((spec, acceleration))
}

/// Runs a host of a machine until `shutdown` is done. The machine, if it runs here, ends with it: hand it over first. `reread` reads the
/// configuration again, when an operator wants it.
///
/// # Errors
/// If it cannot begin: what this host lacks is said before anything starts.
pub async fn run(
    config: Config,
    reread: Reread,
    name: NodeName,
    opener: Box<dyn Open>,
    tls: Option<Tls>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let image = Image::open(&config.image)?;
    let (spec, acceleration) = spec(&config, &image)?;
    tracing::info!(accelerator = %acceleration.accelerator, reason = acceleration.reason, "what runs the machine");
    // Whether the device may be opened is found out now, not at the takeover.
    drop(
        crate::network::tap::open(&config.tap, config.bridge.as_deref())
            .map_err(system("the machine would have no network"))?,
    );
    let listener = bind(config.peer_listen).await?;
    let switch = Switch::listen(&config.run.join("net"), config.protection, config.port)
        .map_err(system("cannot listen for QEMU"))?;
    let shape = Shape {
        format: wire::FORMAT,
        memory: spec.memory,
        cpus: spec.cpus,
        disk: image.manifest.disk_bytes,
        kernel: image.manifest.kernel.clone(),
        accelerator: spec.accelerator.to_string(),
        qemu: host::version(&spec.qemu)?,
        silence_ms: u64::try_from(config.silence.as_millis()).unwrap_or(u64::MAX),
        mac: spec.mac.to_string(),
    };
    let zones = Arc::new(Zones::new(opener, name.clone()));
    let (hub, jobs, orders) = Hub::new(
        config,
        reread,
        name.to_string(),
        shape,
        acceleration,
        zones,
        switch.clone(),
    );
    let thread_hub = hub.clone();
    let engine = std::thread::Builder::new()
        .name("machine".to_owned())
        .spawn(move || {
            let run = std::panic::AssertUnwindSafe(|| engine::run(thread_hub, spec, &orders));
            if std::panic::catch_unwind(run).is_err() {
                // Its standby takes over, as from any host that is gone.
                tracing::error!("the machine's thread has panicked, and the process ends");
                std::process::abort();
            }
        })
        .map_err(system("cannot start a thread"))?;
    let tasks = [
        tokio::spawn(work(hub.clone(), jobs)),
        tokio::spawn(tick(hub.clone())),
        tokio::spawn(link::listen(hub.clone(), listener, tls.clone())),
    ];
    if hub.config.first {
        tokio::spawn(link::dial(hub.clone(), tls));
    }
    shutdown.await;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    switch.close();
    hub.peer.lock().take();
    hub.order(Order::End);
    let joined = tokio::task::spawn_blocking(move || engine.join());
    if tokio::time::timeout(ENDS_WITHIN, joined).await.is_err() {
        tracing::warn!("the machine's thread does not end");
    }
    Ok(())
}

/// Lets the guard see that time passes.
async fn tick(hub: Arc<Hub>) {
    loop {
        tokio::time::sleep(TICK).await;
        hub.tick();
    }
}

/// Asks the zones, one question after the other.
async fn work(hub: Arc<Hub>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    while let Some(job) = jobs.recv().await {
        let done = match job {
            Job::Read => hub.zones.read().await.map(|record| {
                hub.act(|guard, out| guard.read(record, out));
            }),
            Job::Own => hub.zones.own().await.map(|(epoch, record)| {
                tracing::info!(epoch, ?record, "an epoch is owned");
                hub.act(|guard, out| guard.owned(epoch, record, out));
            }),
            Job::Write(record) => {
                let what = note(&hub, &record);
                hub.zones.write(&record, &what).await.map(|()| {
                    tracing::info!(?record, "the record is written");
                    hub.act(|guard, out| guard.written(&record, out));
                })
            }
        };
        if let Err(error) = done {
            tracing::warn!(%error, "the zones did not do what was asked");
            hub.zones.forget().await;
            hub.act(|guard, _| Guard::refused(guard));
        }
    }
}

fn note(hub: &Hub, record: &Record) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let unix_ms = now.map_or(0, |since| since.as_millis() as u64);
    let standby = record.standby.as_ref().map(|who| who.name.clone());
    let name = hub.look(|guard| guard.me().name.clone());
    serde_json::json!({
        "epoch": record.epoch,
        "active": name,
        "standby": standby,
        "unix_ms": unix_ms,
    })
    .to_string()
}
