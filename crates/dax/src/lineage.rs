//! Images as lines through the generations.

use serde::{Deserialize, Serialize};

use crate::ids::Generation;

/// A stretch of generations, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// First generation.
    pub from: Generation,
    /// Last generation.
    pub to: Generation,
}

/// The generations that make up one image, oldest first.
///
/// A takeover makes the standby's view the volume: what the dead epoch wrote after the standby's
/// base is not part of any later image. So an image is a line through the generations, as a
/// PostgreSQL timeline is a line through the log. Spans are disjoint and ascending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage(pub Vec<Span>);

impl Lineage {
    /// Everything up to and including `to`, with nothing left out.
    pub fn up_to(to: Generation) -> Lineage {
        Lineage(vec![Span {
            from: Generation::SINGLE,
            to,
        }])
    }

    /// True if a version written in `generation` belongs to the image.
    pub fn contains(&self, generation: Generation) -> bool {
        self.0
            .iter()
            .any(|s| s.from <= generation && generation <= s.to)
    }

    /// The newest of these generations, which ascend, that belongs to the image.
    pub fn newest_of(&self, sorted: &[Generation]) -> Option<Generation> {
        let newest = self.0.iter().filter_map(|span| {
            let above = sorted.partition_point(|generation| *generation <= span.to);
            let newest = above.checked_sub(1).map(|last| sorted[last]);
            newest.filter(|generation| span.from <= *generation)
        });
        newest.max()
    }

    /// The last generation of the image that is not above `generation`, if there is any.
    pub fn floor(&self, generation: Generation) -> Option<Generation> {
        let span = self.0.iter().rev().find(|s| s.from <= generation)?;
        Some(span.to.min(generation))
    }

    /// The last generation of the image.
    pub fn end(&self) -> Generation {
        self.0.last().map_or(Generation::SINGLE, |s| s.to)
    }

    /// The same image cut off after `to`.
    pub fn truncated(&self, to: Generation) -> Lineage {
        let spans = self.0.iter().filter(|s| s.from <= to);
        Lineage(
            spans
                .map(|s| Span {
                    from: s.from,
                    to: s.to.min(to),
                })
                .collect(),
        )
    }

    /// The image that goes on with `from` and everything above it.
    pub fn continued(mut self, from: Generation) -> Lineage {
        self.0.push(Span {
            from,
            to: Generation::MAX,
        });
        self
    }
}
