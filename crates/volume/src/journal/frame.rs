//! Records in the byte stream: a length and a checksum that continues the record before, then the
//! payload. A length of zero is the end.

use super::{Chained, JournalPos};

/// Bytes before each payload.
pub const HEADER_BYTES: usize = 8;
/// Largest payload; a longer length is no record.
pub const MAX_PAYLOAD_BYTES: usize = 256 << 20;

/// Appends one record to `out` and moves `place` behind it. One with a payload of more than
/// [`MAX_PAYLOAD_BYTES`] is the end of the stream for whoever reads: the caller sees to it that it is shorter.
pub fn write(out: &mut Vec<u8>, place: &mut Chained, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("batches are far below 4 GiB");
    let crc = checksum(place.chain, length, payload);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(payload);
    place.chain = crc;
    place.at = JournalPos(place.at.0 + (HEADER_BYTES + payload.len()) as u64);
}

/// What stands at the front of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Front<'a> {
    /// A whole record that continues the chain.
    Record(&'a [u8]),
    /// The beginning of one, perhaps: more bytes are needed.
    Partial,
    /// No record: the stream ends here.
    End,
}

/// Reads the record at the front of `bytes`; moves `place` behind it if there is one.
pub fn read<'a>(bytes: &'a [u8], place: &mut Chained) -> Front<'a> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Front::Partial;
    };
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    let bytes = length as usize;
    if bytes == 0 || bytes > MAX_PAYLOAD_BYTES {
        return Front::End;
    }
    let Some(payload) = rest.get(..bytes) else {
        return Front::Partial;
    };
    if checksum(place.chain, length, payload) != crc {
        return Front::End;
    }
    place.chain = crc;
    place.at = JournalPos(place.at.0 + (HEADER_BYTES + bytes) as u64);
    Front::Record(payload)
}

fn checksum(chain: u32, length: u32, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(chain, &length.to_le_bytes()), payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_only_behind_the_record_it_was_written_behind() {
        let mut place = Chained::START;
        let mut first = Vec::new();
        write(&mut first, &mut place, b"one");
        let mut second = Vec::new();
        write(&mut second, &mut place, b"two");

        let mut reader = Chained::START;
        assert_eq!(read(&second, &mut reader), Front::End);
        assert_eq!(read(&first[..10], &mut reader), Front::Partial);
        assert_eq!(reader, Chained::START);
        assert_eq!(read(&first, &mut reader), Front::Record(b"one"));
        assert_eq!(read(&second, &mut reader), Front::Record(b"two"));
        assert_eq!(reader, place);
        assert_eq!(read(&[0; 16], &mut reader), Front::End);
    }
}
