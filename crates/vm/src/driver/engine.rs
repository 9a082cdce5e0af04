//! The thread of the machine: it starts and kills QEMU, makes checkpoints of a machine that runs, and applies those of one that does not.
//!
//! ```text
//!   pause ─▶ pages, devices, cut of disk and network ─▶ go on ─▶ encode ─▶ send        at most two under way
//! ```
//!
//! Orders are carried out in the order in which they were given. Invariant: a machine is killed before the next one is started.

mod checkpoints;
mod copy;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc as threads;
use std::time::{Duration, Instant};

use dax::error::describe;

use super::hub::{Hub, Order};
use crate::core::{Number, Session};
use crate::disk::{self, Disk};
use crate::encoding::{Encoder, Packer};
use crate::host::{Checkpoint, Guest, HostError, Machine, Spec, Start};
use crate::network::tap;
use crate::standby::{ApplyError, CheckpointPart, Mirror};

/// Checkpoints that the standby has not confirmed.
const UNDER_WAY: u64 = 2;
/// Bytes of one part.
const PART_BYTES: usize = 1 << 20;
const TRIES_AGAIN_AFTER: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Between two syncs of the standby's disk.
const SYNCS_EVERY: Duration = Duration::from_millis(200);

/// Why a machine cannot run on.
#[derive(Debug, thiserror::Error)]
enum EngineError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error("{what}")]
    System {
        what: String,
        source: std::io::Error,
    },
}

fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> EngineError {
    let what = what.into();
    |source| EngineError::System { what, source }
}

type Result<T, E = EngineError> = std::result::Result<T, E>;

/// A standby that checkpoints are made for.
struct Protection {
    session: Session,
    encoder: Encoder,
    /// Of blocks of the disk, as they were sent last.
    blocks: Encoder,
    packer: Packer,
    /// The devices' state that was sent last.
    devices: Vec<u8>,
    made: Number,
    next: Instant,
    is_last: bool,
}

/// The machine of this host, in the thread of its own.
pub struct Engine {
    hub: Arc<Hub>,
    spec: Spec,
    socket: PathBuf,
    backlog: VecDeque<Order>,
    machine: Option<Machine>,
    /// The server stops before the next one starts.
    disk: Option<(Arc<Disk>, disk::Server)>,
    runs: bool,
    mirror: Option<(Session, Mirror)>,
    /// This host takes over, with what was applied.
    is_complete: bool,
    protection: Option<Protection>,
    taken: Checkpoint,
}

/// Carries orders out until it is told to end.
pub fn run(hub: Arc<Hub>, spec: Spec, orders: &threads::Receiver<Order>) {
    let mut engine = Engine {
        socket: spec.disk.clone(),
        hub,
        spec,
        backlog: VecDeque::new(),
        machine: None,
        disk: None,
        runs: false,
        mirror: None,
        is_complete: false,
        protection: None,
        taken: Checkpoint::default(),
    };
    loop {
        let order = match engine.backlog.pop_front() {
            Some(order) => Some(order),
            None => match orders.recv_timeout(engine.patience()) {
                Ok(order) => Some(order),
                Err(threads::RecvTimeoutError::Timeout) => None,
                Err(threads::RecvTimeoutError::Disconnected) => break,
            },
        };
        if matches!(order, Some(Order::End)) {
            break;
        }
        let done = order.map_or(Ok(()), |order| engine.carry_out(order, orders));
        let done = done.and_then(|()| engine.look_after(orders));
        if let Err(error) = done {
            engine.fail(&error);
        }
    }
    engine.destroy();
}

impl Engine {
    /// How long nothing has to be done.
    fn patience(&self) -> Duration {
        let next = self
            .protection
            .as_ref()
            .filter(|_| self.may_make())
            .map(|it| it.next);
        next.map_or(LOOK_EVERY, |next| {
            next.saturating_duration_since(Instant::now())
                .min(LOOK_EVERY)
        })
    }

    fn may_make(&self) -> bool {
        let protection = self.protection.as_ref().filter(|_| self.runs);
        protection.is_some_and(|it| it.made.0 < self.hub.confirmed().0 + UNDER_WAY)
    }

