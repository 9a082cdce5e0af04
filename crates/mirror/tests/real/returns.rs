//! Members that were primary and return with commits that the log has not: those are undone, or the member is replaced by a copy.

use std::time::{Duration, Instant};

use mirror::driver::peer::{Question, ask};
use tokio_postgres::Client;

use crate::failures::Load;
use crate::server::psql;
use crate::site::{Site, connect, run, value};

/// The count of a manager under this name.
pub fn counted(site: &Site, at: usize, name: &str) -> u64 {
    let address = site.peer_address(at).to_string();
    let told = site
        .runtime
        .block_on(ask(&address, None, Question::Metrics));
    let told = told.expect("it answers").expect("it counts");
    let line = told
        .lines()
        .find_map(|line| line.strip_prefix(&format!("understudy_mirror_{name} ")));
    line.and_then(|count| count.parse().ok())
        .expect("it is counted")
}

/// Commits of clients that wait for the log at a member.
fn waiting(site: &Site, at: usize) -> usize {
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let told = psql(&site.member(at), waits).expect("it answers");
    told.parse().expect("a number")
}

/// Loses the primary with commits that wait, and has it return: who it was.
fn lose(site: &Site, commits: usize) -> usize {
    let before = site.who_serves();
    site.cut_off(before, true);
    site.wait("commits wait", || waiting(site, before) >= commits);
    site.sides[before].server.stop("immediate");
    site.wait("the other one is primary", || {
        site.primary() == Some(1 - before)
    });
    std::thread::sleep(Duration::from_millis(500));
    site.cut_off(before, false);
    before
}

/// Waits until a member was rewound so often. It counts as a standby before, if there is nothing that it lacks.
pub fn is_rewound(site: &Site, at: usize, rewinds: u64) {
    site.wait("it is rewound", || {
        counted(site, at, "rewinds_total") >= rewinds
    });
}

/// The members were filled by nobody; one was rewound.
#[track_caller]
fn was_rewound(site: &Site, at: usize, rewinds: u64) {
    assert_eq!(counted(site, at, "rewinds_total"), rewinds);
    assert_eq!(counted(site, at, "transfers_total"), u64::from(at == 1));
    assert_eq!(site.kept(at), Vec::<String>::new());
}

/// The tables of a load with keys, without one, and with rows that all clients change.
#[test]
fn a_primary_that_was_lost_under_load_is_rewound_again_and_again() {
    // The former name of commit_ack = 'durable'.
    let site = Site::start("ack = 'logged'");
    let load = Load::begin(&site);
    let mut rewinds = [0, 0];
    for _ in 0..4 {
        load.goes_on(&site);
        let victim = lose(&site, 2);
        let started = Instant::now();
        site.sides[victim].server.start();
        rewinds[victim] += 1;
        is_rewound(&site, victim, rewinds[victim]);
        site.settle();
        eprintln!("it is a standby after {:?}", started.elapsed());
        site.must_be_equal();
        // On a busy machine the victim may have been primary, and lost, once more.
        rewinds[victim] = counted(&site, victim, "rewinds_total");
        was_rewound(&site, victim, rewinds[victim]);
    }
    assert!(rewinds.iter().any(|count| *count > 1), "{rewinds:?}");
    load.judge(&site);
}

/// Clients commit in vain, each one text, and the primary's member is lost; its server starts again when others have done this.
fn commit_in_vain(site: &Site, texts: &[&str], again: &str) -> usize {
    let before = site.who_serves();
    let clients: Vec<Client> = texts.iter().map(|_| site.connect()).collect();
    site.cut_off(before, true);
    let clients = clients.into_iter().zip(texts);
    let committing: Vec<_> = clients
        .map(|(client, text)| {
            let text = (*text).to_owned();
            site.runtime
                .spawn(async move { client.batch_execute(&text).await })
        })
        .collect();
    site.wait("all wait", || waiting(site, before) == texts.len());
    site.sides[before].server.stop("immediate");
    for one in committing {
        let done = site.runtime.block_on(one).expect("no panic");
        done.expect_err("it is not logged");
    }
    site.wait("the other one is primary", || {
        site.primary() == Some(1 - before)
    });
    run(site, &site.connect(), again);
    site.cut_off(before, false);
    site.sides[before].server.start();
    before
}

/// A manager that does not reach the zones confirms nothing. What its member has then, nobody was told of: the other one goes on without
/// it.
#[test]
fn a_commit_that_is_not_logged_is_in_doubt_and_undone() {
    let site = Site::start("");
    let client = site.connect();
    run(&site, &client, "CREATE TABLE t (id int PRIMARY KEY)");
    site.must_be_equal();
    let before = site.who_serves();
    site.cut_off(before, true);
    let inserted = site
        .runtime
        .block_on(client.batch_execute("INSERT INTO t VALUES (1)"));
    let code = inserted.expect_err("it is not logged").code().cloned();
    assert_eq!(code.as_ref().map(|code| code.code()), Some("08007"));
    site.wait("the other one is primary", || {
        site.primary() == Some(1 - before)
    });
    run(&site, &site.connect(), "INSERT INTO t VALUES (1), (2)");
    site.cut_off(before, false);
    is_rewound(&site, before, 1);
    site.settle();
    assert_eq!(site.must_be_equal().rows, 2);
    was_rewound(&site, before, 1);
}

