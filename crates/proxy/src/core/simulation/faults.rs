//! What goes wrong in a history.

use dax::ids::Epoch;
use rand::Rng;

use super::super::session::{Packed, Session};
use super::super::topology::News;
use super::World;
use protocol::frame::Refusal;

impl World {
    pub(super) fn fault(&mut self) {
        match self.rng.random_range(0..30) {
            0 | 1 => self.take_over(),
            2 => self.freeze(),
            3 | 7 | 8 => self.restart_standby(),
            4..=6 => self.break_wire(),
            19 | 20 => self.end_on_standby(),
            9..=11 => self.delay_reports(),
            12..=16 => self.hand_over(),
            17 | 18 => self.take_over_often(),
            _ => {}
        }
    }

    pub(super) fn move_standbys(&mut self) {
        for node in 0..self.nodes.len() {
            let behind = self.log.len().saturating_sub(self.nodes[node].visible);
            let replays = self.now >= self.nodes[node].replays_from;
            if self.nodes[node].is_standby() && behind > 0 && replays {
                let some = self.rng.random_range(0..=behind.min(2));
                self.nodes[node].visible += some;
            }
        }
    }

    /// One takeover after the other, of which a proxy hears late and one after the other.
    fn take_over_often(&mut self) {
        let proxy = self.rng.random_range(0..self.proxies.len());
        for _ in 0..3 {
            self.take_over();
        }
        self.proxies[proxy].deaf_until = self.now + self.rng.random_range(0..600);
    }

    /// A standby replays all and becomes the active of the next epoch. The old active is killed, or frozen, or
    /// does not know yet.
    fn take_over(&mut self) {
        let standbys: Vec<usize> = (0..self.nodes.len())
            .filter(|&node| self.nodes[node].is_standby())
            .collect();
        if standbys.is_empty() || self.takeovers >= 4 {
            return;
        }
        let from = self.active;
        // Or its node is active again, before others notice.
        let to = match self.rng.random_bool(0.2) {
            true => from,
            false => standbys[self.rng.random_range(0..standbys.len())],
        };
        let horizon = self.horizon_now();
        self.epoch += 1;
        self.takeovers += 1;
        self.active = to;
        let log = self.log.len();
        let node = &mut self.nodes[to];
        node.epoch = Some(self.epoch);
        node.visible = log;
        node.is_not_late();
        node.next_xid = horizon.0;
        node.life += 1;
        node.is_frozen &= to != from;
        let run = node.run();
        let (epoch, takeovers) = (self.epoch, self.takeovers);
        self.trace(|| format!("epoch {epoch} on {to}, horizon {horizon:?} ({takeovers})"));
        let comes_back = to != from && self.rng.random_bool(0.5);
        if comes_back {
            // As a standby.
            self.nodes[from].life += 1;
            self.nodes[from].epoch = None;
            self.nodes[from].is_not_late();
            self.nodes[from].is_frozen = false;
        }
        let known = !self.rng.random_bool(0.05);
        // One that goes on is cut off, and so are those who know only it.
        if self.rng.random_bool(if comes_back { 0.4 } else { 0.7 }) {
            let deaf = self.rng.random_range(0..self.proxies.len());
            self.proxies[deaf].deaf_until = self.now + self.rng.random_range(0..1600);
        }
        for proxy in 0..self.proxies.len() {
            let standbys = self.standbys();
            let hears_of_runs = self.proxies[proxy].hears_of_runs;
            let untold = &mut self.proxies[proxy].untold;
            untold.push(News::ActiveIs {
                epoch: Epoch(self.epoch),
                address: to.to_string().into(),
                run: hears_of_runs.then_some(run),
                horizons: vec![(Epoch(self.epoch), known.then_some(horizon))],
            });
            untold.push(News::Standbys(standbys));
        }
    }

    /// Something stands still, or goes on.
    fn freeze(&mut self) {
        let node = self.rng.random_range(0..self.nodes.len());
        let is_frozen = &mut self.nodes[node].is_frozen;
        *is_frozen = !*is_frozen;
    }

