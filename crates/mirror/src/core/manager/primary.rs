//! State of a primary: commits of its member, the end of the log, and the follower.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::super::flaw::Flaw;
use super::super::log::Identity;
use super::super::record::{Draft, Number, Record};
use super::super::rows::Lsn;
use super::{CommitAck, Effect};

/// Records that are kept in memory for the other manager; fewer if they are long.
const RECENT_RECORDS: usize = 4_096;
const RECENT_BYTES: usize = 64 << 20;
/// Records are sent together if they are no longer than this.
const MESSAGE_BYTES: usize = 4 << 20;
/// The other manager is sent no more, before it has executed some of it.
const WINDOW_BYTES: usize = 64 << 20;

/// A record that is not acknowledged.
#[derive(Debug)]
struct Commit {
    record: Record,
    is_logged: bool,
    is_on_peer: bool,
    is_answered: bool,
}

/// The other manager, which is sent the log.
#[derive(Debug)]
pub struct Follower {
    /// The last record that it was sent.
    pub sent: Number,
    /// It has everything up to here.
    pub floor: Number,
    /// It has everything up to here on its disk.
    pub saved: Number,
    /// Since when it follows without being waited for.
    pub since_ms: u64,
    /// It is waited for.
    pub is_standby: bool,
    /// When it last had one more than it had before without lacking any in between, or lacked nothing.
    pub rose_ms: u64,
    /// Records are being read for it.
    pub is_reading: bool,
    /// What it was sent and has not executed: to which record, and how long that was.
    pub on_its_way: VecDeque<(Number, usize)>,
    /// It was sent a part of a transaction, and executes none of that before it has the rest.
    pub is_within: bool,
}

impl Follower {
    /// It is sent records, which must not be empty.
    pub fn send(&mut self, records: &[Record]) {
        if let Some(last) = records.last() {
            self.sent = last.number;
            self.is_within = last.is_piece();
            let bytes = records.iter().map(Record::bytes).sum();
            self.on_its_way.push_back((last.number, bytes));
        }
    }

    /// It has everything up to here.
    pub fn has(&mut self, floor: Number, now_ms: u64) {
        if floor > self.floor {
            self.rose_ms = now_ms;
        }
        self.floor = floor;
        let is_there = |(last, _): &(Number, usize)| *last <= floor;
        while self.on_its_way.front().is_some_and(is_there) {
            self.on_its_way.pop_front();
        }
    }

    /// How many of the durable records it may lack.
    pub fn lag(&self, durable: Number) -> u64 {
        durable.0.saturating_sub(self.floor.0)
    }

    /// True if it does not get on with something, whatever it does besides: somebody waits for that.
    pub fn stands_still(&self, durable: Number, now_ms: u64, timeout_ms: u64) -> bool {
        self.lag(durable) > 0 && now_ms.saturating_sub(self.rose_ms) > timeout_ms
    }

    /// True if it has as much in memory as it should.
    pub fn is_full(&self) -> bool {
        let bytes = self
            .on_its_way
            .iter()
            .map(|(_, bytes)| bytes)
            .sum::<usize>();
        bytes > WINDOW_BYTES && !self.is_within
    }
}

#[derive(Debug)]
pub struct Primary {
    pub epoch: u32,
    pub durable: Number,
    /// Which log it writes.
    pub log: Identity,
    /// When the epoch stood for certain.
    pub confirmed_ms: u64,
    /// Questions to the zones since they have answered in time.
    pub asked: u32,
    pub follower: Option<Follower>,
    pub is_draining: bool,
    next: Number,
    queue: Vec<Record>,
    writing: Option<Number>,
    commits: BTreeMap<Number, Commit>,
    recent: VecDeque<Record>,
    /// How long they are.
    recent_bytes: usize,
}

impl Primary {
    pub fn new(epoch: u32, last: Number, log: Identity, now_ms: u64) -> Primary {
        Primary {
            epoch,
            durable: last,
            log,
            confirmed_ms: now_ms,
            asked: 0,
            follower: None,
            is_draining: false,
            next: last.next(),
            queue: Vec::new(),
            writing: None,
            commits: BTreeMap::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
        }
    }

    /// The last record of the batch that is being made durable.
    pub fn writing(&self) -> Option<Number> {
        self.writing
    }

    /// Commits that were given to the log and are not acknowledged, by their ends; and the number of records that are not durable.
    pub fn given(&self) -> (BTreeMap<Lsn, Number>, usize) {
        let commits = self.commits.iter();
        let ends = commits.filter(|(_, commit)| !commit.record.is_piece());
        let mut given = BTreeMap::new();
        for (number, commit) in ends {
            // What is logged with a commit, and is none itself, comes after it.
            let end = commit.record.draft.header.origin.end;
            given.entry(end).or_insert(*number);
        }
        let writing = self.commits.values().filter(|commit| !commit.is_logged);
        (given, writing.count())
    }

