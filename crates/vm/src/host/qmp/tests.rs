//! Against a peer that answers as the test says. (`tests/real` talks to QEMU itself.)

use std::io::{BufRead, BufReader};
use std::thread;

use super::*;

const SOON: Duration = Duration::from_millis(200);
const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": []}}"#;

/// A client whose peer sends `greeting`, and then for each line that it gets the next of `answers`. It keeps the
/// connection open until the client has closed it.
fn connect(greeting: &str, answers: &[&str]) -> Result<Qmp, QmpError> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let first = format!("{greeting}\n");
    let answers: Vec<String> = answers.iter().map(|&answer| answer.to_owned()).collect();
    thread::spawn(move || {
        let mut out = theirs.try_clone().unwrap();
        let _ = out.write_all(first.as_bytes());
        let mut answers = answers.into_iter();
        for _ in BufReader::new(theirs).lines().map_while(io::Result::ok) {
            if let Some(answer) = answers.next() {
                let _ = out.write_all(answer.as_bytes());
            }
        }
    });
    Qmp::over(ours, SOON)
}

const AGREED: &str = "{\"return\": {}, \"id\": 1}\n";

#[test]
fn an_answer_is_found_between_events_and_in_parts() {
    let second = "{\"event\": \"STOP\", \"timestamp\": {}}\n{\"return\": {\"status\": \"paused\"}, \"id\": 2}\n\
                  {\"event\": \"RESUME\", \"data\": {\"a\": 1}}\n{\"ret";
    let third = "urn\": 7, \"id\": 3}\n";
    let mut qmp = connect(GREETING, &[AGREED, second, third]).unwrap();
    let status = qmp.run("query-status", Value::Null, SOON).unwrap();
    assert_eq!(status["status"], "paused");
    assert_eq!(qmp.run("x", json!({"y": 1}), SOON).unwrap(), 7);
    let events = qmp.take_events();
    let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(names, ["STOP", "RESUME"]);
    assert_eq!(events[1].data["a"], 1);
    assert!(qmp.take_events().is_empty());
}

#[test]
fn a_refusal_leaves_the_connection_good() {
    let no = "{\"error\": {\"class\": \"GenericError\", \"desc\": \"not now\"}, \"id\": 2}\n";
    let yes = "{\"return\": {}, \"id\": 3}\n";
    let mut qmp = connect(GREETING, &[AGREED, no, yes]).unwrap();
    let error = qmp.run("cont", Value::Null, SOON).unwrap_err();
    assert!(
        matches!(&error, QmpError::Refused { command, reason } if command == "cont" && reason == "not now")
    );
    qmp.run("cont", Value::Null, SOON).unwrap();
}

#[test]
fn a_late_answer_is_not_taken_for_the_next_one() {
    let late = "{\"return\": \"late\", \"id\": 2}\n{\"return\": \"right\", \"id\": 3}\n";
    let mut qmp = connect(GREETING, &[AGREED, "", late]).unwrap();
    let error = qmp
        .run("stop", Value::Null, Duration::from_millis(30))
        .unwrap_err();
    assert!(matches!(error, QmpError::Timeout { .. }), "{error}");
    assert_eq!(qmp.run("cont", Value::Null, SOON).unwrap(), "right");
}

#[test]
fn events_without_end_do_not_fill_memory() {
    let many = "{\"event\": \"E\"}\n".repeat(EVENTS_KEPT + 10) + "{\"return\": {}, \"id\": 2}\n";
    let mut qmp = connect(GREETING, &[AGREED, &many]).unwrap();
    qmp.run("x", Value::Null, SOON).unwrap();
    assert_eq!(qmp.take_events().len(), EVENTS_KEPT);
}

#[test]
fn what_is_not_the_protocol_is_refused() {
    for greeting in ["hello", "[]", "{}", "\u{0}\u{1}", "{\"QMP\""] {
        let error = connect(greeting, &[]).unwrap_err();
        assert!(
            matches!(error, QmpError::Malformed(_)),
            "{greeting}: {error}"
        );
    }
    for answer in [
        "{}\n",
        "{\"return\": 1}\n",
        "{\"return\": 1, \"id\": \"2\"}\n",
        "{\"return\": 1, \"id\": 9}\n",
        "{\"id\": 2}\n",
        "{\"event\": 5}\n",
        "\n",
        "\u{fffd}\n",
    ] {
        let mut qmp = connect(GREETING, &[AGREED, answer]).unwrap();
        let error = qmp.run("stop", Value::Null, SOON).unwrap_err();
        assert!(matches!(error, QmpError::Malformed(_)), "{answer}: {error}");
    }
}

#[test]
fn a_line_without_end_is_given_up() {
    let endless = "x".repeat(LINE_BYTES + (32 << 10));
    let mut qmp = connect(GREETING, &[AGREED, &endless]).unwrap();
    let error = qmp
        .run("stop", Value::Null, Duration::from_secs(10))
        .unwrap_err();
    assert!(matches!(error, QmpError::Malformed(_)), "{error}");
}

#[test]
fn a_peer_that_says_nothing_or_goes_is_told_apart() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let error = Qmp::over(ours, Duration::from_millis(30)).unwrap_err();
    assert!(matches!(error, QmpError::Timeout { .. }), "{error}");
    drop(theirs);
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let error = Qmp::over(ours, SOON).unwrap_err();
    assert!(matches!(error, QmpError::Closed), "{error}");
    let error = Qmp::connect(Path::new("/nonexistent/qmp"), SOON).unwrap_err();
    assert!(matches!(&error, QmpError::System(e) if e.kind() == io::ErrorKind::NotFound));
}
