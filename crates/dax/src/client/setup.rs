//! Making a volume, and learning how one is laid out, before there is a client.

use std::collections::BTreeSet;

use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, timeout_at};

use super::connection::{Backoff, Stream, describe, greet, within};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::VolumeName;
use crate::storage::VolumeSettings;
use crate::wire::{Request, Response};

/// How long the replicas behind the majority are waited for.
const STRAGGLERS: Duration = Duration::from_secs(2);

/// Makes a volume in all replicas. Returns once a majority has it durably; replicas that answer soon get it
/// as well, others when this is called again. Repeating it is harmless. Waits while there is no
/// majority.
///
/// # Errors
/// `Conflict` if it exists with other settings, `Invalid` if the settings make no sense.
pub async fn create_volume(
    replicas: &[String],
    volume: &VolumeName,
    settings: &VolumeSettings,
) -> Result<()> {
    settings.check()?;
    check_replicas(replicas, settings)?;
    let request = Request::CreateVolume {
        volume: volume.clone(),
        settings: settings.clone(),
    };
    let mut attempts = JoinSet::new();
    for replica in replicas {
        attempts.spawn(create_in(replica.clone(), request.clone()));
    }
    let majority = replicas.len() / 2 + 1;
    let mut done = 0;
    let mut deadline = None;
    while done < replicas.len() {
        let next = async { attempts.join_next().await };
        let result = match deadline {
            None => next.await,
            Some(deadline) => match timeout_at(deadline, next).await {
                Ok(result) => result,
                Err(_) => break,
            },
        };
        match result {
            Some(Ok(created)) => created?,
            Some(Err(error)) => {
                return Err(Error::with_source(
                    ErrorKind::Unavailable,
                    "creating the volume was cut short",
                    error,
                ));
            }
            None => break,
        }
        done += 1;
        if done >= majority {
            deadline.get_or_insert_with(|| Instant::now() + STRAGGLERS);
        }
    }
    Ok(())
}

/// Tries until the replica has the volume or refuses it.
async fn create_in(replica: String, request: Request) -> Result<()> {
    let mut backoff = Backoff::new();
    loop {
        let attempt = async { Stream::open(&replica).await?.exchange(&request).await };
        match within(&replica, attempt).await {
            Ok(Response::Done) => return Ok(()),
            Ok(_) => {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    format!("{replica} does not answer as a replica"),
                ));
            }
            Err(error) if is_passing(&error) => {
                tracing::info!(
                    replica,
                    why = describe(&error),
                    "volume not created there yet"
                );
            }
            Err(error) => return Err(error),
        }
        backoff.wait().await;
    }
}

fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Full)
}

/// How a volume is laid out, from the first replica that knows it.
///
/// # Errors
/// `NotFound` if a majority of the replicas answers and none of them knows it.
pub(super) async fn find_settings(
    replicas: &[String],
    volume: &VolumeName,
    client: &str,
) -> Result<VolumeSettings> {
    let mut attempts = JoinSet::new();
    for (index, replica) in replicas.iter().enumerate() {
        let (replica, volume, client) = (replica.clone(), volume.clone(), client.to_owned());
        attempts.spawn(async move { (index, settings_at(&replica, &volume, &client).await) });
    }
    let mut unknown = BTreeSet::new();
    while let Some(attempt) = attempts.join_next().await {
        let Ok((index, result)) = attempt else {
            continue;
        };
        match result {
            Ok(settings) => {
                settings.check()?;
                check_replicas(replicas, &settings)?;
                return Ok(settings);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                unknown.insert(index);
                if unknown.len() > replicas.len() / 2 {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(Error::new(
        ErrorKind::NotFound,
        format!("no replica knows volume {volume}"),
    ))
}

/// Asks one replica until it answers.
async fn settings_at(replica: &str, volume: &VolumeName, client: &str) -> Result<VolumeSettings> {
    let mut backoff = Backoff::new();
    loop {
        match greet(replica, volume, client).await {
            Ok(greeted) => return Ok(greeted.settings),
            Err(error) if is_passing(&error) => {
                tracing::debug!(replica, why = describe(&error), "replica not reached yet");
            }
            Err(error) => return Err(error),
        }
        backoff.wait().await;
    }
}

/// Each replica keeps one replica, for now.
fn check_replicas(replicas: &[String], settings: &VolumeSettings) -> Result<()> {
    if replicas.len() != usize::from(settings.replicas) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{} replicas for {} replicas: give one address for each replica",
                replicas.len(),
                settings.replicas
            ),
        ));
    }
    Ok(())
}
