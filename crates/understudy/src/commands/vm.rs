//! `understudy vm`: virtual machines protected by checkpoints.

mod web;

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use async_trait::async_trait;
use coordination::config::{ClusterConfig, check_keys};
use coordination::{service, tier};
use dax::storage::Storage;
use dax::tls::Tls;
use serde_json::Value;
use vm::driver::config::Config;
use vm::driver::{Open, Question, RunError, Status, ask};
use vm::image::{Create, Database, ImageError, Progress, create};

use crate::cli::{self, VmAsking, VmDatabase};
use crate::exit::{Code, Failure};

/// Opens the volume of a configuration.
struct Tier(ClusterConfig);

#[async_trait]
impl Open for Tier {
    async fn open(&self) -> dax::Result<Arc<dyn Storage>> {
        tier::connect(&self.0, self.0.name.as_str()).await
    }
}

/// Runs what was asked for.
pub async fn run(command: cli::Vm) -> anyhow::Result<Code> {
    match command {
        cli::Vm::Create(args) => make(args).await,
        cli::Vm::Init(args) => init(&args.config).await,
        cli::Vm::Run(args) => serve(args.host, !args.standby).await,
        cli::Vm::Protect(args) => {
            warn_of_verb("protect", "run --standby");
            serve(args, false).await
        }
        cli::Vm::Status(args) => status(&args).await,
        cli::Vm::Switchover(args) => fail_over(&args).await,
        cli::Vm::Failover(args) => {
            warn_of_verb("failover", "switchover");
            fail_over(&args).await
        }
        cli::Vm::StartFromDisk(args) => start_from_disk(&args.config).await,
        cli::Vm::Reload(args) => reload(&args).await,
        cli::Vm::History(args) => history(&args).await,
        cli::Vm::Metrics(args) => metrics(&args.config).await,
    }
}

/// Says the new name of a command.
fn warn_of_verb(old: &str, new: &str) {
    tracing::warn!("\"vm {old}\" has a new name: use \"vm {new}\"");
}

/// What the file says of the cluster, and of the machine.
fn load(file: &Path) -> anyhow::Result<(ClusterConfig, Config)> {
    let advice =
        "Write [vm], and below it image, disk, run, mac, address, tap, peer_listen and peer.";
    let check = |text: &str| check_keys(text, &[("", &["vm"])]);
    let (cluster, table) = super::process::load_table(file, check, "vm", advice)?;
    let config =
        Config::parse(&table).map_err(|error| Failure::new(Code::Usage, error.to_string()))?;
    // Whoever reaches it is taken for the other host.
    cluster.check_protected("vm.peer_listen", &config.peer_listen.to_string().parse()?)?;
    Ok((cluster, config))
}

async fn make(args: cli::VmCreate) -> anyhow::Result<Code> {
    let file = &args.password_file;
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the password from {}", file.display()))?;
    let wanted = Create {
        directory: args.image,
        database: match args.database {
            VmDatabase::Postgresql => Database::PostgreSql,
            VmDatabase::Mariadb => Database::MariaDb,
        },
        password: text.trim_end_matches('\n').to_owned().into(),
        disk_bytes: args.disk_mb << 20,
        hostname: args.hostname,
        packages: args.package,
    };
    let tell = |progress| match progress {
        Progress::Step(step) => eprintln!("{step}"),
        Progress::Detail(text) => tracing::debug!("{text}"),
    };
    let image = tokio::select! {
        made = create(&wanted, tell) => made.map_err(explain_image)?,
        // What there is of it is removed.
        () = super::process::interrupted() => return Ok(Code::Interrupted),
    };
    let (version, kernel) = (&image.manifest.version, &image.manifest.kernel);
    println!(
        "{} has {version} on Linux {kernel}",
        wanted.directory.display()
    );
    Ok(Code::Ok)
}

fn explain_image(error: ImageError) -> anyhow::Error {
    match error.hint().map(str::to_owned) {
        Some(hint) => Failure::new(Code::Unavailable, error.to_string())
            .advise(hint)
            .into(),
        None => error.into(),
    }
}

async fn init(file: &Path) -> anyhow::Result<Code> {
    let (cluster, _) = load(file)?;
    tier::create_volume(&cluster, &cluster.volume_settings()).await?;
    println!(
        "volume {} is made; it says who runs the machine",
        cluster.volume
    );
    Ok(Code::Ok)
}

