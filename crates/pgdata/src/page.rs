//! The header of a data page, as far as needed: its log position, and whether it was ever written.

use volume::lsn::Lsn;

use crate::bytes_at::u32_at;

/// Bytes in a data page of a cluster with the usual block size.
pub const PAGE_BYTES: usize = 8192;

/// The end of the last log record that changed the page (`pd_lsn`). Not an upper bound of the log
/// that the page reflects: hint bits, visibility and free-space changes do not move it (H1).
/// Zero for a page that was never written, and for anything shorter than a header.
pub fn lsn(page: &[u8]) -> Lsn {
    if page.len() < 24 {
        return Lsn::ZERO;
    }
    Lsn(u64::from(u32_at(page, 0)) << 32 | u64::from(u32_at(page, 4)))
}

/// True if the page was never initialised: all zeros.
pub fn is_new(page: &[u8]) -> bool {
    page.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_is_two_words_high_one_first() {
        let mut page = vec![0; PAGE_BYTES];
        assert!(is_new(&page));
        assert_eq!(lsn(&page), Lsn::ZERO);
        page[..8].copy_from_slice(&[1, 0, 0, 0, 0x78, 0x56, 0x34, 0x12]);
        assert_eq!(lsn(&page), Lsn(0x1_1234_5678));
        assert!(!is_new(&page));
        assert_eq!(lsn(&page[..8]), Lsn::ZERO);
    }
}
