//! Executing transactions of the log on the member.
//!
//! ```text
//!   BEGIN, changes of rows, ..., Sync ──▶ each has found its row ──▶ numbers, COMMIT, Sync
//! ```
//!
//! Transactions that may run at the same time are executed as one: each costs a part of a commit then. What does not succeed
//! together is executed one by one. Invariants: a transaction commits with its number, which can be there only once, and not before
//! each of its changes has found its row.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::deputy::{self, Deputy, NOBODY, ROWS};
use super::member::{Member, number_text, put_commit, put_number};
use super::tables;
use super::wire::{Postgres, Reply, Wire, WireError};
use crate::core::manager::Life;
use crate::core::record::{Number, Record};
use crate::core::rows::Rows;
use crate::rows::write::CodeOwner;

/// How often a transaction is tried, before it is told why it cannot be executed.
const ATTEMPTS: u32 = 10;

/// What came of executing a transaction of the log.
#[derive(Debug)]
pub enum Applied {
    /// The member has it.
    Done,
    /// The member answered something else than the primary.
    Differs(String),
    /// It could not be executed, for a reason that passes: it is to be tried again.
    Later(String),
}

/// Why transactions of the log were not executed.
pub(super) enum Failed {
    Wire(WireError),
    Differs(String),
}

impl From<WireError> for Failed {
    fn from(error: WireError) -> Failed {
        Failed::Wire(error)
    }
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Failed {
        Failed::Wire(error.into())
    }
}

/// A session of the member that executes the log.
pub struct Applier {
    pub session: Postgres,
    /// Of the server that it is at.
    pub life: Life,
    /// The deputy that has logged in.
    pub deputy: String,
    /// Of which definitions its prepared statements are.
    definitions: u64,
    /// Something was put that `Sync` must follow.
    pub(super) is_open: bool,
    /// It writes rows, and nothing but that.
    pub(super) is_writer: bool,
    /// A deputy's session writes rows with this secret.
    pub(super) secret: Option<String>,
}

impl Applier {
    /// A session that was not used before.
    pub fn new(session: Postgres, life: Life, deputy: &str) -> Applier {
        Applier {
            session,
            life,
            deputy: deputy.to_owned(),
            definitions: 0,
            is_open: false,
            is_writer: false,
            secret: None,
        }
    }

    /// Makes it the manager's own again: what it is asked then means the same whatever its last client has set, and what that client
    /// may have defined has no part in it.
    pub async fn reset(&mut self) -> Result<(), WireError> {
        const OWN: &str = "RESET SESSION AUTHORIZATION; SET ROLE NONE; SET search_path = pg_catalog, pg_temp; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'";
        self.session.query(OWN).await.map(drop)
    }

    /// Has functions write rows with this secret, if there is one. Clients' code may run in such a session then, and could exchange a
    /// statement that was given a name.
    fn take_secret(&mut self, secret: Option<String>) {
        self.session.wire.statements.parses_always = secret.is_some();
        self.secret = secret;
    }

    /// Begins a transaction, with definitions as they are: what was prepared before they changed may mean something else.
    pub(super) fn begin(&mut self, definitions: u64) -> Result<(), Failed> {
        if std::mem::replace(&mut self.definitions, definitions) != definitions {
            self.session.wire.statements.drop_all();
        }
        let Wire {
            statements, output, ..
        } = &mut self.session.wire;
        let answers = statements.put_open(output, "BEGIN", &[])?;
        self.session.wire.skip(answers + 1);
        self.is_open = true;
        Ok(())
    }

    /// Sends what was put: what is answered, if anything was put.
    pub(super) async fn end_batch(&mut self) -> Result<Option<Reply>, Failed> {
        if !std::mem::take(&mut self.is_open) {
            return Ok(None);
        }
        self.session.wire.sync();
        self.session.wire.flush().await?;
        let reply = self.session.reply().await?.checked()?;
        self.session.wire.statements.seen();
        Ok(Some(reply))
    }

