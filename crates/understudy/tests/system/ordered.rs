//! Clusters whose log is ordered: flushes overlap, and commits wait for what the agent confirms.

use std::future::poll_fn;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cluster::clients::session::connect;
use tokio::sync::mpsc;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};

use crate::stage::{Stage, TIMEOUT};

/// Two nodes whose log is ordered, under load.
async fn stage(test: &str) -> Result<Stage> {
    let stage = Stage::with_options(test, &["north", "south"], |options| {
        options.storage.push("wal_sync = \"pipelined\"".to_owned());
    })
    .await?;
    wait_ordered(&stage).await?;
    Ok(stage)
}

/// Waits until the active says that its log is ordered.
async fn wait_ordered(stage: &Stage) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(active) = stage.cluster.active().await
            && let Some(status) = stage.status_of(&active).await?
        {
            let log = &status["answer"]["log"];
            if log["ordered"] == true {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "not ordered: {log}");
        }
        ensure!(Instant::now() < deadline, "nobody says that it is active");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn kills_lose_nothing_that_was_acknowledged() -> Result<()> {
    let mut stage = stage("ordered-kills").await?;
    for _ in 0..3 {
        let (dead, killed) = stage.kill_active().await?;
        let outage = stage.outage_after(killed).await?;
        println!("{dead} killed: {:?} without commits", outage.length());
        wait_ordered(&stage).await?;
        stage.commits(300).await?;
        stage.cluster.start_node(&dead)?;
        stage.cluster.wait_follows(&dead, TIMEOUT).await?;
        stage.commits(300).await?;
    }
    stage.verify().await
}

// hazard: ORDER-4, ORDER-15
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn planned_work_ends_with_nothing_that_waits() -> Result<()> {
    let mut stage = stage("ordered-planned").await?;
    let config = stage.cluster.node("north")?.config.display().to_string();
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let began = Instant::now();
    let restart = ["restart", &active, "--config", &config];
    stage.cluster.run(&restart).await?;
    println!("restarted in {:?}", began.elapsed());
    wait_ordered(&stage).await?;
    stage.commits(200).await?;
    let began = Instant::now();
    let switchover = ["switchover", "--config", &config];
    stage.cluster.run(&switchover).await?;
    println!("switched over in {:?}", began.elapsed());
    stage.commits(200).await?;
    wait_ordered(&stage).await?;
    // Both stops were clean: nothing had to wait until it was given up.
    ensure!(began.elapsed() < Duration::from_secs(40));
    let killed = stage.cluster.agent_log_lines("is killed");
    ensure!(killed.is_empty(), "{killed:?}");
    stage.verify().await
}

/// A session whose notices are heard.
async fn connect_hearing(config: &Config) -> Result<(Client, mpsc::UnboundedReceiver<String>)> {
    let (client, mut connection) = config.connect(NoTls).await?;
    let (tell, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notice(notice) = message {
                let text = format!("{} {}", notice.code().code(), notice.message());
                // The test may be over.
                let _ = tell.send(text);
            }
        }
    });
    Ok((client, heard))
}

/// Two of three zones stand still, so nothing becomes durable.
fn hold_zones(stage: &mut Stage, hold: bool) -> Result<()> {
    for zone in [1, 2] {
        let process = stage.cluster.zone_process(zone).context("it runs")?;
        match hold {
            true => {
                process.pause();
            }
            false => process.resume(),
        }
    }
    Ok(())
}

// hazard: ORDER-10
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_wait_that_is_cancelled_is_told_apart() -> Result<()> {
    let mut stage = stage("ordered-cancelled").await?;
    // Whoever fills a segment of the log waits for the zones, and nobody can write to the log meanwhile.
    stage.stop_churn().await;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let server = stage.cluster.server(&active)?;
    let mut proxy = stage.cluster.start_proxy(&[]).await?;
    let (direct, mut heard) = connect_hearing(&server.config()).await?;
    let proxied = connect(&proxy.server().config()).await?;
    direct.batch_execute("CREATE TABLE told (n int)").await?;
    let cancels = connect(&server.config()).await?;
    let mut pids = Vec::new();
    for (client, n) in [(&direct, 1), (&proxied, 2)] {
        client.batch_execute("BEGIN").await?;
        let insert = format!("INSERT INTO told VALUES ({n})");
        client.batch_execute(&insert).await?;
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await?;
        pids.push(pid.get::<_, i32>(0));
    }
    while heard.try_recv().is_ok() {}
    let waiting = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity \
                   WHERE wait_event = 'SyncRep' AND pid = ANY ($1)";
    // Once before, so that nothing has to be read while zones stand still.
    cancels.query(waiting, &[&pids]).await?;
    hold_zones(&mut stage, true)?;
    // No timeout ends such a wait, only a request does.
    let cancel = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if let Err(error) = cancels.query(waiting, &[&pids]).await {
                return error;
            }
        }
    };
    let commits = async {
        tokio::join!(
            direct.batch_execute("COMMIT"),
            proxied.batch_execute("COMMIT")
        )
    };
    let told = tokio::select! {
        told = commits => Ok(told),
        error = cancel => Err(error),
        () = tokio::time::sleep(TIMEOUT) => {
            hold_zones(&mut stage, false)?;
            bail!("the commits wait on");
        }
    };
    hold_zones(&mut stage, false)?;
    let (plain, through) = told?;
    plain.context("PostgreSQL answers with success")?;
    let notice = heard.recv().await.context("behind a warning")?;
    ensure!(notice.starts_with("01000"), "{notice}");
    match through {
        Err(error) if error.code() == Some(&SqlState::TRANSACTION_RESOLUTION_UNKNOWN) => {}
        other => bail!("the proxy said {other:?}"),
    }
    // Nothing was lost, so both are there in the end.
    stage.commits(100).await?;
    let told = direct.query_one("SELECT count(*) FROM told", &[]).await?;
    ensure!(told.get::<_, i64>(0) == 2);
    proxy.check_running()?;
    drop(proxy);
    stage.verify().await
}

