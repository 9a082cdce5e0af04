//! Strict two-phase locks on conflict classes.
//!
//! ```text
//!   acquire ──▶ granted ─────────────────────────────▶ release (after the commit)
//!      │          ▲
//!      └──▶ waits ┴──▶ deadlock: the transaction is the victim, and must be rolled back
//! ```
//!
//! Invariant: two transactions that conflict on a class never have it at the same time. Whoever waits is served in the order of
//! asking, but a transaction that already has a class and asks for more of it goes first.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::class::{Claims, Class, Mode};

/// A transaction that runs, as its manager calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tx(pub u64);

/// What became of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// It has everything that it asked for.
    Granted,
    /// It would wait for whoever waits for it.
    Deadlock,
}

#[derive(Debug, Default)]
struct Queue {
    holders: BTreeMap<Tx, Mode>,
    waiters: VecDeque<(Tx, Mode)>,
}

impl Queue {
    /// The first that waits for nobody any more: whoever does not conflict with those before it need not wait for them.
    fn next(&self) -> Option<(Tx, Mode)> {
        let mut waiters = self.waiters.iter().enumerate();
        let found = waiters.find(|(at, (tx, wanted))| {
            let others = self.holders.iter().filter(|(other, _)| *other != tx);
            let before = self.waiters.iter().take(*at);
            others
                .map(|(_, mode)| mode)
                .chain(before.map(|(_, mode)| mode))
                .all(|mode| mode.allows(*wanted))
        });
        found.map(|(_, waiter)| *waiter)
    }
}

#[derive(Debug)]
struct Waiting {
    class: Class,
    rest: VecDeque<(Class, Mode)>,
}

/// Who has which class, and who waits.
#[derive(Debug, Default)]
pub struct Locks {
    queues: HashMap<Class, Queue>,
    waiting: BTreeMap<Tx, Waiting>,
    held: HashMap<Tx, BTreeSet<Class>>,
}

impl Locks {
    /// Asks for all of `claims`; `None` if the transaction has to wait. What it has waited for before is not asked for any more.
    pub fn acquire(&mut self, tx: Tx, claims: &Claims) -> Option<Grant> {
        if let Some(class) = self.stop_waiting(tx) {
            // Whoever waits behind it is served when it is over.
            self.held.entry(tx).or_default().insert(class);
        }
        let claims = claims.iter().map(|(class, mode)| (class.clone(), mode));
        self.go_on(tx, claims.collect())
    }

    /// Takes what can be taken, in order.
    fn go_on(&mut self, tx: Tx, mut claims: VecDeque<(Class, Mode)>) -> Option<Grant> {
        while let Some((class, mode)) = claims.pop_front() {
            if self.take(tx, &class, mode) {
                continue;
            }
            self.waiting.insert(
                tx,
                Waiting {
                    class,
                    rest: claims,
                },
            );
            if self.waits_for_itself(tx) {
                // Whoever waits behind it is served when it is rolled back.
                let class = self.stop_waiting(tx);
                self.held.entry(tx).or_default().extend(class);
                return Some(Grant::Deadlock);
            }
            return None;
        }
        Some(Grant::Granted)
    }

    /// True if it has the class now; otherwise it waits there.
    fn take(&mut self, tx: Tx, class: &Class, mode: Mode) -> bool {
        let queue = self.queues.entry(class.clone()).or_default();
        let held = queue.holders.get(&tx).copied();
        let wanted = held.map_or(mode, |held| held.and(mode));
        if held == Some(wanted) {
            return true;
        }
        let others = queue.holders.iter().filter(|(other, _)| **other != tx);
        let is_free = others.clone().all(|(_, other)| other.allows(wanted));
        let is_first =
            held.is_some() || queue.waiters.iter().all(|(_, other)| other.allows(wanted));
        if is_free && is_first {
            queue.holders.insert(tx, wanted);
            self.held.entry(tx).or_default().insert(class.clone());
            return true;
        }
        if held.is_some() {
            queue.waiters.push_front((tx, wanted));
        } else {
            queue.waiters.push_back((tx, wanted));
        }
        false
    }

