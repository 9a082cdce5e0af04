//! The beginning of a client's connection: encryption, what it wants, and the requests that cancel.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use parking_lot::Mutex;
use protocol::frame::{self, CANCEL, GSS, Refusal, SSL};
use proxy::driver::socket::Socket;
use proxy::driver::unencrypted_data;

use super::super::hub::Hub;
use super::super::peer;
use super::super::rows;
use super::super::wire::{Wire, dial};
use super::login::{Door, Secret, log_in};
use super::{End, Session};
use crate::core::cancelled::Cancelled;
use crate::core::manager::Life;

const LOGIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which a member passes a request to cancel on.
const PASSED_ON_WITHIN: Duration = Duration::from_secs(10);

/// Where a request to cancel goes.
#[derive(Debug, Clone)]
pub enum Goes {
    /// To the member, with this key.
    Here(Vec<u8>),
    /// To the other manager, with this key.
    There(Vec<u8>),
}

/// How a session is cancelled.
pub struct Cancel {
    /// Where its statements are executed now.
    pub goes: Mutex<Goes>,
    /// Requests that may have kept a commit from waiting for the log: what is answered waits for it then.
    pub requests: Mutex<Cancelled>,
}

/// Sessions by the keys that their clients were given.
#[derive(Default)]
pub struct Cancels(Mutex<HashMap<Vec<u8>, Arc<Cancel>>>);

impl Cancels {
    /// A session can be cancelled by this key.
    pub fn enter(&self, key: Vec<u8>) -> Arc<Cancel> {
        let cancel = Arc::new(Cancel {
            goes: Mutex::new(Goes::Here(key.clone())),
            requests: Mutex::default(),
        });
        self.0.lock().insert(key, cancel.clone());
        cancel
    }

    /// Tells the session of a process of the member's that a request to cancel is sent, or has arrived there.
    pub fn tell(&self, pid: u32, tell: impl Fn(&mut Cancelled)) {
        let is_of = |cancel: &Cancel| match &*cancel.goes.lock() {
            Goes::Here(key) => key.starts_with(&pid.to_be_bytes()),
            Goes::There(_) => false,
        };
        for cancel in self.0.lock().values().filter(|cancel| is_of(cancel)) {
            tell(&mut cancel.requests.lock());
        }
    }

    /// It has ended.
    pub fn leave(&self, key: &[u8]) {
        self.0.lock().remove(key);
    }
}

/// A client that was let in, or a visitor.
pub struct Entered {
    pub server: Wire,
    /// Of the server.
    pub life: Life,
    pub hides_warnings: bool,
    pub cancel: Arc<Cancel>,
    pub startup: Vec<u8>,
    /// None of a visitor.
    pub secret: Option<Secret>,
}

