//! A client of the model: random transactions, one after the other, and what it was told of them.

use std::collections::VecDeque;

use bytes::BytesMut;
use rand::Rng;
use rand::rngs::SmallRng;

use super::super::session::{Counts, Reported, Session};
use super::super::settings::Settings;
use protocol::frame;

/// Transactions of one client.
const TRANSACTIONS: usize = 14;
/// Keys that clients use.
const KEYS: u32 = 3;

/// One statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Begin,
    BeginReadOnly,
    Append(u32, u32),
    /// The same by a function.
    Call(u32, u32),
    /// The same by an operator.
    Operate(u32, u32),
    Read(u32),
    /// The same by a volatile function.
    ReadByCall(u32),
    Commit,
    Rollback,
    /// Ends a transaction and begins the next one: by `AND CHAIN`, or with `BEGIN` behind it.
    Next {
        commits: bool,
        chains: bool,
    },
    /// Sets the session's own setting.
    Set(u32),
    /// The same by a function.
    SetByCall(u32),
    /// Reads it.
    Show,
}

impl Op {
    /// The statements that do it.
    fn texts(&self) -> Vec<String> {
        match self {
            Op::Next { commits, chains } => {
                let end = if *commits { "COMMIT" } else { "ROLLBACK" };
                match chains {
                    true => vec![format!("{end} AND CHAIN")],
                    false => vec![end.to_owned(), "BEGIN".to_owned()],
                }
            }
            other => vec![other.text()],
        }
    }

    fn text(&self) -> String {
        match self {
            Op::Next { .. } => self.texts().join("; "),
            Op::Begin => "BEGIN".to_owned(),
            Op::BeginReadOnly => "BEGIN READ ONLY".to_owned(),
            Op::Append(key, value) => format!("INSERT INTO l VALUES ({key}, {value})"),
            Op::Call(key, value) => format!("SELECT f({key}, {value})"),
            Op::Operate(key, value) => format!("SELECT {key} <+> {value}"),
            Op::Read(key) => format!("SELECT v FROM l WHERE k = {key}"),
            Op::ReadByCall(key) => format!("SELECT g({key})"),
            Op::Commit => "COMMIT".to_owned(),
            Op::Rollback => "ROLLBACK".to_owned(),
            Op::Set(value) => format!("SET a.b = '{value}'"),
            Op::SetByCall(value) => format!("SELECT s({value})"),
            Op::Show => "SHOW a.b".to_owned(),
        }
    }
}

impl Op {
    /// True if this is what a server says when it has done it.
    fn is_done_by(&self, tag: &str) -> bool {
        let begins = match self {
            Op::Begin | Op::BeginReadOnly => "BEGIN",
            Op::Append(..) => "INSERT",
            Op::Call(..) | Op::Operate(..) | Op::Read(_) | Op::ReadByCall(_) | Op::SetByCall(_) => {
                "SELECT"
            }
            Op::Commit => "COMMIT",
            Op::Rollback => "ROLLBACK",
            Op::Next { chains: false, .. } => "BEGIN",
            Op::Next { commits: true, .. } => "COMMIT",
            Op::Next { commits: false, .. } => "ROLLBACK",
            Op::Set(_) => "SET",
            Op::Show => "SHOW",
        };
        tag.starts_with(begins)
    }
}

/// Record of a transaction: its operations, and the client's answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionRecord {
    pub ops: Vec<Op>,
    /// In which of its client's sessions.
    pub session: usize,
    /// When it began.
    pub from: u64,
    /// When its end was told.
    pub to: u64,
    /// What reads answered, in the order of the reads.
    pub reads: Vec<(u32, Vec<u32>)>,
    pub committed: Option<bool>,
    /// What else it was told.
    pub errors: Vec<String>,
}

