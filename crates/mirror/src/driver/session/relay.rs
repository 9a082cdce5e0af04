//! Messages of a session that goes on at the other manager, and its way back.
//!
//! ```text
//!   the client's manager          the primary
//!     ◀── Leave ──────────────────  not primary any more, nothing under way
//!     ─── Stopped ────────────────▶ nothing more of the client's comes
//!     ◀── Brought ────────────────  what the session has, and what of the client's was not begun
//! ```

use std::time::Duration;

use bytes::BytesMut;
use protocol::frame::{self, Refusal};

use super::super::wire::Wire;
use super::under_way::Watched;
use super::{End, PENDING_BYTES, Result, Session, not_primary};
use crate::core::moving::Belongings;

/// Types of messages that PostgreSQL does not have.
const LEAVE: u8 = b'<';
const STOPPED: u8 = b'=';
const BROUGHT: u8 = b'>';

/// How long a way back may take, and how long another primary may be silent after this manager has become one.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a relay waits for.
enum Came {
    FromClient(BytesMut),
    FromServer(BytesMut),
    /// The process is about to end.
    End,
    /// The other manager is not primary any more, and does not say so.
    Silence,
}

impl Watched {
    /// The other manager is gone.
    fn lost(&self) -> End {
        if self.was_refused {
            // It has said why.
            return End::Terminated;
        }
        let text = "the connection to the other manager, where the session goes on, is lost";
        let hint = "Connect again: name both managers in the connection string.";
        End::Told(Box::new(match self.is_idle() {
            true => Refusal::fatal("57P01", text).hint(hint),
            false => Refusal::fatal("08006", text)
                .detail("A transaction whose commit was under way may have committed.")
                .hint(hint),
        }))
    }
}

impl Session {
    /// Relays until the session comes back.
    pub(super) async fn relay(&mut self, there: &mut Wire) -> Result<Belongings> {
        let mut watched = Watched::default();
        let (mut ending, mut serving) = (self.hub.ending.subscribe(), self.serving.clone());
        loop {
            self.client.flush().await?;
            there.flush().await.map_err(|_| watched.lost())?;
            let came = tokio::select! {
                message = self.client.receive() => Came::FromClient(message.map_err(|_| End::Terminated)?),
                message = there.receive() => Came::FromServer(message.map_err(|_| watched.lost())?),
                () = ends(&mut ending), if watched.is_idle() => Came::End,
                () = has_served(&mut serving) => Came::Silence,
            };
            match came {
                Came::FromClient(first) => self.pass_up(first, there, &mut watched)?,
                Came::FromServer(first) => {
                    if self.pass_down(first, there, &mut watched)? {
                        let brought = tokio::time::timeout(PATIENCE, self.bring_back(there)).await;
                        return brought.map_err(|_| watched.lost())?;
                    }
                }
                Came::End => return Err(not_primary()),
                Came::Silence => return Err(watched.lost()),
            }
        }
    }

    /// Passes on what the client says.
    fn pass_up(&mut self, first: BytesMut, there: &mut Wire, watched: &mut Watched) -> Result<()> {
        let mut next = Some(first);
        while let Some(message) = next {
            watched.client_says(message[0]);
            there.output.extend_from_slice(&message);
            next = match there.output.len() < PENDING_BYTES {
                true => self.client.take()?,
                false => None,
            };
        }
        Ok(())
    }

    /// Passes on what the primary says; whether it wants the session to leave.
    fn pass_down(
        &mut self,
        first: BytesMut,
        there: &mut Wire,
        watched: &mut Watched,
    ) -> Result<bool> {
        let mut next = Some(first);
        while let Some(message) = next {
            if message[0] == LEAVE {
                return Ok(true);
            }
            watched.server_says(&message);
            self.client.output.extend_from_slice(&message);
            next = match self.client.output.len() < PENDING_BYTES {
                true => there.take()?,
                false => None,
            };
        }
        Ok(false)
    }

    /// The session comes back.
    async fn bring_back(&mut self, there: &mut Wire) -> Result<Belongings> {
        frame::put(&mut there.output, STOPPED, &[]);
        there.flush().await?;
        loop {
            let message = there.receive().await?;
            if message[0] != BROUGHT {
                self.client.output.extend_from_slice(&message);
                continue;
            }
            let brought: (Belongings, Vec<u8>) =
                postcard::from_bytes(frame::body(&message)).map_err(std::io::Error::other)?;
            self.client.put_back(&brought.1);
            return Ok(brought.0);
        }
    }

    /// Gives a session back to the manager that its client is connected to.
    pub(super) async fn send_back(&mut self, belongings: &Belongings) -> Result<End> {
        frame::put(&mut self.client.output, LEAVE, &[]);
        self.client.flush().await?;
        let mut unread = BytesMut::new();
        let reading = async {
            loop {
                let message = self.client.receive().await?;
                if message[0] == STOPPED {
                    return Ok(());
                }
                unread.extend_from_slice(&message);
            }
        };
        let read: std::io::Result<()> = tokio::time::timeout(PATIENCE, reading)
            .await
            .map_err(|_| End::Terminated)?;
        read?;
        let brought = (belongings, unread.as_ref());
        let body = postcard::to_allocvec(&brought).map_err(std::io::Error::other)?;
        frame::put(&mut self.client.output, BROUGHT, &[&body]);
        Ok(End::Terminated)
    }
}

/// The process is about to end.
async fn ends(ending: &mut tokio::sync::watch::Receiver<bool>) {
    // The sender lives as long as the process.
    let _ = ending.wait_for(|ends| *ends).await;
}

/// This manager has been primary for a while.
async fn has_served(serving: &mut tokio::sync::watch::Receiver<Option<u32>>) {
    // The sender lives as long as the process.
    let _ = serving.wait_for(|epoch| epoch.is_some()).await;
    tokio::time::sleep(PATIENCE).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_commit_is_in_doubt_and_an_idle_session_is_not() {
        let code = |watched: &Watched| match watched.lost() {
            End::Told(refusal) => refusal.code,
            other => panic!("{other:?}"),
        };
        let mut watched = Watched::default();
        assert_eq!(code(&watched), "57P01");
        watched.client_says(b'Q');
        assert_eq!(code(&watched), "08006");
        watched.server_says(b"E\0\0\0\x05\0");
        assert!(matches!(watched.lost(), End::Terminated));
    }
}
