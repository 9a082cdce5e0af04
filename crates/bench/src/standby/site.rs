//! Clusters of this benchmark: where standbys are far from every zone, and the active is not.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use coordination::channel::{self, Party, Request};
use node::config::Config;
use serde_json::Value;
use store::{Link, Network};
use volume::lsn::Lsn;

use super::Options;
use cluster::Cluster;
use cluster::clients::schema;

/// The active's name in every part.
pub(super) const ACTIVE: &str = "north";
/// The standby's.
pub(super) const STANDBY: &str = "south";
/// Long enough for a standby that reads one block at a time from far away.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1800);

/// Settings of a cluster whose data are many times larger than what its servers keep of them.
pub(super) fn settings(options: &Options, dir: &Path, standby: &[&str]) -> cluster::Options {
    let mut settings = cluster::Options::new(dir, &options.bin, &options.understudy);
    settings.network = Some(Network::default());
    settings.heartbeat = "wide".into();
    settings.memory = vec!["cache = \"32MiB\"".into(), "warm_every = \"0s\"".into()];
    settings.standby = standby.iter().map(|line| (*line).to_owned()).collect();
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    settings.parameters = vec![
        set("shared_buffers", "16MB"),
        set("max_connections", "60"),
        // Redo shall read by itself, or not at all.
        set("recovery_prefetch", "off"),
    ];
    settings
}

/// Creates a cluster, starts its zones and its first node, and fills the tables.
pub(super) async fn start(
    options: &Options,
    settings: cluster::Options,
    scale: u32,
) -> anyhow::Result<Cluster> {
    std::fs::create_dir_all(&settings.dir)
        .with_context(|| format!("cannot create {}", settings.dir.display()))?;
    let mut cluster = Cluster::create(settings)?;
    cluster.start_first().await?;
    schema::create(&options.bin, &cluster.server(ACTIVE)?, scale).await?;
    Ok(cluster)
}

/// So many milliseconds there and back from the standby's zone to every copy, and no distance between
/// the active and two of the copies: enough for its commits.
pub(super) fn far_standby(round_trip_ms: f64) -> Network {
    let one_way = Duration::from_secs_f64(round_trip_ms / 2000.0);
    let link = |zone: &str| Link {
        latency: one_way,
        ..Link::new("1", zone)
    };
    Network {
        links: ["0", "1", "2"].map(link).into(),
        ..Network::default()
    }
}

/// What a node says of itself; `None` if it does not answer.
pub(super) async fn ask(cluster: &Cluster, node: &str) -> anyhow::Result<Option<Value>> {
    let config = Config::load(&cluster.node(node)?.config)?;
    let me = Party::new(&config.cluster)?;
    let within = Duration::from_secs(2);
    let asked = channel::request(config.channel.advertised(), &me, Request::Status, within);
    Ok(asked.await.ok())
}

/// A position of the log in a node's answer.
pub(super) fn position(answer: &Value, name: &str) -> Lsn {
    serde_json::from_value(answer[name].clone()).unwrap_or_default()
}

/// The end of the active's log.
pub(super) async fn log_end(cluster: &Cluster) -> anyhow::Result<Lsn> {
    let end = cluster::wait::log_end(&cluster.server(ACTIVE)?).await;
    let end = end.context("the active does not answer")?;
    Ok(Lsn(u64::try_from(end).unwrap_or_default()))
}

/// Replaces a line of a node's configuration, which counts when it starts the next time.
pub(super) fn configure(
    cluster: &Cluster,
    node: &str,
    key: &str,
    line: &str,
) -> anyhow::Result<()> {
    let path = &cluster.node(node)?.config;
    let text = std::fs::read_to_string(path).context("cannot read a node's configuration")?;
    let lines = text.lines().map(|old| match old.starts_with(key) {
        true => line,
        false => old,
    });
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    std::fs::write(path, text).context("cannot write a node's configuration")
}
