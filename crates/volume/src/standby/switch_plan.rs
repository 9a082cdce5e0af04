//! What a takeover must write so that the namespace becomes the view (pure).
//!
//! For files of class data, names and inodes become exactly those of the view, whatever the dead
//! active did after the base (hazard N6); log and configuration stay as in the
//! latest namespace. Only what differs is looked at: what the active changed since the base, what
//! the overlay changed, and what the layout hides. Files are matched by inode, not by name.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use dax::ids::{BlockIndex, FileId, Version};

use super::hidden::names_hidden_by;
use super::overlay::is_created;
#[cfg(test)]
use super::simulation::flaw::Flaw;
use super::state::{Found, State};
use crate::error::Result;
use crate::layout::FileClass;
use crate::namespace::op::Op;
use crate::namespace::{Change, Cut, Inode, Name, Namespace};
use crate::view::{FileKind, Ino};

/// See [`plan`].
pub(crate) struct SwitchPlan {
    /// One record's operations.
    pub ops: Vec<Op>,
    /// The shared files that created inodes became.
    pub files: HashMap<Ino, FileId>,
}

/// What a plan is made from.
pub(crate) struct Switch<'a> {
    pub state: &'a State,
    pub latest: &'a Namespace,
    /// Paths that are published separately, with everything below them.
    pub published: &'a [String],
    /// Older than every block of the new epoch, newer than every other.
    pub cut: Version,
}

/// Names that change: directory and name, and what they lead to.
type Names = BTreeMap<(FileId, Name), Option<FileId>>;

/// Turns the latest namespace into the view's. `allocate` gives new ids of the new epoch.
pub(crate) fn plan(
    switch: &Switch<'_>,
    mut allocate: impl FnMut() -> FileId,
) -> Result<SwitchPlan> {
    let mut files = HashMap::new();
    let names = switch.state.overlay.names.values();
    let names = names.flat_map(|names| names.values());
    let given: BTreeSet<Ino> = names.filter_map(|item| item.target).collect();
    for (ino, item) in &switch.state.overlay.inodes {
        let Some(created) = item.created.as_ref() else {
            continue;
        };
        if created.class == FileClass::Data && item.nlink != Some(0) {
            let same = || same_in_base(switch.state, *ino).filter(|id| !given.contains(&Ino(id.0)));
            let file = created.adopted.or_else(same);
            files.insert(*ino, file.unwrap_or_else(&mut allocate));
        }
    }
    let inos = files.iter().map(|(ino, file)| (*file, *ino)).collect();
    let planner = Planner {
        switch,
        files,
        inos,
    };
    let names = planner.names()?;
    let mut ops = planner.inodes(&names);
    planner.put_names(names, &mut ops);
    let (drops, puts): (Vec<Op>, Vec<Op>) = ops
        .into_iter()
        .partition(|op| matches!(op, Op::DropInode { .. }));
    let mut ops = puts;
    ops.extend(drops);
    ops.extend(planner.returned(&ops));
    Ok(SwitchPlan {
        ops,
        files: planner.files,
    })
}

/// The file of the base that is what redo made, though its stamp did not allow to adopt it yet. It keeps
/// its id, because other standbys stand on that base: what they have over that file must find it in the
/// images to come. None of its blocks shows (see [`Planner::inode`]).
///
/// A directory keeps its id also if redo removed it and made it again, as it does with a copied database: it is
/// nothing but its names, which all become the view's, and another standby may have adopted it.
fn same_in_base(state: &State, ino: Ino) -> Option<FileId> {
    let (dir, name) = state.home(ino)?;
    let item = state.overlay.name(dir, &name)?;
    let base = &state.base.namespace;
    let id = base.resolve(&state.path(ino).ok()?).ok()?;
    let shared = base.get(id)?;
    let is_directory = shared.kind == FileKind::Directory;
    let is_same = item.target == Some(ino)
        && state.ino_of(id) == Ino(id.0)
        && shared.kind == state.kind(ino).ok()?
        && (is_directory || (item.hides != Some(id) && shared.nlink == 1));
    is_same.then_some(id)
}

