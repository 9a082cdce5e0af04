//! What the manager has the zones do, in order.

use std::io;
use std::sync::Arc;

use dax::error::{Error, ErrorKind};
use tokio::sync::mpsc;
use xxhash_rust::xxh3::xxh3_128;

use super::hub::Hub;
use crate::core::log::{EARLIER_LOG, Identity};
use crate::core::manager::Manager;
use crate::core::record::{Number, Record};

/// A question to the zones.
#[derive(Debug)]
pub enum Job {
    LookAtLog,
    Own,
    ReadLog,
    Append(u32, Vec<Record>),
    Trim(Number),
}

/// Does what the zones are asked for, in order.
pub async fn work(hub: Arc<Hub>, mut asked: mpsc::UnboundedReceiver<Job>) {
    while let Some(job) = asked.recv().await {
        do_job(&hub, job).await;
    }
}

async fn do_job(hub: &Hub, job: Job) {
    match job {
        Job::LookAtLog => match hub.zones.begins().await {
            Ok((first, log)) => hub.act(|manager, out| manager.log_begins(first, log, out)),
            Err(error) => failed(hub, &error),
        },
        Job::Own => match hub.zones.own().await {
            Ok(epoch) => hub.act(|manager, out| manager.owned(epoch, out)),
            Err(error) => failed(hub, &error),
        },
        Job::ReadLog => read_log(hub).await,
        Job::Append(epoch, records) => {
            let last = records
                .last()
                .map(|record| record.number)
                .unwrap_or_default();
            match hub.zones.append(&records).await {
                Ok(()) => hub.act(|manager, out| manager.durable(epoch, last, out)),
                Err(error) => {
                    tracing::warn!(%error, epoch, "the log cannot be written: this manager is not primary any more");
                    hub.zones.forget();
                    hub.act(|manager, out| manager.fenced(epoch, out));
                }
            }
        }
        Job::Trim(before) => {
            if let Err(error) = hub.zones.trim(before).await {
                tracing::debug!(%error, "the log's past cannot be given back");
            }
        }
    }
}

impl Hub {
    /// Asks the zones whether an epoch stands.
    pub(super) async fn confirm(&self, epoch: u32) {
        let asked_ms = self.now_ms();
        match self.zones.confirm().await {
            Ok(confirmed) if confirmed == epoch => {
                self.act(|manager, out| manager.confirmed(epoch, asked_ms, out));
                self.confirmed.notify_waiters();
            }
            Ok(_) => {}
            Err(error) if error.kind() == dax::error::ErrorKind::Fenced => {
                self.act(|manager, out| manager.fenced(epoch, out));
            }
            Err(error) => tracing::debug!(%error, "the epoch cannot be confirmed"),
        }
    }

    /// Reads records of the log for the other manager.
    pub(super) async fn read_for_peer(&self, from: Number) {
        match self.zones.batch(from).await {
            Ok(records) => self.act(|manager, out| manager.read_for_peer(from, records, out)),
            Err(error) => {
                tracing::warn!(%error, %from, "the log cannot be read for the other manager");
                self.act(|manager, out| manager.peer_lost(out));
            }
        }
    }
}

fn failed(hub: &Hub, error: &Error) {
    if error.to_string().contains(EARLIER_LOG) {
        tracing::error!("{EARLIER_LOG}");
        *hub.hindrance.lock() = Some(EARLIER_LOG.to_owned());
    }
    tracing::debug!(%error, "no epoch can be owned");
    hub.zones.forget();
    hub.act(|manager, _| manager.not_owned());
}

async fn read_log(hub: &Hub) {
    let Some(epoch) = hub.look(Manager::taking) else {
        return;
    };
    match read_and_name(hub, epoch).await {
        Ok(Some((last, log))) => {
            hub.act(|manager, out| manager.log_ends(epoch, last, log, out));
        }
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(%error, epoch, "the log cannot be read");
            hub.zones.forget();
            hub.act(|manager, out| manager.fenced(epoch, out));
        }
    }
}

/// Where the log ends, and which it is: it is named if it does not say that yet. Nothing if the manager gives it up meanwhile.
async fn read_and_name(hub: &Hub, epoch: u32) -> dax::error::Result<Option<(Number, Identity)>> {
    let is_given_up = || hub.look(Manager::taking) != Some(epoch);
    let log = hub.zones.identity().await?;
    if let Some(log) = log {
        hub.act(|manager, out| manager.log_is(epoch, log, out));
    }
    if is_given_up() {
        return Ok(None);
    }
    let take = |records| hub.act(|manager, out| manager.log_records(epoch, records, out));
    let last = hub.zones.read(take).await?;
    if let Some(log) = log {
        return Ok(Some((last, log)));
    }
    if is_given_up() {
        return Ok(None);
    }
    let unused =
        unused_identity().map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))?;
    let named = hub.look(|manager| manager.names(last, unused));
    hub.zones.name(named).await?;
    tracing::info!(log = %named, "the log did not say which it is, and does from now on");
    Ok(Some((last, named)))
}

/// What no log is called yet.
pub fn unused_identity() -> io::Result<Identity> {
    let random = protocol::scram::nonce().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Identity(xxh3_128(random.as_bytes())))
}
