//! A client that leaves for another process: whether it can, and what goes with it.
//!
//! Invariant: from the moment when its sockets are on their way nothing is read from them or written to them here, unless they
//! come back.

use std::io;

use tokio::sync::oneshot;

use crate::core::session::{Context, Session};
use crate::driver::handover::{ClientParcel, Leaving, Plain, ServerParcel, Sockets, write};
use crate::driver::pool::Held;
use crate::driver::socket::Socket;

use super::{Client, context};

impl Client {
    /// If another process takes clients over, this one is to leave.
    pub(super) fn hear_of_handover(&mut self) {
        if let Some(number) = self.proxy.handover.number() {
            self.is_leaving = self.can_leave_at_all();
            self.handle.has_heard(number, !self.is_leaving);
        }
    }

    /// What TLS knows of a connection stays in its process; and a session may have something that only an encrypted
    /// connection to a server has.
    fn can_leave_at_all(&self) -> bool {
        let is_to_server = |held: &Held| held.conn.socket.is_encrypted();
        let is_kept = self.held.as_ref().is_some_and(is_to_server);
        !(self.socket.is_encrypted() || is_kept && self.session.needs_its_connection())
    }

    /// True if it is between two transactions, and nothing is on its way to or from a server.
    pub(super) fn can_leave_now(&self) -> bool {
        let is_quiet = |held: &Held| held.conn.is_quiet();
        let is_at_rest = self.acquiring.is_none()
            && self.position.is_none()
            && self.parked.is_none()
            && self.out.server.is_empty()
            && self.held.as_ref().is_none_or(is_quiet);
        is_at_rest && self.look(Session::may_leave)
    }

    /// Leaves for another process. Whether that has taken it.
    pub(super) async fn leave(&mut self) -> bool {
        self.is_leaving = self.can_leave_at_all();
        if !self.is_leaving {
            return false;
        }
        let is_plain = |held: &Held| !held.conn.socket.is_encrypted();
        let goes_along = self.held.as_ref().is_some_and(is_plain);
        let parcel = write(&self.parcel(goes_along));
        let Ok(sockets) = self.take_sockets(goes_along) else {
            return true;
        };
        let (answer, answered) = oneshot::channel();
        self.proxy.handover.leave(Leaving {
            id: self.handle.id,
            parcel,
            sockets,
            answer,
        });
        match answered.await.ok().flatten() {
            Some(back) => {
                self.is_leaving = false;
                // A socket that cannot be taken back is as good as closed.
                self.return_sockets(back).is_err()
            }
            None => {
                if let Some(held) = self.held.take().filter(|_| !goes_along) {
                    held.conn.close();
                }
                true
            }
        }
    }

    /// What describes it.
    fn parcel(&self, goes_along: bool) -> ClientParcel {
        let held = self.held.as_ref().filter(|_| goes_along);
        ClientParcel {
            id: self.handle.id,
            secret: self.handle.secret().to_vec(),
            is_unix: self.socket.is_unix(),
            peer: self.handle.peer,
            age_s: self.handle.since.elapsed().as_secs(),
            batches: self.session.counts().batches,
            login: self.pool.login(),
            input: self.input.to_vec(),
            output: self.out.client.to_vec(),
            session: self.look(|session, cx| session.pack(cx, goes_along)),
            server: held.map(|held| ServerParcel::of(&held.conn)),
        }
    }

    fn take_sockets(&mut self, goes_along: bool) -> io::Result<Sockets> {
        let take = |socket: &mut Socket| Plain::of(std::mem::replace(socket, Socket::Gone));
        let held = self.held.as_mut().filter(|_| goes_along);
        Ok(Sockets {
            server: held.map(|held| take(&mut held.conn.socket)).transpose()?,
            client: take(&mut self.socket)?,
        })
    }

    fn return_sockets(&mut self, sockets: Sockets) -> io::Result<()> {
        self.socket = sockets.client.into_socket()?;
        if let (Some(held), Some(server)) = (&mut self.held, sockets.server) {
            held.conn.socket = server.into_socket()?;
        }
        Ok(())
    }

    /// Asks the session something.
    fn look<T>(&self, ask: impl FnOnce(&Session, &Context<'_>) -> T) -> T {
        let topology = self.proxy.cluster.topology();
        let volatile = self.functions.read().clone();
        ask(
            &self.session,
            &context(&self.proxy, &self.scope, &volatile, &topology),
        )
    }
}
