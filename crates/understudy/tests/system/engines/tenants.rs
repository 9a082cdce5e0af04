//! Many small databases, each a volume of its own, in the same three zones.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use cluster::ports;

use super::ask;
use super::stage::{Stage, wait_for};

const TENANTS: usize = 50;
/// Rows that each tenant has before and after the takeover.
const ROWS: u32 = 10;

/// A database with two nodes, one of which serves.
struct Tenant {
    port: u16,
    configs: [PathBuf; 2],
}

fn tenant(stage: &Stage, number: usize) -> Result<Tenant> {
    let port = ports::free()?;
    // Each way in which SQLite keeps its journal; two of four map the log's index into memory, one of them a private
    // file.
    let (mode, private) = [
        ("DELETE", "\"lock\""),
        ("WAL", "\"lock\""),
        ("TRUNCATE", "\"lock\""),
        ("WAL", "\"lock\", \"*-shm\""),
    ][number % 4];
    let engine = format!("{}private = [{private}]\n", stage.service_lines(port, mode));
    let volume = format!("t{number}");
    let configs = [
        stage.configure(&volume, "north", &engine)?,
        stage.configure(&volume, "south", &engine)?,
    ];
    stage.init(&configs[0])?;
    Ok(Tenant { port, configs })
}

// hazard: ENGINE-6, ENGINE-10
#[test]
#[ignore = "system test: make test-system"]
fn fifty_databases_in_the_same_zones_lose_nothing_when_their_machine_is_killed() -> Result<()> {
    let mut stage = Stage::new("tenants")?;
    let tenants: Vec<Tenant> = (0..TENANTS)
        .map(|number| tenant(&stage, number))
        .collect::<Result<_>>()?;
    for tenant in &tenants {
        stage.start(&tenant.configs[0])?;
    }
    for (number, tenant) in tenants.iter().enumerate() {
        wait_for(&format!("tenant {number} serves"), || {
            ask(tenant.port, "count").is_ok()
        })?;
        for n in 0..ROWS {
            ensure!(ask(tenant.port, &format!("put {n}"))? == "ok");
        }
    }
    // The machine of all of them is lost at once.
    stage.kill_nodes();
    for tenant in &tenants {
        stage.start(&tenant.configs[1])?;
    }
    for (number, tenant) in tenants.iter().enumerate() {
        wait_for(&format!("tenant {number} serves again"), || {
            ask(tenant.port, "count").is_ok()
        })?;
        for n in 0..ROWS {
            ensure!(
                ask(tenant.port, &format!("has {n}"))? == "yes",
                "tenant {number} lost row {n}"
            );
        }
        ensure!(ask(tenant.port, &format!("put {ROWS}"))? == "ok");
        ensure!(
            ask(tenant.port, "count")? == (ROWS + 1).to_string(),
            "tenant {number}"
        );
        let check = ask(tenant.port, "check").context("no check")?;
        ensure!(check == "ok", "tenant {number}: {check}");
    }
    stage.succeed()
}
