//! Sessions against a model of servers that freeze, fail, are started again and promote.
//!
//! One seed gives one history: clients of two proxies with random transactions through sessions in both pool modes, over
//! connections that break at any byte; now and then a proxy hands them over to another process. [`check`] judges it: no strong read misses an earlier commit, no
//! session goes back, no outcome is told wrongly, nothing is done twice, nothing stays unanswered.

mod check;
mod client;
mod drive;
mod faults;
mod server;
#[cfg(test)]
mod tests;

use crate::core::choice::NoLoad;
use std::sync::{Arc, LazyLock};

use bytes::BytesMut;
use dax::ids::Epoch;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::{Coverage, Outcome};
use volume::lsn::Lsn;

use super::flaw::Flaw;
use super::outcome::Horizon;
use super::session::{Context, Out, PoolMode, Rules, Server, Session};
use super::sql::{Catalog, Function, Statements};
use super::topology::{News, Standby, Topology};
use super::version::ReadMode;

use client::Client;
use server::{Backend, Commit, Node};

/// Steps of one history before faults end.
const STEPS: u32 = 2500;
/// Steps in which everybody must come to an end then.
const PATIENCE: u32 = 60_000;

/// The kinds of messages, to be printed.
fn tags(bytes: &[u8]) -> String {
    let mut tags = String::new();
    let mut at = 0;
    while let Ok(Some((tag, len))) = protocol::frame::head(&bytes[at..]) {
        tags.push(char::from(tag));
        at = (at + len).min(bytes.len());
    }
    tags
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

/// What texts do is the same in all histories: each is parsed once.
static STATEMENTS: LazyLock<Arc<Statements>> = LazyLock::new(Arc::default);

/// A connection between a session and a server.
pub struct Wire {
    node: usize,
    /// Which life of the node's server process it is to.
    life: u32,
    is_alive: bool,
    to_server: BytesMut,
    backend: Backend,
    input: BytesMut,
    rest: usize,
    server: Option<Box<Server>>,
}

/// What a proxy knows of functions: that `f` writes, or that it does not, as it was before; and that `g` may, which it
/// never does. `s` sets something.
fn functions(writes: bool) -> Catalog {
    let function = |name: &str, is_volatile| Function {
        name: name.into(),
        is_volatile,
        ..Function::default()
    };
    let all = [
        function("f", writes),
        function("g", true),
        function("s", true),
    ];
    let mut catalog = Catalog::new(all).believing();
    catalog.operators.calling.insert("<+>".into());
    catalog.custom_settings = vec!["a.b".into()];
    catalog
}

/// One of the proxies that the clients connect to.
pub struct Proxy {
    topology: Topology,
    /// News that has not arrived.
    untold: Vec<News>,
    /// It hears of nothing before this step.
    deaf_until: u64,
    idle: Vec<usize>,
    last_position: Lsn,
    catalog: Catalog,
    /// It is told which run of a server is the active's.
    hears_of_runs: bool,
}

impl Proxy {
    fn new(hears_of_runs: bool) -> Proxy {
        Proxy {
            topology: Topology::default(),
            untold: Vec::new(),
            deaf_until: 0,
            idle: Vec::new(),
            last_position: Lsn::ZERO,
            catalog: functions(false),
            hears_of_runs,
        }
    }
}

pub struct World {
    rng: SmallRng,
    rules: Rules,
    statements: Arc<Statements>,
    proxies: Vec<Proxy>,
    nodes: Vec<Node>,
    log: Vec<Commit>,
    epoch: u32,
    active: usize,
    wires: Vec<Option<Wire>>,
    clients: Vec<Client>,
    takeovers: u32,
    faults_end: bool,
    now: u64,
    trace: bool,
}

impl World {
    fn new(seed: u64, flaw: Option<Flaw>, trace: bool) -> World {
        let mut rng = SmallRng::seed_from_u64(seed);
        let read = match rng.random_range(0..5) {
            0 => ReadMode::Active,
            1 => ReadMode::Strong,
            2 | 3 => ReadMode::Session,
            _ => ReadMode::Any,
        };
        let mode = if rng.random_bool(0.5) {
            PoolMode::Session
        } else {
            PoolMode::Transaction
        };
        let rules = Rules {
            mode,
            read,
            flaw,
            max_prepared: 2,
            ..Rules::default()
        };
        let nodes = vec![Node::active(1), Node::standby(), Node::standby()];
        let mut world = World {
            rng,
            rules,
            statements: Arc::clone(&STATEMENTS),
            proxies: vec![Proxy::new(true), Proxy::new(false)],
            nodes,
            log: Vec::new(),
            epoch: 1,
            active: 0,
            wires: Vec::new(),
            clients: Vec::new(),
            takeovers: 0,
            faults_end: false,
            now: 0,
            trace,
        };
        for proxy in &mut world.proxies {
            proxy.topology.hear(News::ActiveIs {
                epoch: Epoch(1),
                address: "0".into(),
                run: proxy.hears_of_runs.then(|| world.nodes[0].run()),
                horizons: Vec::new(),
            });
        }
        for id in 0..3 {
            world.clients.push(Client::new(id, &mut world.rng));
        }
        world
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:5} {}", self.now, what());
        }
    }

    /// The proxy of a client: what one has heard of, another may not know yet.
    fn proxy(&mut self, client: usize) -> &mut Proxy {
        let proxies = self.proxies.len();
        &mut self.proxies[client % proxies]
    }

    /// The positions that standbys would report now.
    fn standbys(&self) -> Vec<Standby> {
        let nodes = self.nodes.iter().enumerate();
        nodes
            .filter(|(_, node)| node.is_standby())
            .map(|(at, node)| Standby {
                name: at.to_string().into(),
                address: at.to_string().into(),
                replayed: Lsn(node.visible as u64),
                run: Some(node.run()),
                is_spare: false,
            })
            .collect()
    }

    /// One history.
    fn run(seed: u64, flaw: Option<Flaw>, trace: bool) -> Outcome {
        let ended = World::new(seed, flaw, trace).play();
        let (mut coverage, broken) = match ended {
            Ok(coverage) => (coverage, None),
            Err(Broken(what)) => (Coverage::default(), Some(what)),
        };
        coverage.one("histories");
        Outcome {
            coverage,
            broken,
            trace: 0,
        }
    }

    fn play(mut self) -> Result<Coverage, Broken> {
        for _ in 0..STEPS {
            self.step()?;
        }
        self.faults_end = true;
        self.heal();
        for _ in 0..PATIENCE {
            if self.clients.iter().all(Client::is_done) {
                return self.judge();
            }
            self.step()?;
        }
        let stuck: Vec<String> = self.clients.iter().filter_map(Client::stuck).collect();
        Err(Broken(format!("not everybody is answered: {stuck:?}")))
    }

    fn step(&mut self) -> Result<(), Broken> {
        self.now += 1;
        let client = self.rng.random_range(0..self.clients.len());
        match self.rng.random_range(0..20) {
            0..=5 => self.client_acts(client),
            6..=9 => self.serve_wire(client),
            10..=13 => self.deliver(client),
            14 | 15 => self.answer_effects(client),
            16 => self.move_standbys(),
            17 | 18 => self.tell_news(),
            _ if !self.faults_end => self.fault(),
            _ => {}
        }
        self.check_client(client)
    }

    /// Lets a session do something, and does what it asks for.
    fn with(&mut self, id: usize, act: impl FnOnce(&mut Session, &Context<'_>, &mut Out)) {
        let statements = self.statements.clone();
        let proxy = self.proxy(id);
        let (topology, catalog) = (proxy.topology.clone(), proxy.catalog.clone());
        let mut out = Out::default();
        let cx = Context {
            rules: &self.rules,
            statements: &statements,
            catalog: &catalog,
            topology: &topology,
            load: &NoLoad,
        };
        act(&mut self.clients[id].session, &cx, &mut out);
        if self.trace
            && (!out.client.is_empty() || !out.server.is_empty() || !out.effects.is_empty())
        {
            let (now, standing) = (self.now, self.clients[id].session.standing());
            let (client, server) = (tags(&out.client), tags(&out.server));
            let effects = &out.effects;
            println!(
                "{now:5} client {id} is told {client:?}, its server {server:?}, {effects:?}: {standing}"
            );
        }
        self.clients[id].received.extend_from_slice(&out.client);
        for effect in out.effects {
            self.effect(id, effect);
        }
        if !out.server.is_empty()
            && let Some(wire) = self.clients[id].wire
            && let Some(wire) = self.wires[wire].as_mut()
        {
            wire.to_server.extend_from_slice(&out.server);
        }
    }

    fn horizon_now(&self) -> Horizon {
        let last = self.log.iter().map(|commit| commit.xid).max().unwrap_or(0);
        Horizon(last + 1)
    }
}
