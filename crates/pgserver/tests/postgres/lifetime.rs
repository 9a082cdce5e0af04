//! Start, serve, promote, stop, die.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pgdata::control::ControlFile;
use pgdata::xid::Xid8;
use pgserver::{Password, Postgres, PostgresError, StopMode};

use crate::common::{Cluster, READY, installation, owned_directory, run_as};

#[tokio::test]
async fn starts_serves_and_stops_cleanly() {
    let cluster = Cluster::new();
    let (postgres, session) = cluster.ready().await;
    assert!(!session.is_in_recovery().await.unwrap());
    assert!(session.flushed().await.unwrap().is_some());
    assert_eq!(session.promotions_since_checkpoint().await.unwrap(), 0);
    let spread = session.checkpoint_spread().await.unwrap();
    assert_eq!(spread, Duration::from_secs(270), "0.9 of five minutes");
    assert!(session.system_identifier().await.unwrap() > 0);
    assert_eq!(postgres.exit(), None);
    let report = postgres.stop(StopMode::Fast, READY).await.unwrap();
    assert!(report.is_success(), "{report}");
    assert!(cluster.processes().is_empty());
    assert!(!cluster.options.run.join("child.pid").exists());
    assert!(
        report.log.iter().any(|l| l.contains("shut down")),
        "{:?}",
        report.log
    );
}

#[tokio::test]
async fn runs_as_the_configured_user_in_its_groups() {
    let Some(user) = run_as() else { return };
    let cluster = Cluster::new();
    let (postgres, _session) = cluster.ready().await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", postgres.pid())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name)).unwrap();
        line.split_whitespace()
            .skip(1)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let uid = user.uid.to_string();
    assert_eq!(field("Uid:"), [uid.clone(), uid.clone(), uid.clone(), uid]);
    let mut groups: Vec<String> = user.groups.iter().map(ToString::to_string).collect();
    groups.sort();
    let mut found = field("Groups:");
    found.sort();
    assert_eq!(found, groups);
}

#[tokio::test]
async fn a_standby_answers_queries_and_is_promoted() {
    let cluster = Cluster::new();
    std::fs::write(cluster.options.data.join("standby.signal"), "").unwrap();
    let (postgres, session) = cluster.ready().await;
    assert!(session.is_in_recovery().await.unwrap());
    assert!(session.replayed().await.unwrap().is_some());
    let trigger = postgres.options().data.join("promote");
    postgres.place_trigger(&trigger).await.unwrap();
    let session = postgres.promote(READY, None).await.unwrap();
    assert!(!session.is_in_recovery().await.unwrap());
    session.value("CREATE TABLE t()").await.unwrap();
    assert!(session.promotions_since_checkpoint().await.unwrap() <= 1);
    session.checkpoint().await.unwrap();
    assert_eq!(session.promotions_since_checkpoint().await.unwrap(), 0);
    let report = postgres.stop(StopMode::Fast, READY).await.unwrap();
    assert!(report.is_success());
}

/// What a takeover writes down for whoever lost the answer to a COMMIT: all that had committed has ids below, and none below is
/// given again.
// hazard: NODE-8
#[tokio::test]
async fn the_end_of_a_standbys_snapshot_is_between_what_committed_and_what_is_given_next() {
    let mut cluster = Cluster::new();
    let prepared = ("max_prepared_transactions".to_owned(), "2".to_owned());
    cluster.options.settings.push(prepared);
    let (postgres, session) = cluster.ready().await;
    let xid = "SELECT pg_current_xact_id()";
    session.value("CREATE TABLE t (n int)").await.unwrap();
    session.checkpoint().await.unwrap();
    let begun = async |what: &str| {
        let session = postgres.connect().await.unwrap();
        session.value("BEGIN").await.unwrap();
        let id = session.value(xid).await.unwrap().unwrap();
        session.value(what).await.unwrap();
        (session, Xid8::parse(&id).unwrap())
    };
    let nested = "INSERT INTO t VALUES (1); SAVEPOINT a; INSERT INTO t VALUES (2); SAVEPOINT b; INSERT INTO t VALUES (3)";
    let (_open_before, open_before) = begun(nested).await;
    let (rolled, rolled_back) = begun(nested).await;
    let (first, prepared) = begun("INSERT INTO t VALUES (4)").await;
    first.value("PREPARE TRANSACTION 'p'").await.unwrap();
    let (committing, committed) = begun(nested).await;
    committing.value("COMMIT").await.unwrap();
    rolled.value("ROLLBACK").await.unwrap();
    // These are the last that write log, and no end of theirs is in it.
    let (_open_after, open_after) = begun(nested).await;
    session.value("INSERT INTO t VALUES (5)").await.unwrap();
    postgres.kill().await.unwrap();

    let control = std::fs::read(cluster.options.data.join("global/pg_control")).unwrap();
    let checkpoint = ControlFile::parse(&control).unwrap().next_xid;
    std::fs::write(cluster.options.data.join("standby.signal"), "").unwrap();
    let (postgres, session) = cluster.ready().await;
    let end = session.snapshot_end().await.unwrap();
    assert!(committed < end && checkpoint <= end, "{committed} {end}");
    assert!(open_before < end && rolled_back < end && prepared < end);
    let trigger = postgres.options().data.join("promote");
    postgres.place_trigger(&trigger).await.unwrap();
    let session = postgres.promote(READY, None).await.unwrap();
    let next = session.value(xid).await.unwrap().unwrap();
    let next = Xid8::parse(&next).unwrap();
    assert!(end <= next, "{next} is given out below {end}");
    for (xid, status) in [
        (committed, "committed"),
        (rolled_back, "aborted"),
        (open_before, "aborted"),
        (open_after, "aborted"),
        (prepared, "in progress"),
    ] {
        let sql = format!("SELECT pg_xact_status('{xid}')");
        let said = session.value(&sql).await.unwrap();
        assert_eq!(said.as_deref(), Some(status), "{xid}");
    }
    postgres.stop(StopMode::Fast, READY).await.unwrap();
}

