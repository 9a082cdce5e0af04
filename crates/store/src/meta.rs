//! What a zone remembers besides blocks: volumes, accepted epochs, records, retention, unfinished
//! removals; and how each is keyed and put into bytes.
//!
//! ```text
//! format                  the format of the whole directory; also in the file FORMAT
//! id                      which store this is, for good                      u64
//! runs                    the last runs of its process, and where they began JSON
//! log                     the number of the last commit that this keyspace has (crate::engine)
//! v <name>                volume: id, settings, whether it is rebuilding     JSON
//! x <name>                a volume that was removed: its id                   u32
//! e <id>                  accepted epoch and owner                           JSON
//! m <id>                  who the volume's members are, if it was told      JSON
//! s <id>                  how far the volume's stores were seen to be       JSON
//! k <id>                  retention                                          JSON
//! n <id>                  how many slots the volume's blocks take            u64
//! r <id> <name>           record: version, value
//! j <id> <number>         a removal that is not finished                     JSON
//! g <id> <file>           a file that was removed, of a volume whose layer may be filled
//! ```

use std::io::ErrorKind;
use std::path::Path;

use bytes::Bytes;
use dax::forms::{Forms, WrittenForms};
use dax::ids::{BlockIndex, Epoch, FileId, StoreId, VolumeName};
use dax::sightings::{Run, Runs};
use dax::storage::VolumeSettings;
use dax::wire::StoredRecord;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::engine::{Batch, Engine, EngineError};
use crate::error::OpenError;
use crate::keys::VolumeId;

/// The format that this code writes.
const FORMAT: &[u8] = b"understudy-zone 4";
/// Those before it, which this code goes on with: 2 had no commit log, in 3 the number of the last commit was in `meta`
/// alone.
const FORMATS_BEFORE: [&[u8]; 2] = [b"understudy-zone 2", b"understudy-zone 3"];
pub(crate) const FORMAT_KEY: &[u8] = b"format";
const STORE_KEY: &[u8] = b"id";
const RUNS_KEY: &[u8] = b"runs";

/// A volume as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeMeta {
    pub id: u32,
    pub settings: VolumeSettings,
    /// This replica lost it: see [`dax::wire::Request::Rebuilt`].
    pub rebuilding: bool,
    /// That this replica was told that it had gone back. (What was kept as "forgiven" once says less; who has it is told again.)
    #[serde(default, rename = "lifted")]
    pub forgiven: Option<Forgiven>,
    /// Until a later epoch than this is accepted, nothing is laid over it, because it is about to be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Epoch>,
    /// This replica was rebuilt once, so that it had everything then.
    #[serde(default, skip_serializing_if = "is_false")]
    pub restored: bool,
    /// The volume below may be an older copy than the one that this volume was laid over.
    #[serde(default, skip_serializing_if = "is_false")]
    pub doubts_layer: bool,
    /// This replica has all that the volume shows of the volume below, and looks there no more.
    #[serde(default, skip_serializing_if = "is_false")]
    pub filled: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl VolumeMeta {
    /// A new volume.
    pub fn new(id: VolumeId, settings: VolumeSettings) -> VolumeMeta {
        VolumeMeta {
            id: id.0,
            settings,
            rebuilding: false,
            forgiven: None,
            closed: None,
            restored: false,
            doubts_layer: false,
            filled: false,
        }
    }
}

/// What was seen of a replica before it was told that it had gone back says nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Forgiven {
    /// The run in which it was told.
    pub run: u64,
    /// Its commits are told as so much further since.
    pub lift: u64,
}

/// Blocks to give back in the background; kept until it is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Removal {
    Files(Vec<FileId>),
    Before(FileId, BlockIndex),
}

/// The key prefix of all volumes.
pub(crate) const VOLUMES: &[u8] = b"v";

pub(crate) fn volume_key(name: &VolumeName) -> Vec<u8> {
    [VOLUMES, name.as_str().as_bytes()].concat()
}

/// The key prefix of all volumes that were removed.
pub(crate) const REMOVED: &[u8] = b"x";

