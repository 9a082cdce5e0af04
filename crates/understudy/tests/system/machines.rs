//! Virtual machines protected by checkpoints: as `understudy demo --vm` shows them, and with other faults. They need root and Debian's
//! QEMU (`scripts/packages --vm`); `make test` has the shortest of them, `make test-vm` all.
//!
//! `UNDERSTUDY_TEST_IMAGE` names an image that "understudy vm create" made; beside it, with ".password" at the end, is the file with
//! its password. Without, each test makes one.

mod faults;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cluster::scratch::Scratch;
use serde_json::Value;

use crate::stage::program;

/// The image that all tests share, and the file with its password.
fn shared_image() -> Option<(PathBuf, PathBuf)> {
    let image = PathBuf::from(std::env::var_os("UNDERSTUDY_TEST_IMAGE")?);
    let mut password = image.clone().into_os_string();
    password.push(".password");
    Some((image, password.into()))
}

/// Runs the demo, which passes or not, and says why in its report.
fn demo(test: &str, passes: bool, more: &str) -> Result<Value> {
    let scratch = Scratch::new(test)?;
    let mut command = Command::new(program());
    command
        .args(["demo", "--vm", "--json", "--clients", "4"])
        .args(["--memory-mb", "256", "--data"])
        .arg(scratch.path().join("work"))
        .args(more.split(' '));
    if let Some((image, password)) = shared_image() {
        command.arg("--image").arg(image);
        command.arg("--password-file").arg(password);
    }
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{}: {said}", output.status))?;
    println!("{report:#}");
    ensure!(
        output.status.success() == passes,
        "{}: {said}",
        output.status
    );
    scratch.succeed()?;
    Ok(report)
}

#[test]
#[ignore = "system test: make test-system"]
fn machine_loses_nothing_and_keeps_its_connections() -> Result<()> {
    let report = demo("machine", true, "--kills 1 --duration 6s")?;
    ensure!(report["lost"] == 0 && report["amcheck"] == "OK");
    ensure!(report["connections"] == 4 && report["connections_kept"] == 4);
    ensure!(report["acknowledged"].as_u64() > Some(20));
    ensure!(report["epochs"].as_u64() > Some(20));
    Ok(())
}

#[test]
#[ignore = "system test: make test-vm"]
fn with_commit_protection_a_machine_loses_nothing() -> Result<()> {
    let more = "--protection commits --kills 2 --duration 9s";
    let report = demo("machine-commits", true, more)?;
    ensure!(report["lost"] == 0 && report["amcheck"] == "OK");
    Ok(())
}

#[test]
#[ignore = "system test: make test-vm"]
fn without_protection_a_machine_loses_commits() -> Result<()> {
    let more = "--protection nothing --epoch 500ms --kills 2 --duration 9s";
    let report = demo("machine-control", false, more)?;
    ensure!(report["lost"].as_u64() > Some(0));
    Ok(())
}
