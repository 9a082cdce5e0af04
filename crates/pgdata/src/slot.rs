//! The state of a replication slot, as PostgreSQL keeps it in `pg_replslot/<name>/state`.
//!
//! ```text
//!   magic │ checksum of what follows │ version │ length │ name │ database │ persistency │ xmin │ catalog_xmin
//!     │ restart_lsn │ invalidated │ confirmed_flush │ two_phase_at │ two_phase │ plugin │ ...
//! ```
//!
//! PostgreSQL 15 to 18 agree on all fields that are read here. Invariant: a file with another form or checksum is refused.

use std::fmt;

use volume::lsn::Lsn;

/// The name of the file in a slot's directory.
pub const STATE_FILE: &str = "state";

const MAGIC: u32 = 0x0105_1CA1;
const HEADER_BYTES: usize = 16;
/// Bytes at the beginning that the checksum does not cover: the magic number, and the checksum.
const UNCHECKED_BYTES: usize = 8;
const NAME_BYTES: usize = 64;

/// Fields that a logical slot has in addition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoding {
    /// The database's object id.
    pub database: u32,
    /// The output plugin.
    pub plugin: String,
    /// True if prepared transactions are decoded when they are prepared.
    pub two_phase: bool,
    /// Position that the subscriber has confirmed.
    pub confirmed: Lsn,
}

/// A slot that survives a restart of its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Name, which is that of the slot's directory.
    pub name: String,
    /// Where reading begins; zero if nothing is reserved.
    pub restart: Lsn,
    /// True if PostgreSQL has invalidated it.
    pub is_invalid: bool,
    /// `None` for a physical slot.
    pub decoding: Option<Decoding>,
}

/// A file that is no slot's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoSlot(&'static str);

impl fmt::Display for NoSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NoSlot {}

impl Slot {
    /// Parses the file. `None` if the slot is temporary or not complete yet: a starting server removes such slots.
    ///
    /// # Errors
    /// [`NoSlot`]
    pub fn parse(bytes: &[u8]) -> Result<Option<Slot>, NoSlot> {
        let short = NoSlot("the file is too short");
        if read_u32(bytes, 0) != Some(MAGIC) {
            return Err(NoSlot("the file does not begin as a slot's state"));
        }
        let length = read_u32(bytes, 12).ok_or(short)? as usize;
        let checked = bytes.get(UNCHECKED_BYTES..HEADER_BYTES.saturating_add(length));
        if read_u32(bytes, 4) != Some(crc32c::crc32c(checked.ok_or(short)?)) {
            return Err(NoSlot("the file has another checksum"));
        }
        let data = &bytes[HEADER_BYTES..HEADER_BYTES + length];
        // Persistency: 1 is a slot that is not complete yet, 2 a temporary one.
        if read_u32(data, 68).ok_or(short)? != 0 {
            return Ok(None);
        }
        let lsn = |at| read_u64(data, at).map(Lsn).ok_or(short);
        let database = read_u32(data, 64).ok_or(short)?;
        let decoding = match database {
            0 => None,
            database => Some(Decoding {
                database,
                plugin: text(data, 113).ok_or(short)?,
                two_phase: *data.get(112).ok_or(short)? != 0,
                confirmed: lsn(96)?,
            }),
        };
        Ok(Some(Slot {
            name: text(data, 0).ok_or(short)?,
            restart: lsn(80)?,
            // `invalidated` is a position in PostgreSQL 15, and a reason from 16 on.
            is_invalid: lsn(88)? != Lsn::ZERO,
            decoding,
        }))
    }
}

/// The file of a physical slot that holds back no rows: those that a copy holds back nobody moves on, and who uses the slot says anew which
/// it needs.
pub fn without_rows(file: &[u8]) -> Vec<u8> {
    let mut file = file.to_vec();
    let rows = HEADER_BYTES + 72..HEADER_BYTES + 80;
    if let Some(rows) = file.get_mut(rows) {
        rows.fill(0);
    }
    let length = read_u32(&file, 12).unwrap_or_default() as usize;
    if let Some(checked) = file.get(UNCHECKED_BYTES..HEADER_BYTES.saturating_add(length)) {
        let checksum = crc32c::crc32c(checked).to_le_bytes();
        file[4..8].copy_from_slice(&checksum);
    }
    file
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn text(bytes: &[u8], at: usize) -> Option<String> {
    let field = bytes.get(at..at + NAME_BYTES)?;
    let end = field.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&field[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of a slot, written as PostgreSQL's code does.
    fn file(persistency: u32, database: u32) -> Vec<u8> {
        let mut data = vec![0; 184];
        data[..5].copy_from_slice(b"mine\0");
        data[64..68].copy_from_slice(&database.to_le_bytes());
        data[68..72].copy_from_slice(&persistency.to_le_bytes());
        data[80..88].copy_from_slice(&0x0100_0028_u64.to_le_bytes());
        data[96..104].copy_from_slice(&0x0100_0060_u64.to_le_bytes());
        data[112] = 1;
        data[113..122].copy_from_slice(b"pgoutput\0");
        let mut checked = 5_u32.to_le_bytes().to_vec();
        checked.extend((data.len() as u32).to_le_bytes());
        checked.extend(data);
        let mut file = MAGIC.to_le_bytes().to_vec();
        file.extend(crc32c::crc32c(&checked).to_le_bytes());
        file.extend(checked);
        file
    }

    #[test]
    fn a_slot_is_read_as_it_was_written() {
        let logical = Slot::parse(&file(0, 5)).unwrap().unwrap();
        let decoding = Decoding {
            database: 5,
            plugin: "pgoutput".to_owned(),
            two_phase: true,
            confirmed: Lsn(0x0100_0060),
        };
        assert_eq!(logical.name, "mine");
        assert_eq!(logical.restart, Lsn(0x0100_0028));
        assert!(!logical.is_invalid);
        assert_eq!(logical.decoding, Some(decoding));
        let physical = Slot::parse(&file(0, 0)).unwrap().unwrap();
        assert_eq!(physical.decoding, None);
    }

    /// The active kept dead rows for ever for a standby's copy, whose replica had long moved on.
    #[test]
    fn a_copy_of_a_physical_slot_holds_back_no_rows() {
        let mut needs_rows = file(0, 0);
        needs_rows[HEADER_BYTES + 72..HEADER_BYTES + 80].fill(7);
        assert!(Slot::parse(&needs_rows).is_err(), "another checksum");
        let copy = without_rows(&needs_rows);
        assert_eq!(copy, file(0, 0));
        assert!(Slot::parse(&copy).unwrap().is_some());
    }

    #[test]
    fn slots_of_a_session_are_passed_over() {
        assert_eq!(Slot::parse(&file(1, 5)), Ok(None));
        assert_eq!(Slot::parse(&file(2, 5)), Ok(None));
    }

    #[test]
    fn damaged_slots_are_refused() {
        let whole = file(0, 5);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(Slot::parse(&damaged).is_err(), "byte {at}");
            assert!(Slot::parse(&whole[..at]).is_err(), "{at} bytes");
        }
    }
}
