//! What moves between clients, sessions and servers.

use bytes::BytesMut;
use dax::ids::Epoch;
use rand::Rng;
use volume::lsn::Lsn;

use super::super::flaw::Flaw;
use super::super::session::{Effect, GATHER_TIME, Reported, Role, Server};
use super::super::topology::News;
use super::server::{Backend, Site};
use super::{Broken, Wire, World, functions};
use protocol::frame::Refusal;

/// What a session wants and has not got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    Active { waited: bool },
    Standby(usize),
    Position { shown: bool, first: Option<Lsn> },
    Wake,
}

impl World {
    pub(super) fn client_acts(&mut self, id: usize) {
        let now = self.now;
        let client = &mut self.clients[id];
        client.send(now);
        if client.outgoing.is_empty() || !client.session.takes_client() {
            return;
        }
        let len = client.outgoing.len();
        let some = self.rng.random_range(1..=len);
        let client = &mut self.clients[id];
        let mut input = client.outgoing.split_to(some);
        let mut rest = client.outgoing.split();
        self.with(id, |session, cx, out| {
            session.client_input(cx, &mut input, out)
        });
        // What was not taken is still to be sent.
        input.unsplit(std::mem::take(&mut rest));
        self.clients[id].outgoing = input;
    }

    /// A server serves some of what was sent to it.
    pub(super) fn serve_wire(&mut self, id: usize) {
        let Some(at) = self.clients[id].wire else {
            return;
        };
        for _ in 0..self.rng.random_range(1..6) {
            let Some(wire) = self.wires[at].as_mut() else {
                return;
            };
            let node = &mut self.nodes[wire.node];
            let is_late = node.is_late(self.now);
            wire.backend.is_late &= is_late;
            if wire.backend.is_late {
                return;
            }
            if !wire.is_alive || node.is_frozen || wire.life != node.life || wire.backend.is_stuck {
                return;
            }
            let stands = node.epoch == Some(self.epoch);
            if stands && !is_late {
                node.visible = self.log.len();
            }
            let mut site = Site {
                node,
                log: &mut self.log,
                stands,
                is_late: is_late || self.rng.random_bool(0.05),
            };
            if !wire.backend.serve(&mut wire.to_server, &mut site) {
                return;
            }
            if wire.backend.is_late && !is_late {
                let node = &mut self.nodes[wire.node];
                node.late_until = self.now + self.rng.random_range(0..400);
            }
        }
    }

    /// Some of what a server has answered arrives, or the news that its connection is gone.
    pub(super) fn deliver(&mut self, id: usize) {
        self.clients[id].hear(self.now);
        let Some(at) = self.clients[id].wire else {
            return;
        };
        let Some(wire) = self.wires[at].as_mut() else {
            return;
        };
        let is_late = self.nodes[wire.node].is_late(self.now) && wire.backend.is_late;
        let sent = wire.backend.sent.len();
        if sent > 0 && !is_late {
            // Mostly all of it at once, as from a network.
            let some = match self.rng.random_bool(0.3) {
                true => sent,
                false => self.rng.random_range(1..=sent),
            };
            let piece = wire.backend.sent.split_to(some);
            wire.input.extend_from_slice(&piece);
            let mut input = std::mem::take(&mut wire.input);
            let mut rest = wire.rest;
            self.with_server_input(id, at, &mut input, &mut rest);
            self.clients[id].hear(self.now);
            return;
        }
        let node = &self.nodes[wire.node];
        if !wire.is_alive || wire.life != node.life {
            self.trace(|| format!("client {id} loses its server"));
            self.with(id, |session, cx, out| session.server_lost(cx, out));
            self.clients[id].hear(self.now);
        }
    }

    fn with_server_input(&mut self, id: usize, at: usize, input: &mut BytesMut, rest: &mut usize) {
        let mut kept = BytesMut::new();
        let mut kept_rest = 0;
        self.with(id, |session, cx, out| {
            session.server_input(cx, input, rest, out);
            kept = std::mem::take(input);
            kept_rest = *rest;
        });
        if let Some(wire) = self.wires[at].as_mut() {
            wire.input = kept;
            wire.rest = kept_rest;
        }
    }

