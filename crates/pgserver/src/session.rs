//! The agent's own SQL session, over the private Unix socket.
//!
//! Simple queries only: one round trip each, also while the server is in recovery.

use std::path::Path;
use std::time::Duration;

use pgdata::parse_lsn;
use pgdata::xid::{Snapshot, Xid8};
use postgres_protocol::escape::escape_literal;
use tokio::time::Instant;
use tokio_postgres::{Config, NoTls, SimpleQueryMessage, SimpleQueryRow};
use volume::lsn::Lsn;

use super::{PostgresError, Result};

/// How long the server may take to let the agent in. One that takes the connection may not answer on it for ever: who
/// gives it up can try again.
const OPENS_WITHIN: Duration = Duration::from_secs(10);
/// How long it may take to answer what the agent asks for; the longest questions read files far from the storage.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Who waits for a flush of the log at one moment, and what counts beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitWaits {
    /// Transactions of at most a second that have written, and wait for a flush: their own or somebody else's.
    pub waiting: u64,
    /// Clients that did something within the last second.
    pub clients: u64,
    /// [`Session::snapshot_end`]: how many transactions have written, about.
    pub snapshot_end: Xid8,
    /// The `commit_delay` that is in force.
    pub commit_delay: Duration,
}

/// An open session. Dropping it closes the connection.
#[derive(Debug)]
pub struct Session {
    client: tokio_postgres::Client,
}

impl Session {
    /// Connects to the server whose socket is in `run`.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]; [`PostgresError::Timeout`] if it says nothing.
    pub async fn open(run: &Path, port: u16, user: &str) -> Result<Session> {
        Session::open_in("postgres", run, port, user).await
    }