    /// Whom a waiting transaction waits for: those that have the class, and those that wait before it.
    pub fn before(&self, tx: Tx) -> Vec<Tx> {
        let Some(queue) = self
            .waiting
            .get(&tx)
            .and_then(|w| self.queues.get(&w.class))
        else {
            return Vec::new();
        };
        let Some(at) = queue.waiters.iter().position(|(other, _)| *other == tx) else {
            return Vec::new();
        };
        let wanted = queue.waiters[at].1;
        let waiters = queue.waiters.iter().take(at);
        let holders = queue.holders.iter().map(|(other, mode)| (*other, *mode));
        let all = holders.chain(waiters.copied());
        all.filter(|(other, mode)| *other != tx && !mode.allows(wanted))
            .map(|(other, _)| other)
            .collect()
    }

    fn waits_for_itself(&self, tx: Tx) -> bool {
        let mut seen = BTreeSet::new();
        let mut next = self.before(tx);
        while let Some(other) = next.pop() {
            if other == tx {
                return true;
            }
            if seen.insert(other) {
                next.extend(self.before(other));
            }
        }
        false
    }

    fn stop_waiting(&mut self, tx: Tx) -> Option<Class> {
        let waiting = self.waiting.remove(&tx)?;
        if let Some(queue) = self.queues.get_mut(&waiting.class) {
            queue.waiters.retain(|(other, _)| *other != tx);
        }
        Some(waiting.class)
    }

    /// A transaction waits no longer, and keeps what it has: what became of those that waited behind it.
    pub fn give_up(&mut self, tx: Tx) -> Vec<(Tx, Grant)> {
        let mut grants = Vec::new();
        if let Some(class) = self.stop_waiting(tx) {
            self.serve(&class, &mut grants);
        }
        grants
    }

    /// A transaction is over, or gives up waiting and is rolled back: what became of those that waited for it.
    pub fn release(&mut self, tx: Tx) -> Vec<(Tx, Grant)> {
        let mut classes = self.held.remove(&tx).unwrap_or_default();
        classes.extend(self.stop_waiting(tx));
        for class in &classes {
            if let Some(queue) = self.queues.get_mut(class) {
                queue.holders.remove(&tx);
            }
        }
        let mut grants = Vec::new();
        for class in classes {
            self.serve(&class, &mut grants);
        }
        grants
    }

    /// Lets those go on that waited for a class, as far as it is free.
    fn serve(&mut self, class: &Class, grants: &mut Vec<(Tx, Grant)>) {
        while let Some(queue) = self.queues.get_mut(class) {
            if queue.waiters.is_empty() && queue.holders.is_empty() {
                self.queues.remove(class);
                return;
            }
            let Some((tx, wanted)) = queue.next() else {
                return;
            };
            queue.waiters.retain(|(other, _)| *other != tx);
            queue.holders.insert(tx, wanted);
            self.held.entry(tx).or_default().insert(class.clone());
            let rest = self.waiting.remove(&tx).map(|waiting| waiting.rest);
            if let Some(grant) = self.go_on(tx, rest.unwrap_or_default()) {
                grants.push((tx, grant));
            }
        }
    }

