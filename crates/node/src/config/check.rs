//! What is refused of a file whose syntax is right.

use coordination::config::{ClusterConfig, ConfigError};

use super::{Paths, Raw};

impl Raw {
    pub(super) fn check(&self, cluster: &ClusterConfig) -> Result<(), ConfigError> {
        self.check_data()?;
        self.postgres.check()?;
        self.rest.check()?;
        self.standby.check()?;
        self.channel.check(cluster)?;
        self.past.check(cluster)?;
        self.memory.cache.check("memory.cache")?;
        self.memory.overlay.check("memory.overlay")?;
        self.storage.scrub_rate.check("storage.scrub_rate")?;
        self.storage
            .max_retained_wal
            .check("storage.max_retained_wal")?;
        self.standby.max_lag.check("standby.max_lag")
    }

    fn check_data(&self) -> Result<(), ConfigError> {
        let refuse = |why: String| Err(ConfigError::invalid("data", why));
        let text = self.data.to_string_lossy();
        if !self.data.is_absolute() {
            return refuse(format!("{text:?} is not absolute"));
        }
        if text.contains([',', '"', '\'', '\\', '\n']) {
            return refuse(
                "a path with commas, quotes or backslashes cannot be handed to PostgreSQL".into(),
            );
        }
        Paths::new(&self.data).check_socket().or_else(refuse)
    }
}
