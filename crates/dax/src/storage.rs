//! What every storage backend offers a volume: blocks with versions and generations, sync points,
//! epochs and small records.
//!
//! One implementation speaks to embedded zone servers ([`crate::client`]); [`crate::memory`] keeps
//! everything in the process for tests. The suite `crate::conformance` (a feature) says what all
//! of them must do. A handle belongs to one volume and is cheap to clone behind an `Arc`.

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use crate::contents::Prepared;
use crate::error::{Error, ErrorKind, Result};
use crate::forms::Forms;
use crate::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, NodeName, ReplicaId, Version};
pub use crate::lineage::{Lineage, Span};
use crate::membership::{Change, Membership};
pub use crate::settings::{MAX_REPLICAS, Protocol, VolumeSettings};
pub use crate::status::{ReplicaStatus, StorageCounters};
pub use crate::usage::{Fill, Relative, Traffic, Usage};

/// Who owns the highest epoch that a quorum knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochGrant {
    /// The epoch; [`Epoch::NONE`] if nobody ever owned one.
    pub epoch: Epoch,
    /// Its owner: a node name, a slash and a random incarnation, so that a restarted node differs
    /// from its earlier life. Empty if there is none.
    pub owner: String,
}

/// A block as a replica keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The version that was read.
    pub version: Version,
    /// The generation it was written in.
    pub generation: Generation,
    /// The contents, verified against their checksum.
    pub data: Bytes,
}

/// What a [`Storage::csync`] waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncScope {
    /// Every write made before the call.
    Volume,
    /// Every write of this file made before the call.
    File(FileId),
    /// Every write of this file whose version is at most this.
    FileUpTo(FileId, Version),
}

/// Under whose authority a record is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authority {
    /// The epoch this handle owns; refused once a higher one exists.
    Owner,
    /// A record with a single writer that owns no epoch (a node's own membership or claim).
    Node,
}

/// What replicas must keep of a volume's data blocks; everything else may be reclaimed.
///
/// For each block and each image, the newest version that the image contains is kept. Versions in
/// generations above every image's end are kept too (a writer may have moved on).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// The images somebody needs: the latest, the last two seals, bases of standbys, pins.
    pub images: Vec<Lineage>,
}

/// Where a scrub goes on: after this block and generation.
pub type ScrubCursor = (BlockKey, Generation);

/// A copy that a scrub found missing, old or damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// Replica whose copy differs.
    pub replica: ReplicaId,
    /// Block that differs.
    pub key: BlockKey,
    /// In which generation.
    pub generation: Generation,
}

/// A part of a volume as the replicas have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubPage {
    /// Files that have blocks in this part, in order.
    pub files: Vec<FileId>,
    /// Blocks (of all generations) in this part.
    pub blocks: u64,
    /// Copies to mend.
    pub differences: Vec<Difference>,
    /// Blocks of which no replica that answered has an intact copy.
    pub unreadable: Vec<BlockKey>,
    /// Where the next part begins; `None` after the last.
    pub next: Option<ScrubCursor>,
}

/// What a storage tier says whose members are none of our business.
fn no_members() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "this storage tier looks after its own servers: exchange those of Cassandra with nodetool",
    )
}

