//! Clients with random transactions.

use rand::Rng;

use super::super::flaw::Flaw;
use super::super::locks::Tx;
use super::super::record::{Draft, Number, Statement, Token};
use super::World;
use super::database::{KEYS, Op, Session, TABLES};

/// What a client was told of a transaction.
#[derive(Debug, Clone)]
pub struct Told {
    pub token: Token,
    pub ops: Vec<Op>,
    /// `None`: unknown.
    pub committed: Option<bool>,
}

#[derive(Debug)]
enum State {
    /// The statement at this index wants locks.
    Asks(usize),
    Waits(usize),
    Executes(usize),
    Commits,
}

/// A client's transaction.
#[derive(Debug)]
struct Running {
    tx: Tx,
    site: usize,
    told: Told,
    statements: Vec<Statement>,
    claims: super::super::class::Claims,
    state: State,
}

#[derive(Debug)]
pub struct Client {
    id: usize,
    running: Option<Running>,
    pub history: Vec<Told>,
}

impl Client {
    pub fn new(id: usize) -> Client {
        Client {
            id,
            running: None,
            history: Vec::new(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    pub fn standing(&self) -> String {
        let running = self.running.as_ref();
        format!(
            "{:?}",
            running.map(|running| (running.tx, running.site, &running.state))
        )
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
        let Some(running) = &self.clients[id].running else {
            return self.begin(id);
        };
        let (tx, at) = (running.tx, running.site);
        match running.state {
            State::Asks(index) if index < running.told.ops.len() => {
                let claims = running.told.ops[index].claims();
                self.running(id).state = State::Waits(index);
                self.running(id).claims.extend(&claims);
                self.with(at, |manager, out| manager.lock(tx, &claims, out));
            }
            State::Asks(_) => self.finish(id),
            State::Executes(index) => self.execute(id, index),
            State::Waits(_) | State::Commits => {}
        }
    }

    fn running(&mut self, id: usize) -> &mut Running {
        self.clients[id]
            .running
            .as_mut()
            .expect("its transaction runs")
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
        let Some(token) = self.sites[at].manager.token() else {
            return;
        };
        let ops = (0..self.rng.random_range(1..4))
            .map(|_| self.op())
            .collect();
        self.next_tx += 1;
        self.clients[id].running = Some(Running {
            tx: Tx(self.next_tx),
            site: at,
            told: Told {
                token,
                ops,
                committed: None,
            },
            statements: Vec::new(),
            claims: Default::default(),
            state: State::Asks(0),
        });
        self.sites[at]
            .sessions
            .insert(Tx(self.next_tx), Session::default());
    }

    fn op(&mut self) -> Op {
        self.next_value += 1;
        let table = self.rng.random_range(0..TABLES);
        if self.rng.random_bool(0.15) {
            return Op::Fold(table, self.rng.random_range(0..TABLES), self.next_value);
        }
        Op::Append(table, self.rng.random_range(0..KEYS), self.next_value)
    }

    fn execute(&mut self, id: usize, index: usize) {
        let running = self.running(id);
        let (tx, at, text) = (running.tx, running.site, running.told.ops[index].text());
        let site = &mut self.sites[at];
        let Some(session) = site.sessions.get_mut(&tx).filter(|_| site.member.is_alive) else {
            return self.roll_back(id, Some(false));
        };
        let digest = site.member.execute(session, &text);
        let running = self.running(id);
        running.statements.push(Statement {
            text,
            digest: Some(digest),
            ..Statement::default()
        });
        running.state = State::Asks(index + 1);
    }

    fn finish(&mut self, id: usize) {
        if self.rng.random_bool(0.1) {
            return self.roll_back(id, Some(false));
        }
        let running = self.running(id);
        running.state = State::Commits;
        let (tx, at) = (running.tx, running.site);
        let draft = Draft {
            token: running.told.token,
            claims: running.claims.clone(),
            sequences: Vec::new(),
            statements: running.statements.clone(),
        };
        self.with(at, |manager, out| {
            manager.commit(tx, draft, out).map_or((), drop)
        });
    }

    fn roll_back(&mut self, id: usize, committed: Option<bool>) {
        let (tx, at) = (self.running(id).tx, self.running(id).site);
        self.sites[at].sessions.remove(&tx);
        self.clients[id].end(committed);
        self.with(at, |manager, out| manager.ended(tx, out));
    }

    fn of(&self, at: usize, tx: Tx) -> Option<usize> {
        let is_it = |client: &super::Client| {
            client
                .running
                .as_ref()
                .is_some_and(|one| one.tx == tx && one.site == at)
        };
        self.clients.iter().position(is_it)
    }

    pub(super) fn granted(&mut self, at: usize, tx: Tx) {
        if let Some(id) = self.of(at, tx)
            && let State::Waits(index) = self.running(id).state
        {
            self.running(id).state = State::Executes(index);
        }
    }

    pub(super) fn deadlock(&mut self, at: usize, tx: Tx) {
        self.coverage.one("deadlocks");
        if let Some(id) = self.of(at, tx) {
            self.roll_back(id, Some(false));
        }
    }

    pub(super) fn answered(&mut self, at: usize, tx: Tx, number: Number) {
        let Some(id) = self.of(at, tx) else {
            return;
        };
        let token = self.running(id).told.token;
        let logged = self.zones.log.get((number.0 - 1) as usize);
        if logged.is_none_or(|record| record.draft.token != token) {
            let who = self.clients[id].id;
            self.break_promise(format!(
                "client {who} was told that {token} is number {number}, and the log has not"
            ));
        }
        self.coverage.one("committed");
        self.clients[id].end(Some(true));
    }

    /// A manager's clients lose it.
    pub(super) fn lose_clients(&mut self, at: usize) {
        for client in &mut self.clients {
            let Some(running) = client.running.as_ref().filter(|running| running.site == at) else {
                continue;
            };
            let committed = match running.state {
                State::Commits => None,
                _ => Some(false),
            };
            if committed.is_none() {
                self.coverage.one("in doubt");
            }
            client.end(committed);
        }
    }
}
