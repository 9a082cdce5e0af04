//! Preparation of a member whose commits are logged as rows: a slot, a publication, event triggers, and the role that writes rows.
//!
//! Invariant: a member that has no slot any more, and had one, may have committed what the log does not have: it is not used as it is.

use std::collections::BTreeMap;
use std::time::Duration;

use proxy::core::settings::quote_literal;
use xxhash_rust::xxh3::xxh3_64;

use super::level::Capture;
use super::member::Member;
use super::target::Target;
use super::wire::{Postgres, WireError};
use crate::core::rows::{Change, Definition, Lsn, Rows};
use crate::core::waited::waits_for;
use crate::rows::shared::SHARED;

/// The name of the slot, of the publication, and of the standby that commits wait for.
pub const NAME: &str = "understudy_mirror";
const INSTALL: &str = include_str!("install_rows.sql");
/// Time in which the log must have all that a copy has.
const LOGGED_IN: Duration = Duration::from_secs(30);

fn cannot(why: &str) -> WireError {
    WireError::Lost(std::io::Error::other(why.to_owned()))
}

/// The value of a setting of the server.
async fn setting(session: &mut Postgres, name: &str) -> Result<String, WireError> {
    let shown = session.query(&format!("SHOW {name}")).await?;
    Ok(shown.value().unwrap_or_default())
}

/// A member that is prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Up to where it has the commits of servers.
    pub has: Vec<(u64, Lsn)>,
    /// The end of its WAL.
    pub began: Lsn,
    /// Up to where the log has its own commits, or they were undone.
    pub settled: (u64, Lsn),
}

/// Has the member remember up to where its commits were undone, which the transaction that did so has said.
const FOLD: &str = "WITH said AS (DELETE FROM understudy_mirror.applied WHERE number = 0 RETURNING token) \
    UPDATE understudy_mirror.state s SET logged = greatest(s.logged, said.token::pg_lsn) FROM said";

/// The statements by which a transaction says that it has undone the member's commits up to there, with these numbers: of the last epoch
/// that it has served in. It is the log's, not somebody else's.
pub fn note_undone(up_to: Lsn, xids: &[u32]) -> String {
    let xids: Vec<String> = xids.iter().map(u32::to_string).collect();
    format!(
        "INSERT INTO understudy_mirror.applied VALUES (0, '{up_to}'); \
         INSERT INTO understudy_mirror.undone SELECT epoch, xid FROM \
           (SELECT pg_catalog.max(epoch) AS epoch FROM understudy_mirror.served) s CROSS JOIN \
           pg_catalog.unnest('{{{}}}'::pg_catalog.int8[]) AS u (xid) WHERE epoch IS NOT NULL ON CONFLICT DO NOTHING",
        xids.join(",")
    )
}

/// The statement by which a member forgets its epochs: another log counts them from the beginning.
pub const FORGET_EPOCHS: &str = "DO $$ BEGIN IF pg_catalog.to_regclass('understudy_mirror.served') IS NOT NULL THEN \
    DELETE FROM understudy_mirror.served; DELETE FROM understudy_mirror.undone; END IF; END $$;";

/// Has event triggers leave out what a manager's session defines.
pub const OWN: &str = "SET understudy_mirror.own = 'on'";

/// The statement by which a member that an operator keeps says that nothing of what it has is to be logged any more, or undone.
pub const SETTLE: &str = "DO $$ BEGIN IF EXISTS (SELECT FROM pg_catalog.pg_attribute \
    WHERE attrelid = pg_catalog.to_regclass('understudy_mirror.state') AND attname = 'logged') THEN \
    UPDATE understudy_mirror.state SET logged = pg_catalog.pg_current_wal_insert_lsn() WHERE logged IS NOT NULL; END IF; END $$;";

/// Has the member remember that it serves in this epoch.
pub async fn note_served(member: &Member, epoch: u32) -> Result<(), WireError> {
    let text = format!(
        "BEGIN; SET LOCAL synchronous_commit = 'local'; \
         INSERT INTO understudy_mirror.served VALUES ({epoch}) ON CONFLICT DO NOTHING; COMMIT"
    );
    member.ask(&text).await.map(drop)
}

