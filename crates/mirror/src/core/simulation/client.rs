//! Clients with random transactions, each of which their primary's member executes and commits at once.

use rand::Rng;

use super::super::flaw::Flaw;
use super::World;
use super::database::{KEYS, Op, TABLES};

/// What a client was told of a transaction.
#[derive(Debug, Clone)]
pub struct Told {
    /// Its number at the server, by which it is found in the log.
    pub xid: u64,
    pub ops: Vec<Op>,
    /// `None`: unknown.
    pub committed: Option<bool>,
}

/// A client's transaction.
#[derive(Debug)]
struct Running {
    site: usize,
    told: Told,
    /// The member has committed it, and its answer waits for the log.
    commits: bool,
}

#[derive(Debug, Default)]
pub struct Client {
    running: Option<Running>,
    pub history: Vec<Told>,
}

impl Client {
    pub fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    pub fn standing(&self) -> String {
        format!("{:?}", self.running)
    }

    fn end(&mut self, committed: Option<bool>) {
        if let Some(running) = self.running.take() {
            self.history.push(Told {
                committed,
                ..running.told
            });
        }
    }
}

impl World {
    pub(super) fn client_acts(&mut self) {
        let id = self.rng.random_range(0..self.clients.len());
        match &self.clients[id].running {
            None => self.begin(id),
            Some(running) if !running.commits => self.execute(id),
            Some(_) => {}
        }
    }

    fn begin(&mut self, id: usize) {
        if self.faults_end {
            return;
        }
        let Some(at) = (0..2).find(|at| {
            self.sites[*at].serves
                && (*at == 1 || !self.sites[1].serves || self.rng.random_bool(0.5))
        }) else {
            return;
        };
        let site = &self.sites[at];
        let is_known = site.knows == Some(site.member.life) && site.member.is_alive;
        if !is_known && self.flaw != Some(Flaw::LifeUnchecked) {
            return;
        }
        let ops = (0..self.rng.random_range(1..4))
            .map(|_| self.op())
            .collect();
        self.next_xid += 1;
        self.clients[id].running = Some(Running {
            site: at,
            told: Told {
                xid: self.next_xid,
                ops,
                committed: None,
            },
            commits: false,
        });
    }

    fn op(&mut self) -> Op {
        self.next_value += 1;
        let table = self.rng.random_range(0..TABLES);
        let key = self.rng.random_range(0..KEYS);
        match self.rng.random_range(0..20) {
            0 => Op::Empty(table),
            1..=5 => Op::Delete(table, key),
            _ => Op::Put(table, key, self.next_value),
        }
    }

    /// Executes and commits, unless somebody has locked what it needs.
    fn execute(&mut self, id: usize) {
        let Some(running) = &self.clients[id].running else {
            return;
        };
        let (at, xid, ops) = (running.site, running.told.xid, running.told.ops.clone());
        let pieces = match self.rng.random_range(0..5) {
            0 => self.rng.random_range(2..4),
            _ => 1,
        };
        let member = &mut self.sites[at].member;
        if !member.is_alive || self.rng.random_bool(0.1) {
            return self.clients[id].end(Some(false));
        }
        if member.is_locked(&ops) {
            self.coverage.one("waits for locks");
            return;
        }
        if !member.commit_own(xid, &ops, pieces) {
            // Nothing was changed.
            return self.clients[id].end(Some(false));
        }
        if let Some(running) = &mut self.clients[id].running {
            running.commits = true;
        }
    }

    /// The member answers commits that have waited.
    pub(super) fn answered(&mut self, at: usize, xids: Vec<u64>) {
        for xid in xids {
            let is_it = |client: &Client| {
                let running = client.running.as_ref();
                running.is_some_and(|one| one.site == at && one.told.xid == xid)
            };
            let Some(id) = self.clients.iter().position(is_it) else {
                continue;
            };
            let logged = self.zones.log.iter();
            let mut logged =
                logged.filter(|one| one.draft.token.count == xid && one.draft.header.is_last);
            if logged.next().is_none() {
                self.break_promise(format!(
                    "client {id} was told that {xid} has committed, and the log has not"
                ));
            }
            self.coverage.one("committed");
            self.clients[id].end(Some(true));
        }
    }

    /// A manager's clients lose it, or its member.
    pub(super) fn lose_clients(&mut self, at: usize) {
        for client in &mut self.clients {
            let Some(running) = client.running.as_ref().filter(|running| running.site == at) else {
                continue;
            };
            let committed = match running.commits {
                true => None,
                false => Some(false),
            };
            if committed.is_none() {
                self.coverage.one("in doubt");
            }
            client.end(committed);
        }
    }
}
