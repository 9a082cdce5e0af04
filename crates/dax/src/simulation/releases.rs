//! Clients of two releases: one packs and reads blocks as a whole alone, and the other in parts as well, once that is allowed.

use super::contents::block_of;
use super::flaw::Flaw;
use super::history::{ClientId, Content};
use super::schedule::Schedule;
use super::world::World;
use crate::client::core::Output;
use crate::contents::Contents;
use crate::error::Result;
use crate::forms::Forms;
use crate::ids::{BlockKey, Generation};
use crate::writer::packing::{is_in_parts, pack};

/// Of clients that are started in turn, so many may be of the release before.
const OLD_CLIENTS: usize = 4;

impl World {
    /// Of which release the next client is. Once more may be written than the one before reads, replicas do not let it in.
    pub fn release(&mut self) -> Forms {
        let is_kept_out = self.written > Forms::WHOLE_BLOCKS && self.flaw != Some(Flaw::OldLetIn);
        let may_be_old = self.clients.len() < OLD_CLIENTS || self.flaw == Some(Flaw::OldLetIn);
        let is_old = self.upgraded && may_be_old && self.chance(60);
        match is_old && !is_kept_out {
            true => Forms::WHOLE_BLOCKS,
            false => Forms::RELEASE_0_1,
        }
    }

    /// The owner of the newest epoch allows what the new release writes, if all who are there read it.
    pub fn raise(&mut self) {
        let mut there = self.clients.iter().filter(|client| client.alive);
        let all_read = there.all(|client| client.reads >= Forms::RELEASE_0_1);
        if self.written < Forms::RELEASE_0_1 && (all_read || self.flaw == Some(Flaw::RaisedUnasked))
        {
            self.written = Forms::RELEASE_0_1;
            self.coverage.one("upgrades finished");
        }
    }
}

impl Schedule {
    /// Checks that somebody reads forms of its own release only.
    pub fn check_form(&mut self, client: ClientId, result: &Result<Output>) {
        if let Ok(Output::Block(Some(block))) = result
            && !self.world.clients[client].reads.allows_parts()
            && is_in_parts(&block.data)
        {
            let read = &block.data;
            let what = format!("client {client} of the release before reads {read:?}");
            self.wrong("everybody reads what is written", what);
        }
    }

    /// A block as a client of this release packs it.
    pub fn packed(
        &mut self,
        writer: usize,
        key: BlockKey,
        generation: Generation,
        content: Content,
    ) -> Contents {
        let (data, w) = (block_of(content), &self.writers[writer]);
        let contents: Contents = match generation {
            _ if !self.world.written.allows_parts() => pack(data).into(),
            Generation::SINGLE => w.tails.pack(key, data),
            _ => w.differences.pack(key, generation, data),
        };
        let kind = match (contents.base.is_some(), generation) {
            (false, _) => "writes of whole blocks",
            (true, Generation::SINGLE) => "writes of pieces",
            (true, _) => "writes of differences",
        };
        self.world.coverage.one(kind);
        contents
    }
}