/// Makes sure that the commits of a member of the mirror can be logged as rows: nothing if it had a slot, and its commits
/// since then cannot be known any more.
pub async fn prepare(
    session: &mut Postgres,
    managers: &[String],
) -> Result<Option<Prepared>, WireError> {
    if setting(session, "wal_level").await? != "logical" {
        return Err(cannot(
            "its wal_level is not logical: ALTER SYSTEM SET wal_level = 'logical', and restart its server; understudy mirror check says \
             what else there must be",
        ));
    }
    let language = setting(session, "lc_messages").await?;
    if !["C", "POSIX", "en"]
        .iter()
        .any(|one| language.starts_with(one))
        && !language.is_empty()
    {
        return Err(cannot(&format!(
            "its messages are translated (lc_messages = {language}), and definitions are recognized by them: ALTER SYSTEM SET \
             lc_messages = 'C', and reload its configuration"
        )));
    }
    session.query(OWN).await?;
    install(session).await?;
    wait_for_manager(session).await?;
    session.query(FOLD).await?;
    let asked = format!(
        "SELECT logged, copied_system, copied_up_to, \
         (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots \
          WHERE slot_name = '{NAME}' AND database = pg_catalog.current_database() AND wal_status <> 'lost'), \
         (SELECT system_identifier FROM pg_catalog.pg_control_system()) FROM understudy_mirror.state"
    );
    let row = session.query(&asked).await?.row();
    let field = |at: usize| row.get(at).cloned().flatten();
    let logged = field(0).as_deref().and_then(Lsn::parse);
    let has_slot = field(3).as_deref() == Some("1");
    match (logged, has_slot) {
        (Some(_), true) => {}
        (Some(_), false) => return Ok(None),
        (None, _) => {
            if !has_slot {
                let made = format!(
                    "SELECT pg_catalog.pg_create_logical_replication_slot('{NAME}', 'pgoutput')"
                );
                session.query(&made).await?;
            }
            let note = format!(
                "UPDATE understudy_mirror.state SET logged = (SELECT confirmed_flush_lsn \
                 FROM pg_catalog.pg_replication_slots WHERE slot_name = '{NAME}')"
            );
            session.query(&note).await?;
        }
    }
    let began = end_writers(session, managers, || true).await?;
    let number = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok());
    let own =
        number(field(4)).ok_or_else(|| cannot("the member does not say which server it is"))?;
    let mut has = vec![(own, began)];
    if let (Some(system), Some(up_to)) =
        (number(field(1)), field(2).as_deref().and_then(Lsn::parse))
    {
        has.push((system, up_to));
    }
    let settled = (own, logged.unwrap_or_default());
    Ok(Some(Prepared {
        has,
        began,
        settled,
    }))
}

async fn install(session: &mut Postgres) -> Result<(), WireError> {
    let version = format!("{:x}", xxh3_64(INSTALL.as_bytes()));
    let installed = session
        .query(
            "SELECT pg_catalog.obj_description(oid, 'pg_event_trigger') FROM pg_catalog.pg_event_trigger \
             WHERE evtname = 'understudy_mirror_rewrite' \
             AND pg_catalog.to_regprocedure('understudy_mirror.committed(text)') IS NOT NULL",
        )
        .await?;
    if installed.value().as_deref() == Some(version.as_str()) {
        return Ok(());
    }
    let text = format!(
        "BEGIN; {INSTALL} COMMENT ON EVENT TRIGGER understudy_mirror_rewrite IS '{version}'; COMMIT"
    );
    let installed = session.query(&text).await.map(drop);
    if installed.is_err() {
        session.query("ROLLBACK").await?;
    }
    installed
}

