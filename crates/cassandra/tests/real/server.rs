//! The development cluster itself.

use std::net::TcpStream;
use std::time::Duration;

use cassandra::server::{Cluster, Options};

#[test]
#[ignore = "starts real Cassandra nodes; run by make test-cassandra"]
fn nodes_start_die_return_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(Options::new(dir.path())).unwrap();
    let addresses = cluster.contact_points();
    assert_eq!(cluster.data_centres(), ["dc1", "dc2", "dc3"]);
    for address in &addresses {
        TcpStream::connect(address).unwrap();
    }

    cluster.kill(2).unwrap();
    TcpStream::connect(addresses[2]).unwrap_err();
    cluster
        .wait_convicted(0, 2, Duration::from_secs(60))
        .unwrap();
    cluster.start_nodes(&[2]).unwrap();
    TcpStream::connect(addresses[2]).unwrap();
    let status = cluster.tool(0, &["status"]).unwrap();
    assert_eq!(status.matches("\nUN ").count(), 3, "{status}");

    let pids: Vec<i32> = (0..3).map(|n| cluster.pid(n).unwrap().unwrap()).collect();
    drop(cluster);
    for pid in pids {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
