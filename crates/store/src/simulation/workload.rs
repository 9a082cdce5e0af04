//! What owners do: they write, seal, give files back, and take over from each other.

use dax::ids::{BlockKey, Epoch, FileId, Generation};
use dax::storage::Retention;
use dax::wire::{Request, Response, StoredBlock};
use rand::Rng;

use super::Flaw;
use super::owner::{Link, Owner, REPLICAS, SYNC, block_write};
use super::replica::Replica;
use super::schedule::{DATA, Schedule};

/// Blocks of each file.
pub(super) const BLOCKS: u64 = 4;
/// Images that are pinned at a time, at most.
const PINS: usize = 3;

impl Schedule {
    /// Connects an owner with a replica, which is told its epoch and what it lacks.
    pub(super) fn connect(&mut self, o: usize, r: usize) {
        if !self.replicas[r].is_up() || self.owners[o].fenced {
            return;
        }
        if !self.replicas[r].has_volume() {
            self.create(r, true);
            self.coverage.one("replicas that began anew");
        }
        let conn = self.next_conn;
        self.next_conn += 1;
        self.replicas[r].connect(conn);
        let (store, rebuilding) = (self.replicas[r].store, self.replicas[r].is_rebuilding());
        // The welcome says who owns the volume. Whoever is deposed by it looks at nothing else in it, such as at whether
        // the replica counts again.
        let accepted = self.replicas[r].grant().map(|grant| grant.epoch);
        let owner = &mut self.owners[o];
        if accepted > Some(owner.epoch) {
            owner.fenced = true;
            return;
        }
        let before = owner.links[r].replace(Link::new(conn, store));
        owner.rebuilding[r] = rebuilding;
        if before.is_none_or(|before| before.store != store) && rebuilding {
            owner.forget_acks(r);
        }
        let own = Request::OwnEpoch {
            epoch: owner.epoch,
            owner: owner.name.clone(),
            settled: true,
        };
        let epoch = self.owners[o].epoch;
        let answer = self.ask_on(r, conn, own);
        let accepted = matches!(answer, Some(Response::Owned { accepted: true, .. }));
        self.note(|| {
            format!(
                "{epoch} connects with replica {r}, rebuilding: {rebuilding}, accepted: {accepted}"
            )
        });
        self.owners[o].fenced |= !accepted;
        for request in std::mem::take(&mut self.owners[o].requests_left[r]) {
            self.tell(o, r, request);
        }
        for w in 0..self.owners[o].writes.len() {
            if !self.owners[o].writes[w].acked[r] {
                self.transmit(o, r, w);
            }
        }
    }

    /// Sends a write to a replica, if the owner is connected with it.
    pub(super) fn transmit(&mut self, o: usize, r: usize, w: usize) {
        let owner = &self.owners[o];
        let write = &owner.writes[w];
        let place = (write.key, write.generation);
        // What arrives late is not to take the place of a newer copy that was damaged: nobody can tell then. Clients see
        // to it, as far as it can be seen to: a replica is owed nothing older than what it has acknowledged.
        let is_late = self.damaged[r].contains(&place) && write.version < self.owed(r, place);
        let owner = &self.owners[o];
        let write = &owner.writes[w];
        if owner.fenced || is_late || self.removed.contains(&write.key.file) {
            return;
        }
        let base = owner.base(r, w);
        if base.is_some() && owner.links[r].is_some() {
            self.coverage.one("writes onto what is there");
        }
        let owner = &self.owners[o];
        let write = &owner.writes[w];
        let request = block_write(
            owner.epoch,
            write.key,
            write.generation,
            write.version,
            base,
        );
        if let Some(link) = &mut self.owners[o].links[r] {
            let number = link.number(w);
            self.replicas[r].send(link.conn, number, request);
        }
    }

    /// Tells a replica something now, or when it is there again.
    pub(super) fn tell(&mut self, o: usize, r: usize, request: Request) {
        let link = self.owners[o].links[r].clone();
        let done = match link.filter(|_| !self.owners[o].fenced) {
            Some(link) => self.ask_on(r, link.conn, request.clone()),
            None => None,
        };
        match (done, request) {
            (Some(Response::Done), Request::RemoveFiles { files, .. }) => {
                self.told_to_remove[r].extend(files);
            }
            (Some(Response::Done), _) => {}
            (_, request) => self.owners[o].requests_left[r].push(request),
        }
    }

    pub(super) fn tell_all(&mut self, o: usize, request: &Request) {
        for r in 0..REPLICAS {
            self.tell(o, r, request.clone());
        }
    }

    /// Somebody owns the next epoch, if enough accept it and can be read.
    pub(super) fn take_over(&mut self) {
        let highest = self.replicas.iter().filter_map(Replica::grant);
        let highest = highest.map(|g| g.epoch).max().unwrap_or_default();
        let epoch = Epoch(highest.max(self.epoch).0 + 1);
        let counting =
            |s: &Schedule, r: usize| s.replicas[r].has_volume() && !s.replicas[r].is_rebuilding();
        let mut accepted = Vec::new();
        for r in 0..REPLICAS {
            if !self.replicas[r].is_up() || !counting(self, r) {
                continue;
            }
            let own = Request::OwnEpoch {
                epoch,
                owner: format!("owner/{}", epoch.0),
                settled: false,
            };
            if let Some(Response::Owned { accepted: true, .. }) = self.ask(r, own) {
                accepted.push(r);
            }
        }
        if accepted.len() < SYNC {
            return;
        }
        self.note(|| format!("{epoch} is owned, accepted by {accepted:?}"));
        self.coverage.one("takeovers");
        self.epoch = epoch;
        let line = self.base.clone().continued(Generation { epoch, number: 1 });
        self.line = line.clone();
        // Who is deposed hears of it, or was cut off.
        for o in 0..self.owners.len() {
            if self.chance(50) {
                self.owners[o].links = [const { None }; REPLICAS];
            }
        }
        self.owners
            .push(Owner::new(epoch, line, self.seals.clone()));
        let o = self.owners.len() - 1;
        for r in 0..REPLICAS {
            self.connect(o, r);
        }
        self.promote(o, &accepted);
        if !self.seals.is_empty() {
            self.retain(o);
        }
    }

