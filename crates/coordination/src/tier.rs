//! The storage tier that a configuration names: zone servers, or Apache Cassandra.

use std::sync::Arc;

use dax::client::Client;
use dax::error::{Error, ErrorKind};
use dax::storage::{Storage, VolumeSettings};

use crate::config::ClusterConfig;
use crate::records::{Moved, Record, RecordError};

/// Opens the volume; the handle owns no epoch. `client_name` is for the zone servers' logs.
///
/// # Errors
/// As [`Client::connect`] and `cassandra::Client::connect`.
pub async fn connect(config: &ClusterConfig, client_name: &str) -> dax::Result<Arc<dyn Storage>> {
    match config.cassandra_client()? {
        Some(client) => on_cassandra::connect(client).await,
        None => Ok(Client::connect(config.client(client_name)?).await?),
    }
}

/// Opens the volume that the database is in now: the one that the configuration names, or where it was moved to from there. The
/// configuration that is returned leads to it at once. A database that moves later is not followed: [`has_moved`] tells.
///
/// # Errors
/// As [`connect`], and `Corrupt` if what the volumes say cannot be understood.
pub async fn current(
    config: &ClusterConfig,
    client_name: &str,
) -> dax::Result<(ClusterConfig, Arc<dyn Storage>)> {
    let mut config = config.clone();
    loop {
        let storage = connect(&config, client_name).await?;
        match has_moved(&config, storage.as_ref()).await? {
            Some(moved) => config.moved = Some(moved),
            None => return Ok((config, storage)),
        }
    }
}

/// Where the database has gone from the volume that this configuration leads to, if it has.
///
/// # Errors
/// Of the storage tier, and `Corrupt` if what it says cannot be understood.
pub async fn has_moved(
    config: &ClusterConfig,
    storage: &dyn Storage,
) -> dax::Result<Option<Moved>> {
    let moved = Moved::load(storage).await.map_err(|error| match error {
        RecordError::Storage(error) => error,
        damaged => Error::with_source(ErrorKind::Corrupt, "the record \"moved\"", damaged),
    })?;
    Ok(moved.filter(|moved| moved.number > config.moves()))
}

/// Makes the volume.
///
/// # Errors
/// As [`dax::client::create_volume`] and `cassandra::create_volume`.
pub async fn create_volume(config: &ClusterConfig, settings: &VolumeSettings) -> dax::Result<()> {
    match config.cassandra_client()? {
        Some(client) => on_cassandra::create_volume(&client, settings).await,
        None => dax::client::create_volume(&config.client("init")?, settings).await,
    }
}

/// Removes the volume for good; its name is not used again.
///
/// # Errors
/// As [`dax::client::remove_volume`]; `Invalid` on Cassandra.
pub async fn remove_volume(config: &ClusterConfig) -> dax::Result<()> {
    if config.store.is_some() {
        let text = "a volume on Apache Cassandra cannot be removed by itself: drop its keyspace";
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    dax::client::remove_volume(&config.client("remove")?, &config.name).await
}

#[cfg(feature = "cassandra")]
mod on_cassandra {
    use super::{Arc, Storage, VolumeSettings};

    // The driver's futures are large, so they are boxed.
    pub(super) async fn connect(client: cassandra::Config) -> dax::Result<Arc<dyn Storage>> {
        Ok(Box::pin(cassandra::Client::connect(client)).await?)
    }

    pub(super) async fn create_volume(
        client: &cassandra::Config,
        settings: &VolumeSettings,
    ) -> dax::Result<()> {
        Box::pin(cassandra::create_volume(client, settings)).await
    }
}

/// A program that was built without the driver refuses what needs it.
#[cfg(not(feature = "cassandra"))]
mod on_cassandra {
    use super::{Arc, Error, ErrorKind, Storage, VolumeSettings};

    pub(super) async fn connect(_: cassandra::Config) -> dax::Result<Arc<dyn Storage>> {
        Err(absent())
    }

    pub(super) async fn create_volume(
        _: &cassandra::Config,
        _: &VolumeSettings,
    ) -> dax::Result<()> {
        Err(absent())
    }

    fn absent() -> Error {
        let message =
            "this program was built without Apache Cassandra (cargo's feature \"cassandra\")";
        Error::new(ErrorKind::Invalid, message)
    }
}
