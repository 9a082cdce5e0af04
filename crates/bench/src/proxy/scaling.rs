//! How reads scale with standbys: Figure 3 of dynamic multiversioning (`Scaling of ... read mixes`), with strong reads.
//!
//! All database servers have the same slice of a processor. Interactions that change something run on the active, all
//! others on standbys that have replayed what was committed before the read came, so that nobody can tell them from the
//! active.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use cluster::Cluster;
use cluster::clients::schema::Server;
use cluster::process::family;
use serde::Serialize;

use super::{ACTIVE, Options, bookshop, start};
use crate::peers::footprint::cpu_seconds;
use crate::rates::{Logs, Rate};
use crate::slice::Slice;
use crate::statistics::Sample;

/// One mix with one number of standbys.
#[derive(Debug, Clone, Serialize)]
pub struct Scaling {
    /// Updates in a hundred interactions.
    pub updates: u32,
    /// Standbys besides the active.
    pub standbys: u16,
    /// Interactions a second.
    pub tps: Sample,
    /// By those of the active alone, medians.
    pub speedup: f64,
    /// The middle latency in milliseconds.
    pub p50_ms: Sample,
    /// Processor time of the active's server for an interaction, in microseconds.
    pub active_cpu_us: f64,
    /// The same of all standbys' servers together.
    pub standbys_cpu_us: f64,
}

/// The servers are slow on purpose: a strong read waits longer for a standby than usual, and few connections, each of
/// which costs a server as much as some interactions, are enough.
pub(super) const READS: [&str; 4] = [
    "pool_mode = \"transaction\"",
    "pool_size = 10",
    "[reads]\nmode = \"strong\"",
    "wait = \"5s\"",
];
/// Before the runs of a mix count: each connection plans each statement some times before it keeps a plan.
const WARM_UP_SECONDS: u32 = 15;

/// A bookshop on servers with slices.
pub(super) struct Shop {
    pub cluster: Cluster,
    /// The server of each node.
    slices: Vec<(String, Slice)>,
    scripts: PathBuf,
}

impl Shop {
    /// Opens one in a new directory of this name.
    pub async fn open(options: &Options, name: &str, standbys: u16) -> anyhow::Result<Shop> {
        let dir = options.dir.join(name);
        let standbys = (1..=standbys).map(|n| format!("standby{n}"));
        let nodes: Vec<String> = std::iter::once(ACTIVE.to_owned()).chain(standbys).collect();
        let cluster = start(options, &dir, &nodes).await?;
        bookshop::create(&cluster.server(ACTIVE)?, options.books).await?;
        let mut shop = Shop {
            cluster,
            slices: Vec::new(),
            scripts: dir.join("scripts"),
        };
        std::fs::create_dir(&shop.scripts)?;
        for node in &nodes {
            shop.limit(node, options.slice_percent)?;
        }
        Ok(shop)
    }

    /// Gives a node's database server its slice.
    pub fn limit(&mut self, node: &str, percent: u32) -> anyhow::Result<()> {
        self.slices.retain(|(name, _)| name != node);
        let slice = Slice::create(node, percent)?;
        slice.add(&family(self.cluster.postmaster(node)?))?;
        self.slices.push((node.to_owned(), slice));
        Ok(())
    }

    /// Stops standbys until so many are left.
    pub fn shrink(&mut self, standbys: u16) -> anyhow::Result<()> {
        let is_beyond = |name: &String| {
            let number = name
                .strip_prefix("standby")
                .and_then(|n| n.parse::<u16>().ok());
            number.is_some_and(|number| number > standbys)
        };
        let beyond: Vec<String> = self
            .slices
            .iter()
            .map(|(name, _)| name.clone())
            .filter(is_beyond)
            .collect();
        for name in beyond {
            self.cluster.stop_node(&name, Duration::from_secs(60))?;
            self.slices.retain(|(other, _)| *other != name);
        }
        Ok(())
    }

