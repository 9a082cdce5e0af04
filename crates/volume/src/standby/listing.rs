//! Directory listings of a state (pure).

use std::collections::BTreeMap;

use super::state::State;
use crate::error::Result;
use crate::layout::FileClass;
use crate::namespace::Name;
use crate::view::{DirEntry, Ino};

impl State {
    /// All names of a shared directory but private ones.
    pub fn list(&self, dir: Ino) -> Result<BTreeMap<Name, Ino>> {
        self.expect_directory(dir)?;
        let prefix = match self.path(dir)? {
            path if path.is_empty() => path,
            path => path + "/",
        };
        let mut out = BTreeMap::new();
        self.list_shared(dir, &prefix, &mut out);
        for (name, item) in self.overlay.names.get(&dir).into_iter().flatten() {
            let path = format!("{prefix}{}", String::from_utf8_lossy(name));
            let is_log = self.layout.standby_class(&path) == FileClass::Log;
            match item.target {
                Some(_) if is_log && out.contains_key(name) => {}
                Some(ino) => drop(out.insert(name.clone(), ino)),
                None if is_log => {}
                None => drop(out.remove(name)),
            }
        }
        Ok(out)
    }

    fn list_shared(&self, dir: Ino, prefix: &str, out: &mut BTreeMap<Name, Ino>) {
        let base = self.shared_names(dir, FileClass::Data);
        let live = self.shared_names(dir, FileClass::Live);
        let retained = self.directory_id(dir).and_then(|id| self.live.retained(id));
        for (names, from_base) in [(base, true), (live, false), (retained, false)] {
            for (name, id) in names.into_iter().flatten() {
                let path = format!("{prefix}{}", String::from_utf8_lossy(name));
                let class = self.layout.standby_class(&path);
                let here = match class {
                    FileClass::Private => false,
                    FileClass::Data => from_base,
                    FileClass::Log | FileClass::Live => !from_base,
                };
                let hidden = || {
                    self.layout.hidden_on_standby(&path)
                        || (from_base && base.is_some_and(|b| self.is_hidden(dir, b, name)))
                };
                let hidden = here
                    && match class {
                        FileClass::Log => !self.shows_log_file(&path),
                        _ => hidden(),
                    };
                if here && !hidden && !out.contains_key(name) {
                    out.insert(name.clone(), self.ino_of(*id));
                }
            }
        }
    }

    /// The same as directory entries.
    pub fn read_dir(&self, dir: Ino) -> Result<Vec<DirEntry>> {
        let entries = self.list(dir)?.into_iter().filter_map(|(name, ino)| {
            Some(DirEntry {
                ino,
                kind: self.kind(ino).ok()?,
                name: name.to_vec(),
            })
        });
        Ok(entries.collect())
    }
}