    pub(super) fn effect(&mut self, id: usize, effect: Effect) {
        let client = &mut self.clients[id];
        match effect {
            Effect::AcquireActive { .. } => client.wants.push_back(Want::Active { waited: false }),
            Effect::AcquireStandby(name) => {
                client
                    .wants
                    .push_back(Want::Standby(name.parse().unwrap_or(0)));
            }
            Effect::Park => client.parked = client.wire.take(),
            Effect::Unpark => client.wire = client.parked.take(),
            Effect::Return(server) => {
                if let Some(at) = client.wire.take()
                    && let Some(wire) = self.wires[at].as_mut()
                {
                    wire.server = Some(server);
                    self.proxy(id).idle.push(at);
                }
            }
            Effect::Drop => {
                if let Some(at) = client.wire.take() {
                    self.wires[at] = None;
                }
            }
            Effect::DropParked => {
                if let Some(at) = client.parked.take() {
                    self.wires[at] = None;
                }
            }
            Effect::AskPosition { shown } => {
                let first = None;
                client.wants.push_back(Want::Position { shown, first });
            }
            // It may take long until it is found out, or fail.
            Effect::LearnFunctions if self.rng.random_bool(0.2) => {
                self.proxy(id).catalog = functions(true);
            }
            Effect::LearnFunctions => {}
            // What a client sends in pieces is there in a moment, mostly.
            Effect::Wake(after) if after == GATHER_TIME && self.rng.random_bool(0.97) => {}
            Effect::Wake(_) => client.wants.push_back(Want::Wake),
            Effect::Close => client.is_closed = true,
        }
    }

    pub(super) fn answer_effects(&mut self, id: usize) {
        let Some(want) = self.clients[id].wants.pop_front() else {
            return;
        };
        match want {
            Want::Active { waited } => self.give_active(id, waited),
            Want::Standby(node) => self.give_standby(id, node),
            Want::Position { shown, first } => self.give_position(id, shown, first),
            Want::Wake => self.with(id, |session, cx, out| session.woken(cx, out)),
        }
    }

    /// The active as the proxy knows it; a frozen one does not answer, and who is no active is not taken for one.
    fn give_active(&mut self, id: usize, waited: bool) {
        let topology = self.proxy(id).topology.clone();
        let epoch = topology.epoch;
        let address = topology.active.clone().unwrap_or_else(|| "0".into());
        let node: usize = address.parse().unwrap_or(0);
        let run = self.nodes[node].run();
        let is_there = !self.nodes[node].is_standby() && !self.nodes[node].is_frozen;
        let is_it = topology.is_actives_run(run);
        let is_believed = self.rules.flaw == Some(Flaw::EpochBelieved);
        if !is_there || is_it == Some(false) && !is_believed {
            self.clients[id]
                .wants
                .push_back(Want::Active { waited: true });
            return;
        }
        let at = self.connect(id, node, Role::Active(epoch));
        self.give(id, at, waited);
    }

    fn give_standby(&mut self, id: usize, node: usize) {
        if !self.nodes[node].is_standby() || self.nodes[node].is_frozen {
            let refusal = Refusal::error("57P03", "no standby");
            self.with(id, |session, cx, out| session.refused(cx, &refusal, out));
            return;
        }
        let at = self.connect(id, node, Role::Standby(node.to_string().into()));
        self.give(id, at, false);
    }

