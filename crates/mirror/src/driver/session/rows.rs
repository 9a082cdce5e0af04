//! Rows that the member returns besides what its client wants.

use bytes::{BufMut, BytesMut};
use protocol::frame;

use super::super::wire::{Reply, columns, fields};
use crate::sql::Row;

/// Takes the columns that were asked for besides off the answer.
pub fn take_rows(reply: &mut Reply, width: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut kept = Vec::with_capacity(reply.messages.len());
    for message in std::mem::take(&mut reply.messages) {
        match message[0] {
            b'D' => {
                let all = columns(&message);
                let own = all.len().saturating_sub(width);
                rows.push(all[own..].to_vec());
                if own > 0 {
                    kept.push(shortened_row(&message, own));
                }
            }
            b'T' => kept.extend(shortened_description(&message, width)),
            _ => kept.push(message),
        }
    }
    reply.messages = kept;
    rows
}

fn shortened_row(message: &[u8], count: usize) -> BytesMut {
    let mut body = BytesMut::new();
    body.put_u16(u16::try_from(count).unwrap_or(u16::MAX));
    for field in fields(message).into_iter().take(count) {
        match field {
            Some(field) => {
                body.put_i32(i32::try_from(field.len()).unwrap_or(i32::MAX));
                body.extend_from_slice(field);
            }
            None => body.put_i32(-1),
        }
    }
    let mut out = BytesMut::new();
    frame::put(&mut out, b'D', &[&body]);
    out
}

/// The description of the client's own columns; nothing if it has none.
fn shortened_description(message: &[u8], width: usize) -> Option<BytesMut> {
    const AFTER_NAME: usize = 18;
    let body = frame::body(message);
    let count =
        usize::from(u16::from_be_bytes([*body.first()?, *body.get(1)?])).saturating_sub(width);
    if count == 0 {
        return None;
    }
    let mut at = 2;
    for _ in 0..count {
        at += body.get(at..)?.iter().position(|byte| *byte == 0)? + 1 + AFTER_NAME;
    }
    let mut out = BytesMut::new();
    let head = u16::try_from(count).unwrap_or(u16::MAX).to_be_bytes();
    frame::put(&mut out, b'T', &[&head, body.get(2..at)?]);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_besides_is_taken_off() {
        let mut out = BytesMut::new();
        frame::put_table(
            &mut out,
            &["a", "id"],
            &[vec!["x".to_owned(), "1".to_owned()]],
        );
        let mut reply = Reply::default();
        while let Some(message) = frame::take(&mut out, 10_000).expect("valid") {
            reply.messages.push(message);
        }
        assert_eq!(take_rows(&mut reply, 1), [vec![Some("1".to_owned())]]);
        let mut wanted = BytesMut::new();
        frame::put_table(&mut wanted, &["a"], &[vec!["x".to_owned()]]);
        assert_eq!(reply.messages.concat(), wanted);
    }
}
