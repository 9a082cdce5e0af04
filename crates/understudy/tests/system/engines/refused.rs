//! What cannot be, and servers that misbehave: a clear word each time, and nothing lost.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cluster::ports;

use super::ask;
use super::stage::{Stage, wait_for};

fn expect(said: &str, words: &[&str]) -> Result<()> {
    let missing = words.iter().find(|word| !said.contains(**word));
    ensure!(missing.is_none(), "{missing:?} is not said: {said}");
    Ok(())
}

/// Another server, other pages, PostgreSQL, or a volume that is not empty: all refused, and the database is as before.
// hazard: ENGINE-3
#[test]
#[ignore = "system test: make test-system"]
fn a_volume_of_another_server_is_refused() -> Result<()> {
    let mut stage = Stage::new("another-server")?;
    let port = ports::free()?;
    let lines = stage.service_lines(port, "DELETE");
    let good = stage.configure("v", "north", &lines)?;
    stage.init(&good)?;
    stage.start(&good)?;
    wait_for("the service", || ask(port, "count").is_ok())?;
    ensure!(ask(port, "put 1")? == "ok");
    stage.stop_nodes(Duration::from_secs(60))?;
    let said = stage.refusal("init", &good)?;
    expect(&said, &["holds a database already", "another volume name"])?;

    let maria = stage.configure("v", "maria", "kind = \"mariadb\"\nrun_as = \"nobody\"\n")?;
    let said = stage.refusal("node", &maria)?;
    expect(
        &said,
        &["holds a database of python3", "configured for MariaDB"],
    )?;
    let pages = stage.configure("v", "pages", &format!("{lines}page_size = \"8KiB\"\n"))?;
    let said = stage.refusal("node", &pages)?;
    expect(&said, &["pages of 4096 bytes", "configured for 8192"])?;
    let bin = cluster::programs::find(None)?;
    let lines_of_postgres = format!("[postgres]\nbin = \"{}\"\n", bin.display());
    let postgres = stage.configure("v", "pg", &lines_of_postgres)?;
    for command in ["node", "init"] {
        let said = stage.refusal(command, &postgres)?;
        expect(&said, &["holds a database of python3", "another volume"])?;
    }
    let nothing = stage.configure("empty", "north", &lines)?;
    let said = stage.refusal("node", &nothing)?;
    expect(&said, &["no volume empty"])?;

    stage.start(&good)?;
    wait_for("the service again", || ask(port, "count").is_ok())?;
    ensure!(ask(port, "has 1")? == "yes");
    stage.succeed()
}

/// A server does not open what a newer one wrote; a newer one does, and from then on the older one is refused.
// hazard: ENGINE-4
#[test]
#[ignore = "system test: make test-system"]
fn an_older_server_does_not_open_what_a_newer_one_wrote() -> Result<()> {
    let mut stage = Stage::new("older")?;
    let port = ports::free()?;
    let config = |node: &str, version: &str| {
        let version = format!("version = [\"/bin/echo\", \"service {version}\"]\n");
        let lines = stage.service_lines(port, "DELETE") + &version;
        stage.configure("v", node, &lines)
    };
    let (first, older) = (config("first", "2.1.7")?, config("older", "2.0.99")?);
    let (newer, silent) = (config("newer", "3.0.1")?, config("silent", "unknown")?);
    stage.init(&first)?;
    let said = stage.refusal("node", &older)?;
    expect(
        &said,
        &[
            "2.1.7 has run on the volume",
            "2.0.99 is installed",
            "install 2.1.7 or newer",
        ],
    )?;
    let said = stage.refusal("node", &silent)?;
    expect(&said, &["prints no version"])?;

    // Nobody serves, and the newer one takes the database.
    stage.start(&newer)?;
    wait_for("the newer service", || ask(port, "count").is_ok())?;
    ensure!(ask(port, "put 1")? == "ok");
    let said = stage.said(&newer);
    expect(&said, &["a newer version of python3 opens the database"])?;
    ensure!(stage.status(&newer)?["engine"]["version"] == "3.0.1");
    let said = stage.refusal("node", &first)?;
    expect(
        &said,
        &["3.0.1 has run on the volume", "2.1.7 is installed"],
    )?;
    stage.succeed()
}

/// The node says why, gives the volume back, and another one serves.
// hazard: ENGINE-5
#[test]
#[ignore = "system test: make test-system"]
fn a_server_that_does_not_become_ready_is_given_up() -> Result<()> {
    let mut stage = Stage::new("not-ready")?;
    let port = ports::free()?;
    let lines = stage.service_lines(port, "DELETE");
    let good = stage.configure("v", "south", &lines)?;
    let deaf = lines.replace("\"connects\", \"{listen}:{port}\"", "\"/bin/false\"");
    ensure!(deaf != lines);
    let bad = stage.configure("v", "north", &format!("{deaf}ready_within = \"2s\"\n"))?;
    stage.init(&good)?;
    stage.start(&bad)?;
    wait_for("a word of the reason", || {
        stage.said(&bad).contains("was not ready within 2s")
    })?;
    expect(
        &stage.said(&bad),
        &["server.log", "raise engine.ready_within"],
    )?;
    // `status` says it, too, while nobody serves.
    wait_for("a status with the reason", || {
        let status = stage.status(&bad);
        status.is_ok_and(|status| status.to_string().contains("was not ready within 2s"))
    })?;
    // Two nodes on one port: the bad one gives it up with the volume.
    stage.start(&good)?;
    wait_for("the other node", || {
        let status = stage.status(&good);
        status.is_ok_and(|status| status["active"] == "south")
    })?;
    ensure!(ask(port, "put 1")? == "ok");
    stage.succeed()
}

/// It is killed when its time is over; what it acknowledged is there afterwards.
// hazard: ENGINE-5
#[test]
#[ignore = "system test: make test-system"]
fn a_server_that_ignores_its_stop_signal_is_killed() -> Result<()> {
    let mut stage = Stage::new("deaf")?;
    let port = ports::free()?;
    let lines =
        stage.service_lines(port, "WAL") + "stop_within = \"2s\"\nstop_signal = \"SIGHUP\"\n";
    // The service ignores SIGHUP.
    let config = stage.configure("v", "north", &lines)?;
    stage.init(&config)?;
    stage.start(&config)?;
    wait_for("the service", || ask(port, "count").is_ok())?;
    for n in 0..20 {
        ensure!(ask(port, &format!("put {n}"))? == "ok");
    }
    let began = Instant::now();
    stage.stop_nodes(Duration::from_secs(60))?;
    ensure!(
        began.elapsed() >= Duration::from_secs(2),
        "it was not waited for"
    );
    expect(
        &stage.said(&config),
        &["does not stop; it is killed", "SIGHUP"],
    )?;
    stage.start(&config)?;
    wait_for("the service again", || ask(port, "count").is_ok())?;
    ensure!(ask(port, "count")? == "20" && ask(port, "check")? == "ok");
    stage.succeed()
}