    /// A connection that nobody has, or a new one.
    fn connect(&mut self, id: usize, node: usize, role: Role) -> usize {
        let is_good = |at: &usize| {
            self.wires[*at].as_ref().is_some_and(|wire| {
                let server = wire.server.as_ref();
                let is_same = server.is_some_and(|server| server.role == role);
                wire.node == node && is_same && wire.is_alive && wire.life == self.nodes[node].life
            })
        };
        let proxies = self.proxies.len();
        let idle = &mut self.proxies[id % proxies].idle;
        if let Some(found) = idle.iter().position(is_good) {
            return idle.swap_remove(found);
        }
        let mut server = Server::new(role, Reported::default());
        server.replayed = Lsn(self.nodes[node].visible as u64);
        let run = self.nodes[node].run();
        server.run = Some(run);
        server.address = Some(node.to_string().into());
        let topology = &self.proxies[id % proxies].topology;
        server.is_vouched_for = topology.is_actives_run(run) == Some(true);
        self.wires.push(Some(Wire {
            node,
            life: self.nodes[node].life,
            is_alive: true,
            to_server: BytesMut::new(),
            backend: Backend::new(),
            input: BytesMut::new(),
            rest: 0,
            server: Some(Box::new(server)),
        }));
        self.wires.len() - 1
    }

    fn give(&mut self, id: usize, at: usize, waited: bool) {
        let server = self.wires[at].as_mut().and_then(|wire| wire.server.take());
        let Some(server) = server else {
            return;
        };
        self.clients[id].wire = Some(at);
        self.with(id, |session, cx, out| {
            session.linked(cx, server, waited, out)
        });
    }

    /// The node that the proxy takes for the active answers, with proof or without; for who reads on it when it shows what was
    /// durable `first`.
    fn give_position(&mut self, id: usize, shown: bool, first: Option<Lsn>) {
        let topology = &self.proxy(id).topology;
        let known = topology.epoch;
        let address = topology.active.clone().unwrap_or_else(|| "0".into());
        let node = &self.nodes[address.parse::<usize>().unwrap_or(0)];
        let is_proven = node.epoch == Some(self.epoch) && known == Epoch(self.epoch);
        let lacks_proof = self.rules.flaw == Some(Flaw::UnprovenPosition);
        if node.is_frozen || !is_proven && !lacks_proof {
            let wants = &mut self.clients[id].wants;
            wants.push_back(Want::Position { shown, first });
            return;
        }
        let is_late = self.now < node.late_until;
        let visible = Lsn(node.visible as u64);
        let durable = match is_proven {
            true => Lsn(self.log.len() as u64),
            false => visible,
        };
        let now = first.unwrap_or(durable);
        if shown && is_late && visible < now {
            let first = Some(now);
            let wants = &mut self.clients[id].wants;
            wants.push_back(Want::Position { shown, first });
            return;
        }
        let early = std::mem::replace(&mut self.proxy(id).last_position, now);
        let position = if self.rules.flaw == Some(Flaw::EarlyPosition) {
            early
        } else {
            now
        };
        self.with(id, |session, cx, out| {
            session.position(cx, Some(position), out)
        });
    }

    pub(super) fn tell_news(&mut self) {
        let proxy = self.rng.random_range(0..self.proxies.len());
        if self.now < self.proxies[proxy].deaf_until && !self.faults_end {
            return;
        }
        if self.proxies[proxy].untold.is_empty() {
            let standbys = self.standbys();
            if self.rng.random_bool(0.5) {
                self.proxies[proxy].untold.push(News::Standbys(standbys));
            }
            return;
        }
        let news = self.proxies[proxy].untold.remove(0);
        self.proxies[proxy].topology.hear(news);
        let proxies = self.proxies.len();
        for id in (0..self.clients.len()).filter(|id| id % proxies == proxy) {
            self.with(id, |session, cx, out| session.news(cx, out));
        }
    }

    pub(super) fn check_client(&mut self, id: usize) -> Result<(), Broken> {
        self.clients[id].hear(self.now);
        if self.clients[id].is_sent_away {
            self.clients[id].connect_again();
        }
        match self.clients[id].complaint.take() {
            Some(complaint) => Err(Broken(format!("client {id}: {complaint}"))),
            None => Ok(()),
        }
    }
}
