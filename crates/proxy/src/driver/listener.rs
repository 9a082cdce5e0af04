//! Lets clients in.
//!
//! Invariant: no more than [`STRANGERS`] connections have not proved yet who they are. A client is done with that in
//! milliseconds, so whoever has taken longest goes when another one comes.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;

use super::Proxy;
use super::descriptors;
use super::handle::SHUTDOWN;
use super::socket::Socket;
use super::startup;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

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
    /// The address cannot be listened at.
    #[error("cannot listen at {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// No random numbers.
    #[error("the system has no random numbers")]
    Random(#[source] getrandom::Error),
    /// A certificate makes no sense, the proxy's own or one that servers are judged by.
    #[error(transparent)]
    Tls(dax::error::Error),
}

/// Listens and serves until `shutdown` is done; then lets transactions end, up to the configured time.
///
/// # Errors
/// If the address cannot be listened at.
pub async fn serve(
    proxy: Arc<Proxy>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    descriptors::allow(proxy.config.max_clients + STRANGERS);
    let address = proxy.config.listen;
    let listener = listen(address).map_err(|source| ServeError::Listen { address, source })?;
    tracing::info!(%address, "the proxy listens");
    tokio::pin!(shutdown);
    let mut strangers = Strangers::default();
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    // Latency is all that Nagle's algorithm would bring.
                    let _ = stream.set_nodelay(true);
                    let socket = Socket::Tcp(stream);
                    let sent_away = strangers.enter();
                    tokio::spawn(startup::receive(proxy.clone(), socket, Some(peer.ip()), sent_away));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            },
        }
    }
    drop(listener);
    drain(&proxy).await;
    Ok(())
}

/// Several processes may listen at the same address: a new one begins before the old one has ended.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
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
    fn who_takes_longest_goes_when_there_are_too_many() {
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
