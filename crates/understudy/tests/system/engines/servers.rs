//! Servers that Debian does not have: MySQL by a configured command, and a newer MariaDB that takes a database over.
//!
//! `UNDERSTUDY_TEST_SERVERS` says where their programs are, as `scripts/other-servers` prints it. A server that is not
//! there fails its test: what is not tested must not look tested.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::clients::clock::Clock;
use cluster::clients::history::History;
use cluster::clients::mysql::{self, Load, Plan, Server, Work};
use cluster::scratch::Scratch;
use cluster::{Cluster, Options, mariadb};

use crate::stage::program;

const ACCOUNTS: u32 = 5000;
const KILLS: i32 = 5;

fn home_of(server: &str) -> Result<PathBuf> {
    let servers = std::env::var("UNDERSTUDY_TEST_SERVERS");
    let servers = servers.context("UNDERSTUDY_TEST_SERVERS is not set: make test-servers")?;
    let mut entries = servers.split(':').filter_map(|entry| entry.split_once('='));
    let found = entries.find(|(name, _)| *name == server);
    let (_, home) = found.with_context(|| format!("no {server} in {servers}"))?;
    Ok(PathBuf::from(home))
}

/// Without a new table for the sizes of pages and blocks: as docs/products/engines.md has it for MySQL.
fn mysql_lines(home: &Path) -> Result<Vec<String>> {
    let home = home.display();
    Ok(vec![
        "kind = \"command\"".to_owned(),
        format!("run_as = \"{}\"", mariadb::user()?),
        format!(
            "command = [\"{home}/mysqld\", \"--no-defaults\", \"--datadir={{data}}\", \"--tmpdir={{tmp}}\", \
             \"--socket={{run}}/server.sock\", \"--pid-file={{run}}/server.pid\", \"--port={{port}}\", \
             \"--bind-address={{listen}}\", \"--lc-messages-dir={home}/share\", \"--skip-name-resolve\", \
             \"--default-storage-engine=InnoDB\", \"--innodb-flush-method=O_DIRECT\", \
             \"--innodb-flush-log-at-trx-commit=1\", \"--sync-binlog=1\", \"--skip-innodb-doublewrite\", \
             \"--innodb-buffer-pool-size=32M\"]"
        ),
        format!("init = [\"/bin/cp\", \"-r\", \"{home}/data/.\", \"{{data}}\"]"),
        "ready = [\"/usr/bin/mariadb-admin\", \"--no-defaults\", \"--socket={run}/server.sock\", \"ping\"]"
            .to_owned(),
        format!("version = [\"{home}/mysqld\", \"--version\"]"),
        "page_size = \"16KiB\"".to_owned(),
    ])
}

/// Kills the machine of the active again and again under a load; the server then has all that it acknowledged.
async fn loses_nothing(cluster: &mut Cluster, work: Work) -> Result<()> {
    let clock = Clock::start();
    let servers = mariadb::servers(cluster);
    let plan = Plan {
        work,
        clients: 4,
        first: 0,
        accounts: ACCOUNTS,
        seed: 5,
    };
    let load = Load::start(&servers, &plan, clock);
    for _ in 0..KILLS {
        tokio::time::sleep(Duration::from_secs(4)).await;
        mariadb::kill_active(cluster, |what| println!("{what}")).await?;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let history: History = load.stop().await?;
    mariadb::wait_active(cluster, 0).await?;
    let verdict = mysql::verify(&servers, &history, ACCOUNTS).await?;
    println!("{verdict:?}");
    ensure!(verdict.holds() && verdict.acknowledged > 100, "{verdict:?}");
    ensure!(mysql::wrong_large_rows(&servers, 0).await? == 0 || work != Work::LargeRows);
    mysql::check_tables(&servers).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-servers"]
async fn mysql_loses_nothing() -> Result<()> {
    let scratch = Scratch::new("mysql")?;
    let home = home_of("mysql")?;
    let mut options = Options::new(scratch.path(), Path::new("/"), program());
    options.engine = Some(mysql_lines(&home)?);
    let mut cluster = Cluster::create(options)?;
    let active = mariadb::start(&mut cluster).await?;
    let socket = cluster.node(&active)?.data.join("run/server.sock");
    // See cluster::clients::mysql: clients of today can send it no password.
    let setup = mysql::setup_statements(ACCOUNTS) + "SET PASSWORD FOR app@'%' = '';\n";
    mariadb::administrate(&socket, &setup).await?;
    loses_nothing(&mut cluster, Work::LargeRows).await?;
    let status = cluster.ask("status").await?;
    ensure!(status.contains("\"version\":\"5.5.9\""), "{status}");
    cluster.shutdown();
    scratch.succeed()
}

/// The newer version takes what the older one wrote, loses nothing under kills, and the older one is refused then.
// hazard: ENGINE-4
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-servers"]
async fn a_newer_mariadb_takes_the_database_and_the_older_one_is_refused() -> Result<()> {
    let scratch = Scratch::new("newer")?;
    let newer = home_of("mariadb")?;
    let mut options = Options::new(scratch.path(), Path::new("/"), program());
    options.engine = Some(mariadb::engine(None)?);
    let mut cluster = Cluster::create(options)?;
    let active = mariadb::start(&mut cluster).await?;
    let socket = cluster.node(&active)?.data.join("run/server.sock");
    mariadb::administrate(&socket, &mysql::setup_statements(ACCOUNTS)).await?;

    // Both machines get the newer version, the one that waits first.
    for name in ["south", "north"] {
        let config = cluster.node(name)?.config.clone();
        cluster.stop_node(name, Duration::from_secs(60))?;
        let text = std::fs::read_to_string(&config)?;
        std::fs::write(config.with_extension("old"), &text)?;
        let bin = format!("[engine]\nbin = \"{}/bin\"", newer.display());
        let extra = format!("basedir = \"{}\"", newer.display());
        let text = text.replace("[engine]", &bin);
        std::fs::write(&config, format!("{text}\n[engine.parameters]\n{extra}\n"))?;
        cluster.start_node(name)?;
        mariadb::wait_active(&mut cluster, 0).await?;
    }
    let status = cluster.ask("status").await?;
    ensure!(status.contains("\"version\":\"11.4.5\""), "{status}");
    loses_nothing(&mut cluster, Work::Transfers).await?;

    let (active, _) = mariadb::wait_active(&mut cluster, 0).await?;
    let other = if active == "north" { "south" } else { "north" };
    cluster.stop_node(other, Duration::from_secs(60))?;
    let config = cluster.node(other)?.config.clone();
    std::fs::copy(config.with_extension("old"), &config)?;
    let config = config.to_string_lossy();
    let refused = cluster.run(&["node", "--config", &config]).await;
    let said = refused.err().context("the older version runs")?.to_string();
    ensure!(
        said.contains("11.4.5 has run on the volume") && said.contains("10.11"),
        "{said}"
    );
    let servers: Vec<Server> = mariadb::servers(&cluster);
    mysql::check_tables(&servers).await?;
    cluster.shutdown();
    scratch.succeed()
}
