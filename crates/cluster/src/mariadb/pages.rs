//! A look at every page of InnoDB's files before its server recovers: whether a machine that was lost left one torn.
//!
//! MariaDB's programs are stood in for by scripts in a directory of their own (`engine.bin`). The one of the server has
//! `innochecksum` read all files of the data directory as they were left, writes down what it says, and becomes the
//! server. Recovery itself could hide a torn page, so looking later is no proof.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use serde::Serialize;

/// The scripts, and what they found.
#[derive(Debug)]
pub struct Inspector {
    bin: PathBuf,
    found: PathBuf,
}

/// What was found in all starts of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Pages {
    /// How often a server was started on files that were there.
    pub starts: u64,
    /// Files that were read, all starts together.
    pub files: u64,
    /// Pages in them, of 16 KiB.
    pub pages: u64,
    /// Files with a page whose checksum is wrong, and what innochecksum says of it.
    pub damaged: Vec<String>,
}

const PAGE_BYTES: u64 = 16 << 10;
const CHECKER: &str = "innochecksum";

impl Inspector {
    /// Writes the scripts into `dir`, which everybody must be able to read. `programs` is where MariaDB's are, if not
    /// in the usual places.
    ///
    /// # Errors
    /// They cannot be written, or there is no `innochecksum`.
    pub fn install(dir: &Path, programs: Option<&Path>) -> anyhow::Result<Inspector> {
        let usual = [Path::new("/usr/sbin"), Path::new("/usr/bin")];
        let places: Vec<&Path> = programs.map_or(usual.to_vec(), |programs| vec![programs]);
        let find = |name: &str| {
            let mut paths = places.iter().map(|place| place.join(name));
            paths
                .find(|path| path.exists())
                .with_context(|| format!("there is no {name}: apt-get install mariadb-server-core"))
        };
        let (bin, found) = (dir.join("bin"), dir.join("pages"));
        std::fs::create_dir(&bin)?;
        std::fs::write(&found, "")?;
        // The server's user writes it.
        std::fs::set_permissions(&found, PermissionsExt::from_mode(0o666))?;
        let script = script(&find(CHECKER)?, &find("mariadbd")?, &found);
        write_program(&bin.join("mariadbd"), &script)?;
        let install = find("mariadb-install-db")?;
        let script = format!("#!/bin/sh\nexec '{}' \"$@\"\n", install.display());
        write_program(&bin.join("mariadb-install-db"), &script)?;
        Ok(Inspector { bin, found })
    }

    /// What to give as the directory of MariaDB's programs.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// What was found so far.
    ///
    /// # Errors
    /// The notes of the scripts cannot be read.
    pub fn pages(&self) -> anyhow::Result<Pages> {
        Ok(read(&std::fs::read_to_string(&self.found)?))
    }

    /// True if innochecksum notices a page that was damaged on purpose, in a copy of a file with pages in use.
    ///
    /// # Errors
    /// It does not, or finds the copy damaged before.
    pub async fn notices_damage(&self, file: &Path) -> anyhow::Result<()> {
        let copy = self.bin.with_file_name("copy.ibd");
        let mut bytes = std::fs::read(file)?;
        std::fs::write(&copy, &bytes)?;
        ensure!(
            is_sound(&copy).await?,
            "{} is damaged already",
            file.display()
        );
        // The second half of a page in use is what the page was before: torn.
        let page = bytes
            .chunks_exact_mut(PAGE_BYTES as usize)
            .skip(3)
            .find(|page| page[8192..].iter().any(|byte| *byte != 0));
        page.context("no page is in use")?[8192..12288].fill(0x5a);
        std::fs::write(&copy, &bytes)?;
        ensure!(
            !is_sound(&copy).await?,
            "innochecksum does not notice a torn page"
        );
        Ok(std::fs::remove_file(&copy)?)
    }
}

fn write_program(path: &Path, script: &str) -> anyhow::Result<()> {
    std::fs::write(path, script).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(std::fs::set_permissions(
        path,
        PermissionsExt::from_mode(0o755),
    )?)
}

fn script(checker: &Path, server: &Path, found: &Path) -> String {
    format!(
        r#"#!/bin/sh
# Has every page looked at before the server recovers, and becomes the server.
found='{found}'
data=
tmp=
for argument; do
    case $argument in
    --datadir=*) data=${{argument#--datadir=}} ;;
    --tmpdir=*) tmp=${{argument#--tmpdir=}} ;;
    --version | --bootstrap) exec '{server}' "$@" ;;
    esac
done
if [ -e "$data/ibdata1" ]; then
    files=0
    bytes=0
    for file in "$data"/ibdata1 "$data"/undo* "$data"/*/*.ibd; do
        [ -f "$file" ] || continue
        # The checker reads page after page, which takes long where nobody reads ahead.
        cp "$file" "$tmp"/copy
        said=$('{checker}' "$tmp"/copy 2>&1) || echo "damaged $file: $said" | tr '\n' ' ' >>"$found"
        files=$((files + 1))
        bytes=$((bytes + $(stat -c %s "$file")))
        rm "$tmp"/copy
    done
    echo >>"$found"
    echo "start $files $bytes" >>"$found"
fi
exec '{server}' "$@"
"#,
        found = found.display(),
        server = server.display(),
        checker = checker.display(),
    )
}

fn read(notes: &str) -> Pages {
    let mut pages = Pages::default();
    for line in notes.lines() {
        if line.contains("damaged ") {
            pages.damaged.push(line.trim().to_owned());
        }
        let Some(start) = line.strip_prefix("start ") else {
            continue;
        };
        let mut numbers = start.split(' ').filter_map(|n| n.parse::<u64>().ok());
        pages.starts += 1;
        pages.files += numbers.next().unwrap_or_default();
        pages.pages += numbers.next().unwrap_or_default() / PAGE_BYTES;
    }
    pages
}

async fn is_sound(file: &Path) -> anyhow::Result<bool> {
    let status = tokio::process::Command::new(CHECKER)
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    Ok(status.await.context("cannot run innochecksum")?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_and_damage_are_read_from_the_notes() {
        let notes =
            "\nstart 3 49152\ndamaged /v/test/large.ibd: Fail: page 7 invalid \nstart 4 65536\n";
        let pages = read(notes);
        assert_eq!((pages.starts, pages.files, pages.pages), (2, 7, 7));
        assert_eq!(
            pages.damaged,
            ["damaged /v/test/large.ibd: Fail: page 7 invalid"]
        );
    }
}
