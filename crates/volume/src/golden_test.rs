//! What release 0.1 stored in a volume, byte by byte: later releases have to read it.
//!
//! The files in `golden` are never written again. Whoever changes what is stored gives it another number (the journal's format
//! byte, [`dax::forms`]), adds files for that, and leaves these.

use std::path::{Path, PathBuf};

use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, Version};
use dax::storage::Lineage;

use crate::claim::Claim;
use crate::layout::FileClass;
use crate::lists;
use crate::lsn::Lsn;
use crate::namespace::op::{self, Op};
use crate::namespace::{Cut, Inode};
use crate::past::{Index, KeptSeal, Pin, PinState};
use crate::seal::Seal;
use crate::view::{FileKind, Timestamp};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/golden")
        .join(name)
}

/// The lines of a file, each of which is in hexadecimal; made once.
fn golden(name: &str, made: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let path = file(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() && !path.exists() {
        let hex = |bytes: &Vec<u8>| -> String {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            digits + "\n"
        };
        std::fs::write(&path, made.iter().map(hex).collect::<String>()).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let bytes = |line: &str| {
        let digits = (0..line.len()).step_by(2);
        digits
            .map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap())
            .collect()
    };
    text.lines().map(bytes).collect()
}

const AT: Timestamp = Timestamp(1_700_000_000_000_000_123);
const CUT: Cut = Cut {
    first_block: BlockIndex(3),
    version: Version {
        epoch: Epoch(2),
        seq: 900,
    },
};

/// One of each kind, in the order of the kinds.
fn ops() -> Vec<Op> {
    let id = FileId::new(Epoch(2), 7);
    let (parent, other) = (FileId(1), FileId::new(Epoch(1), 4));
    let name = || b"000000010000000000000001".to_vec();
    let inode = Inode {
        kind: FileKind::File,
        class: FileClass::Data,
        mode: 0o600,
        uid: 100,
        gid: 101,
        nlink: 1,
        size: 1 << 30,
        mtime: AT,
        ctime: AT,
        cuts: vec![CUT],
        target: Some(b"there".to_vec()),
        parent,
        name: name().into(),
    };
    vec![
        Op::Opened {
            epoch: Epoch(2),
            at: AT,
        },
        Op::Create {
            id,
            parent,
            name: name(),
            kind: FileKind::Symlink,
            class: FileClass::Log,
            mode: 0o777,
            uid: 100,
            gid: 101,
            target: Some(b"there".to_vec()),
            at: AT,
        },
        Op::Link {
            id,
            parent,
            name: name(),
            at: AT,
        },
        Op::Unlink {
            parent,
            name: name(),
            retain: true,
            at: AT,
        },
        Op::RemoveDirectory {
            parent,
            name: name(),
            at: AT,
        },
        Op::Rename {
            from: parent,
            from_name: name(),
            to: other,
            to_name: b"x".to_vec(),
            class: FileClass::Live,
            at: AT,
        },
        Op::Exchange {
            from: parent,
            from_name: name(),
            to: other,
            to_name: b"x".to_vec(),
            at: AT,
        },
        Op::SetAttr {
            id,
            mode: Some(0o640),
            uid: None,
            gid: Some(5),
            mtime: Some(AT),
            at: AT,
        },
        Op::SetSize {
            id,
            size: 8192,
            at: AT,
        },
        Op::Truncate {
            id,
            size: 100,
            cut: CUT,
            at: AT,
        },
        Op::Forget { id },
        Op::Reclaimed {
            ids: vec![id, other],
        },
        Op::PutInode { id, inode },
        Op::PutName {
            parent,
            name: name(),
            id,
        },
        Op::DropName {
            parent,
            name: name(),
        },
        Op::DropInode { id },
        Op::PutRetained {
            parent,
            name: name(),
            id,
        },
        Op::Bury { ids: vec![id] },
    ]
}

#[test]
fn golden_records_of_the_journal_are_understood() {
    let ops = ops();
    let made: Vec<Vec<u8>> = ops
        .iter()
        .map(|op| op::encode(std::slice::from_ref(op)))
        .collect();
    let stored = golden("journal-1.txt", &made);
    assert_eq!(stored.len(), ops.len());
    for (bytes, op) in stored.iter().zip(ops) {
        assert_eq!(op::decode(bytes).unwrap(), [op]);
    }
}

#[test]
fn golden_lists_of_blocks_are_understood() {
    let seqs = [(1u64, 0u64, 5u64), (1, 1, 4), (1 << 40, 9, 1000)];
    let seqs: Vec<(BlockKey, u64)> = seqs
        .map(|(file, block, seq)| (BlockKey::new(FileId(file), block), seq))
        .to_vec();
    let made = lists::encode(&seqs.iter().copied().collect());
    let stored = golden("list-1.txt", &[made]);
    let to = Generation {
        epoch: Epoch(2),
        number: 3,
    };
    assert_eq!(lists::blocks_of(&stored[0], to).unwrap(), seqs);
}

#[test]
fn golden_seals_are_understood() {
    let text = std::fs::read_to_string(file("seals-1.json")).unwrap();
    let seals: Vec<Seal> = serde_json::from_str(&text).unwrap();
    let [first, second] = &seals[..] else {
        panic!("there are two");
    };
    assert_eq!(first.lists, [], "from before lists");
    assert_eq!(
        (second.redo, second.end),
        (Lsn(0x0300_0028), Lsn(0x0300_0140))
    );
    assert_eq!(second.payload, [0xde, 0xad, 0xbe, 0xef]);
    assert_eq!(second.lists.len(), 1);
    assert_eq!(second.lineage, Lineage::up_to(second.generation));
    assert!(second.continues(first));
}

#[test]
fn golden_claims_are_understood() {
    let text = std::fs::read_to_string(file("claim-1.json")).unwrap();
    let claim: Claim = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (claim.node.to_string(), claim.log_from),
        ("south".to_owned(), Lsn(0x0300_0028))
    );
    assert!(!claim.everything && claim.images.len() == 1);
}