/// A signal was sent once, before the trigger could be seen, and nobody sent another: the takeover waited for a minute.
// hazard: PAGE-14
#[tokio::test]
async fn a_promotion_is_asked_for_until_it_begins() {
    let cluster = Cluster::new();
    std::fs::write(cluster.options.data.join("standby.signal"), "").unwrap();
    let (postgres, _session) = cluster.ready().await;
    let trigger = postgres.options().data.join("promote");
    let late = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        postgres.place_trigger(&trigger).await.unwrap();
    };
    let (promoted, ()) = tokio::join!(postgres.promote(READY, None), late);
    assert!(!promoted.unwrap().is_in_recovery().await.unwrap());
    postgres.stop(StopMode::Fast, READY).await.unwrap();
}

/// The session that the agent asked on was ended by somebody, and with it the takeover.
// hazard: NODE-1
#[tokio::test]
async fn a_promotion_outlives_the_sessions_that_ask_for_it() {
    let cluster = Cluster::new();
    std::fs::write(cluster.options.data.join("standby.signal"), "").unwrap();
    let (postgres, session) = cluster.ready().await;
    let trigger = postgres.options().data.join("promote");
    let late = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let all_others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                              WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
            assert!(session.value(all_others).await.unwrap().is_some());
        }
        postgres.place_trigger(&trigger).await.unwrap();
    };
    let (promoted, ()) = tokio::join!(postgres.promote(READY, None), late);
    assert!(!promoted.unwrap().is_in_recovery().await.unwrap());
    postgres.stop(StopMode::Fast, READY).await.unwrap();
}

/// A server that was full of clients let the agent in no more: it was taken for one that is not promoted, and killed.
// hazard: NODE-18
#[tokio::test]
async fn a_promotion_is_seen_by_a_session_from_before_when_clients_have_all_connections() {
    let mut cluster = Cluster::new();
    for (name, value) in [
        ("max_connections", "5"),
        ("superuser_reserved_connections", "0"),
    ] {
        cluster
            .options
            .settings
            .push((name.to_owned(), value.to_owned()));
    }
    // A standby must not have less than the primary had.
    let (postgres, _session) = cluster.ready().await;
    postgres.stop(StopMode::Fast, READY).await.unwrap();
    std::fs::write(cluster.options.data.join("standby.signal"), "").unwrap();
    let (postgres, session) = cluster.ready().await;
    let mut clients = Vec::new();
    while let Ok(client) = postgres.connect().await {
        clients.push(client);
    }
    assert!(clients.len() < 5, "{} beside the agent's", clients.len());
    let trigger = postgres.options().data.join("promote");
    postgres.place_trigger(&trigger).await.unwrap();
    let promoted = postgres.promote(READY, Some(session)).await.unwrap();
    assert!(!promoted.is_in_recovery().await.unwrap());
    postgres.stop(StopMode::Fast, READY).await.unwrap();
}

