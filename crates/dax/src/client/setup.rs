//! Making a volume, and learning how one is laid out, before there is a client.

use std::collections::BTreeSet;

use tokio::task::JoinSet;

use super::connection::{Backoff, Stream, Who, describe, greet, within};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::VolumeName;
use crate::storage::VolumeSettings;
use crate::wire::{Request, Response};

/// Makes a volume. A fresh one is made once every replica has said that it does not know it, because
/// one that is away might; returns once all have it. Where some know it already, those that do not
/// are told that they have lost it, and this returns once a majority knows it: repeating is harmless.
/// Waits while replicas are missing.
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
    let mut attempts = JoinSet::new();
    for (index, replica) in replicas.iter().enumerate() {
        let (replica, volume) = (replica.clone(), volume.clone());
        let who = Who {
            name: "init".into(),
            zone: None,
        };
        attempts.spawn(async move { (index, settings_at(&replica, &volume, &who).await) });
    }
    let (mut known, mut unknown) = (0, BTreeSet::new());
    while known <= replicas.len() / 2
        && let Some(attempt) = attempts.join_next().await
    {
        match attempt {
            Ok((_, Ok(found))) if found == *settings => known += 1,
            Ok((_, Ok(found))) => return Err(other_settings(volume, &found)),
            Ok((index, Err(error))) if error.kind() == ErrorKind::NotFound => {
                unknown.insert(index);
            }
            Ok((_, Err(error))) => return Err(error),
            Err(error) => {
                return Err(Error::with_source(
                    ErrorKind::Unavailable,
                    "creating the volume was cut short",
                    error,
                ));
            }
        }
    }
    for index in unknown {
        let request = Request::CreateVolume {
            volume: volume.clone(),
            settings: settings.clone(),
            rebuild: known > 0,
        };
        create_in(&replicas[index], request).await?;
    }
    Ok(())
}

/// Tells a replica that it has lost the volume.
pub(super) async fn begin_rebuild(
    address: &str,
    volume: &VolumeName,
    settings: &VolumeSettings,
) -> Result<()> {
    let request = Request::CreateVolume {
        volume: volume.clone(),
        settings: settings.clone(),
        rebuild: true,
    };
    let attempt = async { Stream::open(address).await?.exchange(&request).await };
    match within(address, attempt).await? {
        Response::Done => Ok(()),
        other => Err(unexpected(address, &other)),
    }
}

fn unexpected(address: &str, reply: &Response) -> Error {
    Error::new(
        ErrorKind::Protocol,
        format!("{address} does not answer as a replica: {reply:?}"),
    )
}

fn other_settings(volume: &VolumeName, found: &VolumeSettings) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("volume {volume} exists with other settings: {found:?}"),
    )
}

/// Tries until the replica has the volume or refuses it.
async fn create_in(replica: &str, request: Request) -> Result<()> {
    let mut backoff = Backoff::new();
    loop {
        let attempt = async { Stream::open(replica).await?.exchange(&request).await };
        match within(replica, attempt).await {
            Ok(Response::Done) => return Ok(()),
            Ok(other) => return Err(unexpected(replica, &other)),
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
    who: &Who,
) -> Result<VolumeSettings> {
    let mut attempts = JoinSet::new();
    for (index, replica) in replicas.iter().enumerate() {
        let (replica, volume, who) = (replica.clone(), volume.clone(), who.clone());
        attempts.spawn(async move { (index, settings_at(&replica, &volume, &who).await) });
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
async fn settings_at(replica: &str, volume: &VolumeName, who: &Who) -> Result<VolumeSettings> {
    let mut backoff = Backoff::new();
    loop {
        match greet(replica, volume, who).await {
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
