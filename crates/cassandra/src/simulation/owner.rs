//! What a database does with a volume that it owns: it takes over, commits, writes, reads, seals and gives back.
//!
//! Everything goes through the client as it is; this only decides what is asked for, and says what the history was.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use dax::error::ErrorKind;
use dax::ids::{BlockIndex, BlockKey, Epoch, Generation, Version};
use dax::simulation::history::{Action, Content, Event, NOTHING, Outcome, RecordId};
use dax::storage::{Authority, Lineage, Retention, Storage, SyncScope};
use parking_lot::Mutex;
use rand::Rng;

use super::flaw::Flaw;
use super::life::Actor;
use super::places::{self, DATA, KEYS, LOG, OTHER, SEALS, bytes, name_of, of_bytes};
use super::recorder::Seal;

/// What an owner knows of what it owns.
#[derive(Debug)]
struct Book {
    lineage: Lineage,
    generation: Generation,
    /// The seal it began with.
    base: Content,
    /// The last two that it knows.
    seals: [Content; 2],
    sealing: bool,
    /// All commits in order, also those that are not acknowledged yet.
    commits: Vec<Content>,
    /// Versions of commits, by place in the log.
    versions: BTreeMap<usize, Version>,
}

struct Owner {
    actor: Actor,
    epoch: Epoch,
    book: Mutex<Book>,
}

/// Whoever owns an epoch, until it is fenced.
pub async fn own(actor: Actor, epoch: Epoch) {
    let owner = Arc::new(Owner {
        book: Mutex::new(Book {
            lineage: Lineage(Vec::new()),
            generation: Generation { epoch, number: 1 },
            base: NOTHING,
            seals: [NOTHING; 2],
            sealing: false,
            commits: Vec::new(),
            versions: BTreeMap::new(),
        }),
        actor,
        epoch,
    });
    let beating = Arc::clone(&owner);
    owner.actor.spawn(async move { beating.beat().await });
    if owner.take_over().await.is_none() {
        return;
    }
    loop {
        owner.actor.sleep_some(10_000..150_000).await;
        owner.act();
        owner.actor.look_below();
        owner.actor.fill_below();
    }
}

impl Owner {
    /// Others see that it lives.
    async fn beat(&self) {
        while !self.actor.life(|life| life.over) {
            self.actor.world(|world| {
                if world.recorder.newest_owned == self.epoch {
                    world.heartbeat = world.now;
                }
            });
            self.actor.sleep_some(50_000..150_000).await;
        }
    }

    // --- the takeover ----------------------------------------------------------------------------

    /// Finds the seal to begin with and the end of the log. None once fenced.
    async fn take_over(&self) -> Option<()> {
        let seal = self.promote_record(SEALS).await?;
        self.attach(seal);
        loop {
            let end = self.log_end();
            let found = self.actor.promote(end).await?;
            let mut book = self.book.lock();
            let fits = self
                .actor
                .world(|world| world.recorder.commits.fits(found, &book.commits));
            if found == NOTHING || !fits {
                break;
            }
            book.commits.push(found);
        }
        self.look_at_singles().await?;
        let log = self.book.lock().commits.clone();
        self.actor.world(|world| {
            world.lives[self.actor.me].attached = true;
            world.recorder.began(self.epoch, log);
        });
        Some(())
    }

    /// Some databases begin with what they find in the blocks that are in use. None once fenced.
    async fn look_at_singles(&self) -> Option<()> {
        let keys = self.actor.world(|world| match world.rng.random_bool(0.5) {
            true => world.singles(),
            false => Vec::new(),
        });
        for key in keys {
            self.actor.promote(key).await?;
        }
        Some(())
    }

    async fn promote_record(&self, record: RecordId) -> Option<Content> {
        let op = self.actor.start(Action::PromoteRecord(record));
        let client = &self.actor.client;
        let found = client.promote_record(&name_of(record)).await;
        let found = found.map(|value| Outcome::Record(of_bytes(value.as_deref())));
        match self.actor.tell(op, found).await {
            Some(Outcome::Record(content)) => Some(content),
            _ => None,
        }
    }

    fn attach(&self, seal: Content) {
        let base = self.actor.world(|w| w.recorder.seals.get(&seal).cloned());
        let mut book = self.book.lock();
        book.base = seal;
        book.seals = [seal, base.as_ref().map_or(NOTHING, |s| s.previous)];
        let lineage = base.as_ref().map(|s| s.lineage.clone());
        let lineage = lineage.unwrap_or(Lineage(Vec::new()));
        book.lineage = lineage.continued(book.generation);
        book.commits = base.map(|s| s.log).unwrap_or_default();
    }

