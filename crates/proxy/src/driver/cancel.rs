//! Cancel requests: which session of a server one goes to, and whom it may strike.
//!
//! Invariant: no other client gets a connection to a server while a request for what ran on it may still strike. A server
//! closes the connection of a request after it has signalled the session, and PostgreSQL signals twice (the process, and
//! its group), so the answer to the statement that was meant can be there before the second signal is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use super::dial::{DialError, Dialer};

/// A server that does not answer a request in this time may still carry it out at any later one.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The cancel requests for one session of a server.
#[derive(Debug, Default)]
pub struct Requests {
    /// Held for reading by each that is under way.
    under_way: Arc<RwLock<()>>,
    /// Of one it is not known whether it will still be carried out.
    is_open: AtomicBool,
}

impl Requests {
    /// True if the session can go to another client; `None` while a request is under way.
    pub fn are_settled(&self) -> Option<bool> {
        let _nobody = self.under_way.try_write().ok()?;
        Some(!self.is_open.load(Ordering::Acquire))
    }

    /// Waits for those that are under way. Whether the session can go to another client.
    pub async fn settle(&self) -> bool {
        let _nobody = self.under_way.write().await;
        !self.is_open.load(Ordering::Acquire)
    }
}

/// The session of a server in which a client's statements run.
#[derive(Debug, Clone)]
pub struct Target {
    /// The server's address.
    pub address: Arc<str>,
    /// What the server knows the session by.
    pub key: (i32, i32),
    /// The requests for it.
    pub requests: Arc<Requests>,
}

impl Target {
    /// A request that is under way from now on. `None` if the session is another client's by now.
    pub fn begin(&self) -> Option<Request> {
        let under_way = self.requests.under_way.clone().try_read_owned().ok()?;
        Some(Request {
            target: self.clone(),
            _under_way: under_way,
        })
    }
}

/// A request that is under way.
pub struct Request {
    target: Target,
    _under_way: OwnedRwLockReadGuard<()>,
}

impl Request {
    /// Sends it, and waits until the server has carried it out.
    pub async fn send(self, dialer: &Dialer) {
        let Target {
            address, requests, ..
        } = &self.target;
        match tokio::time::timeout(TIMEOUT, self.exchange(dialer)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, %address, "a cancel request did not reach the server");
            }
            Err(_) => {
                requests.is_open.store(true, Ordering::Release);
                tracing::debug!(%address, "a server did not answer a cancel request in time");
            }
        }
    }

    async fn exchange(&self, dialer: &Dialer) -> Result<(), DialError> {
        let Target {
            address,
            key,
            requests,
        } = &self.target;
        let mut socket = dialer.dial(address).await?;
        let mut request = bytes::BytesMut::new();
        postgres_protocol::message::frontend::cancel_request(key.0, key.1, &mut request);
        if let Err(error) = socket.drain(&mut request).await {
            // Some of it may have arrived.
            requests.is_open.store(true, Ordering::Release);
            return Err(error.into());
        }
        // However the server closes the connection, it has done what it does.
        let _ = socket.read(&mut bytes::BytesMut::new()).await;
        Ok(())
    }
}
