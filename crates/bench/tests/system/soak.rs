//! `understudy bench soak` in its short form: everything at once, a kill, a verdict.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use cluster::scratch::Scratch;

use crate::program;

// hazard: H1
#[test]
#[ignore = "system test: make test-system"]
fn a_soak_under_everything_at_once_ends_well() -> Result<()> {
    let scratch = Scratch::new("soak")?;
    let picture = scratch.path().join("soak.svg");
    let output = Command::new(program())
        .args(["bench", "soak", "--quick", "--json", "--data"])
        .arg(scratch.path().join("work"))
        .arg("--picture")
        .arg(&picture)
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    ensure!(
        output.status.success(),
        "{}: {said}\n{:#}\n{:#}",
        output.status,
        report["checks"],
        report["unexpected_log_lines"]
    );
    for name in ["lag_bytes", "lag_ms", "answers", "base_moves", "takeover"] {
        println!("{name}: {}", report[name]);
    }
    let series = report["series"].as_array().map_or(0, Vec::len);
    ensure!(series > 10, "only {series} samples");
    ensure!(std::fs::read_to_string(&picture)?.contains("</svg>"));
    scratch.succeed()
}
