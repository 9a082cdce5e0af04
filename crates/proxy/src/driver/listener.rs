//! Lets clients in.
//!
//! Invariant: no more than [`STRANGERS`] connections have not proved yet who they are. A client is done with that in
//! milliseconds, so whoever has taken longest goes when another one comes.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::config::ConfigError;

use super::Proxy;
use super::descriptors;
use super::endpoints::{Endpoints, Inherited, ListenError, listen};
use super::handle::SHUTDOWN;
use super::handover;
use super::handover::{Giver, HandoverError, Predecessor, Request, Taken, TakeoverError, ToServe};
use super::rest::Rest;
use super::socket::Socket;
use super::startup;

/// Connections that have not proved yet who they are.
const STRANGERS: usize = 1000;

/// Those connections, longest first: each is sent away by its sender, which is closed once it was let in or is gone.
#[derive(Default)]
struct Strangers(VecDeque<oneshot::Sender<()>>);

impl Strangers {
    /// One more. It must be sent away when the receiver is told so.
    fn enter(&mut self) -> oneshot::Receiver<()> {
        if self.0.len() >= STRANGERS {
            self.0.retain(|stranger| !stranger.is_closed());
        }
        if self.0.len() >= STRANGERS
            && let Some(longest) = self.0.pop_front()
        {
            // It may have been let in just now.
            let _ = longest.send(());
        }
        let (stranger, sent_away) = oneshot::channel();
        self.0.push_back(stranger);
        sent_away
    }
}

