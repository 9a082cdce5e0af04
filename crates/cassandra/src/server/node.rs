//! One node: a Java process, started, watched through its log, stopped, killed.
//!
//! Invariant: a node does not outlive the [`Keeper`] that started it, however this process ends. The
//! kernel's signal at a parent's death is sent when the *thread* that forked ends, so all nodes are
//! started by one thread that lives as long as the cluster.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::artifacts::Artifacts;
use super::error::{Result, ServerError, Tried, failed};
use super::settings::{Home, Place};

const READY: &str = "Starting listening for CQL clients";
const POLL: Duration = Duration::from_millis(50);

type Order = (Command, mpsc::Sender<std::io::Result<Child>>);

/// The thread that starts processes.
#[derive(Debug)]
pub(super) struct Keeper {
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn start() -> Result<Keeper> {
        let (orders, received) = mpsc::channel::<Order>();
        let work = move || {
            for (mut command, answer) in received {
                // Nobody waits any more: the child is dropped, and killed when this thread ends.
                let _ = answer.send(command.spawn());
            }
        };
        let thread = std::thread::Builder::new()
            .name("cassandra-keeper".into())
            .spawn(work)
            .tried(|| "start a thread".into())?;
        Ok(Keeper {
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    fn spawn(&self, command: Command) -> Result<Child> {
        let what = || "start java".to_owned();
        let (answer, answered) = mpsc::channel();
        let gone = || std::io::Error::other("the thread that starts nodes is gone");
        let orders = self.orders.as_ref().ok_or_else(gone).tried(what)?;
        orders
            .send((command, answer))
            .map_err(|_| gone())
            .tried(what)?;
        answered.recv().map_err(|_| gone()).tried(what)?.tried(what)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It panics nowhere.
            let _ = thread.join();
        }
    }
}

/// A node, running or not.
#[derive(Debug)]
pub(super) struct Node {
    pub place: Place,
    pub home: Home,
    /// Commands in front of `java`, to start it somewhere else (`ip netns exec ...`).
    pub inside: Vec<String>,
    /// Further options of Java.
    java: Vec<String>,
    child: Option<Child>,
    /// Where the log of the present life begins.
    log_start: u64,
}

impl Node {
    pub fn new(place: Place, home: Home, inside: Vec<String>, java: Vec<String>) -> Node {
        Node {
            place,
            home,
            inside,
            java,
            child: None,
            log_start: 0,
        }
    }

    /// Starts it; it is ready later.
    pub fn start(&mut self, keeper: &Keeper, artifacts: &Artifacts) -> Result<()> {
        let path = self.home.log();
        let log = File::options().create(true).append(true).open(&path);
        let log = log.tried(|| format!("write {}", path.display()))?;
        self.log_start = log
            .metadata()
            .tried(|| format!("read {}", path.display()))?
            .len();
        let errors = log
            .try_clone()
            .tried(|| format!("share {}", path.display()))?;
        let mut command = self.command(artifacts);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.child = Some(keeper.spawn(command)?);
        tracing::debug!(address = %self.place.address, pid = ?self.pid(), "node started");
        Ok(())
    }

    fn command(&self, artifacts: &Artifacts) -> Command {
        let mut words: Vec<String> = self.inside.clone();
        words.extend(["setpriv", "--pdeathsig", "KILL"].map(str::to_owned));
        if nix::unistd::geteuid().is_root() {
            // Otherwise the node locks its whole heap into memory: three times what it needs.
            words.extend(["--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock"].map(str::to_owned));
        }
        let mut command = Command::new(&words[0]);
        let file = |name: &str| format!("file://{}", self.home.conf(name).display());
        command
            .args(&words[1..])
            .arg(&artifacts.java)
            .arg("-Xms64m")
            .args(&self.java)
            .arg(format!("@{}", self.home.conf("jvm.options").display()))
            .arg(format!("-javaagent:{}", artifacts.agent.display()))
            .arg(format!("-Dcassandra.config={}", file("cassandra.yaml")))
            .arg(format!(
                "-Dcassandra-rackdc.properties={}",
                file("cassandra-rackdc.properties")
            ))
            .arg(format!(
                "-Dcassandra.storagedir={}",
                self.home.0.join("data").display()
            ))
            .arg(format!(
                "-Dlogback.configurationFile={}",
                self.home.conf("logback.xml").display()
            ))
            .arg(format!(
                "-Dcassandra.jmx.local.port={}",
                self.place.jmx_port
            ))
            .arg(format!(
                "-Djava.io.tmpdir={}",
                self.home.temporary().display()
            ))
            .args(["-cp", &format!("{}/*", artifacts.jars.display())])
            .arg("org.apache.cassandra.service.CassandraDaemon")
            .current_dir(&self.home.0)
            // A terminal's Ctrl-C is for us.
            .process_group(0);
        command
    }

    /// Runs nodetool against this node; returns what it prints.
    pub fn tool(&self, artifacts: &Artifacts, arguments: &[&str]) -> Result<String> {
        let conf = |name: &str| self.home.conf(name).display().to_string();
        let mut words: Vec<String> = self.inside.clone();
        words.push(artifacts.java.display().to_string());
        let output = Command::new(&words[0])
            .args(&words[1..])
            .args(["-Xmx128m", "-XX:TieredStopAtLevel=1"])
            .arg(format!("@{}", conf("jvm.options")))
            .arg(format!(
                "-Dcassandra.config=file://{}",
                conf("cassandra.yaml")
            ))
            .arg(format!(
                "-Dlogback.configurationFile={}",
                conf("logback.xml")
            ))
            .arg("-Dunderstudy.loglevel=WARN")
            .args(["-cp", &format!("{}/*", artifacts.jars.display())])
            .args([
                "org.apache.cassandra.tools.NodeTool",
                "-h",
                "127.0.0.1",
                "-p",
            ])
            .arg(self.place.jmx_port.to_string())
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .tried(|| "run nodetool".into())?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            let what = format!("nodetool {} failed: {said}{why}", arguments.join(" "));
            return Err(failed(what, &self.home.log()));
        }
        Ok(said)
    }

    pub fn pid(&self) -> Option<Pid> {
        // Linux process ids are below 2^22.
        self.child.as_ref().map(|c| Pid::from_raw(c.id() as i32))
    }

    /// True if its process lives.
    pub fn runs(&mut self) -> bool {
        let Some(child) = &mut self.child else {
            return false;
        };
        matches!(child.try_wait(), Ok(None))
    }

    /// What it has logged since `from`, a place in its log.
    fn logged_since(&self, from: u64) -> Result<String> {
        let path = self.home.log();
        let what = || format!("read {}", path.display());
        let mut file = File::open(&path).tried(what)?;
        file.seek(SeekFrom::Start(from)).tried(what)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).tried(what)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The end of its log now.
    pub fn log_end(&self) -> u64 {
        std::fs::metadata(self.home.log()).map_or(0, |m| m.len())
    }

    /// Waits until it takes clients.
    pub fn wait_ready(&mut self, deadline: Instant) -> Result<()> {
        let from = self.log_start;
        self.wait_for(deadline, "takes no clients", |node| {
            Ok(node.logged_since(from)?.contains(READY))
        })
    }

    /// Waits until it says that `peer` is up, and has not said otherwise since.
    pub fn wait_sees(&mut self, peer: IpAddr, since: Option<u64>, deadline: Instant) -> Result<()> {
        let from = since.unwrap_or(self.log_start).max(self.log_start);
        self.wait_for(deadline, &format!("does not see {peer}"), |node| {
            Ok(sees(&node.logged_since(from)?, peer) == Some(true))
        })
    }

    /// Waits until its last word about `peer` is that it is down.
    pub fn wait_convicts(&mut self, peer: IpAddr, deadline: Instant) -> Result<()> {
        let from = self.log_start;
        self.wait_for(deadline, &format!("still sees {peer}"), |node| {
            Ok(sees(&node.logged_since(from)?, peer) == Some(false))
        })
    }

    fn wait_for(
        &mut self,
        deadline: Instant,
        otherwise: &str,
        mut done: impl FnMut(&Node) -> Result<bool>,
    ) -> Result<()> {
        let name = self.place.data_centre.clone();
        loop {
            if done(self)? {
                return Ok(());
            }
            if !self.runs() {
                return Err(failed(
                    format!("the node of {name} ended"),
                    &self.home.log(),
                ));
            }
            if Instant::now() > deadline {
                return Err(failed(
                    format!("the node of {name} {otherwise}"),
                    &self.home.log(),
                ));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends a signal to it, if it lives.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if !self.runs() {
            return Ok(());
        }
        match self.pid() {
            Some(pid) => kill(pid, signal).tried(|| format!("send {signal} to {pid}")),
            None => Ok(()),
        }
    }

    /// Ends it: at once with `SIGKILL`, in good order otherwise.
    pub fn end(&mut self, signal: Signal, timeout: Duration) -> Result<()> {
        self.signal(signal)?;
        if signal != Signal::SIGKILL {
            // One that is paused would never hear of it.
            self.signal(Signal::SIGCONT)?;
        }
        let deadline = Instant::now() + timeout;
        while self.runs() {
            if Instant::now() > deadline {
                let name = &self.place.data_centre;
                let what = format!("the node of {name} does not end");
                return Err(failed(what, &self.home.log()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.child = None;
        Ok(())
    }
}

/// What the last word about a peer in a log says; none if there is none.
fn sees(log: &str, peer: IpAddr) -> Option<bool> {
    let about = format!("InetAddress /{peer}:7000 is now ");
    let (_, state) = log.lines().rev().find_map(|line| line.split_once(&about))?;
    Some(state.starts_with("UP"))
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Err(error) = self.end(Signal::SIGKILL, Duration::from_secs(10)) {
            tracing::warn!(%error, "a node was not ended");
        }
    }
}

impl ServerError {
    /// For arguments that name a node there is not.
    pub(super) fn no_node(node: usize, of: usize) -> ServerError {
        ServerError::Invalid(format!(
            "no node {node}: they are counted from 0 to {}",
            of - 1
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_about_a_peer_counts() {
        let peer = "127.90.1.1".parse().unwrap();
        let up = "INFO InetAddress /127.90.1.1:7000 is now UP\n";
        let down = "INFO InetAddress /127.90.1.1:7000 is now DOWN\n";
        let other = "INFO InetAddress /127.90.1.11:7000 is now UP\n";
        assert_eq!(sees(other, peer), None);
        assert_eq!(sees(&format!("{up}{other}"), peer), Some(true));
        assert_eq!(sees(&format!("{up}{down}{other}"), peer), Some(false));
        assert_eq!(sees(&format!("{up}{down}{up}"), peer), Some(true));
    }
}
