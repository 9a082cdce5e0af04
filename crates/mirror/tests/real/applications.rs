//! Applications' daily work, at the same time, with and without losses: both members are equal afterwards, and nobody hangs.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::SinkExt;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, IsolationLevel};

use crate::site::{Site, connect, run, value};

const SCHEMA: &str = "
    CREATE TYPE mood AS ENUM ('well', 'ill');
    CREATE TABLE owners (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, mood mood, tags text[], data jsonb,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(), updated_at timestamptz);
    CREATE TABLE pets (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), owner bigint NOT NULL REFERENCES owners ON DELETE CASCADE,
        name text, seen int NOT NULL DEFAULT 0, UNIQUE (owner, name));
    CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.updated_at = clock_timestamp(); RETURN NEW; END';
    CREATE TRIGGER touch BEFORE UPDATE ON owners FOR EACH ROW EXECUTE FUNCTION touch();
    CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL);
    INSERT INTO accounts SELECT n, 1000 FROM generate_series(1, 6) n;
    CREATE TABLE lines (a int, b text);
    CREATE TABLE counted (id int PRIMARY KEY, n bigint NOT NULL);
    INSERT INTO counted VALUES (1, 0);
    CREATE TABLE parts (id bigserial, at date NOT NULL, v int) PARTITION BY RANGE (at);
    CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2026-07-01');
    CREATE TABLE parts_2 PARTITION OF parts DEFAULT";

type Does<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;
type Task = for<'a> fn(&'a mut Client, u64) -> Does<'a>;

/// As an ORM does: everything is prepared, a savepoint for each attempt, and a key that may be taken.
fn maps(client: &mut Client, turn: u64) -> Does<'_> {
    Box::pin(async move {
        let transaction = client.transaction().await?;
        let tags = vec!["a".to_owned(), turn.to_string()];
        let row = transaction
            .query_one(
                "INSERT INTO owners (name, mood, tags, data) VALUES ($1, 'well', $2, '{\"a\": [1, null]}') RETURNING id, created_at",
                &[&format!("owner {turn}"), &tags],
            )
            .await?;
        let id: i64 = row.get(0);
        for name in ["rex", "rex", "tom"] {
            transaction.batch_execute("SAVEPOINT attempt").await?;
            let insert = "INSERT INTO pets (owner, name) VALUES ($1, $2) RETURNING id";
            let done = transaction.query(insert, &[&id, &name]).await;
            let ends = match done {
                Ok(_) => "RELEASE SAVEPOINT attempt",
                Err(_) => "ROLLBACK TO SAVEPOINT attempt",
            };
            transaction.batch_execute(ends).await?;
        }
        transaction
            .execute(
                "UPDATE owners SET mood = 'ill', name = upper(name) WHERE id = $1",
                &[&id],
            )
            .await?;
        transaction
            .execute("UPDATE pets SET seen = seen + 1 WHERE owner IN (SELECT id FROM owners ORDER BY random() LIMIT 3)", &[])
            .await?;
        if turn.is_multiple_of(3) {
            transaction
                .execute("DELETE FROM owners WHERE id < $1", &[&(id - 20)])
                .await?;
        }
        match turn % 5 {
            0 => transaction.rollback().await,
            _ => transaction.commit().await,
        }
    })
}

fn copies(client: &mut Client, turn: u64) -> Does<'_> {
    Box::pin(async move {
        let sink = client.copy_in("COPY lines FROM STDIN").await?;
        futures_util::pin_mut!(sink);
        for line in 0..50 {
            let row = format!("{line}\tline {turn} of now\n");
            sink.send(bytes::Bytes::from(row)).await?;
        }
        sink.finish().await?;
        if turn.is_multiple_of(4) {
            client
                .batch_execute("DELETE FROM lines WHERE ctid IN (SELECT ctid FROM lines LIMIT 60)")
                .await?;
        }
        if turn % 40 == 39 {
            client.batch_execute("TRUNCATE lines").await?;
        }
        Ok(())
    })
}