    /// Commits transactions with their numbers.
    async fn commit(&mut self, records: &[Record]) -> Result<(), Failed> {
        for record in records {
            for number in record.first().0..=record.number.0 {
                let (number, token) = (Number(number), record.draft.token);
                match self.secret {
                    Some(_) => self.write(number_text(number, token)).await?,
                    None => put_number(&mut self.session.wire, number, token)?,
                }
            }
        }
        if self.secret.is_some() {
            // A cursor that clients' code has left would be executed at the commit, as whoever has logged in.
            self.end_batch().await?;
            self.session.query("CLOSE ALL").await?;
        }
        put_commit(&mut self.session.wire)?;
        self.session.wire.flush().await?;
        self.session.reply().await?.checked()?;
        self.session.wire.statements.seen();
        Ok(())
    }

    /// Rolls back, and forgets what the session is said to have.
    pub(super) async fn give_up(&mut self) -> Result<(), WireError> {
        self.is_open = false;
        self.session.wire.statements.failed();
        self.session.query("ROLLBACK").await.map(drop)
    }

    /// True if the member has a transaction of the log.
    async fn has(&mut self, record: &Record) -> Result<bool, Failed> {
        let (number, token) = (record.number, record.draft.token);
        let text = format!("SELECT understudy_mirror.has({number}, '{token}')");
        let reply = self.session.query(&text).await?;
        match reply.value().as_deref() {
            Some(there) => Ok(there == "t"),
            None => Err(Failed::Differs(format!(
                "understudy_mirror.applied has the number {number} for another transaction than {token}: somebody has written it there, \
                 who must not be let in by pg_hba.conf"
            ))),
        }
    }
}

/// No table has that name.
const UNKNOWN_TABLE: &str = "42P01";
/// Nothing has that name.
const UNKNOWN_OBJECT: &str = "42704";
/// A right is missing.
const DENIED: &str = "42501";

/// True if an error says nothing of the statement, and is gone sooner or later: conflicts, missing resources, somebody who has a
/// lock there or cancels what runs, a server that stops or only reads.
fn passes(code: &str) -> bool {
    [
        "25006", "25P03", "25P04", "40", "53", "55006", "55P03", "57", "58",
    ]
    .iter()
    .any(|class| code.starts_with(class))
}

impl Member {
    /// Executes transactions of the log that do not conflict, unless the member has them: what came of each.
    pub async fn apply_all(&self, life: Life, records: &[Record]) -> Vec<(Number, Applied)> {
        let Ok(_place) = self.places.acquire().await else {
            return Vec::new();
        };
        let mut applied = Vec::new();
        if records.len() > 1 && self.attempt(life, records).await.is_ok() {
            applied.extend(records.iter().map(|record| (record.number, Applied::Done)));
            return applied;
        }
        for record in records {
            applied.push((record.number, self.apply(life, record).await));
        }
        applied
    }

