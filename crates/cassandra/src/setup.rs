//! Making a volume, and finding out at every open whether it still is what its guarantees need.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use async_trait::async_trait;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::VolumeName;
use dax::layer::Layer;
use dax::storage::VolumeSettings;
use scylla::client::session::Session;
use scylla::deserialize::row::DeserializeRow;
use scylla::serialize::row::SerializeRow;
use scylla::statement::{Consistency, SerialConsistency};
use scylla::value::Row;

use crate::config::Config;
use crate::connect::{connect, of_preparation, of_request, unexpected};
use crate::entry::{Entry, There};
use crate::schema::{
    Durability, Keyspace, KeyspaceFacts, Replication, TableFacts, check_keyspace, check_tables,
    create_keyspace, create_tables,
};
use crate::volumes::{self, Table};

/// What is known of a volume once it is open.
#[derive(Debug)]
pub struct Opened {
    /// How it is laid out.
    pub settings: VolumeSettings,
    /// How many copies a sync waits for.
    pub durability: Durability,
    /// The copies in each data centre.
    pub replication: Replication,
    /// The volumes below, the next one first.
    pub layers: Vec<Layer>,
}

/// Makes the volume that `config` names; the keyspace and its tables, too, where they are missing. The
/// copies are in as many data centres as `settings` has zones. Repeating is harmless. Waits while
/// Cassandra does not answer.
///
/// # Errors
/// `Conflict` if it exists with other settings or was removed, or if the keyspace breaks a guarantee; `NotFound` if there is
/// no volume to lay it over; `Invalid` if the settings are invalid or do not fit the cluster; `Denied` if the user may not do
/// that.
pub async fn create_volume(config: &Config, settings: &VolumeSettings) -> Result<()> {
    settings.check()?;
    let session = connect(config).await?;
    let keyspace = &config.keyspace;
    let replication = match keyspace_facts(&session, keyspace).await? {
        Some(facts) => check_keyspace(keyspace, &facts)?,
        None => {
            let wanted = spread(&session, config, settings)?;
            execute(&session, &create_keyspace(keyspace, &wanted), ()).await?;
            wanted
        }
    };
    let even = |copies: &u8| *copies == settings.replicas_per_zone();
    if replication.0.len() != usize::from(settings.zones) || !replication.0.values().all(even) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "keyspace {keyspace} has the copies {}, not {} in each of {} data centres",
                replication.cql(),
                settings.replicas_per_zone(),
                settings.zones
            ),
        ));
    }
    Durability::of(settings.sync_replicas, &replication)?;
    for statement in create_tables(keyspace) {
        execute(&session, &statement, ()).await?;
    }
    check_tables(keyspace, &table_facts(&session, keyspace).await?)?;
    let rows = Rows {
        session: &session,
        keyspace,
        replication: replication.cql(),
    };
    volumes::create(&rows, &config.volume, settings).await?;
    open(&session, config).await.map(drop)
}

/// The copies that a new keyspace gets: in the data centres of the configuration, or in all.
fn spread(session: &Session, config: &Config, settings: &VolumeSettings) -> Result<Replication> {
    let cluster = session.get_cluster_state();
    let nodes = cluster.get_nodes_info().iter();
    let found: BTreeSet<String> = nodes.filter_map(|node| node.datacenter.clone()).collect();
    if !config.data_centres.is_empty() {
        let unknown = config.data_centres.iter().find(|dc| !found.contains(*dc));
        if let Some(unknown) = unknown {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("the cluster has no data centre {unknown:?}, only {found:?}"),
            ));
        }
        let wanted = config.data_centres.iter().cloned();
        return Ok(Replication::even(wanted, settings.replicas_per_zone()));
    }
    if found.len() != usize::from(settings.zones) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{} zones, but the cluster has the data centres {:?}: give as many zones, or make the keyspace \
                 yourself in those that you want",
                settings.zones, found
            ),
        ));
    }
    Ok(Replication::even(found, settings.replicas_per_zone()))
}

/// The table of volumes.
pub(crate) struct Rows<'a> {
    pub session: &'a Session,
    pub keyspace: &'a Keyspace,
    /// The copies that new volumes are made with.
    pub replication: String,
}

#[async_trait]
impl Table for Rows<'_> {
    async fn read(&self, volume: &VolumeName) -> Result<Option<String>> {
        let text = format!(
            "SELECT settings FROM {}.volumes WHERE volume = ?",
            self.keyspace
        );
        let values = (volume.as_str(),);
        let rows = select(self.session, Consistency::Serial, &text, values).await?;
        Ok(rows.into_iter().next().map(|(settings,)| settings))
    }

    async fn insert(&self, volume: &VolumeName, text: &str) -> Result<()> {
        let insert = format!(
            "INSERT INTO {}.volumes (volume, settings, replication) VALUES (?, ?, ?) IF NOT EXISTS",
            self.keyspace
        );
        let values = (volume.as_str(), text, &self.replication);
        execute(self.session, &insert, values).await
    }

    async fn change(&self, volume: &VolumeName, from: &str, to: &str) -> Result<()> {
        let update = format!(
            "UPDATE {}.volumes SET settings = ? WHERE volume = ? IF settings = ?",
            self.keyspace
        );
        execute(self.session, &update, (to, volume.as_str(), from)).await
    }
}

