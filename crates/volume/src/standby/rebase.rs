//! Moving the base of a running standby forward (pure; hazards N3, N8, N9).
//!
//! The caller has redo at rest and applied at least to the new base's end (W). Then everything that
//! the overlay holds with a stamp up to the new redo pointer is in the new base, and goes, with these
//! exceptions:
//!
//! - a block of which the new base has no version (N2);
//! - a whiteout whose name the new base still has: the active has logged the removal but not done
//!   it yet, and the file must not come back (N8). By name, because what redo removed may be a file
//!   that it had made itself; and a file made there later is one that redo has made as well, since it
//!   has applied all that the new base can reflect. The same for a cut of a file that waits for its
//!   unlinking. Such a file is not written any more, which is how it is told from one that was
//!   truncated and lives on: there the truncation is in the image, because PostgreSQL holds a
//!   checkpoint back until a logged truncation is done. (The hazard list keeps every cut while the
//!   inode is there; that would hide what is written behind a `VACUUM`'s truncation for ever.)
//! - a whiteout of an init fork, while the new base has other forks of its relation: redo never saw
//!   them, and the active removes them later than the init fork;
//! - names and tails that the old base has and the new one has not: they are *kept* as in the old
//!   base until redo removes them itself (N8), also of files that redo made or has made longer since:
//!   a rollback removes its files before the log that was written to them is synced, and redo comes to
//!   that log after the move. So is a name at which the new base has another file, if
//!   redo works with the old one: the old base had the stub of a removed relation there, and redo took
//!   it for the new relation of the same number, so what redo changed is in the stub.
//!
//! A created inode adopts the shared one at its name when its own stamp allows; its number stays.

use std::collections::BTreeSet;
use std::sync::Arc;

use dax::ids::{BlockKey, FileId};
use imbl::OrdMap;

use super::hidden::{Hidden, hider_of, names_hidden_by};
use super::overlay::{Content, InodeItem, NameItem, is_created};
#[cfg(test)]
use super::simulation::flaw::Flaw;
use super::state::{Found, State};
use crate::layout::FileClass;
use crate::lsn::Lsn;
use crate::namespace::{Change, Directory, Inode, Name};
use crate::seal::Base;
use crate::view::{FileKind, Ino};

/// A stamp that no redo pointer reaches: until redo itself says otherwise.
const UNTIL_REDO: Lsn = Lsn(u64::MAX);

/// What a move asks about the world outside of the state.
pub(crate) struct Move<'a> {
    pub base: Arc<Base>,
    /// What of its names is not shown.
    pub hidden: Hidden,
    /// True if the new base has a version of a block.
    pub has_version: &'a dyn Fn(BlockKey) -> bool,
    /// True if an inode is open.
    pub is_open: &'a dyn Fn(Ino) -> bool,
}

impl State {
    /// The blocks whose versions in `base` a move to it will ask for, and what the overlay has of them.
    pub fn blocks_covered_by(&self, base: &Base) -> Vec<(BlockKey, Content)> {
        let mut covered = Vec::new();
        for (ino, item) in &self.overlay.inodes {
            let old = item
                .blocks
                .iter()
                .filter(|(_, b)| b.stamp <= base.seal.redo);
            let mut old = old.peekable();
            if old.peek().is_none() {
                continue;
            }
            let id = match is_created(*ino) && item.adopted().is_none() {
                true => self
                    .path(*ino)
                    .ok()
                    .and_then(|p| base.namespace.resolve(&p).ok()),
                false => self.shared_file(*ino),
            };
            if let Some(id) = id {
                let contents = old.map(|(block, item)| (*block, item.content.clone()));
                covered
                    .extend(contents.map(|(block, content)| (BlockKey::new(id, block), content)));
            }
        }
        covered
    }