    pub fn commit(&mut self, draft: Draft, flaw: Option<Flaw>, out: &mut Vec<Effect>) -> Number {
        let number = self.next;
        self.next = number.next();
        let draft = Arc::new(draft);
        let record = Record { number, draft };
        self.queue.push(record.clone());
        let is_told = flaw == Some(Flaw::AcknowledgedTooEarly);
        if is_told {
            out.push(Effect::Answer(number));
        }
        let commit = Commit {
            record: record.clone(),
            is_logged: false,
            is_on_peer: false,
            is_answered: is_told,
        };
        self.commits.insert(number, commit);
        if flaw == Some(Flaw::SentTooEarly) {
            self.keep(record);
        }
        self.write(out);
        number
    }

    /// One batch is written at a time; what comes in the meantime is the next one.
    fn write(&mut self, out: &mut Vec<Effect>) {
        if self.writing.is_some() {
            return;
        }
        if let Some(last) = self.queue.last() {
            self.writing = Some(last.number);
            out.push(Effect::Append(std::mem::take(&mut self.queue)));
        }
    }

    pub fn durable(
        &mut self,
        last: Number,
        retain: u64,
        flaw: Option<Flaw>,
        out: &mut Vec<Effect>,
    ) {
        let first = self.durable.next();
        self.durable = last;
        self.writing = None;
        let mut kept = Vec::new();
        for (number, commit) in self.commits.range_mut(first..=last) {
            commit.is_logged = true;
            out.push(Effect::Logged(*number));
            if flaw != Some(Flaw::SentTooEarly) {
                kept.push(commit.record.clone());
            }
        }
        kept.into_iter().for_each(|record| self.keep(record));
        let most = RECENT_RECORDS.min(usize::try_from(retain).unwrap_or(usize::MAX));
        while self.recent.len() > most || self.recent_bytes > RECENT_BYTES {
            let first = self.recent.pop_front();
            self.recent_bytes -= first.map_or(self.recent_bytes, |record| record.bytes());
        }
        self.write(out);
    }

    /// The other manager is sent it from memory.
    fn keep(&mut self, record: Record) {
        self.recent_bytes += record.bytes();
        self.recent.push_back(record);
    }

    /// Those of the records that are in memory from this one on.
    pub fn recent_from(&self, from: Number) -> impl Iterator<Item = &Record> {
        let is_later = move |record: &&Record| record.number >= from;
        self.recent.iter().rev().take_while(is_later)
    }

    /// Durable records from `from` on that are in memory, if the first of them is.
    pub fn recent(&self, from: Number, count: u64) -> Option<Vec<Record>> {
        let first = self.recent.front()?.number;
        if from < first {
            return None;
        }
        let skip = usize::try_from(from.0 - first.0).ok()?;
        let count = usize::try_from(count).ok()?;
        let records = self.recent.iter().skip(skip).take(count);
        Some(together(records).cloned().collect())
    }

    /// The last record that may be sent.
    pub fn may_send(&self, flaw: Option<Flaw>) -> Number {
        match flaw {
            Some(Flaw::SentTooEarly) => Number(self.next.0 - 1),
            _ => self.durable,
        }
    }

    pub fn on_peer(&mut self, numbers: &[Number], ack: CommitAck, out: &mut Vec<Effect>) {
        for number in numbers {
            if let Some(commit) = self.commits.get_mut(number) {
                commit.is_on_peer = true;
            }
        }
        self.answer(ack, out);
    }

    /// Acknowledges what can be, and forgets what nobody waits for any more.
    pub fn answer(&mut self, ack: CommitAck, out: &mut Vec<Effect>) {
        let floor = match &self.follower {
            Some(follower) if follower.is_standby && ack == CommitAck::Both => Some(follower.floor),
            _ => None,
        };
        for (number, commit) in &mut self.commits {
            // The other member has a long transaction as a whole, or nothing of it.
            let is_awaited = !commit.is_on_peer && !commit.record.is_piece();
            let is_on_peer = !is_awaited || floor.is_none_or(|floor| *number <= floor);
            if commit.is_logged && is_on_peer && !commit.is_answered {
                commit.is_answered = true;
                out.push(Effect::Answer(*number));
            }
        }
        self.commits
            .retain(|_, commit| !commit.is_logged || !commit.is_answered);
    }

    pub fn may_hand_over(&self) -> bool {
        let has_all = |follower: &Follower| follower.is_standby && follower.floor == self.durable;
        self.is_draining
            && self.commits.is_empty()
            && self.queue.is_empty()
            && self.follower.as_ref().is_some_and(has_all)
    }
}

/// As many as one message may have: at least one.
pub fn together<'a>(records: impl Iterator<Item = &'a Record>) -> impl Iterator<Item = &'a Record> {
    let mut bytes = 0;
    records.take_while(move |record| {
        let is_first = bytes == 0;
        bytes += record.bytes().max(1);
        is_first || bytes <= MESSAGE_BYTES
    })
}
