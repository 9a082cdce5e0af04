//! The configuration of a manager, in TOML: `[mirror]` beside what every process of a cluster has.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use proxy::config::{ServerTls, TlsConfig};
use serde::Deserialize;

use super::target::{Target, TargetError};
use crate::core::manager::{CommitAck, Rules};

/// Keys that an earlier version had.
const GONE: &[&str] = &["ship", "lock_timeout", "transaction_bytes", "harmless"];

/// A key of the configuration with a wrong value.
#[derive(Debug, thiserror::Error)]
#[error("[mirror] {key}: {reason}")]
pub struct ConfigError {
    key: &'static str,
    reason: String,
}

/// `[mirror]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address that clients connect to.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Address that the other manager and commands connect to. An address for other machines requires `[tls]`.
    pub peer_listen: SocketAddr,
    /// Runs a manager before a database without a second member: nothing is logged, and there is no other manager.
    #[serde(default)]
    pub single: bool,
    /// The other manager's `peer_listen`. Required, unless `single` is set.
    #[serde(default)]
    pub peer: String,
    /// Connection string of the member: a superuser, and the database that is mirrored.
    pub member: String,
    /// Connection string of the other member, for state transfers and comparisons. Required, unless `single` is set.
    #[serde(default)]
    pub other_member: String,
    /// Condition for the acknowledgement of a commit.
    #[serde(default, alias = "ack")]
    pub commit_ack: CommitAck,
    /// Makes this manager the primary if both start at the same time, and its member the original of a new mirror. Set on
    /// exactly one of both.
    #[serde(default)]
    pub first: bool,
    /// Time without a message after which the primary is taken over.
    #[serde(with = "humantime_serde", default = "default_timeout")]
    pub timeout: Duration,
    /// Time that a primary relies on its epoch after the zones have confirmed it, at most `timeout`.
    #[serde(with = "humantime_serde", default = "default_lease")]
    pub lease: Duration,
    /// Number of sessions that execute the log on the member.
    #[serde(default = "default_appliers")]
    pub appliers: usize,
    /// Number of threads of the manager.
    #[serde(default = "default_threads")]
    pub threads: usize,
    /// Number of transactions that a standby may be behind. Commits do not wait for one that is further behind.
    #[serde(default = "default_lag")]
    pub lag: u64,
    /// Number of transactions that the log retains for a member that is away.
    #[serde(default = "default_retain")]
    pub retain: u64,
    /// Interval at which the primary compares both members, as `understudy mirror verify` does. `"0s"`: never.
    #[serde(with = "humantime_serde", default = "default_verify_every")]
    pub verify_every: Duration,
    /// Directory of `pg_dump`, `pg_dumpall`, `pg_restore` and `psql`, of the newer of both versions. Without it, the path is
    /// searched.
    pub bin: Option<PathBuf>,
    /// Directory for the dump of the other member during a state transfer. Without it, the directory for temporary files.
    pub transfers: Option<PathBuf>,
    /// Makes a state transfer drop the roles that the other member's server does not have. For a server without roles of
    /// its own.
    #[serde(default)]
    pub drop_roles: bool,
    /// Lets everybody who reaches the manager in as whoever they say they are, a superuser as well, if `pg_hba.conf` of the
    /// member asks the manager's address for no proof (`trust`, `peer`). Without it, clients prove that they know the password,
    /// and the manager does not start before such a member.
    #[serde(default)]
    pub clients_need_no_proof: bool,
    /// Roles that may become superusers of both servers: a state transfer executes, as a superuser, what they have defined
    /// (functions in checks, generated columns and domains). Without it, such a database is not copied.
    #[serde(default)]
    pub trust: Vec<String>,
    /// Certificate that clients are shown. Without this table, their connections are not encrypted.
    pub tls: Option<TlsConfig>,
    /// Encryption of connections to both members.
    #[serde(default)]
    pub member_tls: ServerTls,
    /// Address for health checks, metrics and the status page over HTTP. Without it, there is no HTTP interface.
    pub rest: Option<SocketAddr>,
}

