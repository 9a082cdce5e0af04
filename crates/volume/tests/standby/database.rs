//! A model of a database: what its files must hold after a prefix of its log.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::support::{BLOCK, Database};

/// One logged change of the database's files.
#[derive(Debug, Clone)]
pub enum Change {
    Create(u8),
    /// Bytes of one value; in blocks of pages mostly, anywhere sometimes.
    Write {
        file: u8,
        offset: u32,
        len: u32,
        byte: u8,
    },
    Truncate {
        file: u8,
        size: u32,
    },
    Drop(u8),
    /// A file written beside another and renamed onto it.
    Replace {
        file: u8,
        len: u32,
        byte: u8,
    },
    Rename(u8, u8),
    MakeDatabase(u8),
    DropDatabase(u8),
}

const FILES: u8 = 12;
const DATABASES: u8 = 3;
const SIZE_MAX: u32 = 6 * BLOCK as u32;

fn position() -> impl Strategy<Value = u32> {
    prop_oneof![
        3 => (0..6u32).prop_map(|b| b * BLOCK as u32),
        1 => 0..SIZE_MAX,
    ]
}

/// Any change; those that do not fit the database are skipped.
pub fn change() -> impl Strategy<Value = Change> {
    let file = || 0..FILES;
    prop_oneof![
        4 => file().prop_map(Change::Create),
        8 => (file(), position(), prop_oneof![Just(BLOCK as u32), 1..9000u32], 0..6u8)
            .prop_map(|(file, offset, len, byte)| Change::Write { file, offset, len, byte }),
        3 => (file(), position()).prop_map(|(file, size)| Change::Truncate { file, size }),
        3 => file().prop_map(Change::Drop),
        1 => (file(), 1..9000u32, 1..6u8)
            .prop_map(|(file, len, byte)| Change::Replace { file, len, byte }),
        1 => (file(), file()).prop_map(|(a, b)| Change::Rename(a, b)),
        2 => (0..DATABASES).prop_map(Change::MakeDatabase),
        1 => (0..DATABASES).prop_map(Change::DropDatabase),
    ]
}

/// Removals, which an active may do late or early.
pub fn removal() -> impl Strategy<Value = Change> {
    prop_oneof![
        1 => (0..FILES).prop_map(Change::Drop),
        1 => (0..DATABASES).prop_map(Change::DropDatabase),
    ]
}

/// What every database begins with.
pub fn prelude() -> Vec<Change> {
    let mut changes: Vec<Change> = (0..DATABASES).map(Change::MakeDatabase).collect();
    for file in 0..FILES / 2 {
        changes.push(Change::Create(file));
        changes.push(Change::Write {
            file,
            offset: 0,
            len: 3 * BLOCK as u32,
            byte: file + 1,
        });
    }
    changes
}

impl Change {
    /// The paths it is about.
    pub fn paths(&self) -> Vec<String> {
        match self {
            Change::MakeDatabase(database) | Change::DropDatabase(database) => {
                vec![directory(*database)]
            }
            Change::Rename(from, to) => vec![path(*from), path(*to)],
            Change::Create(file)
            | Change::Drop(file)
            | Change::Write { file, .. }
            | Change::Truncate { file, .. }
            | Change::Replace { file, .. } => vec![path(*file)],
        }
    }
}

/// Files are spread over the databases.
fn path(file: u8) -> String {
    format!("base/{}/{}", file % DATABASES, 1000 + u32::from(file))
}

fn directory(database: u8) -> String {
    format!("base/{database}")
}

/// What the files hold, by path; directories are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files(pub BTreeMap<String, Option<Vec<u8>>>);