/// Receives a client and serves it.
pub async fn receive(hub: Arc<Hub>, socket: Socket, peer: SocketAddr) {
    let mut client = Wire::new(socket);
    let entering = enter(&hub, &mut client, peer);
    match tokio::time::timeout(LOGIN_TIMEOUT, entering).await {
        Ok(Ok(Some((entered, key)))) => {
            hub.counters.clients.fetch_add(1, Ordering::Relaxed);
            Session::new(hub.clone(), client, entered).serve().await;
            hub.cancels.leave(&key);
            hub.counters.clients.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(Err(end)) => client.say_why(end).await,
        _ => {}
    }
}

/// A client that was let in, with the key that it was given; nobody, if it wanted something else than a session.
async fn enter(
    hub: &Hub,
    client: &mut Wire,
    peer: SocketAddr,
) -> Result<Option<(Entered, Vec<u8>)>, End> {
    let mut endpoint = None;
    let startup = loop {
        let startup = packet(client).await?;
        match (startup.as_ref().get_u32(), &hub.protection.clients) {
            (SSL, Some(tls)) if !client.is_encrypted() => {
                if !client.input.is_empty() {
                    return Err(End::Told(Box::new(unencrypted_data())));
                }
                client.output.put_u8(b'S');
                client.flush().await?;
                endpoint = client.encrypt(tls, &peer.to_string()).await?;
            }
            (SSL | GSS, _) => {
                client.output.put_u8(b'N');
                client.flush().await?;
            }
            (CANCEL, _) => {
                cancel(hub, &startup[4..]).await?;
                return Ok(None);
            }
            _ => break startup,
        }
    };
    let requires = hub.config.tls.as_ref().is_some_and(|tls| tls.require);
    if requires && !client.is_encrypted() {
        let text = "this manager accepts encrypted connections only";
        let hint = "Use sslmode=require, or better verify-full.";
        return Err(End::Told(Box::new(
            Refusal::fatal("28000", text).hint(hint),
        )));
    }
    hub.about_to_serve().await;
    let user = check(hub, &startup)?;
    let mut server = reach(hub).await?;
    let door = Door::of_client(client, user, endpoint);
    let admitted = log_in(hub, &mut server, &startup, door).await?;
    client.flush().await?;
    let entered = Entered {
        server,
        life: admitted.life,
        hides_warnings: admitted.hides_warnings,
        cancel: hub.cancels.enter(admitted.key.clone()),
        startup: startup.to_vec(),
        secret: Some(admitted.secret),
    };
    Ok(Some((entered, admitted.key)))
}

/// A connection to the member.
pub async fn reach(hub: &Hub) -> Result<Wire, End> {
    let dialed = dial(&hub.member.target).await.map_err(|error| {
        let refusal =
            Refusal::fatal("57P03", "the member cannot be reached").detail(error.to_string());
        End::Told(Box::new(refusal))
    });
    Ok(Wire::new(dialed?))
}

/// A message without a type, without its length.
async fn packet(client: &mut Wire) -> Result<BytesMut, End> {
    loop {
        match frame::take_packet(&mut client.input) {
            Ok(Some(packet)) => return Ok(packet),
            Ok(None) => client.read().await?,
            Err(_) => return Err(End::Terminated),
        }
    }
}

/// Only the mirrored database can be used, in UTF-8, while this manager is primary. Who the client says it is.
pub fn check(hub: &Hub, startup: &[u8]) -> Result<String, End> {
    let refused = |code, text: String, hint: &str| {
        let refusal = Refusal::fatal(code, text).hint(hint);
        Err(End::Told(Box::new(refusal)))
    };
    let mut rest = startup.get(4..).unwrap_or_default();
    let (mut user, mut database) = (String::new(), None);
    while let Some((name, after)) = frame::name(rest).filter(|(name, _)| !name.is_empty()) {
        let Some((value, after)) = frame::name(after) else {
            break;
        };
        let lower = value.to_ascii_lowercase();
        match name {
            "user" => value.clone_into(&mut user),
            "database" => database = Some(value.to_owned()),
            "replication" if !matches!(lower.as_str(), "false" | "off" | "no" | "0") => {
                return refused(
                    "0A000",
                    "a mirror has no replication connections".to_owned(),
                    "Connect to the member.",
                );
            }
            "client_encoding"
                if !matches!(
                    lower.as_str(),
                    "utf8" | "utf-8" | "unicode" | "'utf-8'" | "auto"
                ) =>
            {
                return refused(
                    "0A000",
                    format!("encoding {value} is not for a mirror"),
                    "Use UTF8.",
                );
            }
            _ => {}
        }
        rest = after;
    }
    let database = database.unwrap_or_else(|| user.clone());
    let mirrored = &hub.member.target.database;
    if database != *mirrored {
        let text = format!("database \"{database}\" is not the one that is mirrored");
        return refused(
            "3D000",
            text,
            &format!("Connect to \"{mirrored}\", or to the member itself."),
        );
    }
    if hub.serving().borrow().is_none() || !hub.is_confirmed() {
        let text = "this manager is not primary".to_owned();
        return refused(
            "57P03",
            text,
            "Name both managers in the connection string: host=a,b port=6433.",
        );
    }
    Ok(user)
}

/// Passes a request to cancel on, but not while a commit is under way: that has happened as soon as the log says so.
pub async fn cancel(hub: &Hub, key: &[u8]) -> io::Result<()> {
    let session = hub.cancels.0.lock().get(key).cloned();
    let Some(session) = session else {
        return Ok(());
    };
    let goes = session.goes.lock().clone();
    let key = match goes {
        Goes::Here(key) => key,
        Goes::There(key) => return peer::cancel(hub, &key).await,
    };
    if !hub.config.single && rows::waits_for_log(&hub.member, &key).await {
        return Ok(());
    }
    session.requests.lock().sent();
    pass_on(hub, &key).await?;
    session.requests.lock().arrived();
    Ok(())
}

/// Sends a request to cancel, and waits until the member has passed it on: it closes the connection then.
///
/// # Errors
/// If it is not known that it has.
async fn pass_on(hub: &Hub, key: &[u8]) -> io::Result<()> {
    let mut server = Wire::new(dial(&hub.member.target).await?);
    server
        .output
        .put_u32(u32::try_from(key.len() + 8).unwrap_or(16));
    server.output.put_u32(CANCEL);
    server.output.extend_from_slice(key);
    server.flush().await?;
    match tokio::time::timeout(PASSED_ON_WITHIN, server.receive()).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        Ok(Err(error)) => Err(error),
        Ok(Ok(_)) => Err(io::ErrorKind::InvalidData.into()),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

impl Wire {
    /// Tells a client why its session ends. It may be gone.
    pub(super) async fn say_why(&mut self, end: End) {
        match end {
            End::Told(refusal) => refusal.put(&mut self.output),
            End::Server(message) => self.output.extend_from_slice(&message),
            End::Lost(error) => {
                tracing::debug!(%error, "a session ended");
                Refusal::fatal("57P01", "the connection to the member is lost")
                    .hint("Connect again; a transaction that was under way has not committed.")
                    .put(&mut self.output);
            }
            End::Terminated | End::Leaves => {}
        }
        let _ = self.flush().await;
    }
}