    fn fail(&mut self, error: &EngineError) {
        let mut text = describe(error);
        if let EngineError::Host(error) = error
            && let Some(hint) = error.hint()
        {
            text = format!("{text} ({hint})");
        }
        self.hub.report_trouble(text);
        let ran = self.runs;
        self.destroy();
        if !ran {
            // What cannot be started is not tried again at once.
            std::thread::sleep(TRIES_AGAIN_AFTER);
        }
        self.hub.act(|guard, out| guard.machine_lost(out));
    }

    fn destroy(&mut self) {
        self.protection = None;
        self.mirror = None;
        self.is_complete = false;
        self.runs = false;
        if let Some((disk, _)) = &self.disk {
            disk.close();
        }
        if let Some(mut machine) = self.machine.take()
            && let Err(error) = machine.kill()
        {
            tracing::error!(%error, "the machine could not be killed");
        }
        self.disk = None;
    }

    fn carry_out(&mut self, order: Order, orders: &threads::Receiver<Order>) -> Result<()> {
        match order {
            Order::Boot(life) => return self.boot(life),
            Order::Sync(life) => {
                self.is_complete = true;
                self.make_durable(life);
            }
            Order::Resume => return self.resume(),
            Order::Destroy => self.destroy(),
            Order::Open => self.hub.switch.open(),
            Order::Protect(session) => return self.protect(session, orders),
            Order::Unprotect => {
                self.protection = None;
                if let Some((disk, _)) = &self.disk {
                    disk.forget();
                }
            }
            Order::HandOver => {
                if let Some(protection) = &mut self.protection {
                    protection.is_last = true;
                }
            }
            Order::GoOn => {
                self.runs = true;
                if let Some(machine) = &mut self.machine {
                    machine.resume()?;
                }
            }
            Order::Prepare(session) => return self.prepare(session),
            Order::Part(session, part, bytes) => return self.part(&session, part, bytes),
            Order::Wake | Order::End => {}
        }
        Ok(())
    }

    /// The machine may have ended, and a checkpoint may be due.
    fn look_after(&mut self, orders: &threads::Receiver<Order>) -> Result<()> {
        if let Some(error) = self.machine.as_ref().and_then(Machine::ended) {
            return Err(error.into());
        }
        if let Some(trouble) = self.disk.as_ref().and_then(|(disk, _)| disk.take_trouble()) {
            self.hub.report_trouble(trouble);
        }
        if self.may_make()
            && self
                .protection
                .as_ref()
                .is_some_and(|it| it.next <= Instant::now())
        {
            self.make(orders)?;
        }
        Ok(())
    }

    fn start(&mut self, disk: Arc<Disk>, start: Start) -> Result<()> {
        let server = disk::serve(disk.clone(), &self.socket).map_err(system(format!(
            "cannot listen at {}",
            self.socket.display()
        )))?;
        self.disk = Some((disk, server));
        let machine = self.machine.insert(Machine::start(&self.spec, start)?);
        let (ours, runs) = (&self.hub.shape.qemu, machine.number());
        if runs != ours {
            let what = format!(
                "QEMU is {runs}, and was {ours} when this host was started: restart the host"
            );
            return Err(system(what)(std::io::ErrorKind::Unsupported.into()));
        }
        Ok(())
    }

    /// The machine begins to run here, with what is in the kernel's memory of its disk. Nobody waits until that is durable but who wants
    /// to follow, and would give his own disk up; and until the record says so, nobody starts the machine from it after a power failure.
    fn make_durable(&self, life: u64) {
        let Some((disk, _)) = &self.disk else {
            return;
        };
        let (disk, hub) = (disk.clone(), self.hub.clone());
        let flush = move || {
            match disk.flush() {
            Ok(_) => hub.act(|guard, out| guard.durable(life, out)),
            // The guest's own will fail as well.
            Err(error) => hub.report_trouble(format!(
                "the machine's disk cannot be synced: {error}. It gets no standby. Output that clients got before it \
                 began to run here is on the other host's disk: stop this host, and start the machine there with \
                 understudy vm start-from-disk"
            )),
        }
        };
        self.beside("sync", flush);
    }

    /// Keeps the standby's disk synced, so that little is left to be when it takes over.
    fn keep_synced(&self, disk: Arc<Disk>, life: u64) {
        let hub = self.hub.clone();
        let sync = move || {
            while !disk.is_closed() && hub.look(|guard| guard.me().life == life) {
                if let Err(error) = disk.flush() {
                    hub.report_trouble(format!("the standby's disk cannot be synced: {error}"));
                    return hub.act(|guard, out| guard.standby_lost(life, out));
                }
                std::thread::sleep(SYNCS_EVERY);
            }
        };
        self.beside("sync", sync);
    }

