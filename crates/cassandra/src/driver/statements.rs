//! The statements, prepared once, each with its consistency.

use dax::error::Result;
use dax::storage::Protocol;
use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};

use crate::connect::of_preparation;
use crate::schema::{Durability, Keyspace};

#[derive(Debug)]
pub struct Statements {
    /// `volume, file, chunk, block, generation, data, timestamp`
    pub write_block: PreparedStatement,
    /// `volume, file, chunk, timestamp`
    pub write_chunk: PreparedStatement,
    /// `volume, file, chunk, block, generation` at one replica; gives `generation, writetime, data`.
    pub read_one: PreparedStatement,
    /// The same at a quorum.
    pub read_quorum: PreparedStatement,
    /// `volume, file, chunk, blocks` at a quorum, of blocks that keep one version; gives `block, writetime,
    /// data`.
    pub read_singles: PreparedStatement,
    /// The same at all replicas.
    pub read_all: PreparedStatement,
    /// `volume, file, chunk`; gives `block, generation`.
    pub list_rows: PreparedStatement,
    /// `volume, file, chunk`; gives `chunk`, of those from this chunk on.
    pub list_chunks: PreparedStatement,
    /// Gives `volume, file, chunk`, of everything.
    pub scan_chunks: PreparedStatement,
    /// `timestamp, volume, file, chunk, block, generation, generation`: from the first to the second.
    pub delete_generations: PreparedStatement,
    /// `timestamp, volume, file, chunk, block`: the blocks before this one.
    pub delete_before: PreparedStatement,
    /// `timestamp, volume, file, chunk`: the blocks of a chunk.
    pub delete_chunk: PreparedStatement,
    /// `timestamp, volume, file, chunk`: the note of chunks before this one.
    pub forget_chunks: PreparedStatement,
    /// `timestamp, volume, file`: the note of all chunks.
    pub forget_file: PreparedStatement,
    /// `volume, name, value, timestamp`
    pub write_record: PreparedStatement,
    /// `volume, name`; gives `value, writetime`.
    pub read_record: PreparedStatement,
    /// `volume, name, name`: from the first on, before the second; gives `name, value`.
    pub list_records: PreparedStatement,
    /// `volume`; gives `epoch, owner, lease_ms, renewals, released`, of a quorum.
    pub look: PreparedStatement,
    /// The same, after completing what is under way.
    pub look_serial: PreparedStatement,
    /// `volume, epoch, owner, lease_ms, renewals, released` if there is no row.
    pub first_claim: PreparedStatement,
    /// `epoch, owner, lease_ms, renewals, released, volume` if `epoch, owner, renewals`.
    pub change_epoch: PreparedStatement,
}

