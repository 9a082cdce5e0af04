//! The connection between the two hosts, and what operators ask.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dax::tls::Tls;
use tokio::net::TcpListener;

use super::hub::{Hub, Order, Peer, ToSend};
use super::status;
use super::wire::{Boxed, Packet, connect, read, within, write};

const CONNECT_AGAIN: Duration = Duration::from_millis(150);
const GREETS_WITHIN: Duration = Duration::from_secs(5);
/// Parts that may wait to be applied; more are not read.
const QUEUED_BYTES: u64 = 64 << 20;

/// Connects to the other host, again and again.
pub async fn dial(hub: Arc<Hub>, tls: Option<Tls>) {
    loop {
        if let Ok(mut stream) = connect(&hub.config.peer, tls.as_ref()).await {
            let link = Packet::Link(hub.shape.clone());
            if within(GREETS_WITHIN, write(&mut stream, &link, &[]))
                .await
                .is_ok()
            {
                join(&hub, stream).await;
            }
        }
        tokio::time::sleep(CONNECT_AGAIN).await;
    }
}

/// The other host has connected, or let this one in.
async fn join(hub: &Arc<Hub>, mut stream: Boxed) {
    match tokio::time::timeout(GREETS_WITHIN, read(&mut stream)).await {
        Ok(Ok((Packet::Link(shape), _))) => link(hub, stream, shape).await,
        _ => tracing::debug!("the other host does not answer as one"),
    }
}

/// Lets the other host and commands in.
pub async fn listen(hub: Arc<Hub>, listener: TcpListener, tls: Option<Tls>) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(CONNECT_AGAIN).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (hub, tls) = (hub.clone(), tls.clone());
        tokio::spawn(async move {
            let stream: Boxed = match &tls {
                Some(tls) => {
                    let peer = peer.to_string();
                    let accepted = tls.accept(stream, &peer);
                    match tokio::time::timeout(GREETS_WITHIN, accepted).await {
                        Ok(Ok(stream)) => Box::new(stream),
                        Ok(Err(error)) => {
                            return tracing::debug!(%error, "a connection was refused");
                        }
                        Err(_) => return tracing::debug!("a connection says nothing"),
                    }
                }
                None => Box::new(stream),
            };
            if let Err(error) = receive(&hub, stream).await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
}

async fn receive(hub: &Arc<Hub>, mut stream: Boxed) -> io::Result<()> {
    match within(GREETS_WITHIN, read(&mut stream)).await?.0 {
        Packet::Link(shape) => {
            write(&mut stream, &Packet::Link(hub.shape.clone()), &[]).await?;
            link(hub, stream, shape).await;
            Ok(())
        }
        Packet::Ask(question) => {
            let told = status::answer(hub, question).await;
            write(&mut stream, &Packet::Told(told), &[]).await
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Packets both ways, until the connection breaks. A newer one replaces it.
async fn link(hub: &Arc<Hub>, stream: Boxed, shape: super::wire::Shape) {
    if let Some(difference) = hub.shape.differs(&shape) {
        hub.report_trouble(format!("the other host has another machine: {difference}"));
        return tokio::time::sleep(GREETS_WITHIN).await;
    }
    let (peer, to_send) = Peer::new();
    let (mut reader, writer) = tokio::io::split(stream);
    let messages = peer.messages.clone();
    let before = hub.peer.lock().replace(peer);
    if before.is_some() {
        hub.act(|guard, out| guard.link_lost(out));
    }
    tracing::info!("connected to the other host");
    hub.act(|guard, out| guard.link_up(out));
    let silence = hub.config.silence;
    let reading = async {
        while let Ok(Ok((packet, bytes))) = tokio::time::timeout(silence, read(&mut reader)).await {
            match packet {
                Packet::Message(message) => hub.act(|guard, out| guard.message(message, out)),
                Packet::Part(session, part) => {
                    hub.act(|guard, _| guard.alive(&session));
                    let len = bytes.len() as u64;
                    while hub.queued.load(Ordering::Acquire) > QUEUED_BYTES {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    hub.queued.fetch_add(len, Ordering::AcqRel);
                    hub.order(Order::Part(session, part, bytes));
                }
                _ => break,
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = send(hub, writer, to_send) => {}
    }
    let is_ours = hub
        .peer
        .lock()
        .take_if(|current| current.messages.same_channel(&messages))
        .is_some();
    if is_ours {
        tracing::info!("the connection to the other host is broken");
        hub.act(|guard, out| guard.link_lost(out));
    }
}

async fn send(hub: &Hub, mut writer: tokio::io::WriteHalf<Boxed>, mut to_send: ToSend) {
    let every = hub.config.silence / 6;
    loop {
        let (packet, bytes) = tokio::select! {
            biased;
            message = to_send.messages.recv() => match message {
                Some(message) => (Packet::Message(message), Vec::new()),
                None => break,
            },
            part = to_send.parts.recv() => match part {
                Some(part) => part,
                None => break,
            },
            () = tokio::time::sleep(every) => {
                (Packet::Message(hub.look(crate::core::Guard::sign_of_life)), Vec::new())
            }
        };
        // Whoever takes nothing for so long, though it may say that it is well, is not going to.
        let patience = hub.config.patience;
        if within(patience, write(&mut writer, &packet, &bytes))
            .await
            .is_err()
        {
            break;
        }
    }
}