impl Files {
    /// Applies a change; false if it does not fit.
    pub fn apply(&mut self, change: &Change) -> bool {
        let files = &mut self.0;
        match change {
            Change::MakeDatabase(database) => {
                let new = !files.contains_key(&directory(*database));
                files.insert(directory(*database), None);
                new
            }
            Change::DropDatabase(database) => {
                let below = format!("{}/", directory(*database));
                files.retain(|path, _| !path.starts_with(&below));
                files.remove(&directory(*database)).is_some()
            }
            Change::Create(file) => {
                let fits = files.contains_key(&directory(file % DATABASES))
                    && !files.contains_key(&path(*file));
                if fits {
                    files.insert(path(*file), Some(Vec::new()));
                }
                fits
            }
            Change::Write {
                file,
                offset,
                len,
                byte,
            } => self.change(*file, |data| {
                let (from, to) = (*offset as usize, (offset + len) as usize);
                data.resize(data.len().max(to), 0);
                data[from..to].fill(*byte);
            }),
            Change::Truncate { file, size } => {
                self.change(*file, |data| data.resize(*size as usize, 0))
            }
            Change::Replace { file, len, byte } => {
                self.change(*file, |data| *data = vec![*byte; *len as usize])
            }
            Change::Drop(file) => files.remove(&path(*file)).is_some(),
            Change::Rename(from, to) => {
                let fits = from != to
                    && files.contains_key(&path(*from))
                    && files.contains_key(&directory(to % DATABASES));
                if fits {
                    let data = files.remove(&path(*from)).expect("looked at");
                    files.insert(path(*to), data);
                }
                fits
            }
        }
    }

    fn change(&mut self, file: u8, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        match self.0.get_mut(&path(file)) {
            Some(Some(data)) => {
                change(data);
                true
            }
            _ => false,
        }
    }
}

/// Fails where a tree is not what the model says, and tells where without all the bytes.
pub fn assert_same(found: &BTreeMap<String, Option<Vec<u8>>>, model: &Files, when: &str) {
    if *found == model.0 {
        return;
    }
    let mut lines = Vec::new();
    for path in found.keys().chain(model.0.keys()).collect::<BTreeSet<_>>() {
        let (is, should) = (found.get(path), model.0.get(path));
        if is != should {
            lines.push(format!(
                "{path}: {} instead of {}",
                brief(is),
                brief(should)
            ));
        }
    }
    panic!("{when}: {}", lines.join("; "));
}

fn brief(file: Option<&Option<Vec<u8>>>) -> String {
    match file {
        None => "nothing".into(),
        Some(None) => "a directory".into(),
        Some(Some(data)) => {
            let first: Vec<u8> = data.chunks(BLOCK).map(|block| block[0]).collect();
            format!("{} bytes, blocks {first:?}", data.len())
        }
    }
}

/// Does a change, which fits, to files.
pub async fn perform(database: &Database, change: &Change) {
    match change {
        Change::MakeDatabase(number) => drop(database.mkdir(&directory(*number)).unwrap()),
        Change::DropDatabase(number) => {
            let dir = directory(*number);
            for name in database.names(&dir) {
                database.unlink(&format!("{dir}/{name}")).unwrap();
            }
            database.rmdir(&dir).unwrap();
        }
        Change::Create(file) => drop(database.create(&path(*file)).unwrap()),
        Change::Write {
            file,
            offset,
            len,
            byte,
        } => {
            let data = vec![*byte; *len as usize];
            database
                .write(&path(*file), u64::from(*offset), &data)
                .await
                .unwrap();
        }
        Change::Truncate { file, size } => {
            database
                .truncate(&path(*file), u64::from(*size))
                .await
                .unwrap();
        }
        Change::Drop(file) => database.unlink(&path(*file)).unwrap(),
        Change::Replace { file, len, byte } => {
            let path = path(*file);
            let temporary = format!("{path}.tmp");
            database.put(&temporary, &vec![*byte; *len as usize]).await;
            database.rename(&temporary, &path).unwrap();
        }
        Change::Rename(from, to) => database.rename(&path(*from), &path(*to)).unwrap(),
    }
}