impl TransactionRecord {
    /// Of a transaction that begins now.
    fn of(ops: Vec<Op>, session: usize, now: u64) -> TransactionRecord {
        TransactionRecord {
            ops,
            session,
            from: now,
            to: 0,
            reads: Vec::new(),
            committed: None,
            errors: Vec::new(),
        }
    }
}

pub struct Client {
    pub id: usize,
    pub session: Session,
    /// What was counted in processes that have handed it over, and how many those were.
    pub counts: Vec<Counts>,
    pub moves: u64,
    /// Sessions that were ended.
    ended: usize,
    /// The connection in hand, and the one put aside.
    pub wire: Option<usize>,
    pub parked: Option<usize>,
    /// What it wants of the world.
    pub wants: VecDeque<super::drive::Want>,
    /// Sent, and not taken by the session.
    pub outgoing: BytesMut,
    /// Answers.
    pub received: BytesMut,
    todo: VecDeque<Vec<Op>>,
    current: Option<TransactionRecord>,
    next: usize,
    is_waiting: bool,
    is_extended: bool,
    rows: Vec<u32>,
    error: Option<String>,
    /// What it was told to have been done.
    tag: Option<String>,
    /// The setting, as far as the client knows.
    setting: String,
    pending_setting: Option<String>,
    pub history: Vec<TransactionRecord>,
    pub is_closed: bool,
    /// Its session was ended, as is due.
    pub is_sent_away: bool,
    /// It has run what may have changed its session.
    has_run_opaque: bool,
    pub complaint: Option<String>,
}

impl Client {
    pub fn new(id: usize, rng: &mut SmallRng) -> Client {
        let mut value = 0;
        let mut append = |rng: &mut SmallRng| {
            value += 1;
            let own = u32::try_from(id).unwrap_or(0) * 1000 + value;
            Op::Append(rng.random_range(0..KEYS), own)
        };
        let does = match rng.random_range(0..10) {
            0..5 => Does::Everything,
            5..8 => Does::Reads,
            _ => Does::ReadsByCall,
        };
        let todo = (0..TRANSACTIONS)
            .map(|_| transaction(rng, does, &mut append))
            .collect();
        Client {
            id,
            session: Session::new(Settings::default(), Reported::default(), id as u64),
            counts: Vec::new(),
            moves: 0,
            ended: 0,
            wire: None,
            parked: None,
            wants: VecDeque::new(),
            outgoing: BytesMut::new(),
            received: BytesMut::new(),
            todo,
            current: None,
            next: 0,
            is_waiting: false,
            is_extended: rng.random_bool(0.5),
            rows: Vec::new(),
            error: None,
            tag: None,
            setting: String::new(),
            pending_setting: None,
            history: Vec::new(),
            is_closed: false,
            is_sent_away: false,
            has_run_opaque: false,
            complaint: None,
        }
    }

    pub fn is_done(&self) -> bool {
        self.is_closed || self.todo.is_empty() && self.current.is_none()
    }

    /// What it is in the middle of, if it is.
    pub fn stuck(&self) -> Option<String> {
        let current = self.current.as_ref()?;
        Some(format!(
            "client {} at {} of {:?}, wants {:?}: {}",
            self.id,
            self.next,
            current.ops,
            self.wants,
            self.session.standing()
        ))
    }

    /// Begins another session, as its own was ended.
    pub fn connect_again(&mut self) {
        self.is_sent_away = false;
        self.ended += 1;
        self.counts.push(self.session.counts());
        self.session = Session::new(Settings::default(), Reported::default(), self.id as u64);
        self.wants.clear();
        self.outgoing.clear();
        self.received.clear();
        (self.wire, self.parked) = (None, None);
        (self.is_waiting, self.is_closed, self.has_run_opaque) = (false, false, false);
        self.setting.clear();
        self.pending_setting = None;
        if let Some(mut told) = self.current.take() {
            told.ops.truncate(self.next + 1);
            if told.ops.len() > 1 && told.ops.last() != Some(&Op::Commit) {
                told.committed = Some(false);
            } else {
                told.committed = None;
            }
            told.errors.push("57P01".to_owned());
            self.history.push(told);
        }
    }

