//! `[past]`: which images of the past the active keeps in the zones.

use coordination::config::{ByteSize, ClusterConfig, ConfigError};
use serde::Deserialize;
use volume::past::{Keep, Policy};

/// `[past]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct PastConfig {
    /// Rules of the images that stay, such as `["all for 1h", "hourly for 1d"]`: an image of each checkpoint, hour, day or
    /// week. Where all are kept, so is the WAL. Without rules only the last two images stay, and what is pinned.
    pub keep: Vec<String>,
    /// Most bytes that they may take in each zone, about; the oldest are given back first. Without it: as much as there is
    /// room. When less than a tenth is left of what the volume could take in a zone, all of them are given back.
    pub space: Option<ByteSize>,
}

impl PastConfig {
    pub(super) fn check(&self, cluster: &ClusterConfig) -> Result<(), ConfigError> {
        // Each seal would read all partitions in which an older version is kept.
        if !self.keep.is_empty() && cluster.store.is_some() {
            let why = "images of the past are kept in zones only, not in Cassandra";
            return Err(ConfigError::invalid("past.keep", why));
        }
        self.space.map_or(Ok(()), |space| space.check("past.space"))
    }

    /// The policy that the rules are; none if there are no rules.
    ///
    /// # Errors
    /// Names the rule that is none.
    pub(super) fn policy(&self) -> Result<Option<Policy>, ConfigError> {
        if self.keep.is_empty() {
            return Ok(None);
        }
        let keep: Result<Keep, String> = self.keep.join(",").parse();
        let keep = keep.map_err(|why| ConfigError::invalid("past.keep", why))?;
        Ok(Some(Policy {
            keep,
            space: self.space.map(|space| space.0),
        }))
    }
}
