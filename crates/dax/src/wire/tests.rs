use std::path::{Path, PathBuf};

use super::samples::{KEY, VERSION, requests, responses};
use super::*;
use crate::ids::{Epoch, FileId, VolumeName};
use crate::storage::{Fill, Relative, Usage};
use crate::writer::packing::piece;
use bytes::BytesMut;
use proptest::prelude::*;

/// Where the corpus keeps a message: by its kind, numbered where there are several.
fn file_of(kind: &str, message: &impl std::fmt::Debug, earlier: &mut Vec<String>) -> PathBuf {
    let shown = format!("{message:?}");
    let name: String = shown
        .chars()
        .take_while(char::is_ascii_alphabetic)
        .flat_map(|c| {
            [
                c.is_uppercase().then_some('-'),
                Some(c.to_ascii_lowercase()),
            ]
        })
        .flatten()
        .collect();
    let number = earlier.iter().filter(|e| **e == name).count() + 1;
    earlier.push(name.clone());
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    corpus.join(format!("{kind}{name}-{number}.bin"))
}

/// The format is an agreement with other versions: it does not change by accident. After a change that
/// is meant, `UPDATE_CORPUS=1` writes the files anew.
#[test]
fn messages_are_what_the_corpus_holds() {
    let mut scratch = BytesMut::new();
    let mut files: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    let mut earlier = Vec::new();
    for request in requests() {
        let bytes = on_the_wire(&request.encode(7, &mut scratch));
        files.push((file_of("request", &request, &mut earlier), bytes));
    }
    earlier.clear();
    for response in responses() {
        let bytes = on_the_wire(&response.encode(7, &mut scratch));
        files.push((file_of("response", &response, &mut earlier), bytes));
    }
    for (path, bytes) in files {
        if std::env::var_os("UPDATE_CORPUS").is_some() {
            std::fs::write(&path, &bytes).unwrap();
        }
        let kept = std::fs::read(&path).unwrap_or_default();
        assert!(kept == bytes, "{} holds something else", path.display());
    }
}

pub(super) fn on_the_wire(frame: &Frame) -> Vec<u8> {
    frame.parts().concat()
}

#[test]
fn requests_come_back_as_they_went() {
    let mut scratch = BytesMut::new();
    for (id, request) in (1u64..).zip(requests()) {
        let bytes = on_the_wire(&request.encode(id, &mut scratch));
        let frame = read_frame(&mut &bytes[..], MAX_FRAME_BYTES)
            .unwrap()
            .unwrap();
        assert_eq!(Request::decode(frame).unwrap(), (id, request));
    }
}

#[tokio::test]
async fn responses_come_back_as_they_went() {
    let mut scratch = BytesMut::new();
    for (id, response) in (1u64..).zip(responses()) {
        let bytes = on_the_wire(&response.encode(id, &mut scratch));
        let frame = FrameReader::new(&bytes[..])
            .next(MAX_FRAME_BYTES)
            .await
            .unwrap();
        assert_eq!(Response::decode(frame).unwrap(), (id, response));
    }
}

#[test]
fn a_write_is_completed_by_what_it_begins_with_and_by_nothing_else() {
    let data = Bytes::from_static(b"beginning and end");
    let write = |bytes: u32| BlockWrite {
        epoch: Epoch(1),
        key: KEY,
        generation: Generation::SINGLE,
        version: VERSION,
        checksum: checksum(KEY, Generation::SINGLE, VERSION, &data),
        base: Some(Base {
            generation: Generation::SINGLE,
            bytes,
        }),
        data: data.slice(bytes as usize..),
    };
    let whole = write(9).completed(b"beginning of another").unwrap();
    assert_eq!((whole.base, whole.data.clone()), (None, data.clone()));
    assert_eq!(whole.whole_bytes(), write(9).whole_bytes());
    assert_eq!(write(9).completed(b"Beginning"), None);
    assert_eq!(write(9).completed(b"beginnin"), None);
    assert_eq!(whole.completed(b"beginning"), None, "it is whole");
}