pub(crate) fn removed_key(name: &VolumeName) -> Vec<u8> {
    [REMOVED, name.as_str().as_bytes()].concat()
}

/// The value of a removed volume's key: its id, which is never used again.
pub(crate) fn removed_value(volume: VolumeId) -> Bytes {
    volume.0.to_be_bytes().to_vec().into()
}

/// The volume of a removed volume's entry; none if it is not understood.
pub(crate) fn removed_volume(key: &[u8], value: &[u8]) -> Option<(VolumeName, VolumeId)> {
    let name = String::from_utf8(key.get(REMOVED.len()..)?.to_vec()).ok()?;
    let id = u32::from_be_bytes(value.try_into().ok()?);
    Some((VolumeName::new(name).ok()?, VolumeId(id)))
}

pub(crate) fn epoch_key(volume: VolumeId) -> Vec<u8> {
    [b"e".as_slice(), &volume.0.to_be_bytes()].concat()
}

pub(crate) fn members_key(volume: VolumeId) -> Vec<u8> {
    [b"m".as_slice(), &volume.0.to_be_bytes()].concat()
}

pub(crate) fn sightings_key(volume: VolumeId) -> Vec<u8> {
    [b"s".as_slice(), &volume.0.to_be_bytes()].concat()
}

pub(crate) fn retention_key(volume: VolumeId) -> Vec<u8> {
    [b"k".as_slice(), &volume.0.to_be_bytes()].concat()
}

pub(crate) fn slots_key(volume: VolumeId) -> Vec<u8> {
    [b"n".as_slice(), &volume.0.to_be_bytes()].concat()
}

/// The key of a record; with a prefix of a name, the key prefix of those records.
pub(crate) fn record_key(volume: VolumeId, name: &str) -> Vec<u8> {
    [b"r".as_slice(), &volume.0.to_be_bytes(), name.as_bytes()].concat()
}

/// Bytes of a record's key in front of its name.
pub(crate) const RECORD_KEY_HEAD: usize = 5;

/// The key prefix of a volume's files that a fill must not bring back.
pub(crate) fn gone_files_key(volume: VolumeId) -> Vec<u8> {
    [b"g".as_slice(), &volume.0.to_be_bytes()].concat()
}

pub(crate) fn gone_file_key(volume: VolumeId, file: FileId) -> Vec<u8> {
    [gone_files_key(volume).as_slice(), &file.0.to_be_bytes()].concat()
}

/// The key prefix of a volume's unfinished removals.
pub(crate) fn removals_key(volume: VolumeId) -> Vec<u8> {
    [b"j".as_slice(), &volume.0.to_be_bytes()].concat()
}

pub(crate) fn removal_key(volume: VolumeId, number: u64) -> Vec<u8> {
    [removals_key(volume).as_slice(), &number.to_be_bytes()].concat()
}

/// The number in a removal's key.
pub(crate) fn removal_number(key: &[u8]) -> u64 {
    let number = key.last_chunk().copied();
    u64::from_be_bytes(number.unwrap_or_default())
}

/// The number in the record `forms` of a volume, if the record is there and can be understood.
pub(crate) fn written_forms(record: StoredRecord) -> Option<Forms> {
    let written = serde_json::from_slice::<WrittenForms>(&record.value?);
    written.ok().map(|record| record.written)
}

/// JSON of plain data.
pub(crate) fn to_json(value: &impl Serialize) -> Bytes {
    let json = serde_json::to_vec(value);
    json.expect("plain data without maps keyed by structs")
        .into()
}

/// Plain data from JSON that this program wrote.
pub(crate) fn from_json<T: DeserializeOwned>(dir: &Path, json: &[u8]) -> Result<T, OpenError> {
    serde_json::from_slice(json).map_err(|source| OpenError::NotUnderstood {
        dir: dir.into(),
        source: Box::new(source),
    })
}

/// True if a directory of this format has the number of its last commit in `meta` alone.
pub(crate) fn is_numbered_in_meta_alone(format: Option<&[u8]>) -> bool {
    format.is_some_and(|format| FORMATS_BEFORE.contains(&format))
}