    /// Moves to a newer base.
    pub fn rebase(&self, to: &Move<'_>) -> State {
        let mut next = self.clone();
        next.base = Arc::clone(&to.base);
        next.hidden = Arc::clone(&to.hidden);
        let mover = Mover { old: self, to };
        mover.keep_hidden(&mut next);
        mover.keep_names(&mut next);
        mover.adopt(&mut next);
        mover.names(&mut next);
        mover.inodes(&mut next);
        next
    }

    /// The shared file behind an inode of class data, whether a base has it or not.
    fn shared_file(&self, ino: Ino) -> Option<FileId> {
        match is_created(ino) {
            true => self.item(ino)?.adopted(),
            false => Some(FileId(ino.0)),
        }
    }
}

struct Mover<'a> {
    old: &'a State,
    to: &'a Move<'a>,
}

impl Mover<'_> {
    fn redo(&self) -> Lsn {
        self.to.base.seal.redo
    }

    #[cfg(test)]
    fn has(&self, flaw: Flaw) -> bool {
        self.old.distortion.flaw == Some(flaw)
    }

    fn is_data(&self, dir: Ino, name: &[u8]) -> bool {
        let path = self.old.path_in(dir, name);
        path.is_ok_and(|p| self.old.layout.standby_class(&p) == FileClass::Data)
    }

    /// Forks that the old base hid and the new one would show, because it lost the init fork first.
    fn keep_hidden(&self, next: &mut State) {
        let shown_now: BTreeSet<_> = next.hidden.iter().cloned().collect();
        for hidden in self.old.hidden.iter().filter(|h| !shown_now.contains(*h)) {
            let (dir, name) = (self.old.ino_of(hidden.0), &hidden.1);
            let there = self.to.base.namespace.lookup(hidden.0, name).ok();
            if there.is_some() && self.old.overlay.name(dir, name).is_none() {
                let item = NameItem {
                    target: None,
                    hides: there,
                    stamp: self.old.replay_limit,
                };
                next.overlay.put_name(dir, name.clone(), item);
            }
        }
    }

    /// Names of the old base that redo did not remove stay.
    fn keep_names(&self, next: &mut State) {
        #[cfg(test)]
        if self.has(Flaw::NamesTaken) {
            return;
        }
        let (old, new) = (&self.old.base.namespace, &self.to.base.namespace);
        for (dir_id, change) in new.changed_directories(old) {
            let before = match change {
                Change::Changed { old, .. } | Change::Removed(old) => old,
                Change::Added(_) => continue,
            };
            let after = new.directory(dir_id).ok();
            let dir = self.old.ino_of(dir_id);
            if !self.is_in_view(dir) {
                continue;
            }
            for (name, id) in before {
                let elsewhere = new.get(*id).is_some_and(|i| i.is_linked());
                let replaced = after.is_some_and(|names| names.contains_key(name));
                let is_stub =
                    || after.is_some_and(|after| self.is_stub_in_the_way(after, name, *id));
                if elsewhere || (replaced && (!self.is_in_use(*id) || is_stub())) {
                    continue;
                }
                let shown = self.old.overlay.name(dir, name).is_none()
                    && self.is_data(dir, name)
                    && self.old.expect((dir, name)).is_ok();
                let goes = || self.may_go(*id) || self.is_orphan(dir_id, dir, name, *id);
                if shown && (replaced || !(after.is_some() && goes())) {
                    self.keep_name(next, dir, name, *id);
                }
            }
        }
    }

    /// True if what redo did to a file, or has still to do, would be lost with its name. (Directories
    /// are not replaced: a takeover keeps their ids.)
    fn is_in_use(&self, id: FileId) -> bool {
        let ino = self.old.ino_of(id);
        self.old.item(ino).is_some() || (self.to.is_open)(ino)
    }

    /// True if a name is that of an empty file, and hidden in the new base by the init fork of an unlogged relation that
    /// has the number now: PostgreSQL, promoted, makes that one's main fork there.
    fn is_stub_in_the_way(&self, after: &Directory, name: &Name, id: FileId) -> bool {
        let by = hider_of(&*self.old.layout, name);
        let is_empty = || self.old.size(self.old.ino_of(id)).is_ok_and(|s| s == 0);
        by.is_some_and(|by| after.contains_key(by.as_bytes())) && is_empty()
    }

    /// An empty file without private changes is the stub of a removed relation.
    fn may_go(&self, id: FileId) -> bool {
        let ino = self.old.ino_of(id);
        self.old.kind(ino).is_ok_and(|k| k == FileKind::File)
            && self.old.size(ino).is_ok_and(|s| s == 0)
            && self.old.item(ino).is_none()
            && !(self.to.is_open)(ino)
    }

    /// A part without private changes of a relation that redo has removed. Redo never saw this part, or
    /// it would have removed it as well; then the base brought it, and the next base takes it away.
    fn is_orphan(&self, dir_id: FileId, dir: Ino, name: &Name, id: FileId) -> bool {
        let ino = self.old.ino_of(id);
        if self.old.item(ino).is_some() || (self.to.is_open)(ino) {
            return false;
        }
        let main = std::str::from_utf8(name).ok();
        let Some(main) = main.and_then(|name| self.old.layout.main_of(name)) else {
            return false;
        };
        match self.old.find(dir, main.as_bytes()) {
            Ok(Found::Nothing) => true,
            // Its stub, which goes now or after the active's next checkpoint.
            Ok(Found::Inode(_)) => {
                let lookup = |base: &Base| base.namespace.lookup(dir_id, main.as_bytes()).ok();
                let still = lookup(&self.to.base).and_then(|main| self.to.base.namespace.get(main));
                lookup(&self.old.base).is_some_and(|main| self.may_go(main))
                    && still.is_none_or(|main| main.size == 0)
            }
            _ => false,
        }
    }

    fn keep_name(&self, next: &mut State, dir: Ino, name: &Name, id: FileId) {
        let item = NameItem {
            target: Some(self.old.ino_of(id)),
            hides: None,
            stamp: UNTIL_REDO,
        };
        next.overlay.put_name(dir, name.clone(), item);
    }

    /// The inode reads as in the base that it was in.
    fn keep_inode(&self, next: &mut State, id: FileId) {
        let base = self.old.kept.get(&id).unwrap_or(&self.old.base);
        if base.namespace.get(id).is_some() {
            next.kept.insert(id, Arc::clone(base));
        }
    }

    /// Created inodes whose stamps allow it become views of the shared inodes at their names.
    fn adopt(&self, next: &mut State) {
        let created = self.old.overlay.inodes.iter().filter_map(|(ino, item)| {
            let created = item.created.as_ref()?;
            let ready = created.adopted.is_none()
                && created.class == FileClass::Data
                && created.stamp <= self.redo()
                && item.nlink != Some(0);
            let depth = ready.then(|| self.old.path(*ino).ok()).flatten()?;
            Some((depth.matches('/').count(), *ino, created.kind))
        });
        let mut created: Vec<_> = created.collect();
        created.sort_unstable_by_key(|(depth, ino, _)| (*depth, *ino));
        for (_, ino, kind) in created {
            if let Some(shared) = self.adoptable(next, ino, kind) {
                next.overlay.adopted.insert(shared, ino);
                if let Some(created) = next.overlay.item_mut(ino).created.as_mut() {
                    created.adopted = Some(shared);
                }
            }
        }
    }

    fn adoptable(&self, next: &State, ino: Ino, kind: FileKind) -> Option<FileId> {
        let (dir, name) = self.old.home(ino)?;
        let item = self.old.overlay.name(dir, &name)?;
        if item.target != Some(ino) || item.stamp > self.redo() {
            return None;
        }
        let dir_id = next.directory_id(dir)?;
        let shared = self.to.base.namespace.lookup(dir_id, &name).ok()?;
        let own = Ino(shared.0);
        let shown = self
            .old
            .home(own)
            .and_then(|(dir, name)| self.old.find(dir, &name).ok());
        let known = shown == Some(Found::Inode(own)) || next.overlay.adopted.contains_key(&shared);
        let same_kind = self.to.base.namespace.get(shared)?.kind == kind;
        (same_kind && !known && item.hides != Some(shared)).then_some(shared)
    }

    /// True if the view shows an inode at the name that it has in the old base.
    fn is_shown(&self, ino: Ino) -> bool {
        let home = self.old.home(ino);
        let found = home.and_then(|(dir, name)| self.old.find(dir, &name).ok());
        found == Some(Found::Inode(ino))
    }

    /// The same, and the directories on the way to it: one that redo made hides the base's of that name, with all that is
    /// in it.
    fn is_in_view(&self, ino: Ino) -> bool {
        let mut at = ino;
        while at != Ino::ROOT {
            let Some((dir, _)) = self.old.home(at).filter(|_| self.is_shown(at)) else {
                return false;
            };
            at = dir;
        }
        true
    }

    /// True if a name that the new base has not hides others of it: the init fork of an unlogged relation goes at
    /// once, its main fork after the active's next checkpoint, and redo, which never saw that one, does not remove it.
    /// What redo itself made there since is another relation of the same number.
    fn hides_in_new(&self, dir: Ino, (dir_id, name): (FileId, &Name)) -> bool {
        let names = &self.to.base.namespace;
        let hidden = names_hidden_by(&*self.old.layout, names, (dir_id, name));
        let own = || hidden.iter().map(|other| self.old.overlay.name(dir, other));
        let is_made = own().flatten().any(|item| item.target.is_some());
        !is_made && own().any(|item| item.is_none())
    }

    /// Drops the names that the new base has as the view shows them.
    fn names(&self, next: &mut State) {
        let items = next.overlay.names.clone();
        for (dir, names) in &items {
            let dir_id = next.directory_id(*dir);
            // The names of a kept directory are the old base's.
            let gone = dir_id.is_some_and(|d| self.to.base.namespace.directory(d).is_err());
            let kept_directory = gone && self.old.attr(*dir).is_ok_and(|a| a.nlink > 0);
            for (name, item) in names {
                if !self.is_data(*dir, name) {
                    continue;
                }
                let there = dir_id.and_then(|d| self.to.base.namespace.lookup(d, name).ok());
                let covered = item.stamp <= self.redo();
                match item.target {
                    Some(ino) if covered && there.is_some() && next.shared_file(ino) == there => {
                        next.overlay.remove_name(*dir, name);
                    }
                    Some(_) => {}
                    #[cfg(test)]
                    None if covered && self.has(Flaw::WhiteoutsDropped) => {
                        next.overlay.remove_name(*dir, name);
                    }
                    None if covered && there.is_none() => {
                        let hides_a_fork =
                            dir_id.is_some_and(|id| self.hides_in_new(*dir, (id, name)));
                        if !kept_directory && !hides_a_fork {
                            next.overlay.remove_name(*dir, name);
                        }
                    }
                    None => {
                        let hides = there;
                        let item = NameItem {
                            hides,
                            ..item.clone()
                        };
                        next.overlay.put_name(*dir, name.clone(), item);
                    }
                }
            }
        }
    }

    /// Trims every inode to what the new base lacks, or keeps it as in the old one.
    fn inodes(&self, next: &mut State) {
        next.kept = OrdMap::new();
        let names = || next.overlay.names.values().flat_map(|names| names.values());
        let named: BTreeSet<Ino> = names().filter_map(|item| item.target).collect();
        let whited_out = names().filter(|item| item.target.is_none());
        let whited_out: BTreeSet<FileId> = whited_out.filter_map(|item| item.hides).collect();
        let mut inos: BTreeSet<Ino> = next.overlay.inodes.keys().chain(&named).copied().collect();
        let (old, new) = (&self.old.base.namespace, &self.to.base.namespace);
        let changed = new.changed_inodes(old).map(|(id, _)| id);
        let kept = self.old.kept.keys().copied();
        inos.extend(changed.chain(kept).map(|id| self.old.ino_of(id)));
        for ino in inos {
            if self.old.class(ino).ok() != Some(FileClass::Data) {
                continue;
            }
            let Some(id) = next.shared_file(ino) else {
                continue;
            };
            match new.get(id).filter(|i| i.is_linked()) {
                None if named.contains(&ino) || (self.to.is_open)(ino) => self.keep_inode(next, id),
                None => {
                    next.overlay.inodes.remove(&ino);
                    next.overlay.adopted.remove(&id);
                }
                Some(shared) if self.loses_tail(ino, shared) => self.keep_inode(next, id),
                Some(shared) => {
                    let whited_out = whited_out.contains(&id);
                    self.trim(
                        next,
                        ino,
                        (id, shared.size),
                        named.contains(&ino),
                        whited_out,
                    );
                }
            }
        }
    }

    /// True if the new base is shorter than what the view shows of the old one, also below what redo
    /// itself did to the file.
    fn loses_tail(&self, ino: Ino, new: &Inode) -> bool {
        #[cfg(test)]
        if self.has(Flaw::OwnTailsTaken)
            && let Some(item) = self.old.item(ino)
            && (item.size.is_some() || item.created.is_some())
        {
            return false;
        }
        let is_file = new.kind == FileKind::File;
        is_file && new.size < self.shown_of_base(ino) && self.is_shown(ino)
    }

    /// Up to which byte of a file the old base's bytes may show: no further than its size in that base,
    /// what redo cut, and the size that redo gave it.
    fn shown_of_base(&self, ino: Ino) -> u64 {
        let Some(shared) = self.old.shared(ino) else {
            return 0;
        };
        let item = self.old.item(ino);
        let cut = item.and_then(|item| item.cuts.first());
        let cut = cut.map(|cut| cut.first_block * u64::from(self.old.block_bytes));
        let own = item.and_then(|item| item.size).map(|size| size.value);
        let limits = cut.into_iter().chain(own);
        limits.fold(shared.inode.size, u64::min)
    }

    /// Drops what the new base has of one inode.
    fn trim(
        &self,
        next: &mut State,
        ino: Ino,
        (id, new_size): (FileId, u64),
        is_named: bool,
        is_whited_out: bool,
    ) {
        let Some(mut item) = next.item(ino).cloned() else {
            return;
        };
        let redo = self.redo();
        let block_bytes = u64::from(self.old.block_bytes);
        let waits = self.waits_for_unlinking(&item, new_size);
        let last = item.cuts.last().copied().filter(|_| waits);
        item.cuts.retain(|c| c.stamp > redo || Some(*c) == last);
        item.size = item
            .size
            .filter(|s| s.stamp > redo || waits || s.value > new_size);
        item.attrs = item.attrs.filter(|a| a.stamp > redo);
        let covered = item.blocks.iter().filter(|(block, b)| {
            let key = BlockKey::new(id, **block);
            b.stamp <= redo && **block * block_bytes < new_size && (self.to.has_version)(key)
        });
        let covered: Vec<u64> = covered.map(|(block, _)| *block).collect();
        for block in covered {
            item.blocks.remove(&block);
        }
        if !is_named {
            item.home = None;
            item.nlink = item.nlink.filter(|n| *n == 0 && is_whited_out);
        }
        match item.says_nothing() {
            true => next.overlay.inodes.remove(&ino),
            false => next.overlay.inodes.insert(ino, Arc::new(item)),
        };
    }

    /// True if a file was cut by the removal of its relation, which the active has not done yet.
    fn waits_for_unlinking(&self, item: &InodeItem, new_size: u64) -> bool {
        #[cfg(test)]
        if self.has(Flaw::CutsDropped) || self.has(Flaw::WhiteoutsDropped) {
            return false;
        }
        let Some(last) = item.cuts.last() else {
            return false;
        };
        let more = last.first_block * u64::from(self.old.block_bytes) < new_size;
        more && !item.in_use_since_cut
    }
}
