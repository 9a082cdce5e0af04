//! What the log says of a transaction.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::class::{Claims, Class, Mode};

/// A transaction's place in the log: 1 for the first, and no number is left out.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Number(pub u64);

impl Number {
    /// The one after it.
    pub fn next(self) -> Number {
        Number(self.0 + 1)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a client can ask about a transaction by: given when it begins to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Token {
    /// The epoch that it began in.
    pub epoch: u32,
    /// Counted within the epoch.
    pub count: u64,
}

impl Token {
    /// Reads one as it is written.
    pub fn parse(text: &str) -> Option<Token> {
        let (epoch, count) = text.split_once('-')?;
        Some(Token {
            epoch: epoch.parse().ok()?,
            count: count.parse().ok()?,
        })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.count)
    }
}

/// What a statement answered, as a short sum of it.
///
/// Rows count whatever order they come in: two databases need not keep them in the same one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// Rows.
    pub rows: u64,
    sum: u128,
}

impl Digest {
    /// Another row.
    pub fn row(&mut self, row: &[u8]) {
        self.rows += 1;
        self.sum = self.sum.wrapping_add(xxh3_128(row));
    }

    /// The tag at the end, which says what was done to how many rows.
    pub fn tag(&mut self, tag: &[u8]) {
        self.sum = self.sum.wrapping_add(xxh3_128(tag).rotate_left(1));
    }
}

/// A value that is bound to a parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// The type that the client said it has; 0 if the server shall tell.
    pub type_oid: u32,
    /// True if the value is in the binary format.
    pub is_binary: bool,
    /// The value; `None` if it is null.
    #[serde(with = "super::raw::optional")]
    pub value: Option<Vec<u8>>,
}

/// A statement that both members execute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// Its text; nothing in it depends on time, chance or the member.
    pub text: String,
    /// What is bound to its parameters.
    pub parameters: Vec<Parameter>,
    /// The formats of what it returns, as `Bind` says them; none for text.
    pub result_formats: Vec<i16>,
    /// What follows `COPY ... FROM STDIN`.
    #[serde(with = "super::raw::optional")]
    pub copied: Option<Vec<u8>>,
    /// What the primary answered; `None` where only the effect counts.
    pub digest: Option<Digest>,
}

impl Parameter {
    /// As it is in the log: types that are not PostgreSQL's own have other numbers on the other member, which finds them out by
    /// itself.
    pub fn portable(&self) -> Parameter {
        const FIRST_OWN: u32 = 16_384;
        Parameter {
            type_oid: if self.type_oid < FIRST_OWN {
                self.type_oid
            } else {
                0
            },
            ..self.clone()
        }
    }
}

impl Statement {
    /// True if it is no statement of the client's, but makes a session's settings what the client's were.
    pub fn is_settings(&self) -> bool {
        self.digest.is_none()
    }

    /// The statement that makes a session's settings what those of a client's session are, and says as whom that has logged in.
    pub fn settings(sets: &str, login: &str) -> Statement {
        const TEXT: u32 = 25;
        Statement {
            text: format!("SELECT $1::pg_catalog.text, {sets}"),
            parameters: vec![Parameter {
                type_oid: TEXT,
                is_binary: false,
                value: Some(login.as_bytes().to_vec()),
            }],
            ..Statement::default()
        }
    }

    /// The role that the client has logged in as. An earlier version said only which its session had then, at the end.
    fn login(&self) -> Option<String> {
        if let Some(login) = self.parameters.first() {
            return String::from_utf8(login.value.clone()?).ok();
        }
        let (_, role) = self.text.rsplit_once("pg_catalog.set_config('role', '")?;
        Some(role.strip_suffix("', false)")?.replace("''", "'"))
    }
}

/// A transaction that is about to commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draft {
    /// What its client can ask by.
    pub token: Token,
    /// What it conflicts on.
    pub claims: Claims,
    /// What it did, in order; what it was run with is among it, as `set_config`.
    pub statements: Vec<Statement>,
    /// How far it has advanced sequences: their names, and the last values.
    pub sequences: Vec<(String, i64)>,
}

