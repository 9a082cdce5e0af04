//! The files of the log under a model of how PostgreSQL reads them: actives that die at any step of their promotion, so
//! that several timelines fork in one segment, and a standby that attaches and is shown more at any moment.
//!
//! A byte of the log is the number of the record that it belongs to. An active writes ahead of what is durable, so what
//! it leaves behind the fork of its timeline is still there: in the rest of the page, and as segments that it made ahead.
//!
//! PostgreSQL's rules (`xlogrecovery.c`): a segment is read from the newest timeline that has one, never from an older
//! timeline than the last segment; a record that is incomplete there is asked of the walreceiver, on the timeline on which
//! it begins, and that must not be older than the timeline of the segment; when the walreceiver has no more, newer timelines
//! are looked for.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::Coverage;

use super::checkers::{Held, broken};
use super::flaw::Flaw;
use super::trace::say;
use crate::layout::{FileClass, Layout};
use crate::log_history::{LogBranch, LogHistory};
use crate::lsn::Lsn;
use crate::namespace::Namespace;
use crate::standby::state::{BlockSource, State};
use crate::standby::testing::Builder;

const PAGE: u64 = 16;
const SEGMENT: u64 = 4 * PAGE;
/// Turns that the reader takes at most before it counts as stuck.
const TURNS: u32 = 40;

/// Segments are `pg_wal/<timeline>.<number>`, histories `pg_wal/<timeline>.history`.
struct ChainLayout;

impl ChainLayout {
    fn parse(path: &str) -> Option<(u32, u64)> {
        let (timeline, number) = path.strip_prefix("pg_wal/")?.split_once('.')?;
        Some((timeline.parse().ok()?, number.parse().ok()?))
    }
}

impl Layout for ChainLayout {
    fn class(&self, path: &str) -> FileClass {
        match path.starts_with("pg_wal") {
            true => FileClass::Log,
            false => FileClass::Data,
        }
    }

    fn hidden_on_standby(&self, _: &str) -> bool {
        false
    }

    fn hidden_by(&self, _: &str) -> Option<String> {
        None
    }

    fn log_range(&self, path: &str) -> Option<Range<Lsn>> {
        let (_, number) = ChainLayout::parse(path)?;
        Some(Lsn(number * SEGMENT)..Lsn((number + 1) * SEGMENT))
    }

    fn log_timeline(&self, path: &str) -> Option<u32> {
        Some(ChainLayout::parse(path)?.0)
    }

    fn private_directories(&self, _: bool) -> Vec<String> {
        Vec::new()
    }
}

#[derive(Debug, Clone, Copy)]
struct Record {
    number: u32,
    start: u64,
    end: u64,
}

/// The volume, and the active that writes the log.
struct Volume {
    rng: SmallRng,
    names: Builder,
    files: HashMap<String, Vec<u32>>,
    /// Of every timeline whose history file was written.
    histories: HashMap<u32, Vec<LogBranch>>,
    /// All that was ever written.
    ever: Vec<Record>,
    /// The log that counts.
    records: Vec<Record>,
    /// What the present active wrote besides, and may be lost.
    unsynced: Vec<Record>,
    timeline: u32,
    made: u32,
    coverage: Coverage,
}

fn segment_name(timeline: u32, number: u64) -> String {
    format!("pg_wal/{timeline}.{number}")
}

/// The newest timeline whose history file is among the names.
fn newest(names: &Namespace) -> u32 {
    let directory = names.resolve("pg_wal").and_then(|dir| names.directory(dir));
    let directory = directory.expect("it was made");
    let histories = directory.keys().filter_map(|name| {
        let name = std::str::from_utf8(name).ok()?;
        name.strip_suffix(".history")?.parse().ok()
    });
    histories.max().unwrap_or(1)
}

impl Volume {
    fn new(seed: u64) -> Volume {
        let first = LogBranch {
            timeline: 1,
            begin: Lsn::ZERO,
            end: None,
        };
        Volume {
            rng: SmallRng::seed_from_u64(seed),
            names: Builder::new(),
            files: HashMap::new(),
            histories: HashMap::from([(1, vec![first])]),
            ever: Vec::new(),
            records: Vec::new(),
            unsynced: Vec::new(),
            timeline: 1,
            made: 0,
            coverage: Coverage::default(),
        }
    }

    fn durable(&self) -> u64 {
        self.records.last().map_or(0, |record| record.end)
    }

    fn written(&self) -> u64 {
        let last = self.unsynced.last();
        last.map_or(self.durable(), |record| record.end)
    }