    /// Sends the next statement if it waits for nothing.
    pub fn send(&mut self, now: u64) {
        if self.is_waiting || self.is_closed {
            return;
        }
        if self.current.is_none() {
            let Some(ops) = self.todo.pop_front() else {
                return;
            };
            self.next = 0;
            self.current = Some(TransactionRecord::of(ops, self.ended, now));
        }
        let Some(op) = self
            .current
            .as_ref()
            .and_then(|told| told.ops.get(self.next))
        else {
            return;
        };
        let (text, texts) = (op.text(), op.texts());
        self.has_run_opaque |= matches!(
            op,
            Op::Call(..) | Op::Operate(..) | Op::ReadByCall(_) | Op::SetByCall(_)
        );
        if let Op::Set(value) | Op::SetByCall(value) = op {
            self.pending_setting = Some(value.to_string());
        }
        let out = &mut self.outgoing;
        if self.is_extended {
            for text in texts {
                frame::put(out, b'P', &[b"s\0", text.as_bytes(), b"\0\0\0"]);
                frame::put(out, b'B', &[b"\0s\0\0\0\0\0\0\0"]);
                frame::put(out, b'D', &[b"P\0"]);
                frame::put(out, b'E', &[b"\0\0\0\0\0"]);
                frame::put(out, b'C', &[b"Ss\0"]);
            }
            frame::put(out, b'S', &[]);
        } else {
            frame::put(out, b'Q', &[text.as_bytes(), b"\0"]);
        }
        self.is_waiting = true;
        self.rows.clear();
        self.error = None;
        self.tag = None;
    }

    /// Takes the answers that are there.
    pub fn hear(&mut self, now: u64) {
        while let Ok(Some(message)) = frame::take(&mut self.received, 1 << 20) {
            match message[0] {
                b'D' => {
                    let text = frame::first_column(&message).unwrap_or_default();
                    let text = String::from_utf8_lossy(text).into_owned();
                    self.row(&text);
                }
                b'E' => {
                    let fields = frame::error_fields(&message);
                    let code = String::from_utf8_lossy(fields.code).into_owned();
                    let is_told = code == "57P01" && self.has_run_opaque;
                    if fields.severity == b"FATAL" && is_told {
                        // Nobody knows what its session had: it connects again.
                        self.is_sent_away = true;
                        return;
                    }
                    if fields.severity == b"FATAL" {
                        self.complaint = Some(format!("a client was sent away: {code}"));
                        self.is_closed = true;
                    }
                    self.error = Some(code);
                }
                b'C' => {
                    let (tag, _) = frame::name(frame::body(&message)).unwrap_or_default();
                    self.tag = Some(tag.to_owned());
                }
                b'Z' => self.answered(message[frame::HEADER_BYTES], now),
                _ => {}
            }
        }
    }

    fn op(&self) -> Option<&Op> {
        self.current
            .as_ref()
            .and_then(|told| told.ops.get(self.next))
    }

    fn row(&mut self, text: &str) {
        if self.op() == Some(&Op::Show) {
            if text != self.setting {
                let told = format!("the setting is {text:?}, not {:?}", self.setting);
                self.complaint = Some(told);
            }
        } else {
            self.rows.push(text.parse().unwrap_or(0));
        }
    }