/// Has commits of the member wait for its manager.
async fn wait_for_manager(session: &mut Postgres) -> Result<(), WireError> {
    let names = setting(session, "synchronous_standby_names").await?;
    if waits_for(&names, NAME) {
        return Ok(());
    }
    if !names.is_empty() {
        let why = format!(
            "commits of the member wait for \"{names}\" (synchronous_standby_names), and can go on without {NAME}: let it name \
             {NAME} and wait for all that it names, as '2 ({NAME}, other)' does"
        );
        return Err(cannot(&why));
    }
    session
        .query(&format!(
            "ALTER SYSTEM SET synchronous_standby_names = '{NAME}'"
        ))
        .await?;
    session.query("SELECT pg_catalog.pg_reload_conf()").await?;
    session
        .query("SET synchronous_commit = 'local'")
        .await
        .map(drop)
}

/// Fails if commits of the member can go on without its manager.
pub async fn must_wait_for_manager(session: &mut Postgres) -> Result<(), WireError> {
    let names = setting(session, "synchronous_standby_names").await?;
    match waits_for(&names, NAME) {
        true => Ok(()),
        false => Err(cannot(&format!(
            "commits of the member do not wait for the log any more: synchronous_standby_names is \"{names}\""
        ))),
    }
}

/// The end of the WAL, all of which is on the disk.
pub async fn end_of_wal(session: &mut Postgres) -> Result<Lsn, WireError> {
    // Such a commit has everything before it written. One that only has a number would be written later.
    let text = format!(
        "BEGIN; SET LOCAL synchronous_commit = 'local'; SELECT pg_catalog.pg_logical_emit_message(true, '{NAME}', ''); COMMIT"
    );
    session.query(&text).await?;
    let end = session
        .query("SELECT pg_catalog.pg_current_wal_flush_lsn()")
        .await?
        .value();
    let end = end.as_deref().and_then(Lsn::parse);
    end.ok_or_else(|| cannot("the member does not say where its WAL ends"))
}

/// Up to where the log has the member's commits, as was written down there.
pub async fn logged(session: &mut Postgres) -> Result<Lsn, WireError> {
    let asked = session
        .query("SELECT logged FROM understudy_mirror.state")
        .await?;
    Ok(asked
        .value()
        .as_deref()
        .and_then(Lsn::parse)
        .unwrap_or_default())
}

/// Up to where the stream of the member's commits is dealt with.
async fn confirmed(session: &mut Postgres) -> Result<Lsn, WireError> {
    let text = format!(
        "SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = '{NAME}'"
    );
    let asked = session.query(&text).await?;
    Ok(asked
        .value()
        .as_deref()
        .and_then(Lsn::parse)
        .unwrap_or_default())
}

/// Ends the stream of an earlier process or epoch.
pub async fn end_stream(session: &mut Postgres) -> Result<(), WireError> {
    let ended = format!(
        "SELECT pg_catalog.pg_terminate_backend(active_pid, 2000) FROM pg_catalog.pg_replication_slots \
         WHERE slot_name = '{NAME}' AND active"
    );
    session.query(&ended).await.map(drop)
}

/// The server's system identifier, and its timeline.
pub async fn identify(session: &mut Postgres) -> Result<(u64, u32), WireError> {
    let row = session.query("IDENTIFY_SYSTEM").await?.row();
    let field = |at: usize| row.get(at)?.as_ref();
    let known = field(0)
        .and_then(|text| text.parse().ok())
        .zip(field(1).and_then(|text| text.parse().ok()));
    known.ok_or_else(|| cannot("the member does not say which server it is"))
}

/// Begins the stream where the slot says that it was dealt with.
pub async fn begin_stream(session: &mut Postgres) -> Result<(), WireError> {
    let text = format!(
        "START_REPLICATION SLOT {NAME} LOGICAL 0/0 (proto_version '1', publication_names '{NAME}')"
    );
    session.begin_copy(&text).await
}

