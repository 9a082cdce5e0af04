//! The files of a branch's node, in its directory: its configuration, made of that of a node of the database, and its volume's key.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::Context;
use dax::credentials::{Secret, write_new};
use dax::ids::VolumeName;
use node::config::Config;
use toml::{Table, Value};

use crate::exit::{Code, Failure};

/// Tables of a node that are about its own cluster alone.
const NOT_OF_A_BRANCH: [&str; 4] = ["proxy", "backup", "past", "tags"];

/// The configuration file in a branch's directory.
pub(super) fn file(directory: &Path) -> PathBuf {
    directory.join("node.toml")
}

/// Makes the directory and writes the files into it. Returns PostgreSQL's port.
///
/// # Errors
/// A node cannot run with these files: none of them is written.
pub(super) fn write(
    parent: &Path,
    directory: &Path,
    volume: &VolumeName,
    port: Option<u16>,
    secret: Option<&Path>,
) -> anyhow::Result<u16> {
    make(directory)?;
    let text = std::fs::read_to_string(parent)
        .with_context(|| format!("cannot read {}", parent.display()))?;
    let mut table: Table = text.parse()?;
    let port = match port {
        Some(port) => port,
        None => free_port()?,
    };
    change(&mut table, directory, volume, port, free_port()?);
    let key = match table.contains_key("key") {
        true => Some(key_of(volume, secret)?),
        false => None,
    };
    if key.is_some() {
        table.insert("key".to_owned(), text_of(&key_path(directory)));
    }
    let text = toml::to_string(&table)?;
    Config::parse(&text)?;
    if let Some(key) = key {
        write_new(&key_path(directory), &key.to_hex())?;
    }
    std::fs::write(file(directory), text)?;
    Ok(port)
}

fn key_path(directory: &Path) -> PathBuf {
    directory.join("volume.key")
}

/// The one of these volumes that the node whose files are in a directory serves.
pub(super) fn check<'a>(
    directory: &Path,
    mut volumes: impl Iterator<Item = &'a VolumeName>,
) -> anyhow::Result<VolumeName> {
    let path = file(directory);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let table: Table = text.parse()?;
    let there = table.get("volume").and_then(Value::as_str);
    let there = there.unwrap_or_default();
    match volumes.find(|volume| volume.as_str() == there) {
        Some(volume) => Ok(volume.clone()),
        None => {
            let said = format!(
                "{} is of the volume {there}, which is none of this branch",
                path.display()
            );
            Err(Failure::new(Code::Refused, said)
                .advise("Give the directory that \"branch create\" made for this branch.")
                .into())
        }
    }
}

/// Has the node whose files are in the directory serve another volume, with whatever else was changed in its configuration.
pub(super) fn renew(
    directory: &Path,
    volume: &VolumeName,
    secret: Option<&Path>,
) -> anyhow::Result<()> {
    let path = file(directory);
    let mut table: Table = std::fs::read_to_string(&path)?.parse()?;
    // What the node kept of the other volume.
    match std::fs::remove_dir_all(directory.join("node")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    if table.contains_key("key") {
        let key = key_path(directory);
        let new = directory.join("volume.key.new");
        // Of one that was interrupted.
        let _ = std::fs::remove_file(&new);
        write_new(&new, &key_of(volume, secret)?.to_hex())?;
        std::fs::rename(&new, &key)?;
        table.insert("key".to_owned(), text_of(&key));
    }
    table.insert("volume".to_owned(), Value::String(volume.to_string()));
    let new = path.with_extension("new");
    std::fs::write(&new, toml::to_string(&table)?)?;
    Ok(std::fs::rename(new, path)?)
}

/// Changes what a branch's node has of its own.
fn change(table: &mut Table, directory: &Path, volume: &VolumeName, port: u16, rest: u16) {
    for name in NOT_OF_A_BRANCH {
        table.remove(name);
    }
    table.insert("volume".to_owned(), Value::String(volume.to_string()));
    table.insert("data".to_owned(), text_of(&directory.join("node")));
    let postgres = below(table, "postgres");
    postgres.remove("advertise");
    postgres.insert("port".to_owned(), Value::Integer(port.into()));
    let channel = below(table, "channel");
    channel.remove("advertise");
    let socket = format!("unix:{}", directory.join("channel").display());
    channel.insert("listen".to_owned(), Value::String(socket));
    let listen = Table::from_iter([(
        "listen".to_owned(),
        Value::String(format!("127.0.0.1:{rest}")),
    )]);
    table.insert("rest".to_owned(), Value::Table(listen));
}

fn below<'a>(table: &'a mut Table, name: &str) -> &'a mut Table {
    let entry = table
        .entry(name)
        .or_insert_with(|| Value::Table(Table::new()));
    if !entry.is_table() {
        *entry = Value::Table(Table::new());
    }
    entry.as_table_mut().expect("it was made one")
}