    /// A statement is answered.
    fn answered(&mut self, status: u8, now: u64) {
        if !self.is_waiting {
            self.complaint = Some("an answer to nothing".to_owned());
            return;
        }
        self.is_waiting = false;
        let error = self.error.take();
        let Some(op) = self.op().cloned() else {
            return;
        };
        let is_answer = self.tag.take().is_some_and(|tag| op.is_done_by(&tag));
        let has_row = match op {
            Op::Call(_, value) | Op::Operate(_, value) => self.rows == [value],
            _ => true,
        };
        if error.is_none() && !(is_answer && has_row) {
            self.complaint = Some(format!("another answer than that of {op:?}"));
        }
        let Some(told) = &mut self.current else {
            return;
        };
        if let (Op::Read(key) | Op::ReadByCall(key), None) = (&op, &error) {
            told.reads.push((*key, self.rows.clone()));
        }
        if let (Op::Set(_) | Op::SetByCall(_), None) = (&op, &error)
            && let Some(value) = self.pending_setting.take()
        {
            self.setting = value;
        }
        let is_explicit = told.ops.len() > 1;
        if let Some(code) = &error {
            if code == "25006" {
                self.complaint = Some(format!("told what a standby says: {told:?}"));
            }
            told.errors.push(code.clone());
            if told.errors.len() > 5 {
                self.complaint = Some(format!("again and again: {told:?}"));
            }
            told.committed = (code != "08007").then_some(false);
            told.to = now;
            if status == b'I' {
                told.ops.truncate(self.next + 1);
                self.end();
            } else {
                // As a client does whose transaction has failed.
                told.ops.truncate(self.next + 1);
                told.ops.push(Op::Rollback);
                self.next += 1;
            }
            return;
        }
        if told.committed == Some(false) && status == b'I' {
            self.end();
            return;
        }
        self.next += 1;
        let is_over = self.next == told.ops.len();
        if is_over != (status == b'I') && is_explicit {
            self.complaint = Some(format!("status {} after {op:?}", char::from(status)));
        }
        if is_over {
            told.committed = Some(op != Op::Rollback);
            told.to = now;
            self.end();
        } else if let Op::Next { commits, .. } = op {
            let ops = told.ops.split_off(self.next);
            told.committed = Some(commits);
            told.to = now;
            self.end();
            self.next = 0;
            self.current = Some(TransactionRecord::of(ops, self.ended, now));
        }
    }

    fn end(&mut self) {
        if let Some(told) = self.current.take() {
            self.history.push(told);
        }
    }
}

/// What a client does mostly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Everything,
    Reads,
    ReadsByCall,
}

fn transaction(
    rng: &mut SmallRng,
    does: Does,
    append: &mut impl FnMut(&mut SmallRng) -> Op,
) -> Vec<Op> {
    let read = |rng: &mut SmallRng| Op::Read(rng.random_range(0..KEYS));
    let read_by_call = |rng: &mut SmallRng| Op::ReadByCall(rng.random_range(0..KEYS));
    match rng.random_range(0..11) {
        2.. if does == Does::Reads => vec![read(rng)],
        2.. if does == Does::ReadsByCall => vec![read_by_call(rng)],
        0 | 2 => vec![append(rng)],
        1 => match append(rng) {
            Op::Append(key, value) if rng.random_bool(0.5) => vec![Op::Operate(key, value)],
            Op::Append(key, value) => vec![Op::Call(key, value)],
            other => vec![other],
        },
        3..=5 => vec![read(rng)],
        6 => vec![Op::BeginReadOnly, read(rng), read(rng), Op::Commit],
        7 if rng.random_bool(0.5) => vec![Op::SetByCall(rng.random_range(0..100))],
        7 => vec![Op::Set(rng.random_range(0..100))],
        8 => vec![Op::Show],
        9 => vec![read_by_call(rng)],
        _ => {
            let mut ops = vec![Op::Begin];
            if rng.random_bool(0.4) {
                let commits = rng.random_bool(0.8);
                let chains = rng.random_bool(0.5);
                // What a chained transaction reads needs no proof, so it writes.
                ops.extend([append(rng), Op::Next { commits, chains }, append(rng)]);
            }
            for _ in 0..rng.random_range(1..4) {
                ops.push(if rng.random_bool(0.5) {
                    append(rng)
                } else {
                    read(rng)
                });
            }
            ops.push(if rng.random_bool(0.85) {
                Op::Commit
            } else {
                Op::Rollback
            });
            ops
        }
    }
}
