//! Messages by hand, in orders in which no driver of these tests sends them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::input::STARTUP;
use crate::site::Site;

/// A client that says what it is told to.
struct Hand {
    stream: TcpStream,
    /// The body of the message that was heard last.
    last: Vec<u8>,
}

impl Hand {
    fn connect(site: &Site) -> Hand {
        let mut stream = TcpStream::connect(site.address).expect("it connects");
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("a timeout");
        stream.write_all(STARTUP).expect("sends");
        let mut hand = Hand {
            stream,
            last: Vec::new(),
        };
        hand.hear(b'Z');
        hand
    }

    fn say(&mut self, messages: &[(u8, &[u8])]) {
        let mut bytes = Vec::new();
        for (tag, body) in messages {
            let len = u32::try_from(body.len() + 4).expect("short");
            bytes.push(*tag);
            bytes.extend_from_slice(&len.to_be_bytes());
            bytes.extend_from_slice(body);
        }
        self.stream.write_all(&bytes).expect("sends");
    }

    /// The kinds of messages up to the next of this kind.
    fn hear(&mut self, last: u8) -> String {
        let mut tags = String::new();
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head).expect("a message");
            let len = u32::from_be_bytes(head[1..].try_into().expect("four"));
            let mut body = vec![0; len as usize - 4];
            self.stream.read_exact(&mut body).expect("all of it");
            self.last = body;
            // Settings may be told at any time.
            if head[0] != b'S' {
                tags.push(char::from(head[0]));
            }
            if head[0] == last {
                return tags;
            }
        }
    }
}

/// What executes a statement in the extended protocol.
fn execute(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0\0\0"].concat()
}

/// A client learns that its data is wrong, and then says where it ends, as libpq does: what was kept for that end was
/// answered by nothing, and each answer after it was one too early.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_fails_in_the_middle_leaves_nothing_behind() {
    for mode in ["session", "transaction"] {
        let pool = format!("auth = \"trust\"\npool_mode = \"{mode}\"\npool_size = 1");
        let site = Site::start(&pool).await;
        site.primary.sql(&["CREATE TABLE t (a int)"]);
        tokio::task::block_in_place(|| {
            let mut hand = Hand::connect(&site);
            let copy = [b"\0".to_vec(), execute("COPY t FROM STDIN")].concat();
            let select = [b"\0".to_vec(), execute("SELECT 1")].concat();
            let bind: (u8, &[u8]) = (b'B', b"\0\0\0\0\0\0\0\0");
            let run: (u8, &[u8]) = (b'E', b"\0\0\0\0\0");
            for end in [(b'c', &b""[..]), (b'f', b"given up\0")] {
                hand.say(&[(b'P', &copy), bind, run, (b'S', b"")]);
                assert_eq!(hand.hear(b'G'), "12G");
                hand.say(&[(b'd', b"no number\n")]);
                // PostgreSQL looks at what it has when it has a buffer full of it, or the end.
                hand.say(&[(b'd', &b"no number\n".repeat(20_000))]);
                assert_eq!(hand.hear(b'E'), "E", "{mode}");
                hand.say(&[end, (b'S', b"")]);
                assert_eq!(hand.hear(b'Z'), "Z", "{mode}");
                for _ in 0..3 {
                    hand.say(&[(b'P', &select), bind, run, (b'S', b"")]);
                    assert_eq!(hand.hear(b'Z'), "12DCZ", "{mode}");
                    hand.say(&[(b'Q', b"SELECT 1\0")]);
                    assert_eq!(hand.hear(b'Z'), "TDCZ", "{mode}");
                }
            }
        });
        if mode == "transaction" {
            // Its connection to the server is free.
            let other = site.connect().await;
            other.batch_execute("SELECT 1").await.expect("it is served");
        }
        assert_eq!(site.primary.sql(&["SELECT count(*) FROM t"]), "0");
    }
}

