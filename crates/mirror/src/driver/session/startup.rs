//! The beginning of a client's connection. The member itself finds out who the client is: what both say is passed on.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use parking_lot::Mutex;
use proxy::core::frame::{self, CANCEL, GSS, Refusal, SSL};
use proxy::driver::socket::Socket;

use super::super::hub::Hub;
use super::super::wire::{Wire, dial};
use super::{End, Session};

const LOGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Sessions by the keys that cancel them, with whether they may be cancelled now.
#[derive(Default)]
pub struct Cancels(Mutex<HashMap<Vec<u8>, Arc<AtomicBool>>>);

/// Receives a client and serves it.
pub async fn receive(hub: Arc<Hub>, socket: Socket, cancels: Arc<Cancels>) {
    let mut client = Wire::new(socket);
    let entering = enter(&hub, &mut client, &cancels);
    match tokio::time::timeout(LOGIN_TIMEOUT, entering).await {
        Ok(Ok(Some(entered))) => {
            hub.counters.clients.fetch_add(1, Ordering::Relaxed);
            let session = Session::new(hub.clone(), client, entered.server, entered.is_committing);
            session.serve().await;
            cancels.0.lock().remove(&entered.key);
            hub.counters.clients.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(Err(End::Told(refusal))) => {
            refusal.put(&mut client.output);
            // It may be gone.
            let _ = client.flush().await;
        }
        _ => {}
    }
}

struct Entered {
    server: Wire,
    key: Vec<u8>,
    is_committing: Arc<AtomicBool>,
}

/// A client that was let in; nobody, if it wanted something else than a session.
async fn enter(hub: &Hub, client: &mut Wire, cancels: &Cancels) -> Result<Option<Entered>, End> {
    let startup = loop {
        let startup = packet(client).await?;
        match startup.as_ref().get_u32() {
            SSL | GSS => {
                client.output.put_u8(b'N');
                client.flush().await?;
            }
            CANCEL => {
                cancel(hub, &startup[4..], cancels).await?;
                return Ok(None);
            }
            _ => break startup,
        }
    };
    check(hub, &startup)?;
    let mut server = Wire::new(dial(&hub.member.target).await.map_err(|error| {
        let refusal =
            Refusal::fatal("57P03", "the member cannot be reached").detail(error.to_string());
        End::Told(Box::new(refusal))
    })?);
    let len = u32::try_from(startup.len() + 4).unwrap_or(u32::MAX);
    server.output.put_u32(len);
    server.output.extend_from_slice(&startup);
    server.flush().await?;
    let Some(key) = log_in(client, &mut server).await? else {
        return Ok(None);
    };
    let is_committing = Arc::new(AtomicBool::new(false));
    cancels.0.lock().insert(key.clone(), is_committing.clone());
    Ok(Some(Entered {
        server,
        key,
        is_committing,
    }))
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

/// Only the mirrored database can be used, in UTF-8, while this manager is primary.
fn check(hub: &Hub, startup: &[u8]) -> Result<(), End> {
    let refused = |code, text: String, hint: &str| {
        let refusal = Refusal::fatal(code, text).hint(hint);
        Err(End::Told(Box::new(refusal)))
    };
    let mut rest = &startup[4..];
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
    let database = database.unwrap_or(user);
    let mirrored = &hub.member.target.database;
    if database != *mirrored {
        let text = format!("database \"{database}\" is not the one that is mirrored");
        return refused(
            "3D000",
            text,
            &format!("Connect to \"{mirrored}\", or to the member itself."),
        );
    }
    let now_ms = hub.now_ms();
    let serves = hub.serving().borrow().is_some() && hub.look(|manager| manager.reads(now_ms));
    if !serves {
        let text = "this manager is not primary".to_owned();
        return refused(
            "57P03",
            text,
            "Name both managers in the connection string: host=a,b port=6433.",
        );
    }
    Ok(())
}

/// Passes on what the member asks of the client, until it is let in: the key that cancels its session.
async fn log_in(client: &mut Wire, server: &mut Wire) -> Result<Option<Vec<u8>>, End> {
    let mut key = Vec::new();
    loop {
        let message = server.receive().await?;
        client.output.extend_from_slice(&message);
        match message[0] {
            b'Z' => {
                client.flush().await?;
                return Ok(Some(key));
            }
            b'E' => {
                client.flush().await?;
                return Ok(None);
            }
            b'K' => key = frame::body(&message).to_vec(),
            b'R' => {
                let method = frame::body(&message)
                    .get(..4)
                    .map_or(0, |mut method| method.get_u32());
                client.flush().await?;
                if matches!(method, 3 | 5 | 10 | 11) {
                    let answer = client.receive().await?;
                    server.output.extend_from_slice(&answer);
                    server.flush().await?;
                }
            }
            _ => {}
        }
    }
}

/// Passes a request to cancel on, but not while a commit is under way: that has happened as soon as the log says so.
async fn cancel(hub: &Hub, key: &[u8], cancels: &Cancels) -> io::Result<()> {
    let session = cancels.0.lock().get(key).cloned();
    if session.is_none_or(|session| session.load(Ordering::Acquire)) {
        return Ok(());
    }
    let mut server = Wire::new(dial(&hub.member.target).await?);
    server
        .output
        .put_u32(u32::try_from(key.len() + 8).unwrap_or(16));
    server.output.put_u32(CANCEL);
    server.output.extend_from_slice(key);
    server.flush().await
}
