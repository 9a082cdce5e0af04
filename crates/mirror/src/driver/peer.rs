//! The connection between the two managers, and what operators ask a manager.
//!
//! ```text
//!   the first manager ── Link ──▶ the other one      then messages both ways, and a sign of life now and then
//!   a command         ── Ask ───▶ a manager          ◀── Told, and the end
//!   a client's manager ─ Visit ─▶ the primary        then PostgreSQL's protocol, see `session::visit`
//!                      ─ Cancel ▶
//! ```

use std::io;
use std::sync::Arc;
use std::time::Duration;

use dax::tls::Tls;
use proxy::driver::socket::Socket;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::command;
use super::hub::Hub;
use super::session;
use crate::core::manager::{Effect, Manager, Message};
use crate::core::moving::Belongings;

const PACKET_BYTES: usize = 512 << 20;
const CONNECT_AGAIN: Duration = Duration::from_millis(200);
const ALIVE_EVERY: Duration = Duration::from_millis(300);
/// What is said at once is sent at once.
const MESSAGES_AT_ONCE: usize = 64;
const READ_BYTES: usize = 64 << 10;
/// So much of a packet that is long is a sign of life.
const PART_BYTES: usize = 256 << 10;
/// So much is put together before it is written.
const WRITTEN_BYTES: usize = 1 << 20;
/// How often it is looked whether a manager that was lost has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What an operator asks a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// What it is, and how far.
    Status,
    /// Hand over to the standby, in whichever epoch that is.
    Switchover,
    /// Compare the members.
    Verify,
    /// Who served when.
    History,
    /// What was counted, as Prometheus reads it.
    Metrics,
    /// Take the member for the right one as it is.
    Adopt,
    /// Replace the member by a copy of the other one, and keep it under another name.
    Replace,
    /// Hand over to the standby, if the manager is primary in this epoch.
    SwitchoverIn(u32),
}

