//! What a client's messages of the extended protocol say.

use bytes::Buf;
use protocol::frame;

use super::names::Prepared;

/// What `Parse` says.
pub fn read_parse(body: &[u8]) -> Option<(&str, Prepared)> {
    let (name, rest) = frame::name(body)?;
    let (text, mut rest) = frame::name(rest)?;
    let mut types = Vec::new();
    if rest.len() >= 2 {
        for _ in 0..rest.get_u16() {
            if rest.len() < 4 {
                return None;
            }
            types.push(rest.get_u32());
        }
    }
    let text = text.to_owned();
    Some((name, Prepared { text, types }))
}
