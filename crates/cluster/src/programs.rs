//! Where PostgreSQL's programs are.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Debian's place for every major version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The programs of the newest PostgreSQL that is installed, or those in `wanted`.
///
/// # Errors
/// There are none; the message says what to install.
pub fn find(wanted: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(bin) = wanted {
        let bin = std::path::absolute(bin).context("cannot tell where --bin is")?;
        if !is_complete(&bin) {
            bail!("no initdb, postgres and pgbench in {}", bin.display());
        }
        return Ok(bin);
    }
    newest(Path::new(DEBIAN)).with_context(|| {
        format!("no PostgreSQL below {DEBIAN}: apt-get install postgresql, or name its programs with --bin")
    })
}

fn newest(base: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(base).ok()?;
    versions
        .flatten()
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse::<u32>().ok()?,
                entry.path(),
            ))
        })
        .map(|(version, path)| (version, path.join("bin")))
        .filter(|(_, bin)| is_complete(bin))
        .max()
        .map(|(_, bin)| bin)
}

fn is_complete(bin: &Path) -> bool {
    ["initdb", "postgres", "pgbench"]
        .iter()
        .all(|program| bin.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_complete_version_is_taken() {
        let base = tempfile::tempdir().unwrap();
        let install = |version: &str, programs: &[&str]| {
            let bin = base.path().join(version).join("bin");
            std::fs::create_dir_all(&bin).unwrap();
            for program in programs {
                std::fs::write(bin.join(program), "").unwrap();
            }
        };
        install("9", &["initdb", "postgres", "pgbench"]);
        install("15", &["initdb", "postgres", "pgbench"]);
        install("17", &["postgres"]);
        install("common", &["initdb", "postgres", "pgbench"]);
        assert_eq!(newest(base.path()), Some(base.path().join("15/bin")));
        assert_eq!(newest(&base.path().join("15")), None);
    }
}
