//! Primitive values to and from bytes. Invariant: `Decoder` never reads past the frame, and never
//! reserves more memory than the frame has bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::credentials::Proof;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, StoreId, Version, VolumeName};
use crate::layer::Layer;
use crate::storage::{
    EpochGrant, Fill, Lineage, Protocol, Relative, Retention, Span, Traffic, Usage, VolumeSettings,
};

/// Writes values at the end of a buffer.
pub(super) struct Encoder<'a>(pub &'a mut BytesMut);

impl Encoder<'_> {
    pub fn u8(&mut self, v: u8) {
        self.0.put_u8(v);
    }
    pub fn bool(&mut self, v: bool) {
        self.0.put_u8(u8::from(v));
    }
    pub fn u16(&mut self, v: u16) {
        self.0.put_u16_le(v);
    }
    pub fn u32(&mut self, v: u32) {
        self.0.put_u32_le(v);
    }
    pub fn u64(&mut self, v: u64) {
        self.0.put_u64_le(v);
    }
    /// A length that fits a frame.
    pub fn len(&mut self, v: usize) {
        self.0
            .put_u32_le(u32::try_from(v).expect("a part of a frame is below 4 GiB"));
    }
    pub fn text(&mut self, v: &str) {
        self.len(v.len());
        self.0.put_slice(v.as_bytes());
    }
    pub fn bytes(&mut self, v: &[u8]) {
        self.len(v.len());
        self.0.put_slice(v);
    }
    pub fn array<const N: usize>(&mut self, v: &[u8; N]) {
        self.0.put_slice(v);
    }
    pub fn key(&mut self, v: BlockKey) {
        self.u64(v.file.0);
        self.u64(v.block.0);
    }
    pub fn epoch(&mut self, v: Epoch) {
        self.u32(v.0);
    }
    pub fn generation(&mut self, v: Generation) {
        self.epoch(v.epoch);
        self.u32(v.number);
    }
    pub fn version(&mut self, v: Version) {
        self.epoch(v.epoch);
        self.u64(v.seq);
    }
    pub fn settings(&mut self, v: &VolumeSettings) {
        self.u32(v.block_size_bytes);
        self.u8(v.replicas);
        self.u8(v.sync_replicas);
        self.u8(v.zones);
        let protocol = Protocol::ALL.iter().position(|p| *p == v.protocol);
        self.u8(protocol.unwrap_or_default() as u8);
    }
    /// Behind everything else of a message: it came with protocol 6, and whoever speaks an older one is not let in.
    pub fn layer(&mut self, v: Option<&Layer>) {
        let Some(v) = v else { return };
        self.text(v.parent.as_str());
        self.lineage(&v.image);
        self.epoch(v.first_epoch);
        self.bool(v.proof.is_some());
        if let Some(proof) = &v.proof {
            self.array(&proof.0);
        }
    }
    pub fn grant(&mut self, v: &EpochGrant) {
        self.epoch(v.epoch);
        self.text(&v.owner);
    }
    pub fn retention(&mut self, v: &Retention) {
        self.len(v.images.len());
        for image in &v.images {
            self.lineage(image);
        }
    }
    fn lineage(&mut self, v: &Lineage) {
        self.len(v.0.len());
        for span in &v.0 {
            self.generation(span.from);
            self.generation(span.to);
        }
    }
    pub fn usage(&mut self, v: &Usage) {
        self.u64(v.blocks);
        self.u64(v.used_bytes);
        self.traffic(&v.since_start);
        self.traffic(&v.recent);
        self.u32(v.recent_ms);
        // Since protocol 6, and only if there are any: what is decoded is encoded in as many bytes.
        let has_more = v.fill.is_some() || !v.relatives.is_empty();
        if v.past_blocks > 0 || has_more {
            self.u64(v.past_blocks);
        }
        if has_more {
            let fill = v.fill.unwrap_or_default();
            let flags = [v.fill.is_some(), fill.done, fill.ended];
            let flags = flags
                .iter()
                .rev()
                .fold(0, |all, flag| all << 1 | u8::from(*flag));
            self.u8(flags);
            self.u64(fill.looked);
            self.u64(fill.all);
            self.len(v.relatives.len());
            for relative in &v.relatives {
                self.text(relative.volume.as_str());
                self.u64(relative.used_bytes);
            }
        }
    }
    fn traffic(&mut self, v: &Traffic) {
        let counts = [v.writes, v.write_bytes, v.reads, v.read_bytes, v.syncs];
        counts.into_iter().for_each(|count| self.u64(count));
    }
    /// 0 says that there is none.
    pub fn store(&mut self, v: Option<StoreId>) {
        self.u64(v.map_or(0, StoreId::number));
    }
    pub fn error_kind(&mut self, v: ErrorKind) {
        self.u8(match v {
            ErrorKind::Fenced => 0,
            ErrorKind::Unavailable => 1,
            ErrorKind::Corrupt => 2,
            ErrorKind::Full => 3,
            ErrorKind::NotFound => 4,
            ErrorKind::Conflict => 5,
            ErrorKind::Invalid => 6,
            ErrorKind::Protocol => 7,
            ErrorKind::Denied => 8,
        });
    }
}

/// Reads values from the front of a frame.
pub(super) struct Decoder(pub Bytes);

/// What a malformed frame gives.
pub(super) fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, format!("malformed frame: {what}"))
}

macro_rules! primitive {
    ($($name:ident $t:ty, $get:ident;)*) => {$(
        pub fn $name(&mut self) -> Result<$t> {
            self.need(size_of::<$t>())?;
            Ok(self.0.$get())
        }
    )*};
}

