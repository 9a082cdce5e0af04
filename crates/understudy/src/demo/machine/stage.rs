//! Zones, two hosts, and the image of a machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use cluster::process::Process;
use cluster::{Cluster, Options as ClusterOptions};
use vm::driver::{Question, Status, ask};
use vm::image::{Create, Database, create};
use vm::network::Protection;

use super::super::progress::Progress;
use super::{Options, clients};

/// Where the clients are.
pub const ADDRESS: &str = "10.77.0.1";
/// Where the machine is.
pub const GUEST: &str = "10.77.0.2";
const NAMES: [&str; 2] = ["north", "south"];
const BOOTS_WITHIN: Duration = Duration::from_secs(120);
const PROTECTS_WITHIN: Duration = Duration::from_secs(180);
const TAKES_OVER_WITHIN: Duration = Duration::from_secs(60);
const DISK_BYTES: u64 = 2 << 30;

/// A host.
struct Host {
    config: PathBuf,
    log: PathBuf,
    peer_listen: String,
    /// Where the machine's memory is, which a host that was killed leaves there.
    memory: PathBuf,
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

/// Everything that runs. Hosts end before zones do.
pub struct Stage {
    hosts: [Host; 2],
    _cluster: Cluster,
    program: PathBuf,
    pub password: String,
    pub accelerator: (String, String),
}

fn protection(protection: Protection) -> &'static str {
    match protection {
        Protection::Everything => "everything",
        Protection::Commits => "commits",
        Protection::Nothing => "nothing",
    }
}

async fn image(
    options: &Options,
    dir: &Path,
    progress: &Progress,
) -> anyhow::Result<(PathBuf, String)> {
    if let Some((image, password)) = &options.image {
        let text = std::fs::read_to_string(password)
            .with_context(|| format!("cannot read the password from {}", password.display()))?;
        return Ok((image.clone(), text.trim_end().to_owned()));
    }
    progress.say("making an image of Debian with PostgreSQL");
    let password = format!("demo-{:x}", rand::random::<u64>());
    let wanted = Create {
        directory: dir.join("image"),
        database: Database::PostgreSql,
        password: password.clone().into(),
        disk_bytes: DISK_BYTES,
        hostname: "database".to_owned(),
        packages: Vec::new(),
    };
    create(&wanted, |_| {}).await?;
    Ok((wanted.directory, password))
}

impl Stage {
    /// Starts everything, and fills the tables.
    pub async fn set(options: &Options, dir: &Path, progress: &Progress) -> anyhow::Result<Stage> {
        let program = std::env::current_exe().context("cannot tell which program this is")?;
        let (image, password) = image(options, dir, progress).await?;
        let settings = ClusterOptions::new(dir, Path::new("/"), &program);
        let zones = settings.zones;
        let mut cluster = Cluster::create(settings)?;
        for zone in 1..=zones {
            cluster.start_zone(zone)?;
        }
        let node = cluster
            .names()
            .next()
            .context("a cluster has a node")?
            .to_owned();
        let base = std::fs::read_to_string(&cluster.node(&node)?.config)?;
        let ports = [supervise::ports::free()?, supervise::ports::free()?];
        let host = |at: usize| -> anyhow::Result<Host> {
            let (name, own) = (NAMES[at], dir.join(NAMES[at]));
            std::fs::create_dir_all(&own)?;
            let peer_listen = format!("127.0.0.1:{}", ports[at]);
            let memory = PathBuf::from(format!(
                "/dev/shm/understudy-demo-{}-{name}",
                std::process::id()
            ));
            let kept = |line: &&str| {
                ["volume", "zones", "key"].contains(&line.split(' ').next().unwrap_or(""))
            };
            let shared: Vec<&str> = base.lines().filter(kept).collect();
            let text = format!(
                "name = \"{name}\"\n{}\n\n[vm]\nimage = \"{}\"\ndisk = \"{}\"\nmemory_dir = \"{}\"\nrun = \"{}\"\nmemory_mb = {}\n\
                 mac = \"52:54:00:77:00:02\"\naddress = \"{GUEST}/24\"\ntap = \"{name}\"\nbridge = \"br0\"\n\
                 peer_listen = \"{peer_listen}\"\npeer = \"127.0.0.1:{}\"\nepoch = \"{}ms\"\nprotection = \"{}\"\n",
                shared.join("\n"),
                image.display(),
                own.join("disk.raw").display(),
                memory.display(),
                own.join("run").display(),
                options.memory_mb,
                ports[1 - at],
                options.epoch.as_millis(),
                protection(options.protection),
            );
            let config = dir.join(format!("{name}-host.toml"));
            std::fs::write(&config, text)?;
            let log = dir.join(format!("{name}.log"));
            Ok(Host {
                config,
                log,
                peer_listen,
                memory,
                process: None,
            })
        };
        let mut stage = Stage {
            hosts: [host(0)?, host(1)?],
            _cluster: cluster,
            program,
            password,
            accelerator: Default::default(),
        };
        stage.init().await?;
        stage.restart(0)?;
        progress.say("the machine boots");
        let status = stage.wait_active(0).await?;
        stage.accelerator = (status.accelerator, status.accelerator_reason);
        stage.fill().await?;
        stage.restart(1)?;
        Ok(stage)
    }

