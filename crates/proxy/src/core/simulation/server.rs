//! A model of PostgreSQL: lists to which transactions append, by a handful of statements.

use std::collections::HashMap;

use bytes::BytesMut;

use super::super::session::QUESTION;
use super::super::topology::ServerRun;
use protocol::frame;

/// A committed transaction, as the log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub xid: u64,
    /// Key and value, in order.
    pub appends: Vec<(u32, u32)>,
    /// What it had read, key by key.
    pub reads: Vec<(u32, Vec<u32>)>,
}

/// A server.
#[derive(Debug)]
pub struct Node {
    /// The epoch whose active it is, or was.
    pub epoch: Option<u32>,
    /// How much of the log its queries see.
    pub visible: usize,
    /// An active: until this step it shows no more commits, though standbys do, and answers none.
    pub late_until: u64,
    /// It shows all up to here then.
    late_to: usize,
    pub next_xid: u64,
    pub is_frozen: bool,
    /// How often it was started.
    pub life: u32,
    /// It replays nothing before this step.
    pub replays_from: u64,
}

impl Node {
    pub fn active(epoch: u32) -> Node {
        Node {
            epoch: Some(epoch),
            visible: 0,
            late_until: 0,
            late_to: 0,
            next_xid: 1,
            is_frozen: false,
            life: 0,
            replays_from: 0,
        }
    }

    pub fn standby() -> Node {
        Node {
            epoch: None,
            ..Node::active(0)
        }
    }

    /// True if it shows less than is durable; shows what it has, if that is over.
    pub fn is_late(&mut self, now: u64) -> bool {
        let is_late = now < self.late_until;
        if !is_late {
            self.visible = self.visible.max(self.late_to);
        }
        is_late
    }

    /// It has a new role, or begins again.
    pub fn is_not_late(&mut self) {
        (self.late_until, self.late_to) = (0, 0);
    }

    pub fn run(&self) -> ServerRun {
        ServerRun(i64::from(self.life))
    }

    pub fn is_standby(&self) -> bool {
        self.epoch.is_none()
    }
}

/// What a server process has of its session.
#[derive(Debug, Default)]
pub struct Backend {
    status: u8,
    xid: Option<u64>,
    appends: Vec<(u32, u32)>,
    reads: Vec<(u32, Vec<u32>)>,
    prepared: HashMap<String, String>,
    portals: HashMap<String, String>,
    pub settings: HashMap<String, String>,
    is_skipping: bool,
    /// An implicit transaction of the extended protocol is under way.
    is_implicit: bool,
    /// Written, and not flushed.
    buffered: BytesMut,
    /// Flushed.
    pub sent: BytesMut,
    /// It waits for its commit to be durable, for ever.
    pub is_stuck: bool,
    /// Its commit is durable, and its server shows it late.
    pub is_late: bool,
}

/// What a statement needs of its server.
pub struct Site<'a> {
    pub node: &'a mut Node,
    pub log: &'a mut Vec<Commit>,
    /// Its epoch is the newest.
    pub stands: bool,
    /// True if a commit is not shown at once now.
    pub is_late: bool,
}

impl Backend {
    pub fn new() -> Backend {
        Backend {
            status: b'I',
            ..Backend::default()
        }
    }

    /// Serves the next message; false if there is none.
    pub fn serve(&mut self, input: &mut BytesMut, site: &mut Site<'_>) -> bool {
        let Ok(Some(message)) = frame::take(input, 1 << 20) else {
            return false;
        };
        let tag = message[0];
        if self.is_skipping && tag != b'S' {
            return true;
        }
        let body = frame::body(&message).to_vec();
        match tag {
            b'Q' => {
                let text = text_at(&body, 0);
                self.end_implicit(site);
                for statement in text.split("; ").filter(|one| !one.is_empty()) {
                    self.is_implicit |= self.status == b'I';
                    if !self.execute(statement, site, true) {
                        break;
                    }
                }
                self.prepared.remove("");
                self.end_implicit(site);
                self.ready();
            }
            b'P' => {
                let (name, query) = (text_at(&body, 0), text_at(&body, 1));
                if !name.is_empty() && self.prepared.contains_key(&name) {
                    self.error("42P05", "prepared statement already exists");
                    self.is_skipping = true;
                } else {
                    self.prepared.insert(name, query);
                    frame::put(&mut self.buffered, b'1', &[]);
                }
            }
            b'B' => {
                let (portal, name) = (text_at(&body, 0), text_at(&body, 1));
                match self.prepared.get(&name) {
                    Some(query) => {
                        self.portals.insert(portal, query.clone());
                        frame::put(&mut self.buffered, b'2', &[]);
                    }
                    None => {
                        self.error("26000", "prepared statement does not exist");
                        self.is_skipping = true;
                    }
                }
            }
            b'D' => {
                let query = self.portals.get(&text_at(&body[1..], 0));
                if query
                    .is_some_and(|query| query.starts_with("SELECT") || query.starts_with("SHOW"))
                {
                    put_columns(&mut self.buffered);
                } else {
                    frame::put(&mut self.buffered, b'n', &[]);
                }
            }
            b'E' => {
                let query = self
                    .portals
                    .get(&text_at(&body, 0))
                    .cloned()
                    .unwrap_or_default();
                self.is_implicit |= self.status == b'I';
                self.is_skipping = !self.execute(&query, site, false);
            }
            b'C' => {
                if body[0] == b'S' {
                    self.prepared.remove(&text_at(&body[1..], 0));
                }
                frame::put(&mut self.buffered, b'3', &[]);
            }
            b'H' => self.flush(),
            b'S' => {
                self.is_skipping = false;
                self.end_implicit(site);
                self.ready();
            }
            _ => {}
        }
        true
    }

