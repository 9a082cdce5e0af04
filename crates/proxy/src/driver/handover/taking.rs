//! The successor: takes over what another process has.

use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream as StdUnixStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use dax::ids::Epoch;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use crate::core::handover::{ClientId, FORMAT};
use crate::core::session::Session;
use crate::driver::Proxy;
use crate::driver::client::{Admitted, Client};
use crate::driver::endpoints::{self, Inherited};
use crate::driver::handle::Arriving;
use crate::driver::login::Conn;
use crate::driver::startup::settings_of;

use super::message::{ClientParcel, IdleParcel, Offer, ServerParcel, kind, read, write};
use super::wire::{Received, Wire};
use super::{Cancel, MEET_AT, Plain, TakeoverError};

/// What the predecessor knows of the cluster must be known here by then.
const KNOWS_WITHIN: Duration = Duration::from_secs(50);
/// The predecessor may still let clients in, and give them numbers.
const NUMBERS: u32 = 100_000;

/// A process that hands over to this one.
pub struct Predecessor {
    wire: Wire,
    offer: Offer,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The predecessor is gone.
    All,
    /// The predecessor goes on, and this process must end.
    Nothing,
}

impl Predecessor {
    /// Meets the process that has started this one to take its place, if there is one. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If it cannot be reached, or hands over what this program does not read.
    pub async fn meet() -> Result<Option<Predecessor>, TakeoverError> {
        let Some(name) = std::env::var_os(MEET_AT) else {
            return Ok(None);
        };
        let meet = || {
            let address = SocketAddr::from_abstract_name(name.as_encoded_bytes())?;
            let stream = StdUnixStream::connect_addr(&address)?;
            stream.set_nonblocking(true)?;
            UnixStream::from_std(stream)
        };
        let wire = Wire(meet().map_err(TakeoverError::Meet)?);
        let received = wire.receive().await.map_err(TakeoverError::Meet)?;
        let received = received.ok_or(TakeoverError::Nonsense)?;
        let offer = Offer::format(&received.body).filter(|_| received.kind == kind::OFFER);
        let (theirs, rest) = offer.ok_or(TakeoverError::Nonsense)?;
        let judged = match theirs {
            FORMAT => read(rest).ok_or(TakeoverError::Nonsense),
            theirs => Err(TakeoverError::Format {
                theirs,
                ours: FORMAT,
            }),
        };
        match judged {
            Ok(offer) => Ok(Some(Predecessor { wire, offer })),
            Err(why) => {
                // It goes on, whether it hears why or not.
                let _ = wire
                    .send(kind::REFUSE, why.to_string().as_bytes(), &[])
                    .await;
                Err(why)
            }
        }
    }

    /// Its listening sockets, as far as they are where this process is to listen. Connections are its own until it says
    /// otherwise.
    pub(in crate::driver) async fn sockets(
        &self,
        proxy: &Proxy,
    ) -> Result<Inherited, TakeoverError> {
        let knows = async {
            loop {
                let news = proxy.cluster.news();
                let topology = proxy.cluster.topology();
                if topology.knows(Epoch(self.offer.epoch)) {
                    return;
                }
                // News may have come before it was waited for.
                let _ = tokio::time::timeout(Duration::from_millis(20), news).await;
            }
        };
        let known = tokio::time::timeout(KNOWS_WITHIN, knows).await;
        if known.is_err() {
            let why = TakeoverError::Unknowing;
            // It goes on, whether it hears why or not.
            let _ = self
                .wire
                .send(kind::REFUSE, why.to_string().as_bytes(), &[])
                .await;
            return Err(why);
        }
        proxy
            .handles
            .begin_at(self.offer.last_client.wrapping_add(NUMBERS));
        let meet = TakeoverError::Meet;
        self.wire.send(kind::ACCEPT, &[], &[]).await.map_err(meet)?;
        let received = self.wire.receive().await.map_err(meet)?;
        let received = received.ok_or(TakeoverError::Abandoned)?;
        if received.kind != kind::LISTENER {
            return Err(TakeoverError::Nonsense);
        }
        let mut sockets = received.descriptors.into_iter();
        let tcp = sockets.next().ok_or(TakeoverError::Nonsense)?;
        let Offer {
            listen,
            unix_socket,
            ..
        } = &self.offer;
        Ok(Inherited {
            tcp: (*listen == proxy.config.listen).then_some(tcp),
            unix: sockets
                .next()
                .filter(|_| *unix_socket == proxy.config.unix_socket()),
        })
    }