/// The server is asked for what comes before a `COMMIT` in the same pipeline first; the client sees nothing of that.
// hazard: PROXY-6
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_is_answered_as_it_was_sent() {
    let site = Site::start("auth = \"trust\"").await;
    site.primary.sql(&["CREATE TABLE t (a int)"]);
    tokio::task::block_in_place(|| {
        let mut hand = Hand::connect(&site);
        let parse = |text: &str| [b"\0".to_vec(), execute(text)].concat();
        let insert = parse("INSERT INTO t VALUES (1) RETURNING a");
        let (begin, commit) = (parse("BEGIN"), parse("COMMIT"));
        let rest: [(u8, &[u8]); 3] = [
            (b'B', b"\0\0\0\0\0\0\0\0"),
            (b'D', b"P\0"),
            (b'E', b"\0\0\0\0\0"),
        ];
        for _ in 0..3 {
            for text in [&begin, &insert] {
                hand.say(&[&[(b'P', &text[..])], &rest[..], &[(b'S', b"")]].concat());
            }
            assert_eq!(hand.hear(b'Z') + &hand.hear(b'Z'), "12nCZ12TDCZ");
            let both = [(b'P', &insert[..])].into_iter().chain(rest);
            let both = both.chain([(b'P', &commit[..])]).chain(rest);
            hand.say(&both.chain([(b'S', &b""[..])]).collect::<Vec<_>>());
            assert_eq!(hand.hear(b'Z'), "12TDC12nCZ");
            // Two transactions in one.
            let all = [&begin, &insert, &commit, &begin, &insert, &commit];
            let all = all
                .into_iter()
                .flat_map(|text| [(b'P', &text[..])].into_iter().chain(rest));
            hand.say(&all.chain([(b'S', &b""[..])]).collect::<Vec<_>>());
            assert_eq!(hand.hear(b'Z'), "12nC12TDC12nC".repeat(2) + "Z");
        }
    });
    assert_eq!(site.primary.sql(&["SELECT count(*) FROM t"]), "12");
}

/// By itself it runs in a transaction of the proxy's, which its client does not see.
// hazard: PROXY-5
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_what_is_written_is_answered_as_any() {
    let site = Site::start("auth = \"trust\"").await;
    site.primary.sql(&["CREATE TABLE t (a int)"]);
    let text = "COPY (INSERT INTO t VALUES (1) RETURNING a) TO STDOUT";
    tokio::task::block_in_place(|| {
        let mut hand = Hand::connect(&site);
        hand.say(&[(b'Q', &[text.as_bytes(), b"\0"].concat())]);
        assert_eq!(hand.hear(b'Z'), "HdcCZ");
        let parse = [b"\0".to_vec(), execute(text)].concat();
        let bind: (u8, &[u8]) = (b'B', b"\0\0\0\0\0\0\0\0");
        let run: (u8, &[u8]) = (b'E', b"\0\0\0\0\0");
        hand.say(&[(b'P', &parse), bind, run, (b'S', b"")]);
        assert_eq!(hand.hear(b'Z'), "12HdcCZ");
        hand.say(&[(b'Q', b"SELECT 1\0")]);
        assert_eq!(hand.hear(b'Z'), "TDCZ");
    });
    assert_eq!(site.primary.sql(&["SELECT count(*) FROM t"]), "2");
}

