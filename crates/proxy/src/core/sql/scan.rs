//! The shape of a text: what is left of it when its literals are taken away.
//!
//! Texts that differ only in numbers and strings do the same, and most clients of the simple protocol never
//! send a text twice. So what is known of a text is found by its shape. Invariant: two texts of one shape
//! have the same tokens but for the values of number and string literals, and ask the proxy for the same.

/// What a comment like `/* understudy.read = active */` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// Run it on the active.
    Active,
    /// It may run on a standby although it calls functions that are not known to be harmless.
    Standby,
}

/// A text without its literals.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Shape {
    /// The tokens; literals are one byte each.
    pub key: Vec<u8>,
    /// It has a parameter like `$1`.
    pub has_parameters: bool,
    /// What a comment asks for.
    pub hint: Option<Hint>,
    /// The first word, in upper case, as far as 12 bytes go.
    pub first_word: [u8; 12],
}

/// Stands for a number in a shape. None of these bytes is part of a valid text in UTF-8.
pub const NUMBER: u8 = 0xfe;
/// Stands for a string in a shape.
pub const STRING: u8 = 0xff;
/// Stand for comments that ask the proxy for something.
pub const ACTIVE: u8 = 0xfc;
pub const STANDBY: u8 = 0xfd;

/// The shape of `text`, or `None` where finding it would need more than a look at each byte: a string with a
/// backslash whose meaning depends on a setting, a literal that does not end.
pub fn shape(text: &[u8]) -> Option<Shape> {
    let mut scan = Scan {
        text,
        at: 0,
        shape: Shape::default(),
    };
    scan.shape.key.reserve(text.len());
    while scan.at < text.len() {
        scan.token()?;
    }
    scan.find_first_word();
    Some(scan.shape)
}

/// The words of a text that the proxy cannot parse.
pub struct Words {
    /// Text without literals and comments, if it is known where they are.
    tokens: Vec<u8>,
    /// True if it is known where literals and comments are.
    has_shape: bool,
}

impl Words {
    /// Those of `text`.
    pub fn of(text: &[u8]) -> Words {
        let shape = shape(text);
        Words {
            has_shape: shape.is_some(),
            tokens: shape.map_or_else(|| text.to_vec(), |shape| shape.key),
        }
    }

    /// True if one of `words`, which are in upper case, is there as a token; where it cannot be told what a literal is,
    /// anywhere.
    pub fn have(&self, words: &[&str]) -> bool {
        let mut all = self.tokens.split(|&byte| !is_word(byte));
        all.any(|found| is_one_of(found, words))
    }

    /// True if a statement begins with one of `words`, which are in upper case; where it cannot be told what a literal is,
    /// whether it is there at all.
    pub fn begin_with(&self, words: &[&str]) -> bool {
        if !self.has_shape {
            return self.have(words);
        }
        let mut statements = self.tokens.split(|&byte| byte == b';');
        statements.any(|statement| {
            let mut all = statement.split(|&byte| !is_word(byte));
            let first = all.find(|word| !matches!(word, [] | [ACTIVE | STANDBY]));
            first.is_some_and(|first| is_one_of(first, words))
        })
    }
}

