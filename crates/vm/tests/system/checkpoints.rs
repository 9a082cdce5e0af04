//! Checkpoints of a machine that works, applied to one that waits, which goes on at last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vm::host::{Checkpoint, Guest, HostError, Machine, Memory, PAGE, Run, Start, checkpoint};
use vm::image::Database;

use crate::stage::{Prepared, Stage, image};

const EPOCHS: u32 = 1000;
const CLIENTS: u64 = 4;

/// Rows that were acknowledged, by client.
type Acknowledged = Arc<Vec<AtomicU64>>;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a whole machine"]
async fn the_copy_equals_the_machine_after_a_thousand_checkpoints_and_goes_on() {
    let stage = Stage::new();
    let image = image(Database::PostgreSql).await;
    let (active, standby) = (stage.machine("a", &image), stage.machine("b", &image));
    let mut machine = active.start(Start::Boot);
    let mut waiting = standby.start(Start::Incoming);
    let mut touched = Vec::new();
    waiting.populated(&mut touched).unwrap();
    assert_eq!(
        touched,
        [],
        "a waiting machine writes nothing into its memory"
    );

    let setup = active.connect().await;
    println!("PostgreSQL answers; {}", machine.version());
    setup.batch_execute(SCHEMA).await.unwrap();
    active.disk.record();
    // The disks are copies of one image: what was written until now is copied as a whole.
    machine.pause().unwrap();
    copy_disk(&active, &standby);
    active.disk.record();
    machine.resume().unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged: Acknowledged = Arc::new((0..CLIENTS).map(|_| AtomicU64::new(0)).collect());
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let session = active.connect().await;
        clients.push(tokio::spawn(work(
            session,
            client,
            stop.clone(),
            acknowledged.clone(),
        )));
    }
    tokio::task::block_in_place(|| copy_live(&mut machine, &waiting));
    let epochs = || {
        for number in 0..EPOCHS {
            let began = Instant::now();
            epoch(&mut machine, &active, &waiting, &standby, number);
            let pause = Duration::from_millis(u64::from(25 + number % 26));
            std::thread::sleep(pause.saturating_sub(began.elapsed()));
        }
    };
    let began = Instant::now();
    tokio::task::block_in_place(epochs);
    println!("{EPOCHS} checkpoints in {:?}", began.elapsed());

    // The last one; the machine does not go on.
    machine.pause().unwrap();
    let mut last = Checkpoint::default();
    take_paused(&mut machine, &mut last);
    let left_out = one_that_differs(&last, waiting.memory());
    for (page, contents) in last.pages() {
        if page != left_out {
            waiting.memory().write(page, contents).unwrap();
        }
    }
    assert_eq!(
        differences(machine.memory(), waiting.memory()),
        [left_out],
        "the one page that was left out, and no other, is found"
    );
    let (_, contents) = last.pages().find(|(page, _)| *page == left_out).unwrap();
    waiting.memory().write(left_out, contents).unwrap();
    assert_eq!(
        differences(machine.memory(), waiting.memory()),
        Vec::<u64>::new()
    );
    standby.disk.apply(&active.disk.cut().writes).unwrap();

    let rows: Vec<u64> = acknowledged
        .iter()
        .map(|rows| rows.load(Ordering::SeqCst))
        .collect();
    stop.store(true, Ordering::SeqCst);
    machine.kill().unwrap();
    drop(machine);
    let began = Instant::now();
    waiting.load(&last.devices).unwrap();
    let loaded = began.elapsed();
    waiting.resume().unwrap();
    let client = standby.connect().await;
    println!(
        "loaded in {loaded:?}, answers after {:?}; {rows:?} rows",
        began.elapsed()
    );
    for (number, acknowledged) in rows.iter().enumerate() {
        let number = i64::try_from(number).unwrap();
        let query = "SELECT count(*) FROM done WHERE client = $1";
        let found: i64 = client.query_one(query, &[&number]).await.unwrap().get(0);
        let found = u64::try_from(found).unwrap();
        // One more may have been committed and not yet acknowledged.
        assert!(
            (*acknowledged..=acknowledged + 1).contains(&found),
            "{number}: {found} of {acknowledged}"
        );
        assert!(*acknowledged > 0, "client {number} did nothing");
    }
    client.batch_execute(INTACT).await.unwrap();
    for client in clients {
        client.abort();
    }
    // The one that went on can be copied too.
    let mut written = Vec::new();
    waiting.written(&mut written).unwrap();
    client
        .batch_execute("INSERT INTO done VALUES (99, 1, repeat('x', 500))")
        .await
        .unwrap();
    written.clear();
    waiting.written(&mut written).unwrap();
    assert!(!written.is_empty());
}

const SCHEMA: &str = "
    CREATE EXTENSION amcheck;
    CREATE TABLE done (client bigint, number bigint, filler text, PRIMARY KEY (client, number));
    CREATE TABLE counters (id bigint PRIMARY KEY, value bigint NOT NULL);
    INSERT INTO counters SELECT n, 0 FROM generate_series(1, 1000) n;
    CHECKPOINT";

