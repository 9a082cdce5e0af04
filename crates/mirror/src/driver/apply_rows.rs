//! Writing rows of the log to the member.
//!
//! Invariant: nothing that a client has defined sets anything off, but for checks and expressions, which the table's owner executes and
//! nobody with more rights; each change finds exactly one row, or the member differs.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use postgres_protocol::escape::{escape_identifier, escape_literal};

use super::apply::{Applier, Failed};
use super::definitions;
use super::deputy::{ROWS, WRITE};
use super::member::Member;
use super::statements::Parameter;
use super::tables;
use super::wire::{Wire, tag};
use crate::core::rows::{Change, Definition, Rows};
use crate::rows::shared::{SHARED, executing};
use crate::rows::write::{self, Described, Values, Written};

/// Keeps parameters out of errors.
const QUIET: &str = "SELECT pg_catalog.set_config('log_parameter_max_length_on_error', '0', false)";
/// Answers are read after so much was sent.
const SENT_BYTES: usize = 16 << 10;

/// Changes that are sent and not answered, with the answers that must come.
type Sent<'a> = Vec<(&'a Change, &'static str)>;

fn differs(why: impl ToString) -> Failed {
    Failed::Differs(why.to_string())
}

impl Member {
    /// Writes rows in a transaction that has begun.
    pub(super) async fn write_rows(
        &self,
        applier: &mut Applier,
        version: u64,
        rows: &Rows,
    ) -> Result<(), Failed> {
        let defines = rows.defines();
        as_writer(applier).await?;
        let mut own: HashMap<String, Arc<Described>> = HashMap::new();
        let mut sent = Sent::new();
        let empty = Arc::new(Described::default());
        for change in &rows.changes {
            if let Change::Define(said) = change {
                compare(applier, &mut sent).await?;
                define(applier, said).await?;
                own.clear();
                continue;
            }
            if let Change::Catalog(all) = change {
                compare(applier, &mut sent).await?;
                let here = definitions::read(&mut applier.session, &self.managers).await?;
                if let Some(why) = all.difference(&here) {
                    return Err(differs(why));
                }
                continue;
            }
            let name = name_of(rows, change);
            let known = match (&name, defines) {
                (None, _) => Some(empty.clone()),
                (Some(name), true) => own.get(name).cloned(),
                (Some(name), false) => self.tables.get(version, name),
            };
            let table = match (known, name) {
                (Some(table), _) => table,
                (None, name) => {
                    let name = name.unwrap_or_default();
                    compare(applier, &mut sent).await?;
                    let answer = applier.session.query(&tables::question(&name)).await?;
                    let table = Arc::new(tables::read(answer.rows()));
                    match defines {
                        true => drop(own.insert(name, table.clone())),
                        false => self.tables.learn(version, &name, &table),
                    }
                    table
                }
            };
            let by = self.written_by(applier, &table, defines).await?;
            let values = match by {
                Some(_) => Values::Literal,
                None => Values::Bound,
            };
            let written = write::statement(rows, change, &table, values).map_err(differs)?;
            let Some(written) = written else {
                continue;
            };
            if by.is_some() {
                sent.push((change, "SELECT 1"));
            }
            sent.push((change, applier.put_written(written, by.as_deref())?));
            if applier.session.wire.output.len() >= SENT_BYTES {
                compare(applier, &mut sent).await?;
            }
        }
        compare(applier, &mut sent).await?;
        if defines {
            raise_owned(applier, rows).await?;
        }
        Ok(())
    }

    /// The statement by which a function writes a row in this session; none if the session does that itself.
    async fn written_by(
        &self,
        applier: &Applier,
        table: &Described,
        defines: bool,
    ) -> Result<Option<String>, Failed> {
        let Some(owner) = &table.code_of else {
            return Ok(applier.secret.as_ref().map(|_| WRITE.to_owned()));
        };
        match applier.secret {
            // Definitions have changed since the session was chosen.
            None if applier.deputy == ROWS => Err(Failed::Wire(
                std::io::Error::other("clients' code runs when rows of the table are written")
                    .into(),
            )),
            None => Ok(None),
            Some(_) => match self.code_writer(applier.life, owner).await {
                Ok(by) => Ok(Some(by)),
                // Its owner was made by the same transaction, and so was its code: whoever has logged in ran that at the primary as well.
                Err(_) if defines => Ok(None),
                Err(error) => Err(error),
            },
        }
    }

    /// Sets sequences as the log says.
    pub(super) async fn set_sequences(
        &self,
        applier: &mut Applier,
        sequences: &[(String, i64)],
    ) -> Result<(), Failed> {
        applier.end_batch().await?;
        for (name, value) in sequences {
            // A copy may have the sequence with narrower limits than when the value was logged.
            let text = format!(
                "SELECT pg_catalog.setval(seqrelid, greatest(seqmin, least(seqmax, {value}))) FROM pg_catalog.pg_sequence \
                 WHERE seqrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass({})",
                escape_literal(name)
            );
            applier.write(text).await?;
        }
        Ok(())
    }
}

/// The table that a change of one row is of.
fn name_of(rows: &Rows, change: &Change) -> Option<String> {
    let (Change::Insert(at, _) | Change::Update(at, _, _) | Change::Delete(at, _)) = change else {
        return None;
    };
    rows.relation(*at).map(|relation| relation.quoted())
}

/// Makes the session's role the one that writes rows, whatever was done before, and has nothing fire.
async fn as_writer(applier: &mut Applier) -> Result<(), Failed> {
    if applier.is_writer {
        return Ok(());
    }
    applier.end_batch().await?;
    if applier.deputy == ROWS {
        applier.session.query(&writer("SESSION")).await?;
        applier.is_writer = true;
        return Ok(());
    }
    // A superuser's session may be nobody else: what it writes, it wrote at the primary as well. A deputy's fires nothing from its
    // beginning, and has a function write.
    let sets = match applier.secret {
        None => writer("LOCAL"),
        Some(_) => "SET LOCAL search_path = pg_catalog, pg_temp".to_owned(),
    };
    let text = format!("SET LOCAL ROLE NONE; {sets}");
    applier.session.query(&text).await?;
    Ok(())
}

