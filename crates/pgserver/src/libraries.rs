//! Versions of the libraries that a server sorts texts with, as the system tells them before any server runs.

use std::path::Path;
use std::process::{Command, Stdio};

use super::Installation;

/// Versions of the host's libraries; `None` for what it does not have, or does not tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostLibraries {
    /// The GNU C library.
    pub glibc: Option<String>,
    /// The ICU that this PostgreSQL is linked with.
    pub icu: Option<String>,
    /// The time zone database.
    pub tzdata: Option<String>,
}

const TIME_ZONES: &str = "/usr/share/zoneinfo/tzdata.zi";

impl HostLibraries {
    /// Asks the system. Runs two short programs.
    pub fn find(installation: &Installation) -> HostLibraries {
        let said = said("getconf", &["GNU_LIBC_VERSION".as_ref()]);
        let glibc = said.and_then(|said| Some(said.trim().strip_prefix("glibc ")?.to_owned()));
        let postgres = installation.bin().join("postgres");
        let linked = self::said("ldd", &[postgres.as_os_str()]).unwrap_or_default();
        let tzdata = std::fs::read_to_string(TIME_ZONES).ok();
        HostLibraries {
            glibc,
            icu: icu_file(&linked).and_then(|file| icu_version(&file)),
            tzdata: tzdata.and_then(|text| tzdata_version(&text)),
        }
    }
}

fn said(program: &str, arguments: &[&std::ffi::OsStr]) -> Option<String> {
    let mut command = Command::new(program);
    let command = command.args(arguments).env("LC_ALL", "C");
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

/// The file behind a line such as `libicui18n.so.72 => /lib/x86_64-linux-gnu/libicui18n.so.72 (0x...)`.
fn icu_file(linked: &str) -> Option<std::path::PathBuf> {
    let line = linked.lines().find(|line| line.contains("libicui18n"))?;
    let path = line.split_once("=>")?.1.split_whitespace().next()?;
    let path = Path::new(path);
    // The file that the link leads to has the minor version too.
    Some(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
}

fn icu_version(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let version = name.split_once(".so.")?.1;
    Some(version.to_owned())
}

/// `# version 2025b` is the first line.
fn tzdata_version(text: &str) -> Option<String> {
    let version = text.lines().next()?.strip_prefix("# version ")?;
    Some(version.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_system_says() {
        let linked =
            "\tlinux-vdso.so.1 (0x1)\n\tlibicui18n.so.72 => /nowhere/libicui18n.so.72.1 (0x7f)\n";
        let icu = icu_file(linked).and_then(|file| icu_version(&file));
        assert_eq!(icu.as_deref(), Some("72.1"));
        assert_eq!(icu_file("\tlibc.so.6 => /lib/libc.so.6 (0x1)\n"), None);
        assert_eq!(
            tzdata_version("# version 2025b\nR ...").as_deref(),
            Some("2025b")
        );
        assert_eq!(tzdata_version("R x"), None);
    }
}
