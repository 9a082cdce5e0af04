//! A session on another node's PostgreSQL, through its agent: what an operator's `psql` speaks through.
//!
//! The agent connects to its server's private Unix socket, where the superuser needs no password. So such a
//! session is given only to those who could read the whole database from the zones as well: over TLS with the
//! cluster's certificates, or over the agent's own Unix socket.

use std::io;

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use crate::address::Address;

use super::client::open;
use super::frame::{Frames, Writer};
use super::message::Wants;
use super::{Party, Result};

/// A connection to a PostgreSQL on which nothing was said yet.
pub struct Session {
    frames: Frames,
    writer: Writer,
}

/// Opens a session on the PostgreSQL of the agent at `address`.
///
/// # Errors
/// [`super::ChannelError::Refusal`] with the agent's words if it has no server, or the connection is not
/// protected.
pub async fn open_session(address: &Address, me: &Party) -> Result<Session> {
    let (frames, writer, _) = open(address, me, Wants::Session, false).await?;
    Ok(Session { frames, writer })
}

impl Session {
    /// Carries what a client and the server say to each other, until either ends the session.
    ///
    /// # Errors
    /// What the system says when a connection breaks.
    pub async fn serve(self, client: UnixStream) -> io::Result<()> {
        join(self.frames, self.writer, client).await
    }
}

/// Copies both ways until one side ends: PostgreSQL's protocol knows no half of a connection.
pub(super) async fn join(frames: Frames, mut writer: Writer, socket: UnixStream) -> io::Result<()> {
    let (mut reader, read_already) = frames.into_parts();
    let (mut from, mut to) = socket.into_split();
    to.write_all(&read_already).await?;
    tokio::select! {
        ended = tokio::io::copy(&mut reader, &mut to) => ended?,
        ended = tokio::io::copy(&mut from, &mut writer) => {
            writer.shutdown().await?;
            ended?
        }
    };
    Ok(())
}