/// Why a proxy cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address cannot be listened at.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The rules of who may come from where are not understood.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No random numbers.
    #[error("the system has no random numbers")]
    Random(#[source] getrandom::Error),
    /// Another process does not hand over to this one.
    #[error("cannot take over")]
    Takeover(#[from] TakeoverError),
    /// A certificate is invalid, the proxy's own or one that servers are judged by.
    #[error(transparent)]
    Tls(dax::error::Error),
}

/// Listens and serves until `shutdown` is done, or another process has taken over; then lets transactions end, up to the
/// configured time.
///
/// # Errors
/// If the address cannot be listened at, or a predecessor goes on.
pub async fn serve(
    proxy: Arc<Proxy>,
    predecessor: Option<Predecessor>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    descriptors::allow(proxy.config.max_clients + STRANGERS);
    let inherited = match &predecessor {
        Some(predecessor) => predecessor.sockets(&proxy).await?,
        None => Inherited::default(),
    };
    let endpoints = Endpoints::listen(&proxy.config, inherited)?;
    tracing::info!(address = %proxy.config.listen, "the proxy listens");
    let _signals = handover::restart_by_signal(&proxy);
    let mut serving = Serving::new(proxy.clone(), endpoints);
    if let Some(predecessor) = predecessor {
        predecessor.has_listener().await?;
        let (go, goes) = oneshot::channel();
        serving.goes = Some(goes);
        serving.taking = Some(tokio::spawn(predecessor.take(proxy.clone(), go)));
    } else {
        serving.accept_from_now_on()?;
    }
    let ended = serving.run(shutdown).await;
    // As long as it does not accept connections, another process does.
    if serving.accepts {
        serving.endpoints.remove();
    }
    drop(serving);
    if matches!(ended, Ok(())) {
        drain(&proxy).await;
    }
    ended
}

/// Accepting connections, and what goes on beside it.
struct Serving {
    proxy: Arc<Proxy>,
    endpoints: Endpoints,
    accepts: bool,
    /// It is there as long as connections are accepted.
    rest: Option<Rest>,
    strangers: Strangers,
    requests: Option<mpsc::UnboundedReceiver<Request>>,
    /// Told when connections are to be accepted, by who takes over from another process.
    goes: Option<oneshot::Receiver<()>>,
    /// Taking over from another process.
    taking: Option<JoinHandle<Taken>>,
    /// Handing over to one.
    giving: Option<Giving>,
    /// Who cannot be handed over must have ended by then.
    deadline: Option<Instant>,
}

/// A hand-over that is under way.
struct Giving {
    task: JoinHandle<()>,
    told: mpsc::UnboundedReceiver<ToServe>,
    ends: oneshot::Sender<()>,
}

impl Giving {
    /// This process ends: clients that another one does not have yet are given back.
    async fn end(self) {
        // It may have ended by itself.
        let _ = self.ends.send(());
        let _ = self.task.await;
    }
}

impl Serving {
    fn new(proxy: Arc<Proxy>, endpoints: Endpoints) -> Serving {
        Serving {
            endpoints,
            accepts: false,
            rest: None,
            strangers: Strangers::default(),
            requests: proxy.handover.requests(),
            goes: None,
            taking: None,
            giving: None,
            deadline: None,
            proxy,
        }
    }

    async fn run(&mut self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                accepted = self.endpoints.accept(), if self.accepts => self.accept(accepted).await,
                Some(request) = next(&mut self.requests) => self.hand_over(request),
                goes = goes(&mut self.goes) => {
                    self.goes = None;
                    if goes {
                        self.accept_again();
                    }
                }
                taken = finished(&mut self.taking) => {
                    self.taking = None;
                    if taken == Taken::Nothing {
                        return Err(ServeError::Takeover(TakeoverError::Abandoned));
                    }
                    self.accept_again();
                }
                told = told(&mut self.giving) => if self.heed(told) { break },
                () = passed(self.deadline) => break,
            }
        }
        if let Some(giving) = self.giving.take() {
            giving.end().await;
        }
        Ok(())
    }

    async fn accept(&mut self, accepted: std::io::Result<(Socket, Option<IpAddr>)>) {
        match accepted {
            Ok((socket, peer)) => {
                let sent_away = self.strangers.enter();
                let proxy = self.proxy.clone();
                tokio::spawn(startup::receive(proxy, socket, peer, sent_away));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    fn accept_from_now_on(&mut self) -> Result<(), ListenError> {
        self.accepts = true;
        if let (Some(address), None) = (self.proxy.config.rest, &self.rest) {
            self.rest = Some(Rest::serve(self.proxy.clone(), listen(address)?));
        }
        Ok(())
    }

    /// The same where clients matter more than metrics.
    fn accept_again(&mut self) {
        if let Err(error) = self.accept_from_now_on() {
            tracing::error!(error = &error as &dyn std::error::Error, "no metrics");
        }
    }

    /// Somebody asks for a restart.
    fn hand_over(&mut self, request: Request) {
        let refusal = if self.giving.is_some() {
            Some(HandoverError::UnderWay)
        } else if self.taking.is_some() {
            Some(HandoverError::PredecessorLives)
        } else if self.proxy.cluster.topology().is_paused {
            Some(HandoverError::Paused)
        } else {
            None
        };
        let sockets = match refusal {
            Some(refusal) => Err(refusal),
            None => self.endpoints.descriptors().map_err(HandoverError::Start),
        };
        match sockets {
            Ok(sockets) => {
                let (tell, told) = mpsc::unbounded_channel();
                let (ends, ended) = oneshot::channel();
                let giver = Giver::new(self.proxy.clone(), sockets, tell, request, ended);
                let task = tokio::spawn(giver.run());
                self.giving = Some(Giving { task, told, ends });
            }
            Err(error) => {
                // Who asked may have gone.
                let _ = request.send(Err(error));
            }
        }
    }

    /// True if that is the end.
    fn heed(&mut self, told: ToServe) -> bool {
        match told {
            ToServe::StopAccepting => {
                self.accepts = false;
                self.rest = None;
                let time = self.proxy.settings().config.handover_timeout;
                self.deadline = Some(Instant::now() + time);
            }
            ToServe::AcceptAgain => {
                self.accept_again();
                self.deadline = None;
            }
            ToServe::Over => self.giving = None,
            ToServe::Done => return true,
        }
        false
    }
}

async fn next(requests: &mut Option<mpsc::UnboundedReceiver<Request>>) -> Option<Request> {
    match requests {
        Some(requests) => requests.recv().await,
        None => std::future::pending().await,
    }
}

/// True if connections are to be accepted, once that is known.
async fn goes(goes: &mut Option<oneshot::Receiver<()>>) -> bool {
    match goes {
        Some(goes) => goes.await.is_ok(),
        None => std::future::pending().await,
    }
}

async fn finished(taking: &mut Option<JoinHandle<Taken>>) -> Taken {
    match taking {
        // Who is not taken over is served by nobody else.
        Some(taking) => taking.await.unwrap_or(Taken::All),
        None => std::future::pending().await,
    }
}

async fn told(giving: &mut Option<Giving>) -> ToServe {
    match giving {
        Some(giving) => giving.told.recv().await.unwrap_or(ToServe::Over),
        None => std::future::pending().await,
    }
}

async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Idle clients go at once, others when their transaction ends.
async fn drain(proxy: &Proxy) {
    proxy.handles.poke_all(SHUTDOWN);
    let deadline = tokio::time::Instant::now() + proxy.settings().config.shutdown_timeout;
    while proxy.handles.count() > 0 && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_login_goes_when_there_are_too_many() {
        let mut strangers = Strangers::default();
        let mut inside: Vec<_> = (0..STRANGERS).map(|_| strangers.enter()).collect();
        // The second was let in.
        drop(inside.remove(1));
        let next = strangers.enter();
        assert!(inside.iter_mut().all(|one| one.try_recv().is_err()));
        let _last = strangers.enter();
        assert_eq!(inside[0].try_recv(), Ok(()));
        assert!(inside[1].try_recv().is_err());
        drop(next);
    }
}