    /// pgbench's arguments for a mix.
    pub fn arguments(&self, options: &Options, updates: u32) -> anyhow::Result<Vec<String>> {
        let mut arguments = bookshop::arguments(&self.scripts, options.books, updates)?;
        arguments.extend([
            "--protocol=prepared".to_owned(),
            "--no-vacuum".to_owned(),
            // A thread for each: pgbench waits for a statement to be prepared with its whole thread, and if that waits
            // for a connection of the pool, all are held by transactions that the same thread would go on with.
            format!("--jobs={}", options.shoppers),
            format!("--client={}", options.shoppers),
        ]);
        Ok(arguments)
    }

    /// What the servers used so far: the active's, and all others together.
    fn cpu(&mut self) -> anyhow::Result<(f64, f64)> {
        let (mut active, mut others) = (0.0, 0.0);
        for (name, _) in &self.slices {
            let used = family(self.cluster.postmaster(name)?);
            let used: f64 = used.into_iter().filter_map(cpu_seconds).sum();
            match name == ACTIVE {
                true => active += used,
                false => others += used,
            }
        }
        Ok((active, others))
    }
}

/// Measures every mix with every number of standbys, the most first, and with none.
pub(super) async fn measure(
    options: &Options,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<Scaling>> {
    let mut numbers = options.standbys.clone();
    numbers.push(0);
    numbers.sort_unstable();
    numbers.dedup();
    let most = *numbers.last().context("there is one number at least")?;
    say(&format!(
        "a bookshop with {} books and {most} standbys",
        options.books
    ));
    let mut shop = Shop::open(options, "scaling", most).await?;
    let mut all = Vec::new();
    for &standbys in numbers.iter().rev() {
        shop.shrink(standbys)?;
        for &updates in &options.updates {
            let scaling = mix(options, &mut shop, updates, standbys).await?;
            say(&format!(
                "{updates} updates in 100, {standbys} standbys: {:.0} interactions/s; {:.0} us of the active, {:.0} us of standbys",
                scaling.tps.median, scaling.active_cpu_us, scaling.standbys_cpu_us
            ));
            all.push(scaling);
        }
    }
    shop.cluster.check_running()?;
    shop.cluster.shutdown();
    all.reverse();
    add_speedups(&mut all);
    Ok(all)
}

fn add_speedups(all: &mut [Scaling]) {
    let alone: Vec<(u32, f64)> = all
        .iter()
        .filter(|one| one.standbys == 0)
        .map(|one| (one.updates, one.tps.median))
        .collect();
    for one in all {
        let base = alone.iter().find(|(updates, _)| *updates == one.updates);
        let speedup = base.map_or(0.0, |(_, base)| {
            one.tps.median / base.max(f64::MIN_POSITIVE)
        });
        one.speedup = (speedup * 100.0).round() / 100.0;
    }
}

async fn mix(
    options: &Options,
    shop: &mut Shop,
    updates: u32,
    standbys: u16,
) -> anyhow::Result<Scaling> {
    // One for each mix, so that its counts are those of the mix.
    let mut proxy = shop.cluster.start_proxy(&READS).await?;
    let server = proxy.server().clone();
    let arguments = shop.arguments(options, updates)?;
    run(options, shop, &server, &arguments, WARM_UP_SECONDS).await?;
    let before = shop.cpu()?;
    let mut rates: Vec<Rate> = Vec::new();
    for _ in 0..options.rounds {
        rates.push(run(options, shop, &server, &arguments, options.seconds).await?);
    }
    let after = shop.cpu()?;
    proxy.check_running()?;
    let interactions: f64 = rates.iter().map(|rate| rate.transactions as f64).sum();
    let of = |value: fn(&Rate) -> f64| Sample::of(rates.iter().map(value).collect());
    Ok(Scaling {
        updates,
        standbys,
        tps: of(|rate| rate.tps),
        speedup: 0.0,
        p50_ms: of(|rate| rate.p50_ms),
        active_cpu_us: (after.0 - before.0) * 1e6 / interactions,
        standbys_cpu_us: (after.1 - before.1) * 1e6 / interactions,
    })
}

async fn run(
    options: &Options,
    shop: &Shop,
    server: &Server,
    arguments: &[String],
    seconds: u32,
) -> anyhow::Result<Rate> {
    let arguments = [arguments, &[format!("--time={seconds}")]].concat();
    Logs::create(&shop.scripts.join("logs"))?
        .run(&options.bin, server, &arguments)
        .await
}