/// What the server had skipped behind an error was taken to be there: every later write on that connection failed.
// hazard: PROXY-51
#[tokio::test(flavor = "multi_thread")]
async fn an_error_in_a_pipeline_spoils_no_connection() {
    for mode in ["session", "transaction"] {
        let pool = format!("auth = \"trust\"\npool_mode = \"{mode}\"\npool_size = 1");
        let site = Site::start(&pool).await;
        site.primary.sql(&[
            "CREATE TABLE t (a int PRIMARY KEY)",
            "INSERT INTO t VALUES (0)",
        ]);
        tokio::task::block_in_place(|| {
            let mut hand = Hand::connect(&site);
            let insert = [b"\0".to_vec(), execute("INSERT INTO t VALUES (0)")].concat();
            let select = [b"s\0".to_vec(), execute("SELECT 1")].concat();
            let bind: (u8, &[u8]) = (b'B', b"\0\0\0\0\0\0\0\0");
            let run: (u8, &[u8]) = (b'E', b"\0\0\0\0\0");
            hand.say(&[(b'P', &insert), bind, run, (b'H', b"")]);
            assert_eq!(hand.hear(b'E'), "12E", "{mode}");
            hand.say(&[(b'P', &select), (b'S', b"")]);
            assert_eq!(hand.hear(b'Z'), "Z", "{mode}");
            for value in 1..=3 {
                hand.say(&[(b'Q', format!("INSERT INTO t VALUES ({value})\0").as_bytes())]);
                assert_eq!(hand.hear(b'Z'), "CZ", "{mode}");
            }
            hand.say(&[
                (b'P', &select),
                (b'B', b"\0s\0\0\0\0\0\0\0"),
                run,
                (b'S', b""),
            ]);
            assert_eq!(hand.hear(b'Z'), "12DCZ", "{mode}");
        });
        assert_eq!(site.primary.sql(&["SELECT count(*) FROM t"]), "4");
    }
}

/// Has the primary's commits wait for nobody, or for its standby again.
fn wait_for_nobody(site: &Site, nobody: bool) {
    let (change, state) = match nobody {
        true => ("SET synchronous_standby_names = 'nobody'", "async"),
        false => ("RESET synchronous_standby_names", "sync"),
    };
    let change = format!("ALTER SYSTEM {change}");
    site.primary.sql(&[&change, "SELECT pg_reload_conf()"]);
    until(site, "SELECT sync_state FROM pg_stat_replication", state);
}

fn until(site: &Site, query: &str, answer: &str) {
    for _ in 0..1000 {
        if site.primary.sql(&[query]).trim() == answer {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{query} does not answer {answer}");
}

/// The client was told that the wait was cancelled, and waited for the end of its query; the server waited for data.
// hazard: ORDER-11
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_behind_a_commit_whose_wait_was_cancelled_gets_no_data() {
    const CANCEL: &str =
        "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    for mode in ["session", "transaction"] {
        let site = Site::start(&format!("auth = \"trust\"\npool_mode = \"{mode}\"")).await;
        site.primary.sql(&["CREATE TABLE t (a int)"]);
        let (commit, copy) = (execute("COMMIT"), execute("COPY t FROM STDIN"));
        let (commit, copy) = (
            [b"\0".to_vec(), commit].concat(),
            [b"\0".to_vec(), copy].concat(),
        );
        let bind: (u8, &[u8]) = (b'B', b"\0\0\0\0\0\0\0\0");
        let run: (u8, &[u8]) = (b'E', b"\0\0\0\0\0");
        let simple: &[(u8, &[u8])] = &[(b'Q', b"COMMIT; COPY t FROM STDIN\0")];
        let extended: &[(u8, &[u8])] = &[
            (b'P', &commit),
            bind,
            run,
            (b'P', &copy),
            bind,
            run,
            (b'S', b""),
        ];
        tokio::task::block_in_place(|| {
            let mut hand = Hand::connect(&site);
            for (messages, told) in [(simple, "NEZ"), (extended, "12NEZ")] {
                for text in [&b"BEGIN\0"[..], b"INSERT INTO t VALUES (1)\0"] {
                    hand.say(&[(b'Q', text)]);
                    assert_eq!(hand.hear(b'Z'), "CZ", "{mode}");
                }
                wait_for_nobody(&site, true);
                hand.say(messages);
                until(&site, CANCEL, "1");
                assert_eq!(hand.hear(b'Z'), told, "{mode}");
                wait_for_nobody(&site, false);
                hand.say(&[(b'Q', b"SELECT 1\0")]);
                assert_eq!(hand.hear(b'Z'), "TDCZ", "{mode}");
            }
        });
        assert_eq!(site.primary.sql(&["SELECT count(*) FROM t"]), "2");
    }
}

/// PostgreSQL answers without a `Sync` as soon as something fails, or a buffer is full: a client that waits for that waited for
/// ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_without_its_end_is_answered() {
    for mode in ["session", "transaction"] {
        let site = Site::start(&format!("auth = \"trust\"\npool_mode = \"{mode}\"")).await;
        tokio::task::block_in_place(|| {
            let mut hand = Hand::connect(&site);
            let bind: (u8, &[u8]) = (b'B', b"\0\0\0\0\0\0\0\0");
            let run: (u8, &[u8]) = (b'E', b"\0\0\0\0\0");
            let parse = |text: &str| [b"\0".to_vec(), execute(text)].concat();
            let one = parse("SELECT 1");
            let wrong = parse("SELECT 1 / (random() * 0)::int");
            hand.say(&[(b'P', &one), bind, run, (b'P', &wrong), bind, run]);
            assert_eq!(hand.hear(b'E'), "12DC12E", "{mode}");
            hand.say(&[(b'S', b"")]);
            assert_eq!(hand.hear(b'Z'), "Z", "{mode}");
            let long = parse("SELECT repeat('x', 100) FROM generate_series(1, 1000)");
            hand.say(&[(b'P', &long), bind, run]);
            assert_eq!(hand.hear(b'D'), "12D", "{mode}");
            hand.say(&[(b'S', b"")]);
            assert!(hand.hear(b'Z').ends_with("DCZ"), "{mode}");
        });
    }
}

