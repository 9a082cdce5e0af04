//! Contents on a standby: reads that follow one state, writes that end in the overlay.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::fetch::{is_zero, zeros};
use super::overlay::Content;
use super::state::State;
use super::view::{Configuration, StandbyView};
use crate::error::{Error, Result};
use crate::lsn::Lsn;
use crate::namespace::plan::MAX_SIZE_BYTES;
use crate::view::{Fallocate, Ino, Timestamp};

/// Larger files are not taken for configuration.
const CONFIGURATION_BYTES_MAX: u64 = 1 << 20;

/// At most `len` bytes of a file from `offset` on.
fn part(file: &Bytes, offset: u64, len: u32) -> Bytes {
    let start = file.len().min(offset as usize);
    let end = file.len().min(start + len as usize);
    file.slice(start..end)
}

impl StandbyView {
    /// Takes note of a file that was opened, if it is one of configuration.
    pub(super) fn configuration_opened(&self, ino: Ino) {
        let state = self.state();
        if state.is_configuration(ino) {
            let unread = || Configuration::Unread(state.live.clone());
            self.configuration.lock().entry(ino).or_insert_with(unread);
        }
    }

    pub(super) async fn read_shared(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes> {
        let mut state = self.state();
        match self.configuration.lock().get(&ino).cloned() {
            Some(Configuration::Read(copy)) => return Ok(part(&copy, offset, len)),
            Some(Configuration::Unread(live)) if state.kind(ino).is_err() => {
                let mut then = State::clone(&state);
                then.live = live;
                state = Arc::new(then);
            }
            _ => {}
        }
        state.expect_file(ino)?;
        let size = state.size(ino)?;
        if size <= CONFIGURATION_BYTES_MAX && state.is_configuration(ino) {
            return self.read_configuration(&state, ino, offset, len).await;
        }
        let end = size.min(offset.saturating_add(u64::from(len)));
        if offset >= end {
            return Ok(Bytes::new());
        }
        let segment = state.log_segment(ino);
        if let Some((_, segment)) = &segment {
            let at = Lsn(segment.start.0 + offset);
            self.fetcher.ahead.log_read(at, segment.start, end - offset);
        }
        let read = self.fetcher.range(&state, ino, offset..end).await?;
        if let Some((file, segment)) = segment {
            self.fetcher
                .log_was_read(&state, file, &segment, offset..end);
        }
        Ok(read)
    }

    /// Reads a file of configuration whole, and keeps that as long as it is open: the active may put another one
    /// in its place, or rewrite it, between two reads of one who reads it from end to end.
    async fn read_configuration(
        &self,
        state: &Arc<State>,
        ino: Ino,
        offset: u64,
        len: u32,
    ) -> Result<Bytes> {
        let whole = match state.size(ino)? {
            0 => Bytes::new(),
            size => self.fetcher.range(state, ino, 0..size).await?,
        };
        if self.opens.lock().contains_key(&ino) {
            let copy = Configuration::Read(whole.clone());
            self.configuration.lock().insert(ino, copy);
        }
        Ok(part(&whole, offset, len))
    }

    pub(super) async fn write_shared(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        now: Timestamp,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        if end > MAX_SIZE_BYTES {
            return Err(Error::TooLarge);
        }
        let _turn = self.turn(ino).await;
        self.configuration.lock().remove(&ino);
        loop {
            let state = self.state();
            state.expect_file(ino)?;
            if data.is_empty() || state.is_ignored(ino)? {
                return Ok(());
            }
            let blocks = self.merge(&state, ino, offset, data).await?;
            let put = |now_state: &mut State| now_state.put_blocks(ino, blocks, end, now);
            if self.change_on(&state, put)? {
                break;
            }
        }
        self.make_room().await
    }

    /// The whole blocks that a write makes: bytes that it leaves alone come from the view.
    async fn merge(
        &self,
        state: &State,
        ino: Ino,
        offset: u64,
        data: &[u8],
    ) -> Result<Vec<(u64, Content)>> {
        let block_bytes = u64::from(state.block_bytes);
        let end = offset + data.len() as u64;
        let size = state.size(ino)?;
        let mut blocks = Vec::new();
        for block in offset / block_bytes..end.div_ceil(block_bytes) {
            let start = block * block_bytes;
            let (from, to) = (offset.max(start), end.min(start + block_bytes));
            let new = &data[(from - offset) as usize..(to - offset) as usize];
            let content = if new.len() as u64 == block_bytes {
                self.content(new)
            } else {
                // Behind the end of the file there is nothing to keep but zeros.
                let covers = from == start && to >= size;
                let old = match covers {
                    true => zeros(state.block_bytes),
                    false => self.fetcher.block(state, ino, block).await?,
                };
                let mut merged = BytesMut::from(&old[..]);
                merged[(from - start) as usize..(to - start) as usize].copy_from_slice(new);
                self.content(&merged)
            };
            blocks.push((block, content));
        }
        Ok(blocks)
    }

    fn content(&self, block: &[u8]) -> Content {
        match is_zero(block) {
            true => Content::Zeros,
            false => Content::Stored(self.store.put(block)),
        }
    }

    /// Changes the state if its base is still the one that `seen` has: what was read from another
    /// base must not hide this one's (N3). Whether it was.
    fn change_on(
        &self,
        seen: &Arc<State>,
        change: impl FnOnce(&mut State) -> Result<()>,
    ) -> Result<bool> {
        self.change_in_place(|state| {
            if !Arc::ptr_eq(&state.base, &seen.base) {
                return Ok(false);
            }
            change(state).map(|()| true)
        })
    }

    async fn make_room(&self) -> Result<()> {
        if self.store.is_over_budget() {
            let store = Arc::clone(&self.store);
            let spilling = tokio::task::spawn_blocking(move || store.make_room());
            spilling
                .await
                .map_err(|e| Error::Local(std::io::Error::other(e)))?;
        }
        Ok(())
    }

    /// Truncates or extends a file.
    pub(super) async fn resize(&self, ino: Ino, size: u64, now: Timestamp) -> Result<()> {
        if size > MAX_SIZE_BYTES {
            return Err(Error::TooLarge);
        }
        let _turn = self.turn(ino).await;
        self.configuration.lock().remove(&ino);
        loop {
            let state = self.state();
            state.expect_file(ino)?;
            let old = state.size(ino)?;
            if state.is_ignored(ino)? || old == size {
                return Ok(());
            }
            let boundary = match size < old {
                true => self.boundary(&state, ino, size).await?,
                false => None,
            };
            let done = self.change_on(&state, |state| match size < old {
                true => state.truncate(ino, size, boundary, now),
                false => state.extend(ino, size, now),
            })?;
            if done {
                return Ok(());
            }
        }
    }

    /// The block that a new, smaller size falls into, with zeros behind it.
    async fn boundary(&self, state: &State, ino: Ino, size: u64) -> Result<Option<Content>> {
        let block_bytes = u64::from(state.block_bytes);
        let kept = (size % block_bytes) as usize;
        if kept == 0 {
            return Ok(None);
        }
        let old = self.fetcher.block(state, ino, size / block_bytes).await?;
        let mut block = BytesMut::from(&old[..]);
        block[kept..].fill(0);
        Ok(Some(self.content(&block)))
    }

    pub(super) async fn fallocate_shared(
        &self,
        ino: Ino,
        range: Range<u64>,
        mode: Fallocate,
        now: Timestamp,
    ) -> Result<()> {
        if range.end > MAX_SIZE_BYTES {
            return Err(Error::TooLarge);
        }
        let grows = !matches!(
            mode,
            Fallocate::KeepSize | Fallocate::Zero { keep_size: true }
        );
        if grows && range.end > self.state().size(ino)? {
            self.resize(ino, range.end, now).await?;
        }
        match mode {
            Fallocate::Zero { .. } => self.zero(ino, range, now).await,
            _ => self.state().expect_file(ino),
        }
    }

    /// Makes a range read as zeros; the size stays.
    async fn zero(&self, ino: Ino, range: Range<u64>, now: Timestamp) -> Result<()> {
        let state = self.state();
        let range = range.start..range.end.min(state.size(ino)?);
        if range.is_empty() {
            return Ok(());
        }
        let block_bytes = u64::from(state.block_bytes);
        let whole = state.whole_blocks(&range);
        let edges = match whole.is_empty() {
            true => [range.clone(), range.end..range.end],
            false => [
                range.start..whole.start * block_bytes,
                whole.end * block_bytes..range.end,
            ],
        };
        for edge in edges.into_iter().filter(|e| !e.is_empty()) {
            self.zero_edge(ino, edge, block_bytes, now).await?;
        }
        let _turn = self.turn(ino).await;
        self.change_in_place(|state| {
            if state.is_ignored(ino)? {
                return Ok(());
            }
            state.put_blocks(ino, whole.map(|b| (b, Content::Zeros)), 0, now)
        })
    }

    /// Zeroes a range that covers no whole block.
    async fn zero_edge(
        &self,
        ino: Ino,
        range: Range<u64>,
        block_bytes: u64,
        now: Timestamp,
    ) -> Result<()> {
        let empty = vec![0; block_bytes as usize];
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / block_bytes + 1) * block_bytes);
            self.write_shared(ino, at, &empty[..(end - at) as usize], now)
                .await?;
            at = end;
        }
        Ok(())
    }
}