/// The indexes have exactly what their tables have, and both counts of the transactions agree.
const INTACT: &str = "
    SELECT bt_index_check('done_pkey', true), bt_index_check('counters_pkey', true);
    DO $$ BEGIN
        ASSERT (SELECT sum(value) FROM counters) = (SELECT count(*) FROM done);
    END $$";

/// One transaction after the other, until it is told to stop or the machine is gone.
async fn work(
    session: tokio_postgres::Client,
    client: u64,
    stop: Arc<AtomicBool>,
    acknowledged: Acknowledged,
) {
    let mut number = 0u64;
    while !stop.load(Ordering::SeqCst) {
        number += 1;
        let counter = (number * 37 + client * 11) % 1000 + 1;
        let transaction = format!(
            "BEGIN; INSERT INTO done VALUES ({client}, {number}, repeat('x', 200));
             UPDATE counters SET value = value + 1 WHERE id = {counter}; COMMIT"
        );
        if session.batch_execute(&transaction).await.is_err() {
            return;
        }
        acknowledged[usize::try_from(client).unwrap()].store(number, Ordering::SeqCst);
    }
}

/// The first copy, while the machine works.
fn copy_live(machine: &mut Machine, waiting: &Machine) {
    let mut runs = Vec::new();
    machine.written(&mut runs).unwrap();
    runs.clear();
    machine.populated(&mut runs).unwrap();
    for round in 0..4 {
        let began = Instant::now();
        let mut contents = Vec::new();
        for run in runs.drain(..) {
            let begin = contents.len();
            machine.read(run, &mut contents).unwrap();
            waiting
                .memory()
                .write(run.first, &contents[begin..])
                .unwrap();
        }
        let pages = contents.len() / PAGE;
        println!("round {round}: {pages} pages in {:?}", began.elapsed());
        machine.written(&mut runs).unwrap();
    }
    for run in runs {
        let mut contents = Vec::new();
        machine.read(run, &mut contents).unwrap();
        waiting.memory().write(run.first, &contents).unwrap();
    }
}

fn epoch(
    machine: &mut Machine,
    active: &Prepared,
    waiting: &Machine,
    standby: &Prepared,
    number: u32,
) {
    let mut taken = Checkpoint::default();
    let mut cut = None;
    let timing = checkpoint(machine, &mut taken, || {
        cut = Some(active.disk.cut());
        Ok::<(), HostError>(())
    });
    let timing = timing.unwrap();
    for (page, contents) in taken.pages() {
        waiting.memory().write(page, contents).unwrap();
    }
    standby.disk.apply(&cut.unwrap().writes).unwrap();
    if number.is_multiple_of(100) {
        let pages = taken.contents.len() / PAGE;
        println!(
            "checkpoint {number}: {pages} pages, paused {:?}: {timing:?}",
            timing.paused()
        );
    }
}

/// A checkpoint of a machine that is paused and stays it.
fn take_paused(machine: &mut Machine, into: &mut Checkpoint) {
    machine.written(&mut into.runs).unwrap();
    for run in &into.runs {
        machine.read(*run, &mut into.contents).unwrap();
    }
    machine.devices(&mut into.devices).unwrap();
}

fn one_that_differs(taken: &Checkpoint, copy: &Memory) -> u64 {
    let differs = |(page, contents): &(u64, &[u8])| {
        let mut there = Vec::new();
        copy.read(
            Run {
                first: *page,
                count: 1,
            },
            &mut there,
        )
        .unwrap();
        there != *contents
    };
    taken
        .pages()
        .find(differs)
        .expect("a machine that works writes something")
        .0
}

/// The pages in which two memories differ.
fn differences(one: &Memory, other: &Memory) -> Vec<u64> {
    const AT_ONCE: u64 = 256;
    let (mut a, mut b, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for first in (0..one.pages()).step_by(usize::try_from(AT_ONCE).unwrap()) {
        let run = Run {
            first,
            count: AT_ONCE,
        };
        a.clear();
        b.clear();
        one.read(run, &mut a).unwrap();
        other.read(run, &mut b).unwrap();
        if a == b {
            continue;
        }
        let pairs = a.chunks(PAGE).zip(b.chunks(PAGE));
        found.extend(
            run.pages()
                .zip(pairs)
                .filter(|(_, (a, b))| a != b)
                .map(|(page, _)| page),
        );
    }
    found
}

fn copy_disk(from: &Prepared, to: &Prepared) {
    let mut buffer = vec![0; 1 << 20];
    for offset in (0..from.disk.bytes()).step_by(buffer.len()) {
        from.disk.look(offset, &mut buffer).unwrap();
        let contents = vm::disk::Contents::Bytes(buffer.clone());
        let mut there = vec![0; buffer.len()];
        to.disk.look(offset, &mut there).unwrap();
        if there != buffer {
            to.disk
                .apply(&[vm::disk::Write { offset, contents }])
                .unwrap();
        }
    }
}
