//! `understudy demo` as a user runs it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::process::family;
use cluster::remnants::fuse_mounts_below;
use cluster::scratch::Scratch;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stage::{TIMEOUT, program};

#[test]
#[ignore = "system test: make test-system"]
fn the_demo_loses_nothing_and_says_so() -> Result<()> {
    watch("demo", &[])
}

/// Runs the demo with these further arguments and checks what it reports. How many commits there are is the disk's
/// business: a slow one made 108 of them, and lost none.
pub fn watch(test: &str, more: &[&str]) -> Result<()> {
    let scratch = Scratch::new(test)?;
    let picture = scratch.path().join("demo.svg");
    let output = Command::new(program())
        .args([
            "demo",
            "--json",
            "--ddl",
            "--duration",
            "12s",
            "--scale",
            "2",
            "--seed",
            "7",
        ])
        .args(["--clients", "4", "--data"])
        .arg(scratch.path().join("work"))
        .arg("--picture")
        .arg(&picture)
        .args(more)
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    println!("{report:#}");
    ensure!(report["lost"] == 0);
    let number = |name: &str| report[name].as_f64().with_context(|| format!("no {name}"));
    ensure!(number("acknowledged")? > 0.0);
    ensure!(number("present")? >= number("acknowledged")?);
    ensure!(number("downtime_ms")? > 0.0);
    for name in ["tps_before", "tps_after"] {
        ensure!(number(name)? > 0.0, "{name}");
    }
    for phase in [
        "detect",
        "fence",
        "log_tail",
        "replay",
        "promote",
        "first_commit",
    ] {
        ensure!(report["phases_ms"][phase].is_number(), "{phase}");
    }
    ensure!(std::fs::read_to_string(&picture)?.contains("</svg>"));
    ensure!(
        !scratch.path().join("work").exists(),
        "the demo's data is still there"
    );
    scratch.succeed()
}

/// A dropped table comes back by a branch, by a restore from a repository, and by a rewind.
#[test]
#[ignore = "system test: make test-system"]
fn the_demo_of_the_past_brings_everything_back_three_times() -> Result<()> {
    let scratch = Scratch::new("demo-past")?;
    let output = Command::new(program())
        .args(["demo", "--past", "--json", "--duration", "8s"])
        .args(["--scale", "1", "--clients", "4", "--data"])
        .arg(scratch.path().join("work"))
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    println!("{report:#}");
    for zero in ["lost", "later", "lost_since", "gap_bytes"] {
        ensure!(report[zero] == 0, "{zero}");
    }
    for some in ["acknowledged", "branch_ms", "restore_ms", "rewind_ms"] {
        ensure!(report[some].as_u64() > Some(0), "{some}");
    }
    scratch.succeed()
}

#[test]
#[ignore = "system test: make test-system"]
fn an_interrupted_demo_leaves_nothing() -> Result<()> {
    let scratch = Scratch::new("interrupted")?;
    let work = scratch.path().join("work");
    let mut demo = Command::new(program())
        .args(["demo", "--scale", "1", "--data"])
        .arg(&work)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let pid = Pid::from_raw(i32::try_from(demo.id())?);
    let deadline = Instant::now() + TIMEOUT;
    // Two mounts: both nodes are up.
    while fuse_mounts_below(&work).len() < 2 {
        ensure!(demo.try_wait()?.is_none(), "the demo ended early");
        ensure!(Instant::now() < deadline, "the nodes do not mount");
        std::thread::sleep(Duration::from_millis(50));
    }
    let everybody = family(pid);
    kill(pid, Signal::SIGINT)?;
    let status = demo.wait()?;
    ensure!(status.code() == Some(130), "{status}");
    ensure!(fuse_mounts_below(&work).is_empty(), "a mount is left");
    let left: Vec<&Pid> = everybody.iter().filter(|pid| runs(**pid)).collect();
    ensure!(left.is_empty(), "left running: {left:?}");
    scratch.succeed()
}

/// True if a process runs; one that ended and was not collected by the system yet does not.
fn runs(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}
