//! What a killed agent leaves behind.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use pgserver::leftovers;

use crate::common::{Cluster, READY, installation, run_as};

/// A server that no agent watches: what is left if the death signal did not reach it.
fn unwatched(cluster: &Cluster) -> Child {
    let mut command = Command::new(installation().bin().join("postgres"));
    command
        .arg("-D")
        .arg(&cluster.options.data)
        .current_dir("/");
    command.arg("-c").arg(format!(
        "unix_socket_directories={}",
        cluster.options.run.display()
    ));
    command.args([
        "-c",
        "listen_addresses=",
        "-c",
        "fsync=off",
        "-c",
        "shared_buffers=8MB",
    ]);
    if let Some(user) = run_as() {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

async fn wait_until_it_serves(cluster: &Cluster) {
    for _ in 0..2_000 {
        let options = &cluster.options;
        let opened = pgserver::Session::open(&options.run, options.port, "postgres").await;
        if opened.is_ok() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the server does not serve");
}

#[tokio::test]
async fn an_unwatched_server_is_killed_whole() {
    let cluster = Cluster::new();
    let mut server = unwatched(&cluster);
    wait_until_it_serves(&cluster).await;
    let killed = leftovers::clean(&cluster.options.run, &cluster.options.data).unwrap();
    assert!(killed > 1, "the postmaster and its children, not {killed}");
    assert!(!server.wait().unwrap().success());
    assert!(cluster.processes().is_empty());
}

#[tokio::test]
async fn a_start_replaces_what_is_left() {
    let cluster = Cluster::new();
    let mut server = unwatched(&cluster);
    wait_until_it_serves(&cluster).await;
    let (postgres, _session) = cluster.ready().await;
    assert!(!server.wait().unwrap().success());
    assert_ne!(postgres.pid().cast_unsigned(), server.id());
}

#[tokio::test]
async fn another_clusters_server_is_left_alone() {
    let (ours, theirs) = (Cluster::new(), Cluster::new());
    let (_postgres, session) = theirs.ready().await;
    // Even if our pid file, by accident, names it.
    let note = std::fs::read_to_string(theirs.options.run.join("child.pid")).unwrap();
    std::fs::write(ours.options.run.join("child.pid"), note).unwrap();
    assert_eq!(
        leftovers::clean(&ours.options.run, &ours.options.data).unwrap(),
        0
    );
    assert_eq!(
        session.value("SELECT 1").await.unwrap().as_deref(),
        Some("1")
    );
}

const AGENT_DIR: &str = "UNDERSTUDY_TEST_AGENT_DIR";

/// Not a test: the agent that the next test kills, as a process of its own.
#[test]
#[ignore = "run by an_agent_that_is_killed_takes_its_server_along"]
fn agent_to_be_killed() {
    let Some(dir) = std::env::var_os(AGENT_DIR) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut cluster = Cluster::new();
        cluster.options.data = std::path::Path::new(&dir).join("pgdata");
        cluster.options.run = std::path::Path::new(&dir).join("run");
        let (_postgres, _session) = cluster.ready().await;
        println!("\nserving");
        std::future::pending::<()>().await;
    });
}

#[tokio::test]
async fn an_agent_that_is_killed_takes_its_server_along() {
    let cluster = Cluster::new();
    let mut agent = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "leftovers::agent_to_be_killed",
        ])
        .env(AGENT_DIR, cluster.dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(agent.stdout.take().unwrap()).lines();
    let serving =
        tokio::task::spawn_blocking(|| lines.map_while(Result::ok).any(|line| line == "serving"));
    assert!(tokio::time::timeout(READY, serving).await.unwrap().unwrap());
    assert!(cluster.processes().len() > 1);
    agent.kill().unwrap();
    agent.wait().unwrap();
    cluster.gone().await;
}