    async fn apply(&self, life: Life, record: &Record) -> Applied {
        let mut last = String::new();
        for attempt in 0..ATTEMPTS {
            match self.attempt(life, std::slice::from_ref(record)).await {
                Ok(()) => return Applied::Done,
                Err(Failed::Differs(why)) => return Applied::Differs(why),
                Err(Failed::Wire(WireError::Lost(error))) => {
                    tracing::debug!(%error, number = %record.number, "a session of the member was lost");
                    last = error.to_string();
                    if attempt > 2 {
                        break;
                    }
                }
                Err(Failed::Wire(WireError::Server(said))) => {
                    last = format!("{}: {}", said.code, said.message);
                    if said.code == DENIED
                        && let Some(lacking) = self.lacking(record).await
                    {
                        return Applied::Later(format!("{last}: {lacking}"));
                    }
                    if said.code == UNKNOWN_OBJECT && said.message.starts_with("tablespace ") {
                        return Applied::Later(format!(
                            "{last}: tablespaces are of a server, so CREATE TABLESPACE at this member as well"
                        ));
                    }
                    if !passes(&said.code) {
                        return Applied::Differs(last);
                    }
                    if said.code.starts_with("57P0") {
                        break;
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(20 << attempt.min(5))).await;
        }
        Applied::Later(last)
    }

    async fn attempt(&self, life: Life, records: &[Record]) -> Result<(), Failed> {
        let rows = records.iter().map(rows_of).collect::<Result<Vec<_>, _>>()?;
        let deputy = self.deputy_of(life, &rows).await?;
        let secret = self.secret_of(life, &deputy).await?;
        // A member that lets nobody in has answered nothing.
        let applier = self.applier(life, &deputy).await;
        let mut applier = applier.map_err(|error| match deputy {
            Deputy::Own => std::io::Error::other(error),
            Deputy::Role(target) => std::io::Error::other(format!(
                "the manager cannot log in at its member as {} to execute what a client has done ({error}): let pg_hba.conf there ask \
                 the manager's address for scram-sha-256, for all roles",
                target.user
            )),
        })?;
        applier.take_secret(secret);
        let executed = match self.execute(&mut applier, records, &rows).await {
            Err(failed @ (Failed::Differs(_) | Failed::Wire(WireError::Server(_)))) => {
                if let Err(error) = applier.give_up().await {
                    self.idle.lock().clear();
                    return Err(error.into());
                }
                // It may be there already, by a session that has ended since.
                match records {
                    [one] => match applier.has(one).await {
                        Ok(true) => Ok(()),
                        Ok(false) => Err(failed),
                        Err(unclear) => Err(unclear),
                    },
                    _ => Err(failed),
                }
            }
            executed => executed,
        };
        match executed {
            // What has ended one session may have ended all that wait: nobody asks those.
            Err(Failed::Wire(WireError::Lost(_))) => self.idle.lock().clear(),
            _ => self.give_back_clean(applier).await,
        }
        executed
    }

    /// The deputy that executes a transaction.
    async fn deputy_of(&self, life: Life, all: &[Rows]) -> Result<Deputy, Failed> {
        if all.iter().any(|rows| rows.catalog().is_some()) {
            return Ok(Deputy::Own);
        }
        let mut deputy = None;
        for (login, role) in all.iter().flat_map(Rows::said_by) {
            let mut of = self.deputy_of_login(life, login).await?;
            if let Deputy::Own = of {
                // A superuser who was somebody else: what that one has defined may run, and could be a superuser again.
                of = self.deputy_of_login(life, role).await?;
            }
            if let Deputy::Own = of {
                // Whoever was several roles in one transaction is a superuser.
                return Ok(of);
            }
            deputy = Some(of);
        }
        match deputy {
            Some(deputy) => Ok(deputy),
            None => Ok(match self.runs_code(all).await? {
                true => self.writers(life).await?.1,
                false => self.writers(life).await?.0,
            }),
        }
    }

    /// The right that is missing where a transaction of nothing but rows runs clients' code. At the primary the code ran as whoever has
    /// written the row, and here as the table's owner: the row is no other one for that.
    async fn lacking(&self, record: &Record) -> Option<String> {
        let rows = rows_of(record).ok()?;
        if rows.defines() {
            return None;
        }
        let Ok(owners) = self.code_owners(std::slice::from_ref(&rows)).await else {
            return Some("the owners of its tables cannot be looked up now".to_owned());
        };
        if owners.is_empty() {
            return Some(format!(
                "code of a superuser's table (a check, a domain, an index) runs as {ROWS}, who lacks a right that the writer had: at this \
                 member, GRANT a role that has it TO {ROWS}"
            ));
        }
        let roles: Vec<String> = owners.iter().map(deputy::code_role).collect();
        let names: Vec<&str> = owners.iter().map(|owner| owner.name.as_str()).collect();
        Some(format!(
            "code of a table (a check, a domain, an index) runs as the table's owner, {}, who lacks a right that the writer had: \
             at this member, GRANT a role that has it TO {}",
            names.join(" or "),
            roles.join(" or ")
        ))
    }

    /// True if clients' code runs when these rows are written.
    pub(super) async fn runs_code(&self, all: &[Rows]) -> Result<bool, Failed> {
        Ok(!self.code_owners(all).await?.is_empty())
    }

    /// The owners of tables for which clients' code runs when these rows are written.
    async fn code_owners(&self, all: &[Rows]) -> Result<Vec<CodeOwner>, Failed> {
        let definitions = self.definitions.load(Ordering::Acquire);
        let mut owners = Vec::new();
        for relation in all.iter().flat_map(|rows| &rows.relations) {
            let name = relation.quoted();
            let known = match self.tables.get(definitions, &name) {
                Some(known) => known,
                None => {
                    let answer = self.ask(&tables::question(&name)).await;
                    // Nothing else that keeps one from being read is a difference.
                    let answer = answer.map_err(|error| match error {
                        WireError::Server(said) if said.code == UNKNOWN_TABLE => {
                            Failed::Differs(said.message.clone())
                        }
                        error => Failed::Wire(std::io::Error::other(error).into()),
                    })?;
                    let table = Arc::new(tables::read(answer.rows()));
                    self.tables.learn(definitions, &name, &table);
                    table
                }
            };
            if let Some(owner) = &known.code_of
                && !owners.contains(owner)
            {
                owners.push(owner.clone());
            }
        }
        Ok(owners)
    }

    /// The secret with which a deputy's session writes rows; none if it does not, or needs none.
    async fn secret_of(&self, life: Life, deputy: &Deputy) -> Result<Option<String>, Failed> {
        if matches!(deputy.name(), "" | ROWS) {
            return Ok(None);
        }
        self.writers(life).await?;
        Ok(self.deputies.lock().await.secret.clone())
    }

    /// The deputies that write rows: where no code of clients runs, and where some does.
    pub(super) async fn writers(&self, life: Life) -> Result<(Deputy, Deputy), Failed> {
        let mut deputies = self.deputies.lock().await;
        if let (Some((rows, _)), Some((nobody, _))) =
            (deputies.of(life, 0, ROWS), deputies.of(life, 0, NOBODY))
        {
            return Ok((rows, nobody));
        }
        let ([rows, nobody], secret, text) = deputy::make_writers(&self.target)?;
        self.ask(&text).await.map_err(std::io::Error::other)?;
        deputies.secret = Some(secret);
        deputies.learn(0, ROWS, &rows);
        deputies.learn(0, NOBODY, &nobody);
        Ok((rows, nobody))
    }

    /// The statement by which rows of an owner's tables are written where clients' code runs.
    pub(super) async fn code_writer(
        &self,
        life: Life,
        owner: &CodeOwner,
    ) -> Result<String, Failed> {
        let (by, text) = deputy::make_code_writer(owner);
        let mut deputies = self.deputies.lock().await;
        if deputies.of(life, 0, &text).is_none() {
            self.ask(&text).await.map_err(std::io::Error::other)?;
            deputies.learn(0, &text, &Deputy::Own);
        }
        Ok(by)
    }

    async fn deputy_of_login(&self, life: Life, login: String) -> Result<Deputy, Failed> {
        // With the role that all deputies are members of.
        self.writers(life).await?;
        let definitions = self.definitions.load(Ordering::Acquire);
        let mut deputies = self.deputies.lock().await;
        let known = deputies.of(life, definitions, &login);
        if let Some((deputy, false)) = known {
            return Ok(deputy);
        }
        // Nothing that keeps one from being made is a difference.
        let described = self.ask(&deputy::question(&login)).await;
        let row = described.map_err(std::io::Error::other)?.row();
        let mut row = row.into_iter().flatten();
        let (Some(is_superuser), Some(name)) = (row.next(), row.next()) else {
            return Err(Failed::Differs(format!("there is no role \"{login}\"")));
        };
        let deputy = match known {
            _ if is_superuser == "t" => Deputy::Own,
            Some((deputy, _)) if deputy.name() == name => deputy,
            _ => {
                let (deputy, text) = deputy::make(&self.target, &login, name)?;
                self.ask(&text).await.map_err(std::io::Error::other)?;
                deputy
            }
        };
        deputies.learn(definitions, &login, &deputy);
        Ok(deputy)
    }

    async fn execute(
        &self,
        applier: &mut Applier,
        records: &[Record],
        rows: &[Rows],
    ) -> Result<(), Failed> {
        let definitions = self.definitions.load(Ordering::Acquire);
        applier.begin(definitions)?;
        let mut defines = false;
        for (record, rows) in records.iter().zip(rows) {
            defines |= rows.defines();
            self.write_rows(applier, definitions, rows).await?;
            self.set_sequences(applier, &record.draft.sequences).await?;
        }
        applier.commit(records).await?;
        if defines {
            // Nothing else is executed meanwhile.
            self.redefined();
        }
        Ok(())
    }
}

fn rows_of(record: &Record) -> Result<Rows, Failed> {
    let rows = record.draft.rows();
    rows.map_err(|error| Failed::Differs(error.to_string()))
}
