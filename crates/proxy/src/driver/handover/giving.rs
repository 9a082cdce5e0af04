//! The predecessor: starts another process, and hands over what this one has.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdUnixListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use coordination::service;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::core::handover::{ClientId, Do, Giving, Heard};
use crate::core::session::PackedServer;
use crate::driver::Proxy;
use crate::driver::handle::HANDOVER;
use crate::driver::quotas::Stocked;

use super::message::{IdleParcel, Offer, ServerParcel, kind, read, write};
use super::wire::{Received, Wire};
use super::{Cancel, HandoverError, Leaving, MEET_AT, Plain, Request, Sockets};

/// The successor must have the listening socket by then.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How often it is looked who is left.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Whoever has not heard by then that it is to leave follows later.
const HEARD_WITHIN: Duration = Duration::from_secs(2);

/// What whoever accepts connections is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToServe {
    /// Leave them to the successor.
    StopAccepting,
    /// Accept them again.
    AcceptAgain,
    /// There is nobody left to serve.
    Done,
    /// The hand-over has come to nothing.
    Over,
}

/// Hands over to one successor.
pub struct Giver {
    proxy: Arc<Proxy>,
    sockets: Vec<OwnedFd>,
    tell: mpsc::UnboundedSender<ToServe>,
    request: Option<Request>,
    /// Done when this process ends.
    ends: oneshot::Receiver<()>,
}

/// A hand-over that has begun.
struct Running {
    giver: Giver,
    wire: Arc<Wire>,
    successor: Successor,
    giving: Giving,
    leaving: HashMap<ClientId, Leaving>,
    taker: Option<mpsc::UnboundedReceiver<Leaving>>,
    /// When clients were asked.
    asked: Option<Instant>,
    refusal: Option<String>,
}

/// The program of this process, with its arguments. After an upgrade the file is another one, under the same name.
fn same_program() -> io::Result<Command> {
    let program = std::env::current_exe()?;
    let text = program.to_string_lossy();
    let name = text.strip_suffix(" (deleted)").map(PathBuf::from);
    let mut command = Command::new(name.unwrap_or(program));
    command.args(std::env::args_os().skip(1));
    Ok(command)
}

/// The process that is to take this one's place. It is killed if it does not come to that.
struct Successor {
    child: Child,
    serves: bool,
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.serves {
            // It may have ended by itself.
            let _ = self.child.start_kill();
        }
    }
}

/// Starts the successor, and meets it.
async fn start() -> io::Result<(Successor, UnixStream)> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let random = u128::from_be_bytes(random);
    let name = format!("understudy-proxy-{}-{random:032x}", std::process::id());
    let meeting = StdUnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    meeting.set_nonblocking(true)?;
    let meeting = UnixListener::from_std(meeting)?;
    let mut command = tokio::process::Command::from(same_program()?);
    let mut successor = Successor {
        child: command.env(MEET_AT, &name).spawn()?,
        serves: false,
    };
    let pid = successor.child.id().and_then(|pid| i32::try_from(pid).ok());
    tokio::select! {
        met = meet(&meeting, pid) => Ok((successor, met?)),
        status = successor.child.wait() => {
            Err(io::Error::other(format!("it ended at once: {}", status?)))
        }
    }
}

/// The connection of the process `pid`. Anybody on this machine may come here.
async fn meet(meeting: &UnixListener, pid: Option<i32>) -> io::Result<UnixStream> {
    loop {
        let (stream, _) = meeting.accept().await?;
        if pid.is_some() && stream.peer_cred()?.pid() == pid {
            return Ok(stream);
        }
    }
}

impl Giver {
    /// Will hand over `sockets`, which accept connections, and whatever `proxy` has.
    pub fn new(
        proxy: Arc<Proxy>,
        sockets: Vec<OwnedFd>,
        tell: mpsc::UnboundedSender<ToServe>,
        request: Request,
        ends: oneshot::Receiver<()>,
    ) -> Giver {
        Giver {
            proxy,
            sockets,
            tell,
            request: Some(request),
            ends,
        }
    }

    /// Hands over, until nobody is left or it has come to nothing.
    pub async fn run(mut self) {
        let started = tokio::select! {
            started = tokio::time::timeout(READY_WITHIN, start()) => started,
            _ = &mut self.ends => return self.over(HandoverError::Ends),
        };
        let late = || io::Error::other("it did not answer in time");
        let (successor, stream) = match started.map_err(|_| late()).flatten() {
            Ok(met) => met,
            Err(error) => return self.over(HandoverError::Start(error)),
        };
        let running = Running {
            giver: self,
            wire: Arc::new(Wire(stream)),
            successor,
            giving: Giving::default(),
            leaving: HashMap::new(),
            taker: None,
            asked: None,
            refusal: None,
        };
        running.run().await;
    }

