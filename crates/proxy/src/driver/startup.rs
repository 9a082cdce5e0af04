//! The beginning of a client's connection: encryption, what it wants, who it is.

mod auth;
mod message;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf, BufMut, BytesMut};
use tokio::sync::oneshot;

use crate::config::{ADMIN_DATABASE, Mode};
use crate::core::session::Session;
use crate::core::settings::Settings;
use crate::core::topology::Place;
use protocol::frame::{self, CANCEL, GSS, Refusal, SSL};
use protocol::scram::Keys;

use super::Proxy;
use super::admin;
use super::catalog::Functions;
use super::client::{Admitted, Client};
use super::login::{Conn, Login, LoginError};
use super::pool::{Held, Pool, refusal_of};
use super::quotas::Share;
use super::relay::relay;
use super::socket::Socket;

pub use message::settings_of;
use message::{Startup, add_host, add_settings, read_startup, replicates};

const PROTOCOL_3: u32 = 3 << 16;
/// Protocol 3.2 lets cancel keys be longer.
const NEWEST_MINOR: u32 = 2;

/// Why a client was not let in.
#[derive(Debug, thiserror::Error)]
enum Turned {
    #[error("socket")]
    Socket(#[from] io::Error),
    #[error("{}", .0.message)]
    Away(Refusal),
    /// It is an operator, and may be one.
    #[error("an operator")]
    Operator,
    /// It replicates.
    #[error("a replication connection")]
    Replication(Box<Conn>, Share),
    /// It wanted something else than a session, and has got it.
    #[error("done")]
    Done,
}

impl From<Refusal> for Turned {
    fn from(refusal: Refusal) -> Turned {
        Turned::Away(refusal)
    }
}

struct Visit {
    proxy: Arc<Proxy>,
    socket: Socket,
    input: BytesMut,
    output: BytesMut,
    peer: Option<IpAddr>,
    /// What the client can bind to: the certificate that it was shown.
    endpoint: Option<Arc<[u8]>>,
}

/// Receives a client and serves it. Until it is let in it can be sent away.
pub async fn receive(
    proxy: Arc<Proxy>,
    socket: Socket,
    peer: Option<IpAddr>,
    sent_away: oneshot::Receiver<()>,
) {
    let timeout = proxy.settings().config.login_timeout;
    let visit = Visit {
        proxy,
        socket,
        input: BytesMut::new(),
        output: BytesMut::new(),
        peer,
        endpoint: None,
    };
    // The beginning needs much more memory than what follows: none of it may stay.
    let entering = Box::pin(async move {
        tokio::select! {
            entered = tokio::time::timeout(timeout, visit.enter()) => entered.ok().flatten(),
            _ = sent_away => None,
        }
    });
    if let Some(client) = entering.await {
        client.run().await;
    }
}

impl Visit {
    async fn enter(mut self) -> Option<Box<Client>> {
        match self.admit().await {
            Ok(admitted) => {
                let client =
                    Client::new(self.proxy, self.socket, self.input, self.output, admitted);
                Some(Box::new(client))
            }
            Err(Turned::Away(refusal)) => {
                tracing::debug!(reason = refusal.message, "a client was turned away");
                refusal.put(&mut self.output);
                // It may be gone.
                let _ = self.socket.drain(&mut self.output).await;
                None
            }
            Err(Turned::Socket(error)) => {
                tracing::debug!(%error, "a client's connection broke before it was let in");
                None
            }
            Err(Turned::Operator) => {
                // An operator stays as long as it likes, without what is left of the beginning.
                tokio::spawn(admin::serve(
                    self.proxy,
                    self.socket,
                    self.input,
                    self.output,
                ));
                None
            }
            Err(Turned::Replication(conn, share)) => {
                let kept = (self.proxy.handover.guest(), share);
                tokio::spawn(relay(
                    self.socket,
                    conn.socket,
                    self.input,
                    self.output,
                    kept,
                ));
                None
            }
            Err(Turned::Done) => None,
        }
    }

    /// A replication connection gets one of its own to the active.
    async fn admit_replication(
        &mut self,
        startup: Startup,
        keys: Option<Keys>,
    ) -> Result<Admitted, Turned> {
        // It has a connection for itself, whatever clients of its user have.
        let login = self.login(&startup, Mode::Session, keys);
        let pool = Arc::new(self.proxy.new_pool(login));
        let (mut conn, share) = pool.take(Place::Active).await?.0.into_parts();
        let server = conn.server.take().ok_or(Turned::Done)?;
        frame::put(&mut self.output, b'R', &[&0u32.to_be_bytes()]);
        for (name, value) in server.reported.iter() {
            frame::put_parameter(&mut self.output, name, value);
        }
        let (id, secret) = conn.key;
        frame::put(
            &mut self.output,
            b'K',
            &[&id.to_be_bytes(), &secret.to_be_bytes()],
        );
        frame::put_ready(&mut self.output, b'I');
        Err(Turned::Replication(conn, share))
    }

