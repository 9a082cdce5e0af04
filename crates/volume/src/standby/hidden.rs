//! Names of an image that the layout keeps from standbys (pure).

use dax::ids::FileId;

use crate::layout::Layout;
use crate::namespace::{Name, Namespace, ROOT};

/// The names of a base that a standby does not show.
pub(crate) fn hidden_names(layout: &dyn Layout, base: &Namespace) -> Vec<(FileId, Name)> {
    let mut hidden = Vec::new();
    for (dir, names) in base.directories() {
        let is_root = dir == ROOT;
        for name in names.keys() {
            let Ok(text) = std::str::from_utf8(name) else {
                continue;
            };
            let by_fork = || {
                layout
                    .hidden_by(text)
                    .is_some_and(|by| names.contains_key(by.as_bytes()))
            };
            let by_path = || match base.path_in(dir, name) {
                Some(path) => layout.hidden_on_standby(&path),
                None => false,
            };
            if by_fork() || (is_root && by_path()) {
                hidden.push((dir, name.clone()));
            }
        }
    }
    hidden
}