/// A volume's storage. See the module.
///
/// **Waiting.** While too few zones answer, [`csync`](Storage::csync), the reads and the record
/// operations wait; they never fail for that reason except where a timeout is documented. They fail
/// with [`Fenced`](crate::error::ErrorKind::Fenced) as soon as a higher epoch is known.
#[async_trait]
pub trait Storage: Send + Sync + 'static {
    /// How the volume is laid out.
    fn settings(&self) -> &VolumeSettings;

    /// The epoch this handle owns, if it owns one.
    fn epoch(&self) -> Option<Epoch>;

    /// The highest epoch that a quorum of zones accepted, and its owner.
    async fn accepted_epoch(&self) -> Result<EpochGrant>;

    /// Owns a new epoch, higher than any accepted so far: returns once a majority of the zones has
    /// accepted it from `owner`. From then on no older epoch can complete a sync.
    ///
    /// # Errors
    /// `Conflict` if another owner won a higher epoch in the meantime: look who it is first.
    async fn own_epoch(&self, owner: &NodeName) -> Result<Epoch>;

    /// True if a successor waits until this handle has released its epoch, or may be taken for dead.
    fn is_leased(&self) -> bool {
        false
    }

    /// Gives the epoch up for good: this handle acknowledges nothing any more, and a successor has nothing
    /// to wait for. To be called when nothing is left to be written; not calling it only costs time.
    ///
    /// # Errors
    /// As [`csync`](Storage::csync).
    async fn release(&self) -> Result<()> {
        Ok(())
    }

    /// Proves that the epoch of this handle still stands, and returns it: at some moment after the call nobody owned a higher
    /// one, so nobody else has acknowledged anything that this handle does not know. Waits while too few zones answer.
    ///
    /// # Errors
    /// `Fenced` if a higher epoch exists, or `Invalid` if the handle owns none.
    async fn confirm(&self) -> Result<Epoch> {
        let none = || Error::new(ErrorKind::Invalid, "this handle owns no epoch");
        let own = self.epoch().ok_or_else(none)?;
        let highest = self.accepted_epoch().await?;
        match highest.epoch > own {
            true => Err(replaced_by(&highest)),
            false => Ok(own),
        }
    }

    /// Which forms of contents may be written from now on; those of release 0.1 until somebody says otherwise.
    fn use_forms(&self, _forms: Forms) {}

    /// A version higher than every one this handle gave so far (for truncation marks).
    ///
    /// # Errors
    /// `Fenced`, or `Invalid` if the handle owns no epoch.
    fn next_version(&self) -> Result<Version>;

    /// Who the volume's members are, as far as this handle knows; none where the storage tier keeps no such list, or it
    /// is not recorded yet.
    fn membership(&self) -> Option<Membership> {
        None
    }

    /// Copies that make a write durable now (the paper's k); what the volume was made with, unless its members changed.
    fn sync_replicas(&self) -> u8 {
        let members = self.membership();
        members.map_or(self.settings().sync_replicas, |m| m.sync_replicas)
    }

    /// Begins an exchange of members: those who join are sent everything by the next [scrub](Storage::scrub), at the
    /// end of which they count, and those who leave do not. Returns once the beginning is kept by enough.
    ///
    /// # Errors
    /// `Fenced`, or `Invalid` if the handle owns no epoch, the change is invalid, or this storage tier looks after
    /// its own members; `Conflict` if another one is under way, or the members are not recorded yet.
    async fn change_members(&self, _change: Change) -> Result<()> {
        Err(no_members())
    }

    /// Gives up the exchange that is under way.
    ///
    /// # Errors
    /// As [`change_members`](Storage::change_members); `Invalid` if none is under way.
    async fn cancel_change(&self) -> Result<()> {
        Err(no_members())
    }

    /// *Write(CSYNC)*, DAX 4: takes the block for all replicas and returns at once. The block counts
    /// as durable only after a later [`csync`](Storage::csync). `data` is one whole block. A pending
    /// write of an earlier generation is never replaced by this one; both go out.
    ///
    /// Call [`write_room`](Storage::write_room) first: this never waits.
    ///
    /// # Errors
    /// `Fenced`, or `Invalid` if the handle owns no epoch.
    fn write(&self, key: BlockKey, generation: Generation, data: Bytes) -> Result<Version>;

    /// Does what a write can do in advance: packing, which takes longer than the rest. For whoever holds a lock while it
    /// [writes](Storage::write_prepared). Nothing is written, and `generation` may be another one then.
    fn prepare(&self, _key: BlockKey, _generation: Generation, data: Bytes) -> Prepared {
        Prepared::plain(data)
    }

    /// As [`write`](Storage::write), of a block that was [prepared](Storage::prepare).
    ///
    /// # Errors
    /// As [`write`](Storage::write).
    fn write_prepared(
        &self,
        key: BlockKey,
        generation: Generation,
        block: Prepared,
    ) -> Result<Version> {
        self.write(key, generation, block.data)
    }

    /// Waits until a write may be acknowledged to whoever made it: not at all under an optimistic
    /// [`Protocol`], until it is synced under the others.
    ///
    /// # Errors
    /// As [`csync`](Storage::csync).
    async fn acknowledged(&self, file: FileId, version: Version) -> Result<()> {
        match self.settings().protocol.is_optimistic() {
            true => Ok(()),
            false => self.csync(SyncScope::FileUpTo(file, version)).await,
        }
    }

    /// Waits until `sync_pending` has room for `bytes` more (back-pressure).
    async fn write_room(&self, bytes: usize) -> Result<()>;

    /// *CSync*, DAX 4: returns when every write in scope is durable on k replicas. Waits while zones
    /// are missing; fails only with `Fenced`.
    async fn csync(&self, scope: SyncScope) -> Result<()>;

    /// Reads the newest version of a block in a generation not above `up_to`; `None` if there is no
    /// such version. Pending writes of this handle are seen. Read(1) against the version list where
    /// it knows the block and `up_to` does not exclude that version, a quorum of N-k+1 otherwise
    /// (DAX 3).
    async fn read(&self, key: BlockKey, up_to: Generation) -> Result<Option<Block>>;

    /// The same where the caller knows what it must find: `version` is the newest that the block has, or
    /// ever will have, in a generation not above `up_to` (all of them are sealed). One replica's answer
    /// with exactly that version suffices, the nearest is asked first. A stale answer is retried
    /// elsewhere, and ends as the quorum read that [`read`](Storage::read) is (DAX 3, CAC-DB 4.5).
    ///
    /// # Errors
    /// `Corrupt` if no replica has that version any more.
    async fn read_expected(
        &self,
        key: BlockKey,
        up_to: Generation,
        _version: Version,
    ) -> Result<Option<Block>> {
        self.read(key, up_to).await
    }

    /// *ReadPromote*, DAX 5, for blocks that keep one version ([`Generation::SINGLE`]): whatever it
    /// returns, a quorum holds under this handle's epoch, and every later read returns the same
    /// until this handle writes the block. "No such block" is not promoted.
    async fn read_promote(&self, key: BlockKey) -> Result<Option<Block>>;

    /// Writes a small record (at most 1 MiB) durably on a majority of the zones.
    ///
    /// # Errors
    /// `Fenced`: the record may have reached some zone before the fence did. Until the new owner
    /// [promotes](Storage::promote_record) it, a read may return either value.
    async fn put_record(&self, name: &str, value: Bytes, authority: Authority) -> Result<()>;

    /// Reads a record from a majority; the newest version wins.
    async fn get_record(&self, name: &str) -> Result<Option<Bytes>>;

    /// Reads a record from a majority and makes what it returns durable under this handle's epoch,
    /// so that no later read returns an older value.
    async fn promote_record(&self, name: &str) -> Result<Option<Bytes>>;

    /// All records whose name starts with `prefix`, by name, read from a majority.
    async fn list_records(&self, prefix: &str) -> Result<Vec<(String, Bytes)>>;

    /// Removes a record from a majority (a tombstone with a version, as a write).
    async fn remove_record(&self, name: &str, authority: Authority) -> Result<()>;

    /// Tells the replicas what must be kept of data blocks. Best effort: a replica that is away is
    /// told when it returns.
    async fn retain(&self, retention: Retention) -> Result<()>;

    /// Gives the blocks of whole files back. The ids are never used again. Best effort, as above.
    async fn remove_files(&self, files: &[FileId]) -> Result<()>;

    /// Gives back the blocks of `file` before `block` (the journal's and the log's past).
    async fn remove_blocks_before(&self, file: FileId, block: BlockIndex) -> Result<()>;

    /// One part of a scrub: verifies and compares what the replicas that are up have of the blocks
    /// after `after` (`None`: from the beginning). Waits until enough of them are up to tell the
    /// newest version of every block.
    ///
    /// # Errors
    /// `Fenced`, or `Invalid` if the handle owns no epoch.
    async fn scrub(&self, after: Option<ScrubCursor>) -> Result<ScrubPage>;

    /// Sends the replicas what a scrub found missing or damaged; returns once they have it durably,
    /// or are down.
    ///
    /// # Errors
    /// As [`scrub`](Storage::scrub).
    async fn mend(&self, differences: Vec<Difference>) -> Result<()>;

    /// Ends a scrub from the beginning to the end, of which everything worth keeping was mended.
    /// Replicas that had lost everything and took part from the beginning count in quorums from now
    /// on; returns them.
    ///
    /// # Errors
    /// As [`scrub`](Storage::scrub).
    async fn end_scrub(&self) -> Result<Vec<ReplicaId>>;

    /// Bytes of blocks stored and bytes free, of the zone that has least room.
    async fn space(&self) -> Result<Space>;

    /// What each replica that can be asked now keeps of this volume and did for all its clients, by
    /// replica. A backend that counts nothing names none. Waits while no replica answers.
    async fn usage(&self) -> Result<Vec<(ReplicaId, Usage)>> {
        Ok(Vec::new())
    }

    /// How each replica looks from here, zone by zone.
    fn replicas(&self) -> Vec<ReplicaStatus>;

    /// What this handle did so far.
    fn counters(&self) -> StorageCounters;

    /// Resolves when this handle learns that a higher epoch exists; never if it owns none.
    async fn fenced(&self);
}