/// Checks the directory's format, writing it if the directory is new or of a format before.
pub(crate) fn check_format(engine: &dyn Engine, dir: &Path) -> Result<(), OpenError> {
    let broken = |error: EngineError| error.at_open(dir);
    match engine.meta(FORMAT_KEY).map_err(broken)? {
        Some(found) if found == FORMAT => Ok(()),
        Some(found) if !FORMATS_BEFORE.contains(&&found[..]) => Err(other_format(dir, &found)),
        _ => {
            let mut batch = Batch::default();
            batch.put_meta(FORMAT_KEY, Bytes::from_static(FORMAT));
            engine.commit(batch).map_err(broken)
        }
    }
}

/// The same in a file beside the engine's, which can be read before the engine touches anything: what a newer release keeps
/// there may look like damage to this one, or be cut off as the end of a crash. Releases before 0.2 do not have the file.
pub(crate) const FORMAT_FILE: &str = "FORMAT";

/// Refuses a directory whose file says that it is of a format that this code does not know.
pub(crate) fn check_format_file(dir: &Path) -> Result<(), OpenError> {
    let cannot = |source| OpenError::Directory {
        dir: dir.into(),
        source,
    };
    let found = match std::fs::read(dir.join(FORMAT_FILE)) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(cannot(error)),
    };
    let found = found.trim_ascii();
    // A crash may have left it empty; the engine's own record tells then.
    match found.is_empty() || found == FORMAT || FORMATS_BEFORE.contains(&found) {
        true => Ok(()),
        false => Err(other_format(dir, found)),
    }
}

/// Says in a file of which format the directory is, once the engine's record says so.
pub(crate) fn note_format(dir: &Path) -> Result<(), OpenError> {
    let text = [FORMAT, b"\n"].concat();
    let path = dir.join(FORMAT_FILE);
    let kept = std::fs::read(&path).unwrap_or_default();
    match kept == text {
        true => Ok(()),
        false => std::fs::write(&path, text).map_err(|source| OpenError::Directory {
            dir: dir.into(),
            source,
        }),
    }
}

fn other_format(dir: &Path, found: &[u8]) -> OpenError {
    OpenError::Format {
        dir: dir.into(),
        found: String::from_utf8_lossy(found).into_owned(),
        expected: String::from_utf8_lossy(FORMAT).into_owned(),
    }
}

/// Which store this is; made with the directory, or at the first start with this code.
pub(crate) fn store_id(engine: &dyn Engine, dir: &Path) -> Result<StoreId, OpenError> {
    let broken = |error: EngineError| error.at_open(dir);
    if let Some(stored) = engine.meta(STORE_KEY).map_err(broken)? {
        let number = stored.first_chunk().copied().map(u64::from_be_bytes);
        let id = number.and_then(StoreId::new);
        return id.ok_or_else(|| OpenError::NotUnderstood {
            dir: dir.into(),
            source: format!(
                "the store's id is {} bytes, or zero; it must be 8",
                stored.len()
            )
            .into(),
        });
    }
    let id = StoreId::random().map_err(OpenError::Random)?;
    let mut batch = Batch::default();
    let number = id.number().to_be_bytes().to_vec();
    batch.put_meta(STORE_KEY, number.into());
    engine.commit(batch).map_err(broken)?;
    Ok(id)
}

/// Another run of the process begins: it is remembered before anybody hears of it.
pub(crate) fn begin_run(engine: &dyn Engine, dir: &Path, run: u64) -> Result<Runs, OpenError> {
    let broken = |error: EngineError| error.at_open(dir);
    let kept = engine.meta(RUNS_KEY).map_err(broken)?;
    let kept = kept.map(|json| from_json(dir, &json)).transpose()?;
    let mut runs: Runs = kept.unwrap_or_default();
    let began = engine.began();
    runs.begin(Run { run, began });
    let mut batch = Batch::default();
    batch.put_meta(RUNS_KEY, to_json(&runs));
    engine.commit(batch).map_err(broken)?;
    Ok(runs)
}
