//! Which nodes are alive, as their records tell: a record that moves has a living writer. No clocks
//! are compared.

use std::collections::HashMap;
use std::time::Duration;

use crate::records::Member;
use dax::ids::NodeName;

/// When each node's record was last seen to move.
#[derive(Debug, Clone, Default)]
pub struct Liveness {
    marks: HashMap<NodeName, Mark>,
}

#[derive(Debug, Clone)]
struct Mark {
    says: (String, u64),
    /// When it was first seen to say so.
    since: Duration,
    /// How often it said something new.
    moves: u32,
}

impl Liveness {
    /// Takes in what the records say at `now`.
    pub fn note(&mut self, members: &[Member], now: Duration) {
        self.marks
            .retain(|name, _| members.iter().any(|member| member.name == *name));
        for member in members {
            let says = (member.incarnation.0.clone(), member.updated);
            match self.marks.get_mut(&member.name) {
                Some(mark) if mark.says == says => {}
                Some(mark) => {
                    mark.says = says;
                    mark.since = now;
                    mark.moves += 1;
                }
                None => {
                    let mark = Mark {
                        says,
                        since: now,
                        moves: 0,
                    };
                    self.marks.insert(member.name.clone(), mark);
                }
            }
        }
    }

    /// True if the record has moved since it was first seen.
    pub fn has_moved(&self, name: &NodeName) -> bool {
        self.marks.get(name).is_some_and(|mark| mark.moves > 0)
    }

    /// True if the record moved, or was first seen, within the last `timeout`.
    pub fn is_fresh(&self, name: &NodeName, timeout: Duration, now: Duration) -> bool {
        let mark = self.marks.get(name);
        mark.is_some_and(|mark| now.saturating_sub(mark.since) < timeout)
    }
}