    /// Writes again what the epochs before have left, as it is read under the fence.
    pub(super) fn promote(&mut self, o: usize, from: &[usize]) {
        for block in 0..BLOCKS {
            let key = BlockKey::new(self.file, block);
            let mut found: Vec<Option<StoredBlock>> = Vec::new();
            for r in from {
                let epoch = self.epoch;
                if let Some(Response::Block(block)) = self.ask(*r, Request::Promote { epoch, key })
                {
                    found.push(block);
                }
            }
            if found.len() < SYNC {
                // It cannot own what it cannot read; the next one tries again.
                self.owners[o].fenced = true;
                return;
            }
            let newest = found.iter().flatten().map(|block| block.version).max();
            let synced = self.synced.get(&(key, Generation::SINGLE)).copied();
            if newest < synced {
                self.misread = Some(format!("{key}: {from:?} have {newest:?} of {synced:?}"));
            }
            if newest.is_some() {
                self.write(o, key, Generation::SINGLE);
            }
        }
    }

    pub(super) fn write(&mut self, o: usize, key: BlockKey, generation: Generation) {
        let overtaken = self.owners[o].epoch < self.epoch;
        let w = self.owners[o].add(key, generation, overtaken);
        let version = self.owners[o].writes[w].version;
        self.note(|| format!("{version} of {key} in {generation} is written"));
        for r in 0..REPLICAS {
            self.transmit(o, r, w);
        }
    }

    pub(super) fn write_any(&mut self, o: usize) {
        let block = self.rng.random_range(0..BLOCKS);
        match self.chance(50) {
            true => self.write(o, BlockKey::new(self.file, block), Generation::SINGLE),
            false => self.write(o, BlockKey::new(DATA, block), self.owners[o].now()),
        }
    }

    /// Cuts, and seals if all before the cut is synced.
    pub(super) fn seal(&mut self, o: usize) {
        let owner = &mut self.owners[o];
        let data = owner.writes.iter().filter(|w| w.key.file == DATA);
        if owner.epoch < self.epoch || !data.into_iter().all(|w| w.synced) {
            return;
        }
        let sealed = owner.line.truncated(owner.now());
        owner.generation += 1;
        owner.images.push(sealed.clone());
        if owner.images.len() > 2 {
            owner.images.remove(0);
        }
        self.seals.clone_from(&owner.images);
        self.base = sealed;
        self.coverage.one("seals");
        self.retain(o);
    }

    pub(super) fn retain(&mut self, o: usize) {
        let epoch = self.owners[o].epoch;
        let mut images = self.owners[o].images.clone();
        if self.flaw != Some(Flaw::PinForgotten) {
            images.extend(self.pins.iter().cloned());
        }
        if self.flaw != Some(Flaw::ChildForgotten) {
            let rooted = self.children.iter().filter(|child| self.needs_root(child));
            images.extend(rooted.map(|child| child.root.clone()));
        }
        let retention = Retention { images };
        self.tell_all(o, &Request::Retain { epoch, retention });
    }

    /// Pins the last seal, or drops a pin; as the newest owner finds it when it looks.
    pub(super) fn pin(&mut self, o: usize) {
        if self.owners[o].epoch < self.epoch {
            return;
        }
        if self.pins.len() < PINS && self.chance(60) {
            self.coverage.one("pins");
            self.pins.extend(self.seals.last().cloned());
        } else if !self.pins.is_empty() {
            let at = self.rng.random_range(0..self.pins.len());
            self.pins.remove(at);
            self.coverage.one("pins dropped");
            self.retain(o);
        }
    }

    /// Gives the file of single blocks back, and goes on in another.
    pub(super) fn remove(&mut self, o: usize) {
        let epoch = self.owners[o].epoch;
        if epoch < self.epoch {
            return;
        }
        let gone = self.file;
        self.file = FileId(gone.0 + 1);
        self.removed.insert(gone);
        self.coverage.one("files removed");
        let files = vec![gone];
        self.tell_all(o, &Request::RemoveFiles { epoch, files });
    }

    /// Sends something again that was sent before: also what is there already, or something newer.
    pub(super) fn repeat(&mut self, o: usize) {
        let count = self.owners[o].writes.len();
        if count > 0 {
            let (w, r) = (
                self.rng.random_range(0..count),
                self.rng.random_range(0..REPLICAS),
            );
            self.coverage.one("writes sent again");
            self.transmit(o, r, w);
        }
    }

    /// Sends what was refused, or never arrived.
    pub(super) fn send_missing(&mut self, o: usize) {
        for r in 0..REPLICAS {
            for w in 0..self.owners[o].writes.len() {
                let owner = &self.owners[o];
                let under_way = owner.links[r].as_ref().is_none_or(|link| link.carries(w));
                if !under_way && !owner.writes[w].acked[r] {
                    self.transmit(o, r, w);
                }
            }
            for request in std::mem::take(&mut self.owners[o].requests_left[r]) {
                self.tell(o, r, request);
            }
        }
    }

    pub fn commit(&mut self, r: usize) {
        for (conn, _, answer) in self.replicas[r].commit() {
            self.hear(r, conn, answer);
        }
    }
}
