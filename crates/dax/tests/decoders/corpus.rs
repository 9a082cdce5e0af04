//! The corpus, replayed as it is.

use std::collections::BTreeSet;
use std::path::Path;

use bytes::Bytes;
use dax::wire::{Request, Response};

use super::trial::{self, Outcome};

/// All files whose names begin so, with their names.
pub fn files(prefix: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with(prefix) && name.ends_with(".bin") {
            files.push((name, std::fs::read(path).unwrap()));
        }
    }
    files.sort();
    assert!(!files.is_empty(), "no {prefix}");
    files
}

fn frame(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&bytes[4..])
}

#[test]
fn messages_are_accepted_and_sent_as_they_came() {
    for (name, bytes) in files("request-") {
        assert_eq!(trial::request(&frame(&bytes)), Some(bytes), "{name}");
    }
    for (name, bytes) in files("response-") {
        assert_eq!(trial::response(&frame(&bytes)), Some(bytes), "{name}");
    }
    for kind in ["request-", "response-"] {
        for (name, bytes) in files(kind) {
            assert_eq!(trial::run(&bytes).frames, 1, "{name}");
        }
    }
}

#[test]
fn malformed_frames_are_refused() {
    // The other decoder may make something of them.
    for (name, bytes) in files("malformed-frame-") {
        assert_eq!(trial::run(&bytes), Outcome::default(), "{name}");
    }
    for (name, bytes) in files("malformed-request-") {
        let outcome = trial::run(&bytes);
        assert_eq!((outcome.frames, outcome.requests), (1, 0), "{name}");
    }
    for (name, bytes) in files("malformed-response-") {
        let outcome = trial::run(&bytes);
        assert_eq!((outcome.frames, outcome.responses), (1, 0), "{name}");
    }
}

#[test]
fn odd_frames_are_accepted_and_sent_otherwise() {
    for (name, bytes) in files("odd-") {
        let outcome = trial::run(&bytes);
        assert_eq!(outcome.frames, 1, "{name}");
        assert!(outcome.requests + outcome.responses > 0, "{name}");
        for sent in [
            trial::request(&frame(&bytes)),
            trial::response(&frame(&bytes)),
        ] {
            assert!(sent.is_none_or(|sent| sent != bytes), "{name}");
        }
    }
}

#[test]
fn every_kind_of_message_is_there() {
    let known = |decode: &dyn Fn(Bytes) -> String| -> BTreeSet<u8> {
        let frame = |tag: u8| Bytes::from([&[0u8; 8][..], &[tag]].concat());
        let unknown = |tag: &u8| decode(frame(*tag)).contains("unknown re");
        (0..=255).filter(|tag| !unknown(tag)).collect()
    };
    let said =
        |result: Result<(), dax::Error>| result.err().map_or(String::new(), |e| e.to_string());
    let requests = known(&|frame| said(Request::decode(frame).map(drop)));
    let responses = known(&|frame| said(Response::decode(frame).map(drop)));
    let tags = |prefix: &str| files(prefix).iter().map(|(_, bytes)| bytes[12]).collect();
    assert_eq!(requests, tags("request-"));
    assert_eq!(responses, tags("response-"));
}