impl Question {
    /// How long the answer may take: a manager that stands still has one, too.
    fn limit(self) -> Duration {
        match self {
            Question::Status | Question::History | Question::Metrics => Duration::from_secs(5),
            Question::Replace => Duration::from_secs(5),
            Question::Switchover | Question::SwitchoverIn(_) | Question::Adopt => {
                Duration::from_secs(60)
            }
            // As long as the tables are large.
            Question::Verify => Duration::from_secs(24 * 3600),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum Packet {
    /// A link of a manager that logs statements.
    Earlier,
    Alive,
    Message(Message),
    Ask(Question),
    Told(std::result::Result<String, String>),
    /// A session of a client goes on here.
    Visit(Box<Belongings>),
    /// What a session that went on here does is cancelled.
    Cancel(Vec<u8>),
    Link,
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), packet: &Packet) -> io::Result<()> {
    let mut out = Vec::new();
    put(&mut out, packet)?;
    stream.write_all(&out).await?;
    stream.flush().await
}

fn put(out: &mut Vec<u8>, packet: &Packet) -> io::Result<()> {
    let bytes = postcard::to_allocvec(packet).map_err(io::Error::other)?;
    let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&bytes);
    Ok(())
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Packet> {
    read_heard(stream, None, || ()).await
}

/// Reads a packet, and says so whenever a part of a long one has come. Nothing must not come for longer than `silence`.
async fn read_heard(
    stream: &mut (impl AsyncRead + Unpin),
    silence: Option<Duration>,
    mut heard: impl FnMut(),
) -> io::Result<Packet> {
    let len = within(silence, stream.read_u32_le()).await? as usize;
    if len > PACKET_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // As much memory as has come: anybody can say that a packet is long.
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let from = bytes.len();
        bytes.resize(len.min(from + PART_BYTES), 0);
        within(silence, stream.read_exact(&mut bytes[from..])).await?;
        if len > PART_BYTES {
            // Not of a short one: that the process lives does not say that it is primary.
            heard();
        }
    }
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

async fn within<T>(
    limit: Option<Duration>,
    asked: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    match limit {
        Some(limit) => {
            let answered = tokio::time::timeout(limit, asked).await;
            answered.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        }
        None => asked.await,
    }
}

async fn connect(address: &str, tls: Option<&Tls>) -> io::Result<Socket> {
    let stream = tokio::time::timeout(Duration::from_secs(5), TcpStream::connect(address)).await;
    let stream = stream.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    Ok(match tls {
        Some(tls) => Socket::tls(
            tls.connect(stream, address)
                .await
                .map_err(io::Error::other)?
                .into(),
        ),
        None => Socket::Tcp(stream),
    })
}

/// Asks the other manager to let a session go on there: a connection that speaks PostgreSQL's protocol.
pub async fn visit(hub: &Hub, belongings: &Belongings) -> io::Result<Socket> {
    let mut socket = connect(&hub.config.peer, hub.protection.peers.as_ref()).await?;
    write(&mut socket, &Packet::Visit(Box::new(belongings.clone()))).await?;
    Ok(socket)
}

/// Has what a session does cancelled that went on at the other manager.
pub async fn cancel(hub: &Hub, key: &[u8]) -> io::Result<()> {
    let mut socket = connect(&hub.config.peer, hub.protection.peers.as_ref()).await?;
    write(&mut socket, &Packet::Cancel(key.to_vec())).await
}

/// Connects to the other manager, again and again.
pub async fn dial(hub: Arc<Hub>) {
    loop {
        let tls = hub.protection.peers.as_ref();
        if let Ok(mut stream) = connect(&hub.config.peer, tls).await
            && write(&mut stream, &Packet::Link).await.is_ok()
        {
            link(&hub, stream).await;
        }
        tokio::time::sleep(CONNECT_AGAIN).await;
    }
}

/// Lets the other manager and commands in.
pub async fn listen(hub: Arc<Hub>, listener: TcpListener) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(CONNECT_AGAIN).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let hub = hub.clone();
        tokio::spawn(async move {
            let stream = match &hub.protection.peers {
                Some(tls) => match tls.accept(stream, &peer.to_string()).await {
                    Ok(stream) => Socket::tls(stream.into()),
                    Err(error) => return tracing::debug!(%error, "a connection was refused"),
                },
                None => Socket::Tcp(stream),
            };
            if let Err(error) = receive(&hub, stream).await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
}

async fn receive(hub: &Arc<Hub>, mut stream: Socket) -> io::Result<()> {
    let first = tokio::time::timeout(Duration::from_secs(10), read(&mut stream)).await;
    match first.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
        Packet::Link | Packet::Visit(_) if hub.config.single => {
            tracing::warn!(
                "another manager takes this one for the other one of a mirror, and its member is the only one"
            );
            Ok(())
        }
        Packet::Link => {
            link(hub, stream).await;
            Ok(())
        }
        Packet::Earlier => {
            tracing::error!(
                "the other manager is of an earlier version, which logs statements: run the same version on both sides"
            );
            Ok(())
        }
        Packet::Ask(question) => {
            let told = command::answer(hub, question).await;
            write(&mut stream, &Packet::Told(told)).await
        }
        Packet::Visit(belongings) => {
            session::visit(hub.clone(), stream, *belongings).await;
            Ok(())
        }
        Packet::Cancel(key) => session::cancel(hub, &key).await,
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Messages both ways, until the connection breaks. A newer one replaces it.
async fn link(hub: &Arc<Hub>, stream: Socket) {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = BufReader::with_capacity(READ_BYTES, reader);
    let (sender, mut messages) = mpsc::unbounded_channel();
    // Nobody else keeps it: a connection that is replaced has nothing more to send, and ends.
    let own = sender.downgrade();
    hub.act(|manager, out| {
        hub.peer.lock().replace(sender);
        manager.peer_lost(out);
    });
    tracing::info!("connected to the other manager");
    let writing = async {
        let mut next = Vec::new();
        loop {
            let mut out = Vec::new();
            tokio::select! {
                count = messages.recv_many(&mut next, MESSAGES_AT_ONCE) => {
                    if count == 0 {
                        break;
                    }
                }
                () = tokio::time::sleep(ALIVE_EVERY) => put(&mut out, &Packet::Alive)?,
            }
            for message in next.drain(..) {
                put(&mut out, &Packet::Message(message))?;
                if out.len() >= WRITTEN_BYTES {
                    writer.write_all(&std::mem::take(&mut out)).await?;
                }
            }
            writer.write_all(&out).await?;
            writer.flush().await?;
        }
        io::Result::Ok(())
    };
    let silence = Some(hub.config.timeout);
    let heard = || hub.act(|manager, _| manager.peer_speaks());
    let reading = async {
        while let Ok(packet) = read_heard(&mut reader, silence, heard).await {
            if let Packet::Message(message) = packet {
                hub.act(|manager, out| {
                    if own.upgrade().is_some() {
                        manager.peer(message, out);
                    }
                });
            }
        }
    };
    tokio::select! {
        _ = writing => {}
        () = reading => {}
    }
    let is_ours = own.upgrade().is_some_and(|own| {
        hub.act(|manager, out| drop_link(hub, manager, out, |current| current.same_channel(&own)))
    });
    if is_ours {
        tracing::info!("the connection to the other manager is broken");
    }
}

/// Drops the connection to the other manager, if it is the one that is meant; true if it was. Nothing that came on it is heard any more.
pub(super) fn drop_link(
    hub: &Hub,
    manager: &mut Manager,
    out: &mut Vec<Effect>,
    is_meant: impl FnOnce(&mut mpsc::UnboundedSender<Message>) -> bool,
) -> bool {
    let is_dropped = hub.peer.lock().take_if(is_meant).is_some();
    if is_dropped {
        manager.peer_lost(out);
        hub.spawn(look_after);
    }
    is_dropped
}

/// Looks whether the other manager's process has ended: then its machine refuses connections. One that does not answer is
/// waited for until the timeout.
async fn look_after(hub: Arc<Hub>) {
    let deadline = tokio::time::Instant::now() + hub.config.timeout;
    while tokio::time::Instant::now() < deadline && hub.peer.lock().is_none() {
        let tried = tokio::time::timeout(LOOK_EVERY, TcpStream::connect(&hub.config.peer)).await;
        if let Ok(Err(error)) = tried
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            tracing::info!("the other manager has ended");
            return hub.act(|manager, out| manager.peer_gone(out));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Asks a manager something.
///
/// # Errors
/// If it cannot be reached, or does not answer in time.
pub async fn ask(
    address: &str,
    tls: Option<&Tls>,
    question: Question,
) -> io::Result<std::result::Result<String, String>> {
    let asked = async {
        let mut stream = connect(address, tls).await?;
        write(&mut stream, &Packet::Ask(question)).await?;
        match read(&mut stream).await? {
            Packet::Told(told) => Ok(told),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    };
    let answered = tokio::time::timeout(question.limit(), asked).await;
    answered.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The timeout was that of a whole packet: a long one was cut off in the middle, every time.
    #[tokio::test]
    async fn a_long_packet_may_take_longer_than_the_timeout() {
        let silence = Duration::from_millis(500);
        let (mut here, mut there) = tokio::io::duplex(PART_BYTES);
        let mut out = Vec::new();
        let belongings = Belongings {
            startup: vec![0; 4 * PART_BYTES],
            ..Belongings::default()
        };
        put(&mut out, &Packet::Visit(Box::new(belongings))).expect("it fits");
        let writing = tokio::spawn(async move {
            for part in out.chunks(PART_BYTES) {
                tokio::time::sleep(Duration::from_millis(200)).await;
                there.write_all(part).await.expect("it is read");
            }
            there
        });
        let mut parts = 0;
        let read = read_heard(&mut here, Some(silence), || parts += 1).await;
        assert!(matches!(read, Ok(Packet::Visit(_))));
        assert_eq!(parts, 5);
        // A short one does not say that anybody is primary, and nothing is silence.
        let mut there = writing.await.expect("it ends");
        write(&mut there, &Packet::Alive).await.expect("it is read");
        let read = read_heard(&mut here, Some(silence), || panic!("it is short")).await;
        assert!(matches!(read, Ok(Packet::Alive)));
        let read = read_heard(&mut here, Some(silence), || ()).await;
        assert_eq!(read.expect_err("silence").kind(), io::ErrorKind::TimedOut);
    }
}
