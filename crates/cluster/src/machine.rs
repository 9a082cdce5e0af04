//! A virtual machine on two hosts, which are child processes, with zones of their own, in a network namespace.
//!
//! ```text
//!   clients ── veth ── br0 ─┬─ north's tap ── vm run ────┐
//!                           └─ south's tap ── vm run     ┴── zones
//! ```
//!
//! Invariant: when a [`Pair`] is dropped, its processes are dead, and what they had in memory is gone.

pub mod clients;
mod image;
mod line;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use store::Network;
use vm::driver::{Question, Status, ask};

pub use self::image::{Kept, keep};
use self::line::Line;
use crate::process::Process;
use crate::{Cluster, Options};

/// Where the clients are.
pub const ADDRESS: &str = "10.77.0.1";
/// Where the machine is.
pub const GUEST: &str = "10.77.0.2";
/// What the hosts are called.
pub const NAMES: [&str; 2] = ["north", "south"];
const TAKES_OVER_WITHIN: Duration = Duration::from_secs(60);
const PROTECTS_WITHIN: Duration = Duration::from_secs(180);
const MAKES_WITHIN: Duration = Duration::from_secs(20);
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Makes a network namespace for this thread, and for the threads and processes that it starts from now on.
///
/// # Errors
/// It needs root, and `ip`.
pub fn enter_network() -> anyhow::Result<()> {
    image::keep_network()?;
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
        .context("a machine needs a network namespace of its own: run this as root")?;
    for words in [
        "link set lo up".to_owned(),
        "link add br0 type bridge forward_delay 0".to_owned(),
        // The clients have a card of their own: its address and its link outlive the hosts' devices.
        "link add clients type veth peer name clients0".to_owned(),
        "link set clients0 master br0 up".to_owned(),
        "link set br0 up".to_owned(),
        "link set clients up".to_owned(),
        format!("address add {ADDRESS}/24 dev clients"),
    ] {
        let output = Command::new("ip").args(words.split(' ')).output();
        let output = output.context("cannot run ip: apt-get install iproute2")?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "ip {words}: {}", said.trim());
    }
    Ok(())
}

/// What the machine is made of, and how it is protected.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// An image.
    pub image: PathBuf,
    /// Megabytes of memory.
    pub memory_mb: u64,
    /// What else `[vm]` says on both hosts, as TOML writes it.
    pub more: Vec<(String, String)>,
    /// True if hosts reach each other and the zones by lines that can be cut: [`Pair::cut`], [`Pair::isolate`]. The first host is
    /// where the first zone is, the other one where the second is.
    pub has_lines: bool,
}

#[derive(Debug)]
struct Host {
    config: PathBuf,
    log: PathBuf,
    peer_listen: String,
    /// Where the machine's memory is, which a host that was killed leaves there.
    memory: PathBuf,
    /// The configuration without what [`Settings::more`] says.
    base: String,
    process: Option<Process>,
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill_all();
        }
        // It need not be there.
        let _ = std::fs::remove_dir_all(&self.memory);
    }
}

impl Host {
    fn write(&self, more: &[(String, String)]) -> anyhow::Result<()> {
        let mut text = self.base.clone();
        for (key, value) in more {
            text.push_str(&format!("{key} = {value}\n"));
        }
        std::fs::write(&self.config, text)
            .with_context(|| format!("cannot write {}", self.config.display()))
    }
}

/// Both hosts. They end before the zones do.
#[derive(Debug)]
pub struct Pair {
    hosts: [Host; 2],
    line: Option<Line>,
    cluster: Cluster,
    program: PathBuf,
}

impl Pair {
    /// Starts the zones and the first host, and waits until it runs the machine. The other one is not started yet.
    ///
    /// # Errors
    /// Something does not start.
    pub async fn start(dir: &Path, settings: &Settings) -> anyhow::Result<Pair> {
        let program = settings.understudy.clone();
        let mut options = Options::new(dir, Path::new("/"), &program);
        options.network = settings.has_lines.then(Network::default);
        let zones = options.zones;
        let mut cluster = Cluster::create(options)?;
        for zone in 1..=zones {
            cluster.start_zone(zone)?;
        }
        let node = cluster.names().next().context("a cluster has a node")?;
        let base = std::fs::read_to_string(&cluster.node(node)?.config)?;
        let ports = [supervise::ports::free()?, supervise::ports::free()?];
        // The first host dials the other one.
        let line = match settings.has_lines {
            true => Some(Line::open(own_address(ports[1])).await?),
            false => None,
        };
        let other = line
            .as_ref()
            .map_or_else(|| own_address(ports[1]), Line::address);
        let mut pair = Pair {
            hosts: [
                host(0, dir, &base, (ports[0], &other), settings)?,
                host(1, dir, &base, (ports[1], &own_address(ports[0])), settings)?,
            ],
            line,
            cluster,
            program,
        };
        pair.init().await?;
        pair.restart(0)?;
        pair.wait_active(0).await?;
        Ok(pair)
    }

