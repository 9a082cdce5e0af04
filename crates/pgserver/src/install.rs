//! PostgreSQL's programs on this machine: found, checked, and `initdb`.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use nix::sys::memfd::{MFdFlags, memfd_create};

use supervise::{RunAs, spawn};

use super::{PostgresError, Result};

/// Variables of the caller that begin so would change what PostgreSQL's programs do.
pub(super) const PG_VARIABLES: &str = "PG";
/// The oldest major version that is supported.
pub const OLDEST_MAJOR: u32 = 13;

/// A version of PostgreSQL, as `postgres --version` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgVersion {
    /// 15, 16, ...
    pub major: u32,
    /// The bug-fix release; 0 for development versions.
    pub minor: u32,
    /// The whole text, for example `15.18 (Debian 15.18-0+deb12u1)`.
    pub text: String,
}

impl fmt::Display for PgVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl PgVersion {
    /// As PostgreSQL's `server_version_num`.
    pub fn number(&self) -> u32 {
        self.major * 10_000 + self.minor
    }

    /// Understands `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
    pub fn parse(line: &str) -> Option<PgVersion> {
        let text = line.trim().strip_prefix("postgres (PostgreSQL) ")?;
        let number = text.split_whitespace().next()?;
        let major_end = number
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(number.len());
        let rest = number[major_end..].strip_prefix('.').unwrap_or("");
        let minor_end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        Some(PgVersion {
            major: number[..major_end].parse().ok()?,
            minor: rest[..minor_end].parse().unwrap_or(0),
            text: text.to_owned(),
        })
    }
}

/// A directory with PostgreSQL's programs, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    bin: PathBuf,
    version: PgVersion,
}

/// How to create a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitdbOptions {
    /// The empty directory that becomes the data directory.
    pub data: PathBuf,
    /// The superuser's name.
    pub superuser: String,
    /// Further arguments, for example `--locale=C.UTF-8` or `--wal-segsize=64`.
    pub arguments: Vec<String>,
    /// The superuser's password, if it gets one.
    pub password: Option<Password>,
    /// Who runs it.
    pub run_as: Option<RunAs>,
}