async fn serve(args: cli::VmHost, first: bool) -> anyhow::Result<Code> {
    let (cluster, mut config) = load(&args.file.config)?;
    config.first = first;
    let asked_to_end = super::process::asked_to_end(args.until_stdin_closes);
    let (name, tls) = (cluster.name.clone(), cluster.tls()?);
    service::ready();
    let file = args.file.config;
    if let Some(address) = config.rest {
        let listener = tokio::net::TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen at {address}"))?;
        let hosts = Hosts::new(&cluster, &config)?;
        tokio::spawn(web::serve(hosts, listener));
    }
    let reread = Box::new(move || match load(&file) {
        Ok((_, config)) => Ok(config),
        Err(error) => Err(format!("{error:#}")),
    });
    let opener = Box::new(Tier(cluster));
    let ran = vm::driver::run(config, reread, name, opener, tls, asked_to_end).await;
    match ran {
        Ok(()) => Ok(Code::Ok),
        Err(error) => Err(explain(error)),
    }
}

fn explain(error: RunError) -> anyhow::Error {
    match error.hint().map(str::to_owned) {
        Some(hint) => Failure::new(Code::Unavailable, error.to_string())
            .advise(hint)
            .into(),
        None => error.into(),
    }
}

/// The two hosts of a machine as a configuration names them. The file is read once, when a command or a service starts.
pub(super) struct Hosts {
    /// This host's address, then the other one's.
    addresses: [String; 2],
    tls: Option<Tls>,
}

impl Hosts {
    fn load(file: &Path) -> anyhow::Result<Hosts> {
        let (cluster, config) = load(file)?;
        Hosts::new(&cluster, &config)
    }

    fn new(cluster: &ClusterConfig, config: &Config) -> anyhow::Result<Hosts> {
        Ok(Hosts {
            addresses: [config.peer_listen.to_string(), config.peer.clone()],
            tls: cluster.tls()?,
        })
    }

    /// Answer of one host, counted as in `addresses`.
    async fn ask(
        &self,
        host: usize,
        question: Question,
    ) -> std::io::Result<Result<String, String>> {
        ask(&self.addresses[host], self.tls.as_ref(), question).await
    }

    /// Answer of this host, which must give one.
    async fn tell(&self, question: Question) -> anyhow::Result<Result<String, String>> {
        let told = self.ask(0, question).await;
        told.map_err(|error| {
            let text = format!("the host cannot be reached: {error}");
            Failure::new(Code::Unavailable, text).into()
        })
    }

    /// Answer of this host, if it gives one.
    async fn first(&self, question: Question) -> Option<String> {
        self.ask(0, question).await.ok()?.ok()
    }

    /// Answers of both; nothing from one that cannot be reached.
    async fn ask_both(&self, question: Question) -> [Option<Result<String, String>>; 2] {
        let (first, second) = tokio::join!(self.ask(0, question), self.ask(1, question));
        [first.ok(), second.ok()]
    }

    async fn statuses(&self) -> anyhow::Result<Vec<Option<Status>>> {
        let told = self.ask_both(Question::Status).await;
        told.into_iter()
            .map(|told| match told {
                Some(Ok(json)) => Ok(Some(serde_json::from_str(&json)?)),
                _ => Ok(None),
            })
            .collect()
    }
}

async fn status(args: &VmAsking) -> anyhow::Result<Code> {
    let statuses = Hosts::load(&args.file.config)?.statuses().await?;
    match args.json {
        true => println!("{}", serde_json::to_string(&statuses)?),
        false => print!("{}", table(&statuses)),
    }
    Ok(match statuses.iter().any(Option::is_some) {
        true => Code::Ok,
        false => Code::Unavailable,
    })
}

/// What a host is, in words.
fn state_of(status: &Status) -> String {
    match &status.protection {
        Some(protection) => format!("{}, {protection}", status.role),
        None => status.role.clone(),
    }
}

fn table(statuses: &[Option<Status>]) -> String {
    let mut out = format!(
        "{:<16} {:<24} {:>6} {:>11} {:>10} {:>12} {:>9}\n",
        "host", "state", "epoch", "checkpoint", "pause", "bytes each", "runs by"
    );
    for status in statuses {
        let Some(status) = status else {
            out.push_str("(one host cannot be reached)\n");
            continue;
        };
        let state = state_of(status);
        let epoch = status
            .epoch
            .map_or_else(|| "-".to_owned(), |epoch| epoch.to_string());
        let each = status
            .stats
            .sent_bytes
            .checked_div(status.stats.epochs)
            .unwrap_or(0);
        out.push_str(&format!(
            "{:<16} {state:<24} {epoch:>6} {:>11} {:>7.2} ms {each:>12} {:>9}\n",
            status.name, status.checkpoint, status.stats.pause_ms_p50, status.accelerator
        ));
        if let Some(trouble) = &status.trouble {
            out.push_str(&format!("  {trouble}\n"));
        }
    }
    out
}

