//! What clients see of a major upgrade: a member of the new version is filled, follows, is compared, and becomes primary.

use anyhow::Context;
use cluster::clients::clock::Clock;
use cluster::clients::history::Outcome;
use cluster::clients::schema;
use cluster::clients::session::connect;
use cluster::mirror::{Mirror, Options as MirrorOptions};
use serde::Serialize;

use super::transfer::longest_pause_ms;
use super::ways::parameters;
use super::{Options, WITHIN, start_clients};

/// Results of one major upgrade.
#[derive(Debug, Clone, Serialize)]
pub struct Upgrade {
    /// The version before.
    pub from: String,
    /// The version after.
    pub to: String,
    /// Transactions that failed for a client, or whose outcome it was not told, at the switchover and at the way back.
    pub client_errors: u64,
    /// What clients were told then, by SQLSTATE.
    pub errors: std::collections::BTreeMap<String, u64>,
    /// Commits that clients were told of.
    pub acknowledged: u64,
    /// The longest time without a commit around the switchover.
    pub pause_ms: f64,
    /// The same around the way back.
    pub pause_back_ms: f64,
    /// True if the members were equal before the switchover, after it, and after the way back.
    pub equal: bool,
}

/// How long clients run before and after each step.
const BETWEEN: std::time::Duration = std::time::Duration::from_secs(5);

pub(super) async fn measure(options: &Options, say: &impl Fn(&str)) -> anyhow::Result<Upgrade> {
    let to = options.upgrade_bin.clone();
    let to = to.context("which version is upgraded to? Say --upgrade-bin DIR.")?;
    let dir = options.dir.join("upgrade");
    std::fs::create_dir(&dir)?;
    let mut settings = MirrorOptions::new(&dir, &options.bin, &options.understudy);
    settings.bins[1] = to;
    settings.parameters = parameters();
    let mut mirror = Mirror::prepare(settings).await?;
    schema::create(&options.bin, &mirror.member(0), options.scale).await?;
    mirror.start(WITHIN).await?;
    let versions = [version(&mirror, 0).await?, version(&mirror, 1).await?];
    say(&format!(
        "from {} to {}, under load",
        versions[0], versions[1]
    ));
    let clock = Clock::start();
    let clients = start_clients(&mirror, options.scale, clock);
    let mut equal = true;
    let mut moments = Vec::new();
    for to in [1, 0] {
        tokio::time::sleep(BETWEEN).await;
        mirror.settle(WITHIN).await?;
        equal &= verify(&mirror).await?;
        let began = clock.now();
        mirror.run(0, &["switchover"]).await?;
        mirror.wait_serves(to, WITHIN).await?;
        mirror.settle(WITHIN).await?;
        tokio::time::sleep(BETWEEN).await;
        moments.push((began, clock.now()));
    }
    equal &= verify(&mirror).await?;
    let errors = clients.errors();
    let history = clients.stop().await;
    let pauses: Vec<f64> = moments
        .iter()
        .map(|(since, until)| longest_pause_ms(&history, *since, *until))
        .collect();
    let [from, to] = versions;
    let upgrade = Upgrade {
        from,
        to,
        client_errors: history.count(Outcome::Refused) + history.count(Outcome::Unknown),
        errors,
        acknowledged: history.count(Outcome::Acknowledged),
        pause_ms: pauses[0],
        pause_back_ms: pauses[1],
        equal,
    };
    tokio::task::block_in_place(|| mirror.shutdown());
    say(&format!("{upgrade:?}"));
    Ok(upgrade)
}

async fn verify(mirror: &Mirror) -> anyhow::Result<bool> {
    let verdict = mirror.verdict().await?;
    Ok(verdict.context("the members cannot be compared")?["equal"] == true)
}

async fn version(mirror: &Mirror, at: usize) -> anyhow::Result<String> {
    let client = connect(&mirror.member(at).config()).await?;
    Ok(client.query_one("SHOW server_version", &[]).await?.get(0))
}
