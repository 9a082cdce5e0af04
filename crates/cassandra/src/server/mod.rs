//! A development cluster: real Cassandra nodes on this machine, each a data centre of its own.
//!
//! For trying out, for tests and for measurements; never for data that somebody needs. Blocking: call
//! it from a thread that may wait. Nodes are counted from 0, the node `n` is the data centre `dc<n+1>`.
//! Nothing outlives the process that started it, and a dropped [`Cluster`] is gone.

mod addresses;
mod artifacts;
mod error;
mod node;
mod settings;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

pub use addresses::MAX_NODES;
pub use artifacts::{Artifacts, VERSION};
pub use error::{Result, ServerError};

use addresses::Block;
use error::Tried;
use node::{Keeper, Node};
use settings::{Home, Place};

/// Where the clients' protocol listens.
pub const PORT: u16 = 9042;
/// How long a start may take on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(300);
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// Somewhere else than a loopback address for a node: for emulated distances.
#[derive(Debug, Clone)]
pub struct Site {
    /// The node's address there.
    pub address: IpAddr,
    /// Words in front of every command, such as `ip netns exec w1`.
    pub inside: Vec<String>,
}

/// What cluster is wanted.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where everything is kept. Used again if a cluster of as many nodes was there before.
    pub directory: PathBuf,
    /// How many nodes.
    pub nodes: u8,
    /// Java's heap of each node.
    pub heap_mib: u32,
    /// True if Java compiles lightly and only once what runs often. A node is quick soon after its start then, but
    /// not as quick as it would be after minutes of load.
    pub warms_soon: bool,
    /// Settings of `cassandra.yaml` that replace ours, in all nodes.
    pub settings: BTreeMap<String, String>,
    /// Where the nodes are, if not on loopback addresses; as many as nodes.
    pub sites: Vec<Site>,
}

impl Options {
    /// Three data centres with one node each.
    pub fn new(directory: impl Into<PathBuf>) -> Options {
        Options {
            directory: directory.into(),
            nodes: 3,
            heap_mib: 384,
            warms_soon: true,
            settings: BTreeMap::new(),
            sites: Vec::new(),
        }
    }

    /// The same with this setting in `cassandra.yaml`.
    #[must_use]
    pub fn with(mut self, setting: &str, value: &str) -> Options {
        self.settings.insert(setting.to_owned(), value.to_owned());
        self
    }

    /// The same without hinted handoff.
    #[must_use]
    pub fn without_hints(self) -> Options {
        self.with("hinted_handoff_enabled", "false")
    }
}

/// Nodes that run, or can be started again.
#[derive(Debug)]
pub struct Cluster {
    artifacts: Artifacts,
    options: Options,
    // Before the keeper: nodes are ended one by one, then the thread.
    nodes: Vec<Node>,
    keeper: Keeper,
    _block: Block,
}

impl Cluster {
    /// Fetches Cassandra if needed, starts all nodes, and waits until each sees all others.
    ///
    /// # Errors
    /// Something is missing (the message says what to install), or a node does not start.
    pub fn start(options: Options) -> Result<Cluster> {
        if !(1..=MAX_NODES).contains(&options.nodes) {
            let what = format!("{} nodes: use 1 to {MAX_NODES}", options.nodes);
            return Err(ServerError::Invalid(what));
        }
        if !options.sites.is_empty() && options.sites.len() != usize::from(options.nodes) {
            return Err(ServerError::Invalid("name a site for every node".into()));
        }
        let artifacts = Artifacts::get()?;
        let directory = &options.directory;
        std::fs::create_dir_all(directory).tried(|| format!("make {}", directory.display()))?;
        let directory =
            std::fs::canonicalize(directory).tried(|| format!("find {}", directory.display()))?;
        let block = reserve(&directory)?;
        let nodes = (0..options.nodes).map(|n| describe(&options, &directory, &block, n));
        let mut cluster = Cluster {
            nodes: nodes.collect(),
            keeper: Keeper::start()?,
            artifacts,
            options,
            _block: block,
        };
        let all: Vec<usize> = (0..cluster.nodes.len()).collect();
        cluster.start_nodes(&all)?;
        Ok(cluster)
    }

    /// Where clients connect, node by node.
    pub fn contact_points(&self) -> Vec<SocketAddr> {
        let addresses = self.nodes.iter().map(|n| n.place.address);
        addresses.map(|a| SocketAddr::new(a, PORT)).collect()
    }

    /// The data centres, node by node.
    pub fn data_centres(&self) -> Vec<String> {
        let places = self.nodes.iter().map(|n| &n.place);
        places.map(|p| p.data_centre.clone()).collect()
    }

    /// Where a node logs.
    ///
    /// # Errors
    /// There is no such node; so with all of the following.
    pub fn log(&self, node: usize) -> Result<PathBuf> {
        Ok(self.node(node)?.home.log())
    }

    /// A node's process, if it lives.
    ///
    /// # Errors
    /// There is no such node.
    pub fn pid(&self, node: usize) -> Result<Option<i32>> {
        Ok(self.node(node)?.pid().map(nix::unistd::Pid::as_raw))
    }

