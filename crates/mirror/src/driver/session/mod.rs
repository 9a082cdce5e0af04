//! A client's session: a connection to the member of its own, which is sent what the client says, as it says it.
//!
//! ```text
//!   client ──▶ what the manager must refuse, or say in another way ──▶ member
//!   client ◀── answers, while the epoch stands ◀────────────────────── member: a COMMIT waits there until the log has it
//! ```
//!
//! Invariant: what the client is told was so while this manager's epoch stood, and a session that is not answered is told that what was
//! under way may have happened.

mod bound;
mod direct;
mod leaving;
mod login;
mod names;
mod relay;
mod restore;
mod startup;
mod under_way;
mod visit;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use protocol::frame::Refusal;
use proxy::core::session::SessionState;
use proxy::driver::socket::Socket;
use tokio::sync::watch;

use super::hub::{Hub, Inside};
use super::wire::{Reply, Wire, WireError, reply};
use crate::core::manager::Life;

use login::Secret;
use names::Names;
use startup::{Cancel, Entered};
use under_way::Direct;

pub use startup::{Cancels, cancel, receive};
pub use visit::visit;

/// What a client is sent is written when it is so much.
const PENDING_BYTES: usize = 64 << 10;

/// A manager notices within this time that its member is lost.
const LOSS_NOTICED: Duration = Duration::from_secs(5);

/// Why a session ends.
#[derive(Debug)]
enum End {
    /// The client, or the member, is gone.
    Lost(io::Error),
    /// The client is told this.
    Told(Box<Refusal>),
    /// The client is told what the member says.
    Server(BytesMut),
    /// This manager is not primary any more, and the session has nothing under way: it goes on at the other one.
    Leaves,
    /// The client has ended it.
    Terminated,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Lost(error)
    }
}

impl From<WireError> for End {
    fn from(error: WireError) -> End {
        match error {
            WireError::Lost(error) => End::Lost(error),
            WireError::Server(said) => End::Lost(io::Error::other(said.message)),
        }
    }
}

type Result<T> = std::result::Result<T, End>;

/// A client's session.
pub struct Session {
    hub: Arc<Hub>,
    client: Wire,
    server: Wire,
    /// Of the member's server that it is at.
    life: Life,
    serving: watch::Receiver<Option<u32>>,
    /// The state of the member's session: `I`, `T` or `E`.
    status: u8,
    prepared: Names,
    /// What it has set, and what else it has.
    keeps: SessionState,
    /// It has begun something.
    inside: Option<Inside>,
    /// Messages that are under way.
    direct: Direct,
    /// With this it is cancelled.
    cancel: Arc<Cancel>,
    /// The client may not see a warning, so each of its commits is taken for one that was cancelled.
    hides_warnings: bool,
    /// The client's first message.
    startup: Vec<u8>,
    /// How the client has proved who it is; `None` if its connection is the other manager's.
    secret: Option<Secret>,
}

impl Session {
    fn new(hub: Arc<Hub>, client: Wire, entered: Entered) -> Session {
        Session {
            serving: hub.serving(),
            hub,
            client,
            server: entered.server,
            life: entered.life,
            status: b'I',
            prepared: Names::default(),
            keeps: SessionState::default(),
            inside: None,
            direct: Direct::default(),
            cancel: entered.cancel,
            hides_warnings: entered.hides_warnings,
            startup: entered.startup,
            secret: entered.secret,
        }
    }

    /// Serves the client until either side ends it.
    async fn serve(mut self) {
        let ended = loop {
            match self.step_directly().await {
                Ok(()) => {}
                Err(End::Leaves | End::Lost(_)) if self.hub.config.single => break member_lost(),
                Err(End::Leaves) => {
                    self.inside = None;
                    if let Err(end) = self.leave().await {
                        break end;
                    }
                }
                Err(end) => break end,
            }
        };
        self.client.say_why(ended).await;
    }

    /// True if nothing is under way.
    fn is_between(&self) -> bool {
        self.status == b'I' && self.direct.watched.is_idle()
    }

    /// Begins something, as soon as it may; not if this manager stops being primary before that.
    async fn begin(&mut self) -> bool {
        let mut gate = None;
        loop {
            if self.serving.borrow().is_none() {
                return false;
            }
            if let Some(inside) = self.hub.enter_gate() {
                self.inside = Some(inside);
                return self.is_at_known_server().await;
            }
            // It may have opened before it is watched.
            let Some(gate) = &mut gate else {
                gate = Some(self.hub.gate());
                continue;
            };
            tokio::select! {
                _ = gone(&mut self.serving) => return false,
                _ = gate.changed() => {}
            }
        }
    }

    /// True if its member's server is still the one that was asked what it has. That is asked again after a connection was
    /// lost, the server's or the manager's alone.
    async fn is_at_known_server(&mut self) -> bool {
        if self.server.is_gone() {
            return false;
        }
        if self.hub.look(|manager| manager.life()) == self.life {
            return true;
        }
        match self.hub.member.life_at(&mut self.server).await {
            Ok(life) => {
                self.life = life;
                true
            }
            Err(error) => {
                tracing::debug!(%error, "a session goes on with another one of the member's");
                self.server = Wire::new(Socket::Gone);
                false
            }
        }
    }

    /// The member has ended a session with nothing under way. Most likely it is lost itself: then somebody else becomes primary,
    /// and the session goes on there.
    async fn lose_server(&mut self, error: io::Error) -> Result<()> {
        if self.hub.config.single {
            return Err(End::Lost(error));
        }
        self.server = Wire::new(Socket::Gone);
        match tokio::time::timeout(LOSS_NOTICED, gone(&mut self.serving)).await {
            Ok(_) => Err(End::Leaves),
            Err(_) => Err(End::Lost(error)),
        }
    }

    /// Asks the member something for the manager itself.
    async fn ask(&mut self, text: &str) -> Result<Reply> {
        super::member::put_extended(&mut self.server.output, text, &[])?;
        self.server.flush().await?;
        let reply = reply(&mut self.server).await?;
        self.status = reply.status;
        Ok(reply)
    }

    /// Waits until what was read is certain to be right: nobody else had become primary in the meantime.
    async fn check_lease(&mut self) -> Result<()> {
        if self.hub.config.single || self.hub.is_confirmed() {
            return Ok(());
        }
        tokio::select! {
            () = self.hub.until_confirmed() => Ok(()),
            gone = gone(&mut self.serving) => Err(gone),
        }
    }
}

/// The only member is lost: there is nowhere else to go on, and no log to ask.
fn member_lost() -> End {
    let refusal = Refusal::fatal("57P01", "the connection to the member is lost")
        .hint("Connect again; a commit that was under way may have happened.");
    End::Told(Box::new(refusal))
}

fn not_primary() -> End {
    let refusal = Refusal::fatal("57P01", "this manager is not primary any more")
        .hint("Connect again, to the other one: name both in the connection string.");
    End::Told(Box::new(refusal))
}

/// Waits until clients are not served any more.
async fn gone(serving: &mut watch::Receiver<Option<u32>>) -> End {
    let epoch = *serving.borrow_and_update();
    if epoch.is_some() {
        // The sender lives as long as the process.
        let _ = serving.wait_for(|now| *now != epoch).await;
    }
    not_primary()
}