    async fn init(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
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

    async fn fill(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + BOOTS_WITHIN;
        while let Err(error) = clients::connect(&self.password).await {
            anyhow::ensure!(
                Instant::now() < deadline,
                "the machine's database does not answer: {error:#}"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        clients::set_up(&self.password).await
    }

    /// Starts a host, as it was started first.
    pub fn restart(&mut self, at: usize) -> anyhow::Result<()> {
        let host = &mut self.hosts[at];
        let verb = if at == 0 { "run" } else { "protect" };
        let mut command = Command::new(&self.program);
        command
            .args([
                "--log",
                "info",
                "vm",
                verb,
                "--until-stdin-closes",
                "--config",
            ])
            .arg(&host.config);
        host.process = Some(Process::spawn(NAMES[at], command, &host.log)?);
        Ok(())
    }

    /// What a host says of itself.
    pub async fn status(&self, at: usize) -> Option<Status> {
        let asked = ask(&self.hosts[at].peer_listen, None, Question::Status);
        let told = tokio::time::timeout(Duration::from_secs(2), asked)
            .await
            .ok()?
            .ok()?
            .ok()?;
        serde_json::from_str(&told).ok()
    }

    fn check(&mut self) -> anyhow::Result<()> {
        let mut processes = self
            .hosts
            .iter_mut()
            .filter_map(|host| host.process.as_mut());
        processes.try_for_each(Process::check_running)
    }

    /// Waits until a host runs the machine.
    pub async fn wait_active(&mut self, at: usize) -> anyhow::Result<Status> {
        let deadline = Instant::now() + TAKES_OVER_WITHIN;
        loop {
            if let Some(status) = self.status(at).await.filter(|it| it.role == "active") {
                return Ok(status);
            }
            self.check()?;
            anyhow::ensure!(
                Instant::now() < deadline,
                "{} does not run the machine",
                NAMES[at]
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the machine has a current standby; which host runs it.
    pub async fn wait_protected(&mut self, progress: &Progress) -> anyhow::Result<usize> {
        let deadline = Instant::now() + PROTECTS_WITHIN;
        loop {
            for at in 0..2 {
                let status = self.status(at).await;
                if status.is_some_and(|it| it.protection.as_deref() == Some("protected")) {
                    progress.say(&format!(
                        "{} runs the machine, and {} protects it",
                        NAMES[at],
                        NAMES[1 - at]
                    ));
                    return Ok(at);
                }
            }
            self.check()?;
            anyhow::ensure!(Instant::now() < deadline, "the machine is not protected");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Kills all processes of a host.
    pub fn kill(&mut self, at: usize) -> anyhow::Result<Instant> {
        let mut process = self.hosts[at]
            .process
            .take()
            .context("the host does not run")?;
        let now = Instant::now();
        process.kill_all();
        Ok(now)
    }

    /// What `pg_amcheck` finds in the machine.
    pub async fn amcheck(&self) -> anyhow::Result<String> {
        let mut command = Command::new(cluster::programs::find(None)?.join("pg_amcheck"));
        command
            .args([
                "-h",
                GUEST,
                "-U",
                "postgres",
                "--all",
                "--install-missing",
                "--heapallindexed",
            ])
            .env("PGPASSWORD", &self.password);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        Ok(match output.status.success() {
            true => "OK".to_owned(),
            false => String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        })
    }
}