    fn beside(&self, name: &str, work: impl FnOnce() + Send + 'static) {
        let spawned = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(work);
        if let Err(error) = spawned {
            tracing::error!(%error, "the machine gets no standby: a thread cannot be had");
        }
    }

    fn attach(&self) -> Result<()> {
        let config = &self.hub.config;
        let tap = tap::open(&config.tap, config.bridge.as_deref());
        let attached = tap.and_then(|tap| self.hub.switch.attach(tap));
        attached.map_err(system("the machine has no network"))
    }

    fn boot(&mut self, life: u64) -> Result<()> {
        self.destroy();
        let path = self.hub.config.disk.clone();
        if !path.exists() {
            copy_image(&self.hub.config.image.join("disk.raw"), &path)?;
        }
        let opened =
            Disk::open(&path).map_err(system(format!("cannot open {}", path.display())))?;
        self.attach()?;
        self.start(opened, Start::Boot)?;
        self.runs = true;
        self.make_durable(life);
        tracing::info!(accelerator = %self.spec.accelerator, "the machine boots");
        Ok(())
    }

    /// Gets ready for a copy of the other host's machine. What this host's disk held is of no use any more.
    fn prepare(&mut self, session: Session) -> Result<()> {
        self.destroy();
        let bytes = self.hub.shape.disk;
        let path = &self.hub.config.disk;
        let disk =
            Disk::create(path, bytes).map_err(system(format!("cannot make {}", path.display())))?;
        self.start(disk.clone(), Start::Incoming)?;
        self.keep_synced(disk.clone(), session.standby.life);
        self.mirror = Some((session, Mirror::new(disk)));
        Ok(())
    }

    fn part(&mut self, session: &Session, part: CheckpointPart, bytes: Vec<u8>) -> Result<()> {
        self.hub
            .queued
            .fetch_sub(bytes.len() as u64, Ordering::AcqRel);
        let (Some((ours, mirror)), Some(machine)) = (&mut self.mirror, &self.machine) else {
            return Ok(());
        };
        if ours != session || self.is_complete {
            return Ok(());
        }
        if let Some(number) = mirror.part(part, bytes, machine.memory())? {
            self.hub
                .act(|guard, out| guard.applied(session, number, out));
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<()> {
        let began = Instant::now();
        let (Some((_, mut mirror)), Some(machine)) = (self.mirror.take(), &mut self.machine) else {
            let what = "there is nothing to take over with".to_owned();
            return Err(EngineError::System {
                what,
                source: std::io::ErrorKind::NotFound.into(),
            });
        };
        let (devices, flows) = mirror.take();
        machine.load(&devices)?;
        self.attach()?;
        if let Some(machine) = &mut self.machine {
            machine.resume()?;
        }
        self.runs = true;
        self.hub.switch.take_over(flows);
        let mut stats = self.hub.stats.lock();
        stats.takeovers += 1;
        stats.takeover = began.elapsed();
        tracing::info!(checkpoint = %mirror.last(), took = ?began.elapsed(), "the machine runs on here");
        Ok(())
    }

    /// True if what is being done is of no use any more.
    fn is_interrupted(&mut self, orders: &threads::Receiver<Order>) -> bool {
        self.backlog.extend(
            orders
                .try_iter()
                .filter(|order| !matches!(order, Order::Wake)),
        );
        let ends = |order: &Order| {
            matches!(
                order,
                Order::Unprotect | Order::Destroy | Order::Protect(_) | Order::End
            )
        };
        self.backlog.iter().any(ends)
    }
}

/// A machine that is new gets a disk of its own; its holes stay holes.
fn copy_image(from: &std::path::Path, to: &std::path::Path) -> Result<()> {
    let mut copy = Command::new("cp");
    copy.args(["--sparse=always", "--reflink=auto"])
        .arg(from)
        .arg(to);
    let what = || format!("cannot copy {} to {}", from.display(), to.display());
    let output = copy.output().map_err(system(what()))?;
    if output.status.success() {
        // As all of a host's copies: the database is for nobody else to read.
        use std::os::unix::fs::PermissionsExt;
        let private = std::fs::Permissions::from_mode(0o600);
        return std::fs::set_permissions(to, private).map_err(system(what()));
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(EngineError::System {
        what: what(),
        source: std::io::Error::other(said),
    })
}