fn text_of(path: &Path) -> Value {
    Value::String(path.display().to_string())
}

/// A directory that only its owner can change, and that PostgreSQL's user can pass through.
fn make(directory: &Path) -> anyhow::Result<()> {
    let is_empty = std::fs::read_dir(directory).map(|mut entries| entries.next().is_none());
    match is_empty {
        Ok(true) => Ok(()),
        Ok(false) => {
            let said = format!("{} is not empty", directory.display());
            Err(Failure::new(Code::Usage, said)
                .advise("Give an empty --directory, or one that is not there yet.")
                .into())
        }
        Err(_) => std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display())),
    }
}

/// The key of a volume, made from the zones' secret.
pub(super) fn key_of(
    volume: &VolumeName,
    secret: Option<&Path>,
) -> anyhow::Result<dax::credentials::VolumeKey> {
    let Some(secret) = secret else {
        let said =
            "the zones have a secret, and the branch's volume needs a key that is made from it";
        return Err(Failure::new(Code::Usage, said.to_owned())
            .advise("Give --secret-file with the secret of the zones, on a machine that has it.")
            .into());
    };
    Ok(Secret::load(secret)?.key(volume))
}

fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_no_node_can_run_with_are_not_left() {
        let place = tempfile::tempdir().unwrap();
        let parent = place.path().join("north.toml");
        let text = "name = \"north\"\nvolume = \"main\"\nzones = [\"127.0.0.1:1\"]\ndata = \"/north\"\n[postgres]\nbin = \"/bin\"\n";
        std::fs::write(&parent, text).unwrap();
        let volume = VolumeName::new("main-test-1").unwrap();
        let make = |directory: &Path| write(&parent, directory, &volume, None, None);
        let above = place.path().as_os_str().len();
        let long = place.path().join("d".repeat(90 - above));
        let error = make(&long).unwrap_err().to_string();
        assert!(error.contains("too long by"), "{error}");
        assert_eq!(std::fs::read_dir(&long).unwrap().count(), 0);
        make(&place.path().join("short")).unwrap();
    }

    #[test]
    fn a_branchs_node_has_nothing_of_the_nodes_own() {
        let text = "name = \"north\"\nvolume = \"main\"\nzones = [\"z:1\"]\ndata = \"/north\"\n\
            [postgres]\nbin = \"/bin\"\nport = 5432\nadvertise = \"db:5432\"\n[postgres.parameters]\nwork_mem = \"8MB\"\n\
            [channel]\nlisten = \"0.0.0.0:7432\"\nadvertise = \"db:7432\"\n[rest]\nlisten = \"0.0.0.0:8008\"\ntoken = \"/t\"\n\
            [proxy]\nlisten = \"0.0.0.0:6432\"\n[backup]\nrepository = \"/b\"\n[past]\nkeep = [\"all for 1h\"]\n[tls]\nca = \"/ca\"\n";
        let mut table: Table = text.parse().unwrap();
        let volume = VolumeName::new("main-test-1").unwrap();
        change(&mut table, Path::new("/b/test"), &volume, 5433, 8009);
        let expected = "name = \"north\"\nvolume = \"main-test-1\"\nzones = [\"z:1\"]\ndata = \"/b/test/node\"\n\
            [postgres]\nbin = \"/bin\"\nport = 5433\n[postgres.parameters]\nwork_mem = \"8MB\"\n\
            [channel]\nlisten = \"unix:/b/test/channel\"\n[rest]\nlisten = \"127.0.0.1:8009\"\n[tls]\nca = \"/ca\"\n";
        assert_eq!(table, expected.parse::<Table>().unwrap());
    }
}