/// Reads how the volume is laid out, and checks what must be true of its keyspace and tables.
///
/// # Errors
/// `NotFound` if there is no such volume, `Conflict` with what to ALTER.
pub async fn open(session: &Session, config: &Config) -> Result<Opened> {
    let (keyspace, volume) = (&config.keyspace, &config.volume);
    let missing = || {
        let what = format!("there is no volume {volume} in keyspace {keyspace}");
        Error::new(ErrorKind::NotFound, what)
    };
    let facts = keyspace_facts(session, keyspace)
        .await?
        .ok_or_else(missing)?;
    let replication = check_keyspace(keyspace, &facts)?;
    check_tables(keyspace, &table_facts(session, keyspace).await?)?;
    let rows = Rows {
        session,
        keyspace,
        replication: String::new(),
    };
    let text = rows.read(volume).await?.ok_or_else(missing)?;
    let Entry::There(There { settings, .. }) = Entry::parse(volume, &text)? else {
        let what = format!("volume {volume} in keyspace {keyspace} was removed");
        return Err(Error::new(ErrorKind::NotFound, what));
    };
    let layers = volumes::layers(&rows, volume, &settings).await?;
    let text = format!("SELECT replication FROM {keyspace}.volumes WHERE volume = ?");
    let made_with = select(session, Consistency::Quorum, &text, (volume.as_str(),)).await?;
    let (made_with,): (String,) = made_with.into_iter().next().ok_or_else(missing)?;
    if replication.cql() != made_with {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "keyspace {keyspace} has the copies {{{}}}, volume {volume} was made with {{{made_with}}}: ALTER KEYSPACE \
                 {keyspace} back, or follow docs/products/cassandra.md (Add or remove a data centre)",
                replication.cql()
            ),
        ));
    }
    let durability = Durability::of(settings.sync_replicas, &replication)?;
    Ok(Opened {
        settings,
        durability,
        replication,
        layers,
    })
}

pub(crate) async fn keyspace_facts(
    session: &Session,
    keyspace: &Keyspace,
) -> Result<Option<KeyspaceFacts>> {
    let text =
        "SELECT replication, durable_writes FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let rows: Vec<(BTreeMap<String, String>, bool)> =
        select(session, Consistency::One, text, (keyspace.as_str(),)).await?;
    let facts = rows.into_iter().next();
    Ok(facts.map(|(replication, durable_writes)| KeyspaceFacts {
        replication,
        durable_writes,
    }))
}

type TableRow = (
    String,
    i32,
    i32,
    String,
    String,
    BTreeMap<String, String>,
    f64,
);

async fn table_facts(session: &Session, keyspace: &Keyspace) -> Result<Vec<TableFacts>> {
    let text = "SELECT table_name, gc_grace_seconds, default_time_to_live, read_repair, speculative_retry, \
                compression, crc_check_chance FROM system_schema.tables WHERE keyspace_name = ?";
    let keyspace = (keyspace.as_str(),);
    let rows: Vec<TableRow> = select(session, Consistency::One, text, keyspace).await?;
    let facts = rows.into_iter().map(|row| TableFacts {
        name: row.0,
        gc_grace_seconds: row.1,
        default_time_to_live: row.2,
        read_repair: row.3,
        speculative_retry: row.4,
        compression: row.5,
        crc_check_chance: row.6,
    });
    Ok(facts.collect())
}

async fn select<R>(
    session: &Session,
    consistency: Consistency,
    text: &str,
    values: impl SerializeRow,
) -> Result<Vec<R>>
where
    R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata>,
{
    let mut statement = session.prepare(text).await.map_err(of_preparation)?;
    statement.set_consistency(consistency);
    statement.set_is_idempotent(true);
    let result = session.execute_unpaged(&statement, values).await;
    let rows = result
        .map_err(of_request)?
        .into_rows_result()
        .map_err(unexpected)?;
    let rows = rows.rows::<R>().map_err(unexpected)?;
    rows.collect::<Result<Vec<R>, _>>().map_err(unexpected)
}

/// Runs a statement that may be repeated.
pub(crate) async fn execute(
    session: &Session,
    text: &str,
    values: impl SerializeRow,
) -> Result<()> {
    let mut statement = session.prepare(text).await.map_err(of_preparation)?;
    statement.set_serial_consistency(Some(SerialConsistency::Serial));
    insist(|| async {
        let done = session.execute_unpaged(&statement, &values).await;
        done.map(drop).map_err(of_request)
    })
    .await
}

/// Tries a few times until Cassandra carries it out or refuses it.
pub(crate) async fn insist<T, F>(mut attempt: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut attempts = 5;
    loop {
        match attempt().await {
            Err(error) if error.kind() == ErrorKind::Unavailable && attempts > 0 => attempts -= 1,
            done => return done,
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

/// The first column of a lightweight transaction's answer.
///
/// # Errors
/// `Protocol` if there is none.
pub fn is_applied(result: scylla::response::query_result::QueryResult) -> Result<bool> {
    let rows = result.into_rows_result().map_err(unexpected)?;
    let row = rows.first_row::<Row>().map_err(unexpected)?;
    let first = row.columns.into_iter().next().flatten();
    let applied = first.and_then(|value| value.as_boolean());
    applied.ok_or_else(|| Error::new(ErrorKind::Protocol, "Cassandra did not say [applied]"))
}