    fn over(&mut self, why: HandoverError) {
        self.answer(Err(why));
        // Whoever accepts connections may have ended.
        let _ = self.tell.send(ToServe::Over);
    }

    fn answer(&mut self, answer: Result<(), HandoverError>) {
        match &answer {
            Ok(()) => tracing::info!("another process serves from now on"),
            Err(error) => tracing::error!(
                error = error as &dyn std::error::Error,
                "no restart: this process continues"
            ),
        }
        if let Some(request) = self.request.take() {
            // Who asked may have gone.
            let _ = request.send(answer);
        }
    }

    fn offer(&self) -> Offer {
        Offer {
            epoch: self.proxy.cluster.topology().epoch.0,
            listen: self.proxy.config.listen,
            unix_socket: self.proxy.config.unix_socket(),
            last_client: self.proxy.handles.last_id(),
        }
    }
}

impl Running {
    async fn run(mut self) {
        let mut from = Wire::listen(self.wire.clone());
        let (cancels_to, mut cancels) = mpsc::unbounded_channel();
        self.giver.proxy.handover.set_other(Some(cancels_to));
        let offer = self.giver.offer().to_bytes();
        if self.wire.send(kind::OFFER, &offer, &[]).await.is_err() {
            self.hear(Heard::Lost).await;
        }
        let deadline = Instant::now() + READY_WITHIN;
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.giving.is_over() {
            let leaves = async {
                match &mut self.taker {
                    Some(taker) => taker.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                received = from.recv() => self.received(received.flatten()).await,
                Some(leaving) = leaves => {
                    let id = leaving.id;
                    self.leaving.insert(id, leaving);
                    self.hear(Heard::Leaves(id)).await;
                }
                Some(cancel) = cancels.recv() => self.cancel(cancel).await,
                _ = look.tick() => {
                    if !self.giving.takes_clients() && Instant::now() >= deadline {
                        self.refusal = Some("it did not serve in time".to_owned());
                        self.hear(Heard::Lost).await;
                    }
                    if self.look().await {
                        return;
                    }
                }
                _ = &mut self.giver.ends => {
                    if !self.giving.is_decided() {
                        // If it does not hear of it, it is gone.
                        let _ = self.wire.send(kind::ABORT, &[], &[]).await;
                        self.hear(Heard::Lost).await;
                    }
                    break;
                }
            }
        }
        self.giver.proxy.handover.close();
        self.giver.proxy.handover.set_other(None);
        // Who came meanwhile stays.
        if let Some(mut taker) = self.taker.take() {
            taker.close();
            while let Ok(leaving) = taker.try_recv() {
                give_back(leaving);
            }
        }
        if self.giving.is_over() {
            let why = match self.refusal.take() {
                Some(text) => HandoverError::Refused(text),
                None => HandoverError::Lost,
            };
            // It may have ended by itself.
            let _ = self.successor.child.kill().await;
            self.giver.over(why);
        }
    }

    /// Looks who is left. Whether nobody is.
    async fn look(&mut self) -> bool {
        let proxy = self.giver.proxy.clone();
        if !self.giving.is_decided() {
            let is_late = self
                .asked
                .is_some_and(|asked| asked.elapsed() > HEARD_WITHIN);
            let number = proxy.handover.number();
            if number.is_some_and(|number| is_late || proxy.handles.have_heard(number)) {
                self.hear(Heard::AllAsked).await;
            }
            return false;
        }
        // Who stays needs connections here.
        if proxy.handles.count_staying() == 0 {
            self.send_idle(&proxy).await;
        }
        let is_done = proxy.handles.count() == 0 && proxy.handover.has_no_guests();
        if is_done {
            // It goes on without hearing it.
            let _ = self.wire.send(kind::DONE, &[], &[]).await;
            let _ = self.giver.tell.send(ToServe::Done);
        }
        is_done
    }

    /// Connections to servers that nobody needs here any more.
    async fn send_idle(&mut self, proxy: &Arc<Proxy>) {
        let pools: Vec<_> = proxy.pools.lock().values().cloned().collect();
        for pool in pools {
            for Stocked {
                conn,
                share: _share,
            } in pool.take_idle()
            {
                let Some(packed) = conn.server.as_deref().and_then(PackedServer::of) else {
                    conn.close();
                    continue;
                };
                let server = ServerParcel::of(&conn);
                let Ok(socket) = Plain::of(conn.socket) else {
                    continue;
                };
                let login = pool.login();
                let parcel = write(&IdleParcel {
                    login,
                    server,
                    packed,
                });
                let socket = [socket.as_fd()];
                let sent = self.wire.send(kind::SERVER, &parcel, &socket).await;
                if sent.is_err() {
                    self.hear(Heard::Lost).await;
                    return;
                }
            }
        }
    }

    async fn received(&mut self, received: Option<Received>) {
        let Some(received) = received else {
            self.hear(Heard::Lost).await;
            return;
        };
        let heard = match received.kind {
            kind::ACCEPT => Heard::Accepts,
            kind::HAS => Heard::Has,
            kind::GO => Heard::Goes,
            kind::UNDERSTOOD => read(&received.body).map_or(Heard::Lost, Heard::Understood),
            kind::DECLINED => read(&received.body).map_or(Heard::Lost, Heard::Declined),
            kind::CANCEL => {
                if let Some((id, secret)) = read::<Cancel>(&received.body) {
                    let proxy = self.giver.proxy.clone();
                    tokio::spawn(async move {
                        proxy.handles.cancel(&proxy.dialer, id, &secret).await;
                    });
                }
                return;
            }
            kind::REFUSE => {
                self.refusal = Some(String::from_utf8_lossy(&received.body).into_owned());
                Heard::Lost
            }
            _ => Heard::Lost,
        };
        self.hear(heard).await;
    }

    async fn cancel(&mut self, cancel: Cancel) {
        if self
            .wire
            .send(kind::CANCEL, &write(&cancel), &[])
            .await
            .is_err()
        {
            self.hear(Heard::Lost).await;
        }
    }

    /// Does what follows.
    async fn hear(&mut self, heard: Heard) {
        let was_decided = self.giving.is_decided();
        let mut all: std::collections::VecDeque<Do> = self.giving.hear(&heard).into();
        while let Some(act) = all.pop_front() {
            if self.act(act).await.is_err() {
                all.extend(self.giving.hear(&Heard::Lost));
            }
        }
        if self.giving.is_decided() && !was_decided {
            self.successor.serves = true;
            if let Some(pid) = self.successor.child.id() {
                service::main_process_is(pid);
            }
            self.giver.answer(Ok(()));
        }
    }

    async fn act(&mut self, act: Do) -> io::Result<()> {
        let proxy = &self.giver.proxy;
        match act {
            Do::SendListener => {
                let sockets: Vec<_> = self.giver.sockets.iter().map(AsFd::as_fd).collect();
                self.wire.send(kind::LISTENER, &[], &sockets).await?;
            }
            // Whoever accepts connections may have ended.
            Do::StopAccepting => drop(self.giver.tell.send(ToServe::StopAccepting)),
            Do::AcceptAgain => drop(self.giver.tell.send(ToServe::AcceptAgain)),
            Do::AskClients => {
                let (taker, leaving) = mpsc::unbounded_channel();
                self.taker = Some(leaving);
                proxy.handover.open(taker);
                self.asked = Some(Instant::now());
                proxy.handles.poke_all(HANDOVER);
            }
            Do::KeepClients => proxy.handover.close(),
            Do::Send(id) => {
                let Some(Leaving {
                    parcel, sockets, ..
                }) = self.leaving.get(&id)
                else {
                    return Ok(());
                };
                let mut sent = vec![sockets.client.as_fd()];
                sent.extend(sockets.server.as_ref().map(AsFd::as_fd));
                self.wire.send(kind::CLIENT, parcel, &sent).await?;
            }
            Do::TakeBack(id) => {
                if let Some(leaving) = self.leaving.remove(&id) {
                    give_back(leaving);
                }
            }
            Do::Forget(id) => {
                if let Some(leaving) = self.leaving.remove(&id) {
                    // The client's task waits for it.
                    let _ = leaving.answer.send(None);
                }
            }
            Do::Go => self.wire.send(kind::GO, &[], &[]).await?,
        }
        Ok(())
    }
}

fn give_back(leaving: Leaving) {
    let Leaving {
        sockets, answer, ..
    } = leaving;
    let sockets: Option<Sockets> = Some(sockets);
    // The client's task waits for it.
    let _ = answer.send(sockets);
}

#[cfg(test)]
mod tests {
    use super::*;

    // hazard: PROXY-32
    #[tokio::test]
    async fn strangers_are_not_met_in_place_of_the_started_process() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().join("meeting");
        let meeting = UnixListener::bind(&at).unwrap();
        let own = i32::try_from(std::process::id()).ok();
        let stranger = UnixStream::connect(&at).await.unwrap();
        for other in [Some(1), None] {
            let met = tokio::time::timeout(Duration::from_millis(50), meet(&meeting, other)).await;
            assert!(met.is_err(), "{other:?} was met");
        }
        // The first one took the connection of the stranger, who finds it closed.
        stranger.readable().await.unwrap();
        assert_eq!(stranger.try_read(&mut [0; 1]).unwrap(), 0);
        let _started = UnixStream::connect(&at).await.unwrap();
        meet(&meeting, own).await.unwrap();
    }
}
