//! The storage tier that a configuration names: zone servers, or Apache Cassandra.

use std::sync::Arc;

use dax::client::Client;
use dax::error::{Error, ErrorKind};
use dax::ids::VolumeName;
use dax::storage::{Storage, VolumeSettings};

use crate::config::ClusterConfig;
use crate::records::{Moved, Record};

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
    let mut way = way(config, client_name).await?;
    Ok(way.pop().expect("it begins somewhere"))
}

/// Opens the volumes that the database has left on its way to where `config` leads, and is not in now, each with a configuration that
/// leads to it.
///
/// # Errors
/// As [`current`].
pub async fn left(
    config: &ClusterConfig,
    client_name: &str,
) -> dax::Result<Vec<(ClusterConfig, Arc<dyn Storage>)>> {
    let mut left: Vec<(ClusterConfig, Arc<dyn Storage>)> = Vec::new();
    for (config, storage) in way(&config.moved_to(None), client_name).await? {
        left.retain(|(other, _)| other.stored_in() != config.stored_in());
        left.push((config, storage));
    }
    left.pop();
    Ok(left)
}

/// All volumes from where the configuration leads to where the database is now.
async fn way(
    config: &ClusterConfig,
    client_name: &str,
) -> dax::Result<Vec<(ClusterConfig, Arc<dyn Storage>)>> {
    let mut way = Vec::new();
    let mut config = config.clone();
    loop {
        let storage = connect(&config, client_name).await?;
        let moved = has_moved(&config, storage.as_ref()).await?;
        way.push((config.clone(), storage));
        match moved {
            Some(moved) => config = config.moved_to(Some(moved)),
            None => return Ok(way),
        }
    }
}

/// A volume that the database's way leads past since [`leave_out`].
pub struct LeftOut {
    before: Arc<dyn Storage>,
    moved: Moved,
}

impl LeftOut {
    /// Ends it: the volume is removed, or else the way leads through it again.
    ///
    /// # Errors
    /// Of the storage tier.
    pub async fn end(self, removed: bool) -> dax::Result<()> {
        if !removed {
            self.moved.store(self.before.as_ref()).await?;
        }
        self.before.release().await
    }
}

/// Has the database's way lead past a volume that it has left, so that the volume can be removed: whoever starts follows the way. None
/// if the way does not lead through it.
///
/// # Errors
/// As [`current`], and `Conflict` or `Fenced` if somebody else owns an epoch of the volume before it meanwhile.
pub async fn leave_out(
    config: &ClusterConfig,
    client_name: &str,
    volume: &VolumeName,
) -> dax::Result<Option<LeftOut>> {
    let way = way(&config.moved_to(None), client_name).await?;
    if way
        .last()
        .is_some_and(|(last, _)| last.stored_in() == volume)
    {
        let said = format!("the database is in the volume {volume}");
        return Err(Error::new(ErrorKind::Conflict, said));
    }
    let mut hops = way.windows(3);
    let hop = hops.find(|hop| hop[1].0.stored_in() == volume);
    let Some([(_, before), (there, _), (after, _)]) = hop else {
        return Ok(None);
    };
    let (Some(moved), Some(after)) = (&there.moved, &after.moved) else {
        return Ok(None);
    };
    // The database may have come back there: then its nodes take over once.
    before.own_epoch(&config.name).await?;
    after.store(before.as_ref()).await?;
    Ok(Some(LeftOut {
        before: before.clone(),
        moved: moved.clone(),
    }))
}

/// Where the database has gone from the volume that this configuration leads to, if it has.
///
/// # Errors
/// Of the storage tier, and `Corrupt` if what it says cannot be understood.
pub async fn has_moved(
    config: &ClusterConfig,
    storage: &dyn Storage,
) -> dax::Result<Option<Moved>> {
    let moved = Moved::load(storage).await?;
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
/// As [`dax::client::remove_volume`] and `cassandra::remove_volume`.
pub async fn remove_volume(config: &ClusterConfig) -> dax::Result<()> {
    match config.cassandra_client()? {
        Some(client) => on_cassandra::remove_volume(&client).await,
        None => dax::client::remove_volume(&config.client("remove")?, &config.name).await,
    }
}

/// Has a layered volume on Apache Cassandra need no volume below, and tells `progress` of how much is done; false on zone servers, which
/// do it by themselves.
///
/// # Errors
/// As `cassandra::fill_volume`.
pub async fn fill_volume(
    config: &ClusterConfig,
    progress: &mut (dyn FnMut(usize, usize) + Send),
) -> dax::Result<bool> {
    match config.cassandra_client()? {
        Some(client) => on_cassandra::fill_volume(&client, progress)
            .await
            .map(|()| true),
        None => Ok(false),
    }
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

    pub(super) async fn remove_volume(client: &cassandra::Config) -> dax::Result<()> {
        Box::pin(cassandra::remove_volume(client)).await
    }

    pub(super) async fn fill_volume(
        client: &cassandra::Config,
        progress: &mut (dyn FnMut(usize, usize) + Send),
    ) -> dax::Result<()> {
        Box::pin(cassandra::fill_volume(client, progress)).await
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

    pub(super) async fn remove_volume(_: &cassandra::Config) -> dax::Result<()> {
        Err(absent())
    }

    pub(super) async fn fill_volume(
        _: &cassandra::Config,
        _: &mut (dyn FnMut(usize, usize) + Send),
    ) -> dax::Result<()> {
        Err(absent())
    }

    fn absent() -> Error {
        let message =
            "this program was built without Apache Cassandra (cargo's feature \"cassandra\")";
        Error::new(ErrorKind::Invalid, message)
    }
}

#[cfg(test)]
mod tests {
    use dax::ids::NodeName;
    use dax::memory::MemoryCluster;

    use super::*;

    fn config(moves: u64) -> ClusterConfig {
        let text = "name = \"north\"\nvolume = \"main\"\nzones = [\"localhost:1\"]\n";
        let mut config = ClusterConfig::parse(text, None).unwrap();
        config.moved = (moves > 0).then(|| moved(moves, "somewhere"));
        config
    }

    fn moved(number: u64, volume: &str) -> Moved {
        Moved {
            number,
            volume: VolumeName::new(volume).unwrap(),
            key: None,
            unix_ms: 0,
        }
    }

    // A database that moves away and back: the record by which it left once does not lead away again.
    // hazard: MOVE-1
    #[tokio::test]
    async fn the_newest_move_counts() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let owner: Arc<dyn Storage> = cluster.client();
        let there = async |moves| has_moved(&config(moves), owner.as_ref()).await.unwrap();
        assert_eq!(there(0).await, None);
        let left = moved(1, "branch");
        assert!(left.store(owner.as_ref()).await.is_err(), "nobody owns it");
        owner
            .own_epoch(&NodeName::new("promote").unwrap())
            .await
            .unwrap();
        left.store(owner.as_ref()).await.unwrap();
        assert_eq!(there(0).await, Some(left));
        assert_eq!(there(2).await, None, "it came back by move 2");
        moved(3, "other").store(owner.as_ref()).await.unwrap();
        assert_eq!(there(2).await, Some(moved(3, "other")));
    }

    #[test]
    fn the_configuration_leads_to_where_the_database_is() {
        let at_home = config(0);
        assert_eq!((at_home.stored_in().as_str(), at_home.moves()), ("main", 0));
        let away = config(4);
        assert_eq!((away.stored_in().as_str(), away.moves()), ("somewhere", 4));
        let client = away.client("test").unwrap();
        assert_eq!(client.volume.as_str(), "somewhere");
    }
}
