//! `[channel]`: where a node's agent is reached by other nodes and by commands.

use std::time::Duration;

use serde::Deserialize;

use super::{ClusterConfig, ConfigError};
use crate::address::Address;

/// `[channel]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelConfig {
    /// Address that the node's agent listens on. An address for other machines requires `[tls]`.
    #[serde(default = "default_channel")]
    pub listen: Address,
    /// Address at which other nodes reach the agent, if it is not `listen`.
    pub advertise: Option<Address>,
    /// Time that a planned stop of the server waits for transactions of proxies to end. Transactions that are open after
    /// that are rolled back.
    #[serde(
        alias = "drain",
        default = "default_drain_timeout",
        with = "humantime_serde"
    )]
    pub drain_timeout: Duration,
}

impl ChannelConfig {
    /// Refuses what other nodes could not use, and plaintext that leaves the machine.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`]
    pub fn check(&self, cluster: &ClusterConfig) -> Result<(), ConfigError> {
        let advertised = self.advertised();
        if advertised.is_wildcard() {
            let why = format!(
                "other nodes cannot connect to {advertised}; set it to a name or address of this machine"
            );
            return Err(ConfigError::invalid("channel.advertise", why));
        }
        cluster.check_protected("channel.listen", &self.listen)?;
        cluster.check_protected("channel.advertise", advertised)
    }

    /// What goes into the node's record.
    pub fn advertised(&self) -> &Address {
        self.advertise.as_ref().unwrap_or(&self.listen)
    }
}

impl Default for ChannelConfig {
    fn default() -> Self {
        ChannelConfig {
            listen: default_channel(),
            advertise: None,
            drain_timeout: default_drain_timeout(),
        }
    }
}

fn default_drain_timeout() -> Duration {
    Duration::from_secs(5)
}

fn default_channel() -> Address {
    Address::Tcp {
        host: "127.0.0.1".to_owned(),
        port: 7432,
    }
}