    /// Starts nodes that do not run, together, and waits until all running nodes see each other.
    ///
    /// # Errors
    /// One ends, or takes longer than five minutes.
    pub fn start_nodes(&mut self, nodes: &[usize]) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        let seeds: Vec<IpAddr> = self.nodes.iter().map(|n| n.place.address).collect();
        let logged: Vec<u64> = self.nodes.iter().map(Node::log_end).collect();
        for &number in nodes {
            let count = self.nodes.len();
            let node = self.nodes.get_mut(number);
            let node = node.ok_or_else(|| ServerError::no_node(number, count))?;
            if !node.runs() {
                settings::write(&node.home, &node.place, &seeds, &self.options.settings)?;
                node.start(&self.keeper, &self.artifacts)?;
            }
        }
        for &number in nodes {
            self.nodes[number].wait_ready(deadline)?;
        }
        self.wait_seen(nodes, &logged, deadline)?;
        self.wait_normal(deadline)
    }

    /// Waits until every node that runs has all of them in its ring: one that is seen to be up may not have
    /// told its data centre yet.
    fn wait_normal(&mut self, deadline: Instant) -> Result<()> {
        let running = (0..self.nodes.len()).filter(|n| self.nodes[*n].runs());
        let running: Vec<usize> = running.collect();
        for &one in &running {
            let in_ring = |said: &str| said.lines().filter(|line| line.starts_with("UN")).count();
            while in_ring(&self.tool(one, &["status"])?) < running.len() {
                if Instant::now() > deadline {
                    let what = format!("node {one} does not have all others in its ring");
                    return Err(error::failed(what, &self.nodes[one].home.log()));
                }
            }
        }
        Ok(())
    }

    /// Waits until the nodes that were just started see all that run, and are seen by them.
    fn wait_seen(&mut self, started: &[usize], logged: &[u64], deadline: Instant) -> Result<()> {
        let running: Vec<usize> = (0..self.nodes.len())
            .filter(|n| self.nodes[*n].runs())
            .collect();
        for &one in &running {
            for &other in running.iter().filter(|other| **other != one) {
                if !started.contains(&one) && !started.contains(&other) {
                    continue;
                }
                let peer = self.nodes[other].place.address;
                let since = (!started.contains(&one)).then_some(logged[one]);
                self.nodes[one].wait_sees(peer, since, deadline)?;
            }
        }
        Ok(())
    }

    /// Waits until a node has noticed that another one is gone.
    ///
    /// # Errors
    /// It has not within `timeout`.
    pub fn wait_convicted(&mut self, by: usize, gone: usize, timeout: Duration) -> Result<()> {
        let peer = self.node(gone)?.place.address;
        let deadline = Instant::now() + timeout;
        self.node_mut(by)?.wait_convicts(peer, deadline)
    }

    /// Kills a node with SIGKILL.
    ///
    /// # Errors
    /// There is no such node.
    pub fn kill(&mut self, node: usize) -> Result<()> {
        self.node_mut(node)?.end(Signal::SIGKILL, STOP_PATIENCE)
    }

    /// Stops a node in good order.
    ///
    /// # Errors
    /// It does not end.
    pub fn stop(&mut self, node: usize) -> Result<()> {
        self.node_mut(node)?.end(Signal::SIGTERM, STOP_PATIENCE)
    }

    /// Freezes a node (SIGSTOP).
    ///
    /// # Errors
    /// There is no such node.
    pub fn pause(&mut self, node: usize) -> Result<()> {
        self.node_mut(node)?.signal(Signal::SIGSTOP)
    }

    /// Lets a frozen node go on.
    ///
    /// # Errors
    /// There is no such node.
    pub fn resume(&mut self, node: usize) -> Result<()> {
        self.node_mut(node)?.signal(Signal::SIGCONT)
    }

    /// Runs `nodetool` with these arguments against a node; returns what it prints.
    ///
    /// # Errors
    /// It fails.
    pub fn tool(&self, node: usize, arguments: &[&str]) -> Result<String> {
        self.node(node)?.tool(&self.artifacts, arguments)
    }

    /// The directory that everything is in.
    pub fn directory(&self) -> &Path {
        &self.options.directory
    }

    /// Fails if a node has ended by itself.
    ///
    /// # Errors
    /// One has; with the end of its log.
    pub fn check_running(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            if node.pid().is_some() && !node.runs() {
                let what = format!("the node of {} ended", node.place.data_centre);
                return Err(error::failed(what, &node.home.log()));
            }
        }
        Ok(())
    }

    fn node(&self, node: usize) -> Result<&Node> {
        let count = self.nodes.len();
        let found = self.nodes.get(node);
        found.ok_or_else(|| ServerError::no_node(node, count))
    }

    fn node_mut(&mut self, node: usize) -> Result<&mut Node> {
        let count = self.nodes.len();
        let found = self.nodes.get_mut(node);
        found.ok_or_else(|| ServerError::no_node(node, count))
    }
}

/// The block of addresses that the directory's nodes had before (they remember their peers' addresses),
/// or a free one.
fn reserve(directory: &Path) -> Result<Block> {
    let path = directory.join("block");
    let before = std::fs::read_to_string(&path).ok();
    let block = Block::reserve(before.and_then(|text| text.trim().parse().ok()))?;
    std::fs::write(&path, block.number().to_string())
        .tried(|| format!("write {}", path.display()))?;
    Ok(block)
}

/// What nodes want of Java besides what all have.
fn java(options: &Options) -> Vec<String> {
    let heap = format!("-Xmx{}m", options.heap_mib);
    let light = options
        .warms_soon
        .then(|| "-XX:TieredStopAtLevel=1".to_owned());
    std::iter::once(heap).chain(light).collect()
}

fn describe(options: &Options, directory: &Path, block: &Block, number: u8) -> Node {
    let site = options.sites.get(usize::from(number));
    let place = Place {
        address: site.map_or_else(|| block.address(number), |site| site.address),
        data_centre: format!("dc{}", number + 1),
        token: settings::token(number, options.nodes),
        jmx_port: block.jmx_port(number),
    };
    let home = Home(directory.join(&place.data_centre));
    let inside = site.map_or_else(Vec::new, |site| site.inside.clone());
    Node::new(place, home, inside, java(options))
}