/// What an owner is told whose epoch does not stand any more.
pub(crate) fn replaced_by(grant: &EpochGrant) -> Error {
    let why = format!("{} owns {} now", grant.owner, grant.epoch);
    Error::new(ErrorKind::Fenced, why)
}

/// Room in a zone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Bytes that this volume's blocks take on one replica, about.
    pub used_bytes: u64,
    /// Bytes that can still be written on one replica.
    pub free_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ZoneId;

    fn settings(replicas: u8, sync_replicas: u8, zones: u8) -> VolumeSettings {
        VolumeSettings {
            replicas,
            sync_replicas,
            zones,
            ..VolumeSettings::default()
        }
    }

    #[test]
    fn any_k_copies_reach_two_zones() {
        for (replicas, sync, zones) in [(3, 2, 3), (6, 4, 3), (6, 3, 3), (1, 1, 1), (3, 2, 1)] {
            settings(replicas, sync, zones).check().unwrap();
        }
        for (replicas, sync, zones, reason) in [
            (6, 2, 3, "all be in one zone"),
            (3, 1, 3, "all be in one zone"),
            (4, 3, 3, "spread evenly"),
            (3, 2, 0, "spread evenly"),
            (3, 4, 3, "use 1 to 3"),
            (0, 0, 1, "0 replicas"),
        ] {
            let error = settings(replicas, sync, zones).check().unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn the_usual_spread_makes_sense() {
        for (zones, per_zone, sync) in [(3, 1, 2), (3, 2, 4), (1, 1, 1), (2, 1, 2), (1, 3, 2)] {
            let spread = VolumeSettings::spread(zones, per_zone);
            spread.check().unwrap();
            assert_eq!(spread.sync_replicas, sync, "{zones} zones of {per_zone}");
            let last = ReplicaId(spread.replicas - 1);
            assert_eq!(spread.zone_of(last), ZoneId(zones - 1));
        }
    }
}