impl Draft {
    /// The role that the client has logged in as; nothing if it has only advanced sequences, or nobody says.
    pub fn login(&self) -> Option<String> {
        Draft::login_of(&self.statements)
    }

    /// The same of what a transaction has done so far.
    pub fn login_of(statements: &[Statement]) -> Option<String> {
        let settings = statements.first().filter(|one| one.is_settings());
        settings.and_then(Statement::login)
    }

    /// True if definitions may be others after it. Nothing else is executed at the same time.
    pub fn is_definition(&self) -> bool {
        self.claims
            .iter()
            .any(|claim| claim == (&Class::Database, Mode::Exclusive))
    }
}

/// A transaction in the log: it has committed as soon as this is durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its place in the log.
    pub number: Number,
    /// What it is. Records are passed on in many directions, and never change.
    #[serde(with = "shared")]
    pub draft: Arc<Draft>,
}

impl Record {
    /// The first number of a long transaction, of which this record is the end, with all of its pieces.
    pub fn first(&self) -> Number {
        let header = self.draft.header().unwrap_or_default();
        Number(self.number.0.saturating_sub(u64::from(header.piece)))
    }

    /// True if the rest of its transaction follows in other records.
    pub fn is_piece(&self) -> bool {
        let header = self.draft.header();
        header.is_some_and(|header| !header.is_last)
    }

    /// About how long it is in memory, and on its way.
    pub fn bytes(&self) -> usize {
        let of = |statement: &Statement| {
            let values = statement
                .parameters
                .iter()
                .filter_map(|one| one.value.as_ref());
            let copied = statement.copied.as_ref().map_or(0, Vec::len);
            statement.text.len() + values.map(Vec::len).sum::<usize>() + copied
        };
        self.draft.statements.iter().map(of).sum()
    }
}

/// In the log, and between managers, what is shared is as what is not.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Draft;

    pub fn serialize<S: Serializer>(draft: &Arc<Draft>, to: S) -> Result<S::Ok, S::Error> {
        draft.as_ref().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Draft>, D::Error> {
        Draft::deserialize(from).map(Arc::new)
    }
}

#[cfg(test)]
impl Record {
    /// A transaction with this number, as tests need one.
    pub fn of(number: u64, claims: Claims, statements: Vec<Statement>) -> Record {
        Record {
            number: Number(number),
            draft: Arc::new(Draft {
                token: Token {
                    epoch: 1,
                    count: number,
                },
                claims,
                statements,
                sequences: Vec::new(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: &[&str], tag: &str) -> Digest {
        let mut digest = Digest::default();
        rows.iter().for_each(|row| digest.row(row.as_bytes()));
        digest.tag(tag.as_bytes());
        digest
    }

    #[test]
    fn it_is_known_who_has_logged_in_also_of_records_of_an_earlier_version() {
        let of = |first: Statement| {
            let statements = vec![first, Statement::default()];
            Record::of(1, Claims::default(), statements).draft.login()
        };
        let role = "pg_catalog.set_config('role', 'it''s', false)";
        assert_eq!(of(Statement::settings(role, "app")).as_deref(), Some("app"));
        let earlier = Statement {
            text: format!("SELECT pg_catalog.set_config('TimeZone', 'UTC', false), {role}"),
            ..Statement::default()
        };
        assert_eq!(of(earlier).as_deref(), Some("it's"));
        // A client's own text says nothing of it.
        let forged = Statement {
            text: "SELECT pg_catalog.set_config('role', 'postgres', false)".to_owned(),
            digest: Some(Digest::default()),
            ..Statement::default()
        };
        assert_eq!(of(forged), None);
    }

    #[test]
    fn the_order_of_rows_does_not_matter_but_everything_else_does() {
        assert_eq!(of(&["a", "b"], "SELECT 2"), of(&["b", "a"], "SELECT 2"));
        assert_ne!(of(&["a", "a"], "x"), of(&["a"], "x"));
        assert_ne!(of(&["ab"], "x"), of(&["a", "b"], "x"));
        assert_ne!(of(&["a"], "UPDATE 1"), of(&["a"], "UPDATE 2"));
        assert_ne!(of(&["a"], "b"), of(&["b"], "a"));
    }
}
