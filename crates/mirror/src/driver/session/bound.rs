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

fn formats(body: &mut &[u8]) -> Option<Vec<i16>> {
    let count = (body.len() >= 2).then(|| body.get_u16())?;
    (0..count)
        .map(|_| (body.len() >= 2).then(|| body.get_i16()))
        .collect()
}

/// What `Bind` says.
pub struct Bound<'a> {
    pub portal: &'a str,
    pub statement: &'a str,
    /// True if it is binary, and the value.
    pub values: Vec<(bool, Option<Vec<u8>>)>,
    pub result_formats: Vec<i16>,
}

pub fn read_bind(body: &[u8]) -> Option<Bound<'_>> {
    let (portal, rest) = frame::name(body)?;
    let (statement, mut rest) = frame::name(rest)?;
    let given = formats(&mut rest)?;
    let count = (rest.len() >= 2).then(|| rest.get_u16())?;
    let mut values = Vec::new();
    for at in 0..usize::from(count) {
        let is_binary = match given.as_slice() {
            [] => false,
            [one] => *one == 1,
            many => many.get(at) == Some(&1),
        };
        let len = (rest.len() >= 4).then(|| rest.get_i32())?;
        let value = match usize::try_from(len) {
            Ok(len) if len <= rest.len() => {
                let (value, after) = rest.split_at(len);
                rest = after;
                Some(value.to_vec())
            }
            Ok(_) => return None,
            Err(_) => None,
        };
        values.push((is_binary, value));
    }
    let result_formats = formats(&mut rest)?;
    Some(Bound {
        portal,
        statement,
        values,
        result_formats,
    })
}

/// How many rows `Execute` wants at most; 0 for all.
pub fn most_rows(message: &[u8]) -> Option<i32> {
    let (_, mut rest) = frame::name(frame::body(message))?;
    (rest.len() >= 4).then(|| rest.get_i32())
}
