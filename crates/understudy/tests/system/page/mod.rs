//! The status page, in a real browser.

mod browser;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use cluster::scratch::Scratch;
use serde_json::json;

use self::browser::{Browser, Tab};
use crate::stage::{Stage, TIMEOUT};

/// The page's program, and the cases for its pure functions.
const PAGE: &str = include_str!("../../../../operations/src/rest/ui/page.js");
const CASES: &str = include_str!("cases.js");

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn states_become_pictures() -> Result<()> {
    let scratch = Scratch::new("page-cases")?;
    let browser = Browser::start(scratch.path()).await?;
    let tab = browser.tab().await?;
    tab.value(PAGE).await?;
    tab.value(CASES).await?;
    let results = tab.value("results()").await?;
    ensure!(results["wrong"] == json!([]), "{:#}", results["wrong"]);
    ensure!(results["checked"].as_u64() > Some(40), "{results}");
    ensure!(tab.complaints().is_empty(), "{:?}", tab.complaints());
    drop(browser);
    scratch.succeed()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn the_page_follows_takeovers_zones_and_silence() -> Result<()> {
    let mut stage = Stage::set("page").await?;
    // What is looked at here is the page, not how fast a node without a recent seal replays.
    if let Some(churn) = stage.churn.take() {
        churn.stop().await;
    }
    let old = stage.cluster.wait_active(TIMEOUT).await?;
    let new = stage.cluster.names().find(|name| **name != old);
    let new = new.context("two nodes")?.to_owned();
    let browser = Browser::start(stage.path()).await?;
    // Any node shows it: this one is a standby.
    let tab = browser.tab().await?;
    tab.open(&page_of(&stage, &new)?).await?;
    let well = format!("All is well: {old} serves, {new} is ready to take over");
    tab.wait_text("h1", &well).await?;
    shows_all(&tab, &old, &new).await?;
    keeps_to_itself(&tab).await?;
    pictures(&tab, "before").await?;

    // The page stays open while another node becomes the active.
    let (_, killed) = stage.kill_active().await?;
    tab.wait_text("h1", &format!("{new} serves")).await?;
    let roles = format!("{old} → {new}");
    let change = tab.wait_text("#takeovers > li:first-child", &roles).await?;
    for phase in [
        "takeover: ",
        "detect ",
        "fence ",
        "log tail ",
        "replay ",
        "promote ",
    ] {
        ensure!(change.contains(phase), "no {phase:?} in {change}");
    }
    let bar = tab
        .value("document.querySelector('#takeovers .bar').offsetWidth")
        .await?;
    ensure!(bar.as_f64() > Some(3.0), "no bar: {bar}");
    tab.wait_text("#nodes", "was the active, no answer").await?;
    stage.outage_after(killed).await?;
    stage.cluster.start_node(&old)?;
    stage.cluster.wait_follows(&old, TIMEOUT).await?;
    let well = format!("All is well: {new} serves, {old} is ready to take over");
    tab.wait_text("h1", &well).await?;
    tab.wait_text("#charts", &format!("Lag of {old}")).await?;
    let marks = tab
        .value("document.querySelectorAll('#charts .change').length")
        .await?;
    ensure!(marks.as_u64() > Some(0), "no chart marks the takeover");
    stage.commits(100).await?;
    pictures(&tab, "after").await?;
    ensure!(tab.complaints().is_empty(), "{:?}", tab.complaints());

    // Zones, seen by a node whose commits wait for them; they count from 1 here, the page's from 0.
    stage.cluster.kill_zone(1).context("it runs")?;
    stage.cluster.kill_zone(2).context("it runs")?;
    tab.wait_text("h1", "Storage: only 1 of 3 answers").await?;
    pictures(&tab, "storage").await?;
    stage.cluster.start_zone(1)?;
    stage.cluster.start_zone(2)?;
    tab.wait_text("#zones", "Zone 0\nup").await?;
    tab.wait_text("h1", &format!("{new} serves")).await?;

    // Nobody is left: what is shown is marked as old.
    let server = stage.cluster.server(&new)?;
    connect(&server.config())
        .await?
        .batch_execute("CHECKPOINT")
        .await?;
    stage.cluster.kill_node(&old).context("it runs")?;
    stage.cluster.kill_node(&new).context("it runs")?;
    tab.wait_text("#stale", "Stale since ").await?;
    pictures(&tab, "stale").await?;
    // Another node answers before it serves.
    stage.cluster.start_node(&old)?;
    let other = browser.tab().await?;
    let url = page_of(&stage, &old)?;
    until(|| other.open(&url)).await?;
    other.wait_text("h1", "Nobody serves").await?;
    pictures(&other, "nobody").await?;
    other.wait_text("h1", &format!("{old} serves")).await?;
    stage.cluster.start_node(&new)?;
    stage.cluster.wait_follows(&new, TIMEOUT).await?;
    // The page that stayed open finds its node again.
    tab.wait_text("h1", &format!("All is well: {old} serves"))
        .await?;
    ensure!(tab.text("#stale").await?.is_empty(), "still stale");
    drop(browser);
    stage.commits(100).await?;
    stage.verify().await
}

/// Where a node's page is.
fn page_of(stage: &Stage, node: &str) -> Result<String> {
    let port = stage.cluster.node(node)?.rest_port;
    Ok(format!("http://127.0.0.1:{port}/ui"))
}

/// Tries until it works.
async fn until<F: Future<Output = Result<()>>>(attempt: impl Fn() -> F) -> Result<()> {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while let Err(error) = attempt().await {
        if tokio::time::Instant::now() >= deadline {
            return Err(error);
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    Ok(())
}

/// What a healthy cluster's page has: names, roles, numbers, pictures.
async fn shows_all(tab: &Tab<'_>, active: &str, standby: &str) -> Result<()> {
    let nodes = tab.wait_text("#nodes", "Warmth").await?;
    for wanted in [
        active,
        standby,
        "active, serving",
        "standby, warm",
        "Lag",
        "PostgreSQL",
    ] {
        ensure!(nodes.contains(wanted), "no {wanted:?} in {nodes}");
    }
    // The load commits all the time.
    until(|| async {
        let commits = tab.text("#charts .card:first-child .now").await?;
        let commits: f64 = commits.replace(',', "").parse()?;
        ensure!(commits > 0.0, "no commits");
        Ok(())
    })
    .await?;
    let charts = tab
        .wait_text("#charts", &format!("Lag of {standby}"))
        .await?;
    ensure!(
        charts.contains("Commits per second") && charts.contains("Log per second"),
        "{charts}"
    );
    let drawn = "document.querySelectorAll('#charts svg path.line').length >= 3";
    until(|| async {
        ensure!(
            tab.value(drawn).await? == json!(true),
            "not all charts are drawn"
        );
        Ok(())
    })
    .await?;
    tab.wait_text("#served", active).await?;
    let verdict = tab.text("#verdict").await?;
    ensure!(verdict.contains("Protected for"), "{verdict}");
    let zones = tab.wait_text("#zones", "blocks/s").await?;
    for wanted in ["Zone 0", "Zone 1", "Zone 2", "up", "Latency", "Used"] {
        ensure!(zones.contains(wanted), "no {wanted:?} in {zones}");
    }
    tab.wait_text("#takeovers", "created").await?;
    Ok(())
}

/// The page comes with a policy that forbids inline scripts and other servers, and lives with it.
async fn keeps_to_itself(tab: &Tab<'_>) -> Result<()> {
    let policy = tab
        .value("fetch('ui').then(a => a.headers.get('content-security-policy'))")
        .await?;
    let policy = policy.as_str().context("no policy")?;
    ensure!(
        policy.contains("script-src 'self'") && !policy.contains("unsafe"),
        "{policy}"
    );
    let slash = tab
        .value("fetch('ui/').then(a => [a.status, a.redirected, a.url])")
        .await?;
    ensure!(slash[0] == 200 && slash[1] == true, "{slash}");
    let since =
        "fetch('ui/state?after=99999999999999').then(a => a.json()).then(s => s.samples.length)";
    ensure!(
        tab.value(since).await? == json!(0),
        "old samples are sent again"
    );
    ensure!(tab.complaints().is_empty(), "{:?}", tab.complaints());
    Ok(())
}

/// Takes pictures into the directory that `UNDERSTUDY_PICTURES` names, if it does: for the
/// documentation, and to be looked at.
async fn pictures(tab: &Tab<'_>, name: &str) -> Result<()> {
    let Some(dir) = std::env::var_os("UNDERSTUDY_PICTURES").map(PathBuf::from) else {
        return Ok(());
    };
    std::fs::create_dir_all(&dir)?;
    for (width, scheme) in [(1200, "light"), (1200, "dark"), (390, "light")] {
        tab.size(width, 900).await?;
        tab.scheme(scheme).await?;
        let file = dir.join(format!("page-{name}-{width}-{scheme}.webp"));
        tab.picture(&file).await?;
    }
    tab.size(1200, 900).await?;
    tab.scheme("light").await
}
