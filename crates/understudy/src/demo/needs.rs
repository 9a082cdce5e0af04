//! Programs that a demonstration needs, looked for before anything is started.

use std::path::{Path, PathBuf};

use crate::exit::{Code, Failure};

/// A program, and Debian's package that has it.
type Need = (&'static str, &'static str);

const MOUNT: Need = ("fusermount3", "fuse3");
const MARIADB: [Need; 5] = [
    MOUNT,
    ("mariadbd", "mariadb-server-core"),
    ("mariadb-install-db", "mariadb-server-core"),
    ("mariadb", "mariadb-client"),
    ("mariadb-check", "mariadb-client"),
];
const MACHINE: [Need; 6] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mmdebstrap", "mmdebstrap"),
    ("mke2fs", "e2fsprogs"),
    ("busybox", "busybox-static"),
    ("xz", "xz-utils"),
    ("ip", "iproute2"),
];

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// Nodes with PostgreSQL, with or without a proxy.
    Nodes,
    /// Nodes with MariaDB.
    Mariadb,
    /// A virtual machine.
    Machine,
}

impl Show {
    fn needs(self) -> &'static [Need] {
        match self {
            Show::Nodes => &[MOUNT],
            Show::Mariadb => &MARIADB,
            Show::Machine => &MACHINE,
        }
    }

    fn target(self) -> &'static str {
        match self {
            Show::Nodes => "demo",
            Show::Mariadb => "demo-mariadb",
            Show::Machine => "demo-vm",
        }
    }
}

/// Looks for everything that is needed. PostgreSQL is looked for where it is used: it may be anywhere.
///
/// # Errors
/// Names all that is missing, and the one command that installs it.
pub fn check(show: Show) -> Result<(), Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    directories.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    missing(show, |program| {
        directories
            .iter()
            .any(|directory| is_program(&directory.join(program)))
    })
}

fn is_program(path: &Path) -> bool {
    path.is_file()
}

fn missing(show: Show, is_there: impl Fn(&str) -> bool) -> Result<(), Failure> {
    let absent: Vec<&Need> = show
        .needs()
        .iter()
        .filter(|(program, _)| !is_there(program))
        .collect();
    if absent.is_empty() {
        return Ok(());
    }
    let programs: Vec<&str> = absent.iter().map(|(program, _)| *program).collect();
    let mut packages: Vec<&str> = absent.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    let message = format!("not installed: {}", programs.join(", "));
    Err(Failure::new(Code::Unavailable, message).advise(format!(
        "apt-get install --no-install-recommends {}  (in the sources, make {} does that)",
        packages.join(" "),
        show.target()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_missing_is_in_one_command() {
        let only_client = |program: &str| program == "mariadb" || program == "fusermount3";
        let failure = missing(Show::Mariadb, only_client).unwrap_err();
        assert_eq!(
            failure.to_string(),
            "not installed: mariadbd, mariadb-install-db, mariadb-check"
        );
        let hint = format!("{failure:?}");
        assert!(
            hint.contains("--no-install-recommends mariadb-server-core mariadb-client"),
            "{hint}"
        );
        assert!(missing(Show::Machine, |_| true).is_ok());
    }
}
