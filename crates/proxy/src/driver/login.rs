//! Logging in to a server as a client's user.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use postgres_protocol::message::frontend;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use volume::lsn::Lsn;

use crate::config::Mode;
use crate::core::session::{Reported, Role, Server};
use crate::core::settings::Settings;
use crate::core::topology::ServerRun;
use crate::core::version::parse_lsn;
use protocol::frame::{self, Refusal, error_fields};
use protocol::scram::{Keys, Prover, Unproved};

use super::cancel::{Requests, Target};
use super::dial::{DialError, Dialer};
use super::socket::Socket;

/// A message of a server before it is ready cannot be longer.
const LOGIN_MESSAGE_BYTES: usize = 1 << 20;
/// How long a server may take to let us in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks a standby how far it has replayed, and when its postmaster started, in microseconds since 1970.
pub const REPLAYED: &str = "SELECT pg_catalog.pg_last_wal_replay_lsn()::text || ' ' || \
    (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint";

/// Asks the active for the latter alone.
const STARTED: &str = "SELECT \
    (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint";

/// Reads the answer of a standby.
pub fn read_replayed(text: &str) -> Option<(Lsn, ServerRun)> {
    let (lsn, started) = text.split_once(' ')?;
    Some((parse_lsn(lsn)?, ServerRun(started.parse().ok()?)))
}

/// A connection to a server.
pub struct Conn {
    /// Its socket.
    pub socket: Socket,
    /// What was read and not taken.
    pub input: BytesMut,
    /// What is still to come of a message that is passed on in pieces.
    pub rest: usize,
    /// What its session is like, while no client has it.
    pub server: Option<Box<Server>>,
    /// Where it goes to.
    pub address: Arc<str>,
    /// With this it can be cancelled.
    pub key: (i32, i32),
    /// Cancel requests for its session.
    pub cancels: Arc<Requests>,
    /// Since when there is a session.
    pub since: Instant,
    /// When it was used last.
    pub used: Instant,
}

impl Conn {
    /// One of another process, made so long ago.
    pub fn arrived(socket: Socket, address: Arc<str>, key: (i32, i32), age: Duration) -> Conn {
        let now = Instant::now();
        Conn {
            socket,
            input: BytesMut::new(),
            rest: 0,
            server: None,
            address,
            key,
            cancels: Arc::default(),
            since: now.checked_sub(age).unwrap_or(now),
            used: now,
        }
    }

    /// Where cancel requests for its session go.
    pub fn target(&self) -> Target {
        Target {
            address: self.address.clone(),
            key: self.key,
            requests: self.cancels.clone(),
        }
    }

    /// True if it is a socket on this machine.
    pub fn is_unix(&self) -> bool {
        matches!(self.socket, Socket::Unix(_))
    }

    /// True if nothing of it waits here.
    pub fn is_quiet(&self) -> bool {
        self.input.is_empty() && self.rest == 0 && !self.socket.has_unsent()
    }

    /// Makes the settings of its session these, while no client has it, and hears what the server reports of them.
    ///
    /// # Errors
    /// The server is gone, or refuses one of them: then it has what it had.
    pub async fn set_up(&mut self, wanted: &Settings) -> Result<(), LoginError> {
        let server = self.server.as_mut();
        let unavailable = || LoginError::Unavailable("the connection is in use".to_owned());
        let server = server.ok_or_else(unavailable)?;
        let Some(text) = server.set_up_text(wanted) else {
            return Ok(());
        };
        let mut output = BytesMut::new();
        frontend::query(&text, &mut output)?;
        self.socket.drain(&mut output).await?;
        server.unnamed = None;
        let mut refusal = None;
        loop {
            let message = receive(&mut self.socket, &mut self.input).await?;
            match message[0] {
                b'S' => note_parameter(&message, &mut server.reported),
                b'E' if error_fields(&message).severity == b"ERROR" => refusal = Some(message),
                b'E' => return Err(refused(message)),
                b'Z' => break,
                _ => {}
            }
        }
        match refusal {
            Some(words) => Err(LoginError::Refused(words)),
            None => {
                server.is_set_up(wanted);
                Ok(())
            }
        }
    }

    /// Ends a session that nobody uses, as a client does that leaves.
    pub fn close(mut self) {
        let mut farewell = BytesMut::new();
        frontend::terminate(&mut farewell);
        self.socket.drain_some(&mut farewell);
    }
}

