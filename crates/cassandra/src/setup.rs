//! Making a volume, and finding out at every open whether it still is what its guarantees need.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use dax::error::{Error, ErrorKind, Result};
use dax::storage::VolumeSettings;
use scylla::client::session::Session;
use scylla::deserialize::row::DeserializeRow;
use scylla::serialize::row::SerializeRow;
use scylla::statement::{Consistency, SerialConsistency};
use scylla::value::Row;

use crate::config::Config;
use crate::connect::{connect, of_preparation, of_request, unexpected};
use crate::schema::{
    Durability, Keyspace, KeyspaceFacts, Replication, TableFacts, check_keyspace, check_tables,
    create_keyspace, create_tables,
};

/// What is known of a volume once it is open.
#[derive(Debug)]
pub struct Opened {
    /// How it is laid out.
    pub settings: VolumeSettings,
    /// How many copies a sync waits for.
    pub durability: Durability,
    /// The copies in each data centre.
    pub replication: Replication,
}

/// Makes the volume that `config` names; the keyspace and its tables, too, where they are missing. The
/// copies are in as many data centres as `settings` has zones. Repeating is harmless. Waits while
/// Cassandra does not answer.
///
/// # Errors
/// `Conflict` if it exists with other settings, or if the keyspace breaks a guarantee; `Invalid` if the
/// settings are invalid or do not fit the cluster; `Denied` if the user may not do that.
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
    insert_volume(&session, config, settings, &replication).await
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

async fn insert_volume(
    session: &Session,
    config: &Config,
    settings: &VolumeSettings,
    replication: &Replication,
) -> Result<()> {
    let (ks, volume) = (&config.keyspace, config.volume.as_str());
    let text = serde_json::to_string(settings).expect("settings have string keys only");
    execute(
        session,
        &format!("INSERT INTO {ks}.volumes (volume, settings, replication) VALUES (?, ?, ?) IF NOT EXISTS"),
        (volume, &text, &replication.cql()),
    )
    .await?;
    let found = open(session, config).await?;
    if found.settings != *settings {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "volume {volume} exists with other settings: {:?}",
                found.settings
            ),
        ));
    }
    Ok(())
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
    let text = format!("SELECT settings, replication FROM {keyspace}.volumes WHERE volume = ?");
    let rows: Vec<(String, String)> = select(session, &text, (volume.as_str(),)).await?;
    let (settings, made_with) = rows.into_iter().next().ok_or_else(missing)?;
    let settings: VolumeSettings = serde_json::from_str(&settings).map_err(|e| {
        let what = format!("the settings of volume {volume} cannot be understood");
        Error::with_source(ErrorKind::Protocol, what, e)
    })?;
    settings.check()?;
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
    })
}

async fn keyspace_facts(session: &Session, keyspace: &Keyspace) -> Result<Option<KeyspaceFacts>> {
    let text =
        "SELECT replication, durable_writes FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let rows: Vec<(BTreeMap<String, String>, bool)> =
        select(session, text, (keyspace.as_str(),)).await?;
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
    let rows: Vec<TableRow> = select(session, text, (keyspace.as_str(),)).await?;
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

async fn select<R>(session: &Session, text: &str, values: impl SerializeRow) -> Result<Vec<R>>
where
    R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata>,
{
    let mut statement = session.prepare(text).await.map_err(of_preparation)?;
    statement.set_consistency(match text.contains(" system_schema.") {
        true => Consistency::One,
        false => Consistency::Quorum,
    });
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
async fn execute(session: &Session, text: &str, values: impl SerializeRow) -> Result<()> {
    let mut statement = session.prepare(text).await.map_err(of_preparation)?;
    statement.set_serial_consistency(Some(SerialConsistency::Serial));
    let mut attempts = 5;
    loop {
        match session
            .execute_unpaged(&statement, &values)
            .await
            .map_err(of_request)
        {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Unavailable && attempts > 0 => attempts -= 1,
            Err(error) => return Err(error),
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
