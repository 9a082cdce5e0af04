//! Names, sizes and contents of the database's files, before and after a switch.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::checkers::{Held, broken};
use super::files::Files;

/// Names and sizes below `base`.
pub(super) type Tree = BTreeMap<String, Option<u64>>;

pub(super) fn tree(files: &Files) -> Held<Tree> {
    let mut tree = Tree::new();
    for db in files.names("base")?.unwrap_or_default() {
        let dir = format!("base/{db}");
        for name in files.names(&dir)?.unwrap_or_default() {
            let path = format!("{dir}/{name}");
            let size = files.size(&path)?;
            tree.insert(path, size);
        }
        tree.insert(dir, None);
    }
    Ok(tree)
}

/// Contents of a tree's files, by path.
pub(super) async fn contents(files: &Files, tree: &Tree) -> Held<BTreeMap<String, Bytes>> {
    let mut contents = BTreeMap::new();
    for (path, _) in tree.iter().filter(|(_, size)| size.is_some()) {
        contents.insert(path.clone(), files.read(path).await?);
    }
    Ok(contents)
}

/// N6: a switch leaves names and sizes as the standby had them.
pub(super) fn check_exact(before: &Tree, after: &Tree) -> Held<()> {
    let paths = before.keys().chain(after.keys());
    let mut other = paths.filter(|path| before.get(*path) != after.get(*path));
    match other.next() {
        None => Ok(()),
        Some(path) => {
            let (was, is) = (before.get(path), after.get(path));
            let what = format!("{path} was {was:?}, is {is:?}");
            Err(broken("the switch changes no names and sizes", what))
        }
    }
}
