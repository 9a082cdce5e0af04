//! Circles of modules: files of one crate that import each other, directly or over others.
//!
//! A re-export is followed to the module that it is from, and is itself no dependence: a parent that only collects
//! what its children have is in no circle with them. Tests are left out, because they always use their parent.

mod names;
mod scan;

use std::collections::{BTreeMap, BTreeSet};

use crate::exceptions::Groups;
use crate::tree::TextFile;
use names::{Modules, Path};

/// Returns the circles of each crate, as lists of modules.
pub fn circles(sources: &[TextFile]) -> Groups {
    let mut crates: BTreeMap<&str, Vec<&TextFile>> = BTreeMap::new();
    for file in sources {
        if let Some(name) = file.crate_name() {
            crates.entry(name).or_default().push(file);
        }
    }
    let circles = crates
        .into_iter()
        .map(|(name, files)| (name.to_owned(), circles_of(&Modules::new(&files))));
    circles.filter(|(_, circles)| !circles.is_empty()).collect()
}

fn circles_of(modules: &Modules) -> Vec<Vec<String>> {
    let reached: BTreeMap<&Path, BTreeSet<&Path>> = modules
        .names()
        .map(|module| (module, reach(modules, module)))
        .collect();
    let mut circles: BTreeSet<Vec<String>> = BTreeSet::new();
    for (module, others) in &reached {
        let mutual = others.iter().filter(|other| {
            reached
                .get(**other)
                .is_some_and(|back| back.contains(module))
        });
        let circle: Vec<String> = mutual.map(|path| name(path)).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// Modules that `from` uses, directly or over others.
fn reach<'a>(modules: &'a Modules, from: &'a Path) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for next in modules.used_by(module) {
            if reached.insert(next) {
                open.push(next);
            }
        }
    }
    reached
}

fn name(path: &Path) -> String {
    match path.is_empty() {
        true => "crate".to_owned(),
        false => path.join("::"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files: Vec<TextFile> = files
            .iter()
            .map(|(path, text)| TextFile::new(&format!("crates/x/src/{path}"), text))
            .collect();
        circles(&files).remove("x").unwrap_or_default()
    }

    #[test]
    fn files_that_import_each_other_are_a_circle() {
        let circle = found(&[
            ("lib.rs", "mod a; mod b; mod c; use a::A;"),
            ("a.rs", "use crate::b::{self, B};"),
            ("b.rs", "fn f() { super::c::g() }"),
            ("c.rs", "use super::a::A as Other;"),
        ]);
        assert_eq!(circle, [["a", "b", "c"]]);
    }

    #[test]
    fn a_parent_and_its_child_can_be_a_circle() {
        let child = ("a/b.rs", "use super::A;");
        let lib = ("lib.rs", "mod a;");
        let uses = found(&[lib, ("a/mod.rs", "mod b; struct A(b::B);"), child]);
        assert_eq!(uses, [["a", "a::b"]]);
        let imports = found(&[lib, ("a.rs", "mod b; use b::B; struct A(B);"), child]);
        assert_eq!(imports, [["a", "a::b"]]);
        let declares = found(&[lib, ("a.rs", "mod b; struct A;"), child]);
        assert!(declares.is_empty());
    }

    #[test]
    fn re_exports_lead_to_where_a_thing_is() {
        let files = [
            ("lib.rs", "mod a; pub use a::{B, C};"),
            (
                "a/mod.rs",
                "mod b; mod c; pub use self::b::B; pub(crate) use c::C;",
            ),
            ("a/b.rs", "use super::C;"),
            ("a/c.rs", "struct C;"),
        ];
        assert!(found(&files).is_empty());
        let mut both = files;
        both[3].1 = "use crate::B;";
        assert_eq!(found(&both), [["a::b", "a::c"]]);
    }

    #[test]
    fn tests_comments_and_strings_do_not_count() {
        let found = found(&[
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "use crate::b::B; #[cfg(test)] mod tests; #[cfg(test)] mod more { use crate::a::A; }",
            ),
            ("a/tests.rs", "use super::*; use crate::b::B;"),
            (
                "b.rs",
                "// crate::a::A\nconst A: &str = \"crate::a::A\"; #[cfg(test)] use crate::a::A;",
            ),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