fn default_listen() -> SocketAddr {
    ([127, 0, 0, 1], 6433).into()
}

fn default_timeout() -> Duration {
    Duration::from_secs(3)
}

fn default_lease() -> Duration {
    Duration::from_secs(1)
}

fn default_verify_every() -> Duration {
    Duration::from_secs(24 * 3600)
}

fn default_threads() -> usize {
    1
}

fn default_appliers() -> usize {
    8
}

fn default_lag() -> u64 {
    10_000
}

fn default_retain() -> u64 {
    1_000_000
}

impl Config {
    /// Reads what `[mirror]` says, as a table of its own.
    ///
    /// # Errors
    /// A value that is not allowed.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| {
            let said = error.to_string();
            let is_it = |key: &&&str| said.contains(&format!("unknown field `{key}`"));
            match GONE.iter().find(is_it) {
                Some(key) => ConfigError {
                    key,
                    reason: "is of a version that logged statements: leave it out".to_owned(),
                },
                None => ConfigError {
                    key: "",
                    reason: said,
                },
            }
        })?;
        config.member_tls.check().map_err(|reason| ConfigError {
            key: "member_tls.root",
            reason: reason.to_owned(),
        })?;
        let target = config.target()?;
        let refused = |key, reason: &str| {
            Err(ConfigError {
                key,
                reason: reason.to_owned(),
            })
        };
        for (key, value) in [
            ("peer", &config.peer),
            ("other_member", &config.other_member),
        ] {
            match (config.single, value.is_empty()) {
                (false, true) => {
                    return refused(
                        key,
                        "is missing; a manager without another one has single = true",
                    );
                }
                (true, false) => {
                    return refused(
                        key,
                        "is for a mirror, and single = true for a member that nobody mirrors: leave one out",
                    );
                }
                _ => {}
            }
        }
        if !config.single && target.database != config.other_target()?.database {
            return refused(
                "other_member",
                "must have the same name of the database as the member",
            );
        }
        if config.lease > config.timeout {
            return refused("lease", "must not be longer than the timeout");
        }
        if config.threads == 0 {
            return refused("threads", "must be at least 1");
        }
        if config.appliers == 0 {
            return refused("appliers", "must be at least 1");
        }
        Ok(config)
    }

    /// Refuses to let other machines say what the other manager says, or read what it is told, where nothing protects that.
    ///
    /// # Errors
    /// If `peer_listen` can be reached from elsewhere, and connections are not encrypted.
    pub fn check_protected(&self, is_encrypted: bool) -> Result<(), ConfigError> {
        if is_encrypted || self.peer_listen.ip().is_loopback() {
            return Ok(());
        }
        Err(ConfigError {
            key: "peer_listen",
            reason: format!(
                "{} is not on this machine, and whoever reaches it is taken for the other manager: set identity = \
                 \"/etc/understudy/cluster.pem\" in [tls]; understudy init makes the file",
                self.peer_listen
            ),
        })
    }

    /// The member.
    ///
    /// # Errors
    /// A connection string that cannot be parsed.
    pub fn target(&self) -> Result<Target, ConfigError> {
        self.target_of("member", &self.member)
    }

    /// The other member.
    ///
    /// # Errors
    /// A connection string that cannot be parsed.
    pub fn other_target(&self) -> Result<Target, ConfigError> {
        self.target_of("other_member", &self.other_member)
    }

    fn target_of(&self, key: &'static str, text: &str) -> Result<Target, ConfigError> {
        Target::parse(text, &self.member_tls).map_err(|error| match error {
            TargetError::Text(reason) => ConfigError { key, reason },
            TargetError::Tls(reason) => ConfigError {
                key: "member_tls",
                reason,
            },
        })
    }

    /// The roles that managers log in as at both members.
    ///
    /// # Errors
    /// A connection string that cannot be parsed.
    pub fn managers(&self) -> Result<Vec<String>, ConfigError> {
        let mut names = vec![self.target()?.user];
        if !self.single {
            names.push(self.other_target()?.user);
        }
        Ok(names)
    }

    /// What the manager goes by.
    pub fn rules(&self) -> Rules {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Rules {
            commit_ack: self.commit_ack,
            timeout_ms: millis(self.timeout),
            lease_ms: millis(self.lease),
            patience_ms: if self.first { 0 } else { millis(self.timeout) },
            lag_records: self.lag,
            retain_records: self.retain,
            is_single: self.single,
            ..Rules::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALLEST: &str = "peer_listen = '127.0.0.1:1'\npeer = '127.0.0.1:2'\n\
        member = 'host=/tmp user=postgres dbname=app'\nother_member = 'host=b port=5433 user=postgres dbname=app password=x'\n";

    #[test]
    fn members_are_named_as_libpq_does() {
        let config = Config::parse(SMALLEST).expect("valid");
        assert_eq!(config.target().expect("valid").place(), ("/tmp", 5432));
        let other = config.other_target().expect("valid");
        assert_eq!(
            (other.place(), other.password.as_deref()),
            (("b", 5433), Some("x"))
        );
    }

    #[test]
    fn members_are_compared_once_a_day_unless_told_otherwise() {
        let every = |text: &str| {
            let config = Config::parse(&format!("{SMALLEST}{text}"));
            config.expect("valid").verify_every.as_secs()
        };
        assert_eq!(every(""), 86_400);
        assert_eq!(every("verify_every = '24h'"), 86_400);
        assert_eq!(every("verify_every = '0s'"), 0);
    }

    #[test]
    fn a_single_member_needs_neither_the_other_nor_its_manager() {
        let text = "single = true\npeer_listen = '127.0.0.1:1'\nmember = 'host=/tmp user=postgres dbname=app'\n";
        let config = Config::parse(text).expect("valid");
        assert!(config.rules().is_single);
    }

    /// Anybody could say that he is the other manager, and what its member has.
    // hazard: MIRROR-20
    #[test]
    fn other_machines_are_let_in_with_certificates_alone() {
        let config = Config::parse(SMALLEST).expect("valid");
        assert!(config.check_protected(false).is_ok());
        let elsewhere =
            SMALLEST.replace("peer_listen = '127.0.0.1:1'", "peer_listen = '10.0.0.1:1'");
        let config = Config::parse(&elsewhere).expect("valid");
        assert!(config.check_protected(true).is_ok());
        let refused = config.check_protected(false).expect_err("not protected");
        assert!(refused.to_string().contains("[tls]"));
    }

    #[test]
    fn mistakes_are_named() {
        let told = |text: &str| {
            Config::parse(&format!("{SMALLEST}{text}"))
                .expect_err("a mistake")
                .to_string()
        };
        assert!(told("lease = '5s'").contains("lease"));
        assert!(told("leas = '5s'").contains("leas"));
        for gone in GONE {
            assert!(told(&format!("{gone} = 1")).contains("leave it out"));
        }
        assert!(told("single = true").contains("single"));
        let without_peer = SMALLEST.replace("peer = '127.0.0.1:2'\n", "");
        let mistake = Config::parse(&without_peer).expect_err("no peer");
        assert!(mistake.to_string().contains("peer: is missing"));
        let text = SMALLEST.replace(" dbname=app'", "'");
        assert!(
            Config::parse(&text)
                .expect_err("a mistake")
                .to_string()
                .contains("dbname")
        );
        let text = SMALLEST.replace("dbname=app password", "dbname=other password");
        let mistake = Config::parse(&text).expect_err("another database");
        assert!(mistake.to_string().contains("other_member"));
    }
}
