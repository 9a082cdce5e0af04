//! How a volume is laid out: copies, zones, blocks, and the protocol's variant.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Epoch, ReplicaId, ZoneId};
use crate::layer::Layer;

/// The most replicas that a volume can have.
pub const MAX_REPLICAS: u8 = 16;

/// How blocks are written and read: the variants that the paper compares (DAX 7.1).
///
/// All of them run on the same replicas with the same epochs and promotions; they differ in what a
/// write waits for and in whom a read asks. Only the last is meant for data that somebody needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Baseline 1: every write waits for all N replicas, a read asks one. Nothing may be down.
    WriteAll,
    /// Baseline 2: every write waits for k replicas, every read asks N-k+1.
    Quorum,
    /// Basic optimistic I/O (DAX 3): a sync point waits for one replica, a read asks one and checks
    /// the version, or asks all. A replica that is lost takes acknowledged writes with it.
    BasicOptimistic,
    /// Strong optimistic I/O (DAX 4, 5): a sync point waits for k replicas, a read asks one and
    /// checks the version, or asks N-k+1.
    #[default]
    StrongOptimistic,
}

impl Protocol {
    /// All of them, as the paper orders them.
    pub const ALL: [Protocol; 4] = [
        Protocol::WriteAll,
        Protocol::Quorum,
        Protocol::BasicOptimistic,
        Protocol::StrongOptimistic,
    ];

    /// True if a write is acknowledged before it is synced, and a read believes one replica that has
    /// the version of the list.
    pub fn is_optimistic(self) -> bool {
        matches!(self, Protocol::BasicOptimistic | Protocol::StrongOptimistic)
    }
}

/// How a volume is laid out; fixed when it is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSettings {
    /// Bytes in a block; a power of two from 4096 to 65536.
    pub block_size_bytes: u32,
    /// Copies of every block (the paper's N).
    pub replicas: u8,
    /// Copies that make a write durable (the paper's k).
    pub sync_replicas: u8,
    /// Zones that the copies are spread over, evenly.
    pub zones: u8,
    /// How blocks are written and read.
    pub protocol: Protocol,
    /// Image of another volume that this one shows where it has nothing of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<Box<Layer>>,
}

impl Default for VolumeSettings {
    fn default() -> Self {
        VolumeSettings {
            block_size_bytes: 8192,
            replicas: 3,
            sync_replicas: 2,
            zones: 3,
            protocol: Protocol::StrongOptimistic,
            layer: None,
        }
    }
}

impl VolumeSettings {
    /// So many copies in each of so many zones. As few are synchronous as a majority needs and as
    /// reach two zones, where there are two.
    pub fn spread(zones: u8, replicas_per_zone: u8) -> VolumeSettings {
        let replicas = zones.saturating_mul(replicas_per_zone);
        let in_two_zones = if zones > 1 { replicas_per_zone + 1 } else { 1 };
        VolumeSettings {
            replicas,
            sync_replicas: (replicas / 2 + 1).max(in_two_zones),
            zones,
            ..VolumeSettings::default()
        }
    }

    /// True if the settings make sense.
    ///
    /// # Errors
    /// `Invalid`; the message says what to change.
    pub fn check(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        let size = self.block_size_bytes;
        if !size.is_power_of_two() || !(4096..=65536).contains(&size) {
            return invalid(format!(
                "block size {size}: use a power of two from 4096 to 65536"
            ));
        }
        if !(1..=MAX_REPLICAS).contains(&self.replicas) {
            let replicas = self.replicas;
            return invalid(format!("{replicas} replicas: use 1 to {MAX_REPLICAS}"));
        }
        if !(1..=self.replicas).contains(&self.sync_replicas) {
            return invalid(format!(
                "{} synchronous of {} replicas: use 1 to {}",
                self.sync_replicas, self.replicas, self.replicas
            ));
        }
        if let Some(layer) = &self.layer {
            layer.check()?;
        }
        self.check_zones()
    }

    /// Every zone has copies, and any k of them are in two zones at least.
    fn check_zones(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        let (replicas, zones) = (self.replicas, self.zones);
        if zones == 0 || !replicas.is_multiple_of(zones) {
            return invalid(format!(
                "{replicas} replicas cannot be spread evenly over {zones} zones: use a multiple of \
                 the number of zones"
            ));
        }
        let in_one = self.replicas_per_zone();
        if zones > 1 && self.sync_replicas <= in_one {
            return invalid(format!(
                "{} synchronous of {replicas} replicas in {zones} zones: they could all be in one \
                 zone, and be lost with it; use {} to {replicas}",
                self.sync_replicas,
                in_one + 1
            ));
        }
        Ok(())
    }

    /// Settings of a volume that is laid over another one, which has these settings.
    pub fn under(&self, layer: Layer) -> VolumeSettings {
        VolumeSettings {
            layer: Some(Box::new(layer)),
            ..self.clone()
        }
    }

    /// Accepted epoch of a volume that nobody has owned so far.
    pub fn unowned(&self) -> Epoch {
        let first = self.layer.as_ref().map_or(1, |layer| layer.first_epoch.0);
        Epoch(first - 1)
    }

    /// Refuses a layer over a volume that has blocks of another kind. (How many copies there are is a matter of the members,
    /// which may have changed since the volume below was made.)
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check_parent(&self, parent: &VolumeSettings) -> Result<()> {
        let kind = |settings: &VolumeSettings| (settings.block_size_bytes, settings.protocol);
        match kind(self) == kind(parent) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Invalid,
                format!("a layer needs the settings of the volume below it: {parent:?}"),
            )),
        }
    }

    /// The zone that a replica is in: replicas are counted zone by zone.
    pub fn zone_of(&self, replica: ReplicaId) -> ZoneId {
        ZoneId(replica.0 / self.replicas_per_zone().max(1))
    }

    /// Copies of every block in each zone.
    pub fn replicas_per_zone(&self) -> u8 {
        self.replicas / self.zones.max(1)
    }
}