/// A password, which no message and no list of processes shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// The first line of a file.
    ///
    /// # Errors
    /// If it cannot be read; `InvalidData` if its first line is empty.
    pub fn read(path: &Path) -> io::Result<Password> {
        let text = std::fs::read_to_string(path)?;
        match text.lines().next() {
            Some(line) if !line.is_empty() => Ok(Password(line.to_owned())),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its first line is empty",
            )),
        }
    }

    /// A file that only those have who inherit it, and no disk.
    fn in_memory(&self) -> io::Result<File> {
        let mut file = File::from(memfd_create(c"password", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(self.0.as_bytes())?;
        Ok(file)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

impl Installation {
    /// Looks at the programs in `bin`.
    ///
    /// # Errors
    /// [`PostgresError::Installation`]: missing, not executable, not PostgreSQL, too old.
    pub fn find(bin: &Path) -> Result<Installation> {
        let refuse = |path: &Path, why: &str| PostgresError::Installation {
            path: path.to_owned(),
            why: why.to_owned(),
        };
        if !bin.is_dir() {
            return Err(refuse(bin, "no such directory"));
        }
        for name in ["postgres", "initdb"] {
            let path = bin.join(name);
            let Ok(found) = std::fs::metadata(&path) else {
                return Err(refuse(&path, "not found"));
            };
            if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
                return Err(refuse(&path, "not an executable program"));
            }
        }
        let program = bin.join("postgres");
        let output = spawn::command(&program, PG_VARIABLES)
            .arg("--version")
            .output()
            .map_err(|e| refuse(&program, &format!("cannot be run ({e})")))?;
        let line = String::from_utf8_lossy(&output.stdout);
        let version = PgVersion::parse(&line).ok_or_else(|| {
            refuse(
                &program,
                &format!("does not say that it is PostgreSQL, but {:?}", line.trim()),
            )
        })?;
        if version.major < OLDEST_MAJOR {
            let why =
                format!("is PostgreSQL {version}; {OLDEST_MAJOR} is the oldest that is supported");
            return Err(refuse(&program, &why));
        }
        Ok(Installation {
            bin: bin.to_owned(),
            version,
        })
    }

    /// What the server itself finds wrong with a configuration file, line by line; nothing if it would
    /// start with it.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn judge(&self, configuration: &str) -> Result<Vec<String>> {
        let failed = |e| PostgresError::system("cannot ask PostgreSQL to judge parameters", e);
        let directory = tempfile::tempdir().map_err(failed)?;
        let file = directory.path().join("postgresql.conf");
        std::fs::write(&file, configuration).map_err(failed)?;
        // Asked for one value it reads the file and ends; as the first argument this is allowed to root.
        let output = spawn::command(&self.bin.join("postgres"), PG_VARIABLES)
            .args(["-C", "data_directory", "-D"])
            .arg(directory.path())
            .env("LC_ALL", "C")
            .output()
            .map_err(failed)?;
        if output.status.success() {
            return Ok(Vec::new());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let place = format!(" in file \"{}\"", file.display());
        let complaints = said.lines().filter_map(|line| {
            let (_, complaint) = line.split_once("LOG:  ")?;
            let complaint = complaint.split(&place).next().unwrap_or(complaint);
            (!complaint.contains("skipping missing")).then(|| complaint.to_owned())
        });
        let complaints: Vec<String> = complaints.collect();
        Ok(match complaints.is_empty() {
            true => vec![said.trim().to_owned()],
            false => complaints,
        })
    }

    /// Directory of the programs, such as `/usr/lib/postgresql/15/bin`.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// The version of its programs.
    pub fn version(&self) -> &PgVersion {
        &self.version
    }

    /// Refuses to run a cluster of another major version.
    ///
    /// # Errors
    /// [`PostgresError::Version`]
    pub fn require_major(&self, needed: u32) -> Result<()> {
        if self.version.major == needed {
            return Ok(());
        }
        Err(PostgresError::Version {
            bin: self.bin.clone(),
            found: self.version.clone(),
            needed,
        })
    }

    /// Creates a cluster. Local connections are trusted: the only Unix socket is the agent's, in a
    /// directory that only it and PostgreSQL can enter. Network connections need a password.
    ///
    /// # Errors
    /// [`PostgresError::Program`] with what `initdb` printed.
    pub async fn initdb(&self, options: &InitdbOptions) -> Result<()> {
        if options.run_as.is_none() && nix::unistd::Uid::effective().is_root() {
            return Err(PostgresError::Root);
        }
        let mut command = spawn::command(&self.bin.join("initdb"), PG_VARIABLES);
        command
            .arg("-D")
            .arg(&options.data)
            .args(["-U", &options.superuser, "-E", "UTF8"])
            .args([
                "--auth-local=trust",
                "--auth-host=scram-sha-256",
                "--no-sync",
            ])
            .args(&options.arguments);
        if let Some(password) = &options.password {
            let shown = |e| PostgresError::system("cannot show initdb the password", e);
            command
                .arg("--pwfile=/dev/stdin")
                .stdin(password.in_memory().map_err(shown)?);
        }
        // The death signal would go to initdb only, and the thread here is a pool's.
        spawn::prepare(&mut command, options.run_as.clone(), None);
        let ran = tokio::task::spawn_blocking(move || command.output()).await;
        let output = ran
            .map_err(std::io::Error::other)
            .and_then(|r| r)
            .map_err(|e| PostgresError::system("cannot run initdb", e))?;
        check("initdb", &output)
    }
}

fn check(program: &'static str, output: &Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let mut said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.is_empty() {
        said = output.status.to_string();
    }
    Err(PostgresError::Program {
        program,
        output: said,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_releases_packages_and_betas() {
        for (line, major, minor) in [
            (
                "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n",
                15,
                18,
            ),
            ("postgres (PostgreSQL) 18.1", 18, 1),
            ("postgres (PostgreSQL) 19beta1", 19, 0),
            ("postgres (PostgreSQL) 19devel", 19, 0),
        ] {
            let version = PgVersion::parse(line).unwrap();
            assert_eq!((version.major, version.minor), (major, minor), "{line}");
        }
        assert_eq!(PgVersion::parse("bash 5.2"), None);
        assert_eq!(PgVersion::parse("postgres (PostgreSQL) x"), None);
    }

    /// A directory with a fake `postgres` that runs `script`.
    fn fake(script: &str, mode: u32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in ["postgres", "initdb"] {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        dir
    }

    fn refusal(bin: &Path) -> String {
        Installation::find(bin).unwrap_err().to_string()
    }

    #[test]
    fn wrong_directories_are_explained() {
        assert!(refusal(Path::new("/nonexistent")).contains("no such directory"));
        let empty = tempfile::tempdir().unwrap();
        assert!(refusal(empty.path()).contains("postgres: not found"));
        assert!(refusal(fake("true", 0o644).path()).contains("not an executable"));
        assert!(refusal(fake("echo hello", 0o755).path()).contains("but \"hello\""));
        let old = fake("echo 'postgres (PostgreSQL) 9.6.24'", 0o755);
        assert!(refusal(old.path()).contains("PostgreSQL 9.6; 13 is the oldest"));
    }

    #[test]
    fn another_major_version_is_refused() {
        let dir = fake("echo 'postgres (PostgreSQL) 17.2'", 0o755);
        let installation = Installation::find(dir.path()).unwrap();
        installation.require_major(17).unwrap();
        let error = installation.require_major(15).unwrap_err().to_string();
        assert!(
            error.contains("cluster is PostgreSQL 15") && error.contains("17.2"),
            "{error}"
        );
    }
}
