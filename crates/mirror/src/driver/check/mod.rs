//! Finding out what would be refused, or differ, before anything starts: both members are asked, and nothing is changed there.
//!
//! Invariant: a check names what it is about, and says what to do. What it cannot ask it says, and does not take for well.

mod questions;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use questions::Level;
use questions::{ALIKE, BEGIN, CHECKS, SCHEMAS};

use super::config::Config;
use super::target::Target;
use super::wire::{self, Postgres, WireError};

const NAME: &str = "understudy mirror check";
/// So many names are told of what a check has found.
const MOST_NAMED: usize = 20;

/// Something that a check has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Its meaning.
    pub level: Level,
    /// Which member has it: `member`, `other_member`, or `both`.
    pub member: String,
    /// The finding itself.
    pub what: String,
    /// Names of what it is about, the first of them.
    pub names: Vec<String>,
    /// The thing to do.
    pub advice: String,
}

/// Findings of all checks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Nothing is refused, and nothing differs.
    pub ok: bool,
    /// By what they mean.
    pub findings: Vec<Finding>,
}

/// A member that is asked.
struct Asked {
    key: &'static str,
    server: Postgres,
    /// Nothing, if the server does not have it yet.
    database: Option<Postgres>,
    name: String,
}

impl Asked {
    async fn reach(key: &'static str, target: &Target) -> Result<Asked, WireError> {
        let mut server = Postgres::connect(&target.elsewhere(), NAME).await?;
        server.query(BEGIN).await?;
        let mut database = match Postgres::connect(target, NAME).await {
            Err(WireError::Server(said)) if said.code == super::wire::NO_SUCH_DATABASE => None,
            connected => Some(connected?),
        };
        if let Some(session) = &mut database {
            session.query(BEGIN).await?;
        }
        Ok(Asked {
            key,
            server,
            database,
            name: target.database.clone(),
        })
    }

    /// Rows of two columns, the second of which may be missing; none of a database that is not there.
    async fn ask(
        &mut self,
        of_server: bool,
        text: &str,
    ) -> Result<Vec<(String, String)>, WireError> {
        let database = postgres_protocol::escape::escape_literal(&self.name);
        let text = text
            .replace("'DATABASE'", database.trim())
            .replace("SCHEMAS", SCHEMAS);
        let session = match of_server {
            true => Some(&mut self.server),
            false => self.database.as_mut(),
        };
        let Some(session) = session else {
            return Ok(Vec::new());
        };
        let rows = session.query(&text).await?.rows().into_iter();
        let rows = rows.map(|row| {
            let mut row = row.into_iter().map(Option::unwrap_or_default);
            (
                row.next().unwrap_or_default(),
                row.next().unwrap_or_default(),
            )
        });
        Ok(rows.collect())
    }
}

impl Checked {
    fn found(&mut self, level: Level, member: &str, names: Vec<String>, said: (&str, &str)) {
        if names.is_empty() {
            return;
        }
        let more = names.len().saturating_sub(MOST_NAMED);
        let mut names: Vec<String> = names.into_iter().take(MOST_NAMED).collect();
        if more > 0 {
            names.push(format!("and {more} more"));
        }
        self.findings.push(Finding {
            level,
            member: member.to_owned(),
            what: said.0.to_owned(),
            names,
            advice: said.1.to_owned(),
        });
    }
}

/// Checks both members of a configuration, or the only one.
///
/// # Errors
/// A connection string that cannot be parsed. A member that cannot be asked is a finding.
pub async fn check(config: &Config) -> Result<Checked, super::RunError> {
    let mut checked = Checked::default();
    let mut targets = vec![("member", config.target()?)];
    if !config.single {
        targets.push(("other_member", config.other_target()?));
    }
    let (mut members, mut reached) = (Vec::new(), Vec::new());
    for (key, target) in &targets {
        match Asked::reach(key, target).await {
            Ok(asked) => {
                members.push(asked);
                reached.push((*key, target));
            }
            Err(error) => {
                let said = (
                    "the member cannot be asked",
                    "Let the manager reach it, and log in.",
                );
                checked.found(Level::Refused, key, vec![error.to_string()], said);
            }
        }
    }
    for ((key, target), asked) in reached.into_iter().zip(&mut members) {
        if let Err(error) = of_member(config, target, asked, &mut checked).await {
            let said = (
                "a check could not be made",
                "Look at the server's log, and try again.",
            );
            checked.found(Level::Refused, key, vec![error.to_string()], said);
        }
    }
    if let [one, other] = &mut members[..]
        && let Err(error) = of_both(one, other, &mut checked).await
    {
        let said = (
            "the members cannot be compared",
            "Look at the servers' logs, and try again.",
        );
        checked.found(Level::Refused, "both", vec![error.to_string()], said);
    }
    checked.findings.sort_by_key(|finding| finding.level);
    checked.ok = checked
        .findings
        .iter()
        .all(|finding| finding.level == Level::Advice);
    Ok(checked)
}

