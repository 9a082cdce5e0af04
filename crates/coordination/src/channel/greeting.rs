//! The beginning of a connection: who is there, what it wants, and whether there is room.
//!
//! Connections share the agent's open files with those to the zones, which everything depends on, so there are not more than
//! [`CONNECTIONS_MAX`]. Whoever has not greeted yet may be anybody who can reach the port. The oldest of them makes room
//! for the next: a greeting takes milliseconds, so those who mean it are let in beside many who say nothing.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::time::Duration;

use dax::tls::Tls;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::frame::{Frames, Socket, Writer, unexpected};
use super::message::{Identity, Message, SILENCE, VERSION, Wants};

/// Connections, at most; more are turned away. A zone bears as many of one volume, and whoever is connected here is connected
/// there as well.
pub(super) const CONNECTIONS_MAX: usize = 256;
/// Those of them that have not greeted yet, at most.
const GREETINGS_MAX: usize = 64;
/// Refused connections are told to an operator at most so often.
const REFUSALS_TOLD_EVERY: Duration = Duration::from_secs(60);

/// Those who have not greeted yet, in the order in which they came.
#[derive(Default)]
pub(super) struct Greetings(VecDeque<oneshot::Sender<()>>);

impl Greetings {
    /// Another one, for which the oldest one may have to go.
    pub(super) fn enter(&mut self) -> Room {
        self.0.retain(|greeting| !greeting.is_closed());
        if self.0.len() >= GREETINGS_MAX {
            self.0.pop_front();
        }
        let (greeting, room) = oneshot::channel();
        self.0.push_back(greeting);
        Room(room)
    }
}

/// The place of one who greets.
pub(super) struct Room(oneshot::Receiver<()>);

impl Room {
    /// Its greeting, if it comes before others need the place.
    pub(super) async fn within<T>(
        self,
        greeting: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        tokio::select! {
            biased;
            greeted = greeting => greeted,
            // Nothing is ever sent.
            _ = self.0 => Err(unexpected("no greeting, and others wait")),
        }
    }
}

/// Connections that were refused: who is comes again every 100 ms, and an operator hears of it now and then.
#[derive(Default)]
pub(super) struct Refusals(Mutex<Option<Instant>>);

impl Refusals {
    pub(super) fn tell(&self, why: &dyn Display) {
        let mut told = self.0.lock();
        if told.is_none_or(|at| at.elapsed() > REFUSALS_TOLD_EVERY) {
            *told = Some(Instant::now());
            tracing::warn!(error = %why, "a connection to the direct channel is refused");
        }
    }
}

/// Somebody who has greeted.
pub(super) struct Greeted {
    pub frames: Frames,
    pub writer: Writer,
    pub version: u16,
    pub who: Identity,
    pub wants: Wants,
    /// True if it takes the log along with triggers.
    pub log: bool,
}

/// Hears who is there.
pub(super) async fn greet(
    socket: Socket,
    tls: Option<&Tls>,
    refusals: &Refusals,
) -> io::Result<Greeted> {
    let (reader, writer) = timeout(SILENCE, socket.answer(tls))
        .await?
        .map_err(|error| {
            refusals.tell(&error);
            io::Error::other(error)
        })?;
    let mut frames = Frames::new(reader);
    match timeout(SILENCE, frames.next()).await?? {
        Some(Message::Hello {
            version,
            me: who,
            wants,
            log,
        }) => Ok(Greeted {
            frames,
            writer,
            version,
            who,
            wants,
            log,
        }),
        _ => Err(unexpected("no greeting")),
    }
}

/// Why `me` has nothing to say to somebody of that version.
pub(super) fn objection(me: &Identity, version: u16, who: &Identity) -> Option<String> {
    if version != VERSION {
        return Some(format!(
            "this agent speaks version {VERSION} of the channel, the caller {version}: run the same release"
        ));
    }
    (who.volume != me.volume).then(|| {
        format!(
            "node {} works for volume {}, the caller for {}",
            me.node, me.volume, who.volume
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // hazard: SEC-1
    #[tokio::test]
    async fn the_oldest_of_too_many_who_say_nothing_makes_room() {
        let mut greetings = Greetings::default();
        let mut first = greetings.enter();
        // Those who have greeted need none.
        for _ in 0..2 * GREETINGS_MAX {
            let greeted = greetings.enter().within(async { Ok(7) }).await;
            assert_eq!(greeted.unwrap(), 7);
        }
        let mut rest: Vec<Room> = (1..GREETINGS_MAX).map(|_| greetings.enter()).collect();
        let none = first.0.try_recv();
        assert_eq!(none, Err(oneshot::error::TryRecvError::Empty));
        rest.push(greetings.enter());
        let nothing = std::future::pending::<io::Result<()>>();
        assert!(first.within(nothing).await.is_err());
        let none = rest[0].0.try_recv();
        assert_eq!(none, Err(oneshot::error::TryRecvError::Empty));
    }
}
