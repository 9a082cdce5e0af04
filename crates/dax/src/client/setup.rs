//! Making a volume, and learning how one is laid out, before there is a client.

use std::collections::BTreeSet;

use tokio::task::JoinSet;

use super::ClientConfig;
use super::connection::{Backoff, describe};
use super::greeting::Introduction;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::VolumeName;
use crate::storage::VolumeSettings;

/// Makes the volume that `config` names in its replicas. A fresh one is made once every replica has said that it does not know it, because
/// one that is away might; returns once all have it. Where some know it already, those that do not
/// are told that they have lost it, and this returns once a majority knows it: repeating is harmless.
/// Waits while replicas are missing.
///
/// # Errors
/// `Conflict` if it exists with other settings, `Invalid` if the settings make no sense, `Denied` if a
/// replica refuses the key, or is refused.
pub async fn create_volume(config: &ClientConfig, settings: &VolumeSettings) -> Result<()> {
    settings.check()?;
    let (replicas, volume) = (&config.replicas, &config.volume);
    check_replicas(replicas, settings)?;
    let introduction = Introduction::new(config);
    let mut attempts = JoinSet::new();
    for (index, replica) in replicas.iter().enumerate() {
        let (replica, introduction) = (replica.clone(), introduction.clone());
        attempts.spawn(async move { (index, settings_at(&replica, &introduction).await) });
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
        create_in(&replicas[index], &introduction, settings, known > 0).await?;
    }
    Ok(())
}

fn other_settings(volume: &VolumeName, found: &VolumeSettings) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("volume {volume} exists with other settings: {found:?}"),
    )
}

/// Tries until the replica has the volume or refuses it.
async fn create_in(
    replica: &str,
    introduction: &Introduction,
    settings: &VolumeSettings,
    rebuild: bool,
) -> Result<()> {
    let mut backoff = Backoff::new();
    loop {
        match introduction.create(replica, settings, rebuild).await {
            Err(error) if is_passing(&error) => {
                tracing::info!(
                    replica,
                    why = describe(&error),
                    "volume not created there yet"
                );
            }
            result => return result,
        }
        backoff.wait().await;
    }
}

fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Full)
}

/// How a volume is laid out, from the first replica that knows it. A few replicas that do not know it,
/// or cannot be trusted, keep nobody from using the others.
///
/// # Errors
/// `NotFound` or `Denied` if a majority of the replicas answers so.
pub(super) async fn find_settings(
    replicas: &[String],
    introduction: &Introduction,
) -> Result<VolumeSettings> {
    let mut attempts = JoinSet::new();
    for replica in replicas {
        let (replica, introduction) = (replica.clone(), introduction.clone());
        attempts.spawn(async move { settings_at(&replica, &introduction).await });
    }
    let mut refusals = Vec::new();
    while let Some(attempt) = attempts.join_next().await {
        let Ok(result) = attempt else {
            continue;
        };
        match result {
            Ok(settings) => {
                settings.check()?;
                check_replicas(replicas, &settings)?;
                return Ok(settings);
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Denied) => {
                tracing::info!(why = describe(&error), "replica cannot be used");
                refusals.push(error);
                if refusals.len() > replicas.len() / 2 {
                    break;
                }
            }
            Err(error) => return Err(error),
        }
    }
    // What is to be changed comes before what is not there.
    let denied = refusals
        .iter()
        .position(|error| error.kind() == ErrorKind::Denied);
    let told = (!refusals.is_empty()).then(|| refusals.swap_remove(denied.unwrap_or(0)));
    Err(told.unwrap_or_else(|| {
        let message = format!("no replica knows volume {}", introduction.volume);
        Error::new(ErrorKind::NotFound, message)
    }))
}

/// Asks one replica until it answers.
async fn settings_at(replica: &str, introduction: &Introduction) -> Result<VolumeSettings> {
    let mut backoff = Backoff::new();
    loop {
        match introduction.greet(replica).await {
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
