//! A connection to PostgreSQL, or a client's: messages as they are.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use dax::tls::PostgresServer;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};
use postgres_protocol::message::frontend;
use protocol::frame;
use proxy::driver::dial::DialError;
use proxy::driver::socket::Socket;

use super::statements::Statements;
use super::target::Target;

pub use super::answer::{Reply, ServerError, WireError, status, tag};

/// A longer message ends the connection.
const MESSAGE_BYTES: usize = 256 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A socket, with what was read from it and what is to be written.
pub struct Wire {
    socket: Socket,
    pub input: BytesMut,
    pub output: BytesMut,
    /// What the other side, if it is a member, has prepared for the manager.
    pub statements: Statements,
    /// So many answers come next that nobody wants.
    skipped: usize,
}

impl Wire {
    pub fn new(socket: Socket) -> Wire {
        Wire {
            socket,
            input: BytesMut::new(),
            output: BytesMut::new(),
            statements: Statements::default(),
            skipped: 0,
        }
    }

    /// What is put next has so many answers, and nobody wants them; unless it fails: then what follows has failed with it.
    pub fn skip(&mut self, answers: usize) {
        self.skipped += answers;
    }

    fn is_skipped(&mut self, kind: u8) -> bool {
        match kind {
            _ if self.skipped == 0 => false,
            // Nobody has asked for these.
            b'N' | b'A' | b'S' => false,
            b'E' => {
                self.skipped = 0;
                false
            }
            _ => {
                self.skipped -= 1;
                true
            }
        }
    }

    /// Encrypts a client's connection, after it was told that this happens: what it can bind its proof to.
    pub async fn encrypt(
        &mut self,
        tls: &PostgresServer,
        peer: &str,
    ) -> io::Result<Option<Arc<[u8]>>> {
        self.socket.encrypt(tls, peer).await
    }

    /// True if there is no connection any more.
    pub fn is_gone(&self) -> bool {
        matches!(self.socket, Socket::Gone)
    }

    /// True if what is said cannot be read on the way.
    pub fn is_encrypted(&self) -> bool {
        self.socket.is_encrypted()
    }

    /// The next message, if all of it was read.
    pub fn take(&mut self) -> io::Result<Option<BytesMut>> {
        frame::take(&mut self.input, MESSAGE_BYTES)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// The next message.
    pub async fn receive(&mut self) -> io::Result<BytesMut> {
        loop {
            match self.take()? {
                Some(message) if self.is_skipped(message[0]) => {}
                Some(message) => return Ok(message),
                None => self.read().await?,
            }
        }
    }

    /// A message was not taken.
    pub fn put_back(&mut self, message: &[u8]) {
        let rest = std::mem::replace(&mut self.input, BytesMut::from(message));
        self.input.unsplit(rest);
    }

    /// Reads more.
    pub async fn read(&mut self) -> io::Result<()> {
        match self.socket.read(&mut self.input).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Puts the end of a batch.
    pub fn sync(&mut self) {
        frontend::sync(&mut self.output);
    }

    /// Writes everything.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.socket.drain(&mut self.output).await
    }
}

/// Connects to where a member was found to accept writes.
pub async fn dial(target: &Target) -> io::Result<Socket> {
    let (host, port) = target.place();
    dial_address(target, format!("{host}:{port}")).await
}

async fn dial_address(target: &Target, address: String) -> io::Result<Socket> {
    let dialed = tokio::time::timeout(CONNECT_TIMEOUT, target.dialer.dial(&address)).await;
    match dialed.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))? {
        Err(DialError::Socket(error)) => Err(error),
        dialed => dialed.map_err(io::Error::other),
    }
}

/// What a session of the manager's own needs, whatever the server's files or its role say: what a client's session was allowed to
/// do, it must be able to do again. Those that the server does not have are left out.
const OWN_SETTINGS: &str = "SELECT pg_catalog.set_config(s.name, s.value, false) FROM (VALUES \
    ('jit', 'off'), ('statement_timeout', '0'), ('lock_timeout', '0'), ('transaction_timeout', '0'), ('idle_session_timeout', '0'), \
    ('idle_in_transaction_session_timeout', '0'), ('default_transaction_isolation', 'read committed'), \
    ('default_transaction_read_only', 'off'), ('default_transaction_deferrable', 'off'), \
    ('session_replication_role', 'origin'), ('standard_conforming_strings', 'on'), \
    ('synchronous_commit', CASE WHEN pg_catalog.current_setting('synchronous_standby_names') ~ 'understudy_mirror' THEN 'local' \
      ELSE pg_catalog.current_setting('synchronous_commit') END)) s (name, value) \
    WHERE pg_catalog.current_setting(s.name, true) IS NOT NULL AND \
    (s.name <> 'session_replication_role' OR pg_catalog.current_setting(s.name, true) <> s.value \
      AND session_user !~ '^understudy_as_[0-9]+_rows$')";

