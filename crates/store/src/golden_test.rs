//! What zones of release 0.1 kept in their directories ("understudy-zone 4"), value by value: later releases have to read it.
//!
//! The file is never written again. Whoever changes what is kept raises the directory's format, and adds a file for that.

use std::fmt::Debug;
use std::path::Path;

use bytes::Bytes;
use dax::credentials::Proof;
use dax::ids::{
    BlockIndex, BlockKey, Epoch, FileId, Generation, StoreId, Version, VolumeName, ZoneId,
};
use dax::layer::Layer;
use dax::membership::{Change, Member, Membership};
use dax::sightings::{Run, Runs, Sighting, Sightings};
use dax::storage::{EpochGrant, Lineage, Retention, VolumeSettings};
use dax::wire::StoredRecord;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::keys::{Slot, VolumeId, decode_block, decode_record, encode_block, encode_record};
use crate::meta::{
    Forgiven, Removal, VolumeMeta, from_json, removed_key, removed_value, removed_volume, to_json,
};

const VERSION: Version = Version {
    epoch: Epoch(3),
    seq: 11,
};

fn path(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/golden")
        .join(name)
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
        rebuilding: true,
        forgiven: Some(Forgiven {
            run: 5,
            lift: 1 << 40,
        }),
        ..VolumeMeta::new(VolumeId(1), VolumeSettings::default())
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

/// Values that came with layers, which release 0.1 does not know: it opens no directory of format 4.
fn look_at_layers(values: &mut Values) {
    let generation = |epoch| Generation {
        epoch: Epoch(epoch),
        number: 5,
    };
    let name = VolumeName::new("v").unwrap();
    let settings = VolumeSettings::default().under(Layer {
        parent: VolumeName::new("p").unwrap(),
        image: Lineage::up_to(generation(2))
            .continued(generation(3))
            .truncated(generation(4)),
        first_epoch: Epoch(5),
        proof: Some(Proof([7; 32])),
    });
    values.json(VolumeMeta {
        closed: Some(Epoch(6)),
        restored: true,
        doubts_layer: true,
        ..VolumeMeta::new(VolumeId(2), settings)
    });
    let kept = values.value(&removed_value(VolumeId(2)));
    let removed = removed_volume(&removed_key(&name), &kept);
    assert_eq!(removed, Some((name, VolumeId(2))));
}

/// Values that came with fills: a zone without them looks at the volume below as before.
fn look_at_fills(values: &mut Values) {
    values.json(VolumeMeta {
        filled: true,
        ..VolumeMeta::new(VolumeId(2), VolumeSettings::default())
    });
}

/// A volume without a layer is written as ever, so that a zone can go back to the program before.
#[test]
fn a_volume_without_a_layer_is_written_as_before() {
    let plain = VolumeMeta {
        rebuilding: true,
        ..VolumeMeta::new(VolumeId(1), VolumeSettings::default())
    };
    let expected = r#"{"id":1,"settings":{"block_size_bytes":8192,"replicas":3,"sync_replicas":2,"zones":3,"protocol":"strong_optimistic"},"rebuilding":true,"lifted":null}"#;
    assert_eq!(to_json(&plain), expected);
}

#[test]
fn golden_values_of_a_zones_directory_are_understood() {
    golden("zone-4.txt", look);
    golden("zone-layers.txt", look_at_layers);
    golden("zone-fills.txt", look_at_fills);
}

fn golden(name: &str, look: impl Fn(&mut Values)) {
    let path = path(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() && !path.exists() {
        let mut values = Values::default();
        look(&mut values);
        std::fs::write(&path, values.made).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
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
