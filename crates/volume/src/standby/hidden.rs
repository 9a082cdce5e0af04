//! Names of an image that the layout keeps from standbys (pure).

use std::sync::Arc;

use dax::ids::FileId;

use crate::layout::Layout;
use crate::namespace::{Name, Namespace, ROOT};

/// Names by directory; shared, as they can be many.
pub(crate) type Hidden = Arc<Vec<(FileId, Name)>>;

/// The names of a base that a standby does not show. Looks at every name, so not where somebody waits.
pub(crate) fn hidden_names(layout: &dyn Layout, base: &Namespace) -> Hidden {
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
    Arc::new(hidden)
}

/// The name whose presence hides this one, if there can be one.
pub(crate) fn hider_of(layout: &dyn Layout, name: &[u8]) -> Option<String> {
    layout.hidden_by(std::str::from_utf8(name).ok()?)
}

/// The names of a directory of a base that a name hides, whether the base has that one or not: forks share what is
/// before the `_`.
pub(crate) fn names_hidden_by(
    layout: &dyn Layout,
    base: &Namespace,
    (dir, name): (FileId, &Name),
) -> Vec<Name> {
    let Some(at) = name.iter().rposition(|b| *b == b'_') else {
        return Vec::new();
    };
    let is_hidden =
        |other: &Name| hider_of(layout, other).is_some_and(|by| by.as_bytes() == &name[..]);
    let names = base.names_with_prefix(dir, &name[..at]);
    let names = names.map(|(other, _)| other);
    names.filter(|name| is_hidden(name)).cloned().collect()
}
