//! The oldest contents that may still be seen, per block or record: what the checkers of survival
//! share.
//!
//! A floor is raised by what is durable (a completed sync or put) and by what an epoch's owner chose
//! among the remains of older epochs. What lies below a floor is ruled out for good.

use std::collections::BTreeMap;

use super::super::history::{Content, NOTHING};
use crate::ids::Epoch;

/// A place in the order of everything that can be seen: the epoch, then the order of its writes. A
/// choice of an epoch comes before all writes of that epoch and after those of older ones.
pub(super) type Place = (Epoch, Content);

/// What must survive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Floor {
    pub content: Content,
    /// Where those contents were first written.
    pub origin: Place,
    /// What lies below is ruled out, except the contents themselves.
    pub place: Place,
}

impl Floor {
    /// True if contents of that origin may be seen.
    pub fn allows(&self, content: Content, origin: Place) -> bool {
        content == self.content || (content != NOTHING && origin > self.place)
    }
}

/// The floor of each block or record.
#[derive(Debug)]
pub(super) struct Floors<K> {
    floors: BTreeMap<K, Floor>,
    /// Epochs whose owner was told that there is nothing.
    absent: BTreeMap<K, Epoch>,
}

impl<K> Default for Floors<K> {
    fn default() -> Floors<K> {
        Floors {
            floors: BTreeMap::new(),
            absent: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Copy + std::fmt::Debug> Floors<K> {
    pub fn get(&self, key: K) -> Floor {
        self.floors.get(&key).copied().unwrap_or_default()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &Floor)> {
        self.floors.iter()
    }

    /// These contents are durable from now on.
    ///
    /// # Errors
    /// A later epoch has ruled them out already.
    pub fn durable(&mut self, key: K, content: Content, origin: Place) -> Result<(), String> {
        let floor = self.get(key);
        if let Some(epoch) = self.absent.get(&key).filter(|e| **e > origin.0) {
            return Err(format!(
                "{content} of {key:?} became durable, but the owner of {epoch} found nothing there"
            ));
        }
        if origin > floor.place {
            let place = origin;
            let floor = Floor {
                content,
                origin,
                place,
            };
            self.floors.insert(key, floor);
            return Ok(());
        }
        if floor.origin < origin {
            return Err(format!(
                "{content} of {key:?} became durable, but {floor:?} was chosen before"
            ));
        }
        Ok(())
    }

    /// The owner of `epoch` found these contents, and made them those that survive. `before` is the
    /// floor when it began to look.
    ///
    /// # Errors
    /// They cannot have survived, or a later epoch chose something else.
    pub fn chosen(
        &mut self,
        key: K,
        epoch: Epoch,
        (content, origin): (Content, Place),
        before: &Floor,
    ) -> Result<(), String> {
        let floor = self.get(key);
        if floor.place.0 > epoch {
            // Heard of late. The later epoch must have found this choice, or something newer.
            let fits = content == NOTHING || floor.content == content || floor.origin.0 >= epoch;
            return match fits {
                true => Ok(()),
                false => Err(format!(
                    "{epoch} chose {content} of {key:?}, but then {floor:?} survived"
                )),
            };
        }
        if !before.allows(content, origin) {
            return Err(format!(
                "{epoch} found {content} of {key:?}, where {before:?} must survive"
            ));
        }
        if content == NOTHING {
            let absent = self.absent.entry(key).or_default();
            *absent = epoch.max(*absent);
            return Ok(());
        }
        let place = origin.max((epoch, 0));
        if place > floor.place {
            let floor = Floor {
                content,
                origin,
                place,
            };
            self.floors.insert(key, floor);
        }
        Ok(())
    }
}
