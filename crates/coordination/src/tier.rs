//! The storage tier that a configuration names: zone servers, or Apache Cassandra.

use std::sync::Arc;

use dax::client::Client;
use dax::storage::{Storage, VolumeSettings};

use crate::config::ClusterConfig;

/// Opens the volume; the handle owns no epoch. `client_name` is for the zone servers' logs.
///
/// # Errors
/// As [`Client::connect`] and [`cassandra::Client::connect`].
pub async fn connect(config: &ClusterConfig, client_name: &str) -> dax::Result<Arc<dyn Storage>> {
    match config.cassandra_client()? {
        // The driver's futures are large.
        Some(client) => Ok(Box::pin(cassandra::Client::connect(client)).await?),
        None => Ok(Client::connect(config.client(client_name)?).await?),
    }
}

/// Makes the volume.
///
/// # Errors
/// As [`dax::client::create_volume`] and [`cassandra::create_volume`].
pub async fn create_volume(config: &ClusterConfig, settings: &VolumeSettings) -> dax::Result<()> {
    match config.cassandra_client()? {
        Some(client) => Box::pin(cassandra::create_volume(&client, settings)).await,
        None => dax::client::create_volume(&config.client("init")?, settings).await,
    }
}
