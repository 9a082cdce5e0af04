//! What a server says as it dies (R12).
//!
//! A server whose storage is gone, or that ends, says so in many ways before its connection breaks. Owns which of its words are
//! the loss of the server, and which are an answer. Invariant: what nobody asked for is a loss, and the commit under way is
//! decided; and no statement is tried for ever on a server that says the same again and again.

use super::super::sql::Kind;
use super::batch::RequestBatch;
use super::{Context, Session};
use protocol::frame::ErrorFields;

/// `idle_in_transaction_session_timeout`, `transaction_timeout` and `idle_session_timeout`, which a session sets for itself.
pub(super) const TIMEOUTS: &[&[u8]] = &[b"25P03", b"25P04", b"57P05"];

/// So often in a row a batch is tried on servers that end its connection.
const TRIES: u8 = 8;

/// Functions of PostgreSQL's that read and write its own files: their failure has no code of its own if the files have gone.
const ROUTINES: &[&[u8]] = &[
    b"mdopenfork",
    b"mdreadv",
    b"mdread",
    b"mdwritev",
    b"mdwrite",
    b"mdextend",
    b"mdzeroextend",
    b"mdnblocks",
    b"_mdnblocks",
    b"_mdfd_getseg",
    b"mdtruncate",
    b"mdimmedsync",
    b"register_dirty_segment",
    b"XLogWrite",
    b"XLogFileInitInternal",
    b"XLogFileOpen",
    b"issue_xlog_fsync",
    b"SlruReportIOError",
    b"read_relmap_file",
    b"load_relmap_file",
    b"write_relmap_file",
    b"load_relcache_init_file",
    b"WalSndSegmentOpen",
];

/// What the end of a connection by its server means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The server is lost.
    Loss,
    /// It may have ended this session alone, at somebody's word.
    Terminated,
    /// It answers what its client has done.
    Answer,
}

/// True if these words are those of a server that cannot reach its files.
fn is_storage(fields: &ErrorFields<'_>) -> bool {
    fields.code.starts_with(b"58") || fields.code == b"XX000" && ROUTINES.contains(&fields.routine)
}

impl Session {
    /// What `FATAL` or `PANIC` means.
    pub(super) fn ending(&self, fields: &ErrorFields<'_>) -> Ending {
        if fields.severity == b"PANIC" {
            return Ending::Loss;
        }
        let asks = |batch: &RequestBatch| {
            let mut parts = batch.facts.statements.iter().flat_map(|all| &all.parts);
            parts.any(|part| {
                part.calls
                    .iter()
                    .any(|name| &**name == "pg_terminate_backend")
            })
        };
        match fields.code {
            b"57P01" if self.batch.as_deref().is_some_and(asks) => Ending::Answer,
            b"57P01" => Ending::Terminated,
            code if TIMEOUTS.contains(&code) => Ending::Answer,
            // The database is dropped.
            b"57P04" => Ending::Answer,
            code if code.starts_with(b"57P") || code.starts_with(b"XX") => Ending::Loss,
            // No memory, no disk.
            b"53100" | b"53200" => Ending::Loss,
            _ if is_storage(fields) => Ending::Loss,
            _ => Ending::Answer,
        }
    }

    /// True if an error that leaves the connection open is the word of a server that dies: its files are gone, and the client
    /// has named none of its own.
    pub(super) fn is_dying_word(&self, cx: &Context<'_>, fields: &ErrorFields<'_>) -> bool {
        let is_storage =
            is_storage(fields) || matches!(fields.code, b"57P01" | b"57P02" | b"57P03");
        let Some(batch) = self.batch.as_deref().filter(|_| is_storage) else {
            return false;
        };
        let mut parts = batch.facts.statements.iter().flat_map(|all| &all.parts);
        let names_files = parts.any(|part| {
            part.may_act_outside
                || part.runs_unseen
                || part.has_large_objects
                || part.defines
                || matches!(part.kind, Kind::Alone)
                || part
                    .calls
                    .iter()
                    .any(|name| !cx.catalog.may_run_again(name))
        });
        !names_files && batch.losses < TRIES
    }

    /// True if the batch under way was lost so often that it had better end.
    pub(super) fn is_lost_too_often(&self) -> bool {
        self.batch
            .as_deref()
            .is_some_and(|batch| batch.losses >= TRIES)
    }
}