const SCHEMA: &str = "
    CREATE TABLE t (id int PRIMARY KEY, a text);
    INSERT INTO t SELECT n, 'a' || n FROM generate_series(1, 9) n;
    CREATE TABLE whole (a int, b text); INSERT INTO whole VALUES (1, 'a'), (1, 'a'), (2, repeat('x', 9000));
    ALTER TABLE whole ALTER b SET STORAGE EXTERNAL;
    CREATE TABLE other (id int PRIMARY KEY, name text UNIQUE); INSERT INTO other VALUES (1, 'one'), (2, 'two');
    CREATE TABLE made (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);
    CREATE TABLE checked (id int PRIMARY KEY, a text CHECK (a <> '')) PARTITION BY LIST (id);
    CREATE TABLE checked_one PARTITION OF checked FOR VALUES IN (1);
    CREATE TABLE checked_rest PARTITION OF checked DEFAULT; INSERT INTO checked VALUES (1, 'a')";

/// Clients have tried again meanwhile, and have changed what was changed in vain.
#[test]
fn commits_that_waited_when_their_server_crashed_are_undone() {
    let mut site = Site::start("");
    run(&site, &site.connect(), SCHEMA);
    site.must_be_equal();
    let again = "INSERT INTO t VALUES (10, 'again'); UPDATE t SET a = a || ' again' WHERE id = 1; \
        INSERT INTO whole VALUES (4, 'again'); INSERT INTO other VALUES (3, 'in vain'); DELETE FROM t WHERE id = 8";
    let before = commit_in_vain(
        &site,
        &[
            "INSERT INTO t VALUES (10, 'in vain')",
            "UPDATE t SET a = 'in vain' WHERE id < 4",
            "DELETE FROM t WHERE id = 5",
            "UPDATE t SET id = 60 WHERE id = 6",
            "BEGIN; DELETE FROM t WHERE id = 7; INSERT INTO t VALUES (7, 'in vain'); COMMIT",
            "INSERT INTO whole VALUES (1, 'a')",
            "BEGIN; UPDATE whole SET a = 3 WHERE a = 2; DELETE FROM whole WHERE a = 3; COMMIT",
            "UPDATE other SET name = 'in vain' WHERE id = 1",
            "INSERT INTO made DEFAULT VALUES",
            "UPDATE checked SET id = 2 WHERE id = 1",
        ],
        again,
    );
    is_rewound(&site, before, 1);
    was_rewound(&site, before, 1);
    // The slot may say still that those commits are to come: another process knows that they were undone.
    site.kill_manager(before);
    site.manage(before);
    site.settle();
    site.must_be_equal();
    for name in ["rewinds_total", "transfers_total"] {
        assert_eq!(counted(&site, before, name), 0, "{name}");
    }
    let member = site.runtime.block_on(connect(&site.member(before)));
    let member = member.expect("let in");
    for (text, wanted) in [
        (
            "SELECT string_agg(a, ' ' ORDER BY id) FROM t",
            "a1 again a2 a3 a4 a5 a6 a7 a9 again",
        ),
        (
            "SELECT string_agg(left(a || b, 3), ' ' ORDER BY a) FROM whole",
            "1a 1a 2xx 4ag",
        ),
        (
            "SELECT string_agg(id || name, ' ' ORDER BY id) FROM other",
            "1one 2two 3in vain",
        ),
        ("SELECT count(*) FROM made", "0"),
        ("SELECT string_agg(id || a, ' ') FROM checked_one", "1a"),
    ] {
        assert_eq!(
            value(&site, &member, text).as_deref(),
            Some(wanted),
            "{text}"
        );
    }
}

/// Commits of which nobody can show that they are undone, and one that clients have changed in the same place since.
const FILLED: &[(&str, &str)] = &[
    ("CREATE TABLE u (id int)", "SELECT 1"),
    ("TRUNCATE whole", "SELECT 1"),
    ("DELETE FROM t WHERE id = 5", "DELETE FROM t WHERE id = 5"),
    (
        "UPDATE other SET name = 'in vain' WHERE id = 1",
        "UPDATE other SET name = 'again' WHERE id = 1",
    ),
    (
        "UPDATE t SET a = 'in vain' WHERE id = 1",
        "ALTER TABLE t ADD b int; UPDATE t SET b = 1",
    ),
];

#[test]
fn a_member_whose_commits_cannot_be_undone_is_replaced_by_a_copy_and_kept() {
    let site = Site::start("");
    run(&site, &site.connect(), SCHEMA);
    site.must_be_equal();
    for (count, (in_vain, again)) in FILLED.iter().enumerate() {
        let before = commit_in_vain(&site, &[in_vain], again);
        let kept = || site.kept(0).len() + site.kept(1).len();
        site.wait("it is replaced", || kept() == count + 1);
        site.settle();
        site.must_be_equal();
        assert_eq!(counted(&site, before, "rewinds_total"), 0, "{in_vain}");
    }
}