async fn of_member(
    config: &Config,
    target: &Target,
    asked: &mut Asked,
    checked: &mut Checked,
) -> Result<(), WireError> {
    let key = asked.key;
    if !config.clients_need_no_proof && wire::asks_nobody(target).await? {
        let said = (
            "the member lets the manager in as anybody, without a proof (pg_hba.conf)",
            "Let it ask the manager's address for scram-sha-256, for all roles but the manager's own.",
        );
        checked.found(Level::Refused, key, vec![target.user.clone()], said);
    }
    for one in CHECKS.iter().filter(|_| !config.single) {
        let rows = asked.ask(one.of_server, one.asks).await?;
        let names = rows.into_iter().map(|(name, _)| name).collect();
        checked.found(one.level, key, names, (one.what, one.advice));
    }
    Ok(())
}

async fn of_both(
    one: &mut Asked,
    other: &mut Asked,
    checked: &mut Checked,
) -> Result<(), WireError> {
    const SYSTEM: &str = "SELECT system_identifier::text FROM pg_control_system()";
    let systems = [one.ask(true, SYSTEM).await?, other.ask(true, SYSTEM).await?];
    if systems[0] == systems[1] {
        let names = systems[0].iter().map(|(name, _)| name.clone()).collect();
        let said = (
            "both members are one server, or one is a copy of the other's files",
            "Make the other server with initdb.",
        );
        checked.found(Level::Refused, "both", names, said);
    }
    for fact in ALIKE {
        if !fact.of_server && (one.database.is_none() || other.database.is_none()) {
            continue;
        }
        let here: BTreeMap<_, _> = one
            .ask(fact.of_server, fact.asks)
            .await?
            .into_iter()
            .collect();
        let there: BTreeMap<_, _> = other
            .ask(fact.of_server, fact.asks)
            .await?
            .into_iter()
            .collect();
        checked.found(
            fact.level,
            "both",
            differing(&here, &there),
            (fact.what, fact.advice),
        );
    }
    for (has, lacks) in [(0, 1), (1, 0)] {
        let [from, to] = match (has, lacks) {
            (0, _) => [&mut *one, &mut *other],
            _ => [&mut *other, &mut *one],
        };
        lacks_extensions(from, to, checked).await?;
    }
    Ok(())
}

/// Names of which both have something else, with what each has.
fn differing(here: &BTreeMap<String, String>, there: &BTreeMap<String, String>) -> Vec<String> {
    let names: BTreeSet<&String> = here.keys().chain(there.keys()).collect();
    let told = names.into_iter().filter_map(|name| {
        let say = |value: Option<&String>| value.map_or("nothing".to_owned(), Clone::clone);
        let (one, other) = (here.get(name), there.get(name));
        (one != other).then(|| format!("{name}: {} and {}", say(one), say(other)))
    });
    told.collect()
}

/// Extensions of one member that the other server cannot make.
async fn lacks_extensions(
    from: &mut Asked,
    to: &mut Asked,
    checked: &mut Checked,
) -> Result<(), WireError> {
    let has = "SELECT extname, extversion FROM pg_extension";
    let has = from.ask(false, has).await?;
    let can = "SELECT name, version FROM pg_available_extension_versions";
    let can: BTreeSet<(String, String)> = to.ask(true, can).await?.into_iter().collect();
    let lacks = has.into_iter().filter(|one| !can.contains(one));
    let lacks = lacks.map(|(name, version)| format!("{name} {version}"));
    let said = (
        "extensions of the other member are not available here, or not in their version",
        "Install the same packages on both, and ALTER EXTENSION ... UPDATE.",
    );
    checked.found(Level::Refused, to.key, lacks.collect(), said);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_told_with_both_values_and_long_lists_are_cut() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            pairs
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        let told = differing(
            &of(&[("a", "1"), ("b", "2")]),
            &of(&[("b", "3"), ("a", "1"), ("c", "4")]),
        );
        assert_eq!(told, ["b: 2 and 3", "c: nothing and 4"]);
        let mut checked = Checked::default();
        checked.found(Level::Advice, "member", Vec::new(), ("what", "advice"));
        assert!(checked.findings.is_empty());
        let many = (0..25).map(|n| n.to_string()).collect();
        checked.found(Level::Advice, "member", many, ("what", "advice"));
        let names = &checked.findings[0].names;
        assert_eq!((names.len(), names[20].as_str()), (21, "and 5 more"));
    }
}