    fn file(&mut self, timeline: u32, number: u64) -> &mut Vec<u32> {
        let name = segment_name(timeline, number);
        if !self.files.contains_key(&name) {
            self.names.file(&name, 1);
        }
        let empty = || vec![0; SEGMENT as usize];
        self.files.entry(name).or_insert_with(empty)
    }

    fn write(&mut self, bytes: u64) {
        self.made += 1;
        let start = self.written();
        let record = Record {
            number: self.made,
            start,
            end: start + bytes,
        };
        say(|| format!("timeline {}: {record:?}", self.timeline));
        for at in record.start..record.end {
            let file = self.file(self.timeline, at / SEGMENT);
            file[(at % SEGMENT) as usize] = record.number;
        }
        self.ever.push(record);
        self.unsynced.push(record);
    }

    fn work(&mut self) {
        for _ in 0..self.rng.random_range(0..8) {
            let bytes = self.rng.random_range(3..30);
            self.write(bytes);
            if self.rng.random() {
                self.records.append(&mut self.unsynced);
            }
        }
        if self.rng.random_ratio(1, 4) {
            // A segment made ahead.
            let next = self.written() / SEGMENT + 1;
            self.file(self.timeline, next);
        }
    }

    /// The active dies, and another one fixes the end of the log.
    fn crash(&mut self) {
        let kept = self.rng.random_range(0..=self.unsynced.len());
        self.records.extend(self.unsynced.drain(..kept));
        self.unsynced.clear();
        let end = self.durable();
        say(|| format!("timeline {} ends at {end}", self.timeline));
        for (name, bytes) in &mut self.files {
            let (_, number) = ChainLayout::parse(name).expect("a segment");
            let start = number * SEGMENT;
            for (at, byte) in (start..).zip(bytes) {
                // Whole pages behind the end are cut.
                if at >= end.next_multiple_of(PAGE) {
                    *byte = 0;
                }
            }
        }
    }

    /// The steps of a promotion; whether the server did all of them. It may also die right after.
    fn promote(&mut self) -> bool {
        let end = self.durable();
        let newest = *self.histories.keys().max().expect("the first is there");
        let next = newest + 1;
        let steps = self.rng.random_range(0..6);
        if steps > 0 {
            let number = end / SEGMENT;
            let mut copy = vec![0; SEGMENT as usize];
            let kept = (end % SEGMENT) as usize;
            if kept > 0 {
                let entries = self.histories[&newest].clone();
                let from = entries.iter().rev();
                let mut from = from.map(|entry| segment_name(entry.timeline, number));
                let from = from.find_map(|name| self.files.get(&name));
                let from = from.expect("the log is there");
                copy[..kept].copy_from_slice(&from[..kept]);
            }
            *self.file(next, number) = copy;
        }
        if steps > 1 {
            say(|| format!("timeline {next} begins at {end}"));
            let mut entries = self.histories[&newest].clone();
            let last = entries.last_mut().expect("not empty");
            if last.begin.0 / SEGMENT == end / SEGMENT {
                self.coverage.one("forks in the segment of the last one");
            }
            if end.is_multiple_of(SEGMENT) {
                self.coverage.one("forks on a boundary");
            }
            last.end = Some(Lsn(end));
            entries.push(LogBranch {
                timeline: next,
                begin: Lsn(end),
                end: None,
            });
            self.histories.insert(next, entries);
            self.names.file(&format!("pg_wal/{next}.history"), 1);
            self.timeline = next;
        }
        if steps > 2 {
            // The end of recovery.
            self.write(6);
        }
        if steps > 3 {
            self.records.append(&mut self.unsynced);
        }
        if steps > 4 {
            self.remove_dead();
        }
        steps > 4
    }

    /// `RemoveNonParentXlogFiles`; standbys may still want to read what is removed.
    fn remove_dead(&mut self) {
        let at = self.durable() / SEGMENT;
        let dead: Vec<String> = self
            .files
            .keys()
            .filter(|name| {
                let (timeline, number) = ChainLayout::parse(name).expect("a segment");
                timeline < self.timeline && number > at
            })
            .filter(|name| self.names.namespace.resolve(name).is_ok())
            .cloned()
            .collect();
        for name in dead {
            self.names.remove(&name, true);
        }
    }
}