/// What a statement has made of a table is another client's, or older than a change of it: whoever prepares it again asks for
/// what is there now. It was an error, or described the table as it had been.
#[tokio::test(flavor = "multi_thread")]
async fn prepared_statements_follow_changes_of_their_table() {
    let site = Site::start("auth = \"trust\"\npool_mode = \"transaction\"\npool_size = 1").await;
    site.primary.sql(&["CREATE TABLE t (a int)"]);
    tokio::task::block_in_place(|| {
        let mut hand = Hand::connect(&site);
        let prepare = |name: &str, text: &str| [name.as_bytes(), b"\0", &execute(text)].concat();
        let texts = ["SELECT * FROM t", "INSERT INTO t VALUES ($1)"];
        for changed in ["ADD b int", "ALTER a TYPE bool USING true, DROP b"] {
            for (name, text) in ["s", "i"].iter().zip(texts) {
                let parse = prepare(name, text);
                hand.say(&[
                    (b'C', format!("S{name}\0").as_bytes()),
                    (b'P', &parse),
                    (b'S', b""),
                ]);
                assert_eq!(hand.hear(b'Z'), "31Z");
            }
            site.primary.sql(&[&format!("ALTER TABLE t {changed}")]);
            let mut other = Hand::connect(&site);
            let parse = prepare("other", texts[0]);
            other.say(&[(b'P', &parse), (b'D', b"Sother\0"), (b'S', b"")]);
            assert_eq!(other.hear(b'Z'), "1tTZ", "{changed}");
        }
        // The type of the parameter is the new one's, so this is no number any more.
        let parse = prepare("i", texts[1]);
        hand.say(&[
            (b'C', b"Si\0"),
            (b'P', &parse),
            (b'D', b"Si\0"),
            (b'S', b""),
        ]);
        assert_eq!(hand.hear(b't'), "31t");
        assert_eq!(hand.last[2..], 16_u32.to_be_bytes(), "bool");
    });
}

