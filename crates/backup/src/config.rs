//! Settings of an archiver: the table `[backup]` of a node's configuration.

use std::path::PathBuf;
use std::time::Duration;

use coordination::config::ByteSize;
use serde::Deserialize;

use crate::expire::{Keep, Policy};

/// How long pieces stay that no image has, for restores that have begun.
const GRACE: Duration = Duration::from_secs(24 * 3600);

/// `[backup]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where backups go: a directory on another disk than the zones', or `s3://bucket/path`.
    pub repository: String,
    /// The file of the key with which they are encrypted; `understudy key --new-secret` makes one.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// How often an image is copied.
    #[serde(default = "default_images_every", with = "humantime_serde")]
    pub images_every: Duration,
    /// How often the log is copied.
    #[serde(default = "default_log_every", with = "humantime_serde")]
    pub log_every: Duration,
    /// Which images stay, such as `"all for 1d, daily for 14d, weekly for 8w"`. Without it all do.
    #[serde(default)]
    pub keep: Option<Keep>,
    /// For how long any moment can be restored, if `keep` is set; older images can be restored as they are.
    #[serde(default = "default_log_for", with = "humantime_serde")]
    pub log_for: Duration,
    /// How often a restore is tried by whoever archives, and how long the first may wait; without it nobody does. Needs
    /// `drill_directory`.
    #[serde(default, with = "humantime_serde")]
    pub drill_every: Option<Duration>,
    /// Where it is restored to: a directory that is not there, on a disk with as much room as the database has.
    #[serde(default)]
    pub drill_directory: Option<PathBuf>,
    /// How much is read from the zones in a second at most while an image is copied. Without it: as fast as it goes.
    #[serde(default)]
    pub rate: Option<ByteSize>,
}

fn default_images_every() -> Duration {
    Duration::from_secs(24 * 3600)
}

fn default_log_every() -> Duration {
    Duration::from_secs(3)
}

fn default_log_for() -> Duration {
    Duration::from_secs(14 * 24 * 3600)
}

impl Config {
    /// Reads the table.
    ///
    /// # Errors
    /// The mistake, in words.
    pub fn parse(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| format!("[backup]: {error}"))?;
        for (key, value) in [
            ("images_every", config.images_every),
            ("log_every", config.log_every),
        ] {
            if value.is_zero() {
                return Err(format!("[backup] {key} must be longer than zero"));
            }
        }
        if config.drill_every.is_some() != config.drill_directory.is_some() {
            let said =
                "[backup] drill_every and drill_directory belong together: give both, or none";
            return Err(said.to_owned());
        }
        Ok(config)
    }

    /// Rules of what stays; `None` if everything stays.
    pub fn policy(&self) -> Option<Policy> {
        self.keep.clone().map(|keep| Policy {
            keep,
            log_for: self.log_for,
            grace: GRACE,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_all_that_is_needed() {
        let config = Config::parse("repository = '/backup'").unwrap();
        assert_eq!(config.images_every, Duration::from_secs(86_400));
        assert!(config.policy().is_none());
        let kept = Config::parse("repository = 's3://b/x'\nkeep = 'daily for 9d'\nlog_for = '2d'");
        assert_eq!(kept.unwrap().policy().unwrap().log_for, 2 * GRACE);
    }

    #[test]
    fn invalid_settings_are_refused() {
        for text in [
            "",
            "repository = '/b'\nkeep = 'sometimes'",
            "repository = '/b'\nlog_every = '0s'",
            "repository = '/b'\ndrill_every = '7d'",
            "repository = '/b'\nkeeps = 'daily for 9d'",
        ] {
            assert!(Config::parse(text).is_err(), "{text}");
        }
    }
}
