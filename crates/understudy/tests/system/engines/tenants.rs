//! Many small databases, each a volume of its own, in the same three zones.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::ports;
use cluster::process::Process;
use cluster::remnants::detach_mounts;
use cluster::scratch::Scratch;

use super::{ask, service, understudy};
use crate::stage::program;

const TENANTS: usize = 50;
/// Rows that each tenant has before and after the takeover.
const ROWS: u32 = 10;
const WITHIN: Duration = Duration::from_secs(240);

/// A database with two nodes, one of which serves.
struct Tenant {
    port: u16,
    configs: [PathBuf; 2],
}

/// Everything that runs, and is gone when this is dropped.
struct Stage {
    scratch: Option<Scratch>,
    path: PathBuf,
    zones: Vec<u16>,
    processes: Vec<Process>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Nodes before zones.
        while self.processes.pop().is_some() {}
        detach_mounts(&self.path);
    }
}

impl Stage {
    fn new() -> Result<Stage> {
        let scratch = Scratch::new("tenants")?;
        let mut stage = Stage {
            path: scratch.path().to_owned(),
            scratch: Some(scratch),
            zones: Vec::new(),
            processes: Vec::new(),
        };
        for number in 1..=3 {
            let port = ports::free()?;
            stage.zones.push(port);
            let data = stage.path.join(format!("zone-{number}"));
            let mut command = Command::new(program());
            command.args([
                "store",
                "--listen",
                &format!("127.0.0.1:{port}"),
                "--until-stdin-closes",
            ]);
            command.arg("--data").arg(data);
            stage.spawn(&format!("zone-{number}"), command)?;
        }
        Ok(stage)
    }

    /// Ends everything, and looks that nothing is left.
    fn succeed(mut self) -> Result<()> {
        let scratch = self.scratch.take().context("a directory")?;
        drop(self);
        scratch.succeed()
    }

    fn spawn(&mut self, name: &str, command: Command) -> Result<()> {
        let log = self.path.join(format!("{name}.log"));
        self.processes.push(Process::spawn(name, command, &log)?);
        Ok(())
    }

    fn tenant(&self, number: usize) -> Result<Tenant> {
        let port = ports::free()?;
        let configs = [
            self.configure(number, "north", port)?,
            self.configure(number, "south", port)?,
        ];
        let output = understudy(&[
            "init",
            "--engine",
            "command",
            "--config",
            &configs[0].to_string_lossy(),
        ])?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "tenant {number}: {said}");
        Ok(Tenant { port, configs })
    }

    fn configure(&self, number: usize, node: &str, port: u16) -> Result<PathBuf> {
        let zones: Vec<String> = self
            .zones
            .iter()
            .map(|port| format!("\"127.0.0.1:{port}\""))
            .collect();
        let path = self.path.join(format!("t{number}-{node}.toml"));
        // Half of them map their log's index into memory.
        let mode = ["DELETE", "WAL"][number % 2];
        let text = format!(
            "name = \"{node}\"\nvolume = \"t{number}\"\nzones = [{}]\ndata = \"{}\"\n\
             [channel]\nlisten = \"127.0.0.1:{}\"\n[rest]\nlisten = \"127.0.0.1:{}\"\n\
             [memory]\ncache = \"1MiB\"\npending = \"4MiB\"\n\
             [engine]\nkind = \"command\"\nrun_as = \"nobody\"\nport = {port}\nprivate = [\"lock\"]\n\
             command = [\"/usr/bin/python3\", \"{}\", \"{{data}}\", \"{port}\", \"{mode}\"]\n\
             ready = [\"connects\", \"127.0.0.1:{port}\"]\n",
            zones.join(", "),
            self.path.join(format!("t{number}-{node}")).display(),
            ports::free()?,
            ports::free()?,
            self.service().display(),
        );
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// The service's program where every user can read it.
    fn service(&self) -> PathBuf {
        self.path.join("service.py")
    }

    fn start(&mut self, tenant: &Tenant, node: usize) -> Result<()> {
        let config = &tenant.configs[node];
        let mut command = Command::new(program());
        command
            .args(["node", "--until-stdin-closes", "--config"])
            .arg(config);
        self.spawn(&stem(config), command)
    }
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + WITHIN;
    while !done() {
        ensure!(Instant::now() < deadline, "{what} not within {WITHIN:?}");
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[test]
#[ignore = "system test: make test-system"]
fn fifty_databases_in_the_same_zones_lose_nothing_when_their_machine_is_killed() -> Result<()> {
    let mut stage = Stage::new()?;
    std::fs::copy(service(), stage.service())?;
    let tenants: Vec<Tenant> = (0..TENANTS)
        .map(|number| stage.tenant(number))
        .collect::<Result<_>>()?;
    let zones = stage.processes.len();
    for tenant in &tenants {
        stage.start(tenant, 0)?;
    }
    for (number, tenant) in tenants.iter().enumerate() {
        wait_for(&format!("tenant {number} serves"), || {
            ask(tenant.port, "count").is_ok()
        })?;
        for n in 0..ROWS {
            ensure!(ask(tenant.port, &format!("put {n}"))? == "ok");
        }
    }
    // The machine of all of them is lost at once.
    for node in stage.processes.drain(zones..).collect::<Vec<_>>() {
        drop(node);
    }
    for tenant in &tenants {
        stage.start(tenant, 1)?;
    }
    for (number, tenant) in tenants.iter().enumerate() {
        wait_for(&format!("tenant {number} serves again"), || {
            ask(tenant.port, "count").is_ok()
        })?;
        for n in 0..ROWS {
            ensure!(
                ask(tenant.port, &format!("has {n}"))? == "yes",
                "tenant {number} lost row {n}"
            );
        }
        ensure!(ask(tenant.port, &format!("put {ROWS}"))? == "ok");
        ensure!(
            ask(tenant.port, "count")? == (ROWS + 1).to_string(),
            "tenant {number}"
        );
        let check = ask(tenant.port, "check").context("no check")?;
        ensure!(check == "ok", "tenant {number}: {check}");
    }
    stage.succeed()
}
