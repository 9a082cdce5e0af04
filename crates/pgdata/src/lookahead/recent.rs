//! A bounded memory of blocks that were named lately: two sets, the older of which is forgotten when
//! the younger one is full. About least-recently-used, at the cost of one look-up.

use std::collections::HashSet;

use crate::relation::RelationBlock;

#[derive(Debug)]
pub(super) struct Recent {
    young: HashSet<RelationBlock>,
    old: HashSet<RelationBlock>,
    half: usize,
}

impl Recent {
    /// Remembers the last `blocks` distinct ones, or half as many; none if that is nothing.
    pub fn new(blocks: usize) -> Recent {
        Recent {
            young: HashSet::new(),
            old: HashSet::new(),
            half: blocks / 2,
        }
    }

    /// Takes note of a block; whether it was not remembered.
    pub fn touch(&mut self, block: RelationBlock) -> bool {
        if self.half == 0 {
            return true;
        }
        if self.young.contains(&block) {
            return false;
        }
        if self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(block);
        !self.old.contains(&block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relation::{Fork, Relation};

    #[test]
    fn recently_named_blocks_are_remembered_and_the_rest_forgotten() {
        let block = |block| RelationBlock {
            relation: Relation {
                tablespace: 1663,
                database: 5,
                number: 16384,
            },
            fork: Fork::Main,
            block,
        };
        let mut recent = Recent::new(8);
        assert!(recent.touch(block(0)));
        for other in 1..4 {
            assert!(recent.touch(block(other)));
            assert!(!recent.touch(block(0)), "named just now");
        }
        for other in 4..20 {
            assert!(recent.touch(block(other)));
        }
        assert!(recent.touch(block(0)), "named long ago");
        assert!(recent.young.len() + recent.old.len() <= 8);
    }

    #[test]
    fn without_room_everything_is_fresh() {
        let relation = Relation {
            tablespace: 1663,
            database: 5,
            number: 16384,
        };
        let block = RelationBlock {
            relation,
            fork: Fork::Main,
            block: 1,
        };
        let mut recent = Recent::new(0);
        assert!(recent.touch(block) && recent.touch(block));
    }
}
