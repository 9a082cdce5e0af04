//! The keyspace and its tables: how they are made, and what must be true of them at every open.
//!
//! Pure: it makes CQL text and judges what `system_schema` says. Each property that is checked carries an
//! argument of docs/understand/protocol-cassandra.md ("What is checked"); the messages say what to ALTER.

use std::collections::BTreeMap;

use dax::error::{Error, ErrorKind, Result};

/// Hints live no longer than the shortest of these, and three hours is how long Cassandra keeps them.
pub const GC_GRACE_SECONDS_MIN: i32 = 10_800;

/// The tables, and what is written of each after its name.
pub const TABLES: [(&str, &str); 5] = [
    (
        "volumes",
        "(volume text PRIMARY KEY, settings text, replication text)",
    ),
    (
        "epochs",
        "(volume text PRIMARY KEY, epoch int, owner text, lease_ms bigint, renewals bigint, released boolean)",
    ),
    (
        "blocks",
        "(volume text, file bigint, chunk bigint, block bigint, generation bigint, data blob, \
         PRIMARY KEY ((volume, file, chunk), block, generation)) \
         WITH CLUSTERING ORDER BY (block ASC, generation DESC)",
    ),
    (
        "chunks",
        "(volume text, file bigint, chunk bigint, PRIMARY KEY ((volume, file), chunk))",
    ),
    (
        "records",
        "(volume text, name text, value blob, PRIMARY KEY ((volume), name))",
    ),
];

/// What all tables are made with. Leveled compaction keeps a block's versions in few files.
const WITH: &str = "read_repair = 'BLOCKING' AND speculative_retry = '50ms' \
     AND gc_grace_seconds = 10800 AND default_time_to_live = 0 \
     AND compaction = {'class': 'LeveledCompactionStrategy'} \
     AND compression = {'class': 'LZ4Compressor', 'chunk_length_in_kb': 16}";

/// The name of a keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keyspace(String);

impl Keyspace {
    /// Accepts 1 to 48 of `a-z`, `0-9` and `_`, beginning with a letter.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn new(name: impl Into<String>) -> Result<Keyspace> {
        let name = name.into();
        let fits = (1..=48).contains(&name.len())
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name
                .bytes()
                .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'));
        if fits {
            return Ok(Keyspace(name));
        }
        Err(invalid(format!(
            "keyspace {name:?}: use 1 to 48 of a-z, 0-9 and '_', beginning with a letter"
        )))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Copies in each data centre.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replication(pub BTreeMap<String, u8>);

impl Replication {
    /// The data centres and their copies: first those that are named, as they are, then the others.
    pub fn in_order<'a>(&'a self, names: &[String]) -> Vec<(&'a str, u8)> {
        let named = names.iter().filter_map(|name| self.0.get_key_value(name));
        let others = self.0.iter().filter(|(name, _)| !names.contains(name));
        let all = named.chain(others);
        all.map(|(name, copies)| (name.as_str(), *copies)).collect()
    }

    /// The same number in each.
    pub fn even(data_centres: impl IntoIterator<Item = String>, copies: u8) -> Replication {
        Replication(data_centres.into_iter().map(|dc| (dc, copies)).collect())
    }

    /// All copies.
    pub fn copies(&self) -> u8 {
        self.0.values().sum()
    }

    /// The copies that a quorum of each data centre has, together.
    pub fn each_quorum(&self) -> u8 {
        self.0.values().map(|copies| copies / 2 + 1).sum()
    }

    /// As it is written in CQL: `'dc1': '1', 'dc2': '1'`.
    pub fn cql(&self) -> String {
        let entries = self.0.iter();
        let entries: Vec<String> = entries
            .map(|(dc, copies)| format!("'{}': '{copies}'", dc.replace('\'', "''")))
            .collect();
        entries.join(", ")
    }