    /// An operator's session is none on a server.
    fn admit_operator(&mut self, user: &str) -> Result<Admitted, Turned> {
        let settings = self.proxy.settings();
        if !settings.config.admin_users.iter().any(|one| one == user) {
            let text = format!("\"{user}\" may not operate the proxy");
            return Err(Refusal::fatal("42501", text)
                .hint("The key admin_users of the proxy's configuration lists those who may.")
                .into());
        }
        frame::put(&mut self.output, b'R', &[&0u32.to_be_bytes()]);
        frame::put_parameter(
            &mut self.output,
            "server_version",
            env!("CARGO_PKG_VERSION"),
        );
        frame::put_parameter(&mut self.output, "client_encoding", "UTF8");
        frame::put_ready(&mut self.output, b'I');
        Err(Turned::Operator)
    }

    async fn admit(&mut self) -> Result<Admitted, Turned> {
        let mut startup = self.startup().await?;
        if let Some(host) = self.peer
            && self.proxy.settings().config.application_name_add_host
        {
            add_host(&mut startup.parameters, host);
        }
        let limit = self.proxy.settings().config.max_clients;
        if self.proxy.handles.count() >= limit {
            return Err(too_many(limit).into());
        }
        self.negotiate(&startup);
        let keys = self.authenticate(&startup).await?;
        if startup.database == ADMIN_DATABASE {
            return self.admit_operator(&startup.user);
        }
        if replicates(&startup.parameters).is_some() {
            return self.admit_replication(startup, keys).await;
        }
        let config = self.proxy.settings();
        let (name, user) = (&startup.database, &startup.user);
        add_settings(
            &mut startup.parameters,
            config.config.settings_of(name, user),
        );
        let mode = config.config.mode_of(name, user);
        let login = self.login(&startup, mode, keys);
        let settings = match mode {
            Mode::Session => Settings::default(),
            Mode::Transaction => settings_of(&startup.parameters),
        };
        let database = login.database.clone();
        let pool = self.proxy.pool(login);
        let held = self.take_connection(&pool, &settings).await?;
        let functions = self.proxy.catalogs.of(&database).await;
        self.welcome(&startup, pool, held, functions, settings)
    }

    /// The login of the connections that a client gets.
    fn login(&self, startup: &Startup, mode: Mode, keys: Option<Keys>) -> Login {
        let settings = self.proxy.settings();
        let database = settings.config.dbname(&startup.database);
        Login {
            user: startup.user.clone(),
            name: startup.database.clone(),
            database: database.to_owned(),
            mode,
            parameters: match mode {
                Mode::Session => startup.parameters.clone(),
                Mode::Transaction => Vec::new(),
            },
            keys,
        }
    }

    /// A connection with these settings: the client is greeted with what its server reports, whoever has had it before.
    async fn take_connection(
        &mut self,
        pool: &Arc<Pool>,
        settings: &Settings,
    ) -> Result<Held, Turned> {
        let began = Instant::now();
        let topology = self.proxy.cluster.topology();
        let mut first = pool.try_take(&Place::Active, &topology);
        loop {
            let mut held = match first.take() {
                Some(held) => held,
                None => pool.clone().take(Place::Active).await?.0,
            };
            match held.conn.set_up(settings).await {
                Ok(()) => {
                    let login = pool.login();
                    let own = self.proxy.stats.of(&login.name, &login.user);
                    own.lock().waits.observe(began.elapsed());
                    return Ok(held);
                }
                Err(LoginError::Refused(words)) => {
                    if let Some(server) = held.conn.server.take() {
                        pool.put(held, server);
                    }
                    return Err(refusal_of(&words).into());
                }
                Err(LoginError::Denied(refusal)) => return Err(refusal.into()),
                // It had ended while nobody used it: another one does.
                Err(LoginError::Unavailable(why)) => tracing::debug!(why, "a connection is gone"),
            }
        }
    }

    fn welcome(
        &mut self,
        startup: &Startup,
        pool: Arc<Pool>,
        mut held: Held,
        functions: Functions,
        settings: Settings,
    ) -> Result<Admitted, Turned> {
        let is_session = pool.login().mode == Mode::Session;
        let secret_bytes = if startup.minor >= 2 { 32 } else { 4 };
        let handle = self
            .proxy
            .handles
            .enter(secret_bytes, &startup.user, &startup.database, self.peer)
            .map_err(|error| Refusal::fatal("58000", error.to_string()))?;
        let limit = self.proxy.settings().config.max_clients;
        if self.proxy.handles.count() > limit {
            // Others were let in meanwhile.
            self.proxy.handles.leave(&handle);
            return Err(too_many(limit).into());
        }
        let server = held.conn.server.take().ok_or(Turned::Done)?;
        frame::put(&mut self.output, b'R', &[&0u32.to_be_bytes()]);
        for (name, value) in server.reported.iter() {
            frame::put_parameter(&mut self.output, name, value);
        }
        let id = handle.id.to_be_bytes();
        frame::put(&mut self.output, b'K', &[&id, handle.secret()]);
        frame::put_ready(&mut self.output, b'I');
        let mut session = Session::new(settings, server.reported.clone(), u64::from(handle.id));
        session.begins_with(&settings_of(&pool.login().parameters));
        let held = if is_session {
            held.conn.server = Some(server);
            Some(held)
        } else {
            pool.put(held, server);
            None
        };
        Ok(Admitted {
            handle,
            pool,
            functions,
            held,
            session,
        })
    }

