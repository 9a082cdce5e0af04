//! Layers: a volume that shows, where it has nothing of its own, an image of another volume.
//!
//! ```text
//!   read(key, up_to) of the child:   newest of its own, not above `up_to`
//!                                      └── none ──▶ newest of the image in the parent, not above `up_to`
//!                                                     └── none ──▶ the parent's own layer, and so on
//! ```
//!
//! A child's epochs begin above every epoch that its parent had accepted. So versions, generations, truncation marks and file
//! ids of both never meet, and whatever compares versions need not know which of the volumes a block came from.
//!
//! Invariants: blocks of one version never come from a layer; a store that cannot tell what the image has answers that it is
//! unavailable, never that there is nothing. Whoever makes a layer pins the image first, and removes the pin last.

use serde::{Deserialize, Serialize};

use crate::credentials::{Proof, VolumeKey};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Epoch, Generation, VolumeName};
use crate::lineage::Lineage;

/// Volumes below a volume, at most: each costs a read of an absent block one more look.
pub const MAX_LAYERS: usize = 8;
/// Spans of a layer's image, at most.
pub const MAX_SPANS: usize = 4096;

/// Record of a volume that is laid over another one. Since it is there, whatever it says, each zone copies what the volume shows of
/// the image, from what the zone has itself.
///
/// ```text
///   no record ──▶ "fill": each zone copies ── all zones have said twice that they have all ──▶ "filled": the volume below may go
/// ```
pub const FILL: &str = "fill";
/// Record of a volume all of whose zones have said that they have everything.
///
/// Invariant: a store that finds it when it was rebuilt was sent everything by zones that had everything. That is why they are asked
/// twice: one that loses its disk after its second answer is rebuilt from zones that were filled by the first.
pub const FILLED: &str = "filled";

/// Image that a volume is laid over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// The volume that has the image.
    pub parent: VolumeName,
    /// Generations of the image.
    pub image: Lineage,
    /// First epoch of the child, above every one that the parent had accepted.
    pub first_epoch: Epoch,
    /// Shows that who made the child knew the parent's key; zones without a secret do not ask for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
}

impl Layer {
    /// The layer, with the proof that `key` is known: that of the parent.
    pub fn proven(mut self, child: &VolumeName, key: Option<&VolumeKey>) -> Layer {
        self.proof = key.map(|key| key.prove(&self.proven_bytes(child)));
        self
    }

    /// True if the proof was made with this key, that of the parent, for this child.
    pub fn is_proven(&self, child: &VolumeName, key: &VolumeKey) -> bool {
        let bytes = self.proven_bytes(child);
        self.proof
            .is_some_and(|proof| key.is_proof_of(&bytes, &proof))
    }

    /// Bytes that the proof covers: `"layer" | child's name | 0 | first epoch | spans of the image`.
    fn proven_bytes(&self, child: &VolumeName) -> Vec<u8> {
        let mut bytes = [b"layer", child.as_str().as_bytes(), b"\0"].concat();
        bytes.extend(self.first_epoch.0.to_be_bytes());
        for generation in self.image.0.iter().flat_map(|span| [span.from, span.to]) {
            bytes.extend(generation.epoch.0.to_be_bytes());
            bytes.extend(generation.number.to_be_bytes());
        }
        bytes
    }

    /// Generations in which a read as of `up_to` finds what the layer shows.
    pub fn shown(&self, up_to: Generation) -> Lineage {
        self.image.truncated(up_to)
    }

    /// Refuses what no layer can be.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        let spans = &self.image.0;
        let ascending = spans.is_sorted_by(|a, b| a.to < b.from);
        if spans.is_empty() || spans.len() > MAX_SPANS || !ascending {
            return invalid(format!("a layer of {} spans", spans.len()));
        }
        if spans.iter().any(|span| span.from > span.to) {
            return invalid("a layer with a span that ends before it begins".to_owned());
        }
        let end = self.image.end();
        match end.epoch < self.first_epoch && self.first_epoch <= Epoch::MAX {
            true => Ok(()),
            false => invalid(format!(
                "a layer that ends with {end} under a volume that begins with {}",
                self.first_epoch
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Secret;
    use crate::lineage::Span;
    use crate::settings::VolumeSettings;

    fn g(epoch: u32, number: u32) -> Generation {
        Generation {
            epoch: Epoch(epoch),
            number,
        }
    }

    fn layer(image: Lineage, first: u32) -> Layer {
        Layer {
            parent: VolumeName::new("parent").unwrap(),
            image,
            first_epoch: Epoch(first),
            proof: None,
        }
    }

    #[test]
    fn a_child_begins_above_its_image() {
        let check = |image, first| {
            let settings = VolumeSettings::default().under(layer(image, first));
            settings.check().map(|()| settings.unowned())
        };
        let image = || Lineage::up_to(g(3, 5));
        assert_eq!(check(image(), 4).unwrap(), Epoch(3));
        assert_eq!(check(image(), 9).unwrap(), Epoch(8));
        check(image(), 3).unwrap_err();
        check(image(), 1).unwrap_err();
        check(image(), Epoch::MAX.0 + 1).unwrap_err();
        check(Lineage(Vec::new()), 4).unwrap_err();
        let span = |from, to| Span { from, to };
        check(Lineage(vec![span(g(2, 1), g(1, 1))]), 4).unwrap_err();
        let crossed = vec![span(g(1, 1), g(2, 1)), span(g(2, 0), g(3, 0))];
        check(Lineage(crossed), 4).unwrap_err();
        assert_eq!(VolumeSettings::default().unowned(), Epoch::NONE);
    }

    #[test]
    fn a_proof_is_of_one_child_and_one_image() {
        let secret = Secret::parse(&[b'7'; 64]).unwrap();
        let name = |name: &str| VolumeName::new(name).unwrap();
        let (parent, other) = (secret.key(&name("parent")), secret.key(&name("other")));
        let made = layer(Lineage::up_to(g(3, 5)), 4).proven(&name("child"), Some(&parent));
        assert!(made.is_proven(&name("child"), &parent));
        assert!(!made.is_proven(&name("another"), &parent));
        assert!(!made.is_proven(&name("child"), &other));
        let later = Layer {
            image: Lineage::up_to(g(3, 6)),
            ..made.clone()
        };
        assert!(!later.is_proven(&name("child"), &parent));
        let none = Layer {
            proof: None,
            ..made
        };
        assert!(!none.is_proven(&name("child"), &parent));
    }

    #[test]
    fn a_proof_is_kept_as_digits_and_never_shown() {
        let proof = Proof([7; 32]);
        let digits = String::from(proof);
        assert_eq!(Proof::try_from(digits).unwrap(), proof);
        assert!(Proof::try_from("07".to_owned()).is_err());
        assert_eq!(format!("{proof:?}"), "Proof(..)");
    }
}
