//! Carries out what `core::quota` decides: who opens a connection, and what becomes of one that is given back.
//!
//! Invariant: a connection counts from before it is opened until it has ended, by its [`Share`]. The lock of a shelf may be taken
//! under the lock here, never the other way round: no share is dropped under the lock of a shelf.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::core::quota::{Asked, Back, Group, Most, Owner, Quotas as Core, Turn, WaiterNotice};
use crate::core::topology::Place;

use super::login::Conn;

/// A connection that counts.
pub struct Stocked {
    pub conn: Box<Conn>,
    /// Its share of the limits.
    pub share: Share,
}

impl Stocked {
    /// Ends a session that nobody uses.
    pub fn close(self) {
        self.conn.close();
    }
}

/// Share of the limits that a connection has, as long as it is there.
pub struct Share {
    quotas: Arc<Quotas>,
    owner: Arc<Owner>,
}

impl std::fmt::Debug for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Share").field(&self.owner).finish()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let unsaid = {
            let mut state = self.quotas.state.lock();
            let told = state.core.close(&self.owner);
            self.quotas.tell(&mut state, told)
        };
        // A share may be among it, which is given back without the lock.
        drop(unsaid);
    }
}

/// Connections of one pool to one server that nobody has.
pub trait Idle: Send + Sync {
    /// Last use of the connection that has been idle for longest.
    fn oldest(&self) -> Option<Instant>;
    /// Takes that one.
    fn take_oldest(&self) -> Option<Stocked>;
    /// Takes the one that was used last.
    fn take_newest(&self) -> Option<Stocked>;
    /// Puts one back.
    fn put(&self, stocked: Stocked);
}

/// Help for a client that needs a new connection.
pub enum Got {
    /// It may open one.
    Share(Share),
    /// Somebody has given this one back.
    Stocked(Stocked),
}

enum Word {
    Got(Got),
    Look,
}

#[derive(Default)]
struct State {
    core: Core,
    waiting: HashMap<Turn, (Arc<Owner>, mpsc::UnboundedSender<Word>)>,
    shelves: Vec<(Arc<Owner>, Weak<dyn Idle>)>,
}

/// Limits that pools share.
#[derive(Default)]
pub struct Quotas {
    state: Mutex<State>,
    /// A connection that comes back may have to go elsewhere.
    is_busy: AtomicBool,
    pools: AtomicU64,
}

/// A client that waits, however that ends.
struct Waiting<'a>(&'a Quotas, Turn);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.core.leave(self.1);
        state.waiting.remove(&self.1);
        self.0.note(&state);
    }
}

impl Quotas {
    /// A number for another pool.
    pub fn number(&self) -> u64 {
        self.pools.fetch_add(1, Ordering::Relaxed)
    }

    /// Remembers where a pool keeps idle connections, as long as it does.
    pub fn register(&self, owner: &Arc<Owner>, shelf: Weak<dyn Idle>) {
        let mut state = self.state.lock();
        state.shelves.retain(|(_, shelf)| shelf.strong_count() > 0);
        state.shelves.push((owner.clone(), shelf));
    }