    /// How many classes somebody has.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// True if nobody has anything.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &str) -> Claims {
        Claims::default().with(Class::Key("t".into(), key.into()), Mode::Exclusive)
    }

    fn table(mode: Mode) -> Claims {
        Claims::default().with(Class::Table("t".into()), mode)
    }

    #[test]
    fn waiters_are_served_in_order() {
        let mut locks = Locks::default();
        assert_eq!(locks.acquire(Tx(1), &key("a")), Some(Grant::Granted));
        assert_eq!(locks.acquire(Tx(2), &key("b")), Some(Grant::Granted));
        assert_eq!(locks.acquire(Tx(3), &table(Mode::Exclusive)), None);
        // A later one does not overtake the one that waits for all of the table.
        assert_eq!(locks.acquire(Tx(4), &key("c")), None);
        assert!(locks.release(Tx(1)).is_empty());
        assert_eq!(locks.release(Tx(2)), [(Tx(3), Grant::Granted)]);
        assert_eq!(locks.release(Tx(3)), [(Tx(4), Grant::Granted)]);
        assert!(locks.release(Tx(4)).is_empty());
        assert!(locks.is_empty());
    }

    #[test]
    fn a_circle_has_a_victim() {
        let mut locks = Locks::default();
        assert_eq!(locks.acquire(Tx(1), &key("a")), Some(Grant::Granted));
        assert_eq!(locks.acquire(Tx(2), &key("b")), Some(Grant::Granted));
        assert_eq!(locks.acquire(Tx(1), &key("b")), None);
        assert_eq!(locks.acquire(Tx(2), &key("a")), Some(Grant::Deadlock));
        assert_eq!(locks.release(Tx(2)), [(Tx(1), Grant::Granted)]);
        locks.release(Tx(1));
        assert!(locks.is_empty());
    }

    #[test]
    fn two_that_want_more_of_the_same_are_a_circle() {
        let mut locks = Locks::default();
        assert_eq!(
            locks.acquire(Tx(1), &table(Mode::Shared)),
            Some(Grant::Granted)
        );
        assert_eq!(
            locks.acquire(Tx(2), &table(Mode::Shared)),
            Some(Grant::Granted)
        );
        assert_eq!(locks.acquire(Tx(1), &table(Mode::Exclusive)), None);
        assert_eq!(
            locks.acquire(Tx(2), &table(Mode::Exclusive)),
            Some(Grant::Deadlock)
        );
        assert_eq!(locks.release(Tx(2)), [(Tx(1), Grant::Granted)]);
    }

    /// It stayed in the queue: what it was given there later was taken for what it asked for next.
    #[test]
    fn what_is_not_waited_for_any_more_is_not_given() {
        let mut locks = Locks::default();
        assert_eq!(locks.acquire(Tx(2), &key("a")), Some(Grant::Granted));
        assert_eq!(locks.acquire(Tx(3), &key("b")), Some(Grant::Granted));
        assert_eq!(locks.acquire(Tx(1), &key("a")), None);
        assert_eq!(locks.acquire(Tx(4), &key("a")), None);
        // The first one waits too long, goes back to a savepoint, and goes on.
        assert!(locks.give_up(Tx(1)).is_empty());
        assert_eq!(locks.acquire(Tx(1), &key("b")), None);
        assert_eq!(locks.release(Tx(2)), [(Tx(4), Grant::Granted)]);
        // The same if nobody has said that it gave up.
        assert_eq!(locks.acquire(Tx(1), &key("c")), Some(Grant::Granted));
        assert!(locks.release(Tx(3)).is_empty());
        assert!(locks.release(Tx(4)).is_empty());
        assert!(locks.release(Tx(1)).is_empty());
        assert!(locks.is_empty());
    }

    #[test]
    fn those_behind_one_that_gives_up_go_on() {
        let mut locks = Locks::default();
        let shared = table(Mode::Shared);
        assert_eq!(locks.acquire(Tx(1), &shared), Some(Grant::Granted));
        assert_eq!(locks.acquire(Tx(2), &table(Mode::Exclusive)), None);
        assert_eq!(locks.acquire(Tx(3), &shared), None);
        assert_eq!(locks.give_up(Tx(2)), [(Tx(3), Grant::Granted)]);
        for tx in 1..=3 {
            locks.release(Tx(tx));
        }
        assert!(locks.is_empty());
    }

    #[test]
    fn those_behind_a_victim_go_on() {
        let mut locks = Locks::default();
        assert_eq!(
            locks.acquire(Tx(1), &table(Mode::IntentShared)),
            Some(Grant::Granted)
        );
        assert_eq!(locks.acquire(Tx(2), &key("u")), Some(Grant::Granted));
        let u = Claims::default().with(Class::Table("u".into()), Mode::Exclusive);
        assert_eq!(locks.acquire(Tx(3), &u), Some(Grant::Granted));
        assert_eq!(locks.acquire(Tx(1), &u), None);
        assert_eq!(
            locks.acquire(Tx(3), &table(Mode::Exclusive)),
            Some(Grant::Deadlock)
        );
        // It comes behind the victim, which is not rolled back yet.
        assert_eq!(
            locks.acquire(Tx(4), &table(Mode::IntentShared)),
            Some(Grant::Granted)
        );
        assert_eq!(locks.release(Tx(3)), [(Tx(1), Grant::Granted)]);
        for tx in [1, 2, 4] {
            locks.release(Tx(tx));
        }
        assert!(locks.is_empty());
    }

    #[test]
    fn whoever_gives_up_lets_others_pass() {
        let mut locks = Locks::default();
        assert_eq!(
            locks.acquire(Tx(1), &table(Mode::Shared)),
            Some(Grant::Granted)
        );
        assert_eq!(locks.acquire(Tx(2), &table(Mode::Exclusive)), None);
        assert_eq!(locks.acquire(Tx(3), &table(Mode::Shared)), None);
        assert_eq!(locks.release(Tx(2)), [(Tx(3), Grant::Granted)]);
    }

    /// Random transactions against the rule itself: nobody has what conflicts, and everybody comes to an end.
    #[test]
    fn random_transactions_never_have_what_conflicts_and_all_end() {
        use rand::rngs::SmallRng;
        use rand::{Rng, SeedableRng};
        for seed in 0..300 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut locks = Locks::default();
            let mut held: BTreeMap<Tx, Claims> = BTreeMap::new();
            let mut asked: BTreeMap<Tx, Claims> = BTreeMap::new();
            let mut next = 0;
            for step in 0..400 {
                let idle: Vec<Tx> = held
                    .keys()
                    .filter(|tx| !asked.contains_key(tx))
                    .copied()
                    .collect();
                let mut grants = Vec::new();
                if step < 300 && rng.random_bool(0.3) {
                    next += 1;
                    held.insert(Tx(next), Claims::default());
                } else if let Some(tx) = idle.get(rng.random_range(0..idle.len().max(1))).copied() {
                    if step < 300 && rng.random_bool(0.6) {
                        let mode = Mode::ALL[rng.random_range(0..5)];
                        let name: Box<str> = format!("t{}", rng.random_range(0..2)).into();
                        let class = match rng.random_range(0..4) {
                            0 => Class::Table(name),
                            _ => Class::Key(name, rng.random_range(0..3).to_string().into()),
                        };
                        let claims = Claims::default().with(class, mode);
                        asked.insert(tx, claims.clone());
                        grants.extend(locks.acquire(tx, &claims).map(|grant| (tx, grant)));
                    } else {
                        held.remove(&tx);
                        grants = locks.release(tx);
                    }
                }
                while let Some((tx, grant)) = grants.pop() {
                    let claims = asked.remove(&tx).expect("it had asked");
                    match grant {
                        Grant::Granted => held.get_mut(&tx).expect("runs").extend(&claims),
                        Grant::Deadlock => {
                            held.remove(&tx);
                            grants.extend(locks.release(tx));
                        }
                    }
                }
                for (one, claims) in &held {
                    for (other, others) in held.range(..*one) {
                        assert!(
                            !claims.conflicts_with(others),
                            "seed {seed}: {one:?} {other:?}"
                        );
                    }
                }
            }
            while let Some(tx) = held.keys().find(|tx| !asked.contains_key(tx)).copied() {
                held.remove(&tx);
                let mut grants = locks.release(tx);
                while let Some((tx, grant)) = grants.pop() {
                    asked.remove(&tx);
                    if grant == Grant::Deadlock {
                        held.remove(&tx);
                        grants.extend(locks.release(tx));
                    }
                }
            }
            assert!(held.is_empty(), "seed {seed}: {held:?} wait for ever");
            assert!(locks.is_empty());
        }
    }
}
