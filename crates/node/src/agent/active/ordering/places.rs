//! The places for replication connections that the agent takes, so that nobody else is sent the log.
//!
//! Invariant: a place that was taken is left only when it is told to be, whatever becomes of the others: who comes next is
//! sent what is flushed.

use pgdata::confirm::Place;
use pgserver::Session;
use tokio::sync::{mpsc, oneshot};

use super::Parts;
use super::driver::{Of, Teller};
use super::steps::Event;

/// Places that are being taken, or are taken. All are left when this is dropped.
pub(super) struct Held {
    /// Tells these from earlier ones.
    pub number: u64,
    /// One is left for each word.
    pub leave_one: mpsc::Sender<()>,
    /// Fails when all have been left.
    pub gone: oneshot::Receiver<()>,
}

/// Takes places, and holds them until they are to be left.
pub(super) async fn take_and_hold(
    parts: Parts,
    number: u64,
    leave_one: mpsc::Receiver<()>,
    tell: Teller,
) {
    match parts.take_places().await {
        Ok(places) => {
            tell.say(Of::Places(number), Event::AllPlaces).await;
            hold(places, number, leave_one, &tell).await;
        }
        Err(why) => tell.say(Of::Places(number), Event::SomePlaces(why)).await,
    }
}

/// Holds places, and tells of each that is lost.
async fn hold(
    mut places: Vec<Place>,
    number: u64,
    mut leave_one: mpsc::Receiver<()>,
    tell: &Teller,
) {
    loop {
        tokio::select! {
            biased;
            one = leave_one.recv() => match (one, places.pop()) {
                (Some(()), Some(place)) => place.leave().await,
                (Some(()), None) => {}
                (None, last) => {
                    places.extend(last);
                    break;
                }
            },
            at = first_lost(&mut places) => {
                drop(places.swap_remove(at));
                tell.say(Of::Places(number), Event::PlaceLost).await;
            }
        }
    }
    for place in places {
        place.leave().await;
    }
}

/// Waits until one is lost, and says which.
async fn first_lost(places: &mut [Place]) -> usize {
    if places.is_empty() {
        return std::future::pending().await;
    }
    let all = places.iter_mut().map(|place| Box::pin(place.lost()));
    futures_util::future::select_all(all).await.1
}

impl Parts {
    /// Takes all places but the one of the connection that confirms.
    async fn take_places(&self) -> Result<Vec<Place>, String> {
        let (socket, user) = self.place();
        let session = Session::open(
            &self.postgres.run,
            self.postgres.port,
            &self.postgres.superuser,
        );
        let session = session.await.map_err(|error| error.to_string())?;
        let number = |text: Option<String>| text.and_then(|text| text.parse::<u32>().ok());
        let asked = session.value("SHOW max_wal_senders").await;
        let all = number(asked.map_err(|error| error.to_string())?)
            .ok_or("the server does not say how many replication connections it takes")?;
        let version = session.value("SHOW server_version_num").await;
        let version = number(version.map_err(|error| error.to_string())?);
        let options = match version {
            Some(version) if version >= 140_000 => "-c idle_session_timeout=0",
            _ => "",
        };
        let mut places = Vec::new();
        for _ in 1..all {
            match Place::take(&socket, &user, options).await {
                Ok(place) => places.push(place),
                Err(error) => {
                    for place in places {
                        place.leave().await;
                    }
                    return Err(format!(
                        "another replication connection is there ({error}); the log is ordered when it has gone"
                    ));
                }
            }
        }
        Ok(places)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{UnixListener, UnixStream};

    use super::*;

    /// A place, and the server's end of it.
    async fn place(listener: &UnixListener, socket: &Path) -> (Place, UnixStream) {
        let serves = async {
            let (mut served, _) = listener.accept().await.unwrap();
            // All of the greeting, so that what is read later is what comes later.
            let len = served.read_u32().await.unwrap() as usize - 4;
            served.read_exact(&mut vec![0; len]).await.unwrap();
            served
                .write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I")
                .await
                .unwrap();
            served
        };
        let (place, served) = tokio::join!(Place::take(socket, "postgres", ""), serves);
        (place.unwrap(), served)
    }

    /// True if the agent has left a place, which it does with a word.
    async fn is_left(served: &mut UnixStream) -> bool {
        let mut word = [0; 1];
        let read = tokio::time::timeout(Duration::from_millis(200), served.read(&mut word));
        read.await
            .is_ok_and(|read| read.unwrap() == 1 && word == *b"X")
    }

    /// All were left as soon as one was lost, before the log was strict.
    // hazard: ORDER-16
    #[tokio::test]
    async fn a_lost_place_is_told_and_the_others_are_kept_until_they_may_be_left() {
        let dir = TempDir::new().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let (mut places, mut served) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let (place, server) = place(&listener, &socket).await;
            places.push(place);
            served.push(server);
        }
        let (teller, mut events) = Teller::new();
        let (leave_one, asked) = mpsc::channel(1);
        let holds = tokio::spawn(async move { hold(places, 7, asked, &teller).await });
        drop(served.remove(0));
        assert_eq!(events.recv().await, Some((Of::Places(7), Event::PlaceLost)));
        for served in &mut served {
            assert!(!is_left(served).await, "nobody has said that it may be");
        }
        leave_one.send(()).await.unwrap();
        let mut left = 0;
        for served in &mut served {
            left += u32::from(is_left(served).await);
        }
        assert_eq!(left, 1);
        drop(leave_one);
        holds.await.unwrap();
        for served in &mut served {
            left += u32::from(is_left(served).await);
        }
        assert_eq!(left, 3);
    }
}