    /// The block behind the log's end as far as it is known.
    fn log_end(&self) -> BlockKey {
        places::key(LOG, self.book.lock().commits.len() as u64)
    }

    // --- what a database does --------------------------------------------------------------------

    /// One thing.
    fn act(self: &Arc<Self>) {
        let (what, key) = self
            .actor
            .world(|world| (world.rng.random_range(0..100), world.any_single()));
        match what {
            0..60 => self.work(),
            60..75 => self.spawn(move |own| async move {
                own.actor.promote(key).await;
            }),
            75..90 => self.spawn(move |own| async move {
                own.actor.read(key).await;
            }),
            90..96 => {
                let base = self.book.lock().base;
                self.spawn(move |own| async move { own.actor.read_seal(base).await });
            }
            96..98 => self.spawn(|own| async move { own.confirm().await }),
            98 => self.spawn(|own| async move {
                own.promote_record(OTHER).await;
            }),
            _ => self.release(),
        }
    }

    fn spawn<F>(self: &Arc<Self>, task: impl FnOnce(Arc<Owner>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.actor.spawn(task(Arc::clone(self)));
    }

    fn work(self: &Arc<Self>) {
        let (what, number) = self.actor.world(|world| {
            (
                world.rng.random_range(0..100),
                world.rng.random_range(0..KEYS),
            )
        });
        match what {
            0..26 => {
                let key = self.actor.world(|world| world.some_single());
                self.write(key, Generation::SINGLE);
            }
            26..46 => {
                let generation = self.book.lock().generation;
                self.write(places::key(DATA, number), generation);
            }
            46..64 => self.commit(),
            64..70 => self.spawn(|own| async move {
                // Several do at nearly the same time: some are done while others are being written.
                for _ in 0..4 {
                    own.commit();
                    own.actor.sleep_some(0..8_000).await;
                }
            }),
            70..84 => self.spawn(|own| async move {
                own.sync(Action::Sync).await;
            }),
            84..93 if !self.book.lock().sealing => self.seal(),
            93..98 => {
                let content = self.actor.world(|world| world.recorder.content());
                self.spawn(move |own| async move {
                    own.put(OTHER, content).await;
                });
            }
            98 => self.spawn(|own| async move { own.remove_past().await }),
            99 => self.spawn(move |own| async move {
                // One that gets no answer is begun again by whoever wants it.
                if let Err(error) = own.actor.client.scrub(None).await
                    && error.kind() != ErrorKind::Unavailable
                {
                    own.actor.failed(&error);
                }
            }),
            _ => {}
        }
    }

    /// Writes a block; none if it is fenced.
    fn write(&self, key: BlockKey, generation: Generation) -> Option<(Content, Version)> {
        let (me, epoch) = (self.actor.me, self.epoch);
        let content = self
            .actor
            .world(|world| world.recorder.wrote(me, epoch, key, generation));
        let data = Bytes::from(bytes(content));
        let written = self.actor.client.write(key, generation, data);
        match written {
            Ok(version) => Some((content, version)),
            Err(error) => {
                self.actor.failed(&error);
                None
            }
        }
    }

    /// Appends a commit, which is acknowledged once it is synced.
    fn commit(self: &Arc<Self>) {
        let (key, position) = (self.log_end(), self.book.lock().commits.len());
        let Some((content, version)) = self.write(key, Generation::SINGLE) else {
            return;
        };
        let all = self.actor.world(|world| {
            let book = self.book.lock();
            world.recorder.commits.made(content, &book.commits);
            world.lives[self.actor.me].commits += 1;
            world.rng.random_bool(0.5)
        });
        {
            let mut book = self.book.lock();
            book.commits.push(content);
            book.versions.insert(position, version);
        }
        let action = match all {
            true => Action::Sync,
            false => Action::SyncUpTo(LOG, content),
        };
        self.spawn(move |own| async move {
            let done = own.sync(action).await;
            own.actor.world(|world| {
                world.lives[own.actor.me].commits -= 1;
                if done.is_some() {
                    world.recorder.committed(own.epoch, position, content);
                }
            });
        });
    }

    /// A sync point. None once fenced.
    async fn sync(&self, action: Action) -> Option<Outcome> {
        let scope = match action {
            Action::SyncUpTo(file, content) => {
                let book = self.book.lock();
                let at = book.commits.iter().position(|c| *c == content);
                let version = at.and_then(|at| book.versions.get(&at).copied());
                SyncScope::FileUpTo(file, version.unwrap_or_default())
            }
            _ => SyncScope::Volume,
        };
        let op = self.actor.start(action);
        let done = self.actor.client.csync(scope).await;
        self.actor.tell(op, done.map(|()| Outcome::Done)).await
    }

    async fn put(&self, record: RecordId, content: Content) -> Option<Outcome> {
        let op = self.actor.start(Action::Put { record, content });
        let (name, value) = (name_of(record), Bytes::from(bytes(content)));
        let put = self.actor.client.put_record(&name, value, Authority::Owner);
        let done = put.await;
        self.actor.tell(op, done.map(|()| Outcome::Done)).await
    }

    async fn confirm(&self) {
        let op = self.actor.start(Action::Confirm);
        let stands = self.actor.client.confirm().await.map(Outcome::Owned);
        self.actor.tell(op, stands).await;
    }

    fn release(self: &Arc<Self>) {
        let now = self
            .actor
            .world(|world| !world.calm && world.rng.random_bool(0.15));
        if !now {
            return;
        }
        self.actor.world(|world| world.coverage.one("handovers"));
        self.actor.life(|life| life.releasing = true);
        self.spawn(move |own| async move {
            if let Err(error) = own.actor.client.release().await {
                own.actor.failed(&error);
            }
            own.actor.life(|life| life.releasing = false);
        });
    }

    // --- seals and what they let go --------------------------------------------------------------

    /// Cuts, syncs, and puts the seal then.
    fn seal(self: &Arc<Self>) {
        let seal = {
            let mut book = self.book.lock();
            book.sealing = true;
            let mut world = self.actor.stage.lock();
            let seal = world.recorder.content();
            let sealed = Seal {
                lineage: book.lineage.truncated(book.generation),
                previous: book.seals[0],
                log: book.commits.clone(),
            };
            world.recorder.seals.insert(seal, sealed);
            world.recorder.event(&Event::Cut {
                client: self.actor.me,
                epoch: self.epoch,
                seal,
                base: book.base,
            });
            book.generation = book.generation.next();
            seal
        };
        self.spawn(move |own| async move {
            own.put_seal(seal).await;
        });
    }

    async fn put_seal(&self, seal: Content) -> Option<()> {
        let has = |flaw| self.actor.world(|world| world.has(flaw));
        if !has(Flaw::SealBeforeSync) {
            self.sync(Action::Sync).await?;
        }
        if has(Flaw::ReclaimWithoutGate) {
            // As if the seal that is being put were there.
            let before = self.book.lock().seals[0];
            self.retain([seal, before]).await;
        }
        self.put(SEALS, seal).await?;
        let seals = {
            let mut book = self.book.lock();
            book.sealing = false;
            book.seals = [seal, book.seals[0]];
            book.seals
        };
        self.reclaim(seals).await;
        Some(())
    }

    /// What nobody needs any more goes; whoever was deposed before may let nothing go.
    async fn reclaim(&self, seals: [Content; 2]) {
        let stands = self.actor.world(|world| {
            world.coverage.one("seals completed");
            world.recorder.newest_owned == self.epoch
        });
        if self.retain(seals).await && stands {
            self.actor.world(|world| {
                // The newest of them: up to its end, only what one of the two shows is kept (`dax::replica::prune`).
                let newest = world.recorder.seals.get(&seals[0]);
                let end = newest.map_or(Generation::SINGLE, |seal| seal.lineage.end());
                let epoch = self.epoch;
                let event = Event::Retained { epoch, seals, end };
                world.recorder.event(&event);
            });
        }
    }

    /// Keeps what these seals need. Says whether the rest may go.
    async fn retain(&self, seals: [Content; 2]) -> bool {
        let images = self.actor.world(|world| {
            let seals = seals.iter().filter_map(|s| world.recorder.seals.get(s));
            seals.map(|seal| seal.lineage.clone()).collect()
        });
        let retained = self.actor.client.retain(Retention { images }).await;
        retained
            .inspect_err(|error| self.actor.failed(error))
            .is_ok()
    }

    /// Gives back the log before what a takeover that begins with the older seal reads.
    async fn remove_past(&self) {
        let before = self.actor.world(|world| {
            let seal = world.recorder.seals.get(&self.book.lock().seals[1]);
            seal.map_or(0, |seal| seal.log.len())
        });
        let first: BlockIndex = places::key(LOG, before as u64).block;
        let (epoch, file) = (self.epoch, LOG);
        if before == 0 {
            return;
        }
        self.actor.world(|world| {
            let before = first.0;
            let event = Event::Removed {
                epoch,
                file,
                before,
            };
            world.recorder.event(&event);
        });
        let removed = self.actor.client.remove_blocks_before(LOG, first).await;
        if let Err(error) = removed {
            self.actor.failed(&error);
        }
    }
}