    fn parse(keyspace: &Keyspace, options: &BTreeMap<String, String>) -> Result<Replication> {
        let class = options.get("class").map_or("", String::as_str);
        if !class.ends_with("NetworkTopologyStrategy") {
            return Err(conflict(format!(
                "keyspace {keyspace} is replicated by {class:?}: ALTER KEYSPACE {keyspace} WITH replication = \
                 {{'class': 'NetworkTopologyStrategy', ...}} with the copies of each data centre, then run nodetool repair"
            )));
        }
        let mut copies = BTreeMap::new();
        for (data_centre, count) in options.iter().filter(|(name, _)| *name != "class") {
            let count = count.parse().map_err(|_| {
                conflict(format!(
                    "keyspace {keyspace} has {count:?} copies in {data_centre}: transient copies do not count in a \
                     quorum; ALTER KEYSPACE {keyspace} with a whole number, then run nodetool repair"
                ))
            })?;
            copies.insert(data_centre.clone(), count);
        }
        copies.retain(|_, count| *count > 0);
        Ok(Replication(copies))
    }
}

/// How many copies a sync waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// A majority of all.
    Quorum,
    /// A majority in each data centre: while one is away, nothing is synced.
    EachQuorum,
}

impl Durability {
    /// The one that makes writes durable on exactly so many copies.
    ///
    /// # Errors
    /// `Invalid` if neither does.
    pub fn of(sync_replicas: u8, replication: &Replication) -> Result<Durability> {
        let (quorum, each) = (replication.copies() / 2 + 1, replication.each_quorum());
        match sync_replicas {
            k if k == quorum => Ok(Durability::Quorum),
            k if k == each => Ok(Durability::EachQuorum),
            k => Err(invalid(format!(
                "{k} synchronous of {} copies: Cassandra waits for a majority, {quorum}, or for a majority in each \
                 data centre, {each} in all",
                replication.copies()
            ))),
        }
    }
}

/// The statement that makes a keyspace.
pub fn create_keyspace(keyspace: &Keyspace, replication: &Replication) -> String {
    format!(
        "CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {{'class': 'NetworkTopologyStrategy', {}}} \
         AND durable_writes = true",
        replication.cql()
    )
}

/// The statements that make the tables.
pub fn create_tables(keyspace: &Keyspace) -> Vec<String> {
    let statement = |(name, columns): &(&str, &str)| {
        let with = match columns.contains(" WITH ") {
            true => "AND",
            false => "WITH",
        };
        format!("CREATE TABLE IF NOT EXISTS {keyspace}.{name} {columns} {with} {WITH}")
    };
    TABLES.iter().map(statement).collect()
}

/// What `system_schema.keyspaces` says.
#[derive(Debug, Clone)]
pub struct KeyspaceFacts {
    /// The class and the copies by data centre.
    pub replication: BTreeMap<String, String>,
    /// True if writes go to the commit log.
    pub durable_writes: bool,
}

/// What `system_schema.tables` says of one table.
#[derive(Debug, Clone)]
pub struct TableFacts {
    /// The table.
    pub name: String,
    /// How long tombstones are kept.
    pub gc_grace_seconds: i32,
    /// Seconds after which rows vanish; 0 for never.
    pub default_time_to_live: i32,
    /// `BLOCKING` or `NONE`.
    pub read_repair: String,
    /// When a coordinator asks another replica.
    pub speculative_retry: String,
    /// Options of compression.
    pub compression: BTreeMap<String, String>,
    /// The part of reads that verifies checksums.
    pub crc_check_chance: f64,
}

/// Checks a keyspace; gives its copies.
///
/// # Errors
/// `Conflict`, with what to ALTER.
pub fn check_keyspace(keyspace: &Keyspace, facts: &KeyspaceFacts) -> Result<Replication> {
    if !facts.durable_writes {
        return Err(conflict(format!(
            "keyspace {keyspace} has durable_writes = false, which loses acknowledged writes: ALTER KEYSPACE \
             {keyspace} WITH durable_writes = true, then run nodetool flush on every node"
        )));
    }
    Replication::parse(keyspace, &facts.replication)
}