    /// Takes over whom it hands over, until it has nobody left or changes its mind. `go` is told when connections are to be
    /// accepted here.
    pub(in crate::driver) async fn take(self, proxy: Arc<Proxy>, go: oneshot::Sender<()>) -> Taken {
        let (cancels_to, mut cancels) = mpsc::unbounded_channel::<Cancel>();
        proxy.handover.set_other(Some(cancels_to));
        let wire = Arc::new(self.wire);
        let mut messages = Wire::listen(wire.clone());
        let mut taking = Taking {
            wire,
            held: Vec::new(),
            may_serve: false,
            go: Some(go),
            proxy,
        };
        let taken = loop {
            tokio::select! {
                message = messages.recv() => {
                    if let Some(taken) = taking.receive(message.flatten()).await {
                        break taken;
                    }
                }
                Some(cancel) = cancels.recv() => {
                    // A predecessor that is gone has no clients.
                    let _ = taking.wire.send(kind::CANCEL, &write(&cancel), &[]).await;
                }
            }
        };
        taking.proxy.handover.set_other(None);
        let unix_socket = self.offer.unix_socket;
        if taken == Taken::All && unix_socket != taking.proxy.config.unix_socket() {
            // Nobody listens there any more.
            unix_socket.iter().for_each(|path| endpoints::remove(path));
        }
        taken
    }

    /// Tells it that connections can be accepted here.
    pub(in crate::driver) async fn has_listener(&self) -> Result<(), TakeoverError> {
        let sent = self.wire.send(kind::HAS, &[], &[]).await;
        sent.map_err(TakeoverError::Meet)
    }
}

/// Taking over.
struct Taking {
    proxy: Arc<Proxy>,
    wire: Arc<Wire>,
    /// Who waits for the decision.
    // Boxed, as tasks take them: a client is large.
    #[allow(clippy::vec_box, reason = "moved out as they are")]
    held: Vec<Box<Client>>,
    may_serve: bool,
    go: Option<oneshot::Sender<()>>,
}

impl Taking {
    /// The next message, or the end. Whether it is the last one.
    async fn receive(&mut self, message: Option<Received>) -> Option<Taken> {
        let Some(message) = message else {
            // The predecessor is no more: it has not taken anybody back.
            self.serve();
            return Some(Taken::All);
        };
        match message.kind {
            kind::CLIENT => self.take_client(message).await,
            kind::SERVER => self.take_server(message),
            kind::GO => {
                // If it is gone, nobody else serves them.
                let _ = self.wire.send(kind::GO, &[], &[]).await;
                self.serve();
            }
            kind::ABORT => {
                for client in self.held.drain(..) {
                    client.forget();
                }
                return Some(match self.may_serve {
                    true => Taken::All,
                    false => Taken::Nothing,
                });
            }
            kind::CANCEL => {
                if let Some((id, secret)) = read::<Cancel>(&message.body) {
                    let proxy = self.proxy.clone();
                    tokio::spawn(async move {
                        proxy.handles.cancel(&proxy.dialer, id, &secret).await;
                    });
                }
            }
            kind::DONE => return Some(Taken::All),
            kind => tracing::warn!(kind, "unknown message from the previous process"),
        }
        None
    }

    /// From now on connections are accepted, and clients are served as they come.
    fn serve(&mut self) {
        self.may_serve = true;
        if let Some(go) = self.go.take() {
            // Whoever accepts connections may have ended.
            let _ = go.send(());
        }
        tracing::info!(
            clients = self.held.len(),
            "serving the clients of the process before"
        );
        for client in self.held.drain(..) {
            tokio::spawn(client.run());
        }
    }

