//! The files of the repository, read once and named by their paths below its root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Names of directories that hold no sources: build products and dependencies of other tools.
const SKIPPED: &[&str] = &["target", "node_modules"];

/// A text file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFile {
    /// Path below the root, with `/`.
    pub path: String,
    /// Contents.
    pub text: String,
}

impl TextFile {
    /// A file of this path and text.
    pub fn new(path: &str, text: &str) -> TextFile {
        TextFile {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// Name of the crate that the file is in, if it is below `crates`.
    pub fn crate_name(&self) -> Option<&str> {
        let rest = self.path.strip_prefix("crates/")?;
        rest.split_once('/').map(|(name, _)| name)
    }
}

/// The repository: its root, the paths of all files, and the texts of sources and documents.
#[derive(Debug)]
pub struct Repository {
    /// Directory of the workspace's manifest.
    pub root: PathBuf,
    /// Paths of all files below the root, sorted.
    pub paths: Vec<String>,
    /// Rust sources, sorted by path.
    pub sources: Vec<TextFile>,
    /// Markdown documents, sorted by path.
    pub documents: Vec<TextFile>,
}

impl Repository {
    /// Reads the repository that this crate is part of.
    ///
    /// # Errors
    /// As the file system.
    pub fn read() -> io::Result<Repository> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = here.ancestors().nth(2).unwrap_or(here).to_owned();
        let mut paths = Vec::new();
        walk(&root, &root, &mut paths)?;
        paths.sort();
        let sources = read_all(&root, &paths, ".rs")?;
        let documents = read_all(&root, &paths, ".md")?;
        Ok(Repository {
            root,
            paths,
            sources,
            documents,
        })
    }
}

fn walk(root: &Path, directory: &Path, paths: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_directory = entry.file_type()?.is_dir();
        if name == ".git" || (is_directory && SKIPPED.contains(&name.as_ref())) {
            continue;
        }
        if is_directory {
            walk(root, &entry.path(), paths)?;
        } else if let Ok(below) = entry.path().strip_prefix(root) {
            paths.push(below.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn read_all(root: &Path, paths: &[String], ending: &str) -> io::Result<Vec<TextFile>> {
    let wanted = paths.iter().filter(|path| path.ends_with(ending));
    let read = wanted.map(|path| {
        let text = fs::read_to_string(root.join(path))?;
        Ok(TextFile::new(path, &text))
    });
    read.collect()
}