/// The code of an error: the server has no database of this name.
pub const NO_SUCH_DATABASE: &str = "3D000";

/// A session of the manager's own on a member.
pub struct Postgres {
    pub wire: Wire,
}

/// True if a server lets the manager in as somebody of whom it has never heard, without asking for anything: whoever the manager lets in
/// need prove nothing there.
///
/// Every server of a cluster that answers is asked: each may be the next that accepts writes.
pub async fn asks_nobody(target: &Target) -> Result<bool, WireError> {
    let (mut asks, mut failed) = (false, None);
    for candidate in target.candidates() {
        match asks_nobody_at(target, candidate).await {
            Ok(true) => return Ok(true),
            Ok(false) => asks = true,
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) if !asks => Err(error),
        _ => Ok(false),
    }
}

async fn asks_nobody_at(target: &Target, candidate: usize) -> Result<bool, WireError> {
    let asked = async {
        let mut wire = Wire::new(dial_address(target, target.address(candidate)).await?);
        let nobody = protocol::scram::nonce();
        let nobody = nobody.map_err(|error| io::Error::other(error.to_string()))?;
        let parameters = [
            ("user", nobody.as_str()),
            ("database", target.database.as_str()),
        ];
        frontend::startup_message(parameters, &mut wire.output)?;
        wire.flush().await?;
        // There is no such role: that is found out after it was let in.
        let message = wire.receive().await?;
        if message[0] != b'E' {
            return Ok(frame::body(&message).starts_with(&[0; 4]));
        }
        let said = ServerError::read(message);
        match said.code.starts_with("28") {
            true => Ok(false),
            // It does not get that far now.
            false => Err(WireError::Server(Box::new(said))),
        }
    };
    let asked = tokio::time::timeout(CONNECT_TIMEOUT, asked).await;
    asked.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

impl Postgres {
    /// Logs in as the target says.
    pub async fn connect(target: &Target, application: &str) -> Result<Postgres, WireError> {
        Postgres::connect_with(target, application, &[]).await
    }

    /// The same for a stream of changes, in which every value is written in one way.
    pub async fn connect_to_stream(
        target: &Target,
        application: &str,
    ) -> Result<Postgres, WireError> {
        let options = "-c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c extra_float_digits=1 -c bytea_output=hex \
            -c lc_monetary=C -c wal_sender_timeout=60s";
        let more = [("replication", "database"), ("options", options)];
        Postgres::connect_with(target, application, &more).await
    }

    async fn connect_with(
        target: &Target,
        application: &str,
        more: &[(&str, &str)],
    ) -> Result<Postgres, WireError> {
        match target.known() {
            // Another server of a cluster is looked for by whoever attends to the member: sessions of one life are at one server.
            Some(known) => Postgres::connect_to(target, known, application, more).await,
            None => Postgres::find_with(target, application, more).await,
        }
    }

    /// Logs in at the server that accepts writes, wherever it was before.
    pub async fn find(target: &Target, application: &str) -> Result<Postgres, WireError> {
        Postgres::find_with(target, application, &[]).await
    }

    async fn find_with(
        target: &Target,
        application: &str,
        more: &[(&str, &str)],
    ) -> Result<Postgres, WireError> {
        let mut failed = None;
        for candidate in target.candidates() {
            match Postgres::connect_to(target, candidate, application, more).await {
                Ok(postgres) => {
                    target.found_writable(candidate);
                    return Ok(postgres);
                }
                // That of the server which accepted writes last says most.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| io::Error::from(io::ErrorKind::NotFound).into()))
    }

    /// Logs in at one of its servers.
    async fn connect_to(
        target: &Target,
        candidate: usize,
        application: &str,
        more: &[(&str, &str)],
    ) -> Result<Postgres, WireError> {
        let mut postgres = Postgres {
            wire: Wire::new(dial_address(target, target.address(candidate)).await?),
        };
        let parameters = [
            ("user", target.user.as_str()),
            ("database", target.database.as_str()),
            ("application_name", application),
            ("client_encoding", "UTF8"),
            // Whoever owns the database may say where its sessions look for functions and operators, and define some there.
            ("search_path", "pg_catalog, pg_temp"),
        ];
        let parameters = parameters.into_iter().chain(more.iter().copied());
        frontend::startup_message(parameters, &mut postgres.wire.output)?;
        postgres.wire.flush().await?;
        let entering = postgres.enter(target);
        let entered = tokio::time::timeout(CONNECT_TIMEOUT, entering).await;
        match entered.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))? {
            // A standby that is behind lacks it, and the cluster does not: whether this is one shows a database that is always there.
            Err(WireError::Server(said)) if said.code == NO_SUCH_DATABASE => {
                let elsewhere = target.elsewhere();
                if target.is_cluster() && elsewhere.database != target.database {
                    let other = Postgres::connect_to(&elsewhere, candidate, application, &[]);
                    Box::pin(other).await?;
                }
                return Err(WireError::Server(said));
            }
            entered => entered?,
        }
        let set = tokio::time::timeout(CONNECT_TIMEOUT, async {
            if target.is_cluster() {
                let asked = "SELECT pg_catalog.pg_is_in_recovery()";
                if postgres.query(asked).await?.value().as_deref() == Some("t") {
                    let what = "the server is a standby of its cluster";
                    return Err(io::Error::other(what).into());
                }
            }
            postgres.query(OWN_SETTINGS).await
        });
        set.await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(postgres)
    }

    /// Forgets whatever was done in the session, and what clients' code may have left there.
    pub async fn discard(&mut self) -> Result<(), WireError> {
        self.query("DISCARD ALL").await?;
        self.wire.statements = Statements::default();
        self.query(OWN_SETTINGS).await.map(drop)
    }

    async fn enter(&mut self, target: &Target) -> Result<(), WireError> {
        let password = target.password.as_deref().unwrap_or_default();
        let mut scram = None;
        loop {
            let message = self.wire.receive().await?;
            match message[0] {
                b'E' => return Err(WireError::Server(Box::new(ServerError::read(message)))),
                b'Z' => return Ok(()),
                b'R' => {}
                _ => continue,
            }
            let mut body = frame::body(&message);
            if body.len() < 4 {
                continue;
            }
            match body.get_i32() {
                3 => frontend::password_message(password.as_bytes(), &mut self.wire.output)?,
                5 => {
                    let salt = body
                        .get(..4)
                        .and_then(|salt| salt.try_into().ok())
                        .unwrap_or_default();
                    let hash = md5_hash(target.user.as_bytes(), password.as_bytes(), salt);
                    frontend::password_message(hash.as_bytes(), &mut self.wire.output)?;
                }
                10 => {
                    let begun =
                        ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
                    frontend::sasl_initial_response(
                        "SCRAM-SHA-256",
                        begun.message(),
                        &mut self.wire.output,
                    )?;
                    scram = Some(begun);
                }
                11 => {
                    if let Some(scram) = &mut scram {
                        scram.update(body)?;
                        frontend::sasl_response(scram.message(), &mut self.wire.output)?;
                    }
                }
                12 => {
                    if let Some(scram) = &mut scram {
                        scram.finish(body)?;
                    }
                }
                _ => {}
            }
            self.wire.flush().await?;
        }
    }

    /// Everything up to the next `ReadyForQuery`.
    pub async fn reply(&mut self) -> Result<Reply, WireError> {
        reply(&mut self.wire).await
    }

    /// Begins to copy in both directions.
    pub async fn begin_copy(&mut self, text: &str) -> Result<(), WireError> {
        frontend::query(text, &mut self.wire.output)?;
        self.wire.flush().await?;
        loop {
            let message = self.wire.receive().await?;
            match message[0] {
                b'W' => return Ok(()),
                b'E' => return Err(WireError::Server(Box::new(ServerError::read(message)))),
                _ => {}
            }
        }
    }

    /// Executes a text by the simple protocol.
    pub async fn query(&mut self, text: &str) -> Result<Reply, WireError> {
        frontend::query(text, &mut self.wire.output)?;
        self.wire.flush().await?;
        self.reply().await?.checked()
    }
}

/// Everything that a server says up to the next `ReadyForQuery`.
pub async fn reply(wire: &mut Wire) -> Result<Reply, WireError> {
    let mut reply = Reply::default();
    loop {
        let message = wire.receive().await?;
        match message[0] {
            b'Z' => {
                reply.status = status(&message);
                return Ok(reply);
            }
            b'E' => {
                let said = ServerError::read(message);
                if reply.error.is_none() {
                    reply.error = Some(Box::new(said));
                }
            }
            b'S' => reply.reported.push(message),
            b'N' | b'A' => {}
            _ => reply.messages.push(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn kinds(wire: &mut Wire, count: usize) -> String {
        let mut kinds = String::new();
        for _ in 0..count {
            let message = wire.receive().await.expect("it is there");
            kinds.push(char::from(message[0]));
        }
        kinds
    }

    /// What follows a failure must be told, whatever was to be left out.
    #[tokio::test]
    async fn answers_that_nobody_wants_are_left_out_unless_they_fail() {
        let mut wire = Wire::new(Socket::Gone);
        for kind in [b'2', b'N', b'C', b'2', b'C', b'Z', b'2', b'E', b'Z'] {
            frame::put(&mut wire.input, kind, &[]);
        }
        wire.skip(2);
        assert_eq!(kinds(&mut wire, 4).await, "N2CZ");
        wire.skip(2);
        assert_eq!(kinds(&mut wire, 2).await, "EZ");
    }
}