/// A takeover waited two minutes for a standby whose replay somebody had paused, and threw it away then.
// hazard: NODE-9
#[tokio::test]
async fn a_replay_that_was_paused_is_resumed_once() {
    let cluster = Cluster::new();
    std::fs::write(cluster.options.data.join("standby.signal"), "").unwrap();
    let (postgres, session) = cluster.ready().await;
    assert!(!session.resume_replay().await.unwrap(), "nobody paused it");
    session.value("SELECT pg_wal_replay_pause()").await.unwrap();
    assert!(session.resume_replay().await.unwrap());
    let paused = session.value("SELECT pg_is_wal_replay_paused()").await;
    assert_eq!(paused.unwrap().as_deref(), Some("f"));
    assert!(!session.resume_replay().await.unwrap(), "it is resumed");
    postgres.stop(StopMode::Fast, READY).await.unwrap();
}

/// A signal that comes before the server listens for it ended the server.
// hazard: NODE-1
#[tokio::test]
async fn a_reload_right_after_the_start_does_no_harm() {
    let cluster = Cluster::new();
    let postgres = cluster.start().await;
    let reloads = async {
        loop {
            postgres.reload();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let ready = tokio::select! {
        ready = postgres.wait_ready(READY) => ready,
        () = reloads => unreachable!("it goes on for ever"),
    };
    assert!(!ready.unwrap().is_in_recovery().await.unwrap());
    postgres.stop(StopMode::Fast, READY).await.unwrap();
}

#[tokio::test]
async fn waiting_for_a_promotion_that_nobody_asked_for_ends() {
    let cluster = Cluster::new();
    std::fs::write(cluster.options.data.join("standby.signal"), "").unwrap();
    let (_postgres, session) = cluster.ready().await;
    let error = session
        .wait_promoted(Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(matches!(error, PostgresError::Timeout { .. }), "{error}");
}

// hazard: N13
#[tokio::test]
async fn client_sessions_are_ended_and_ours_are_not() {
    let cluster = Cluster::new();
    let (postgres, session) = cluster.ready().await;
    // It may wait for the end of the recovery that a session of a client holds up.
    let another_of_ours = postgres.connect().await.unwrap();
    let options = &cluster.options;
    let mut client = tokio_postgres::Config::new();
    client.host_path(&options.run).port(options.port);
    client.user(&options.superuser).application_name("a client");
    let client = client.dbname("postgres").connect(tokio_postgres::NoTls);
    let (client, connection) = client.await.unwrap();
    let connection = tokio::spawn(connection);
    let ended = session.end_client_sessions().await.unwrap();
    assert_eq!(ended, 0, "it is idle and holds nothing up");
    client.batch_execute("BEGIN; SELECT 1").await.unwrap();
    assert_eq!(session.end_client_sessions().await.unwrap(), 1);
    assert!(connection.await.unwrap().is_err() && client.is_closed());
    for ours in [&session, &another_of_ours] {
        let answer = ours.value("SELECT 1").await.unwrap();
        assert_eq!(answer.as_deref(), Some("1"));
    }
}

#[tokio::test]
async fn the_death_of_the_postmaster_is_told_and_its_children_go_too() {
    let cluster = Cluster::new();
    let (postgres, session) = cluster.ready().await;
    kill(Pid::from_raw(postgres.pid()), Signal::SIGKILL).unwrap();
    let report = tokio::time::timeout(READY, postgres.exited())
        .await
        .unwrap();
    assert_eq!((report.code, report.signal), (None, Some(9)));
    cluster.gone().await;
    assert!(session.value("SELECT 1").await.is_err());
    // And the place is free for the next one.
    let (next, _session) = cluster.ready().await;
    next.stop(StopMode::Fast, READY).await.unwrap();
}

#[tokio::test]
async fn the_death_of_a_child_ends_the_server() {
    let cluster = Cluster::new();
    let (postgres, session) = cluster.ready().await;
    let backend = session
        .value("SELECT pg_backend_pid()")
        .await
        .unwrap()
        .unwrap();
    kill(Pid::from_raw(backend.parse().unwrap()), Signal::SIGKILL).unwrap();
    let report = tokio::time::timeout(READY, postgres.exited())
        .await
        .unwrap();
    assert!(!report.is_success(), "{report}");
    assert!(!report.redo_failed());
    cluster.gone().await;
}

#[tokio::test]
async fn kill_leaves_nothing() {
    let cluster = Cluster::new();
    let (postgres, _session) = cluster.ready().await;
    let report = postgres.kill().await.unwrap();
    assert_eq!(report.signal, Some(9));
    assert!(cluster.processes().is_empty());
    // Asking again is harmless, also by other means.
    assert_eq!(postgres.stop(StopMode::Fast, READY).await.unwrap(), report);
}

#[tokio::test]
async fn a_stop_that_takes_too_long_gets_harder() {
    let cluster = Cluster::new();
    let (postgres, session) = cluster.ready().await;
    // Smart waits for this session for ever, fast does not.
    let report = postgres
        .stop(StopMode::Smart, Duration::from_millis(300))
        .await
        .unwrap();
    assert!(session.value("SELECT 1").await.is_err());
    assert!(cluster.processes().is_empty(), "{report}");
}

#[tokio::test]
async fn a_stopped_process_does_not_hold_a_kill_up() {
    let cluster = Cluster::new();
    let (postgres, _session) = cluster.ready().await;
    kill(Pid::from_raw(postgres.pid()), Signal::SIGSTOP).unwrap();
    let report = postgres
        .stop(StopMode::Immediate, Duration::from_millis(100))
        .await
        .unwrap();
    assert_eq!(report.signal, Some(9));
    assert!(cluster.processes().is_empty());
}

#[tokio::test]
async fn dropping_the_handle_stops_the_server() {
    let cluster = Cluster::new();
    let (postgres, _session) = cluster.ready().await;
    drop(postgres);
    cluster.gone().await;
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut cluster = Cluster::new();
    cluster.options.port = taken.local_addr().unwrap().port();
    cluster.options.listen_addresses = "127.0.0.1".into();
    let error = Postgres::start(&installation(), cluster.options.clone())
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, PostgresError::PortInUse { .. }), "{text}");
    assert!(text.contains(&cluster.options.port.to_string()));
    assert!(error.hint().unwrap().contains("postgres.port"));
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let mut cluster = Cluster::new();
    cluster
        .options
        .settings
        .push(("shared_buffers".into(), "many".into()));
    let postgres = cluster.start().await;
    let error = postgres.wait_ready(READY).await.unwrap_err();
    assert!(error.to_string().contains("shared_buffers"), "{error}");

    std::fs::write(cluster.options.data.join("PG_VERSION"), "9.1\n").unwrap();
    cluster.options.settings.pop();
    let postgres = cluster.start().await;
    let error = postgres.wait_ready(READY).await.unwrap_err().to_string();
    assert!(error.contains("incompatible"), "{error}");
}

#[tokio::test]
async fn root_is_refused_before_anything_starts() {
    if run_as().is_none() {
        return;
    }
    let mut cluster = Cluster::new();
    cluster.options.run_as = None;
    let error = Postgres::start(&installation(), cluster.options.clone())
        .await
        .unwrap_err();
    assert!(matches!(error, PostgresError::Root));
}

#[tokio::test]
async fn initdb_into_a_used_directory_says_why() {
    let cluster = Cluster::new();
    let options = pgserver::InitdbOptions {
        data: cluster.options.data.clone(),
        superuser: "postgres".into(),
        arguments: Vec::new(),
        password: None,
        run_as: run_as(),
    };
    let error = installation()
        .initdb(&options)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("exists but is not empty"), "{error}");
}