/// Checks that all tables are there, as they must be.
///
/// # Errors
/// `NotFound` if one is missing, `Conflict` with what to ALTER.
pub fn check_tables(keyspace: &Keyspace, tables: &[TableFacts]) -> Result<()> {
    for (name, _) in TABLES {
        let table = tables.iter().find(|table| table.name == name);
        let missing = || {
            Error::new(
                ErrorKind::NotFound,
                format!("table {keyspace}.{name} does not exist: run `understudy init`"),
            )
        };
        check_table(keyspace, table.ok_or_else(missing)?)?;
    }
    Ok(())
}

fn check_table(keyspace: &Keyspace, table: &TableFacts) -> Result<()> {
    let name = &table.name;
    let wrong = |is: String, why: &str, should: &str| {
        Err(conflict(format!(
            "table {keyspace}.{name} has {is}, {why}: ALTER TABLE {keyspace}.{name} WITH {should}"
        )))
    };
    if !table.read_repair.eq_ignore_ascii_case("BLOCKING") {
        return wrong(
            format!("read_repair = '{}'", table.read_repair),
            "so what a quorum returned once may be gone the next time",
            "read_repair = 'BLOCKING'",
        );
    }
    if table.default_time_to_live != 0 {
        return wrong(
            format!("default_time_to_live = {}", table.default_time_to_live),
            "so data vanishes",
            "default_time_to_live = 0 (what was written meanwhile still vanishes: restore it from a backup)",
        );
    }
    if table.gc_grace_seconds < GC_GRACE_SECONDS_MIN {
        return wrong(
            format!("gc_grace_seconds = {}", table.gc_grace_seconds),
            "so hints are thrown away early and replicas that were away stay behind",
            "gc_grace_seconds = 10800 or more",
        );
    }
    let retry = table.speculative_retry.to_ascii_uppercase();
    if matches!(retry.as_str(), "" | "NONE" | "NEVER") {
        return wrong(
            format!("speculative_retry = '{}'", table.speculative_retry),
            "so reads fail for many seconds when a replica dies",
            "speculative_retry = '50ms'",
        );
    }
    let enabled = table
        .compression
        .get("enabled")
        .is_none_or(|e| e != "false");
    if !enabled || !table.compression.contains_key("class") || table.crc_check_chance < 1.0 {
        return wrong(
            "no checksums on disk at every read".to_owned(),
            "so a rotten copy can win over the others",
            "compression = {'class': 'LZ4Compressor', 'chunk_length_in_kb': 16} AND crc_check_chance = 1.0",
        );
    }
    Ok(())
}

