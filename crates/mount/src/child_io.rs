//! Files of a mount for the process that serves it, whose own threads never touch them.
//!
//! A thread that waits for an answer of its own process cannot be killed: whoever is killed at that moment stays,
//! as a zombie with its mount and its locks, because the kernel ends the connection only when the last thread is
//! gone. So a child goes there. It has no descriptor of the connection, and when the server is dead it is answered
//! with an error.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Whole files at a time; `$1` is a file of its own until it is whole, `$2` what it replaces, `$3` where they are.
const REPLACE: &str = r#"set -e
cat > "$1"
chmod --reference="$2" -- "$1"
chown --reference="$2" -- "$1"
sync -- "$1"
mv -f -- "$1" "$2"
sync -- "$3""#;

/// `$1`: where from; `$2`: where to; `$3`: for whom, if not for who copies.
const COPY: &str = r#"set -e
find "$1" -mindepth 1 -maxdepth 1 -exec cp -RL --preserve=mode -t "$2" -- {} +
if [ -n "$3" ]; then chown -R -- "$3" "$2"; fi"#;

/// Copies all that is in a directory into another one, with its modes. Symbolic links are followed; directories that
/// exist are filled. All of it belongs to `owner` (user and group), if there is one.
///
/// # Errors
/// What the first command that fails says; some of it may be there.
pub fn copy_into(from: &Path, to: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    let owner = owner.map_or(String::new(), |(user, group)| format!("{user}:{group}"));
    let script: [&OsStr; 3] = ["-c".as_ref(), COPY.as_ref(), "sh".as_ref()];
    let places = [from.as_os_str(), to.as_os_str(), owner.as_ref()];
    run("sh", &[&script[..], &places[..]].concat(), b"")?;
    Ok(())
}

/// Removes all that is in a directory.
///
/// # Errors
/// What `find` says.
pub fn empty(directory: &Path) -> io::Result<()> {
    let all = ["-mindepth", "1", "-delete"].map(OsStr::new);
    run(
        "find",
        &[&[directory.as_os_str()][..], &all[..]].concat(),
        b"",
    )?;
    Ok(())
}

/// Removes files, those of them that are there.
///
/// # Errors
/// What `rm` says.
pub fn remove<const N: usize>(paths: [&Path; N]) -> io::Result<()> {
    let options: [&OsStr; 2] = ["-f".as_ref(), "--".as_ref()];
    let paths = paths.map(Path::as_os_str);
    run("rm", &[&options[..], &paths[..]].concat(), b"")?;
    Ok(())
}

/// The bytes of a file.
///
/// # Errors
/// What `cat` says.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    run("cat", &["--".as_ref(), path.as_os_str()], b"")
}

/// Puts these bytes in the place of a file, durably and at once, with its mode and owner. They are in `partial`,
/// beside it, until all are there.
///
/// # Errors
/// What the first command that fails says; the file is as it was then.
pub fn replace(path: &Path, partial: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let places = [partial, path, directory].map(Path::as_os_str);
    let script: [&OsStr; 3] = ["-c".as_ref(), REPLACE.as_ref(), "sh".as_ref()];
    run("sh", &[&script[..], &places[..]].concat(), bytes)?;
    Ok(())
}

/// Has the kernel ask for the attributes of a file.
pub(crate) fn look_at(path: &Path) -> io::Result<()> {
    run("stat", &["--".as_ref(), path.as_os_str()], b"")?;
    Ok(())
}

/// What a program prints that is given `input`.
fn run(program: &str, arguments: &[&OsStr], input: &[u8]) -> io::Result<Vec<u8>> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let fed = child.stdin.take().map(|mut stdin| stdin.write_all(input));
    let output = child.wait_with_output()?;
    if output.status.success() {
        fed.transpose()?;
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = match said.trim() {
        "" => output.status.to_string(),
        said => said.to_owned(),
    };
    Err(io::Error::other(said))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_with_odd_names_are_read_replaced_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("-f $(x) 'a\"");
        let partial = directory.path().join("-partial");
        fs::write(&place, "old").unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o640)).unwrap();
        let long = "line\n".repeat(100_000);
        replace(&place, &partial, long.as_bytes()).unwrap();
        assert_eq!(read(&place).unwrap(), long.as_bytes());
        let mode = fs::metadata(&place).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(!partial.exists());
        remove([&place, &partial]).unwrap();
        remove([&place]).unwrap();
        let missing = read(&place).unwrap_err().to_string();
        assert!(missing.contains("No such file"), "{missing}");
    }

    #[test]
    fn a_tree_is_copied_with_its_modes_into_what_is_there_and_removed() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mode = |place: &Path| fs::metadata(place).unwrap().permissions().mode() & 0o7777;
        fs::create_dir_all(from.path().join("base/5")).unwrap();
        fs::write(from.path().join("base/5/-n"), "rows").unwrap();
        fs::write(from.path().join(".hidden"), "").unwrap();
        fs::set_permissions(
            from.path().join(".hidden"),
            fs::Permissions::from_mode(0o640),
        )
        .unwrap();
        std::os::unix::fs::symlink("base/5/-n", from.path().join("link")).unwrap();
        fs::create_dir(to.path().join("base")).unwrap();
        let me = (
            nix::unistd::geteuid().as_raw(),
            nix::unistd::getegid().as_raw(),
        );
        copy_into(from.path(), to.path(), Some(me)).unwrap();
        assert_eq!(fs::read(to.path().join("base/5/-n")).unwrap(), b"rows");
        assert_eq!(mode(&to.path().join(".hidden")), 0o640);
        let link = to.path().join("link");
        assert!(!link.is_symlink() && fs::read(link).unwrap() == b"rows");
        empty(to.path()).unwrap();
        assert!(fs::read_dir(to.path()).unwrap().next().is_none());
        let error = copy_into(&from.path().join("missing"), to.path(), None);
        assert!(error.unwrap_err().to_string().contains("missing"));
    }

    #[test]
    fn descriptors_that_cannot_be_replaced_stay_and_the_reason_is_given() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("settings");
        fs::write(&place, "old").unwrap();
        let partial = directory.path().join("missing/partial");
        let error = replace(&place, &partial, b"new").unwrap_err().to_string();
        assert!(error.contains("missing/partial"), "{error}");
        assert_eq!(fs::read(&place).unwrap(), b"old");
    }
}