    async fn init(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + MAKES_WITHIN;
        loop {
            let mut command = Command::new(&self.program);
            command
                .args(["vm", "init", "--config"])
                .arg(&self.hosts[0].config);
            let output = tokio::task::spawn_blocking(move || command.output()).await??;
            if output.status.success() {
                return Ok(());
            }
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            anyhow::ensure!(Instant::now() < deadline, "vm init: {said}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Starts a host, as it was started first.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn restart(&mut self, at: usize) -> anyhow::Result<()> {
        let host = &mut self.hosts[at];
        let mut command = Command::new(&self.program);
        command
            .args(["--log", "info", "vm", "run"])
            .args((at != 0).then_some("--standby"))
            .args(["--until-stdin-closes", "--config"])
            .arg(&host.config);
        host.process = Some(Process::spawn(NAMES[at], command, &host.log)?);
        Ok(())
    }

    /// Changes what [`Settings::more`] said on both hosts while they run.
    ///
    /// # Errors
    /// A host that runs does not take it.
    pub async fn reload(&self, more: &[(String, String)]) -> anyhow::Result<()> {
        for host in &self.hosts {
            host.write(more)?;
            if host.process.is_some() {
                let told = ask(&host.peer_listen, None, Question::Reload).await?;
                let told = told.map_err(anyhow::Error::msg)?;
                anyhow::ensure!(!told.contains("true"), "{told}");
            }
        }
        Ok(())
    }

    /// What a host says of itself.
    pub async fn status(&self, at: usize) -> Option<Status> {
        let asked = ask(&self.hosts[at].peer_listen, None, Question::Status);
        let told = tokio::time::timeout(ANSWERS_WITHIN, asked).await;
        serde_json::from_str(&told.ok()?.ok()?.ok()?).ok()
    }

    /// Waits until a host runs the machine.
    ///
    /// # Errors
    /// It does not, or a host has ended.
    pub async fn wait_active(&mut self, at: usize) -> anyhow::Result<Status> {
        let is_active = |status: &Status| status.role == "active";
        let wanted = format!("{} does not run the machine", NAMES[at]);
        let (_, status) = self
            .wait(&[at], is_active, &wanted, TAKES_OVER_WITHIN)
            .await?;
        Ok(status)
    }

    /// Waits until the machine runs on at a host that had taken over so many times before. (A host is active from its decision on.)
    ///
    /// # Errors
    /// It does not, or a host has ended.
    pub async fn wait_taken_over(&mut self, at: usize, before: u64) -> anyhow::Result<Status> {
        let has_taken_over = |status: &Status| status.stats.takeovers > before;
        let wanted = format!("{} does not take the machine over", NAMES[at]);
        let (_, status) = self
            .wait(&[at], has_taken_over, &wanted, TAKES_OVER_WITHIN)
            .await?;
        Ok(status)
    }

    /// Waits until the machine has a current standby; which host runs it.
    ///
    /// # Errors
    /// It does not get one, or a host has ended.
    pub async fn wait_protected(&mut self) -> anyhow::Result<usize> {
        let is_protected = |status: &Status| status.protection.as_deref() == Some("protected");
        let wanted = "the machine is not protected";
        let (at, _) = self
            .wait(&[0, 1], is_protected, wanted, PROTECTS_WITHIN)
            .await?;
        Ok(at)
    }

    /// Waits until a host runs the machine without a standby.
    ///
    /// # Errors
    /// It does not, or a host has ended.
    pub async fn wait_alone(&mut self, at: usize) -> anyhow::Result<()> {
        let is_alone = |status: &Status| status.protection.as_deref() == Some("alone");
        let wanted = format!("{} does not run the machine alone", NAMES[at]);
        self.wait(&[at], is_alone, &wanted, TAKES_OVER_WITHIN)
            .await?;
        Ok(())
    }

    async fn wait(
        &mut self,
        hosts: &[usize],
        is_so: impl Fn(&Status) -> bool,
        wanted: &str,
        within: Duration,
    ) -> anyhow::Result<(usize, Status)> {
        let deadline = Instant::now() + within;
        loop {
            for at in hosts {
                if let Some(status) = self.status(*at).await.filter(&is_so) {
                    return Ok((*at, status));
                }
            }
            self.check()?;
            anyhow::ensure!(Instant::now() < deadline, "{wanted}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Fails if a host has ended by itself.
    ///
    /// # Errors
    /// With its last words.
    pub fn check(&mut self) -> anyhow::Result<()> {
        let hosts = self.hosts.iter_mut();
        let mut processes = hosts.filter_map(|host| host.process.as_mut());
        processes.try_for_each(Process::check_running)
    }

    /// Cuts the line between the hosts, or mends it. Nobody is told.
    ///
    /// # Errors
    /// They have none.
    pub fn cut(&self, is_cut: bool) -> anyhow::Result<()> {
        let line = self.line.as_ref().context("the hosts have no line")?;
        line.cut(is_cut);
        Ok(())
    }

    /// Cuts a host, with the zone server where it is, off from the other host and the other zones, or mends that; clients still reach it.
    /// Nobody is told.
    ///
    /// # Errors
    /// As of [`cut`](Pair::cut).
    pub fn isolate(&mut self, at: usize, is_cut: bool) -> anyhow::Result<()> {
        self.cut(is_cut)?;
        let others = (0..self.cluster.options().zones).filter(|zone| *zone != at);
        for zone in others.collect::<Vec<_>>() {
            self.cluster.set_cut(at, zone, is_cut)?;
        }
        Ok(())
    }

    /// Stops all processes of a host, as one that hangs; or lets them go on.
    ///
    /// # Errors
    /// It does not run.
    pub fn freeze(&self, at: usize, is_frozen: bool) -> anyhow::Result<()> {
        let process = self.hosts[at].process.as_ref();
        let process = process.context("the host does not run")?;
        if is_frozen {
            process.pause();
        } else {
            process.resume();
        }
        Ok(())
    }

    /// Kills all processes of a host. When that was.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&mut self, at: usize) -> anyhow::Result<Instant> {
        let process = self.hosts[at].process.take();
        let mut process = process.context("the host does not run")?;
        let now = Instant::now();
        process.kill_all();
        Ok(now)
    }
}

fn own_address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn host(
    at: usize,
    dir: &Path,
    cluster: &str,
    (port, peer): (u16, &str),
    settings: &Settings,
) -> anyhow::Result<Host> {
    let (name, own) = (NAMES[at], dir.join(NAMES[at]));
    std::fs::create_dir_all(&own)?;
    let peer_listen = own_address(port);
    let memory = format!("/dev/shm/understudy-{}-{port}", std::process::id());
    let memory = PathBuf::from(memory);
    let kept =
        |line: &&str| ["volume", "zones", "key"].contains(&line.split(' ').next().unwrap_or(""));
    let shared: Vec<&str> = cluster.lines().filter(kept).collect();
    let place = match settings.has_lines {
        true => format!("\n[tags]\nzone = {at}\n"),
        false => String::new(),
    };
    let base = format!(
        "name = \"{name}\"\n{}\n{place}\n[vm]\nimage = \"{}\"\ndisk = \"{}\"\nmemory_dir = \"{}\"\nrun = \"{}\"\nmemory_mb = {}\n\
         mac = \"52:54:00:77:00:02\"\naddress = \"{GUEST}/24\"\ntap = \"{name}\"\nbridge = \"br0\"\n\
         peer_listen = \"{peer_listen}\"\npeer = \"{peer}\"\n",
        shared.join("\n"),
        settings.image.display(),
        own.join("disk.raw").display(),
        memory.display(),
        own.join("run").display(),
        settings.memory_mb,
    );
    let host = Host {
        config: dir.join(format!("{name}-host.toml")),
        log: dir.join(format!("{name}.log")),
        peer_listen,
        memory,
        base,
        process: None,
    };
    host.write(&settings.more)?;
    Ok(host)
}
