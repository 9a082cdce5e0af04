//! The messages of each protocol, byte by byte as its release sends them.

use std::path::Path;

use bytes::BytesMut;

use super::samples::{requests_of, responses_of};
use super::tests::on_the_wire;
use super::{MAX_FRAME_BYTES, PROTOCOL, Request, Response, read_frame};

/// The messages of each protocol since 4, which is release 0.1's, in the order of [`requests`] and [`responses`]. A later
/// release has to understand them, so the files are never written again: whoever changes a message adds one for the next
/// protocol.
#[test]
fn golden_messages_are_understood() {
    for protocol in 4..=PROTOCOL {
        golden_messages(protocol);
    }
}

fn golden_messages(protocol: u16) {
    let path = format!("src/wire/golden/protocol-{protocol}.txt");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let (requests, responses) = (requests_of(protocol), responses_of(protocol));
    let mut scratch = BytesMut::new();
    if std::env::var_os("UPDATE_GOLDEN").is_some() && !path.exists() {
        let hex = |kind: &str, bytes: Vec<u8>| {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{kind} {digits}\n")
        };
        let mut text = String::new();
        for request in &requests {
            text += &hex("request", on_the_wire(&request.encode(7, &mut scratch)));
        }
        for response in &responses {
            text += &hex("response", on_the_wire(&response.encode(7, &mut scratch)));
        }
        std::fs::write(&path, text).unwrap();
    }
    let (mut requests, mut responses) = (requests.into_iter(), responses.into_iter());
    for line in std::fs::read_to_string(&path).unwrap().lines() {
        let (kind, digits) = line.split_once(' ').unwrap();
        let bytes: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
            .collect();
        let frame = read_frame(&mut &bytes[..], MAX_FRAME_BYTES)
            .unwrap()
            .unwrap();
        match kind {
            "request" => assert_eq!(
                Request::decode(frame).unwrap(),
                (7, requests.next().unwrap())
            ),
            _ => assert_eq!(
                Response::decode(frame).unwrap(),
                (7, responses.next().unwrap())
            ),
        }
    }
}
