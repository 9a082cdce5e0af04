//! Letting a client in at the member.
//!
//! The member asks, and what both say is passed on, but for SCRAM: there the manager asks the client itself, with what the member
//! keeps of its password, and proves the same to the member with what the client's proof has revealed. So clients can bind their
//! proof to the manager's certificate, and a session can be let in elsewhere without the client. Invariants: a client's keys are
//! kept in memory alone, and only if its proof was right; a client that the member lets in because it is the manager that asks (`trust`,
//! `peer`) has proved to the manager that it knows the password, unless the operator wants no proof.

use std::sync::Arc;

use bytes::{Buf, BufMut, BytesMut};
use protocol::frame::{self, Refusal};
use protocol::scram::{self, Doorkeeper, Keys, MECHANISM, Prover, Unproved, Verifier};

use super::super::hub::Hub;
use super::super::wire::Wire;
use super::{End, Result};
use crate::core::manager::Life;
use crate::core::moving::Proved;

/// How a client has proved who it is.
#[derive(Debug, Clone)]
pub enum Secret {
    /// It was not asked.
    Nothing,
    /// By SCRAM, which has revealed these.
    Keys(Keys),
    /// By another of the protocol's methods.
    Other(u32),
}

impl Secret {
    /// True if that can be proved again.
    pub fn proved(&self) -> Proved {
        match self {
            Secret::Nothing | Secret::Keys(_) => Proved::Repeatably,
            Secret::Other(method) => Proved::Once(*method),
        }
    }

    /// Answers in the client's place.
    pub fn prover(&self) -> Prover {
        Prover::new(match self {
            Secret::Keys(keys) => Some(keys.clone()),
            Secret::Nothing | Secret::Other(_) => None,
        })
    }
}

/// A client at the door.
pub struct Client<'a> {
    wire: &'a mut Wire,
    user: String,
    /// What it can bind its proof to.
    endpoint: Option<Arc<[u8]>>,
    prover: Option<Prover>,
    secret: Secret,
}