/// A standby's PostgreSQL.
struct Reader {
    state: State,
    expected: Vec<LogBranch>,
    /// The timeline of the segment that was read last; 0 for none.
    file_timeline: u32,
    at: u64,
    /// Where the log of `receiving` was streamed to.
    receiving: Option<(u32, u64)>,
}

enum Read {
    Record(u32, u64),
    /// Nothing valid; the position that was wanted.
    Nothing(u64),
}

impl Reader {
    fn attach(volume: &Volume, at: u64, limit: u64, flaw: Option<Flaw>) -> Reader {
        let names = volume.names.namespace.clone();
        let base = volume.names.seal(1, at, at);
        let mut state = State::new(Arc::new(ChainLayout), PAGE as u32, base, names.clone());
        state.distortion.flaw = flaw;
        let mut reader = Reader {
            state,
            expected: volume.histories[&1].clone(),
            file_timeline: 0,
            at,
            receiving: None,
        };
        reader.show(volume, names.clone(), limit);
        reader.expected = volume.histories[&newest(&names)].clone();
        reader
    }

    fn show(&mut self, volume: &Volume, names: Namespace, limit: u64) {
        let history = LogHistory::new(volume.histories[&newest(&names)].iter().copied());
        self.state.show_history(names, Lsn(limit), history);
    }

    fn limit(&self) -> u64 {
        self.state.replay_limit.0
    }

    fn byte(&self, volume: &Volume, timeline: u32, at: u64) -> Option<u32> {
        let name = segment_name(timeline, at / SEGMENT);
        let ino = self.state.resolve(&name).ok()?;
        let within = at % SEGMENT;
        let bytes = &volume.files[&name];
        match self.state.block(ino, within / PAGE) {
            BlockSource::Single { shown, .. } if within % PAGE < u64::from(shown) => {
                Some(bytes[within as usize])
            }
            _ => Some(0),
        }
    }

    /// The newest timeline that has the segment, not older than the last one that was read.
    fn choose(&self, at: u64) -> Option<u32> {
        let number = at / SEGMENT;
        let mut newest_first = self.expected.iter().rev();
        let found = newest_first.find(|entry| {
            entry.timeline >= self.file_timeline
                && entry.begin.0 / SEGMENT <= number
                && self
                    .state
                    .resolve(&segment_name(entry.timeline, number))
                    .is_ok()
        });
        found.map(|entry| entry.timeline)
    }

    fn read(&mut self, volume: &Volume) -> Held<Read> {
        let mut record = None;
        let mut at = self.at;
        let mut open = None;
        loop {
            if open != Some(at / SEGMENT) {
                let timeline = match self.receiving {
                    Some((timeline, until)) if at < until => {
                        let name = segment_name(timeline, at / SEGMENT);
                        if self.state.resolve(&name).is_err() {
                            let what = format!("PANIC: could not open {name}, which it received");
                            return Err(broken(CHAIN, what));
                        }
                        Some(timeline)
                    }
                    _ => self.choose(at),
                };
                let Some(timeline) = timeline else {
                    return Ok(Read::Nothing(at));
                };
                self.file_timeline = timeline;
                open = Some(at / SEGMENT);
            }
            let byte = self.byte(volume, self.file_timeline, at).unwrap_or(0);
            let number = *record.get_or_insert(byte);
            if byte == 0 || byte != number {
                return Ok(Read::Nothing(at));
            }
            at += 1;
            let mut ever = volume.ever.iter();
            let known = ever.find(|record| record.number == number);
            let known = known.expect("every byte was written by a record");
            if at == known.end {
                return Ok(Read::Record(number, at));
            }
        }
    }

    fn timeline_at(&self, at: u64) -> u32 {
        let mut entries = self.expected.iter();
        let holds = |entry: &&LogBranch| entry.end.is_none_or(|end| at < end.0);
        entries.find(holds).expect("the newest has no end").timeline
    }

