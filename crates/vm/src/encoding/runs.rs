//! Run lengths: how many bytes stay, how many follow, and those; until the page ends.

use super::{Malformed, PAGE_BYTES, Page};

/// Fewer equal bytes than this do not end a run of differing ones.
const GAP: usize = 8;

/// A number of seven bits to a byte.
pub fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The number that `input` begins with.
pub fn take_number(input: &mut &[u8]) -> Result<u64, Malformed> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let (byte, rest) = input.split_first().ok_or(Malformed)?;
        *input = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Malformed)
}

/// How many bytes are equal from `at` on.
fn equal(old: &Page, new: &Page, at: usize) -> usize {
    let mut end = at;
    while end + 8 <= PAGE_BYTES && old[end..end + 8] == new[end..end + 8] {
        end += 8;
    }
    while end < PAGE_BYTES && old[end] == new[end] {
        end += 1;
    }
    end - at
}

/// How `new` differs from `old`.
pub fn put(old: &Page, new: &Page, out: &mut Vec<u8>) {
    let mut at = 0;
    while at < PAGE_BYTES {
        let same = equal(old, new, at);
        put_number(same as u64, out);
        at += same;
        if at == PAGE_BYTES {
            return;
        }
        let begin = at;
        loop {
            at += 1;
            if at == PAGE_BYTES || (old[at] == new[at] && equal(old, new, at) >= GAP) {
                break;
            }
        }
        put_number((at - begin) as u64, out);
        out.extend_from_slice(&new[begin..at]);
    }
}

/// The runs of one page that `input` begins with, checked.
pub fn take<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let all = *input;
    let mut at = 0_u64;
    loop {
        at += take_number(input)?;
        if at >= PAGE_BYTES as u64 {
            break;
        }
        let count = take_number(input)?;
        at += count;
        if count == 0 || at > PAGE_BYTES as u64 {
            return Err(Malformed);
        }
        *input = input.get(count as usize..).ok_or(Malformed)?;
        if at == PAGE_BYTES as u64 {
            break;
        }
    }
    if at > PAGE_BYTES as u64 {
        return Err(Malformed);
    }
    Ok(&all[..all.len() - input.len()])
}

/// Writes runs that were checked into a page.
pub fn apply(mut runs: &[u8], page: &mut Page) {
    let mut at = 0;
    while let Ok(same) = take_number(&mut runs) {
        at += same as usize;
        let Ok(count) = take_number(&mut runs) else {
            return;
        };
        let count = count as usize;
        page[at..at + count].copy_from_slice(&runs[..count]);
        runs = &runs[count..];
        at += count;
    }
}
