//! Other servers than PostgreSQL on volumes: MariaDB under kills, many small databases in the same zones, and what is
//! refused.

mod refused;
mod servers;
mod stage;
mod tenants;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::scratch::Scratch;
use serde_json::Value;

use crate::stage::program;

/// A first step that CI takes each time: two kills, nothing lost. More by hand: `understudy demo --engine mariadb
/// --kills 20`.
#[test]
#[ignore = "system test: make test-system"]
fn mariadb_loses_nothing_when_its_machine_is_killed() -> Result<()> {
    watch("mariadb", 2, &["--duration", "12s"]).map(drop)
}

/// Kills in the middle of writes of many pages, without InnoDB's doublewrite buffer. Every page is looked at before
/// the server recovers. `TORN_KILLS=20` repeats it as often.
// hazard: ENGINE-1
#[test]
#[ignore = "system test: make test-system"]
fn pages_are_not_torn_when_the_machine_is_killed_in_large_writes() -> Result<()> {
    let kills = std::env::var("TORN_KILLS").map_or(Ok(2), |kills| kills.parse::<u32>())?;
    let duration = format!("{}s", 4 * (kills + 1));
    let report = watch("torn", kills, &["--large-writes", "--duration", &duration])?;
    let pages = &report["pages"];
    ensure!(pages["damaged"].as_array().is_some_and(Vec::is_empty));
    // Once when the database was new.
    ensure!(pages["starts"] == kills + 1, "{pages}");
    ensure!(pages["pages"].as_u64() > Some(1000 * u64::from(kills)));
    ensure!(report["wrong_large_rows"] == 0);
    Ok(())
}

/// Runs the demo with MariaDB and checks what it reports; the report.
pub fn watch(test: &str, kills: u32, more: &[&str]) -> Result<Value> {
    let scratch = Scratch::new(test)?;
    let (count, data) = (kills.to_string(), scratch.path().join("work"));
    let data = data.to_string_lossy();
    let arguments = [
        "demo",
        "--engine",
        "mariadb",
        "--kills",
        &count,
        "--clients",
        "4",
        "--seed",
        "11",
        "--json",
        "--data",
        &data,
    ];
    let output = understudy(&[&arguments, more].concat())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{}: {said}{printed}",
        output.status
    );
    let report: Value = serde_json::from_slice(&output.stdout)?;
    println!("{report:#}");
    ensure!(report["lost"] == 0 && report["unexpected"] == 0);
    ensure!(report["sums_agree"] == true && report["tables"] == "OK");
    let acknowledged = report["acknowledged"].as_u64().context("no commits")?;
    ensure!(acknowledged > 0, "no commits");
    let outages = report["outages"].as_array().context("no outages")?;
    ensure!(outages.len() == kills as usize);
    for outage in outages {
        let phases = outage["phases"].as_array().context("no phases")?;
        let names: Vec<&str> = phases.iter().filter_map(|p| p["phase"].as_str()).collect();
        ensure!(names == ["detect", "fence", "open", "start"], "{names:?}");
    }
    scratch.succeed()?;
    Ok(report)
}

/// What would lose commits, or cannot be, is refused before anything is made, with the reason and the remedy.
// hazard: ENGINE-2
#[test]
#[ignore = "system test: make test-system"]
fn settings_that_would_lose_commits_are_refused_before_anything_is_made() -> Result<()> {
    let scratch = Scratch::new("refused")?;
    let config = |engine: &str| {
        let path = scratch.path().join("north.toml");
        let text = format!(
            "name = \"north\"\nvolume = \"shop\"\nzones = [\"127.0.0.1:1\"]\ndata = \"{}\"\n[engine]\nkind = \"mariadb\"\n\
             run_as = \"nobody\"\n{engine}\n",
            scratch.path().join("north").display()
        );
        std::fs::write(&path, text).map(|()| path)
    };
    for (engine, expected) in [
        (
            "[engine.parameters]\ninnodb_flush_log_at_trx_commit = 0",
            "acknowledged transactions are lost",
        ),
        ("[engine.parameters]\nsync_binlog = 0", "sync_binlog"),
        (
            "[engine.parameters]\nloose_innodb_flush_log_at_trx_commit = 0",
            "another way to write innodb_flush_log_at_trx_commit",
        ),
        (
            "[engine.parameters]\nlog_bin = \"/var/log/bin\"",
            "outside of the volume",
        ),
        (
            "[engine.parameters]\ninnodb_flush_method = \"O_DIRECT_NO_FSYNC\"",
            "nothing is synced to the zones",
        ),
        (
            "[engine.parameters]\ndatadir = \"/tmp\"",
            "cannot be set here",
        ),
        ("bin = \"/nowhere\"", "there is no mariadbd in /nowhere"),
        (
            "command = [\"/bin/true\"]",
            "engine.kind = \"command\" only",
        ),
    ] {
        let file = config(engine)?;
        let output = understudy(&["init", "--config", &file.to_string_lossy()])?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            !output.status.success() && said.contains(expected),
            "{engine}: {said}"
        );
    }
    scratch.succeed()
}

fn understudy(arguments: &[&str]) -> Result<Output> {
    Ok(Command::new(program())
        .args(arguments)
        .stdin(Stdio::null())
        .output()?)
}

/// One question to the service of the tests.
fn ask(port: u16, question: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    writeln!(stream, "{question}")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    ensure!(!answer.is_empty(), "no answer to {question}");
    Ok(answer.trim().to_owned())
}

/// Where the service's program is.
fn service() -> &'static Path {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/system/engines/service.py"
    ))
}