    async fn take_client(&mut self, message: Received) {
        let Some(parcel) = read::<ClientParcel>(&message.body) else {
            tracing::warn!("cannot read the session of a client of the previous process");
            return;
        };
        let id = parcel.id;
        match self.unpack(parcel, message.descriptors) {
            Some(client) => {
                // Said before it is served: so it is here, or there, whoever ends now.
                let said = self
                    .wire
                    .send(kind::UNDERSTOOD, &write::<ClientId>(&id), &[])
                    .await;
                match (said.is_ok() || self.may_serve, self.may_serve) {
                    (true, true) => drop(tokio::spawn(client.run())),
                    _ => self.held.push(client),
                }
            }
            None => {
                // It goes on there.
                let _ = self
                    .wire
                    .send(kind::DECLINED, &write::<ClientId>(&id), &[])
                    .await;
            }
        }
    }

    /// The client, if it can be served here.
    fn unpack(&self, parcel: ClientParcel, descriptors: Vec<OwnedFd>) -> Option<Box<Client>> {
        let proxy = &self.proxy;
        let mut descriptors = descriptors.into_iter();
        let socket = Plain::received(descriptors.next()?, parcel.is_unix)
            .into_socket()
            .ok()?;
        let pool = proxy.pool(parcel.login.clone());
        let held = match (&parcel.server, descriptors.next()) {
            (Some(server), Some(fd)) => Some(pool.adopt(server.unpack(fd)?)),
            (None, None) => None,
            _ => return None,
        };
        if held.is_some() != parcel.session.is_linked() {
            return None;
        }
        let mut session = Session::unpack(parcel.session, &proxy.statements).ok()?;
        session.is_numbered(parcel.id);
        session.begins_with(&settings_of(&parcel.login.parameters));
        if let Some(held) = &held {
            session.is_linked_to(held.conn.address.clone(), held.conn.key.0);
        }
        let handle = proxy.handles.adopt(Arriving {
            id: parcel.id,
            secret: parcel.secret,
            user: parcel.login.user.clone(),
            database: parcel.login.name.clone(),
            peer: parcel.peer,
            age: Duration::from_secs(parcel.age_s),
            batches: parcel.batches,
        })?;
        let admitted = Admitted {
            handle,
            pool,
            functions: proxy.catalogs.now(&parcel.login.database),
            held: None,
            session,
        };
        let (input, output) = (parcel.input.as_slice(), parcel.output.as_slice());
        let mut client = Client::new(
            proxy.clone(),
            socket,
            BytesMut::from(input),
            BytesMut::from(output),
            admitted,
        );
        if let Some(held) = held {
            client.go_on_with(held);
        }
        Some(Box::new(client))
    }

    /// A connection to a server that nobody used there.
    fn take_server(&self, message: Received) {
        let mut descriptors = message.descriptors.into_iter();
        let (Some(parcel), Some(fd)) = (read::<IdleParcel>(&message.body), descriptors.next())
        else {
            return;
        };
        if let Some(conn) = parcel.server.unpack(fd) {
            let pool = self.proxy.pool(parcel.login);
            let mut server = parcel.packed.unpack();
            server.address = Some(conn.address.clone());
            server.process = Some(conn.key.0);
            pool.put(pool.adopt(conn), Box::new(server));
        }
    }
}

impl ServerParcel {
    /// What describes a connection, beside its socket.
    pub fn of(conn: &Conn) -> ServerParcel {
        let age_ms = conn.since.elapsed().as_millis();
        ServerParcel {
            address: conn.address.to_string(),
            key: conn.key,
            age_ms: u64::try_from(age_ms).unwrap_or(u64::MAX),
            is_unix: conn.is_unix(),
        }
    }

    fn unpack(&self, fd: OwnedFd) -> Option<Conn> {
        let socket = Plain::received(fd, self.is_unix).into_socket().ok()?;
        let age = Duration::from_millis(self.age_ms);
        Some(Conn::arrived(
            socket,
            self.address.as_str().into(),
            self.key,
            age,
        ))
    }
}
