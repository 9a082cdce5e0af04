//! Three zones, and nodes whose configurations a test writes itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::ports;
use cluster::process::{Process, last_lines};
use cluster::remnants::detach_mounts;
use cluster::scratch::Scratch;
use serde_json::Value;

use super::{service, understudy};
use crate::stage::program;

const WITHIN: Duration = Duration::from_secs(240);

/// Everything that runs, and is gone when this is dropped.
pub(super) struct Stage {
    scratch: Option<Scratch>,
    path: PathBuf,
    zone_ports: Vec<u16>,
    zones: Vec<Process>,
    nodes: Vec<Process>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.nodes.clear();
        self.zones.clear();
        detach_mounts(&self.path);
    }
}

impl Stage {
    /// Starts the zones.
    pub(super) fn new(test: &str) -> Result<Stage> {
        let scratch = Scratch::new(test)?;
        let mut stage = Stage {
            path: scratch.path().to_owned(),
            scratch: Some(scratch),
            zone_ports: Vec::new(),
            zones: Vec::new(),
            nodes: Vec::new(),
        };
        for number in 1..=3 {
            let port = ports::free()?;
            stage.zone_ports.push(port);
            let name = format!("zone-{number}");
            let mut command = Command::new(program());
            command
                .args(["store", "--until-stdin-closes", "--listen"])
                .arg(format!("127.0.0.1:{port}"))
                .arg("--data")
                .arg(stage.path.join(&name));
            stage
                .zones
                .push(Process::spawn(&name, command, &stage.log(&name))?);
        }
        // Every user can read it there.
        std::fs::copy(service(), stage.path.join("service.py"))?;
        Ok(stage)
    }

    /// Ends everything, and looks that nothing is left.
    pub(super) fn succeed(mut self) -> Result<()> {
        let scratch = self.scratch.take().context("a directory")?;
        drop(self);
        scratch.succeed()
    }

    /// The lines of `[engine]` for the service of the tests.
    pub(super) fn service_lines(&self, port: u16, mode: &str) -> String {
        format!(
            "kind = \"command\"\nrun_as = \"nobody\"\nport = {port}\n\
             command = [\"/usr/bin/python3\", \"{}\", \"{{data}}\", \"{{port}}\", \"{mode}\"]\n\
             ready = [\"connects\", \"{{listen}}:{{port}}\"]\n",
            self.path.join("service.py").display()
        )
    }

    /// Writes a node's configuration; `server` is `[engine]` without its head, or another table.
    pub(super) fn configure(&self, volume: &str, node: &str, server: &str) -> Result<PathBuf> {
        let zones = self.zone_ports.iter();
        let zones: Vec<String> = zones.map(|port| format!("\"127.0.0.1:{port}\"")).collect();
        let name = format!("{volume}-{node}");
        let path = self.path.join(format!("{name}.toml"));
        let head = if server.starts_with('[') {
            ""
        } else {
            "[engine]\n"
        };
        let text = format!(
            "name = \"{node}\"\nvolume = \"{volume}\"\nzones = [{}]\ndata = \"{}\"\n\
             [channel]\nlisten = \"127.0.0.1:{}\"\n[rest]\nlisten = \"127.0.0.1:{}\"\n\
             [memory]\ncache = \"1MiB\"\npending = \"4MiB\"\n{head}{server}",
            zones.join(", "),
            self.path.join(&name).display(),
            ports::free()?,
            ports::free()?,
        );
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// Makes the database.
    pub(super) fn init(&self, config: &Path) -> Result<()> {
        let output = understudy(&["init", "--config", &config.to_string_lossy()])?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {said}", config.display());
        Ok(())
    }

    /// What a command says that must fail.
    pub(super) fn refusal(&self, command: &str, config: &Path) -> Result<String> {
        let output = understudy(&[command, "--config", &config.to_string_lossy()])?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success(), "{command} does not fail: {said}");
        Ok(said)
    }

    /// Starts a node.
    pub(super) fn start(&mut self, config: &Path) -> Result<()> {
        let name = config.file_stem().unwrap_or_default().to_string_lossy();
        let mut command = Command::new(program());
        command
            .args(["node", "--until-stdin-closes", "--config"])
            .arg(config);
        let node = Process::spawn(&name, command, &self.log(&name))?;
        self.nodes.push(node);
        Ok(())
    }

    /// The machine of all nodes is lost.
    pub(super) fn kill_nodes(&mut self) {
        self.nodes.clear();
    }

    /// Asks all nodes to end.
    pub(super) fn stop_nodes(&mut self, within: Duration) -> Result<()> {
        for mut node in self.nodes.drain(..) {
            ensure!(
                node.terminate(within),
                "a node did not stop within {within:?}"
            );
        }
        Ok(())
    }

    fn log(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.log"))
    }

    /// The end of what a node logged.
    pub(super) fn said(&self, config: &Path) -> String {
        let name = config.file_stem().unwrap_or_default().to_string_lossy();
        last_lines(&self.log(&name), 60)
    }

    /// What `status --json` prints.
    pub(super) fn status(&self, config: &Path) -> Result<Value> {
        let output = understudy(&["status", "--json", "--config", &config.to_string_lossy()])?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// Waits until something is so.
pub(super) fn wait_for(what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + WITHIN;
    while !done() {
        ensure!(Instant::now() < deadline, "{what} not within {WITHIN:?}");
        sleep(Duration::from_millis(100));
    }
    Ok(())
}
