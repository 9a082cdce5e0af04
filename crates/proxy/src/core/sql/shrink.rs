//! A shape with its repetitions taken away, as a text.
//!
//! An `INSERT` of a hundred thousand rows says the same as one of two rows: what a statement does hangs on no literal, and on no
//! number of rows. Owns the reduction. Invariant: what is left has every token of the shape, in an order in which they were
//! there; only an item of a list that is equal to the two before it is left out.

use super::scan::{ACTIVE, NUMBER, STANDBY, STRING};

/// One list that is open: where its present item begins, and the two before it.
struct List {
    start: usize,
    before: [Option<(usize, usize)>; 2],
}

impl List {
    fn new(start: usize) -> List {
        List {
            start,
            before: [None, None],
        }
    }

    /// An item ends. What is equal to the two before it is taken away, with the comma in front of it.
    fn end_item(&mut self, out: &mut Vec<u8>) {
        let item = (self.start, out.len());
        let text = |(from, to): (usize, usize)| out[from..to].trim_ascii();
        let is_repeated =
            |one: Option<(usize, usize)>| one.is_some_and(|one| text(one) == text(item));
        if is_repeated(self.before[0]) && is_repeated(self.before[1]) {
            out.truncate(self.start.saturating_sub(1));
        } else {
            self.before = [self.before[1], Some(item)];
        }
    }
}

/// The shape of a text, shortened, as a text that the parser reads.
pub fn shrink(key: &[u8]) -> String {
    let mut out = Vec::with_capacity(key.len().min(1 << 16));
    let mut lists = vec![List::new(0)];
    let mut is_quoted = false;
    for &byte in key {
        is_quoted ^= byte == b'"';
        let top = lists.len() - 1;
        match byte {
            b'(' | b'[' if !is_quoted => {
                out.push(byte);
                lists.push(List::new(out.len()));
            }
            b')' | b']' if !is_quoted => {
                lists[top].end_item(&mut out);
                if top > 0 {
                    lists.pop();
                }
                out.push(byte);
            }
            b',' if !is_quoted => {
                lists[top].end_item(&mut out);
                out.push(byte);
                lists[top].start = out.len();
            }
            _ => out.push(byte),
        }
    }
    if let Some(last) = lists.last_mut() {
        last.end_item(&mut out);
    }
    let mut text = Vec::with_capacity(out.len() + 16);
    for byte in out {
        match byte {
            NUMBER => text.push(b'1'),
            STRING => text.extend_from_slice(b"''"),
            ACTIVE | STANDBY => text.push(b' '),
            _ => text.push(byte),
        }
    }
    String::from_utf8(text).unwrap_or_default()
}

/// How deep a tree of this shape can be, at most: what opens something, and what takes what is in front of it.
pub fn depth(key: &[u8]) -> usize {
    let nests = |byte: &&u8| {
        matches!(
            byte,
            b'(' | b'['
                | b'+'
                | b'-'
                | b'*'
                | b'/'
                | b'<'
                | b'>'
                | b'='
                | b'~'
                | b'!'
                | b'@'
                | b'#'
                | b'%'
                | b'^'
                | b'&'
                | b'|'
                | b'`'
                | b'?'
                | b':'
                | b'.'
        )
    };
    let words = key.split(|byte| !byte.is_ascii_alphabetic());
    let is_nesting = |word: &&[u8]| {
        let all: [&[u8]; 10] = [
            b"AND",
            b"CASE",
            b"COLLATE",
            b"EXCEPT",
            b"INTERSECT",
            b"IS",
            b"JOIN",
            b"NOT",
            b"OR",
            b"UNION",
        ];
        all.iter().any(|one| word.eq_ignore_ascii_case(one))
    };
    key.iter().filter(nests).count() + words.filter(is_nesting).count()
}

#[cfg(test)]
mod tests {
    use super::super::scan::shape;
    use super::*;

    fn shrunk(text: &str) -> String {
        shrink(&shape(text.as_bytes()).expect("has a shape").key)
    }

    #[test]
    fn rows_that_repeat_are_left_out() {
        let rows: Vec<String> = (0..1000).map(|n| format!("({n}, 'a{n}', now())")).collect();
        let text = format!("INSERT INTO t VALUES {} RETURNING f(a)", rows.join(", "));
        assert_eq!(
            shrunk(&text),
            "INSERT INTO t VALUES (1, '', now()), (1, '', now()), (1, '', now()), (1, '', now()) RETURNING f(a)"
        );
        assert_eq!(
            shrunk("SELECT a FROM t WHERE b IN (1,2,3,4)"),
            "SELECT a FROM t WHERE b IN (1,1)"
        );
        assert_eq!(
            shrunk("SELECT f(1), g(1), f(1), \"a,a,a,a\""),
            "SELECT f(1), g(1), f(1), \"a,a,a,a\""
        );
    }
}