impl Statements {
    /// Prepares all of them.
    ///
    /// # Errors
    /// `Unavailable`, `Denied`; `Invalid` if a table is not what it should be.
    pub async fn prepare(
        session: &Session,
        ks: &Keyspace,
        protocol: Protocol,
        durability: Durability,
    ) -> Result<Statements> {
        use Consistency::{All, LocalOne, One, Quorum, Serial};
        let synced = match durability {
            Durability::Quorum => Quorum,
            Durability::EachQuorum => Consistency::EachQuorum,
        };
        let (write, read) = match protocol {
            Protocol::WriteAll => (All, LocalOne),
            Protocol::Quorum | Protocol::StrongOptimistic => (synced, Quorum),
            Protocol::BasicOptimistic => (One, All),
        };
        let prepare = async |text: String, consistency| {
            let mut statement = session.prepare(text).await.map_err(of_preparation)?;
            statement.set_consistency(consistency);
            statement.set_serial_consistency(Some(SerialConsistency::Serial));
            statement.set_is_idempotent(true);
            statement.set_page_size(64);
            Ok::<_, dax::error::Error>(statement)
        };
        let block = "WHERE volume = ? AND file = ? AND chunk = ?";
        let read_block = format!(
            "SELECT generation, writetime(data), data FROM {ks}.blocks {block} AND block = ? \
             AND generation <= ? LIMIT 1"
        );
        let look = format!(
            "SELECT epoch, owner, lease_ms, renewals, released FROM {ks}.epochs WHERE volume = ?"
        );
        Ok(Statements {
            write_block: prepare(
                format!(
                    "INSERT INTO {ks}.blocks (volume, file, chunk, block, generation, data) \
                     VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
                ),
                write)
            .await?,
            write_chunk: prepare(
                format!(
                    "INSERT INTO {ks}.chunks (volume, file, chunk) VALUES (?, ?, ?) USING TIMESTAMP ?"
                ),
                Quorum)
            .await?,
            read_one: prepare(read_block.clone(), LocalOne)
            .await?,
            read_quorum: prepare(read_block.clone(), read)
            .await?,
            read_singles: prepare(
                format!(
                    "SELECT block, writetime(data), data FROM {ks}.blocks {block} AND block IN ? \
                     AND generation = 0"
                ),
                read)
            .await?,
            read_all: prepare(read_block, All)
            .await?,
            list_rows: {
                let text = format!("SELECT block, generation FROM {ks}.blocks {block}");
                prepare(text, Quorum)
            .await?
            },
            list_chunks: prepare(
                format!(
                    "SELECT chunk FROM {ks}.chunks WHERE volume = ? AND file = ? AND chunk >= ?"
                ),
                Quorum)
            .await?,
            scan_chunks: {
                let mut scan = prepare(
                    format!("SELECT volume, file, chunk FROM {ks}.chunks"),
                    Quorum)
            .await?;
                scan.set_page_size(5000);
                scan
            },
            delete_generations: prepare(
                format!(
                    "DELETE FROM {ks}.blocks USING TIMESTAMP ? {block} AND block = ? \
                     AND generation >= ? AND generation <= ?"
                ),
                Quorum)
            .await?,
            delete_before: prepare(
                format!("DELETE FROM {ks}.blocks USING TIMESTAMP ? {block} AND block < ?"),
                Quorum)
            .await?,
            delete_chunk: prepare(
                format!("DELETE FROM {ks}.blocks USING TIMESTAMP ? {block}"),
                Quorum)
            .await?,
            forget_chunks: prepare(
                format!(
                    "DELETE FROM {ks}.chunks USING TIMESTAMP ? WHERE volume = ? AND file = ? AND chunk < ?"
                ),
                Quorum)
            .await?,
            forget_file: prepare(
                format!("DELETE FROM {ks}.chunks USING TIMESTAMP ? WHERE volume = ? AND file = ?"),
                Quorum)
            .await?,
            write_record: prepare(
                format!(
                    "INSERT INTO {ks}.records (volume, name, value) VALUES (?, ?, ?) USING TIMESTAMP ?"
                ),
                synced)
            .await?,
            read_record: prepare(
                format!(
                    "SELECT value, writetime(value) FROM {ks}.records WHERE volume = ? AND name = ?"
                ),
                Quorum)
            .await?,
            list_records: prepare(
                format!(
                    "SELECT name, value FROM {ks}.records WHERE volume = ? AND name >= ? AND name < ?"
                ),
                Quorum)
            .await?,
            look: prepare(look.clone(), Quorum)
            .await?,
            look_serial: prepare(look, Serial)
            .await?,
            // Sent twice, at most one of them is applied.
            first_claim: prepare(
                format!(
                    "INSERT INTO {ks}.epochs (volume, epoch, owner, lease_ms, renewals, released) \
                     VALUES (?, ?, ?, ?, ?, ?) IF NOT EXISTS"
                ),
                Quorum,
            )
            .await?,
            change_epoch: prepare(
                format!(
                    "UPDATE {ks}.epochs SET epoch = ?, owner = ?, lease_ms = ?, renewals = ?, \
                     released = ? WHERE volume = ? IF epoch = ? AND owner = ? AND renewals = ?"
                ),
                Quorum,
            )
            .await?,
        })
    }
}