/// Ends whoever writes to the member, because nobody is let at it any more: commits that wait for the log are ended as well, and
/// sessions of an earlier process that execute the log. `managers` are the roles of managers, whose other sessions go on. For as long as
/// `is_wanted` says.
pub async fn end_writers(
    session: &mut Postgres,
    managers: &[String],
    is_wanted: impl Fn() -> bool,
) -> Result<Lsn, WireError> {
    let managers: Vec<String> = managers.iter().map(|name| quote_literal(name)).collect();
    let ended = format!(
        "SELECT pg_catalog.count(pg_catalog.pg_terminate_backend(pid)) FROM pg_catalog.pg_stat_activity \
         WHERE backend_type = 'client backend' AND datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid() \
         AND (NOT coalesce(usename = ANY (ARRAY[{}]), false) OR application_name NOT LIKE 'understudy mirror%' OR wait_event = 'SyncRep')",
        managers.join(", ")
    );
    while is_wanted() && session.query(&ended).await?.value().as_deref() != Some("0") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    end_of_wal(session).await
}

/// Asks whether rows of a table conflict only if the texts of their keys are the same: nothing else of it is unique, and equal keys look
/// the same.
fn is_by_key(table: &str) -> String {
    format!(
        "SELECT pg_catalog.bool_and(a.atttypid = ANY ('{{16,17,18,19,20,21,23,25,26,1043,1082,1114,1184,2950}}'::pg_catalog.oid[]) \
         AND (a.attcollation = 0 OR (SELECT collisdeterministic FROM pg_catalog.pg_collation WHERE oid = a.attcollation))) \
         AND NOT EXISTS (SELECT FROM pg_catalog.pg_index o WHERE o.indrelid = i.indrelid AND (o.indisunique OR o.indisexclusion) \
           AND NOT o.indisprimary) \
         FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) \
         WHERE i.indisprimary AND i.indrelid = pg_catalog.to_regclass({}) GROUP BY i.indrelid",
        quote_literal(table)
    )
}

/// Tables whose rows conflict by their keys alone, as far as they were asked.
#[derive(Debug, Default)]
pub struct Keys(BTreeMap<String, bool>);

impl Keys {
    /// Notes in tables of rows which of them these are.
    pub async fn note(&mut self, session: &mut Postgres, rows: &mut Rows) -> Result<(), WireError> {
        if rows.defines() {
            self.0.clear();
            return Ok(());
        }
        for relation in rows.relations.iter_mut().filter(|one| !one.is_full) {
            let name = relation.quoted();
            relation.is_by_key = match self.0.get(&name) {
                Some(known) => *known,
                None => {
                    let asked = session.query(&is_by_key(&name)).await?;
                    let is_so = asked.value().as_deref() == Some("t");
                    self.0.insert(name, is_so);
                    is_so
                }
            };
        }
        Ok(())
    }
}

/// How often texts of a transaction were noted.
pub type Turns = BTreeMap<String, usize>;

/// Makes what a definition says the same on another server: `CONCURRENTLY` is left out, and rows are not made twice.
pub fn make_portable(rows: &mut Rows, turns: &mut Turns) {
    rows.changes.retain_mut(|change| match change {
        Change::Define(said) if said.tag == SHARED => true,
        Change::Define(said) => {
            let turn = turns.entry(said.text.clone()).or_default();
            let at = *turn;
            *turn += 1;
            !said.is_nothing() && portable(said, at)
        }
        _ => true,
    });
}

/// False if there is nothing to be defined elsewhere; `turn` is which of the definitions of its text it is.
fn portable(said: &mut Definition, turn: usize) -> bool {
    let written = crate::rows::definition::portable(&said.text, &said.tag, turn);
    if said.tag == "SELECT INTO" {
        "CREATE TABLE AS".clone_into(&mut said.tag);
    }
    match written {
        Ok(Some(text)) => said.text = text,
        Ok(None) => return false,
        Err(why) => {
            tracing::warn!(
                tag = said.tag,
                why,
                "a definition cannot be executed on the other member"
            );
            // Nobody executes this.
            said.tag.push_str(" that cannot be read");
        }
    }
    true
}

/// True if the member had a slot that is not there any more, or has lost WAL that was not decoded (`max_slot_wal_keep_size`). A copy that
/// is being made has none yet.
pub async fn has_lost_slot(member: &Member) -> bool {
    let asked = format!(
        "SELECT logged IS NOT NULL AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots \
         WHERE slot_name = '{NAME}' AND database = pg_catalog.current_database() AND wal_status <> 'lost') FROM understudy_mirror.state"
    );
    let asked = member.ask(&asked).await;
    asked.is_ok_and(|reply| reply.value().as_deref() == Some("t"))
}

