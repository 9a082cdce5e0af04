//! Which of two processes serves whom while one hands its clients over to the other.
//!
//! Invariants: there is always one that accepts connections; a client is served by one of them and never by both; as long as
//! the hand-over is not decided, the end of the successor costs nobody anything.
//!
//! ```text
//!   predecessor                                    successor
//!   ┌──────────┐ ── Offer: format, epoch ────────▶ reads the format, and knows the cluster as well
//!   │ Offered  │ ◀── Accepts, or Refuses ────────
//!   └──────────┘ ── the listening socket ────────▶
//!   ┌──────────┐ ◀── Has ──────────────────────── has it, and does not accept connections yet
//!   │ Moving   │ ── clients between transactions ▶ holds them, and lets them wait
//!   └──────────┘ ◀── Understood ─────────────────
//!   ┌──────────┐ ── Go ──────────────────────────▶
//!   │ Deciding │ ◀── Goes ─────────────────────── and then accepts connections, and serves those it holds
//!   └──────────┘
//!   ┌──────────┐ ── the others as they end theirs ▶
//!   │ Decided  │ ── Done ────────────────────────▶
//!   └──────────┘
//! ```
//!
//! Until it hears `Goes` the predecessor keeps what it has sent, and goes on with all of it if the successor ends. From then on
//! a client is the successor's once it has been understood. The successor says either before it serves anybody by it, and what
//! it has said is heard before its end is: so nobody is taken back who was served.

use std::collections::BTreeSet;

/// What of a session is handed over, and how it is written. Another version that writes it otherwise has another number.
pub const FORMAT: u32 = 5;

/// A client, by its number.
pub type ClientId = u32;

/// What a predecessor hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// The successor reads the format and is ready to accept connections.
    Accepts,
    /// It has the listening socket.
    Has,
    /// A client has reached the point where it can leave.
    Leaves(ClientId),
    /// The successor has what it needs to serve the client.
    Understood(ClientId),
    /// It cannot serve the client.
    Declined(ClientId),
    /// Everybody who could leave at once has.
    AllAsked,
    /// The successor accepts connections from now on, and serves those whom it holds.
    Goes,
    /// The successor is gone, refuses, or says what is invalid.
    Lost,
}

/// What a predecessor does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Do {
    /// Send the listening socket.
    SendListener,
    /// Leave new connections to the successor.
    StopAccepting,
    /// Accept connections again.
    AcceptAgain,
    /// Ask all clients to leave when they can.
    AskClients,
    /// Nobody needs to leave any more.
    KeepClients,
    /// Send the client.
    Send(ClientId),
    /// Go on with the client.
    TakeBack(ClientId),
    /// The client is the successor's: forget it.
    Forget(ClientId),
    /// Let the successor serve.
    Go,
}

/// A rule that does not hold, to see that the tests notice.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// Connections are left to a successor that does not accept them yet.
    StopsTooEarly,
    /// Clients are forgotten as soon as they were understood.
    ForgetsTooEarly,
    /// Who was sent goes on here as well when the successor does not answer in time.
    TakesBackWhatWasUnderstood,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Offered,
    Starting,
    Moving,
    Deciding,
    Decided,
    Over,
}

/// A predecessor's part.
#[derive(Debug)]
pub struct Giving {
    stage: Stage,
    /// Sent, and not understood.
    sent: BTreeSet<ClientId>,
    /// Understood, before the decision.
    held: BTreeSet<ClientId>,
    all_asked: bool,
    #[cfg(test)]
    flaw: Option<Flaw>,
}

impl Default for Giving {
    fn default() -> Giving {
        Giving {
            stage: Stage::Offered,
            sent: BTreeSet::new(),
            held: BTreeSet::new(),
            all_asked: false,
            #[cfg(test)]
            flaw: None,
        }
    }
}

impl Giving {
    /// True if the successor serves, whatever happens now.
    pub fn is_decided(&self) -> bool {
        self.stage == Stage::Decided
    }

    /// True if there is no successor any more.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// True if a client may leave now.
    pub fn takes_clients(&self) -> bool {
        matches!(self.stage, Stage::Moving | Stage::Deciding | Stage::Decided)
    }

    /// Something happened: what is to be done, in order.
    pub fn hear(&mut self, heard: &Heard) -> Vec<Do> {
        match (self.stage, heard) {
            (Stage::Over, Heard::Leaves(client)) => vec![Do::TakeBack(*client)],
            (Stage::Over, _) => Vec::new(),
            (Stage::Offered, Heard::Accepts) => {
                self.stage = Stage::Starting;
                #[cfg(test)]
                if self.flaw == Some(Flaw::StopsTooEarly) {
                    return vec![Do::StopAccepting, Do::SendListener];
                }
                vec![Do::SendListener]
            }
            (Stage::Starting, Heard::Has) => {
                self.stage = Stage::Moving;
                vec![Do::AskClients]
            }
            (Stage::Moving | Stage::Deciding | Stage::Decided, Heard::Leaves(client)) => {
                self.sent.insert(*client);
                vec![Do::Send(*client)]
            }
            (_, Heard::Leaves(client)) => vec![Do::TakeBack(*client)],
            (Stage::Moving | Stage::Deciding | Stage::Decided, Heard::Understood(client))
                if self.sent.remove(client) =>
            {
                self.understood(*client)
            }
            (Stage::Moving | Stage::Deciding | Stage::Decided, Heard::Declined(client))
                if self.sent.remove(client) =>
            {
                let mut all = vec![Do::TakeBack(*client)];
                all.extend(self.decide());
                all
            }
            (Stage::Moving, Heard::AllAsked) => {
                self.all_asked = true;
                self.decide()
            }
            (Stage::Deciding | Stage::Decided, Heard::AllAsked) => Vec::new(),
            (Stage::Deciding, Heard::Goes) => {
                self.stage = Stage::Decided;
                let held = std::mem::take(&mut self.held);
                let forget = held.into_iter().map(Do::Forget);
                std::iter::once(Do::StopAccepting).chain(forget).collect()
            }
            // Whatever else is said is invalid now.
            _ => self.lose(),
        }
    }

    fn understood(&mut self, client: ClientId) -> Vec<Do> {
        if self.stage == Stage::Decided {
            return vec![Do::Forget(client)];
        }
        #[cfg(test)]
        if self.flaw == Some(Flaw::ForgetsTooEarly) {
            let mut all = vec![Do::Forget(client)];
            all.extend(self.decide());
            return all;
        }
        self.held.insert(client);
        self.decide()
    }

    /// Lets the successor serve, once it has everybody who could leave at once.
    fn decide(&mut self) -> Vec<Do> {
        if self.stage != Stage::Moving || !self.all_asked || !self.sent.is_empty() {
            return Vec::new();
        }
        self.stage = Stage::Deciding;
        vec![Do::Go]
    }

    /// There is no successor: everything is as it was, but for whom it has.
    fn lose(&mut self) -> Vec<Do> {
        let mut all = Vec::new();
        if self.stage == Stage::Decided {
            all.push(Do::AcceptAgain);
        }
        if self.takes_clients() {
            all.push(Do::KeepClients);
        }
        self.stage = Stage::Over;
        let back = std::mem::take(&mut self.held).into_iter();
        let back = back.chain(std::mem::take(&mut self.sent));
        all.extend(back.map(Do::TakeBack));
        all
    }
}

#[cfg(test)]
mod tests;
