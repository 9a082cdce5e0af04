//! A session whose manager is not primary any more: it goes on at whichever is, and its client does not notice.
//!
//! See [`crate::core::moving`] for the states. While it is elsewhere, messages are relayed.

use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use protocol::frame::{self, Refusal};
use proxy::driver::socket::Socket;
use tokio::time::Instant;

use super::super::peer;
use super::super::wire::{ServerError, Wire};
use super::login::{Door, log_in, not_proved};
use super::startup::{Goes, reach};
use super::{End, Result, Session, not_primary};
use crate::core::moving::Belongings;

/// How long a session waits for a new primary.
const PATIENCE: Duration = Duration::from_secs(10);
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Where a session goes on.
enum Place {
    Here,
    There(Box<There>),
}

/// A session that goes on at the other manager.
struct There {
    wire: Wire,
    /// Cancels it.
    key: Vec<u8>,
    /// What its settings are.
    reported: Vec<BytesMut>,
}

/// Why the other manager does not let a session in.
enum Turned {
    /// It is not primary, or not there: it may be later.
    Not(String),
    /// It never will.
    Away(End),
}

impl From<std::io::Error> for Turned {
    fn from(error: std::io::Error) -> Turned {
        Turned::Not(error.to_string())
    }
}

/// True if a server that refuses a session with this code is not ready, or has no place now.
fn may_pass(code: &str) -> bool {
    ["57P03", "53300"].contains(&code)
}

impl End {
    /// True if what has begun nothing may be tried again.
    fn may_pass(&self) -> bool {
        match self {
            End::Lost(_) => true,
            End::Told(refusal) => may_pass(refusal.code),
            End::Server(said) => may_pass(&ServerError::read(said.clone()).code),
            End::Leaves | End::Terminated => false,
        }
    }
}

impl Session {
    /// Goes on at the other manager, and comes back if that one is not primary any more either. Nothing is under way.
    pub(super) async fn leave(&mut self) -> Result<()> {
        let mut belongings = self.pack().await?;
        if self.secret.is_none() {
            return Err(self.send_back(&belongings).await?);
        }
        let mut is_here = !self.server.is_gone();
        let mut deadline = Instant::now() + PATIENCE;
        loop {
            match self.find_place(&belongings, deadline).await? {
                // Its session here has waited.
                Place::Here if is_here && self.is_at_known_server().await => return Ok(()),
                Place::Here => match self.settle(&belongings).await {
                    // The member is lost, and this manager is about to notice it.
                    Err(end) if end.may_pass() && Instant::now() < deadline => {
                        tokio::time::sleep(TRY_AGAIN).await;
                    }
                    settled => return settled,
                },
                Place::There(mut there) => {
                    is_here = false;
                    self.close_server().await;
                    *self.cancel.goes.lock() = Goes::There(std::mem::take(&mut there.key));
                    self.report(&there.reported);
                    belongings = self.relay(&mut there.wire).await?;
                    deadline = Instant::now() + PATIENCE;
                }
            }
        }
    }

    /// Waits until one of both managers is primary, for a while.
    async fn find_place(&mut self, belongings: &Belongings, deadline: Instant) -> Result<Place> {
        let mut last = String::new();
        while Instant::now() < deadline {
            if self.serving.borrow_and_update().is_some() {
                return Ok(Place::Here);
            }
            if *self.hub.ending.borrow() {
                return Err(not_primary());
            }
            let mut serving = self.serving.clone();
            let visited = tokio::select! {
                visited = tokio::time::timeout_at(deadline, self.visit_other(belongings)) => visited,
                _ = serving.changed() => continue,
            };
            match visited {
                Ok(Ok(there)) => return Ok(Place::There(Box::new(there))),
                Ok(Err(Turned::Away(end))) => return Err(end),
                Ok(Err(Turned::Not(why))) => last = why,
                Err(_) => {}
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
        let refusal = Refusal::fatal(
            "57P01",
            "this manager is not primary any more, and no other one is yet",
        );
        let refusal = refusal.hint("Connect again; nothing was under way.");
        Err(End::Told(Box::new(match last.is_empty() {
            true => refusal,
            false => refusal.detail(format!("The other one: {last}.")),
        })))
    }

    /// Asks the other manager to let the session go on there.
    async fn visit_other(&self, belongings: &Belongings) -> std::result::Result<There, Turned> {
        let mut wire = Wire::new(peer::visit(&self.hub, belongings).await?);
        let mut prover = self.secret.as_ref().map(|secret| secret.prover());
        let (mut key, mut reported) = (Vec::new(), Vec::new());
        loop {
            let message = wire.receive().await?;
            match message[0] {
                b'R' => {
                    if let Some(prover) = &mut prover {
                        let answered = prover.answer(frame::body(&message), &mut wire.output);
                        answered.map_err(|error| {
                            Turned::Away(End::Told(Box::new(not_proved(&error))))
                        })?;
                        wire.flush().await?;
                    }
                }
                b'S' => reported.push(message),
                b'K' => key = frame::body(&message).to_vec(),
                b'E' => {
                    let said = ServerError::read(message);
                    return Err(match may_pass(&said.code) {
                        true => Turned::Not(said.message),
                        false => Turned::Away(turned_away(said)),
                    });
                }
                b'Z' => {
                    return Ok(There {
                        wire,
                        key,
                        reported,
                    });
                }
                _ => {}
            }
        }
    }

    /// Goes on here, after it was elsewhere.
    async fn settle(&mut self, belongings: &Belongings) -> Result<()> {
        let mut server = reach(&self.hub).await?;
        let prover = self.secret.as_ref().map(|secret| secret.prover());
        let door = Door::Own(prover.unwrap_or_default());
        let admitted = log_in(&self.hub, &mut server, &belongings.startup, door).await?;
        self.server = server;
        self.life = admitted.life;
        self.hides_warnings |= admitted.hides_warnings;
        let mut reported = admitted.reported;
        reported.append(&mut self.unpack(belongings).await?);
        self.report(&reported);
        *self.cancel.goes.lock() = Goes::Here(admitted.key);
        Ok(())
    }

    /// Tells the client what its settings are: those of the other member's may differ, such as the server's version.
    fn report(&mut self, reported: &[BytesMut]) {
        let name =
            |message: &BytesMut| frame::name(frame::body(message)).map(|(name, _)| name.to_owned());
        for (at, message) in reported.iter().enumerate() {
            let is_last = !reported[at + 1..]
                .iter()
                .any(|later| name(later) == name(message));
            if is_last {
                self.client.output.extend_from_slice(message);
            }
        }
    }

    /// Ends the session on this manager's member.
    async fn close_server(&mut self) {
        let mut server = std::mem::replace(&mut self.server, Wire::new(Socket::Gone));
        frontend::terminate(&mut server.output);
        // It may be gone.
        let _ = tokio::time::timeout(Duration::from_secs(1), server.flush()).await;
        self.hub
            .counters
            .moved
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// The other member, or its manager, refuses the session.
fn turned_away(said: ServerError) -> End {
    let refusal = Refusal::fatal(
        "57P01",
        "this manager is not primary any more, and the other one does not let the session in",
    );
    let detail = format!("{}: {}.", said.code, said.message.trim_end_matches('.'));
    End::Told(Box::new(refusal.detail(detail).hint(
        "Connect again, to the other one: name both in the connection string.",
    )))
}