    fn flush(&mut self) {
        self.sent.extend_from_slice(&self.buffered);
        self.buffered.clear();
    }

    fn ready(&mut self) {
        if self.is_stuck {
            return;
        }
        frame::put_ready(&mut self.buffered, self.status);
        self.flush();
    }

    fn error(&mut self, code: &'static str, text: &str) {
        frame::Refusal::error(code, text).put(&mut self.buffered);
        if self.status == b'T' {
            self.status = b'E';
        }
        if self.is_implicit {
            self.roll_back();
        }
    }

    fn roll_back(&mut self) {
        self.xid = None;
        self.appends.clear();
        self.reads.clear();
        self.is_implicit = false;
    }

    fn end_implicit(&mut self, site: &mut Site<'_>) {
        if self.is_implicit && self.status == b'I' {
            self.commit(site);
        }
        self.is_implicit = false;
    }

    /// Commits. Log of an epoch that does not stand becomes durable never.
    fn commit(&mut self, site: &mut Site<'_>) {
        if let Some(xid) = self.xid.take() {
            if !site.stands {
                self.is_stuck = true;
                return;
            }
            site.log.push(Commit {
                xid,
                appends: std::mem::take(&mut self.appends),
                reads: std::mem::take(&mut self.reads),
            });
            self.is_late = site.is_late;
            match site.is_late {
                true => site.node.late_to = site.log.len(),
                false => site.node.visible = site.log.len(),
            }
        }
        self.roll_back();
        self.status = b'I';
    }