/// Money is moved in any order: some wait for each other in circles.
fn moves(client: &mut Client, turn: u64) -> Does<'_> {
    Box::pin(async move {
        let (from, to) = ((turn * 7 % 6 + 1) as i32, (turn * 5 % 6 + 1) as i32);
        let transaction = client.transaction().await?;
        let update = "UPDATE accounts SET balance = balance + $1 WHERE id = $2";
        transaction.execute(update, &[&-1_i64, &from]).await?;
        transaction.execute(update, &[&1_i64, &to]).await?;
        transaction.commit().await
    })
}

fn counts(client: &mut Client, _: u64) -> Does<'_> {
    Box::pin(async move {
        let builder = client.build_transaction();
        let transaction = builder
            .isolation_level(IsolationLevel::Serializable)
            .start()
            .await?;
        let row = transaction
            .query_one("SELECT n FROM counted WHERE id = 1", &[])
            .await?;
        let n: i64 = row.get(0);
        let update = "UPDATE counted SET n = $1 WHERE id = 1";
        transaction.execute(update, &[&(n + 1)]).await?;
        transaction.commit().await
    })
}

/// Tables that come and go, within transactions and by themselves.
fn defines(client: &mut Client, turn: u64) -> Does<'_> {
    Box::pin(async move {
        let name = format!("made_{}", turn % 4);
        client
            .batch_execute(&format!("DROP TABLE IF EXISTS {name}"))
            .await?;
        let end = match turn.is_multiple_of(3) {
            true => "ROLLBACK",
            false => "COMMIT",
        };
        for text in [
            "BEGIN",
            &format!("CREATE TABLE {name} (id serial PRIMARY KEY, a text)"),
            &format!("INSERT INTO {name} (a) SELECT 'x' FROM generate_series(1, 5)"),
            &format!("CREATE INDEX ON {name} (a)"),
            &format!("ALTER TABLE {name} ADD COLUMN b int NOT NULL DEFAULT 7"),
            &format!("UPDATE {name} SET b = id"),
            end,
        ] {
            client.batch_execute(text).await?;
        }
        Ok(())
    })
}

/// Session state: cursors, temporary tables, locks, notifications, settings.
fn keeps(client: &mut Client, turn: u64) -> Does<'_> {
    Box::pin(async move {
        client
            .batch_execute("LISTEN news; SET work_mem = '5MB'")
            .await?;
        let transaction = client.transaction().await?;
        transaction
            .batch_execute("SELECT pg_advisory_xact_lock(7)")
            .await?;
        transaction
            .batch_execute("CREATE TEMP TABLE mine ON COMMIT DROP AS SELECT id, name FROM owners")
            .await?;
        transaction
            .batch_execute("DECLARE c CURSOR FOR SELECT id FROM mine ORDER BY id; MOVE 1 IN c")
            .await?;
        transaction.query("FETCH 5 FROM c", &[]).await?;
        transaction
            .batch_execute("INSERT INTO lines SELECT 1, name FROM mine LIMIT 2; NOTIFY news, 'x'")
            .await?;
        let part = "INSERT INTO parts (at, v) VALUES (DATE '2026-05-01' + $1::int, $2)";
        transaction
            .execute(part, &[&((turn % 200) as i32), &(turn as i32)])
            .await?;
        transaction
            .execute(
                "UPDATE parts SET at = at + 100 WHERE v = $1",
                &[&(turn as i32 - 2)],
            )
            .await?;
        transaction.commit().await?;
        client.batch_execute("UNLISTEN *; RESET ALL").await
    })
}

const TASKS: &[Task] = &[
    maps, maps, copies, moves, moves, moves, counts, counts, keeps, defines,
];
/// The same without definitions: a table that is dropped while it is dumped ends a state transfer, which is tried again.
const CHANGES: &[Task] = TASKS.split_at(TASKS.len() - 1).0;

/// Applications at work.
struct Work {
    ends: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    workers: Vec<JoinHandle<Vec<String>>>,
}