/// Says up to where the log has the member's commits, and that everything before is on the disk.
pub fn note_logged(up_to: Lsn) -> String {
    format!(
        ", logged = greatest(logged, {}::pg_lsn)",
        quote_literal(&up_to.to_string())
    )
}

/// The statements that note in a member of which server it is a copy.
pub fn note_copied(system: u64, up_to: Lsn) -> String {
    format!(
        "ALTER TABLE understudy_mirror.state ADD COLUMN IF NOT EXISTS copied_system text, \
         ADD COLUMN IF NOT EXISTS copied_up_to pg_lsn; \
         UPDATE understudy_mirror.state SET copied_system = '{system}', copied_up_to = '{up_to}';"
    )
}

/// A snapshot of which it is known which commits it has.
pub struct Snapshot {
    /// Its name, for other sessions.
    pub name: String,
    /// The server, and up to where its commits are there.
    pub commits: (u64, Lsn),
    _session: Postgres,
}

impl Snapshot {
    /// Takes one at a server, after all transactions that are open there have ended.
    pub async fn export(target: &Target) -> Result<Snapshot, WireError> {
        let mut session = Postgres::connect_to_stream(target, "understudy mirror transfer").await?;
        let (system, _) = identify(&mut session).await?;
        let name = format!(
            "{NAME}_copy_{:x}",
            xxh3_64(format!("{:?}", std::time::SystemTime::now()).as_bytes())
        );
        let made = format!(
            "CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
        );
        let row = session.query(&made).await?.row();
        let field = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
        let up_to = Lsn::parse(&field(1))
            .ok_or_else(|| cannot("the server does not say what a snapshot has"))?;
        Ok(Snapshot {
            name: field(2),
            commits: (system, up_to),
            _session: session,
        })
    }
}

/// Waits until the log has all that a server has committed up to there.
pub async fn has_logged(target: &Target, up_to: Lsn) -> Result<(), WireError> {
    let mut session = Postgres::connect(target, "understudy mirror transfer").await?;
    let deadline = tokio::time::Instant::now() + LOGGED_IN;
    while confirmed(&mut session).await? < up_to {
        if tokio::time::Instant::now() > deadline {
            return Err(cannot("what the copy has is not in the log"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// The end of the member's WAL now, whether or not it is on the disk.
pub async fn end_now(member: &Member) -> Result<Lsn, WireError> {
    let end = member
        .ask("SELECT pg_catalog.pg_current_wal_insert_lsn()")
        .await?
        .value();
    let end = end.as_deref().and_then(Lsn::parse);
    end.ok_or_else(|| cannot("the member does not say where its WAL ends"))
}

/// True if the session with this key has committed, and waits for the log: nobody may cancel that.
pub async fn waits_for_log(member: &Member, key: &[u8]) -> bool {
    let process = key
        .first_chunk()
        .map(|process| i32::from_be_bytes(*process));
    let text = format!(
        "SELECT wait_event = 'SyncRep' FROM pg_catalog.pg_stat_activity WHERE pid = {}",
        process.unwrap_or_default()
    );
    let asked = member.ask(&text).await;
    asked.is_ok_and(|reply| reply.value().as_deref() == Some("t"))
}

/// Waits until the log has all that the member has committed.
pub async fn is_logged(
    member: &Member,
    capture: &Capture,
    patience: Duration,
) -> Result<(), String> {
    let logged = async {
        let mut session = Postgres::connect(&member.target, "understudy mirror").await?;
        let end = end_of_wal(&mut session).await?;
        capture.reaches(end).await;
        Ok::<(), WireError>(())
    };
    match tokio::time::timeout(patience, logged).await {
        Ok(logged) => logged.map_err(|error| error.to_string()),
        Err(_) => Err("the log does not get what the member has committed".to_owned()),
    }
}
