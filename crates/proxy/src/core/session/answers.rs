//! Answers that are made up, because it is known what the lost ones were.

use bytes::{Bytes, BytesMut};
use protocol::frame;

use super::super::sql::Kind;
use super::batch::RequestBatch;
use super::replies::SentMessage;

/// The answers to a `COMMIT` that has committed, and to the messages that belong to it. `None` if the client is due
/// anything else: nobody knows what it would be.
pub fn lost_answers(batch: &RequestBatch) -> Option<Vec<Bytes>> {
    let last = batch.facts.statements.last().and_then(|last| last.only());
    let commits = last.is_some_and(|part| matches!(part.kind, Kind::Commit { .. }));
    let mut answers = Vec::new();
    let (mut is_begun, mut is_described, mut is_executed) = (false, false, false);
    for ask in &batch.due {
        let mut answer = BytesMut::new();
        match ask {
            SentMessage::Parse(_) if !is_executed => frame::put(&mut answer, b'1', &[]),
            SentMessage::Bind if !is_executed && !is_described => {
                frame::put(&mut answer, b'2', &[])
            }
            SentMessage::Describe if !is_executed && !is_described => {
                is_described = true;
                frame::put(&mut answer, b'n', &[]);
            }
            // What a transaction executes last is its commit.
            SentMessage::Execute | SentMessage::Query if commits && !is_executed => {
                is_executed = true;
                frame::put_complete(&mut answer, "COMMIT");
            }
            SentMessage::Close => frame::put(&mut answer, b'3', &[]),
            SentMessage::Emit(bytes) => answer.extend_from_slice(bytes),
            SentMessage::Sync | SentMessage::CopyEnd => continue,
            _ => return None,
        }
        is_begun |= matches!(
            ask,
            SentMessage::Parse(_) | SentMessage::Bind | SentMessage::Describe
        );
        answers.push(answer.freeze());
    }
    // What is prepared behind the commit is another statement.
    (is_executed || !is_begun).then_some(answers)
}
