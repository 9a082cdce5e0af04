//! Virtual machines protected by checkpoints, as `understudy demo --vm` shows them. They need root and Debian's QEMU
//! (`scripts/packages --vm`); without QEMU, nothing is tested here.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cluster::scratch::Scratch;
use serde_json::Value;

use crate::stage::program;

const QEMU: &str = "/usr/bin/qemu-system-x86_64";

fn kill_twice(test: &str, more: &[&str]) -> Result<Option<Value>> {
    if !Path::new(QEMU).exists() {
        println!("there is no {QEMU}: scripts/packages --vm installs it");
        return Ok(None);
    }
    let scratch = Scratch::new(test)?;
    let output = Command::new(program())
        .args([
            "demo",
            "--vm",
            "--json",
            "--kills",
            "2",
            "--duration",
            "9s",
            "--clients",
            "4",
        ])
        .args(["--memory-mb", "384", "--data"])
        .arg(scratch.path().join("work"))
        .args(more)
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{}: {said}", output.status))?;
    println!("{report:#}");
    ensure!(output.status.success(), "{}: {said}", output.status);
    scratch.succeed()?;
    Ok(Some(report))
}

#[test]
#[ignore = "system test: make test-system"]
fn a_machine_loses_nothing_and_keeps_its_connections() -> Result<()> {
    let Some(report) = kill_twice("machine", &[])? else {
        return Ok(());
    };
    ensure!(report["lost"] == 0);
    ensure!(report["amcheck"] == "OK");
    ensure!(report["connections"] == 8 && report["connections_kept"] == 8);
    ensure!(report["acknowledged"].as_u64() > Some(50));
    ensure!(report["epochs"].as_u64() > Some(50));
    Ok(())
}

#[test]
#[ignore = "system test: make test-system"]
fn with_commit_protection_a_machine_loses_nothing() -> Result<()> {
    let Some(report) = kill_twice("machine-commits", &["--protection", "commits"])? else {
        return Ok(());
    };
    ensure!(report["lost"] == 0);
    ensure!(report["amcheck"] == "OK");
    Ok(())
}