    /// A standby is started again, from an older base.
    fn restart_standby(&mut self) {
        let node = self.rng.random_range(0..self.nodes.len());
        if self.nodes[node].is_standby() {
            let visible = self.nodes[node].visible;
            self.nodes[node].visible = visible.saturating_sub(self.rng.random_range(0..12));
            self.nodes[node].life += 1;
            self.nodes[node].replays_from = self.now + self.rng.random_range(0..200);
        }
    }

    /// The active's agent stands still with a report of the standbys that it has not passed on.
    fn delay_reports(&mut self) {
        let proxy = self.rng.random_range(0..self.proxies.len());
        let standbys = self.standbys();
        self.proxies[proxy].untold.push(News::Standbys(standbys));
        let until = self.now + self.rng.random_range(0..100);
        let deaf_until = &mut self.proxies[proxy].deaf_until;
        *deaf_until = until.max(*deaf_until);
        self.restart_standby();
    }

    /// The process of a proxy hands its clients over to another one, as far as they are between two transactions. (Those that
    /// are not would follow when they are.) Connections that nobody has stay behind.
    fn hand_over(&mut self) {
        let proxy = self.rng.random_range(0..self.proxies.len());
        self.proxies[proxy].idle.clear();
        let proxies = self.proxies.len();
        for id in (0..self.clients.len()).filter(|id| id % proxies == proxy) {
            let with_connection = self.rng.random_bool(0.7);
            self.move_client(id, with_connection);
        }
    }

    fn move_client(&mut self, id: usize, with_connection: bool) {
        let has_input = |at: usize| {
            let wire = self.wires[at].as_ref();
            wire.is_none_or(|wire| !wire.input.is_empty() || wire.rest > 0)
        };
        if self.clients[id].wire.is_some_and(has_input) {
            return;
        }
        let mut packed = None;
        self.with(id, |session, cx, _| {
            if session.may_leave(cx) {
                packed = Some(session.pack(cx, with_connection));
            }
        });
        let Some(packed) = packed else {
            return;
        };
        let bytes = postcard::to_stdvec(&packed).expect("a session can be written");
        let packed: Packed = postcard::from_bytes(&bytes).expect("it can be read");
        let client = &mut self.clients[id];
        if !packed.is_linked()
            && let Some(at) = client.wire.take()
        {
            self.wires[at] = None;
        }
        let mut session = Session::unpack(packed, &self.statements).expect("it makes sense");
        let wire = client.wire.and_then(|at| self.wires[at].as_ref());
        if let Some(wire) = wire {
            session.is_linked_to(wire.node.to_string().into(), 1);
        }
        let before = std::mem::replace(&mut client.session, session);
        client.counts.push(before.counts());
        // A timer is nobody's any more.
        client.wants.clear();
        client.moves += 1;
        self.trace(|| format!("client {id} is in another process"));
    }

    /// A connection breaks; what was under way is lost, in both directions.
    fn break_wire(&mut self) {
        let client = self.rng.random_range(0..self.clients.len());
        if let Some(at) = self.clients[client].wire
            && let Some(wire) = self.wires[at].as_mut()
        {
            wire.is_alive = false;
            let sent = wire.backend.sent.len();
            let some = self.rng.random_range(0..=sent);
            wire.backend.sent.truncate(some);
        }
    }

    /// Replay on a standby comes first: it ends the connection of a client that is in its way.
    fn end_on_standby(&mut self) {
        let client = self.rng.random_range(0..self.clients.len());
        if let Some(at) = self.clients[client].wire
            && let Some(wire) = self.wires[at].as_mut()
            && wire.is_alive
            && self.nodes[wire.node].is_standby()
            && self.nodes[wire.node].life == wire.life
        {
            Refusal::fatal("40001", "conflict with recovery").put(&mut wire.backend.sent);
            wire.is_alive = false;
        }
    }

    /// Faults are over: what is frozen goes on.
    pub(super) fn heal(&mut self) {
        for node in &mut self.nodes {
            node.is_frozen = false;
        }
        let stale: Vec<usize> = (0..self.nodes.len())
            .filter(|&node| {
                self.nodes[node]
                    .epoch
                    .is_some_and(|epoch| epoch < self.epoch)
            })
            .collect();
        for node in stale {
            self.nodes[node].epoch = None;
            self.nodes[node].is_not_late();
            self.nodes[node].life += 1;
        }
    }
}
