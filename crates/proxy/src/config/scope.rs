//! Settings that count for one database or one user, and what they come to for a user in a database.
//!
//! Invariant: a user's own setting counts before the database's, as in PgBouncer, and both before the general one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::{Config, ConfigError, Mode, value};
use crate::core::quota::Most;
use crate::core::session::{PoolMode, Rules};
use crate::core::version::ReadMode;

/// `[databases.NAME]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Database {
    /// Name of the database in PostgreSQL, if clients ask for it by another one.
    pub dbname: Option<String>,
    /// Unit for which a client has a server: `session` or `transaction`.
    pub pool_mode: Option<Mode>,
    /// Most connections of one user to this database of one server.
    pub pool_size: Option<usize>,
    /// Most connections to one server in all pools of this database. 0: no limit.
    pub max_db_connections: Option<usize>,
    /// Consistency of reads, as `reads.mode`.
    pub reads: Option<String>,
    /// Limit of time in place of the general key of the same name.
    #[serde(with = "humantime_serde")]
    pub query_timeout: Option<Duration>,
    /// Limit of time in place of the general key of the same name.
    #[serde(with = "humantime_serde")]
    pub idle_transaction_timeout: Option<Duration>,
    /// Limit of time in place of the general key of the same name.
    #[serde(with = "humantime_serde")]
    pub client_idle_timeout: Option<Duration>,
    /// Settings of PostgreSQL that its clients' sessions begin with, unless they ask for another value in their startup message.
    pub settings: BTreeMap<String, String>,
}

/// `[users.NAME]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct User {
    /// Unit for which a client has a server: `session` or `transaction`.
    pub pool_mode: Option<Mode>,
    /// Most connections of this user to one database of one server.
    pub pool_size: Option<usize>,
    /// Most connections to one server in all pools of this user. 0: no limit.
    pub max_user_connections: Option<usize>,
    /// Consistency of reads, as `reads.mode`.
    pub reads: Option<String>,
    /// Limit of time in place of the general key of the same name.
    #[serde(with = "humantime_serde")]
    pub query_timeout: Option<Duration>,
    /// Limit of time in place of the general key of the same name.
    #[serde(with = "humantime_serde")]
    pub idle_transaction_timeout: Option<Duration>,
    /// Limit of time in place of the general key of the same name.
    #[serde(with = "humantime_serde")]
    pub client_idle_timeout: Option<Duration>,
    /// Settings of PostgreSQL that the user's sessions begin with, unless they ask for another value in their startup message.
    pub settings: BTreeMap<String, String>,
}

/// Settings that count for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// Rules of its session.
    pub rules: Rules,
    /// Longest time of a statement; zero: no limit.
    pub query_timeout: Duration,
    /// Longest time that a transaction is left open; zero: no limit.
    pub idle_transaction_timeout: Duration,
    /// Longest time without a transaction; zero: no limit.
    pub client_idle_timeout: Duration,
}

/// Parts of a startup message that are no settings.
const RESERVED: &[&str] = &["user", "database", "replication", "options"];

impl Config {
    /// The value of a key for a user in a database.
    fn own<T>(
        &self,
        (database, user): (&str, &str),
        of_database: impl Fn(&Database) -> Option<T>,
        of_user: impl Fn(&User) -> Option<T>,
    ) -> Option<T> {
        let of_user = self.users.get(user).and_then(of_user);
        of_user.or_else(|| self.databases.get(database).and_then(of_database))
    }

    /// Name in PostgreSQL of the database that clients ask for by `name`.
    pub fn dbname<'a>(&'a self, name: &'a str) -> &'a str {
        let own = self.databases.get(name);
        own.and_then(|own| own.dbname.as_deref()).unwrap_or(name)
    }

    /// Unit for which a user's clients have a server in a database.
    pub fn mode_of(&self, database: &str, user: &str) -> Mode {
        let own = self.own((database, user), |own| own.pool_mode, |own| own.pool_mode);
        own.unwrap_or(self.pool_mode)
    }

    /// Most connections of a user to a database.
    pub fn size_of(&self, database: &str, user: &str) -> usize {
        let own = self.own((database, user), |own| own.pool_size, |own| own.pool_size);
        own.unwrap_or(self.pool_size)
    }

