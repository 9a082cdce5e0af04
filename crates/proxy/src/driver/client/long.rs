//! Texts that take long to read: another thread reads them.

use protocol::frame;

use crate::core::sql::Statements;

/// Texts of messages that are longer are read by another thread.
const LONG_MESSAGE_BYTES: usize = 16 << 10;

/// The first long text in what a client has sent, which nobody has read: where its message begins, and itself.
pub fn long_text(input: &[u8], statements: &Statements) -> Option<(usize, Vec<u8>)> {
    let mut at = 0;
    while input.len() - at > LONG_MESSAGE_BYTES {
        let (tag, len) = frame::head(&input[at..]).ok().flatten()?;
        let message = input.get(at..at + len)?;
        if len > LONG_MESSAGE_BYTES && matches!(tag, b'Q' | b'P') {
            let body = frame::body(message);
            let body = match tag {
                b'P' => frame::name(body)?.1,
                _ => body,
            };
            let (text, _) = frame::text(body)?;
            if statements.is_long(text) {
                return Some((at, text.to_vec()));
            }
        }
        at += len;
    }
    None
}