/// The password is in no argument, and logs in where a database without one refuses everybody.
#[tokio::test]
async fn a_new_database_has_the_password_that_it_was_given() {
    let mut cluster = Cluster::new();
    std::fs::remove_dir_all(&cluster.options.data).unwrap();
    owned_directory(&cluster.options.data);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "correct horse\nanother line\n").unwrap();
    let options = pgserver::InitdbOptions {
        data: cluster.options.data.clone(),
        superuser: "postgres".into(),
        arguments: vec!["--locale=C".into(), "--wal-segsize=1".into()],
        password: Some(Password::read(file.path()).unwrap()),
        run_as: run_as(),
    };
    assert!(!format!("{options:?}").contains("horse"));
    installation().initdb(&options).await.unwrap();
    cluster.options.port = supervise::ports::free().unwrap();
    cluster.options.listen_addresses = "127.0.0.1".into();
    let (postgres, _session) = cluster.ready().await;
    for (password, is_in) in [("correct horse", true), ("another line", false)] {
        let login = format!(
            "host=127.0.0.1 port={} user=postgres password='{password}' dbname=postgres",
            cluster.options.port
        );
        let connected = tokio_postgres::connect(&login, tokio_postgres::NoTls).await;
        assert_eq!(connected.is_ok(), is_in, "{password}");
    }
    postgres.stop(StopMode::Fast, READY).await.unwrap();
}

#[test]
fn an_empty_password_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for text in ["", "\nsecond line\n"] {
        std::fs::write(file.path(), text).unwrap();
        let error = Password::read(file.path()).unwrap_err().to_string();
        assert!(error.contains("first line is empty"), "{error}");
    }
}
