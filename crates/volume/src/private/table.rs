//! Which inode number stands for which private path.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use super::PRIVATE_BIT;
use crate::view::Ino;

/// What is known of one private inode.
#[derive(Default)]
pub(super) struct Node {
    /// Its names; empty while it is only open.
    pub paths: Vec<String>,
    /// The local file while it is open.
    pub file: Option<Arc<File>>,
    pub opens: u64,
}

/// The inode table. Every path leads to a node that lists it.
pub(super) struct Table {
    nodes: HashMap<Ino, Node>,
    by_path: HashMap<String, Ino>,
    next: u64,
}

impl Table {
    pub fn new() -> Table {
        Table {
            nodes: HashMap::new(),
            by_path: HashMap::new(),
            next: 1,
        }
    }

    /// The number of the file at a path, a new one if it has none.
    pub fn ino(&mut self, path: &str) -> Ino {
        if let Some(ino) = self.by_path.get(path) {
            return *ino;
        }
        let ino = Ino(PRIVATE_BIT | self.next);
        self.next += 1;
        self.add_path(ino, path);
        ino
    }

    #[cfg(test)]
    pub fn known(&self, path: &str) -> Option<Ino> {
        self.by_path.get(path).copied()
    }

    pub fn path(&self, ino: Ino) -> Option<String> {
        self.nodes.get(&ino)?.paths.first().cloned()
    }

    pub fn node(&mut self, ino: Ino) -> Option<&mut Node> {
        self.nodes.get_mut(&ino)
    }

    pub fn add_path(&mut self, ino: Ino, path: &str) {
        self.by_path.insert(path.to_owned(), ino);
        self.nodes
            .entry(ino)
            .or_default()
            .paths
            .push(path.to_owned());
    }

    /// The file at a path is gone.
    pub fn remove_path(&mut self, path: &str) {
        let Some(ino) = self.by_path.remove(path) else {
            return;
        };
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.paths.retain(|p| p != path);
        }
        self.drop_unused(ino);
    }

    /// Moves a path and everything below it. What was at `to` is gone.
    pub fn rename(&mut self, from: &str, to: &str) {
        self.remove_path(to);
        let below = format!("{from}/");
        let moved: Vec<String> = self
            .by_path
            .keys()
            .filter(|path| *path == from || path.starts_with(&below))
            .cloned()
            .collect();
        for path in moved {
            let Some(ino) = self.by_path.remove(&path) else {
                continue;
            };
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.paths.retain(|p| *p != path);
            }
            self.add_path(ino, &format!("{to}{}", &path[from.len()..]));
        }
    }

    pub fn drop_unused(&mut self, ino: Ino) {
        let unused = |node: &Node| node.paths.is_empty() && node.opens == 0;
        if self.nodes.get(&ino).is_some_and(unused) {
            self.nodes.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_a_renamed_directory_and_what_is_below_it() {
        let mut table = Table::new();
        let file = table.ino("a/f");
        let other = table.ino("ab");
        table.rename("a", "b");
        assert_eq!(table.known("b/f"), Some(file));
        assert_eq!(table.known("a/f"), None);
        assert_eq!(table.known("ab"), Some(other));
        assert_eq!(table.path(file).as_deref(), Some("b/f"));
    }

    #[test]
    fn an_open_file_keeps_its_number_without_a_name() {
        let mut table = Table::new();
        let ino = table.ino("f");
        table.node(ino).expect("just made").opens = 1;
        table.remove_path("f");
        assert!(table.node(ino).is_some());
        table.node(ino).expect("open").opens = 0;
        table.drop_unused(ino);
        assert!(table.node(ino).is_none());
        assert_ne!(table.ino("f"), ino);
    }
}