/// Settings of whoever writes rows.
fn writer(how: &str) -> String {
    let settings = [
        "session_replication_role = 'replica'",
        // Clients' code may have made something in pg_temp, which is looked into first if no path names it.
        "search_path = pg_catalog, pg_temp",
        "DateStyle = 'ISO'",
        "IntervalStyle = 'postgres'",
        "TimeZone = 'UTC'",
        "lc_monetary = 'C'",
        "xmloption = 'content'",
    ];
    let sets = settings.map(|setting| format!("SET {how} {setting}"));
    sets.join("; ")
}

/// Executes a definition as whoever has said it.
async fn define(applier: &mut Applier, said: &Definition) -> Result<(), Failed> {
    let settings: HashMap<String, Option<String>> =
        serde_json::from_str(&said.settings).map_err(|error| {
            differs(format!(
                "the settings of a definition cannot be read: {error}"
            ))
        })?;
    let mut sets: Vec<String> = settings
        .iter()
        .filter_map(|(name, value)| Some((name, value.as_ref()?)))
        .map(|(name, value)| {
            let (name, value) = (escape_literal(name), escape_literal(value));
            format!("pg_catalog.set_config({name}, {value}, true)")
        })
        .collect();
    sets.push(format!(
        "pg_catalog.set_config('role', {}, true)",
        escape_literal(&said.role)
    ));
    let text = format!("SET LOCAL ROLE NONE; SELECT {}", sets.join(", "));
    applier.session.query(&text).await?;
    let text = match said.tag.as_str() {
        SHARED => &executing(&said.text),
        _ => &said.text,
    };
    applier.session.query(text).await?;
    // Texts may mean something else.
    applier.session.wire.statements.drop_all();
    as_writer(applier).await
}

/// Sets sequences of columns that were filled by the transaction that has made them: nobody else could ask how far those are.
async fn raise_owned(applier: &mut Applier, rows: &Rows) -> Result<(), Failed> {
    let inserts = rows
        .changes
        .iter()
        .filter(|change| matches!(change, Change::Insert(..)));
    let tables: BTreeSet<String> = inserts.filter_map(|change| name_of(rows, change)).collect();
    for table in tables {
        let asked = format!(
            "SELECT a.attname, s.seqrelid::pg_catalog.regclass, CASE WHEN s.seqincrement > 0 THEN 'max' ELSE 'min' END \
             FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_sequence s ON s.seqrelid = d.objid \
             JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid \
             WHERE d.refobjid = pg_catalog.to_regclass({}) AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass \
             AND d.deptype IN ('a', 'i') AND a.atttypid OPERATOR(pg_catalog.=) ANY ('{{20,21,23}}'::pg_catalog.oid[])",
            escape_literal(&table)
        );
        for row in applier.session.query(&asked).await?.rows() {
            let [Some(column), Some(sequence), Some(last)] = row.as_slice() else {
                continue;
            };
            let raised = format!(
                "SELECT pg_catalog.setval({}, pg_catalog.{last}({})) FROM ONLY {table}",
                escape_literal(sequence),
                escape_identifier(column)
            );
            applier.write(raised).await?;
        }
    }
    Ok(())
}

/// Sends what was put, and sees that each change has found its row.
async fn compare(applier: &mut Applier, sent: &mut Sent<'_>) -> Result<(), Failed> {
    let Some(reply) = applier.end_batch().await? else {
        return Ok(());
    };
    let mut answers = super::member::answers(&reply.messages);
    for (change, wanted) in sent.drain(..) {
        let told = tag(answers.next().unwrap_or_default());
        if told != wanted {
            let text: String = format!("{change:?}").chars().take(300).collect();
            return Err(differs(format!(
                "{text}: answered {told} in place of {wanted}"
            )));
        }
    }
    Ok(())
}

impl Applier {
    /// Puts the statement of a change without sending it: the answer that must come.
    fn put_written(&mut self, written: Written, by: Option<&str>) -> Result<&'static str, Failed> {
        let parameter = |value| Parameter { type_oid: 0, value };
        let Some((secret, by)) = self.secret.clone().zip(by) else {
            let parameters = written.parameters.into_iter().map(parameter);
            self.put(&written.text, &parameters.collect::<Vec<_>>())?;
            return Ok(written.tag);
        };
        // Clients' code that ran before could have errors tell the parameters of what follows, and read them there.
        self.put(QUIET, &[])?;
        let values = [secret, written.text].map(|text| parameter(Some(text.into_bytes())));
        self.put(by, &values)?;
        Ok("SELECT 1")
    }

    /// Executes a statement that concerns one row, as the role that writes rows if a deputy has logged in.
    pub(super) async fn write(&mut self, text: String) -> Result<(), Failed> {
        if self.secret.is_none() {
            self.session.query(&text).await?;
            return Ok(());
        }
        self.end_batch().await?;
        let written = Written {
            text,
            parameters: Vec::new(),
            tag: "",
        };
        self.put_written(written, Some(WRITE))?;
        self.end_batch().await.map(drop)
    }

    /// Puts a statement without sending it.
    pub(super) fn put(&mut self, text: &str, parameters: &[Parameter]) -> Result<(), Failed> {
        let Wire {
            statements, output, ..
        } = &mut self.session.wire;
        statements.put_open(output, text, parameters)?;
        self.is_open = true;
        Ok(())
    }
}
