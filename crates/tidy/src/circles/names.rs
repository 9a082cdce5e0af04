//! Names of modules, and which module a path leads to.

use std::collections::{BTreeMap, BTreeSet};

use super::scan::{Facts, Import, scan};
use crate::tree::TextFile;

/// A module, by its names from the root of the crate on.
pub type Path = Vec<String>;

/// Most re-exports that are followed to where a thing is.
const MOST_STEPS: usize = 8;

/// The modules of a crate that are not tests.
pub struct Modules {
    facts: BTreeMap<Path, Facts>,
    uses: BTreeMap<Path, BTreeSet<Path>>,
}

impl Modules {
    /// Modules of these files, which are of one crate.
    pub fn new(files: &[&TextFile]) -> Modules {
        let named = files
            .iter()
            .filter_map(|file| Some((module_name(&file.path)?, scan(&file.text))));
        let mut facts: BTreeMap<Path, Facts> = named.collect();
        let tests: BTreeSet<Path> = facts.iter().flat_map(test_modules).collect();
        facts.retain(|path, _| !is_test(path, &tests));
        let mut modules = Modules {
            facts,
            uses: BTreeMap::new(),
        };
        let uses = modules
            .facts
            .iter()
            .map(|(path, facts)| (path.clone(), modules.uses_of(path, facts)));
        modules.uses = uses.collect();
        modules
    }

    /// All modules.
    pub fn names(&self) -> impl Iterator<Item = &Path> {
        self.facts.keys()
    }

    /// Modules that `module` uses directly.
    pub fn used_by(&self, module: &Path) -> impl Iterator<Item = &Path> {
        self.uses.get(module).into_iter().flatten()
    }

    fn uses_of(&self, module: &Path, facts: &Facts) -> BTreeSet<Path> {
        let imports = facts.imports.iter().filter(|import| !import.is_public);
        let imported = imports.map(|import| &import.path);
        let paths = imported.chain(&facts.paths);
        let targets = paths.filter_map(|path| self.target(module, path));
        targets.filter(|target| target != module).collect()
    }

    /// Module that has what `path` names, as seen from `module`; none if it is of another crate.
    fn target(&self, module: &Path, path: &[String]) -> Option<Path> {
        let mut whole = self.absolute(module, path)?;
        for _ in 0..MOST_STEPS {
            let (found, rest) = self.longest(&whole)?;
            let Some(next) = rest.first().and_then(|item| self.re_export(&found, item)) else {
                return Some(found);
            };
            whole = [self.absolute(&found, &next)?.as_slice(), &rest[1..]].concat();
        }
        None
    }

    /// The path from the root of the crate on.
    fn absolute(&self, module: &Path, path: &[String]) -> Option<Path> {
        let (first, behind) = path.split_first()?;
        let (mut base, mut rest) = match first.as_str() {
            "crate" => (Path::new(), behind),
            "self" => (module.clone(), behind),
            "super" => (module.clone(), path),
            _ => {
                let inner = [module.as_slice(), &path[..1]].concat();
                let is_child = self.facts.contains_key(&inner);
                return is_child.then(|| [module.as_slice(), path].concat());
            }
        };
        while rest.first().is_some_and(|part| part == "super") {
            base.pop();
            rest = &rest[1..];
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    /// The longest part of a path that is a module, and what is behind it.
    fn longest(&self, whole: &Path) -> Option<(Path, Path)> {
        let lengths = (0..=whole.len()).rev();
        let mut modules = lengths.filter(|length| self.facts.contains_key(&whole[..*length]));
        let length = modules.next()?;
        Some((whole[..length].to_vec(), whole[length..].to_vec()))
    }

    /// Path that a name of a module stands for, if the module imports it; as the module writes it.
    fn re_export(&self, module: &Path, item: &str) -> Option<Path> {
        let imports = &self.facts.get(module)?.imports;
        let is_it = |import: &&Import| import.name.as_deref() == Some(item);
        imports.iter().find(is_it).map(|import| import.path.clone())
    }
}

/// Name of the module in a file of `src`; none for other files, and for `main.rs`.
fn module_name(path: &str) -> Option<Path> {
    let (_, below) = path.strip_prefix("crates/")?.split_once('/')?;
    let file = below.strip_prefix("src/")?.strip_suffix(".rs")?;
    let mut names: Path = file.split('/').map(str::to_owned).collect();
    match names.last()?.as_str() {
        "main" if names.len() == 1 => return None,
        "lib" if names.len() == 1 => names.clear(),
        "mod" => {
            names.pop();
        }
        _ => {}
    }
    Some(names)
}

fn test_modules((path, facts): (&Path, &Facts)) -> Vec<Path> {
    let children = facts.test_children.iter();
    children
        .map(|child| [path.as_slice(), std::slice::from_ref(child)].concat())
        .collect()
}

fn is_test(path: &Path, tests: &BTreeSet<Path>) -> bool {
    let is_named = |name: &String| name == "tests" || name.ends_with("_test");
    path.iter().any(is_named) || (1..=path.len()).any(|length| tests.contains(&path[..length]))
}