impl Decoder {
    fn need(&self, bytes: usize) -> Result<()> {
        if self.0.len() < bytes {
            return Err(malformed("it ends early"));
        }
        Ok(())
    }

    primitive! {
        u8 u8, get_u8;
        u16 u16, get_u16_le;
        u32 u32, get_u32_le;
        u64 u64, get_u64_le;
    }

    pub fn bool(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(malformed(&format!("{other} is neither false nor true"))),
        }
    }

    /// A count of items that take at least `item_bytes` each.
    pub fn count(&mut self, item_bytes: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        match count.checked_mul(item_bytes) {
            Some(bytes) if bytes <= self.0.len() => Ok(count),
            _ => Err(malformed("it announces more items than it has room for")),
        }
    }

    pub fn bytes(&mut self) -> Result<Bytes> {
        let len = self.count(1)?;
        Ok(self.0.split_to(len))
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.need(N)?;
        let mut array = [0; N];
        self.0.copy_to_slice(&mut array);
        Ok(array)
    }

    pub fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|e| {
            Error::with_source(ErrorKind::Protocol, "malformed frame: text is not UTF-8", e)
        })
    }

    pub fn volume(&mut self) -> Result<VolumeName> {
        VolumeName::new(self.text()?)
    }

    pub fn epoch(&mut self) -> Result<Epoch> {
        Ok(Epoch(self.u32()?))
    }

    pub fn key(&mut self) -> Result<BlockKey> {
        Ok(BlockKey {
            file: FileId(self.u64()?),
            block: BlockIndex(self.u64()?),
        })
    }

    pub fn generation(&mut self) -> Result<Generation> {
        Ok(Generation {
            epoch: self.epoch()?,
            number: self.u32()?,
        })
    }

    pub fn version(&mut self) -> Result<Version> {
        Ok(Version {
            epoch: self.epoch()?,
            seq: self.u64()?,
        })
    }

    pub fn settings(&mut self) -> Result<VolumeSettings> {
        Ok(VolumeSettings {
            block_size_bytes: self.u32()?,
            replicas: self.u8()?,
            sync_replicas: self.u8()?,
            zones: self.u8()?,
            protocol: *Protocol::ALL
                .get(usize::from(self.u8()?))
                .ok_or_else(|| malformed("no such protocol"))?,
            layer: None,
        })
    }

    /// The rest of a message, if there is any.
    pub fn layer(&mut self) -> Result<Option<Box<Layer>>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let parent = self.volume()?;
        let (image, first_epoch) = (self.lineage()?, self.epoch()?);
        let has_proof = self.bool()?;
        Ok(Some(Box::new(Layer {
            parent,
            image,
            first_epoch,
            proof: match has_proof {
                true => Some(Proof(self.array()?)),
                false => None,
            },
        })))
    }

    pub fn grant(&mut self) -> Result<EpochGrant> {
        Ok(EpochGrant {
            epoch: self.epoch()?,
            owner: self.text()?,
        })
    }

    pub fn retention(&mut self) -> Result<Retention> {
        let mut images = Vec::new();
        for _ in 0..self.count(4)? {
            images.push(self.lineage()?);
        }
        Ok(Retention { images })
    }

    fn lineage(&mut self) -> Result<Lineage> {
        let mut spans = Vec::new();
        for _ in 0..self.count(16)? {
            spans.push(Span {
                from: self.generation()?,
                to: self.generation()?,
            });
        }
        Ok(Lineage(spans))
    }

    pub fn usage(&mut self) -> Result<Usage> {
        let mut usage = Usage {
            blocks: self.u64()?,
            used_bytes: self.u64()?,
            since_start: self.traffic()?,
            recent: self.traffic()?,
            recent_ms: self.u32()?,
            // Since protocol 6.
            past_blocks: if self.0.is_empty() { 0 } else { self.u64()? },
            fill: None,
            relatives: Vec::new(),
        };
        if !self.0.is_empty() {
            usage.fill = self.fill()?;
            usage.relatives = self.relatives()?;
        }
        Ok(usage)
    }

    fn fill(&mut self) -> Result<Option<Fill>> {
        let flags = self.u8()?;
        let fill = Fill {
            done: flags & 2 != 0,
            ended: flags & 4 != 0,
            looked: self.u64()?,
            all: self.u64()?,
        };
        Ok((flags & 1 != 0).then_some(fill))
    }

    fn relatives(&mut self) -> Result<Vec<Relative>> {
        let relative = |frame: &mut Self| {
            Ok(Relative {
                volume: frame.volume()?,
                used_bytes: frame.u64()?,
            })
        };
        (0..self.count(12)?).map(|_| relative(self)).collect()
    }

    fn traffic(&mut self) -> Result<Traffic> {
        Ok(Traffic {
            writes: self.u64()?,
            write_bytes: self.u64()?,
            reads: self.u64()?,
            read_bytes: self.u64()?,
            syncs: self.u64()?,
        })
    }

    pub fn store(&mut self) -> Result<Option<StoreId>> {
        Ok(StoreId::new(self.u64()?))
    }

    pub fn error_kind(&mut self) -> Result<ErrorKind> {
        Ok(match self.u8()? {
            0 => ErrorKind::Fenced,
            1 => ErrorKind::Unavailable,
            2 => ErrorKind::Corrupt,
            3 => ErrorKind::Full,
            4 => ErrorKind::NotFound,
            5 => ErrorKind::Conflict,
            6 => ErrorKind::Invalid,
            7 => ErrorKind::Protocol,
            8 => ErrorKind::Denied,
            other => return Err(malformed(&format!("unknown error kind {other}"))),
        })
    }
}