// hazard: ORDER-8
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn other_receivers_are_not_sent_the_log() -> Result<()> {
    let mut stage = stage("ordered-alone").await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let server = stage.cluster.server(&active)?;
    let session = connect(&server.config()).await?;
    let ours = "SELECT count(*) = current_setting('max_wal_senders')::int FROM pg_stat_activity \
                WHERE application_name IN ('understudy_log', 'understudy_place')";
    ensure!(session.query_one(ours, &[]).await?.get::<_, bool>(0));
    let bin = stage.cluster.options().bin.clone();
    let receives = tokio::process::Command::new(bin.join("pg_receivewal"))
        .args(["-h", &server.host, "-p", &server.port.to_string()])
        .args(["-U", &server.user, "--no-loop", "-D"])
        .arg(stage.path())
        .output()
        .await?;
    let said = String::from_utf8_lossy(&receives.stderr).into_owned();
    ensure!(
        !receives.status.success() && said.contains("max_wal_senders"),
        "{said}"
    );
    let slots = session.batch_execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
    ensure!(slots.await.is_err(), "wal_level is replica");
    // Both refusals are in the server's log, where no healthy run has them.
    stage.end().await
}

/// The active's server ends the connection that confirms, and refuses another one.
async fn refuse_agent(stage: &Stage, active: &str) -> Result<()> {
    let node = stage.cluster.node(active)?;
    let config = node.config.display().to_string();
    let hba = node.data.join("pgdata").join("pg_hba.conf");
    let rest = std::fs::read_to_string(&hba)?;
    std::fs::write(&hba, format!("local replication all reject\n{rest}"))?;
    stage.cluster.run(&["reload", "--config", &config]).await?;
    let session = connect(&stage.cluster.server(active)?.config()).await?;
    let ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE application_name = 'understudy_log'";
    // Its own commit waits for nobody, and the restart ends the session.
    drop(session.batch_execute(ends).await);
    Ok(())
}

/// Waits until whoever is the active serves with a strict log; says who.
async fn wait_strict(stage: &Stage) -> Result<String> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(active) = stage.cluster.active().await
            && let Ok(session) = connect(&stage.cluster.server(&active)?.config()).await
            && let Ok(names) = session
                .query_one("SHOW synchronous_standby_names", &[])
                .await
            && names.get::<_, String>(0).is_empty()
        {
            return Ok(active);
        }
        ensure!(Instant::now() < deadline, "nobody serves with a strict log");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

// hazard: ORDER-13
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_server_that_refuses_the_agent_gets_a_strict_log() -> Result<()> {
    let mut stage = stage("ordered-refused").await?;
    // It has temporary tables.
    stage.stop_churn().await;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    refuse_agent(&stage, &active).await?;
    ensure!(wait_strict(&stage).await? == active, "restarted in place");
    stage.commits(200).await?;
    let status = stage.status_of(&active).await?.context("a status")?;
    ensure!(status["answer"]["log"]["ordered"] == false);
    // The refusals are in the server's log.
    stage.end().await
}

/// A session with temporary tables drops them as it ends, and its commit waited for a confirmation that nobody could
/// give: PostgreSQL did not stop for a minute.
// hazard: NODE-26, ORDER-14
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_server_that_refuses_the_agent_stops_although_sessions_cannot_end() -> Result<()> {
    let mut stage = stage("ordered-stays").await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let session = connect(&stage.cluster.server(&active)?.config()).await?;
    session
        .batch_execute("CREATE TEMP TABLE mine (n int)")
        .await?;
    let refused = Instant::now();
    refuse_agent(&stage, &active).await?;
    let serves = wait_strict(&stage).await?;
    println!("{serves} has a strict log after {:?}", refused.elapsed());
    ensure!(
        serves != active,
        "{active} was restarted without a checkpoint"
    );
    stage.commits(200).await?;
    let said = "ending sessions wait for confirmations that do not come";
    ensure!(stage.cluster.agent_log_lines(said).len() >= 1);
    stage.check_database().await?;
    // The refusals are in the server's log.
    stage.end().await
}
