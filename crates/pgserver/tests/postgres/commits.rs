//! What PostgreSQL says of commits that wait.

use std::time::Duration;

use pgserver::Session;

use crate::common::{Cluster, READY};

/// A session that the agent does not take for its own.
async fn client(cluster: &Cluster) -> Session {
    let options = &cluster.options;
    let session = Session::open(&options.run, options.port, &options.superuser);
    let session = session.await.unwrap();
    session
        .value("SET application_name = 'client'")
        .await
        .unwrap();
    session
}

#[tokio::test]
async fn backends_waiting_for_a_flush_are_counted_and_sleeping_ones_are_not() {
    let mut cluster = Cluster::new();
    // Whoever flushes waits long before that, and others wait for it.
    for (name, value) in [("commit_delay", "100000"), ("commit_siblings", "0")] {
        cluster.options.settings.push((name.into(), value.into()));
    }
    cluster.options.settings.retain(|(name, _)| name != "fsync");
    let (_postgres, session) = cluster.ready().await;
    let idle = session.commit_waits().await.unwrap();
    assert_eq!((idle.waiting, idle.clients), (0, 0));
    assert_eq!(idle.commit_delay, Duration::from_millis(100));

    let sleeps = client(&cluster).await;
    let sleeping = tokio::spawn(async move {
        let sql = "SELECT pg_current_xact_id(), pg_sleep(60)";
        sleeps.value(sql).await.map(drop)
    });
    let mut writing = Vec::new();
    for table in ["a", "b", "c"] {
        let writes = client(&cluster).await;
        writing.push(tokio::spawn(async move {
            let created = format!("CREATE TABLE {table} (i int)");
            writes.value(&created).await.unwrap();
            for _ in 0..300 {
                let inserted = format!("INSERT INTO {table} VALUES (1)");
                writes.value(&inserted).await.unwrap();
            }
        }));
    }
    let seen = tokio::time::timeout(READY, async {
        loop {
            let waits = session.commit_waits().await.unwrap();
            assert!(waits.waiting <= 3, "{waits:?}");
            let more = waits.snapshot_end > idle.snapshot_end;
            if waits.waiting > 0 && waits.clients >= 3 && more {
                return;
            }
            tokio::time::sleep(Duration::from_millis(7)).await;
        }
    });
    seen.await.unwrap();
    assert!(!sleeping.is_finished());
    sleeping.abort();
    writing.iter().for_each(tokio::task::JoinHandle::abort);
}
