//! Items of the project's sources by name: parsed when they are needed, and found as the compiler would find them.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use syn::{Expr, Item, UseTree};

use crate::tree::TextFile;

/// All sources.
pub struct Sources<'a> {
    files: Vec<Source<'a>>,
}

/// A file, parsed at most once.
pub struct Source<'a> {
    file: &'a TextFile,
    parsed: OnceCell<Parsed>,
}

struct Parsed {
    items: Vec<Item>,
    imports: BTreeMap<String, Vec<String>>,
}

/// An item, and where it is.
pub struct Found<'s, T> {
    /// File, from which its names are resolved.
    pub at: &'s Source<'s>,
    /// The item.
    pub item: &'s T,
}

impl<'s, T> Clone for Found<'s, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<'s, T> Copy for Found<'s, T> {}

impl Source<'_> {
    /// Path of the file.
    pub fn path(&self) -> &str {
        &self.file.path
    }

    fn parsed(&self) -> &Parsed {
        self.parsed.get_or_init(|| {
            // The compiler says better what is wrong with a source.
            let items = syn::parse_file(&self.file.text).map_or(Vec::new(), |file| file.items);
            let mut imports = BTreeMap::new();
            for item in &items {
                if let Item::Use(import) = item {
                    collect(&import.tree, &mut Vec::new(), &mut imports);
                }
            }
            Parsed { items, imports }
        })
    }

    fn is_in(&self, name: &str) -> bool {
        self.file.crate_name() == Some(name)
    }
}

/// Imported names with their paths.
fn collect(tree: &UseTree, prefix: &mut Vec<String>, into: &mut BTreeMap<String, Vec<String>>) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            collect(&path.tree, prefix, into);
            prefix.pop();
        }
        UseTree::Name(name) => {
            let mut path = prefix.clone();
            if name.ident != "self" {
                path.push(name.ident.to_string());
            }
            if let Some(last) = path.last().cloned() {
                into.insert(last, path);
            }
        }
        UseTree::Rename(renamed) => {
            let path = [prefix.as_slice(), &[renamed.ident.to_string()]].concat();
            into.insert(renamed.rename.to_string(), path);
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                collect(tree, prefix, into);
            }
        }
        UseTree::Glob(_) => {}
    }
}

impl<'a> Sources<'a> {
    /// Sources in these files.
    pub fn new(files: &'a [TextFile]) -> Sources<'a> {
        let files = files.iter().map(|file| Source {
            file,
            parsed: OnceCell::new(),
        });
        Sources {
            files: files.collect(),
        }
    }

    /// The file at this path.
    ///
    /// # Errors
    /// If there is none.
    pub fn file(&self, path: &str) -> Result<&Source<'_>, String> {
        let mut files = self.files.iter();
        let file = files.find(|source| source.path() == path);
        file.ok_or_else(|| format!("{path} does not exist: correct tidy's reference/files.rs"))
    }