proptest! {
    /// A frame of bytes that do not pack ends with them, and a CRC-32C behind them hid them from the checksum of the whole:
    /// a zone put pieces behind every first piece of the same length.
    // hazard: D3
    #[test]
    fn a_piece_is_put_behind_no_other_piece(
        beginnings in prop::collection::vec(any::<(u8, u8)>(), 1..300),
        new in prop::collection::vec(any::<u8>(), 1..300),
    ) {
        let (beginning, other): (Vec<u8>, Vec<u8>) = beginnings.into_iter().unzip();
        prop_assume!(beginning != other);
        let first = |bytes: &[u8]| piece(&[], &[], bytes, 8192).unwrap();
        let (kept, foreign) = (first(&beginning), first(&other));
        let whole = piece(&kept, &beginning, &new, 8192).unwrap();
        let write = || BlockWrite {
            epoch: Epoch(1),
            key: KEY,
            generation: Generation::SINGLE,
            version: VERSION,
            checksum: checksum(KEY, Generation::SINGLE, VERSION, &whole),
            base: Some(Base {
                generation: Generation::SINGLE,
                bytes: kept.len() as u32,
            }),
            data: whole.slice(kept.len()..),
        };
        prop_assert_eq!(write().completed(&foreign), None);
        prop_assert_eq!(write().completed(&kept).unwrap().data, whole);
    }
}

#[test]
fn block_data_is_not_copied() {
    let data = Bytes::from(vec![1; 8192]);
    let write = BlockWrite {
        epoch: Epoch(1),
        key: KEY,
        generation: Generation::SINGLE,
        version: VERSION,
        checksum: 0,
        base: None,
        data: data.clone(),
    };
    let frame = Request::Write(write).encode(1, &mut BytesMut::new());
    assert_eq!(frame.payload.as_ptr(), data.as_ptr());
    assert!(frame.head.len() < 100);
}

#[test]
fn a_checksum_covers_the_name_and_the_bytes() {
    let block = StoredBlock::new(KEY, Generation::SINGLE, VERSION, Bytes::from_static(b"abc"));
    assert!(block.is_intact(KEY));
    assert!(!block.is_intact(BlockKey::new(FileId(7), 10)));
    let other = StoredBlock {
        version: Version::ZERO,
        ..block.clone()
    };
    assert!(!other.is_intact(KEY));
    let other = StoredBlock {
        data: Bytes::from_static(b"abd"),
        ..block
    };
    assert!(!other.is_intact(KEY));
}

#[test]
fn more_of_a_volume_is_told_with_its_usage() {
    let relative = |name: &str| Relative {
        volume: VolumeName::new(name).unwrap(),
        used_bytes: 7,
    };
    let fill = Fill {
        done: true,
        ended: false,
        looked: 3,
        all: 4,
    };
    let relatives = vec![relative("main"), relative("main-test")];
    for (fill, relatives) in [
        (Some(fill), relatives.clone()),
        (None, relatives),
        (
            Some(Fill {
                ended: true,
                ..fill
            }),
            Vec::new(),
        ),
    ] {
        for past_blocks in [0, 9] {
            let usage = Response::Usage(Box::new(Usage {
                past_blocks,
                fill,
                relatives: relatives.clone(),
                ..Usage::default()
            }));
            let bytes = Bytes::from(on_the_wire(&usage.encode(1, &mut BytesMut::new())));
            let (_, read) = Response::decode(bytes.slice(4..)).unwrap();
            assert_eq!(read, usage);
            assert!(Response::decode(bytes.slice(4..bytes.len() - 1)).is_err());
        }
    }
}

#[test]
fn a_frame_cut_short_is_an_error() {
    let mut scratch = BytesMut::new();
    for request in requests() {
        let bytes = Bytes::from(on_the_wire(&request.encode(1, &mut scratch)));
        for end in 4..bytes.len() - 1 {
            assert!(
                Request::decode(bytes.slice(4..end)).is_err(),
                "{request:?} cut at {end}"
            );
        }
    }
    for response in responses() {
        let bytes = Bytes::from(on_the_wire(&response.encode(1, &mut scratch)));
        for end in 4..bytes.len() - 1 {
            // Before protocol 6 it ended here.
            if matches!(response, Response::Usage(_)) && end == bytes.len() - 8 {
                continue;
            }
            if let Response::Welcome { settings, .. } = &response
                && settings.layer.is_some()
                && Response::decode(bytes.slice(4..end)).is_ok_and(|(_, welcome)| {
                    matches!(welcome, Response::Welcome { settings, .. } if settings.layer.is_none())
                })
            {
                continue;
            }
            assert!(
                Response::decode(bytes.slice(4..end)).is_err(),
                "{response:?} cut at {end}"
            );
        }
    }
}

proptest! {
    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..300), tag in 0u8..40) {
        let mut framed = vec![0; 8];
        framed.push(tag);
        framed.extend(&noise);
        let _ = Request::decode(Bytes::from(framed.clone()));
        let _ = Response::decode(Bytes::from(framed));
        let _ = Request::decode(Bytes::from(noise.clone()));
        let _ = Response::decode(Bytes::from(noise));
    }
}
