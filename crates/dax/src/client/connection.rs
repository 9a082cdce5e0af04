//! One connection to one replica: address, stream, the task that keeps it up.
//!
//! Invariant: what is read from a connection reaches the core only while that connection is the
//! replica's current one; frames go out in the order the core made them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use super::core::Advice;
use super::driver::{Dial, Driver};
use super::greeting::Greeting;
use super::outbox::{Line, transmit};
use super::stream::{Reader, Stream};
use crate::error::describe;
use crate::ids::ReplicaId;
use crate::wire::{MAX_FRAME_BYTES, Response};

/// Waits between attempts to connect.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Waits longer after each failure.
pub(super) struct Backoff(Duration);

impl Backoff {
    pub fn new() -> Backoff {
        Backoff(BACKOFF_MIN)
    }

    pub async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(BACKOFF_MAX);
    }
}

/// Keeps the replicas connected that the driver wants, for as long as the client lives.
pub(super) async fn keep_all_connected(driver: Arc<Driver>, mut dials: UnboundedReceiver<Dial>) {
    let mut connections = JoinSet::new();
    while let Some(dial) = dials.recv().await {
        connections.spawn(keep_connected(Arc::clone(&driver), dial));
        while connections.try_join_next().is_some() {}
    }
}

/// Keeps one replica connected for as long as that is wanted.
async fn keep_connected(driver: Arc<Driver>, dial: Dial) {
    let Dial {
        replica,
        address,
        number,
    } = dial;
    let mut backoff = Backoff::new();
    let mut reported = false;
    while driver.is_dialed(replica, number) {
        match driver.introduction.greet(&address).await {
            Ok(Greeting::Known(greeted)) if greeted.settings == *driver.settings() => {
                let Stream { reader, writer } = greeted.stream;
                match driver.replica_up(replica, &greeted.arrival, writer) {
                    Ok(up) => {
                        tracing::info!(%replica, address, "replica connected");
                        (backoff, reported) = (Backoff::new(), false);
                        let why = serve(&driver, replica, reader, up).await;
                        tracing::warn!(%replica, address, why, "replica lost");
                    }
                    Err(error) => {
                        report(&driver, replica, &address, describe(&error), &mut reported);
                    }
                }
            }
            Ok(Greeting::Known(_)) => {
                let why = "the replica knows the volume with other settings";
                report(&driver, replica, &address, why.into(), &mut reported);
            }
            Ok(Greeting::Unknown(store)) => match driver.advise(replica, store) {
                Advice::Create(membership) => {
                    tracing::warn!(%replica, address, "the replica does not know the volume: it is sent all of it");
                    let (introduction, settings) = (&driver.introduction, driver.settings());
                    let members = membership.as_ref();
                    let created = introduction.create(&address, settings, true, members).await;
                    match created {
                        Ok(()) => continue,
                        Err(error) => {
                            report(&driver, replica, &address, describe(&error), &mut reported);
                        }
                    }
                }
                Advice::Leave(why) => report(&driver, replica, &address, why, &mut reported),
            },
            Err(error) => report(&driver, replica, &address, describe(&error), &mut reported),
        }
        backoff.wait().await;
    }
}

/// Tells an operator once per outage.
fn report(driver: &Driver, replica: ReplicaId, address: &str, why: String, reported: &mut bool) {
    if !std::mem::replace(reported, true) {
        tracing::warn!(%replica, address, why, "replica cannot be used");
    }
    driver.replica_trouble(replica, why);
}

/// Runs a connection until it ends; says why.
async fn serve(
    driver: &Arc<Driver>,
    replica: ReplicaId,
    reader: Reader,
    (connection, line): (u64, Arc<Line>),
) -> String {
    let why = tokio::select! {
        why = receive(driver, replica, connection, reader) => why,
        why = transmit(line) => why,
    };
    driver.replica_down(replica, connection, &why);
    why
}

async fn receive(
    driver: &Arc<Driver>,
    replica: ReplicaId,
    connection: u64,
    mut reader: Reader,
) -> String {
    loop {
        let frame = match reader.next(MAX_FRAME_BYTES).await {
            Ok(frame) => frame,
            Err(error) => return error.to_string(),
        };
        match Response::decode(frame) {
            Ok((id, response)) => driver.message(replica, connection, id, response),
            Err(error) => return error.to_string(),
        }
    }
}