    /// Lets a client open a connection, or gives it one that comes back meanwhile. `None` if there is no place until then.
    pub async fn open(self: &Arc<Self>, owner: &Arc<Owner>, until: Instant) -> Option<Got> {
        let (turn, mut words) = {
            let mut state = self.state.lock();
            match state.core.ask(owner, Instant::now().into_std()) {
                Asked::Opens => return Some(Got::Share(self.share(owner))),
                Asked::Waits(turn) => {
                    let (to, words) = mpsc::unbounded_channel();
                    state.waiting.insert(turn, (owner.clone(), to));
                    self.note(&state);
                    (turn, words)
                }
            }
        };
        let _waiting = Waiting(self, turn);
        loop {
            self.make_place(owner, turn);
            match tokio::time::timeout_at(until, words.recv()).await {
                Ok(Some(Word::Look)) => {}
                Ok(Some(Word::Got(got))) => return Some(got),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Counts a connection that is there, whatever the limits are.
    pub fn adopt(self: &Arc<Self>, owner: &Arc<Owner>) -> Share {
        let mut state = self.state.lock();
        state.core.adopt(owner);
        self.note(&state);
        self.share(owner)
    }

    /// A pool has got a connection back: others may need it, or its place, more.
    pub fn offer(&self, owner: &Owner, shelf: &dyn Idle) {
        if !self.is_busy.load(Ordering::SeqCst) {
            return;
        }
        let surplus = {
            let mut state = self.state.lock();
            let surplus = shelf
                .take_newest()
                .and_then(|stocked| state.pass_on(owner, shelf, stocked));
            self.note(&state);
            surplus
        };
        surplus.into_iter().for_each(Stocked::close);
    }

    /// Goes by other limits from now on.
    pub fn set(self: &Arc<Self>, most: Most) {
        let (unsaid, exceeded) = {
            let mut state = self.state.lock();
            let told = state.core.set(most);
            (self.tell(&mut state, told), state.core.exceeded())
        };
        drop(unsaid);
        for (place, group) in exceeded {
            let is_over = |core: &Core| core.exceeded().contains(&(place.clone(), group.clone()));
            while is_over(&self.state.lock().core) && self.evict(&place, &group) {}
        }
    }

    /// The limit of a group, and its connections by server.
    pub fn show(&self, group: &Group) -> (usize, BTreeMap<Place, usize>) {
        let state = self.state.lock();
        (state.core.most(group), state.core.open(group))
    }

    /// Closes idle connections of other pools as far as that makes a place for this one.
    fn make_place(&self, owner: &Owner, turn: Turn) {
        loop {
            let full = {
                let state = self.state.lock();
                match state.core.is_waiting(turn) {
                    true => state.core.full(owner),
                    false => return,
                }
            };
            let mut groups = full.iter();
            if !groups.any(|group| self.evict(&owner.place, group)) {
                return;
            }
        }
    }

    /// Closes the connection of a group that was not used for the longest time. Returns true if there may be more.
    fn evict(&self, place: &Place, group: &Group) -> bool {
        let mut shelves: Vec<Arc<dyn Idle>> = Vec::new();
        for (owner, shelf) in &self.state.lock().shelves {
            if owner.shares(place, group) {
                shelves.extend(shelf.upgrade());
            }
        }
        let idle = shelves
            .iter()
            .filter_map(|shelf| Some((shelf.oldest()?, shelf)));
        let oldest = idle.min_by_key(|(used, _)| *used);
        let Some((_, shelf)) = oldest else {
            return false;
        };
        // Somebody may have taken it.
        shelf.take_oldest().into_iter().for_each(Stocked::close);
        true
    }

    fn share(self: &Arc<Self>, owner: &Arc<Owner>) -> Share {
        Share {
            quotas: self.clone(),
            owner: owner.clone(),
        }
    }

    /// Tells those who wait. Returns what nobody heard, which must not be dropped under the lock.
    fn tell(self: &Arc<Self>, state: &mut State, told: Vec<(Turn, WaiterNotice)>) -> Vec<Word> {
        let mut unsaid = Vec::new();
        for (turn, told) in told {
            let Some((owner, _)) = state.waiting.get(&turn) else {
                continue;
            };
            let word = match told {
                WaiterNotice::Looks => Word::Look,
                WaiterNotice::Opens => Word::Got(Got::Share(self.share(owner))),
            };
            unsaid.extend(state.say(turn, word));
        }
        self.note(state);
        unsaid
    }

    fn note(&self, state: &State) {
        self.is_busy.store(state.core.is_busy(), Ordering::SeqCst);
    }
}

impl State {
    /// Says something to a client that waits, which may be its last word. Returns what could not be said.
    fn say(&mut self, turn: Turn, word: Word) -> Option<Word> {
        let is_last = matches!(word, Word::Got(_));
        let Some((_, to)) = self.waiting.get(&turn) else {
            return Some(word);
        };
        let unsaid = to.send(word).err().map(|unsent| unsent.0);
        if is_last {
            self.waiting.remove(&turn);
        }
        unsaid
    }

    /// Gives a connection to who needs it. Returns it if it is to be closed.
    fn pass_on(
        &mut self,
        owner: &Owner,
        shelf: &dyn Idle,
        mut stocked: Stocked,
    ) -> Option<Stocked> {
        loop {
            match self.core.comes_back(owner, Instant::now().into_std()) {
                Back::Stays => {
                    shelf.put(stocked);
                    return None;
                }
                Back::Closes => return Some(stocked),
                Back::Goes(turn) => match self.say(turn, Word::Got(Got::Stocked(stocked))) {
                    Some(Word::Got(Got::Stocked(back))) => stocked = back,
                    _ => return None,
                },
            }
        }
    }
}