    async fn startup(&mut self) -> Result<Startup, Turned> {
        loop {
            let packet = self.packet().await?;
            let mut body = &packet[..];
            match body.get_u32() {
                // As PostgreSQL, which encrypts connections over networks only.
                SSL if !self.socket.is_encrypted() && !self.socket.is_unix() => {
                    self.encrypt().await?
                }
                SSL | GSS => {
                    self.output.put_u8(b'N');
                    self.socket.drain(&mut self.output).await?;
                }
                CANCEL => {
                    if body.len() >= 8 {
                        let id = body.get_u32();
                        let (handles, dialer) = (&self.proxy.handles, &self.proxy.dialer);
                        if !handles.cancel(dialer, id, body).await {
                            self.proxy.handover.cancel_elsewhere(id, body);
                        }
                    }
                    return Err(Turned::Done);
                }
                version if version >> 16 == PROTOCOL_3 >> 16 => {
                    if self.must_encrypt() {
                        return Err(unencrypted().into());
                    }
                    return Ok(read_startup(version & 0xffff, body)?);
                }
                version => {
                    let text = format!(
                        "unsupported frontend protocol {}.{}: this proxy supports 3.0 to 3.{NEWEST_MINOR}",
                        version >> 16,
                        version & 0xffff
                    );
                    return Err(Refusal::fatal("08P01", text).into());
                }
            }
        }
    }

    fn must_encrypt(&self) -> bool {
        let requires = self
            .proxy
            .config
            .tls
            .as_ref()
            .is_some_and(|tls| tls.require);
        requires && !self.socket.is_encrypted() && !self.socket.is_unix()
    }

    /// A message without a tag, as a connection begins with, without its length.
    async fn packet(&mut self) -> Result<BytesMut, Turned> {
        loop {
            match frame::take_packet(&mut self.input) {
                Ok(Some(packet)) => return Ok(packet),
                Ok(None) => self.read().await?,
                Err(_) => {
                    // Nobody is told, as by PostgreSQL: this may be a client that has left before it began.
                    tracing::debug!("invalid length of startup packet");
                    return Err(Turned::Done);
                }
            }
        }
    }

    async fn read(&mut self) -> Result<(), Turned> {
        match self.socket.read(&mut self.input).await? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            _ => Ok(()),
        }
    }

    async fn encrypt(&mut self) -> Result<(), Turned> {
        let Some(tls) = self.proxy.tls.clone() else {
            self.output.put_u8(b'N');
            return Ok(self.socket.drain(&mut self.output).await?);
        };
        if !self.input.is_empty() {
            return Err(unencrypted_data().into());
        }
        self.output.put_u8(b'S');
        self.socket.drain(&mut self.output).await?;
        let peer = self.peer.map_or_else(String::new, |peer| peer.to_string());
        self.endpoint = self.socket.encrypt(&tls, &peer).await?;
        Ok(())
    }

    /// Tells a client what of its protocol we do not have.
    fn negotiate(&mut self, startup: &Startup) {
        if startup.minor <= NEWEST_MINOR && startup.unknown.is_empty() {
            return;
        }
        let newest = PROTOCOL_3 | startup.minor.min(NEWEST_MINOR);
        let mut body = BytesMut::new();
        body.put_u32(newest);
        body.put_u32(u32::try_from(startup.unknown.len()).unwrap_or(0));
        for name in &startup.unknown {
            body.put_slice(name.as_bytes());
            body.put_u8(0);
        }
        frame::put(&mut self.output, b'v', &[&body]);
    }
}

fn too_many(limit: usize) -> Refusal {
    Refusal::fatal("53300", "sorry, too many clients already")
        .detail(format!("The proxy serves {limit} clients."))
        .hint("Raise max_clients, or use another proxy.")
}

fn unencrypted() -> Refusal {
    Refusal::fatal("28000", "the proxy accepts encrypted connections only")
        .hint("Use sslmode=require, or better verify-full.")
}

/// Somebody in between may have put it there, to be taken for what is said in private.
pub fn unencrypted_data() -> Refusal {
    Refusal::fatal("08P01", "received unencrypted data after SSL request")
}