    /// Settings that a user's sessions in a database begin with.
    pub fn settings_of(&self, database: &str, user: &str) -> BTreeMap<String, String> {
        let of_user = self.users.get(user).map(|own| &own.settings);
        let of_database = self.databases.get(database).map(|own| &own.settings);
        let both = of_database.into_iter().chain(of_user).flatten();
        both.map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    /// Limits that pools share.
    pub fn most(&self) -> Most {
        let of_database =
            |(name, own): (&String, &Database)| Some((name.clone(), own.max_db_connections?));
        let of_user =
            |(name, own): (&String, &User)| Some((name.clone(), own.max_user_connections?));
        Most {
            per_database: self.max_db_connections,
            per_user: self.max_user_connections,
            databases: self.databases.iter().filter_map(of_database).collect(),
            users: self.users.iter().filter_map(of_user).collect(),
        }
    }

    /// Settings that count for a user's client in a database, who was let in with this mode.
    pub fn scope(&self, database: &str, user: &str, mode: Mode) -> Scope {
        let names = (database, user);
        let read = self.own(names, |own| own.reads.clone(), |own| own.reads.clone());
        let general = self.rules();
        let query = self.own(names, |own| own.query_timeout, |own| own.query_timeout);
        let open = self.own(
            names,
            |own| own.idle_transaction_timeout,
            |own| own.idle_transaction_timeout,
        );
        let idle = self.own(
            names,
            |own| own.client_idle_timeout,
            |own| own.client_idle_timeout,
        );
        Scope {
            rules: Rules {
                mode: match mode {
                    Mode::Session => PoolMode::Session,
                    Mode::Transaction => PoolMode::Transaction,
                },
                read: read
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(general.read),
                ..general
            },
            query_timeout: query.unwrap_or(self.query_timeout),
            idle_transaction_timeout: open.unwrap_or(self.idle_transaction_timeout),
            client_idle_timeout: idle.unwrap_or(self.client_idle_timeout),
        }
    }

    /// Checks the tables of databases and users.
    pub(super) fn check_scopes(&self) -> Result<(), ConfigError> {
        for (name, own) in &self.databases {
            let table = format!("databases.{name}");
            if name == super::ADMIN_DATABASE {
                return Err(value(&table, "is the database that controls the proxy"));
            }
            if own.dbname.as_deref() == Some("") {
                return Err(value(&format!("{table}.dbname"), "must not be empty"));
            }
            check(&table, own.pool_size, own.reads.as_deref(), &own.settings)?;
        }
        for (name, own) in &self.users {
            let table = format!("users.{name}");
            check(&table, own.pool_size, own.reads.as_deref(), &own.settings)?;
        }
        Ok(())
    }
}

fn check(
    table: &str,
    pool_size: Option<usize>,
    reads: Option<&str>,
    settings: &BTreeMap<String, String>,
) -> Result<(), ConfigError> {
    if table.ends_with(".*") {
        let reason = "is no name here: the keys of [proxy] itself count for all others";
        return Err(value(table, reason));
    }
    if pool_size == Some(0) {
        return Err(value(&format!("{table}.pool_size"), "must be at least 1"));
    }
    let mode = reads.map(str::parse::<ReadMode>).transpose();
    mode.map_err(|reason| value(&format!("{table}.reads"), reason))?;
    for name in settings.keys() {
        let key = format!("{table}.settings.{name}");
        let lower = name.to_ascii_lowercase();
        if *name != lower {
            return Err(value(&key, "must be in lower case"));
        }
        if RESERVED.contains(&lower.as_str()) {
            return Err(value(&key, "is no setting of PostgreSQL"));
        }
        if lower.starts_with("understudy.") {
            let reason = "is the proxy's own: there is `reads` beside `settings`";
            return Err(value(&key, reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text).map_err(|error| error.to_string())
    }

    #[test]
    fn users_count_before_databases_and_both_before_the_rest() {
        let config = parse(
            "pool_size = 9\nmax_db_connections = 5\nclient_idle_timeout = \"1s\"\n\
             [databases.shop]\ndbname = \"real\"\npool_size = 4\npool_mode = \"transaction\"\n\
             reads = \"any\"\nmax_db_connections = 0\nquery_timeout = \"3s\"\n\
             [databases.shop.settings]\nwork_mem = \"1MB\"\nsearch_path = \"a, b\"\n\
             [users.ann]\npool_size = 2\nreads = \"strong\"\nmax_user_connections = 7\n\
             [users.ann.settings]\nwork_mem = \"2MB\"",
        );
        let config = config.expect("valid");
        let sizes = [("shop", "ann"), ("shop", "bob"), ("x", "ann"), ("x", "bob")];
        assert_eq!(
            sizes.map(|(db, user)| config.size_of(db, user)),
            [2, 4, 2, 9]
        );
        assert_eq!(config.dbname("shop"), "real");
        assert_eq!(config.dbname("real"), "real");
        assert_eq!(config.mode_of("shop", "ann"), Mode::Transaction);
        assert_eq!(config.mode_of("real", "ann"), Mode::Session);
        let ann = config.scope("shop", "ann", Mode::Session);
        assert_eq!(ann.rules.read, ReadMode::Strong);
        assert_eq!(ann.rules.mode, PoolMode::Session, "as it was let in");
        assert_eq!(ann.query_timeout, Duration::from_secs(3));
        assert_eq!(ann.client_idle_timeout, Duration::from_secs(1));
        let bob = config.scope("shop", "bob", Mode::Transaction);
        assert_eq!(bob.rules.read, ReadMode::Any);
        let settings = config.settings_of("shop", "ann").into_iter();
        let settings: Vec<_> = settings
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(settings, ["search_path=a, b", "work_mem=2MB"]);
        let most = config.most();
        assert_eq!((most.databases["shop"], most.users["ann"]), (0, 7));
    }

    #[test]
    fn mistakes_are_named() {
        let told = |text: &str| parse(text).expect_err("a mistake");
        for (text, key) in [
            ("[databases.a]\npool_size = 0", "databases.a.pool_size"),
            (
                "[databases.a]\nmax_user_connections = 1",
                "max_user_connections",
            ),
            ("[databases.a]\ndbname = \"\"", "databases.a.dbname"),
            ("[databases.understudy]", "databases.understudy"),
            ("[databases.\"*\"]", "databases.*"),
            ("[users.a]\nreads = \"weak\"", "users.a.reads"),
            ("[users.a]\ndbname = \"b\"", "dbname"),
            (
                "[users.a.settings]\nWork_Mem = \"1\"",
                "users.a.settings.Work_Mem",
            ),
            (
                "[users.a.settings]\noptions = \"-c a=b\"",
                "users.a.settings.options",
            ),
            (
                "[users.a.settings]\n\"understudy.read\" = \"any\"",
                "understudy.read",
            ),
        ] {
            assert!(told(text).contains(key), "{text}: {}", told(text));
        }
    }
}