    fn execute(&mut self, text: &str, site: &mut Site<'_>, is_simple: bool) -> bool {
        let words: Vec<&str> = text
            .split([' ', '(', ')', ',', '\'', '\n'])
            .filter(|w| !w.is_empty())
            .collect();
        let is_end = matches!(words.first(), Some(&("COMMIT" | "ROLLBACK")));
        if self.status == b'E' && !is_end {
            self.error("25P02", "current transaction is aborted");
            return false;
        }
        if text.starts_with(QUESTION) {
            self.tell_state(is_simple);
            return true;
        }
        match words.as_slice() {
            // A function that sets something.
            ["SELECT", "s", value] => {
                self.settings.insert("a.b".to_owned(), (*value).to_owned());
                self.rows(vec![(*value).to_owned()], is_simple);
                self.complete("SELECT 1");
            }
            ["RESET", "ALL"] => {
                self.settings.clear();
                self.complete("RESET");
            }
            ["RESET", "SESSION", ..]
            | ["UNLISTEN" | "CLOSE" | "DISCARD", _]
            | ["SELECT", "pg_catalog.pg_advisory_unlock_all"] => self.complete("RESET"),
            ["SELECT", "pg_catalog.set_config", name, value, "false"] => {
                self.settings
                    .insert((*name).to_owned(), (*value).to_owned());
                self.complete("SELECT 1");
            }
            ["BEGIN", ..] => {
                self.status = b'T';
                self.is_implicit = false;
                self.complete("BEGIN");
            }
            ["COMMIT", chain @ ..] if self.status == b'T' => {
                self.commit(site);
                self.chain(chain);
                self.complete("COMMIT");
            }
            ["COMMIT" | "ROLLBACK", chain @ ..] => {
                self.roll_back();
                self.status = b'I';
                self.chain(chain);
                self.complete("ROLLBACK");
            }
            ["INSERT", "INTO", "l", "VALUES", key, value] => {
                if site.node.is_standby() {
                    self.error("25006", "cannot execute INSERT in a read-only transaction");
                    return false;
                }
                self.assign_xid(site);
                self.appends.push((number(key), number(value)));
                self.complete("INSERT 0 1");
            }
            // A function that appends.
            ["SELECT", "f", key, value] | ["SELECT", key, "<+>", value] => {
                if site.node.is_standby() {
                    self.error("25006", "cannot execute INSERT in a read-only transaction");
                    return false;
                }
                self.assign_xid(site);
                self.appends.push((number(key), number(value)));
                self.rows(vec![(*value).to_owned()], is_simple);
                self.complete("SELECT 1");
            }
            ["SELECT", "v", "FROM", "l", "WHERE", "k", "=", key] | ["SELECT", "g", key] => {
                let list = self.list(number(key), site);
                self.reads.push((number(key), list.clone()));
                self.rows(list.iter().map(u32::to_string).collect(), is_simple);
                self.complete(&format!("SELECT {}", list.len()));
            }
            ["SELECT", "pg_catalog.pg_current_xact_id_if_assigned"] => {
                let xid = self.xid.map(|xid| xid.to_string());
                self.maybe_row(xid, is_simple);
                self.complete("SELECT 1");
            }
            ["SELECT", "pg_catalog.pg_xact_status", xid, ..] => {
                let xid = xid.parse().unwrap_or(0);
                let seen = &site.log[..site.node.visible];
                let has = |log: &[Commit]| log.iter().any(|commit| commit.xid == xid);
                let status = match (has(seen), has(site.log)) {
                    (true, _) => "committed",
                    (_, true) => "in progress",
                    _ => "aborted",
                };
                self.rows(vec![status.to_owned()], is_simple);
                self.complete("SELECT 1");
            }
            ["SET", name, "TO" | "=", value] => {
                self.settings
                    .insert(name.replace('"', ""), (*value).to_owned());
                self.complete("SET");
            }
            ["RESET", name] => {
                self.settings.remove(&name.replace('"', ""));
                self.complete("RESET");
            }
            ["SHOW", name] => {
                let value = self.settings.get(*name).cloned().unwrap_or_default();
                self.rows(vec![value], is_simple);
                self.complete("SHOW");
            }
            _ => {
                self.error("42601", text);
                return false;
            }
        }
        true
    }

    /// What the session has: its setting.
    fn tell_state(&mut self, is_simple: bool) {
        if is_simple {
            put_columns(&mut self.buffered);
        }
        let value = self.settings.get("a.b").cloned().unwrap_or_default();
        let mut row = vec![0, 3];
        for column in ["c", "a.b", &value] {
            row.extend(u32::try_from(column.len()).unwrap_or(0).to_be_bytes());
            row.extend(column.as_bytes());
        }
        frame::put(&mut self.buffered, b'D', &[&row]);
        self.complete("SELECT 1");
    }

    fn chain(&mut self, words: &[&str]) {
        if words == ["AND", "CHAIN"] {
            self.status = b'T';
            self.is_implicit = false;
        }
    }

    fn assign_xid(&mut self, site: &mut Site<'_>) {
        if self.xid.is_none() {
            self.xid = Some(site.node.next_xid);
            site.node.next_xid += 1;
        }
    }

    fn list(&self, key: u32, site: &Site<'_>) -> Vec<u32> {
        let committed = site.log[..site.node.visible]
            .iter()
            .flat_map(|commit| &commit.appends);
        let all = committed.chain(&self.appends);
        all.filter(|(of, _)| *of == key)
            .map(|(_, value)| *value)
            .collect()
    }

    fn complete(&mut self, tag: &str) {
        if !self.is_stuck {
            frame::put_complete(&mut self.buffered, tag);
        }
    }

    fn rows(&mut self, values: Vec<String>, is_simple: bool) {
        if is_simple {
            put_columns(&mut self.buffered);
        }
        for value in values {
            let len = u32::try_from(value.len()).unwrap_or(0).to_be_bytes();
            frame::put(&mut self.buffered, b'D', &[&[0, 1], &len, value.as_bytes()]);
        }
    }

    fn maybe_row(&mut self, value: Option<String>, is_simple: bool) {
        match value {
            Some(value) => self.rows(vec![value], is_simple),
            None => frame::put(&mut self.buffered, b'D', &[&[0, 1], &(-1i32).to_be_bytes()]),
        }
    }
}

fn put_columns(out: &mut BytesMut) {
    frame::put_table(out, &["v"], &[]);
}

fn number(word: &str) -> u32 {
    word.parse().unwrap_or(0)
}

/// The `skip`th of the strings that `body` begins with.
fn text_at(body: &[u8], skip: usize) -> String {
    let text = body.split(|&byte| byte == 0).nth(skip).unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
