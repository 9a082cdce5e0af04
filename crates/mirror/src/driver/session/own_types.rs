//! Binary values that hold the numbers of types: of elements, of columns. Those of one's own types are others on the other member.

use bytes::Buf;

/// Types from here on are not PostgreSQL's own.
const FIRST_OWN: u32 = 16_384;
/// Arrays have no more dimensions.
const MOST_DIMENSIONS: u32 = 6;
/// Values within values are looked into so deep. Whoever nests more is taken for one who has types of one's own: each level needs
/// a few bytes of a client's message only, and some of this process's stack.
const MOST_NESTED: usize = 8;

/// True if a value is an array or a row with a type of one's own in it. It is told by its form: what is bound to a parameter need
/// not say of which type it is.
pub fn holds_own_type(value: &[u8]) -> bool {
    holds_at(value, 0)
}

fn holds_at(value: &[u8], depth: usize) -> bool {
    if depth > MOST_NESTED {
        return true;
    }
    in_array(value, depth)
        .or_else(|| in_row(value, depth))
        .unwrap_or_default()
}

/// A length, and so many bytes; less than none of a null.
fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let Ok(len) = usize::try_from(rest.try_get_i32().ok()?) else {
        return Some(&[]);
    };
    let (value, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(value)
}

/// The same of an array; `None` if it is none.
fn in_array(mut rest: &[u8], depth: usize) -> Option<bool> {
    let dimensions = rest.try_get_u32().ok()?;
    let has_nulls = rest.try_get_u32().ok()?;
    let of = rest.try_get_u32().ok()?;
    if dimensions > MOST_DIMENSIONS || has_nulls > 1 {
        return None;
    }
    let mut holds = of >= FIRST_OWN;
    for _ in 0..dimensions {
        // How many, and the number of the first.
        rest.try_get_u64().ok()?;
    }
    while !rest.is_empty() {
        holds |= holds_at(take(&mut rest)?, depth + 1);
    }
    Some(holds)
}

/// The same of a row.
fn in_row(mut rest: &[u8], depth: usize) -> Option<bool> {
    let columns = rest.try_get_u32().ok().filter(|count| *count > 0)?;
    let mut holds = false;
    for _ in 0..columns {
        holds |= rest.try_get_u32().ok()? >= FIRST_OWN;
        holds |= holds_at(take(&mut rest)?, depth + 1);
    }
    rest.is_empty().then_some(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(all: &[i32]) -> Vec<u8> {
        all.iter().flat_map(|one| one.to_be_bytes()).collect()
    }

    #[test]
    fn only_arrays_and_rows_of_ones_own_types_are_found() {
        let array = |of| numbers(&[1, 0, of, 2, 1, 4, 5, -1]);
        assert!(holds_own_type(&array(20_000)));
        assert!(!holds_own_type(&array(23)));
        assert!(holds_own_type(&numbers(&[0, 0, 20_000])));
        assert!(holds_own_type(&numbers(&[2, 23, 4, 5, 20_000, -1])));
        assert!(!holds_own_type(&numbers(&[1, 23, 4, 5])));
        // A row within an array.
        let row = numbers(&[1, 20_000, -1]);
        let len = i32::try_from(row.len()).expect("short");
        let within = [numbers(&[1, 0, 2249, 1, 1, len]), row].concat();
        assert!(holds_own_type(&within));
        for other in [
            b"".as_slice(),
            b"well",
            b"a longer text than that",
            &[0; 12],
            &7_i64.to_be_bytes(),
        ] {
            assert!(!holds_own_type(other), "{other:?}");
        }
    }

    /// Each level took some of the stack, and a message has room for a hundred thousand of them.
    #[test]
    fn what_is_nested_without_end_is_not_looked_into() {
        let nested = |levels: usize| {
            (0..levels).fold(numbers(&[0, 0, 23]), |within, _| {
                let len = i32::try_from(within.len()).expect("short");
                [numbers(&[0, 0, 23, len]), within].concat()
            })
        };
        assert!(!holds_own_type(&nested(MOST_NESTED)));
        assert!(holds_own_type(&nested(MOST_NESTED + 1)));
        assert!(holds_own_type(&nested(3000)));
    }
}