fn is_one_of(found: &[u8], words: &[&str]) -> bool {
    let mut words = words.iter();
    words.any(|word| found.eq_ignore_ascii_case(word.as_bytes()))
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    shape: Shape,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

impl Scan<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn token(&mut self) -> Option<()> {
        let byte = self.text[self.at];
        match byte {
            b'\'' => self.string(false),
            b'"' => self.quoted_name(),
            b'$' => self.dollar(),
            b'-' if self.peek(1) == b'-' => self.line_comment(),
            b'/' if self.peek(1) == b'*' => self.block_comment(),
            b'0'..=b'9' => self.number(),
            b'.' if self.peek(1).is_ascii_digit() => self.number(),
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => self.space(),
            _ if is_word(byte) => self.word(),
            _ => {
                self.shape.key.push(byte);
                self.at += 1;
                Some(())
            }
        }
    }

    /// White space between tokens is one space, so that `a b` and `ab` stay different. Where it holds a line
    /// break it stays one, because two strings with a line break between them are one string.
    fn space(&mut self) -> Option<()> {
        let mut has_break = false;
        while self.at < self.text.len() && self.text[self.at].is_ascii_whitespace()
            || self.peek(0) == 0x0b
        {
            has_break |= matches!(self.text[self.at], b'\n' | b'\r');
            self.at += 1;
        }
        self.shape.key.push(if has_break { b'\n' } else { b' ' });
        Some(())
    }

    fn word(&mut self) -> Option<()> {
        let start = self.at;
        while self.at < self.text.len() && is_word(self.text[self.at]) {
            self.at += 1;
        }
        self.shape.key.extend_from_slice(&self.text[start..self.at]);
        if self.peek(0) == b'\'' && self.at - start == 1 {
            match self.text[start] {
                b'e' | b'E' => return self.string(true),
                b'b' | b'B' | b'x' | b'X' | b'n' | b'N' => return self.string(false),
                _ => {}
            }
        }
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        while self.at < self.text.len() {
            let byte = self.text[self.at];
            let is_exponent_sign =
                matches!(byte, b'+' | b'-') && matches!(self.text[self.at - 1], b'e' | b'E');
            // Two dots are an operator of PL/pgSQL's loops and no part of a number.
            let is_point = byte == b'.' && self.peek(1) != b'.';
            if !(byte.is_ascii_alphanumeric() || byte == b'_' || is_point || is_exponent_sign) {
                break;
            }
            self.at += 1;
        }
        self.shape.key.push(NUMBER);
        Some(())
    }

    /// A string; `escapes` if a backslash in it is an escape for certain.
    fn string(&mut self, escapes: bool) -> Option<()> {
        self.at += 1;
        loop {
            match *self.text.get(self.at)? {
                b'\\' if escapes => self.at += 2,
                b'\\' => return None,
                b'\'' if self.peek(1) == b'\'' => self.at += 2,
                b'\'' => break,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        self.shape.key.push(STRING);
        Some(())
    }

    fn quoted_name(&mut self) -> Option<()> {
        let start = self.at;
        self.at += 1;
        while *self.text.get(self.at)? != b'"' {
            self.at += 1;
        }
        self.at += 1;
        self.shape.key.extend_from_slice(&self.text[start..self.at]);
        Some(())
    }

    /// A parameter, or a string between `$tag$` and `$tag$`.
    fn dollar(&mut self) -> Option<()> {
        if self.peek(1).is_ascii_digit() {
            self.shape.has_parameters = true;
            return self.word();
        }
        let rest = &self.text[self.at + 1..];
        let tag_len = rest.iter().position(|&byte| byte == b'$')?;
        if !rest[..tag_len]
            .iter()
            .all(|&byte| is_word(byte) && byte != b'$')
        {
            return None;
        }
        let tag = &self.text[self.at..self.at + tag_len + 2];
        let body = self.at + tag.len();
        let end = self.text[body..]
            .windows(tag.len())
            .position(|window| window == tag)?;
        self.at = body + end + tag.len();
        self.shape.key.push(STRING);
        Some(())
    }

    fn line_comment(&mut self) -> Option<()> {
        let start = self.at;
        while self.at < self.text.len() && !matches!(self.text[self.at], b'\n' | b'\r') {
            self.at += 1;
        }
        self.comment(start);
        Some(())
    }

    fn block_comment(&mut self) -> Option<()> {
        let start = self.at;
        let mut depth = 0;
        loop {
            match (*self.text.get(self.at)?, self.peek(1)) {
                (b'/', b'*') => {
                    depth += 1;
                    self.at += 2;
                }
                (b'*', b'/') => {
                    depth -= 1;
                    self.at += 2;
                    if depth == 0 {
                        break;
                    }
                }
                _ => self.at += 1,
            }
        }
        self.comment(start);
        Some(())
    }

    /// A comment is white space, but for what it asks the proxy for.
    fn comment(&mut self, start: usize) {
        self.shape.key.push(b' ');
        let comment = &self.text[start..self.at];
        if self.shape.hint.is_none()
            && let Some(hint) = hint_of(comment)
        {
            self.shape.hint = Some(hint);
            let mark = match hint {
                Hint::Active => ACTIVE,
                Hint::Standby => STANDBY,
            };
            self.shape.key.extend_from_slice(&[mark, b' ']);
        }
    }

    fn find_first_word(&mut self) {
        let word = self
            .shape
            .key
            .iter()
            .skip_while(|byte| !is_word(**byte) || matches!(**byte, ACTIVE | STANDBY))
            .take_while(|byte| byte.is_ascii_alphabetic());
        for (to, from) in self.shape.first_word.iter_mut().zip(word) {
            *to = from.to_ascii_uppercase();
        }
    }
}

/// What a comment asks for: `understudy.read = active`, quoted or not.
fn hint_of(comment: &[u8]) -> Option<Hint> {
    const NAME: &[u8] = b"understudy.read";
    let at = comment
        .windows(NAME.len())
        .position(|window| window == NAME)?;
    let value: Vec<u8> = comment[at + NAME.len()..]
        .iter()
        .copied()
        .skip_while(|byte| matches!(byte, b' ' | b'=' | b':' | b'\''))
        .take_while(|byte| byte.is_ascii_alphabetic())
        .collect();
    match value.as_slice() {
        b"active" => Some(Hint::Active),
        b"standby" => Some(Hint::Standby),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Vec<u8> {
        shape(text.as_bytes()).expect("has a shape").key
    }

    #[test]
    fn literals_do_not_matter() {
        for (one, other) in [
            ("SELECT 1", "SELECT 20.5e-3"),
            ("SELECT 'a'", "SELECT 'it''s'"),
            ("SELECT E'a\\'b'", "SELECT E'c'"),
            ("SELECT $$a'b$$", "SELECT $x$ $$ $x$"),
            ("SELECT  1 /* a */", "SELECT 1 /* b /* c */ */"),
            ("SELECT .5", "SELECT 7"),
        ] {
            assert_eq!(key(one), key(other), "{one} and {other}");
        }
    }

    #[test]
    fn other_differences_matter() {
        for (one, other) in [
            ("SELECT a", "SELECT b"),
            ("SELECT 1", "SELECT '1'"),
            ("SELECT t1", "SELECT t2"),
            ("SELECT \"1\"", "SELECT \"2\""),
            ("SELECT $1", "SELECT $2"),
            ("SELECT 'a' 'b'", "SELECT 'a'\n'b'"),
            ("SELECT E'a'", "SELECT 'a'"),
            (
                "SELECT 1 /* understudy.read = active */",
                "SELECT 1 /* a */",
            ),
            (
                "SELECT 1 /* understudy.read = active */",
                "SELECT 1 /* understudy.read = standby */",
            ),
        ] {
            assert_ne!(key(one), key(other), "{one} and {other}");
        }
    }

    #[test]
    fn text_that_depends_on_a_setting_has_no_shape() {
        assert_eq!(shape(b"SELECT 'a\\'"), None);
        assert_eq!(shape(b"SELECT 'a"), None);
        assert_eq!(shape(b"SELECT /* a"), None);
        assert_eq!(shape(b"SELECT $a$ b"), None);
    }

    #[test]
    fn comments_ask() {
        let asked = |text: &str| shape(text.as_bytes()).expect("has a shape").hint;
        assert_eq!(
            asked("/* understudy.read = 'active' */ SELECT 1"),
            Some(Hint::Active)
        );
        assert_eq!(
            asked("SELECT 1 -- understudy.read=standby"),
            Some(Hint::Standby)
        );
        assert_eq!(asked("SELECT '/* understudy.read = active */'"), None);
    }

    #[test]
    fn the_first_word_is_behind_comments_and_brackets() {
        for text in [
            " /* a */ (select 1)",
            "/* understudy.read = active */select 1",
        ] {
            let shape = shape(text.as_bytes()).expect("has a shape");
            assert!(shape.first_word.starts_with(b"SELECT\0"));
        }
    }
}
