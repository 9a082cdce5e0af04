//! The corpus: statements of the kinds that PostgreSQL's regression scripts have, each equal on both members, or refused with a
//! reason.

use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::{Client, Error};

use crate::site::Site;

const CORPUS: &str = include_str!("corpus.sql");

/// What becomes of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Done,
    /// The mirror says that it cannot be mirrored, and why.
    Refused,
    /// PostgreSQL says this.
    Error(String),
}

/// A statement of the corpus, and what must become of it.
struct Case {
    text: &'static str,
    wants: Outcome,
}

fn cases() -> Vec<Case> {
    let paragraphs = CORPUS.split("\n\n").map(str::trim);
    let statements = paragraphs.filter(|text| !text.is_empty() && !text.starts_with("--"));
    let cases = statements.map(|paragraph| match paragraph.split_once("\n--= ") {
        None => Case {
            text: paragraph,
            wants: Outcome::Done,
        },
        Some((text, "refused")) => Case {
            text,
            wants: Outcome::Refused,
        },
        Some((text, wants)) => {
            let code = wants.strip_prefix("error ").expect("an error's code");
            Case {
                text,
                wants: Outcome::Error(code.to_owned()),
            }
        }
    });
    cases.collect()
}

/// What became of a statement. A refusal says what to do, or why.
fn outcome(done: Result<(), Error>) -> Outcome {
    let Err(error) = done else {
        return Outcome::Done;
    };
    let error = error.as_db_error().expect("the connection lasts");
    if *error.code() == SqlState::FEATURE_NOT_SUPPORTED && is_of_mirror(error) {
        return Outcome::Refused;
    }
    Outcome::Error(error.code().code().to_owned())
}

/// It is raised by what the manager has made or sent, and says what to do.
fn is_of_mirror(error: &DbError) -> bool {
    error.routine() == Some("exec_stmt_raise") && error.hint().is_some_and(|hint| !hint.is_empty())
}

/// Members are compared after so many statements, at a place where no transaction is open.
const COMPARED_EVERY: usize = 20;

/// Executes the corpus in one session. What a transaction has done is compared by the mirror itself: a difference is told after it. The
/// whole members are compared now and then.
fn go_through(execute: impl Fn(&Site, &Client, &str) -> Result<(), Error>) {
    let cases = cases();
    assert!(cases.len() > 300, "there are {}", cases.len());
    let site = Site::start("");
    let client = site.connect();
    let standby = 1 - site.who_serves();
    let mut others = Vec::new();
    let mut is_within = false;
    let last = cases.len() - 1;
    let mut since = 0;
    for (at, Case { text, wants }) in cases.into_iter().enumerate() {
        let came = outcome(execute(&site, &client, text));
        if came != wants {
            others.push(format!("{text}: {came:?} in place of {wants:?}"));
        }
        let difference = site.status(standby).and_then(|status| status.difference);
        if let Some(difference) = difference {
            others.push(format!("before the end of {text}: {difference}"));
            break;
        }
        let word = text.split([' ', ';']).next().unwrap_or_default();
        is_within = match word {
            "BEGIN" | "START" => true,
            "COMMIT" | "END" => false,
            "ROLLBACK" if !text.contains(" TO ") => false,
            _ => is_within,
        };
        since += 1;
        if !is_within && (since >= COMPARED_EVERY || at == last) {
            since = 0;
            let verdict = site.verify();
            if !verdict.equal {
                others.push(format!("before the end of {text}: {verdict:?}"));
                break;
            }
        }
    }
    assert!(others.is_empty(), "{}", others.join("\n"));
}

// hazard: MIRROR-68
#[test]
fn every_statement_is_equal_on_both_members_or_refused() {
    go_through(|site, client, text| site.runtime.block_on(client.batch_execute(text)));
}

#[test]
fn every_prepared_statement_is_equal_on_both_members_or_refused() {
    go_through(|site, client, text| {
        let queried = site.runtime.block_on(client.query(text, &[]));
        queried.map(drop)
    });
}