    /// Connects to a database of the server whose socket is in `run`.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub async fn open_in(database: &str, run: &Path, port: u16, user: &str) -> Result<Session> {
        Session::open_within(OPENS_WITHIN, database, run, port, user).await
    }

    async fn open_within(
        within: Duration,
        database: &str,
        run: &Path,
        port: u16,
        user: &str,
    ) -> Result<Session> {
        let mut config = Config::new();
        config
            .host_path(run)
            .port(port)
            .user(user)
            .dbname(database)
            .application_name("understudy");
        let opened = tokio::time::timeout(within, config.connect(NoTls)).await;
        let (client, connection) = opened.map_err(|_| PostgresError::Timeout {
            what: "let the agent in",
            after: within,
            detail: String::new(),
        })??;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a session of the agent ended");
            }
        });
        Ok(Session { client })
    }

    /// True if the connection is gone.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs `sql` and returns the first column of the first row; `None` without a row or for NULL.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]; [`PostgresError::Timeout`] after half a minute without an answer. The session is of
    /// no use then.
    pub async fn value(&self, sql: &str) -> Result<Option<String>> {
        let row = self.row(sql).await?;
        Ok(row.and_then(|row| row.get(0).map(str::to_owned)))
    }

    /// The first row.
    async fn row(&self, sql: &str) -> Result<Option<SimpleQueryRow>> {
        let answered = tokio::time::timeout(ANSWERS_WITHIN, self.client.simple_query(sql)).await;
        let messages = answered.map_err(|_| PostgresError::Timeout {
            what: "answer the agent",
            after: ANSWERS_WITHIN,
            detail: String::new(),
        })??;
        for message in messages {
            if let SimpleQueryMessage::Row(row) = message {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    async fn lsn(&self, sql: &str) -> Result<Option<Lsn>> {
        let text = self.value(sql).await?;
        text.map(|t| parse_lsn(&t).ok_or(PostgresError::Answer(t)))
            .transpose()
    }

    /// True if the server is in recovery (a standby, or not yet promoted).
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn is_in_recovery(&self) -> Result<bool> {
        let answer = self.value("SELECT pg_is_in_recovery()").await?;
        Ok(answer.as_deref() == Some("t"))
    }

    /// The end of the log that a standby has replayed.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn replayed(&self) -> Result<Option<Lsn>> {
        self.lsn("SELECT pg_last_wal_replay_lsn()").await
    }

    /// The end of the log that a standby has received.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn received(&self) -> Result<Option<Lsn>> {
        self.lsn("SELECT pg_last_wal_receive_lsn()").await
    }

    /// The end of the log that an active has flushed.
    ///
    /// # Errors
    /// [`PostgresError::Sql`], in recovery too.
    pub async fn flushed(&self) -> Result<Option<Lsn>> {
        self.lsn("SELECT pg_current_wal_flush_lsn()").await
    }

    /// Above every transaction id that the server has seen to end, in recovery too: the upper end of a snapshot.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn snapshot_end(&self) -> Result<Xid8> {
        let sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())";
        let answer = self.value(sql).await?.unwrap_or_default();
        Xid8::parse(&answer).ok_or(PostgresError::Answer(answer))
    }

    /// Which transactions are under way.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn snapshot(&self) -> Result<Snapshot> {
        let answer = self.value("SELECT pg_current_snapshot()").await?;
        let answer = answer.unwrap_or_default();
        Snapshot::parse(&answer).ok_or(PostgresError::Answer(answer))
    }

    /// The cluster's system identifier.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn system_identifier(&self) -> Result<u64> {
        let sql = "SELECT system_identifier FROM pg_control_system()";
        let answer = self.value(sql).await?.unwrap_or_default();
        // SQL has no unsigned type: the upper half comes out negative.
        let number = answer.parse::<i64>().map(i64::cast_unsigned);
        number.map_err(|_| PostgresError::Answer(answer))
    }

    /// Lets a standby whose replay somebody paused replay again; whether it was paused.
    ///
    /// # Errors
    /// [`PostgresError::Sql`], out of recovery too.
    pub async fn resume_replay(&self) -> Result<bool> {
        let sql = "SELECT pg_wal_replay_resume() WHERE pg_is_wal_replay_paused()";
        Ok(self.value(sql).await?.is_some())
    }

    /// Ends the sessions of clients that are in a transaction, so that their snapshots no longer hold redo
    /// up (N12); returns how many there were. One that is about to end holds nothing any more, and is
    /// left alone: the server would complain that it is gone. Not those of the agent itself, whichever
    /// waits for what: the server goes on with this when who asked for it has given up waiting.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn end_client_sessions(&self) -> Result<u64> {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE backend_type = 'client backend' \
                   AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'virtualxid') \
                   AND NOT (client_addr IS NULL AND application_name = current_setting('application_name'))";
        let answer = self.value(sql).await?.unwrap_or_default();
        answer.parse().map_err(|_| PostgresError::Answer(answer))
    }

    /// When the postmaster started, in microseconds since 1970.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn postmaster_started_us(&self) -> Result<i64> {
        let sql = "SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";
        let answer = self.value(sql).await?.unwrap_or_default();
        answer.parse().map_err(|_| PostgresError::Answer(answer))
    }

    /// How many transactions were committed in all databases since the statistics began; PostgreSQL
    /// counts them up to a second late.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn commits(&self) -> Result<Option<u64>> {
        let sql = "SELECT sum(xact_commit) FROM pg_stat_database";
        let answer = self.value(sql).await?;
        let number = |text: String| text.parse().map_err(|_| PostgresError::Answer(text));
        answer.map(number).transpose()
    }

    /// Who waits for a flush of the log now, without the agent's own sessions.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn commit_waits(&self) -> Result<CommitWaits> {
        // PostgreSQL 17 spells the same events otherwise.
        let sql = "SELECT count(*) FILTER (WHERE backend_xid IS NOT NULL \
                       AND xact_start > now() - interval '1 second' \
                       AND lower(wait_event) IN ('walwrite', 'walsync')), \
                   count(*) FILTER (WHERE greatest(query_start, state_change) > now() - interval '1 second'), \
                   pg_snapshot_xmax(pg_current_snapshot()), \
                   current_setting('commit_delay') \
                   FROM pg_stat_activity WHERE backend_type = 'client backend' \
                   AND NOT (client_addr IS NULL AND application_name = current_setting('application_name'))";
        let row = self.row(sql).await?;
        let column = |at| row.as_ref().and_then(|row| row.get(at)).unwrap_or_default();
        let number = |at| {
            let text = column(at);
            text.parse::<u64>()
                .map_err(|_| PostgresError::Answer(text.to_owned()))
        };
        let end = column(2);
        Ok(CommitWaits {
            waiting: number(0)?,
            clients: number(1)?,
            snapshot_end: Xid8::parse(end).ok_or_else(|| PostgresError::Answer(end.to_owned()))?,
            commit_delay: Duration::from_micros(number(3)?),
        })
    }

    /// How much log redo would have to read if the server died now.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn log_since_checkpoint_bytes(&self) -> Result<u64> {
        let sql =
            "SELECT (pg_current_wal_insert_lsn() - redo_lsn)::bigint FROM pg_control_checkpoint()";
        let answer = self.value(sql).await?.unwrap_or_default();
        answer.parse().map_err(|_| PostgresError::Answer(answer))
    }

    /// How long PostgreSQL takes for a checkpoint that nobody hurries.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn checkpoint_spread(&self) -> Result<Duration> {
        let sql = "SELECT (setting::float8 * 1000 * current_setting('checkpoint_completion_target')::float8)::bigint \
                   FROM pg_settings WHERE name = 'checkpoint_timeout'";
        let answer = self.value(sql).await?.unwrap_or_default();
        let milliseconds = answer.parse();
        milliseconds
            .map(Duration::from_millis)
            .map_err(|_| PostgresError::Answer(answer))
    }

    /// How often a standby was promoted since the last checkpoint: each time the log got a new timeline.
    ///
    /// # Errors
    /// [`PostgresError::Sql`], in recovery too.
    pub async fn promotions_since_checkpoint(&self) -> Result<u32> {
        // A log file's name begins with its timeline, in hexadecimal.
        let sql = "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int - timeline_id \
                   FROM pg_control_checkpoint()";
        let answer = self.value(sql).await?.unwrap_or_default();
        answer.parse().map_err(|_| PostgresError::Answer(answer))
    }

    /// True if a standby may have prepared transactions: it shows none, but counts them among those that have not ended.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn may_have_prepared(&self) -> Result<bool> {
        let sql = "SELECT current_setting('max_prepared_transactions')::int > 0 \
                   AND pg_snapshot_xmin(shown) < pg_snapshot_xmax(shown) FROM pg_current_snapshot() AS shown";
        Ok(self.value(sql).await?.as_deref() == Some("t"))
    }

    /// The server's replication slots that do not go with a session, as a JSON array of objects.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn slots(&self) -> Result<String> {
        let sql = "SELECT coalesce(json_agg(s), '[]') FROM ( \
                   SELECT slot_name, plugin, datoid::int8, database, two_phase, restart_lsn::text, \
                   confirmed_flush_lsn::text, wal_status = 'lost' AS is_lost \
                   FROM pg_replication_slots WHERE NOT temporary) s";
        Ok(self.value(sql).await?.unwrap_or_default())
    }

    /// The same of an active, with the log that each holds.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn held_slots(&self) -> Result<String> {
        let sql = "SELECT coalesce(json_agg(s), '[]') FROM ( \
                   SELECT slot_name, slot_type, plugin, database, active, restart_lsn::text, \
                   confirmed_flush_lsn::text, wal_status, \
                   greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::int8 AS held_bytes \
                   FROM pg_replication_slots ORDER BY 1) s";
        Ok(self.value(sql).await?.unwrap_or_default())
    }

    /// Drops a slot whoever uses it.
    ///
    /// # Errors
    /// [`PostgresError::Sql`], also if its user has not left yet: the next try may succeed.
    pub async fn give_up_slot(&self, name: &str) -> Result<()> {
        let literal = escape_literal(name);
        let end = format!(
            "SELECT pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots WHERE slot_name = {literal} \
             AND active"
        );
        self.value(&end).await?;
        self.drop_slot(name).await
    }

    /// Moves a slot forward, as far as the server has replayed. A slot that decodes must be of the session's database.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn advance_slot(&self, name: &str, to: Lsn) -> Result<()> {
        let name = escape_literal(name);
        let sql = format!("SELECT pg_replication_slot_advance({name}, '{to}'::pg_lsn)");
        self.value(&sql).await.map(drop)
    }

    /// Drops a slot.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn drop_slot(&self, name: &str) -> Result<()> {
        let sql = format!("SELECT pg_drop_replication_slot({})", escape_literal(name));
        self.value(&sql).await.map(drop)
    }

    /// Makes the server write a checkpoint now.
    ///
    /// # Errors
    /// [`PostgresError::Sql`]
    pub async fn checkpoint(&self) -> Result<()> {
        self.client.batch_execute("CHECKPOINT").await?;
        Ok(())
    }

    /// Waits until the server is out of recovery.
    ///
    /// # Errors
    /// [`PostgresError::Timeout`], or [`PostgresError::Sql`] if the server dies.
    pub async fn wait_promoted(&self, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        while self.is_in_recovery().await? {
            if Instant::now() >= deadline {
                return Err(PostgresError::Timeout {
                    what: "end recovery",
                    after: within,
                    detail: String::new(),
                });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that took the connection and never answered was waited for until the takeover had failed.
    // hazard: NODE-1
    #[tokio::test]
    async fn a_connection_without_an_answer_is_given_up() {
        let run = tempfile::tempdir().unwrap();
        let _silent = tokio::net::UnixListener::bind(run.path().join(".s.PGSQL.5432")).unwrap();
        let within = Duration::from_millis(10);
        let opened = Session::open_within(within, "postgres", run.path(), 5432, "postgres").await;
        let error = opened.unwrap_err();
        assert!(matches!(error, PostgresError::Timeout { .. }), "{error}");
    }

    #[test]
    fn log_positions() {
        assert_eq!(parse_lsn("0/16B3748"), Some(Lsn(0x16B_3748)));
        assert_eq!(parse_lsn("2A/0"), Some(Lsn(0x2A << 32)));
        assert_eq!(parse_lsn("2A"), None);
        assert_eq!(parse_lsn("1/123456789"), None);
        assert_eq!(
            parse_lsn(&Lsn(0x1_2345_6789).to_string()),
            Some(Lsn(0x1_2345_6789))
        );
    }
}
