//! Checkpoints of a machine that works, applied to one that waits, which goes on at last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vm::core::Number;
use vm::disk::{self, Cut, Disk};
use vm::encoding::{Counts, Encoder, Packer, Page, put_state};
use vm::host::{
    Checkpoint, Guest, HostError, Machine, Memory, PAGE, Run, Start, Timing, checkpoint,
};
use vm::image::Database;
use vm::standby::{CheckpointPart, End, Mirror, add};

use crate::stage::{Prepared, Stage, image};

const CLIENTS: u64 = 4;
/// Blocks of the disk that are kept as they were sent.
const BLOCKS: usize = 4096;

/// Rows that were acknowledged, by client.
type Acknowledged = Arc<Vec<AtomicU64>>;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a whole machine"]
async fn the_copy_equals_the_machine_after_a_thousand_checkpoints_and_goes_on() {
    checkpoints(1, 1000).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a whole machine"]
async fn machine_is_copied_byte_for_byte_and_continues() {
    checkpoints(1, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a whole machine"]
async fn a_machine_with_two_processors_is_copied_and_goes_on() {
    checkpoints(2, 200).await;
}

async fn checkpoints(cpus: u32, epochs: u64) {
    let stage = Stage::new();
    let image = image(Database::PostgreSql).await;
    let (mut active, mut standby) = (stage.machine("a", &image), stage.machine("b", &image));
    active.spec.cpus = cpus;
    standby.spec.cpus = cpus;
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
    // The disks are copies of one image: what was written until now is copied as a whole.
    machine.pause().unwrap();
    copy_disk(&active, &standby);
    active.disk.record(u64::MAX);
    machine.resume().unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged: Acknowledged = Arc::new((0..CLIENTS).map(|_| AtomicU64::new(0)).collect());
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let session = active.connect().await;
        let (stop, acknowledged) = (stop.clone(), acknowledged.clone());
        clients.push(tokio::spawn(work(session, client, stop, acknowledged)));
    }
    let mut copy = Copying::new(&active, &standby, machine.pages());
    let began = Instant::now();
    tokio::task::block_in_place(|| {
        copy.begin(&mut machine, &waiting);
        for number in 0..epochs {
            let began = Instant::now();
            copy.epoch(&mut machine, &waiting);
            let pause = Duration::from_millis(25 + number % 26);
            std::thread::sleep(pause.saturating_sub(began.elapsed()));
        }
    });
    println!(
        "{epochs} checkpoints in {:?}: {:?}",
        began.elapsed(),
        copy.counts
    );
    copy.report();

    // The last one; the machine does not go on.
    let (left_out, contents) = copy.last(&mut machine, &waiting);
    assert_eq!(
        differences(machine.memory(), waiting.memory()),
        [left_out],
        "the one page that was left out, and no other, is found"
    );
    waiting.memory().write(left_out, &contents).unwrap();
    assert_eq!(
        differences(machine.memory(), waiting.memory()),
        Vec::<u64>::new()
    );
    assert_eq!(disk_differences(&active, &standby), Vec::<u64>::new());

    let rows: Vec<u64> = acknowledged
        .iter()
        .map(|rows| rows.load(Ordering::SeqCst))
        .collect();
    stop.store(true, Ordering::SeqCst);
    machine.kill().unwrap();
    drop(machine);
    let began = Instant::now();
    waiting.load(&copy.mirror.take().0).unwrap();
    let loaded = began.elapsed();
    waiting.resume().unwrap();
    let client = standby.connect().await;
    println!(
        "loaded in {loaded:?}, answers after {:?}; {rows:?} rows",
        began.elapsed()
    );
    verify(&client, &rows).await;
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

/// What was acknowledged is there, at most one more of each client, and everything is consistent.
async fn verify(client: &tokio_postgres::Client, rows: &[u64]) {
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

/// A machine's memory and disk on their way to another host, as the engine sends them and the standby takes them.
struct Copying {
    active: Arc<Disk>,
    encoder: Encoder,
    blocks: Encoder,
    packer: Packer,
    devices: Vec<u8>,
    mirror: Mirror,
    number: Number,
    counts: Counts,
    sent: usize,
    timings: Vec<Timing>,
}

impl Copying {
    fn new(active: &Prepared, standby: &Prepared, pages: u64) -> Copying {
        Copying {
            active: active.disk.clone(),
            encoder: Encoder::new(usize::try_from(pages / 10).unwrap()),
            blocks: Encoder::new(BLOCKS),
            packer: Packer::new(),
            devices: Vec::new(),
            mirror: Mirror::new(standby.disk.clone()),
            number: Number::default(),
            counts: Counts::default(),
            sent: 0,
            timings: Vec::new(),
        }
    }

    /// The first copy, while the machine works.
    fn begin(&mut self, machine: &mut Machine, waiting: &Machine) {
        let mut runs = Vec::new();
        machine.written(&mut runs).unwrap();
        runs.clear();
        machine.populated(&mut runs).unwrap();
        for round in 0..4 {
            let began = Instant::now();
            let (mut pages, mut contents) = (0, Vec::new());
            for run in runs.drain(..) {
                contents.clear();
                machine.read(run, &mut contents).unwrap();
                let of_run = run.pages().zip(contents.chunks_exact(PAGE));
                let encoded = self.encode(of_run, &Cut::default());
                self.mirror
                    .part(CheckpointPart::Pages(None), encoded, waiting.memory())
                    .unwrap();
                pages += run.count;
            }
            println!("round {round}: {pages} pages in {:?}", began.elapsed());
            if round < 3 {
                machine.written(&mut runs).unwrap();
            }
        }
        self.counts = Counts::default();
    }

    fn encode<'a>(&mut self, pages: impl Iterator<Item = (u64, &'a [u8])>, cut: &Cut) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, contents) in pages {
            let number = u32::try_from(number).unwrap();
            let page = contents.try_into().unwrap();
            let block_of = |page: &Page| cut.reads.find(page);
            self.encoder
                .put(number, page, block_of, &mut self.counts, &mut out);
        }
        out
    }

    fn epoch(&mut self, machine: &mut Machine, waiting: &Machine) {
        let mut taken = Checkpoint::default();
        let mut cut = Cut::default();
        let timing = checkpoint(machine, &mut taken, || {
            cut = self.active.cut();
            Ok::<(), HostError>(())
        });
        self.timings.push(timing.unwrap());
        self.send(&taken, &cut, waiting, |_| true);
    }

    fn send(
        &mut self,
        taken: &Checkpoint,
        cut: &Cut,
        waiting: &Machine,
        goes: impl Fn(u64) -> bool,
    ) {
        self.number = Number(self.number.0 + 1);
        let mut writes = Vec::new();
        for write in &cut.writes {
            disk::encode_differing(write, &mut self.blocks, &mut writes);
        }
        let mut devices = Vec::new();
        put_state(&self.devices, &taken.devices, &mut devices);
        self.devices.clone_from(&taken.devices);
        let pages = self.encode(taken.pages().filter(|(page, _)| goes(*page)), cut);
        let [writes, pages, devices] = [writes, pages, devices].map(|part| self.packer.pack(&part));
        self.sent += [&writes, &pages, &devices]
            .map(Vec::len)
            .iter()
            .sum::<usize>();
        let end = End {
            number: self.number,
            parts: 2,
            sum: [&writes, &pages, &devices]
                .iter()
                .fold(0, |sum, part| add(sum, part)),
            flows: Vec::new(),
        };
        for (part, bytes) in [
            (CheckpointPart::Writes(Some(self.number)), writes),
            (CheckpointPart::Pages(Some(self.number)), pages),
            (CheckpointPart::End(end), devices),
        ] {
            self.mirror.part(part, bytes, waiting.memory()).unwrap();
        }
        assert_eq!(self.mirror.last(), self.number);
    }

    /// The last checkpoint, after which the machine stays paused. One page that changed is left out: which, and what
    /// it holds.
    fn last(&mut self, machine: &mut Machine, waiting: &Machine) -> (u64, Vec<u8>) {
        machine.pause().unwrap();
        let mut taken = Checkpoint::default();
        machine.written(&mut taken.runs).unwrap();
        for run in &taken.runs {
            machine.read(*run, &mut taken.contents).unwrap();
        }
        machine.devices(&mut taken.devices).unwrap();
        let differs = |(page, contents): &(u64, &[u8])| {
            let (first, count) = (*page, 1);
            let mut there = Vec::new();
            waiting
                .memory()
                .read(Run { first, count }, &mut there)
                .unwrap();
            there != *contents
        };
        let found = taken.pages().find(differs);
        let (left_out, contents) = found.expect("a machine that works writes something");
        let cut = self.active.cut();
        self.send(&taken, &cut, waiting, |page| page != left_out);
        (left_out, contents.to_vec())
    }

    /// Medians, for people.
    fn report(&self) {
        let median = |of: fn(&Timing) -> Duration| {
            let mut all: Vec<Duration> = self.timings.iter().map(of).collect();
            all.sort();
            all[all.len() / 2]
        };
        println!(
            "medians: paused {:?} (pause {:?}, scan {:?}, copy {:?}, devices {:?}, resume {:?}); {} pages, {} bytes encoded, {} sent",
            median(Timing::paused),
            median(|timing| timing.pause),
            median(|timing| timing.scan),
            median(|timing| timing.copy),
            median(|timing| timing.devices),
            median(|timing| timing.resume),
            self.counts.pages / self.number.0,
            self.counts.bytes / self.number.0,
            self.sent as u64 / self.number.0,
        );
    }
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
        let contents = disk::Contents::Bytes(buffer.clone());
        let mut there = vec![0; buffer.len()];
        to.disk.look(offset, &mut there).unwrap();
        if there != buffer {
            to.disk.apply(&[disk::Write { offset, contents }]).unwrap();
        }
    }
}

/// Where the two hosts' disks differ, in megabytes.
fn disk_differences(one: &Prepared, other: &Prepared) -> Vec<u64> {
    let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut found = Vec::new();
    for megabyte in 0..one.disk.bytes() >> 20 {
        one.disk.look(megabyte << 20, &mut a).unwrap();
        other.disk.look(megabyte << 20, &mut b).unwrap();
        if a != b {
            found.push(megabyte);
        }
    }
    found
}
