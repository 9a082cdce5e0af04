//! Managers and members that are lost under load: nothing is lost, nothing is done twice, and the members are equal.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::server::psql;
use crate::site::{Site, connect, conninfo, run};

const CLIENTS: i32 = 4;

const SCHEMA: &str = "
    CREATE TABLE done (client int, n int);
    CREATE TABLE counters (client int PRIMARY KEY, n int NOT NULL);
    CREATE TABLE numbered (id serial PRIMARY KEY, client int, at timestamptz DEFAULT clock_timestamp());
    INSERT INTO counters SELECT c, 0 FROM generate_series(1, 4) c";

/// Clients that write until they are told to end; each says which of its numbers were acknowledged.
pub struct Load {
    ends: Arc<AtomicBool>,
    /// How often a client was told of an error.
    errors: Arc<AtomicU32>,
    /// How much of each was acknowledged so far.
    acknowledged: Vec<Arc<AtomicUsize>>,
    clients: Vec<JoinHandle<Vec<i32>>>,
}

/// Transactions of one client, until its session is lost.
async fn transactions(
    client: i32,
    conninfo: &str,
    n: &mut i32,
    (done, acknowledged): (&mut Vec<i32>, &AtomicUsize),
    ends: &AtomicBool,
) -> Result<(), tokio_postgres::Error> {
    let mut session = connect(conninfo).await?;
    while !ends.load(Ordering::Relaxed) {
        *n += 1;
        let transaction = session.transaction().await?;
        transaction
            .execute("INSERT INTO done VALUES ($1, $2)", &[&client, &*n])
            .await?;
        transaction
            .execute(
                "UPDATE counters SET n = n + 1 WHERE client = $1",
                &[&client],
            )
            .await?;
        transaction
            .batch_execute(&format!("INSERT INTO numbered (client) VALUES ({client})"))
            .await?;
        transaction.commit().await?;
        done.push(*n);
        acknowledged.store(done.len(), Ordering::Relaxed);
        // Nobody waits for a standby that is not current: without a pause they can outrun it for as long as they like.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

impl Load {
    /// Makes its tables, and begins.
    pub fn begin(site: &Site) -> Load {
        run(site, &site.connect(), SCHEMA);
        Load::start(site)
    }

    fn start(site: &Site) -> Load {
        let ends = Arc::new(AtomicBool::new(false));
        let errors = Arc::new(AtomicU32::new(0));
        let acknowledged: Vec<Arc<AtomicUsize>> = (0..CLIENTS).map(|_| Arc::default()).collect();
        let clients = (1..).zip(acknowledged.clone()).map(|(client, mine)| {
            let (ends, errors, conninfo) = (ends.clone(), errors.clone(), site.conninfo());
            site.runtime.spawn(async move {
                let (mut n, mut done) = (0, Vec::new());
                while !ends.load(Ordering::Relaxed) {
                    // Its manager may be gone: it connects to whoever is primary.
                    let kept = (&mut done, &*mine);
                    let ended = transactions(client, &conninfo, &mut n, kept, &ends).await;
                    if let Err(error) = ended {
                        eprintln!("client {client}: {error:?}");
                        errors.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
                done
            })
        });
        let clients = clients.collect();
        Load {
            ends,
            errors,
            acknowledged,
            clients,
        }
    }

    fn counts(&self) -> Vec<usize> {
        let counts = self.acknowledged.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Waits until each client was told of two more commits, so that at least one of them was begun after now: whatever happened, all
    /// go on. How many that are in a time is the machine's affair.
    pub fn goes_on(&self, site: &Site) {
        let before = self.counts();
        site.wait("each client goes on", || {
            let mut counts = self.counts().into_iter().zip(&before);
            counts.all(|(now, before)| now >= before + 2)
        });
    }

    /// Ends it, and compares what was acknowledged with what is there.
    pub fn judge(self, site: &Site) {
        self.goes_on(site);
        self.ends.store(true, Ordering::Relaxed);
        let acknowledged: Vec<Vec<i32>> = self
            .clients
            .into_iter()
            .map(|client| site.runtime.block_on(client).expect("it ends"))
            .collect();
        site.must_be_equal();
        let session = site.connect();
        for (client, done) in (1..).zip(&acknowledged) {
            let rows = site.runtime.block_on(session.query(
                "SELECT n FROM done WHERE client = $1 ORDER BY n",
                &[&client],
            ));
            let there: Vec<i32> = rows.expect("reads").iter().map(|row| row.get(0)).collect();
            let mut once = there.clone();
            once.dedup();
            assert_eq!(there, once, "client {client}: something was done twice");
            let lost: Vec<&i32> = done
                .iter()
                .filter(|n| there.binary_search(n).is_err())
                .collect();
            assert!(
                lost.is_empty(),
                "client {client}: acknowledged and lost: {lost:?}"
            );
            let counted = "SELECT n, (SELECT count(*) FROM numbered WHERE client = $1)::int FROM counters WHERE client = $1";
            let row = site
                .runtime
                .block_on(session.query_one(counted, &[&client]))
                .expect("reads");
            let counts: (i32, i32) = (row.get(0), row.get(1));
            let all = i32::try_from(there.len()).expect("few");
            assert_eq!(
                counts,
                (all, all),
                "client {client}: transactions were done in part, or twice"
            );
        }
    }
}

#[test]
fn nothing_is_lost_with_managers() {
    lose_managers(Site::start(""));
}

fn lose_managers(mut site: Site) {
    let load = Load::begin(&site);
    for round in 0..4 {
        load.goes_on(&site);
        let primary = site.who_serves();
        let victim = if round % 2 == 0 { primary } else { 1 - primary };
        site.kill_manager(victim);
        load.goes_on(&site);
        site.manage(victim);
        site.settle();
        site.must_be_equal();
    }
    load.judge(&site);
}

// hazard: MIRROR-27
#[test]
fn nothing_is_lost_with_members() {
    lose_members(&Site::start("commit_ack = 'durable'"));
}

/// Commits that waited for the log are visible after a crash, although nobody was told of them.
fn lose_members(site: &Site) {
    let load = Load::begin(site);
    for round in 0..4 {
        load.goes_on(site);
        let primary = site.who_serves();
        let victim = if round % 2 == 0 { primary } else { 1 - primary };
        site.sides[victim].server.stop("immediate");
        site.wait("another primary", || site.primary() == Some(1 - victim));
        load.goes_on(site);
        site.sides[victim].server.start();
        site.settle();
        site.must_be_equal();
    }
    load.judge(site);
}

/// Which sequences there are is not asked for each commit: those that were made a moment ago count.
#[test]
fn a_sequence_made_a_moment_ago_gives_no_value_twice() {
    let mut site = Site::start("");
    for round in 0..3 {
        let session = site.connect();
        run(
            &site,
            &session,
            &format!("CREATE SEQUENCE s{round}; CREATE TABLE t{round} (n bigint)"),
        );
        let takes =
            format!("INSERT INTO t{round} SELECT nextval('s{round}') FROM generate_series(1, 100)");
        run(&site, &session, &takes);
        let victim = site.who_serves();
        site.kill_manager(victim);
        site.wait("another primary", || site.primary() == Some(1 - victim));
        run(&site, &site.connect(), &takes);
        site.manage(victim);
        site.settle();
        site.must_be_equal();
        let twice = format!("SELECT n FROM t{round} GROUP BY n HAVING count(*) > 1 LIMIT 1");
        let session = site.connect();
        let rows = site
            .runtime
            .block_on(session.query(&twice, &[]))
            .expect("reads");
        let twice: Option<i64> = rows.first().map(|row| row.get(0));
        assert_eq!(twice, None, "a value was given twice");
    }
}

// hazard: MIRROR-51
// hazard: MIRROR-53
#[test]
fn a_switchover_loses_nothing_and_goes_back() {
    switch_over(&Site::start(""));
}

fn switch_over(site: &Site) {
    let load = Load::begin(site);
    for _ in 0..3 {
        load.goes_on(site);
        let before = site.who_serves();
        site.switch_to(1 - before);
        site.settle();
    }
    let errors = load.errors.load(Ordering::Relaxed);
    load.judge(site);
    assert_eq!(errors, 0, "clients were told of errors");
}

// hazard: MIRROR-37
// hazard: MIRROR-46
#[test]
fn a_member_that_differs_is_found_and_made_anew() {
    let site = Site::start("");
    let client = site.connect();
    let setup = "CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t SELECT n, 'a' FROM generate_series(1, 10) n";
    site.runtime
        .block_on(client.batch_execute(setup))
        .expect("it is made");
    site.must_be_equal();
    let standby = 1 - site.who_serves();
    let member = format!("{} dbname=app", conninfo(&site.sides[standby].server));
    psql(&member, "UPDATE t SET a = 'wrong' WHERE id = 5")
        .expect("it is done behind the manager's back");
    site.wait("the difference is found", || {
        let status = site.status(standby);
        status.is_some_and(|status| status.aside_since.is_some())
    });
    site.keep(1 - standby);
    site.settle();
    site.must_be_equal();
    assert_eq!(site.kept(standby).len(), 1);
}

/// A manager stood still while the other one connected to it again and again. When it went on it took the connections in any
/// order, and one that was over already replaced the one that stood: what it had to say went nowhere, and it never followed.
// hazard: MIRROR-50
#[test]
fn a_connection_that_comes_and_goes_does_not_silence_the_one_that_stands() {
    let site = Site::start("");
    let load = Load::begin(&site);
    for _ in 0..5 {
        let standby = 1 - site.who_serves();
        let mut stray = TcpStream::connect(site.peer_address(standby)).expect("it listens");
        // A packet's length, and a link.
        stray.write_all(&[1, 0, 0, 0, 7]).expect("it is read");
        load.goes_on(&site);
        drop(stray);
        load.goes_on(&site);
        site.settle();
    }
    load.judge(&site);
}

/// A server that crashed has lost what it had committed last, and may be back before its manager hears of it.
// hazard: MIRROR-29
#[test]
fn nobody_works_with_a_server_that_is_not_the_one_that_was_asked() {
    let site = Site::start("");
    let at = site.who_serves();
    // As after a crash: whatever had a session there is gone, and the manager does not know it yet.
    site.sides[at].server.sql(&[
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted",
    ]);
    let port = site.client_address(at).port();
    let conninfo = format!("host=127.0.0.1 port={port} user=postgres dbname=app");
    let Err(error) = site.runtime.block_on(connect(&conninfo)) else {
        panic!("a client was let in");
    };
    let code = error.code().expect("the manager says so");
    assert_eq!(*code, tokio_postgres::error::SqlState::CANNOT_CONNECT_NOW);
    site.settle();
    site.must_be_equal();
}
