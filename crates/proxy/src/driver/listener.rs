//! Lets clients in.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};

use super::Proxy;
use super::handle::SHUTDOWN;
use super::socket::Socket;
use super::startup;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

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
    /// The certificate makes no sense.
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
    let address = proxy.config.listen;
    let listener = listen(address).map_err(|source| ServeError::Listen { address, source })?;
    tracing::info!(%address, "the proxy listens");
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    // Latency is all that Nagle's algorithm would bring.
                    let _ = stream.set_nodelay(true);
                    tokio::spawn(startup::receive(proxy.clone(), Socket::Tcp(stream), Some(peer.ip())));
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
    let deadline = tokio::time::Instant::now() + proxy.config.shutdown_timeout;
    while proxy.handles.count() > 0 && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