struct Planner<'a> {
    switch: &'a Switch<'a>,
    files: HashMap<Ino, FileId>,
    /// The same, the other way round.
    inos: HashMap<FileId, Ino>,
}

impl Planner<'_> {
    fn state(&self) -> &State {
        self.switch.state
    }

    /// The shared file of an inode of the view; `None` for what is not shared data afterwards.
    fn file(&self, ino: Ino) -> Option<FileId> {
        match is_created(ino) {
            true => self.files.get(&ino).copied(),
            false => Some(FileId(ino.0)),
        }
    }

    fn is_published(&self, path: &str) -> bool {
        self.switch.published.iter().any(|p| {
            path.strip_prefix(p.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// True if an inode is data of the view, with a name that shows.
    fn is_alive(&self, ino: Ino) -> bool {
        let state = self.state();
        if is_created(ino) {
            return self.files.contains_key(&ino);
        }
        let latest = self.switch.latest.get(FileId(ino.0));
        let is_data = state.class(ino).ok() == Some(FileClass::Data)
            && latest.is_none_or(|i| i.class == FileClass::Data);
        is_data && state.attr(ino).is_ok_and(|a| a.nlink > 0) && self.has_name(ino)
    }

    /// True if a name leads to an inode of the base: its own, where neither the overlay nor the
    /// layout hides it, or one that redo gave it.
    fn has_name(&self, ino: Ino) -> bool {
        let state = self.state();
        if ino == Ino::ROOT {
            return true;
        }
        let own = state
            .home(ino)
            .and_then(|(dir, name)| state.find(dir, &name).ok());
        let mut given = state
            .overlay
            .names
            .values()
            .flat_map(|names| names.values());
        match own {
            Some(Found::Inode(there)) if there == ino && !self.is_replaced(ino) => true,
            // Private on a standby, and not published: as in the base.
            Some(Found::Private(_)) => true,
            _ => given.any(|item| item.target == Some(ino)),
        }
    }

    /// True if an inode of the base is below a directory whose place one that redo made has taken.
    fn is_replaced(&self, ino: Ino) -> bool {
        let mut at = ino;
        while at != Ino::ROOT
            && let Some((dir, _)) = self.state().home(at)
        {
            let made = self.inos.get(&FileId(dir.0));
            if made.is_some_and(|made| *made != dir) {
                return true;
            }
            at = dir;
        }
        false
    }

    /// Every name that may differ between the latest namespace and the view.
    fn candidates(&self) -> BTreeSet<(Ino, Name)> {
        let state = self.state();
        let base = &state.base.namespace;
        let mut found = BTreeSet::new();
        for (dir, change) in self.switch.latest.changed_directories(base) {
            #[cfg(test)]
            if state.distortion.flaw == Some(Flaw::LatestNamesLeft) {
                continue;
            }
            let dir = state.ino_of(dir);
            match change {
                Change::Changed { old, new } => {
                    let names = old.diff(new).map(|item| match item {
                        imbl::ordmap::DiffItem::Add(name, _)
                        | imbl::ordmap::DiffItem::Remove(name, _) => name.clone(),
                        imbl::ordmap::DiffItem::Update { new, .. } => new.0.clone(),
                    });
                    found.extend(names.map(|name| (dir, name)));
                }
                Change::Removed(old) => found.extend(old.keys().map(|n| (dir, n.clone()))),
                // A directory that the view has not is dropped as an inode. One that it has kept, because redo has not
                // removed it as the base had, may have got names since.
                Change::Added(new) => found.extend(new.keys().map(|n| (dir, n.clone()))),
            }
        }
        for (dir, names) in &state.overlay.names {
            for name in names.keys() {
                found.insert((*dir, name.clone()));
                found.extend(self.hidden_by(*dir, name).into_iter().map(|n| (*dir, n)));
            }
        }
        let hidden = state.hidden.iter();
        found.extend(hidden.map(|(dir, name)| (state.ino_of(*dir), name.clone())));
        // Directories that redo made and that keep the id of the base's: nothing of that shows.
        for (id, dir) in &self.inos {
            if state.item(*dir).is_some_and(|i| i.adopted().is_none())
                && let Ok(names) = self.switch.latest.directory(*id)
            {
                found.extend(names.keys().map(|name| (*dir, name.clone())));
            }
        }
        found
    }

    /// Names of the base that a name of the overlay hides.
    fn hidden_by(&self, dir: Ino, name: &Name) -> Vec<Name> {
        let state = self.state();
        let names = |dir| names_hidden_by(&*state.layout, &state.base.namespace, (dir, name));
        state.directory_id(dir).map(names).unwrap_or_default()
    }

    /// The names that differ.
    fn names(&self) -> Result<Names> {
        let state = self.state();
        let mut names = Names::new();
        for (dir, name) in self.candidates() {
            if !self.is_alive(dir) {
                continue;
            }
            let Some(dir_file) = self.file(dir) else {
                continue;
            };
            let path = state.path_in(dir, &name)?;
            if state.layout.class(&path) != FileClass::Data || self.is_published(&path) {
                continue;
            }
            let target = match state.find(dir, &name)? {
                Found::Inode(ino) => self.file(ino).filter(|_| self.is_alive(ino)),
                Found::Nothing => None,
                // Private on a standby, and not published: as in the base.
                Found::Private(_) => state.base_name(dir, &name),
            };
            let now = self.switch.latest.lookup(dir_file, &name).ok();
            if now != target {
                names.insert((dir_file, name), target);
            }
        }
        Ok(names)
    }

    /// Raw operations for every inode that differs.
    fn inodes(&self, names: &Names) -> Vec<Op> {
        let state = self.state();
        let latest = self.switch.latest;
        let base = &state.base.namespace;
        let mut inos: BTreeSet<Ino> = state.overlay.inodes.keys().copied().collect();
        let changed = latest.changed_inodes(base).map(|(id, _)| state.ino_of(id));
        #[cfg(test)]
        let left = state.distortion.flaw == Some(Flaw::LatestSizesLeft);
        #[cfg(test)]
        let changed = changed.filter(|_| !left);
        inos.extend(changed);
        inos.extend(state.kept.keys().map(|id| state.ino_of(*id)));
        let hidden = state.hidden.iter();
        inos.extend(
            hidden
                .filter_map(|(dir, name)| base.lookup(*dir, name).ok())
                .map(|id| state.ino_of(id)),
        );
        for ((dir, name), target) in names {
            let before = latest.lookup(*dir, name).ok();
            let all = [Some(*dir), *target, before];
            inos.extend(all.into_iter().flatten().map(|id| self.ino(id)));
        }
        let subdirectories = self.subdirectories(names);
        inos.into_iter()
            .filter_map(|ino| self.inode_op(ino, &subdirectories))
            .collect()
    }

    /// The inode of the view that is, or becomes, a shared file.
    fn ino(&self, id: FileId) -> Ino {
        let created = self.inos.get(&id).copied();
        created.unwrap_or_else(|| self.state().ino_of(id))
    }

    /// How many more subdirectories each directory has than in the latest namespace.
    fn subdirectories(&self, names: &Names) -> HashMap<FileId, i64> {
        let latest = self.switch.latest;
        let is_directory = |id: FileId| {
            latest
                .get(id)
                .is_some_and(|i| i.kind == FileKind::Directory)
        };
        let mut more = HashMap::new();
        for ((dir, name), target) in names {
            let before = latest.lookup(*dir, name).is_ok_and(is_directory);
            let kind = target.and_then(|id| self.state().kind(self.ino(id)).ok());
            let after = kind == Some(FileKind::Directory);
            *more.entry(*dir).or_default() += i64::from(after) - i64::from(before);
        }
        more
    }

    fn inode_op(&self, ino: Ino, subdirectories: &HashMap<FileId, i64>) -> Option<Op> {
        let latest = self.switch.latest;
        // What redo made, adopted and removed goes as well.
        let adopted = || self.state().item(ino)?.adopted();
        let id = self.file(ino).or_else(adopted)?;
        // What redo made has taken its place.
        if self.inos.get(&id).is_some_and(|made| *made != ino) {
            return None;
        }
        let now = latest.get(id);
        let path = self.state().path(ino).ok().or_else(|| latest.path_of(id));
        let other_class = |i: &Inode| i.class != FileClass::Data;
        if now.is_some_and(other_class) || path.is_some_and(|p| self.is_published(&p)) {
            return None;
        }
        if !self.is_alive(ino) {
            return now.map(|_| Op::DropInode { id });
        }
        let mut inode = self.inode(ino)?;
        if inode.kind == FileKind::Directory {
            let more = subdirectories.get(&id).copied().unwrap_or(0);
            let before = now.map_or(2, |i| i.nlink);
            inode.nlink = u32::try_from(i64::from(before) + more).unwrap_or(2);
        }
        (now != Some(&inode)).then_some(Op::PutInode { id, inode })
    }

    /// What an inode of the view is as a shared one.
    fn inode(&self, ino: Ino) -> Option<Inode> {
        let state = self.state();
        let attr = state.attr(ino).ok()?;
        let item = state.item(ino);
        let created = item.and_then(|i| i.created.as_ref());
        let shared = state.shared(ino).map(|s| s.inode);
        let home = match ino {
            Ino::ROOT => None,
            _ => state.home(ino),
        };
        let home = home.and_then(|(dir, name)| Some((self.file(dir)?, name)));
        let (parent, name) = home.or_else(|| shared.map(|s| (s.parent, s.name.clone())))?;
        let mut inode = Inode {
            kind: attr.kind,
            class: FileClass::Data,
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            nlink: attr.nlink,
            size: attr.size,
            mtime: attr.mtime,
            ctime: attr.ctime,
            cuts: shared.map(|s| s.cuts.clone()).unwrap_or_default(),
            target: match created {
                Some(created) => created.target.clone(),
                None => shared.and_then(|s| s.target.clone()),
            },
            parent,
            name,
        };
        // A created inode with a new id has no older blocks to hide.
        let is_old = shared.is_some() || self.is_in_base(ino);
        let own_cut = item.and_then(|i| i.cuts.first()).filter(|_| is_old);
        if let Some(cut) = own_cut {
            inode.add_cut(Cut {
                first_block: BlockIndex(cut.first_block),
                version: self.switch.cut,
            });
        }
        Some(inode)
    }

    fn is_in_base(&self, ino: Ino) -> bool {
        let id = self.file(ino);
        id.is_some_and(|id| self.state().base.namespace.get(id).is_some())
    }

    fn put_names(&self, names: Names, ops: &mut Vec<Op>) {
        for ((parent, name), target) in names {
            let name = name.to_vec();
            ops.push(match target {
                Some(id) => Op::PutName { parent, name, id },
                None => Op::DropName { parent, name },
            });
        }
    }

    /// Files that the dead active had removed and that the view still has: their blocks stay.
    fn returned(&self, ops: &[Op]) -> Option<Op> {
        let removed: BTreeSet<FileId> = self.switch.latest.removed().collect();
        let puts = ops.iter().filter_map(|op| match op {
            Op::PutInode { id, .. } if removed.contains(id) => Some(*id),
            _ => None,
        });
        let ids: Vec<FileId> = puts.collect();
        (!ids.is_empty()).then_some(Op::Reclaimed { ids })
    }
}
