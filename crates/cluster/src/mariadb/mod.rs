//! MariaDB, or another server of its protocol, on a cluster's volume ([`start`]) and on the plain disk
//! ([`plain::Plain`]): filled, killed, waited for.

pub mod pages;
pub mod plain;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tokio::time::Instant;

use crate::Cluster;
use crate::clients::mysql::{Server, account};

/// How long another node may take to serve.
const TAKEOVER_WITHIN: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Users that a server may run as when we are root, the first that exists.
const USERS: [&str; 2] = ["mysql", "nobody"];

/// The lines of `[engine]` for MariaDB.
///
/// # Errors
/// There is nobody whom it could run as.
pub fn engine(bin: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let bin = bin.map(|bin| format!("bin = \"{}\"", bin.display()));
    let lines = [
        "kind = \"mariadb\"".to_owned(),
        format!("run_as = \"{}\"", user()?),
    ];
    Ok(lines.into_iter().chain(bin).collect())
}

/// Who a server runs as when we are root: the first of the usual users that exists.
///
/// # Errors
/// None does.
pub fn user() -> anyhow::Result<&'static str> {
    let exists =
        |user: &&&str| nix::unistd::User::from_name(user).is_ok_and(|found| found.is_some());
    USERS
        .iter()
        .find(exists)
        .copied()
        .context("there is neither a user mysql nor nobody")
}

/// Starts everything; whoever serves then.
///
/// # Errors
/// Something does not come up.
pub async fn start(cluster: &mut Cluster) -> anyhow::Result<String> {
    for zone in 1..=cluster.options().zones {
        cluster.start_zone(zone)?;
    }
    cluster.init().await?;
    let names: Vec<String> = cluster.names().map(str::to_owned).collect();
    for name in &names {
        cluster.start_node(name)?;
    }
    Ok(wait_active(cluster, 0).await?.0)
}

/// Where the clients of a cluster look for its server.
pub fn servers(cluster: &Cluster) -> Vec<Server> {
    let nodes = cluster.names().filter_map(|name| cluster.node(name).ok());
    nodes
        .map(|node| Server {
            address: node.address,
            port: node.port,
        })
        .collect()
}

/// Waits until a node serves under an epoch not before `from`.
///
/// # Errors
/// None does, or a process ended.
pub async fn wait_active(cluster: &mut Cluster, from: u64) -> anyhow::Result<(String, u64)> {
    let deadline = Instant::now() + TAKEOVER_WITHIN;
    loop {
        // While nobody serves it fails, and says so by its exit code.
        if let Ok(status) = cluster.ask("status").await {
            let status: Value = serde_json::from_str(&status)?;
            let epoch = status["epoch"].as_u64().unwrap_or_default();
            if let (Some(active), true) = (status["active"].as_str(), epoch >= from) {
                return Ok((active.to_owned(), epoch));
            }
        }
        cluster.check_running()?;
        ensure!(
            Instant::now() < deadline,
            "no node serves after {TAKEOVER_WITHIN:?}; the logs are in {}",
            cluster.logs().display()
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A kill that was carried out.
#[derive(Debug, Clone)]
pub struct Kill {
    /// Whose machine it was.
    pub node: String,
    /// When all of its processes were dead.
    pub at: SystemTime,
    /// Who serves since.
    pub next: String,
    /// Under which epoch.
    pub epoch: u64,
}

/// Kills the machine of whoever serves, waits until another node does, and returns the machine.
///
/// # Errors
/// Nobody serves, or nobody does afterwards.
pub async fn kill_active(cluster: &mut Cluster, say: impl Fn(&str)) -> anyhow::Result<Kill> {
    let (node, epoch) = wait_active(cluster, 0).await?;
    let killed = cluster
        .kill_node(&node)
        .context("the active does not run")?;
    let at = SystemTime::now();
    say(&format!(
        "killed {node} with its server: {} processes",
        killed.processes
    ));
    let (next, epoch) = wait_active(cluster, epoch + 1).await?;
    say(&format!("{next} serves, epoch {epoch}"));
    cluster.start_node(&node)?;
    Ok(Kill {
        node,
        at,
        next,
        epoch,
    })
}

/// Runs statements as the administrator, by MariaDB's own client.
///
/// # Errors
/// The client is not installed, or the server refuses them.
pub async fn administrate(socket: &Path, statements: &str) -> anyhow::Result<()> {
    let mut client = tokio::process::Command::new("mariadb");
    client
        .args(["--no-defaults", "--user=root"])
        .arg(format!("--socket={}", socket.display()));
    let mut child = client
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot run mariadb, MariaDB's client: apt-get install mariadb-client")?;
    let mut input = child.stdin.take().context("its standard input is a pipe")?;
    tokio::io::AsyncWriteExt::write_all(&mut input, statements.as_bytes()).await?;
    drop(input);
    let output = child.wait_with_output().await?;
    if !output.status.success() {
        bail!(
            "mariadb failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Runs `mariadb-check --check --extended` on the tables of the clients.
///
/// # Errors
/// It is not installed, or a table is not "OK".
pub async fn check(server: Server) -> anyhow::Result<()> {
    let (user, password) = account();
    let output = tokio::process::Command::new("mariadb-check")
        .args(["--no-defaults", "--check", "--extended", "--protocol=tcp"])
        .arg(format!("--host={}", server.address))
        .arg(format!("--port={}", server.port))
        .arg(format!("--user={user}"))
        .arg(format!("--password={password}"))
        .arg("test")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot run mariadb-check: apt-get install mariadb-client")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && is_sound(&said),
        "mariadb-check: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// True if `mariadb-check` finds every table good. Rows that were deleted and not purged yet, as there are many of
/// after a recovery, are in its warnings, and no fault.
fn is_sound(said: &str) -> bool {
    let mut tables = 0;
    for line in said.lines() {
        let ends_well = line.split_whitespace().last() == Some("OK");
        let one_word = !line.contains(char::is_whitespace);
        let unpurged = line.starts_with("Warning") && line.contains("Unpurged");
        tables += u32::from(ends_well);
        if !(ends_well || one_word || unpurged) {
            return false;
        }
    }
    tables > 0
}

#[cfg(test)]
mod tests {
    use super::is_sound;

    #[test]
    fn rows_that_are_not_purged_yet_are_passed_over() {
        let unpurged = "test.accounts           OK\ntest.large\nWarning  : InnoDB: Unpurged clustered index record \
                        in table `test`.`large`: COMPACT RECORD\nstatus   : OK\n";
        assert!(is_sound(unpurged));
        assert!(!is_sound(""));
        assert!(!is_sound("test.large\n"));
        for bad in [
            "Warning  : InnoDB: Index PRIMARY is corrupted",
            "error    : Corrupt",
            "status   : Operation failed",
        ] {
            assert!(!is_sound(&format!("{unpurged}{bad}\n")), "{bad}");
        }
    }
}
