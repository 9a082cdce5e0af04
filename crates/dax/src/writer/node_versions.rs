//! Versions of records that a node writes without owning an epoch.

use std::collections::HashMap;

use bytes::Bytes;

use crate::ids::Version;

/// Low bits of a node's version that tell apart the first puts of its lives.
const LIFE_BITS: u32 = 16;

/// The versions that one handle used, by record.
#[derive(Debug, Default)]
pub struct NodeVersions {
    used: HashMap<String, Version>,
}

impl NodeVersions {
    /// The next version of a record: above the last one that this handle used and above `found`. None
    /// if neither is known.
    ///
    /// An earlier life of the node may have left a put at a minority that was not found. So the first put
    /// of a handle leaves a gap, and takes a place in it that depends on its value: two different values
    /// must not have the same version, or each replica would keep the one that came first.
    pub fn next(
        &mut self,
        name: &str,
        value: Option<&Bytes>,
        found: Option<Version>,
    ) -> Option<Version> {
        let used = self.used.get(name).copied();
        let last = used.max(found)?;
        let seq = match used {
            Some(_) => last.seq + 1,
            None => {
                let hash = crc32c::crc32c(value.map_or(&[], |value| value));
                let place = 1 + u64::from(hash) % ((1 << LIFE_BITS) - 1);
                (((last.seq >> LIFE_BITS) + 1) << LIFE_BITS) + place
            }
        };
        let next = Version { seq, ..last };
        self.used.insert(name.to_owned(), next);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;

    fn v(epoch: u32, seq: u64) -> Version {
        Version {
            epoch: Epoch(epoch),
            seq,
        }
    }

    #[test]
    fn a_first_put_leaves_a_gap_and_later_ones_follow() {
        let mut versions = NodeVersions::default();
        let value = Bytes::from_static(b"x");
        assert_eq!(
            versions.next("r", Some(&value), None),
            None,
            "nothing is known"
        );
        let first = versions.next("r", Some(&value), Some(v(2, 7))).unwrap();
        assert!(first > v(2, 1 << LIFE_BITS) && first < v(2, 2 << LIFE_BITS));
        let second = versions.next("r", None, None).unwrap();
        assert_eq!(second.seq, first.seq + 1);
        let above = versions.next("r", None, Some(v(3, 1))).unwrap();
        assert_eq!(above, v(3, 2), "somebody else wrote it under a newer epoch");
    }
}