fn conflict(message: String) -> Error {
    Error::new(ErrorKind::Conflict, message)
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyspace() -> Keyspace {
        Keyspace::new("understudy").unwrap()
    }

    fn facts(options: &[(&str, &str)]) -> KeyspaceFacts {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        KeyspaceFacts {
            replication: options.iter().map(own).collect(),
            durable_writes: true,
        }
    }

    fn table(name: &str) -> TableFacts {
        TableFacts {
            name: name.to_owned(),
            gc_grace_seconds: 10_800,
            default_time_to_live: 0,
            read_repair: "BLOCKING".to_owned(),
            speculative_retry: "50ms".to_owned(),
            compression: [("class".to_owned(), "LZ4Compressor".to_owned())].into(),
            crc_check_chance: 1.0,
        }
    }

    #[test]
    fn data_centres_are_counted_as_they_were_named() {
        let replication = Replication::even(["a", "b", "c"].map(String::from), 1);
        let names = ["c", "x", "a"].map(String::from);
        let order = replication.in_order(&names);
        assert_eq!(order, [("c", 1), ("a", 1), ("b", 1)]);
    }

    fn all() -> Vec<TableFacts> {
        TABLES.iter().map(|(name, _)| table(name)).collect()
    }

    #[test]
    fn names_of_keyspaces_need_no_quotes() {
        for name in ["", "Upper", "1st", "a-b", "drop table", &"x".repeat(49)] {
            assert!(Keyspace::new(name).is_err(), "{name}");
        }
        assert_eq!(Keyspace::new("us_1").unwrap().as_str(), "us_1");
    }

    #[test]
    fn copies_are_read_back_as_they_were_made() {
        let class = "org.apache.cassandra.locator.NetworkTopologyStrategy";
        let options = [("class", class), ("dc1", "1"), ("dc2", "2"), ("dc3", "0")];
        let replication = check_keyspace(&keyspace(), &facts(&options)).unwrap();
        assert_eq!(replication.cql(), "'dc1': '1', 'dc2': '2'");
        assert_eq!((replication.copies(), replication.each_quorum()), (3, 3));
    }

    #[test]
    fn copies_that_make_a_write_durable_are_a_majority() {
        let three = Replication::even(["a", "b", "c"].map(String::from), 2);
        assert_eq!(Durability::of(4, &three).unwrap(), Durability::Quorum);
        assert_eq!(Durability::of(6, &three).unwrap(), Durability::EachQuorum);
        let error = Durability::of(3, &three).unwrap_err();
        assert!(error.to_string().contains("a majority, 4"), "{error}");
        let one = Replication::even(["a".to_owned()], 3);
        assert_eq!(Durability::of(2, &one).unwrap(), Durability::Quorum);
    }

    #[test]
    fn a_keyspace_that_breaks_a_guarantee_is_refused_with_what_to_do() {
        let class = "NetworkTopologyStrategy";
        let not_durable = KeyspaceFacts {
            durable_writes: false,
            ..facts(&[("class", class), ("dc1", "3")])
        };
        for (facts, advice) in [
            (
                facts(&[("class", "SimpleStrategy")]),
                "NetworkTopologyStrategy",
            ),
            (facts(&[("class", class), ("dc1", "3/1")]), "transient"),
            (not_durable, "durable_writes = true"),
        ] {
            let error = check_keyspace(&keyspace(), &facts).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict);
            assert!(error.to_string().contains(advice), "{error}");
            assert!(
                error.to_string().contains("ALTER KEYSPACE understudy"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_table_that_breaks_a_guarantee_is_refused_with_what_to_do() {
        check_tables(&keyspace(), &all()).unwrap();
        type Break = fn(&mut TableFacts);
        let breaks: [(Break, &str); 6] = [
            (
                |t| t.read_repair = "NONE".into(),
                "read_repair = 'BLOCKING'",
            ),
            (|t| t.default_time_to_live = 60, "default_time_to_live = 0"),
            (|t| t.gc_grace_seconds = 0, "gc_grace_seconds = 10800"),
            (
                |t| t.speculative_retry = "NEVER".into(),
                "speculative_retry = '50ms'",
            ),
            (|t| t.compression.clear(), "compression ="),
            (|t| t.crc_check_chance = 0.5, "crc_check_chance = 1.0"),
        ];
        for (change, advice) in breaks {
            let mut tables = all();
            change(&mut tables[2]);
            let error = check_tables(&keyspace(), &tables).unwrap_err().to_string();
            assert!(
                error.contains("ALTER TABLE understudy.blocks WITH"),
                "{error}"
            );
            assert!(error.contains(advice), "{error}");
        }
        let error = check_tables(&keyspace(), &all()[1..]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn tables_are_made_as_they_are_checked() {
        for statement in create_tables(&keyspace()) {
            assert_eq!(statement.matches(" WITH ").count(), 1, "{statement}");
            assert!(statement.contains("read_repair = 'BLOCKING'"));
            assert!(statement.contains("CREATE TABLE IF NOT EXISTS understudy."));
        }
    }
}
