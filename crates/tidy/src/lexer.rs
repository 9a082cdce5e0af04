//! Separation of Rust source into code, comments and string literals, without parsing it.
//!
//! Invariant: the pieces, one after the other, are the source. A quote in a comment begins no string, and `//` in a
//! string no comment.

/// Kind of a piece of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Everything that is neither comment nor string.
    Code,
    /// Comment that is not part of the documentation.
    Comment,
    /// Doc comment.
    Doc,
    /// String literal, with its quotes.
    Text,
}

/// A piece of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Kind.
    pub kind: Kind,
    /// Source text, delimiters included.
    pub text: &'a str,
    /// Line on which the piece begins, counted from 1.
    pub line: usize,
}

/// Returns the pieces of `source`, in order.
pub fn pieces(source: &str) -> Vec<Piece<'_>> {
    let bytes = source.as_bytes();
    let mut found = Pieces {
        source,
        found: Vec::new(),
        begin: 0,
        line: 1,
    };
    let mut at = 0;
    while at < bytes.len() {
        let (kind, end) = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => line_comment(source, at),
            b'/' if bytes.get(at + 1) == Some(&b'*') => block_comment(source, at),
            b'"' => (Kind::Text, quoted_end(bytes, at + 1)),
            b'r' if begins_word(bytes, at) && raw_end(source, at).is_some() => {
                (Kind::Text, raw_end(source, at).unwrap_or(at + 1))
            }
            b'\'' => (Kind::Code, character_end(source, at)),
            _ => (Kind::Code, at + 1),
        };
        if kind != Kind::Code {
            found.take(Kind::Code, at);
            found.take(kind, end);
        }
        at = end;
    }
    found.take(Kind::Code, source.len());
    found.found
}

struct Pieces<'a> {
    source: &'a str,
    found: Vec<Piece<'a>>,
    begin: usize,
    line: usize,
}

impl Pieces<'_> {
    fn take(&mut self, kind: Kind, end: usize) {
        if end <= self.begin {
            return;
        }
        let text = &self.source[self.begin..end];
        self.found.push(Piece {
            kind,
            text,
            line: self.line,
        });
        self.line += text.matches('\n').count();
        self.begin = end;
    }
}

/// A raw string's `r` is not the end of a name, but may follow `b` or `c`.
fn begins_word(bytes: &[u8], at: usize) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    match at.checked_sub(1).map(|before| bytes[before]) {
        Some(b'b' | b'c') => at < 2 || !is_name(bytes[at - 2]),
        Some(before) => !is_name(before),
        None => true,
    }
}

fn line_comment(source: &str, at: usize) -> (Kind, usize) {
    let rest = &source[at..];
    let end = rest.find('\n').map_or(source.len(), |length| at + length);
    let is_doc = rest.starts_with("//!") || (rest.starts_with("///") && !rest.starts_with("////"));
    (if is_doc { Kind::Doc } else { Kind::Comment }, end)
}

fn block_comment(source: &str, at: usize) -> (Kind, usize) {
    let rest = &source[at..];
    let is_doc = rest.starts_with("/*!") || (rest.starts_with("/**") && !rest.starts_with("/**/"));
    let bytes = source.as_bytes();
    let (mut depth, mut end) = (1, at + 2);
    while depth > 0 && end < bytes.len() {
        match (bytes[end], bytes.get(end + 1)) {
            (b'/', Some(b'*')) => (depth, end) = (depth + 1, end + 2),
            (b'*', Some(b'/')) => (depth, end) = (depth - 1, end + 2),
            _ => end += 1,
        }
    }
    (if is_doc { Kind::Doc } else { Kind::Comment }, end)
}

fn quoted_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw_end(source: &str, at: usize) -> Option<usize> {
    let rest = &source[at + 1..];
    let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
    let inner = rest[hashes..].strip_prefix('"')?;
    let closing = format!("\"{}", "#".repeat(hashes));
    let length = inner.find(&closing)?;
    Some(at + 1 + hashes + 1 + length + closing.len())
}

/// End of a character literal, or of the quote alone if it begins a lifetime.
fn character_end(source: &str, at: usize) -> usize {
    let mut rest = source[at + 1..].chars();
    match rest.next() {
        Some('\\') => {
            let escaped = &source[at + 2..];
            let skipped = escaped.chars().next().map_or(0, char::len_utf8);
            let closing = escaped[skipped..].find('\'').unwrap_or(0);
            at + 2 + skipped + closing + 1
        }
        Some(character) if rest.next() == Some('\'') => at + 1 + character.len_utf8() + 1,
        _ => at + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: Kind, source: &str) -> Vec<&str> {
        let all = pieces(source);
        assert_eq!(
            all.iter().map(|piece| piece.text).collect::<String>(),
            source
        );
        let wanted = all.into_iter().filter(|piece| piece.kind == kind);
        wanted.map(|piece| piece.text).collect()
    }

    #[test]
    fn strings_are_found_with_their_quotes() {
        let source = r###"f("a\"b", r"c\", r#"d"e"#, b"f", br"g", '"', 'x', '\'', '\u{1F}', &'a str, r#type)"###;
        assert_eq!(
            of(Kind::Text, source),
            [
                r#""a\"b""#,
                r#"r"c\""#,
                r###"r#"d"e"#"###,
                r#""f""#,
                r#"r"g""#
            ]
        );
    }

    #[test]
    fn comments_are_no_strings_and_strings_no_comments() {
        let source = "//! head\n/// doc \"x\"\n//// rule\nlet a = \"// no\"; // yes\n/* a /* b */ c */ /** d */";
        assert_eq!(
            of(Kind::Doc, source),
            ["//! head", "/// doc \"x\"", "/** d */"]
        );
        assert_eq!(
            of(Kind::Comment, source),
            ["//// rule", "// yes", "/* a /* b */ c */"]
        );
        assert_eq!(of(Kind::Text, source), ["\"// no\""]);
    }

    #[test]
    fn lines_are_counted_from_one() {
        let lines = pieces("a\n\"b\nc\"\n// d");
        let comment = lines.last().map(|piece| piece.line);
        assert_eq!(comment, Some(4));
    }
}
