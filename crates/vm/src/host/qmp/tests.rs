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
fn messages_outside_the_protocol_are_refused() {
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

/// A peer that greets, and then says what it has got so far whenever it is asked, and what it is told to.
struct Peer {
    got: std::sync::mpsc::Receiver<Vec<u8>>,
    out: UnixStream,
}

impl Peer {
    fn new() -> (Qmp, Peer) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let out = theirs.try_clone().unwrap();
        let (sender, got) = std::sync::mpsc::channel();
        let mut peer = Peer { got, out };
        peer.say(GREETING);
        peer.say(AGREED.trim_end());
        thread::spawn(move || {
            let mut part = [0; 1000];
            while let Ok(count @ 1..) = theirs.read(&mut part) {
                let _ = sender.send(part[..count].to_vec());
            }
        });
        let qmp = Qmp::over(ours, SOON).unwrap();
        assert!(peer.got().contains("qmp_capabilities"));
        (qmp, peer)
    }

    fn say(&mut self, line: &str) {
        self.out.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn got(&self) -> String {
        String::from_utf8(self.got.recv_timeout(SOON).unwrap()).unwrap()
    }
}

#[test]
fn a_command_that_is_ready_lacks_nothing_but_its_end() {
    let (qmp, mut peer) = Peer::new();
    let mut ready = Ready::over(qmp, "save", json!({"to": "x"}), SOON).unwrap();
    for id in 2..4 {
        let begin = peer.got();
        assert!(serde_json::from_str::<Value>(&begin).is_err(), "{begin}");
        assert!(!ready.is_begun());
        ready.begin().unwrap();
        let end = peer.got();
        assert_eq!(end, "}\n");
        let whole: Value = serde_json::from_str(&(begin + &end)).unwrap();
        assert_eq!(
            whole,
            json!({"execute": "save", "arguments": {"to": "x"}, "id": id})
        );
        peer.say("{\"event\": \"STOP\"}");
        peer.say(&format!("{{\"return\": {id}, \"id\": {id}}}"));
        assert_eq!(ready.end().unwrap(), id);
        ready.prepare().unwrap();
        ready.prepare().unwrap();
    }
    // What was not begun is begun by whoever wants the answer.
    peer.got();
    peer.say("{\"error\": {\"desc\": \"not now\"}, \"id\": 4}");
    let error = ready.end().unwrap_err();
    assert!(matches!(error, QmpError::Refused { .. }), "{error}");
    assert_eq!(peer.got(), "}\n");
    let error = ready.end().unwrap_err();
    assert!(matches!(error, QmpError::Timeout { .. }), "{error}");
}

#[test]
fn events_are_read_without_asking_anything() {
    let (mut qmp, mut peer) = Peer::new();
    qmp.listen().unwrap();
    peer.say("{\"event\": \"STOP\"}");
    peer.out.write_all(b"{\"event\": ").unwrap();
    qmp.listen().unwrap();
    peer.say("\"RESUME\"}");
    qmp.listen().unwrap();
    let names: Vec<String> = qmp.take_events().into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["STOP", "RESUME"]);
    peer.say("{\"return\": {}, \"id\": 9}");
    assert!(matches!(qmp.listen().unwrap_err(), QmpError::Malformed(_)));
    peer.out.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(matches!(qmp.listen().unwrap_err(), QmpError::Closed));
}