impl std::fmt::Debug for Conn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Conn").field(&self.address).finish()
    }
}

/// Who logs in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    pub user: String,
    /// The database, by the name that clients ask for.
    pub name: String,
    /// The same, by its name in PostgreSQL.
    pub database: String,
    /// Unit for which clients have its connections.
    pub mode: Mode,
    /// What else the startup message says.
    pub parameters: Vec<(String, String)>,
    /// What proves the password, if the user has one.
    pub keys: Option<Keys>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The server cannot be reached, or is not what it was taken for, or is not ready: try again.
    #[error("{0}")]
    Unavailable(String),
    /// It refuses this user, database or parameter, in its own words.
    #[error("refused by the server")]
    Refused(BytesMut),
    /// The proxy cannot log in as this user.
    #[error("{}", .0.message)]
    Denied(Refusal),
}

impl From<io::Error> for LoginError {
    fn from(error: io::Error) -> LoginError {
        LoginError::Unavailable(error.to_string())
    }
}

impl From<DialError> for LoginError {
    fn from(error: DialError) -> LoginError {
        match error {
            DialError::Socket(error) => error.into(),
            error => {
                tracing::warn!(%error, "a server is not trusted");
                LoginError::Denied(untrusted(&error))
            }
        }
    }
}

/// Connects and logs in. The server must be what `role` says: the active accepts writes, a standby does not.
pub async fn log_in(
    dialer: &Dialer,
    address: &str,
    login: &Login,
    role: Role,
) -> Result<Conn, LoginError> {
    let attempt = async {
        let is_standby = matches!(role, Role::Standby(_));
        let socket = match is_standby {
            true => dialer.to_standbys().dial(address).await?,
            false => dialer.dial(address).await?,
        };
        let entry = Entry {
            socket,
            input: BytesMut::new(),
            output: BytesMut::new(),
        };
        entry.enter(login, is_standby).await
    };
    let entered = tokio::time::timeout(LOGIN_TIMEOUT, attempt)
        .await
        .map_err(|_| LoginError::Unavailable("the server did not answer in time".to_owned()))??;
    let Entered {
        socket,
        reported,
        replayed,
        run,
        key,
    } = entered;
    let is_standby = reported.get("in_hot_standby") == Some("on");
    if is_standby != matches!(role, Role::Standby(_)) {
        let what = if is_standby {
            "a standby"
        } else {
            "no standby"
        };
        return Err(LoginError::Unavailable(format!("{address} is {what}")));
    }
    let mut server = Server::new(role, reported);
    server.replayed = replayed;
    server.run = run;
    server.address = Some(address.into());
    server.process = Some(key.0);
    let now = Instant::now();
    Ok(Conn {
        socket,
        input: BytesMut::new(),
        rest: 0,
        server: Some(Box::new(server)),
        address: address.into(),
        key,
        cancels: Arc::default(),
        since: now,
        used: now,
    })
}

/// A session on a server.
struct Entered {
    socket: Socket,
    reported: Reported,
    /// A standby: how far it has replayed.
    replayed: Lsn,
    /// Which run of the server it is.
    run: Option<ServerRun>,
    key: (i32, i32),
}

struct Entry {
    socket: Socket,
    input: BytesMut,
    output: BytesMut,
}

impl Entry {
    async fn enter(
        mut self: Entry,
        login: &Login,
        is_standby: bool,
    ) -> Result<Entered, LoginError> {
        let own = [("user", login.user.as_str()), ("database", &login.database)];
        let others = login
            .parameters
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        frontend::startup_message(own.into_iter().chain(others), &mut self.output)?;
        self.send().await?;
        self.authenticate(login).await?;
        let mut reported = Reported::default();
        let mut key = (0, 0);
        loop {
            let message = self.receive().await?;
            let body = frame::body(&message);
            match message[0] {
                b'S' => note_parameter(&message, &mut reported),
                b'K' if body.len() >= 8 => {
                    let mut body = body;
                    key = (body.get_i32(), body.get_i32());
                }
                b'Z' => break,
                _ => {}
            }
        }
        // What was heard of the server may have been of another run of it.
        let (replayed, run) = match is_standby {
            true => {
                let answer = self.ask(REPLAYED).await?;
                answer.as_deref().and_then(read_replayed).unzip()
            }
            false => {
                let answer = self.ask(STARTED).await?;
                let started = answer.and_then(|text| text.parse().ok());
                (None, started.map(ServerRun))
            }
        };
        Ok(Entered {
            socket: self.socket,
            reported,
            replayed: replayed.unwrap_or(Lsn::ZERO),
            run,
            key,
        })
    }