    /// The walreceiver asks the feed; newer timelines are looked for if it has nothing. Returns whether that helped.
    fn stream(&mut self, volume: &Volume, wanted: u64) -> Held<bool> {
        let timeline = self.timeline_at(self.at);
        if timeline < self.file_timeline {
            let what = format!(
                "FATAL: {} belongs to timeline {timeline}, but the previous file came from timeline {}",
                self.at, self.file_timeline
            );
            return Err(broken(CHAIN, what));
        }
        let shown = &volume.histories[&newest(&self.state.live)];
        let begin = wanted / SEGMENT * SEGMENT;
        let entry = shown.iter().find(|entry| entry.timeline == timeline);
        let entry =
            entry.ok_or_else(|| broken(CHAIN, format!("timeline {timeline} is unknown")))?;
        let end = entry.end.map_or(u64::MAX, |end| end.0);
        if begin > end {
            let what =
                format!("asked for timeline {timeline} at {begin}, behind its fork at {end}");
            return Err(broken(CHAIN, what));
        }
        let until = end.min(self.limit());
        let more = until
            > self
                .receiving
                .filter(|r| r.0 == timeline)
                .map_or(0, |r| r.1);
        if more && until > wanted {
            self.receiving = Some((timeline, until));
            return Ok(true);
        }
        let newest = newest(&self.state.live);
        if newest > self.expected.last().expect("not empty").timeline {
            let forks = volume.histories[&newest].iter();
            let mut left = forks.filter(|entry| entry.timeline == timeline);
            let fork = left.next().and_then(|entry| entry.end);
            if fork.is_some_and(|fork| fork.0 < self.at) {
                let what = format!("timeline {newest} forked before {}", self.at);
                return Err(broken(CHAIN, what));
            }
            self.expected = volume.histories[&newest].clone();
            self.receiving = None;
            return Ok(true);
        }
        Ok(false)
    }

    /// Replays what there is.
    fn replay(&mut self, volume: &Volume) -> Held<()> {
        let mut turns = 0;
        loop {
            match self.read(volume)? {
                Read::Record(number, end) => {
                    let mut records = volume.records.iter();
                    let is_of_history = records.any(|r| r.number == number && r.start == self.at);
                    if !is_of_history {
                        let what = format!("record {number} at {} was replayed", self.at);
                        return Err(broken("what is replayed is of the history", what));
                    }
                    self.at = end;
                    turns = 0;
                }
                Read::Nothing(wanted) => {
                    turns += 1;
                    if turns > TURNS || !self.stream(volume, wanted)? {
                        return Ok(());
                    }
                }
            }
        }
    }
}

const CHAIN: &str = "the log that a standby sees is one chain";

/// One history from one seed.
pub(super) fn run(seed: u64, flaw: Option<Flaw>) -> (Held<()>, Coverage) {
    let mut volume = Volume::new(seed);
    let done = go(&mut volume, flaw);
    (done, volume.coverage)
}

fn go(volume: &mut Volume, flaw: Option<Flaw>) -> Held<()> {
    let mut reader: Option<Reader> = None;
    for _ in 0..volume.rng.random_range(2..7) {
        volume.work();
        meanwhile(volume, &mut reader, flaw)?;
        volume.crash();
        while !volume.promote() {
            meanwhile(volume, &mut reader, flaw)?;
            volume.crash();
        }
        meanwhile(volume, &mut reader, flaw)?;
    }
    volume.records.append(&mut volume.unsynced);
    if let Some(reader) = &mut reader {
        let names = volume.names.namespace.clone();
        reader.show(volume, names, volume.durable());
        reader.replay(volume)?;
        if reader.at < volume.durable() {
            let what = format!("stands at {} of {}", reader.at, volume.durable());
            return Err(broken("redo reaches the end of the log", what));
        }
        volume.coverage.one("chains read to their end");
    }
    Ok(())
}

/// A standby attaches, or is shown more; or nothing happens.
fn meanwhile(volume: &mut Volume, reader: &mut Option<Reader>, flaw: Option<Flaw>) -> Held<()> {
    let choice = volume.rng.random_range(0..4);
    let durable = volume.durable();
    match reader {
        None if choice < 2 => {
            // At any record of the log, with less of it announced than is durable.
            let ends = volume.records.iter().map(|record| record.end);
            let ends: Vec<u64> = std::iter::once(0).chain(ends).collect();
            let begin = volume.rng.random_range(0..ends.len());
            let limit = volume.rng.random_range(begin..ends.len());
            volume.coverage.one("chains attached to");
            let mut attached = Reader::attach(volume, ends[begin], ends[limit], flaw);
            attached.replay(volume)?;
            *reader = Some(attached);
        }
        Some(reader) if choice < 3 => {
            let names = volume.names.namespace.clone();
            let ends = volume.records.iter().map(|record| record.end);
            let ends: Vec<u64> = ends.filter(|end| *end >= reader.limit()).collect();
            let limit = match ends.is_empty() || volume.rng.random() {
                true => durable,
                false => ends[volume.rng.random_range(0..ends.len())],
            };
            reader.show(volume, names, limit);
            reader.replay(volume)?;
        }
        _ => {}
    }
    Ok(())
}