/// Drivers prepare by the protocol and deallocate in SQL. Names of statements are another thing on a shared connection, so that was
/// an error, and the end of the transaction that was open.
#[tokio::test(flavor = "multi_thread")]
async fn sql_names_what_the_protocol_has_prepared() {
    for mode in ["session", "transaction"] {
        let pool = format!("auth = \"trust\"\npool_mode = \"{mode}\"\npool_size = 1");
        let site = Site::start(&pool).await;
        tokio::task::block_in_place(|| {
            let mut hand = Hand::connect(&site);
            let parse = [b"s\0".to_vec(), execute("SELECT 7")].concat();
            let bind: (u8, &[u8]) = (b'B', b"\0s\0\0\0\0\0\0\0");
            let run: (u8, &[u8]) = (b'E', b"\0\0\0\0\0");
            let sync: (u8, &[u8]) = (b'S', b"");
            for text in ["DEALLOCATE s", "DEALLOCATE ALL"] {
                hand.say(&[(b'P', &parse), bind, run, sync]);
                assert_eq!(hand.hear(b'Z'), "12DCZ", "{mode}");
                hand.say(&[(b'Q', b"BEGIN\0"), (b'Q', b"EXECUTE s\0")]);
                assert_eq!(hand.hear(b'Z') + &hand.hear(b'Z'), "CZTDCZ", "{mode}");
                let explain = [b"\0".to_vec(), execute("EXPLAIN EXECUTE s")].concat();
                let unnamed: (u8, &[u8]) = (b'B', b"\0\0\0\0\0\0\0\0");
                hand.say(&[(b'P', &explain), unnamed, (b'D', b"P\0"), run, sync]);
                assert_eq!(hand.hear(b'Z'), "12TDCZ", "{mode}");
                hand.say(&[(b'Q', format!("{text}\0").as_bytes())]);
                assert_eq!(hand.hear(b'Z'), "CZ", "{mode}");
                hand.say(&[(b'Q', b"COMMIT\0")]);
                assert_eq!(hand.hear(b'Z'), "CZ", "{mode}");
                hand.say(&[bind, run, sync]);
                assert_eq!(hand.hear(b'Z'), "EZ", "{mode}: it is gone");
            }
        });
        if mode == "transaction" {
            // Who has the connection next may give its own statement that name.
            let other = site.connect().await;
            let prepare = "PREPARE s AS SELECT 8; EXECUTE s";
            other.batch_execute(prepare).await.expect("it is free");
        }
    }
}

/// The id of a transaction was asked for in front of its `COMMIT`, also when it had failed: `COMMIT` ended with that error, and not as
/// the rollback that it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_pipeline_is_committed_as_a_rollback() {
    for mode in ["session", "transaction"] {
        let site = Site::start(&format!("auth = \"trust\"\npool_mode = \"{mode}\"")).await;
        site.primary.sql(&["CREATE TABLE t (a int)"]);
        tokio::task::block_in_place(|| {
            let mut hand = Hand::connect(&site);
            let bind: (u8, &[u8]) = (b'B', b"\0\0\0\0\0\0\0\0");
            let run: (u8, &[u8]) = (b'E', b"\0\0\0\0\0");
            let parse = |text: &str| [b"\0".to_vec(), execute(text)].concat();
            let (bad, insert) = (parse("SELEC 1"), parse("INSERT INTO t VALUES (1)"));
            hand.say(&[(b'Q', b"BEGIN\0")]);
            assert_eq!(hand.hear(b'Z'), "CZ", "{mode}");
            let pipeline = [(b'P', &bad[..]), bind, run, (b'P', &insert[..]), bind, run];
            hand.say(&[&pipeline[..], &[(b'S', b"")]].concat());
            assert_eq!(hand.hear(b'Z'), "EZ", "{mode}");
            // Preparing it is no error either.
            hand.say(&[(b'P', &parse("COMMIT")), (b'S', b"")]);
            assert_eq!(hand.hear(b'Z'), "1Z", "{mode}");
            hand.say(&[bind, run, (b'S', b"")]);
            assert_eq!(hand.hear(b'C'), "2C", "{mode}");
            assert_eq!(hand.last, b"ROLLBACK\0", "{mode}");
            assert_eq!(hand.hear(b'Z'), "Z", "{mode}");
        });
    }
}