#[test]
fn golden_records_of_the_past_are_understood() {
    let read = |name: &str| std::fs::read(file(name)).unwrap();
    let kept = KeptSeal::parse("past/1/g3", &read("past-1.json")).unwrap();
    let seal = kept.seal();
    assert_eq!(seal.payload, [&[0xde, 0xad][..], &[0; 6]].concat());
    assert_eq!((seal.at, seal.newest_file), (Some(AT), Some(FileId(77))));
    assert_eq!(KeptSeal::new(seal), kept, "and the same is written");
    let index = Index::parse(Some(&read("past-index-1.json"))).unwrap();
    let index = index.unwrap();
    assert_eq!(index.dropped, ["one"]);
    let [image] = &index.images[..] else {
        panic!("there is one");
    };
    assert_eq!((image.at, image.blocks, image.closed), (AT, Some(9), true));
    assert_eq!(image.files().collect::<Vec<_>>(), [FileId(78), FileId(79)]);
    let pin = Pin::parse("pin/one", &read("pin-1.json")).unwrap();
    assert_eq!((pin.state, pin.number), (PinState::Kept, 3));
    assert_eq!((pin.log, pin.newest_file), (Some(Lsn(50)), FileId(80)));
    assert_eq!(pin.generation(), image.generation);
    // What is no such record is refused, and so is what a later release writes.
    type Read = fn(&[u8]) -> bool;
    let readers: [(&str, Read); 3] = [
        ("past-1.json", |b| KeptSeal::parse("past/x", b).is_ok()),
        ("past-index-1.json", |b| Index::parse(Some(b)).is_ok()),
        ("pin-1.json", |b| Pin::parse("pin/x", b).is_ok()),
    ];
    for (name, read_back) in readers {
        let bytes = read(name);
        assert!(read_back(&bytes));
        assert!(!read_back(&bytes[..bytes.len() / 2]) && !read_back(b"{}"));
        let text = String::from_utf8(bytes).unwrap();
        for (from, to) in [
            ("\"format\": 1", "\"format\": 2"),
            (
                "\"generation\": {\"epoch\": 1",
                "\"generation\": {\"epoch\": 2",
            ),
        ] {
            let other = text.replace(from, to);
            assert!(other != text && !read_back(other.as_bytes()), "{name} {to}");
        }
    }
    let text = String::from_utf8(read("past-1.json")).unwrap();
    for (from, to) in [
        ("\"zeros\": 6", "\"zeros\": 9000000000"),
        ("\"at\": 900", "\"at\": 899"),
    ] {
        assert!(KeptSeal::parse("past/x", text.replace(from, to).as_bytes()).is_err());
    }
}
