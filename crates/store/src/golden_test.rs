//! What zones of release 0.1 kept in their directories ("understudy-zone 4"), value by value: later releases have to read it.
//!
//! The file is never written again. Whoever changes what is kept raises the directory's format, and adds a file for that.

use std::fmt::Debug;
use std::path::Path;

use bytes::Bytes;
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, StoreId, Version, ZoneId};
use dax::membership::{Change, Member, Membership};
use dax::sightings::{Run, Runs, Sighting, Sightings};
use dax::storage::{EpochGrant, Lineage, Retention, VolumeSettings};
use dax::wire::StoredRecord;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::keys::{Slot, VolumeId, decode_block, decode_record, encode_block, encode_record};
use crate::meta::{Forgiven, Removal, VolumeMeta, from_json, to_json};

const VERSION: Version = Version {
    epoch: Epoch(3),
    seq: 11,
};

fn path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/golden/zone-4.txt")
}

/// The values as they are made now, each with a check of the one that was kept.
#[derive(Default)]
struct Values {
    made: String,
    kept: Vec<Vec<u8>>,
    next: usize,
}

impl Values {
    fn value(&mut self, made: &[u8]) -> Bytes {
        let digits: String = made.iter().map(|byte| format!("{byte:02x}")).collect();
        self.made += &(digits + "\n");
        let kept = self.kept.get(self.next).cloned();
        self.next += 1;
        kept.unwrap_or_else(|| made.to_vec()).into()
    }

    fn json<T: Serialize + DeserializeOwned + PartialEq + Debug>(&mut self, sample: T) {
        let kept = self.value(&to_json(&sample));
        assert_eq!(from_json::<T>(Path::new("zone"), &kept).unwrap(), sample);
    }
}

fn look(values: &mut Values) {
    let member = |number: u8| Member {
        store: StoreId::new(number.into()).unwrap(),
        address: format!("host{number}:7101"),
        zone: ZoneId(number),
    };
    let key = BlockKey {
        file: FileId(7),
        block: BlockIndex(9),
    };
    values.json(VolumeMeta {
        id: 1,
        settings: VolumeSettings::default(),
        rebuilding: true,
        forgiven: Some(Forgiven {
            run: 5,
            lift: 1 << 40,
        }),
    });
    values.json(EpochGrant {
        epoch: Epoch(3),
        owner: "a/1".into(),
    });
    values.json(Membership {
        version: VERSION,
        changes: 4,
        sync_replicas: 2,
        members: vec![member(1), member(2), member(3)],
        change: Some(Change {
            joining: vec![member(4)],
            leaving: vec![StoreId::new(2).unwrap()],
            sync_replicas: 2,
            begun: VERSION,
            back: false,
            joint: true,
        }),
        former: vec![member(8)],
    });
    values.json(Sightings {
        version: VERSION,
        stores: vec![Sighting {
            store: StoreId::new(2).unwrap(),
            run: 5,
            commit: 900,
        }],
    });
    values.json(Runs::new(vec![
        Run { run: 9, began: 3 },
        Run { run: 11, began: 12 },
    ]));
    values.json(Retention {
        images: vec![Lineage::up_to(Generation::MAX)],
    });
    values.json(Removal::Files(vec![FileId(1), FileId(2)]));
    values.json(Removal::Before(FileId(1), BlockIndex(4)));
    let record = StoredRecord {
        version: VERSION,
        value: Some(Bytes::from_static(b"x")),
    };
    let kept = values.value(&encode_record(&record));
    assert_eq!(decode_record(kept), Some(record));
    let removed = StoredRecord {
        version: VERSION,
        value: None,
    };
    let kept = values.value(&encode_record(&removed));
    assert_eq!(decode_record(kept), Some(removed));
    let kept = values.value(&encode_block(VERSION, 99, b"contents"));
    let block = decode_block(Generation::SINGLE, kept).unwrap();
    assert_eq!(
        (block.version, block.checksum, &block.data[..]),
        (VERSION, 99, &b"contents"[..])
    );
    let slot = Slot {
        volume: VolumeId(1),
        key,
        generation: Generation {
            epoch: Epoch(2),
            number: 5,
        },
    };
    let kept = values.value(&slot.encode());
    assert_eq!(Slot::decode(&kept), Some(slot));
}

#[test]
fn golden_values_of_a_zones_directory_are_understood() {
    if std::env::var_os("UPDATE_GOLDEN").is_some() && !path().exists() {
        let mut values = Values::default();
        look(&mut values);
        std::fs::write(path(), values.made).unwrap();
    }
    let text = std::fs::read_to_string(path()).unwrap();
    let bytes = |line: &str| {
        let digits = (0..line.len()).step_by(2);
        digits
            .map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap())
            .collect()
    };
    let mut values = Values {
        kept: text.lines().map(bytes).collect(),
        ..Values::default()
    };
    look(&mut values);
    assert_eq!(values.next, values.kept.len());
}
