//! What a manager does with a statement so that two databases come to the same from it.
//!
//! ```text
//!   text ──▶ plan ──┬──▶ alone: it changes nothing that is mirrored
//!                   ├──▶ a step of the transaction: BEGIN, SAVEPOINT, ...
//!                   ├──▶ write: with what it claims, and what the primary evaluates first in place of time and chance
//!                   │        └──▶ or its rows are sent in place of it
//!                   └──▶ refused, with the reason and the remedy
//! ```
//!
//! Pure: PostgreSQL's own parser, and what is known of the catalog ([`Facts`]). Invariant: in doubt a statement's rows are sent,
//! and where that cannot be done it is refused. None has another effect on one member than on the other.

mod asked;
mod calls;
mod change;
mod claims;
mod copied;
mod copy;
mod definition;
mod facts;
mod find;
mod insert;
pub(crate) mod parts;
mod plan;
mod roles;
mod rows;
mod session;
mod template;

#[cfg(test)]
mod tests;

pub use asked::asked;
pub use copied::Times;
pub use facts::{CATALOG, Facts};
pub use find::may_be_a_time as plan_may_be_a_time;
pub use plan::{Plan, Session, Step, plan};
pub use roles::is_kept_password;
pub use rows::{Row, Ship};
pub use session::may_leave_something;
pub use template::{Template, question, substitute};

use protocol::frame::Refusal;

use crate::core::class::{Claims, Mode};

/// Which functions and triggers the operator vouches for.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Harmless {
    /// Names of functions that do the same on both members and change nothing else, although the catalog does not say so.
    pub functions: Vec<String>,
    /// Names of triggers that do the same on both members.
    pub triggers: Vec<String>,
}

/// A key whose parts may be parameters or values that are evaluated first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyClaim {
    /// The table, with its schema.
    pub table: String,
    /// The values of the key's columns, in order.
    pub parts: Vec<KeyPart>,
    /// How it is claimed.
    pub mode: Mode,
}

impl KeyClaim {
    /// True if it is known before anything was evaluated.
    fn needs_nothing(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.all(|part| !matches!(part.value, KeyValue::Need(_)))
    }
}

/// One column of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPart {
    /// Where the value comes from.
    pub value: KeyValue,
    /// The column's type.
    pub type_name: String,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyValue {
    /// It is in the text.
    Constant(String),
    /// A parameter, from 1 on.
    Parameter(usize),
    /// What is evaluated first, from 0 on.
    Need(usize),
}

/// A statement that writes, locks rows or advances a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The text, with holes where the values of `needs` go.
    pub template: Template,
    /// Expressions that the primary evaluates first, once.
    pub needs: Vec<String>,
    /// What it conflicts on, as far as the text tells.
    pub claims: Claims,
    /// And the keys that it conflicts on; all of the table if one of them cannot be told.
    pub keys: Vec<KeyClaim>,
    /// Sequences that it advances, as `nextval` wants them.
    pub sequences: Vec<String>,
    /// The rows that are sent in place of the statement.
    pub ship: Option<Ship>,
    /// True if the other member executes anything because of it, besides advancing sequences.
    pub is_logged: bool,
    /// What is known of the catalog is not right any more after it.
    pub changes_catalog: bool,
    /// A password: the hole after the values is for what servers keep of it.
    pub password: Option<String>,
    /// It is `COPY ... FROM STDIN`.
    pub is_copy: bool,
    /// Where times may be in what is copied.
    pub times: Option<Times>,
}

impl Write {
    /// A statement that both execute as it is.
    fn new(text: &str, claims: Claims) -> Write {
        Write {
            template: Template::plain(text),
            needs: Vec::new(),
            claims,
            keys: Vec::new(),
            sequences: Vec::new(),
            ship: None,
            is_logged: true,
            changes_catalog: false,
            password: None,
            is_copy: false,
            times: None,
        }
    }

    /// True if the primary's member may execute `source` itself, in a session that is like this: nothing that is to be known of it
    /// must be asked before, and the values that it needs are those of its transaction's time.
    pub fn runs_as_it_is(&self, source: &str, session: &Session) -> bool {
        let is_known = self.ship.is_none() && !self.is_copy;
        let is_known = is_known && self.password.is_none();
        is_known
            && match self.needs.as_slice() {
                [] => self.template.text() == Some(source),
                needs => {
                    needs.iter().all(|need| is_time(need, session))
                        && self.keys.iter().all(KeyClaim::needs_nothing)
                }
            }
    }
}

/// True if what was noted of a statement does nothing but say when constraints are checked.
pub fn is_constraints(text: &str) -> bool {
    text.starts_with("SET CONSTRAINTS ")
}

/// True if an expression is the time at which the transaction began, with its time zone.
fn is_time(expression: &str, session: &Session) -> bool {
    let expression = expression.trim().to_ascii_lowercase();
    match expression.as_str() {
        "current_timestamp" | "pg_catalog.now()" | "pg_catalog.transaction_timestamp()" => true,
        // Elsewhere in the path there may be another function of this name.
        "now()" | "transaction_timestamp()" => session
            .search_path
            .iter()
            .all(|schema| schema != "pg_catalog"),
        _ => false,
    }
}

/// A refusal of something that cannot be mirrored.
fn unmirrored(
    what: impl Into<String>,
    detail: impl Into<String>,
    hint: impl Into<String>,
) -> Box<Refusal> {
    let refusal = Refusal::error("0A000", what).detail(detail);
    Box::new(refusal.hint(hint))
}

/// What planning comes to, or why it does not.
type Result<T> = std::result::Result<T, Box<Refusal>>;