/// Who answers what the member asks.
pub enum Door<'a> {
    /// A client.
    Client(Client<'a>),
    /// Another manager, in its client's place.
    Visitor(Client<'a>),
    /// This manager, in its client's place.
    Own(Prover),
}

/// Somebody who was let in.
#[derive(Debug)]
pub struct Admitted {
    /// Cancels what the session does.
    pub key: Vec<u8>,
    /// Of the server that it is at.
    pub life: Life,
    /// The session shows no warnings.
    pub hides_warnings: bool,
    /// What the member says of its settings.
    pub reported: Vec<BytesMut>,
    /// How the client has proved who it is.
    pub secret: Secret,
}

/// The method that a member asks for.
fn method(message: &[u8]) -> u32 {
    let body = frame::body(message).get(..4);
    body.map_or(0, |mut method| method.get_u32())
}

/// True if an answer is expected.
fn asks(method: u32) -> bool {
    matches!(method, 3 | 5 | 10 | 11)
}

/// Logs in with a client's first message.
pub async fn log_in(
    hub: &Hub,
    server: &mut Wire,
    startup: &[u8],
    mut door: Door<'_>,
) -> Result<Admitted> {
    let len = u32::try_from(startup.len() + 4).unwrap_or(u32::MAX);
    server.output.put_u32(len);
    server.output.extend_from_slice(startup);
    server.flush().await?;
    let (mut key, mut reported) = (Vec::new(), Vec::new());
    loop {
        let message = server.receive().await?;
        match message[0] {
            b'R' => {
                door.answer(hub, &message, server).await?;
                continue;
            }
            b'E' => return Err(End::Server(message)),
            b'K' => key = frame::body(&message).to_vec(),
            b'S' => reported.push(message.clone()),
            _ => {}
        }
        let entered = match message[0] {
            b'Z' => Some(at_known_server(hub, server).await?),
            _ => None,
        };
        if let Door::Client(client) = &mut door {
            client.wire.output.extend_from_slice(&message);
        }
        if let Some((life, hides_warnings)) = entered {
            let secret = match door {
                Door::Client(client) => client.secret,
                _ => Secret::Nothing,
            };
            return Ok(Admitted {
                key,
                life,
                hides_warnings,
                reported,
                secret,
            });
        }
    }
}

/// A server that has crashed since it was asked what it has lacks what it had committed last.
async fn at_known_server(hub: &Hub, server: &mut Wire) -> Result<(Life, bool)> {
    let asked = hub.member.enters(server).await;
    asked.map_err(|error| not_ready(&error))
}

/// The member is lost before a session has begun anything.
pub fn not_ready(error: &dyn std::error::Error) -> End {
    let refusal = Refusal::fatal("57P03", "the member is not ready")
        .detail(format!("{error}."))
        .hint("Try again in a moment.");
    End::Told(Box::new(refusal))
}

impl<'a> Door<'a> {
    /// A client whose proof can be bound to `endpoint`.
    pub fn of_client(wire: &'a mut Wire, user: String, endpoint: Option<Arc<[u8]>>) -> Door<'a> {
        Door::Client(Client {
            wire,
            user,
            endpoint,
            prover: None,
            secret: Secret::Nothing,
        })
    }

    /// Another manager's client.
    pub fn of_visitor(wire: &'a mut Wire, user: String) -> Door<'a> {
        match Door::of_client(wire, user, None) {
            Door::Client(client) => Door::Visitor(client),
            other => other,
        }
    }

    async fn answer(&mut self, hub: &Hub, message: &[u8], server: &mut Wire) -> Result<()> {
        match self {
            Door::Own(prover) => prove(prover, message, server).await,
            Door::Visitor(visitor) => visitor.visit(hub, message, server).await,
            Door::Client(client) => client.answer(hub, message, server).await,
        }
    }
}

impl Client<'_> {
    async fn answer(&mut self, hub: &Hub, message: &[u8], server: &mut Wire) -> Result<()> {
        let method = method(message);
        let is_unproved = method == 0 && matches!(self.secret, Secret::Nothing);
        let is_ours = is_unproved && !hub.config.clients_need_no_proof;
        if is_ours || method == 10 && offers_scram(message) {
            let keys = self.exchange(hub).await?;
            self.prover = Some(Prover::new(Some(keys.clone())));
            self.secret = Secret::Keys(keys);
        }
        if let Some(prover) = self.prover.as_mut().filter(|_| method != 0) {
            return prove(prover, message, server).await;
        }
        if asks(method) {
            self.secret = Secret::Other(method);
        }
        pass_on(self.wire, message, server).await
    }

    /// The other manager answers in its client's place. Without certificates anybody on this machine may say that he is the other one, so
    /// whom the member does not ask proves to this manager what he has proved to the other one.
    async fn visit(&mut self, hub: &Hub, message: &[u8], server: &mut Wire) -> Result<()> {
        let method = method(message);
        let is_unproved = method == 0 && matches!(self.secret, Secret::Nothing);
        let is_known = hub.protection.peers.is_some() || hub.config.clients_need_no_proof;
        if is_unproved && !is_known {
            self.secret = Secret::Keys(self.exchange(hub).await?);
        }
        if asks(method) {
            self.secret = Secret::Other(method);
        }
        pass_on(self.wire, message, server).await
    }

    /// The client proves that it knows its password: what that reveals.
    async fn exchange(&mut self, hub: &Hub) -> Result<Keys> {
        let told = |refusal: Refusal| End::Told(Box::new(refusal));
        let kept = hub.member.verifier(&self.user).await?;
        let verifier = kept
            .as_deref()
            .and_then(Verifier::parse)
            .unwrap_or_else(|| Verifier::of_nobody(hub.protection.secret.as_bytes(), &self.user));
        let endpoint = self.endpoint.clone();
        self.ask(10, &scram::offer(endpoint.is_some())).await?;
        let first = self.answered().await?;
        let nonce =
            scram::nonce().map_err(|error| told(Refusal::fatal("58000", error.to_string())))?;
        let begun = scram::read_initial(&first, endpoint.as_deref())
            .and_then(|(channel, first)| Doorkeeper::begin(verifier, channel, first, &nonce));
        let (doorkeeper, answer) = begun.map_err(|error| told(error.refusal(&self.user)))?;
        self.ask(11, answer.as_bytes()).await?;
        let last = self.answered().await?;
        let judged = doorkeeper.finish(&String::from_utf8_lossy(&last));
        let (keys, answer) = judged.map_err(|error| told(error.refusal(&self.user)))?;
        // That it is let in the member says, in its turn.
        let pieces: [&[u8]; 2] = [&12u32.to_be_bytes(), answer.as_bytes()];
        frame::put(&mut self.wire.output, b'R', &pieces);
        Ok(keys)
    }

    async fn ask(&mut self, method: u32, text: &[u8]) -> Result<()> {
        frame::put(&mut self.wire.output, b'R', &[&method.to_be_bytes(), text]);
        Ok(self.wire.flush().await?)
    }

    async fn answered(&mut self) -> Result<BytesMut> {
        let message = self.wire.receive().await?;
        match message[0] {
            b'p' => Ok(BytesMut::from(frame::body(&message))),
            _ => {
                let refusal = Refusal::fatal("08P01", "expected an authentication message");
                Err(End::Told(Box::new(refusal)))
            }
        }
    }
}

fn offers_scram(message: &[u8]) -> bool {
    let offered = frame::body(message).get(4..).unwrap_or_default();
    offered
        .split(|byte| *byte == 0)
        .any(|name| name == MECHANISM.as_bytes())
}

async fn pass_on(wire: &mut Wire, message: &[u8], server: &mut Wire) -> Result<()> {
    wire.output.extend_from_slice(message);
    if asks(method(message)) {
        wire.flush().await?;
        let answer = wire.receive().await?;
        server.output.extend_from_slice(&answer);
        server.flush().await?;
    }
    Ok(())
}

async fn prove(prover: &mut Prover, message: &[u8], server: &mut Wire) -> Result<()> {
    let answered = prover.answer(frame::body(message), &mut server.output);
    answered.map_err(|error| End::Told(Box::new(not_proved(&error))))?;
    Ok(server.flush().await?)
}

/// What a client is told in whose place a member cannot be answered.
pub fn not_proved(error: &Unproved) -> Refusal {
    Refusal::fatal("57P01", "the manager cannot log in again in the client's place")
        .detail(format!("{error}."))
        .hint("Connect again. Let pg_hba.conf of both members ask the managers' addresses for the same, trust or scram-sha-256.")
}
