//! `understudy mirror` as real processes: managers, members and machines are lost under load.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use cluster::scratch::Scratch;

use crate::stage::program;

/// The primary's machine is lost with its disk, and comes back; then whatever else the seed chooses.
#[test]
#[ignore = "system test: make test-system"]
fn nothing_is_lost_with_a_machine_or_its_disk() -> Result<()> {
    let scratch = Scratch::new("mirrored")?;
    let work = scratch.path().join("work");
    let output = Command::new(program())
        .args(["demo", "--mirror", "--json", "--kills", "4", "--seed", "5"])
        .args([
            "--duration",
            "8s",
            "--scale",
            "1",
            "--clients",
            "4",
            "--data",
        ])
        .arg(&work)
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    println!("{report:#}");
    for name in ["lost", "applied_twice", "diverged"] {
        ensure!(report[name] == 0, "{name}");
    }
    ensure!(report["acknowledged"].as_u64() > Some(200));
    ensure!(report["downtime_ms"].as_f64() > Some(0.0));
    ensure!(report["transfer_s"].as_f64() > Some(0.0));
    ensure!(report["rounds"].as_array().map(Vec::len) == Some(4));
    ensure!(!work.exists(), "the demo's data is still there");
    scratch.succeed()
}