    /// What the server answers to a question of the proxy's.
    async fn ask(&mut self, question: &str) -> Result<Option<String>, LoginError> {
        frontend::query(question, &mut self.output)?;
        self.send().await?;
        let mut answer = None;
        loop {
            let message = self.receive().await?;
            match message[0] {
                b'D' => {
                    let text = frame::first_column(&message);
                    let text = text.and_then(|text| std::str::from_utf8(text).ok());
                    answer = text.map(str::to_owned);
                }
                b'Z' => return Ok(answer),
                _ => {}
            }
        }
    }

    async fn authenticate(&mut self, login: &Login) -> Result<(), LoginError> {
        let mut prover = Prover::new(login.keys.clone());
        loop {
            let message = self.receive().await?;
            if message[0] != b'R' {
                continue;
            }
            match prover.answer(frame::body(&message), &mut self.output) {
                Ok(true) => return Ok(()),
                Ok(false) => self.send().await?,
                Err(Unproved::Method(method)) => {
                    return Err(LoginError::Denied(unsupported(&login.user, method)));
                }
                Err(Unproved::Random(error)) => {
                    return Err(LoginError::Unavailable(error.to_string()));
                }
                Err(Unproved::NoKeys | Unproved::Scram(_)) => {
                    return Err(LoginError::Denied(no_password(&login.user)));
                }
            }
        }
    }

    async fn send(&mut self) -> Result<(), LoginError> {
        Ok(self.socket.drain(&mut self.output).await?)
    }

    async fn receive(&mut self) -> Result<BytesMut, LoginError> {
        match receive(&mut self.socket, &mut self.input).await? {
            message if message[0] == b'E' => Err(refused(message)),
            message => Ok(message),
        }
    }
}

/// The next message of a server.
async fn receive(socket: &mut Socket, input: &mut BytesMut) -> Result<BytesMut, LoginError> {
    loop {
        let taken = frame::take(input, LOGIN_MESSAGE_BYTES)
            .map_err(|error| LoginError::Unavailable(error.to_string()))?;
        match taken {
            Some(message) => return Ok(message),
            None => {
                if socket.read(input).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
            }
        }
    }
}

/// `ParameterStatus`.
fn note_parameter(message: &[u8], to: &mut Reported) {
    let pair = frame::name(frame::body(message))
        .and_then(|(name, rest)| Some((name, frame::name(rest)?.0)));
    if let Some((name, value)) = pair {
        to.put(name, value);
    }
}

/// A server that starts, stops, dies or is full may be asked again; what else it says is for the client.
fn refused(message: BytesMut) -> LoginError {
    let fields = error_fields(&message);
    let is_dying = fields.severity == b"PANIC"
        || [&b"58"[..], b"XX", b"57P"]
            .iter()
            .any(|class| fields.code.starts_with(class))
        || matches!(fields.code, b"53100" | b"53200");
    // That the database is dropped is no passing trouble.
    if is_dying && fields.code != b"57P04" || fields.code == b"53300" {
        let text = String::from_utf8_lossy(fields.message).into_owned();
        return LoginError::Unavailable(text);
    }
    LoginError::Refused(message)
}

/// No client is told anything by such a server, but its transaction may go on elsewhere.
fn untrusted(error: &DialError) -> Refusal {
    Refusal::error("08001", "the proxy does not trust the server")
        .detail(format!("{error}."))
        .hint("See [proxy.server_tls]: root must hold the authority of the server's certificate, and with verify-full the certificate must be for the address that the proxy connects to.")
}

fn no_password(user: &str) -> Refusal {
    let text = format!("the proxy cannot log in to the server as \"{user}\"");
    Refusal::fatal("28P01", text)
        .detail("The server asks for a password, and the proxy has no proof of it.")
        .hint("Use auth = \"scram\" in the proxy's configuration; if the password was changed, connect again.")
}

fn unsupported(user: &str, method: i32) -> Refusal {
    let text = format!("the proxy cannot log in to the server as \"{user}\"");
    Refusal::fatal("28000", text)
        .detail(format!(
            "The server asks for authentication method {method}."
        ))
        .hint("Let pg_hba.conf ask the proxy's address for scram-sha-256.")
}