async fn fail_over(args: &VmAsking) -> anyhow::Result<Code> {
    let hosts = Hosts::load(&args.file.config)?;
    let is_active = |status: &Option<Status>| status.as_ref().is_some_and(|it| it.role == "active");
    let at = hosts
        .statuses()
        .await?
        .iter()
        .position(is_active)
        .ok_or_else(|| {
            Failure::new(Code::Unavailable, "no host runs the machine")
                .advise("Look at both with understudy vm status. A standby takes over by itself.")
        })?;
    let told = hosts.ask(at, Question::Failover).await?;
    let told = told.map_err(|why| Failure::new(Code::Refused, why))?;
    match args.json {
        true => println!("{told}"),
        false => println!("the standby has taken over"),
    }
    Ok(Code::Ok)
}

async fn start_from_disk(file: &Path) -> anyhow::Result<Code> {
    let hosts = Hosts::load(file)?;
    hosts
        .tell(Question::StartFromDisk)
        .await?
        .map_err(|why| Failure::new(Code::Refused, why))?;
    println!("the machine is started from this host's disk: see understudy vm status");
    Ok(Code::Ok)
}

async fn reload(args: &VmAsking) -> anyhow::Result<Code> {
    let hosts = Hosts::load(&args.file.config)?;
    let told = hosts.tell(Question::Reload).await?;
    let told = told.map_err(|why| Failure::new(Code::Usage, why))?;
    let waits = serde_json::from_str::<Value>(&told)?["waits_for_the_next_start"] == true;
    match (args.json, waits) {
        (true, _) => println!("{told}"),
        (false, false) => println!("the configuration is read"),
        (false, true) => println!("the configuration is read; some of it waits for the next start"),
    }
    Ok(Code::Ok)
}

async fn history(args: &VmAsking) -> anyhow::Result<Code> {
    let hosts = Hosts::load(&args.file.config)?;
    let told = hosts.ask_both(Question::History).await;
    let told = told.into_iter().flatten().find_map(Result::ok);
    let told = told.ok_or_else(|| Failure::new(Code::Unavailable, "no host can be reached"))?;
    if args.json {
        println!("{told}");
        return Ok(Code::Ok);
    }
    let entries: Vec<Value> = serde_json::from_str(&told)?;
    for entry in entries {
        let seconds = entry["unix_ms"].as_u64().unwrap_or(0) / 1000;
        let active = entry["active"].as_str().unwrap_or("?");
        let standby = match entry["standby"].as_str() {
            Some(standby) => format!("with {standby} as its standby"),
            None => "alone".to_owned(),
        };
        println!(
            "epoch {}: {active} {standby}, since second {seconds}",
            entry["epoch"]
        );
    }
    Ok(Code::Ok)
}

async fn metrics(file: &Path) -> anyhow::Result<Code> {
    match Hosts::load(file)?.first(Question::Metrics).await {
        Some(text) => {
            print!("{text}");
            Ok(Code::Ok)
        }
        None => Err(Failure::new(Code::Unavailable, "the host cannot be reached").into()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file of a host with this `peer_listen`, and its zone beside it.
    pub fn file_of_host(peer_listen: &str) -> anyhow::Result<tempfile::NamedTempFile> {
        let file = tempfile::NamedTempFile::new()?;
        let text = format!(
            "name = \"north\"\nvolume = \"vm\"\nzones = [\"127.0.0.1:1\"]\n[vm]\nimage = \"/i\"\ndisk = \"/d\"\n\
             run = \"/r\"\nmac = \"52:54:00:77:00:02\"\naddress = \"10.0.0.9/24\"\ntap = \"vm0\"\n\
             peer_listen = \"{peer_listen}\"\npeer = \"127.0.0.1:2\"\n"
        );
        std::fs::write(file.path(), text)?;
        Ok(file)
    }

    /// Anybody could say that he is the other host, and be sent the machine's memory.
    // hazard: VM-35
    #[test]
    fn a_host_that_other_machines_reach_needs_certificates() -> anyhow::Result<()> {
        assert!(load(file_of_host("127.0.0.1:7400")?.path()).is_ok());
        for address in ["10.0.0.1:7400", "0.0.0.0:7400", "[::]:7400"] {
            let refused = load(file_of_host(address)?.path()).err();
            let refused = refused.context("it is let in")?.to_string();
            assert!(
                refused.contains("vm.peer_listen") && refused.contains("[tls]"),
                "{refused}"
            );
        }
        Ok(())
    }
}