    /// Struct that `path` names in the file `from`.
    pub fn structure<'s>(
        &'s self,
        from: &'s Source<'s>,
        path: &[String],
    ) -> Option<Found<'s, syn::ItemStruct>> {
        self.item(from, path, |item, name| match item {
            Item::Struct(item) if item.ident == name => Some(item),
            _ => None,
        })
    }

    /// Struct or enum that `path` names in the file `from`.
    pub fn named_type<'s>(
        &'s self,
        from: &'s Source<'s>,
        path: &[String],
    ) -> Option<Found<'s, Item>> {
        self.item(from, path, |item, name| match item {
            Item::Struct(found) if found.ident == name => Some(item),
            Item::Enum(found) if found.ident == name => Some(item),
            _ => None,
        })
    }

    /// Enum that `path` names in the file `from`.
    pub fn enumeration<'s>(
        &'s self,
        from: &'s Source<'s>,
        path: &[String],
    ) -> Option<Found<'s, syn::ItemEnum>> {
        self.item(from, path, |item, name| match item {
            Item::Enum(item) if item.ident == name => Some(item),
            _ => None,
        })
    }

    /// Function that `path` names in the file `from`.
    pub fn function<'s>(
        &'s self,
        from: &'s Source<'s>,
        path: &[String],
    ) -> Option<Found<'s, syn::ItemFn>> {
        self.item(from, path, |item, name| match item {
            Item::Fn(item) if item.sig.ident == name => Some(item),
            _ => None,
        })
    }

    /// Value of the constant that `path` names in the file `from`.
    pub fn constant<'s>(
        &'s self,
        from: &'s Source<'s>,
        path: &[String],
    ) -> Option<Found<'s, Expr>> {
        self.item(from, path, |item, name| match item {
            Item::Const(item) if item.ident == name => Some(&*item.expr),
            _ => None,
        })
    }

    /// The function `default` of the type that `path` names in the file `from`.
    pub fn default_of<'s>(
        &'s self,
        from: &'s Source<'s>,
        path: &[String],
    ) -> Option<Found<'s, syn::ImplItemFn>> {
        self.item(from, path, |item, name| match item {
            Item::Impl(item) if is_default_for(item, name) => {
                let mut functions = item.items.iter().filter_map(|item| match item {
                    syn::ImplItem::Fn(function) => Some(function),
                    _ => None,
                });
                functions.next_back()
            }
            _ => None,
        })
    }

    /// An item in the same file; or as it is imported; or the only one of its name in the crate.
    fn item<'s, T>(
        &'s self,
        from: &'s Source<'s>,
        path: &[String],
        pick: impl Fn(&'s Item, &str) -> Option<&'s T>,
    ) -> Option<Found<'s, T>> {
        let whole = match from.parsed().imports.get(path.first()?) {
            Some(imported) => [imported.as_slice(), &path[1..]].concat(),
            None => path.to_vec(),
        };
        let name = whole.last()?;
        let within = |source: &'s Source<'s>| {
            let mut items = source.parsed().items.iter();
            let item = items.find_map(|item| pick(item, name))?;
            Some(Found { at: source, item })
        };
        if path.len() == 1
            && let Some(found) = within(from)
        {
            return Some(found);
        }
        let own = from.file.crate_name().unwrap_or_default();
        let candidates = [whole[0].as_str(), own].into_iter();
        candidates
            .filter_map(|crate_name| self.in_crate(crate_name, &whole, &within))
            .next()
    }

    /// The item in this crate whose file fits the path best.
    fn in_crate<'s, T>(
        &'s self,
        crate_name: &str,
        path: &[String],
        within: &impl Fn(&'s Source<'s>) -> Option<Found<'s, T>>,
    ) -> Option<Found<'s, T>> {
        let name = path.last()?;
        let fitting = |source: &Source<'_>| {
            let modules = path.iter().rev().skip(1);
            let file = source.path();
            modules
                .filter(|module| file.contains(module.as_str()))
                .count()
        };
        let files = self.files.iter().filter(|source| {
            source.is_in(crate_name)
                && source.path().contains("/src/")
                && source.file.text.contains(name.as_str())
        });
        let found = files.filter_map(within);
        found.reduce(|best, next| match fitting(next.at) > fitting(best.at) {
            true => next,
            false => best,
        })
    }
}

fn is_default_for(item: &syn::ItemImpl, name: &str) -> bool {
    let is_default = item
        .trait_
        .as_ref()
        .and_then(|(_, path, _)| path.segments.last())
        .is_some_and(|segment| segment.ident == "Default");
    let is_it = match &*item.self_ty {
        syn::Type::Path(path) => path.path.is_ident(name),
        _ => false,
    };
    is_default && is_it
}

/// Names of a path.
pub fn names(path: &syn::Path) -> Vec<String> {
    let names = path.segments.iter();
    names.map(|segment| segment.ident.to_string()).collect()
}