/// True if an application tries again after this.
fn is_to_be_tried_again(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE)
    )
}

impl Work {
    fn begin(site: &Site, tasks: &'static [Task]) -> Work {
        site.who_serves();
        let (ends, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let workers = tasks.iter().enumerate().map(|(number, task)| {
            let (conninfo, ends, done) = (site.conninfo(), ends.clone(), done.clone());
            site.runtime.spawn(async move {
                let mut odd = Vec::new();
                let mut client: Option<Client> = None;
                let mut turn = number as u64;
                while !ends.load(Ordering::Relaxed) {
                    turn += 1;
                    let Some(session) = &mut client else {
                        client = connect(&conninfo).await.ok();
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    };
                    let working =
                        tokio::time::timeout(Duration::from_secs(40), task(session, turn));
                    let worked = working.await;
                    // Nobody waits for a standby that is not current: without a pause they can outrun it for as long as they like.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    match worked {
                        Ok(Ok(())) => drop(done.fetch_add(1, Ordering::Relaxed)),
                        Ok(Err(error)) if is_to_be_tried_again(&error) => {
                            let back = session.batch_execute("ROLLBACK").await;
                            client = client.filter(|_| back.is_ok());
                        }
                        Ok(Err(error)) => {
                            odd.push(format!("{number}: {error:?}"));
                            client = None;
                        }
                        Err(_) => {
                            odd.push(format!("{number}: hangs"));
                            client = None;
                        }
                    }
                }
                odd
            })
        });
        let workers = workers.collect();
        Work {
            ends,
            done,
            workers,
        }
    }

    /// Waits until so much more was done.
    fn goes_on(&self, site: &Site, more: u64) {
        let before = self.done.load(Ordering::Relaxed);
        site.wait("applications go on", || {
            self.done.load(Ordering::Relaxed) >= before + more
        });
    }

    /// Errors that applications got and that are not to be tried again.
    fn end(self, site: &Site) -> Vec<String> {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.workers.into_iter().map(|worker| {
            let odd = site.runtime.block_on(worker);
            odd.expect("nobody panics")
        });
        ended.flatten().collect()
    }
}

/// Both members have the same, and what must be so is so.
fn judge(site: &Site) {
    site.settle();
    site.must_be_equal();
    for at in 0..2 {
        let status = site.status(at).expect("it answers");
        assert_eq!(status.difference, None);
    }
    let client = site.connect();
    let sum = value(site, &client, "SELECT sum(balance) FROM accounts");
    assert_eq!(sum.as_deref(), Some("6000"));
}

#[test]
fn what_applications_do_is_the_same_on_both_members() {
    let site = Site::start("");
    run(&site, &site.connect(), SCHEMA);
    let work = Work::begin(&site, TASKS);
    work.goes_on(&site, 300);
    let odd = work.end(&site);
    assert!(odd.is_empty(), "{odd:#?}");
    judge(&site);
}

/// Whatever is killed while applications work, and whoever is primary then.
#[test]
fn what_applications_do_is_the_same_whatever_is_lost() {
    let mut site = Site::start("");
    run(&site, &site.connect(), SCHEMA);
    let work = Work::begin(&site, CHANGES);
    let began = Instant::now();
    for round in 0..4 {
        work.goes_on(&site, 30);
        let primary = site.who_serves();
        match round {
            0 | 1 => {
                let at = if round == 0 { primary } else { 1 - primary };
                site.kill_manager(at);
                work.goes_on(&site, 10);
                site.manage(at);
            }
            _ => {
                let at = if round == 2 { primary } else { 1 - primary };
                site.sides[at].server.stop("immediate");
                work.goes_on(&site, 10);
                site.sides[at].server.start();
            }
        }
        site.settle();
    }
    work.goes_on(&site, 30);
    let odd = work.end(&site);
    assert!(!odd.iter().any(|one| one.contains("hangs")), "{odd:#?}");
    judge(&site);
    assert!(began.elapsed() < Duration::from_secs(300));
}
