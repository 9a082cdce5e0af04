//! A client proves who it is, whatever the member asks the manager's address for.

use std::time::Duration;

use bytes::BytesMut;
use mirror::driver::peer::Question;
use postgres_protocol::message::frontend::{
    password_message, query, sasl_initial_response, startup_message,
};

use crate::server::psql;
use crate::site::Site;
use crate::statements::Raw;

/// The member lets the manager in as some roles without asking for anything, and asks for a proof for all others.
const SOME: &str = "local all postgres,app,expired,bare,old,nologin,understudy_as_1 trust\nlocal all all scram-sha-256\n";
const ALL: &str = "local all all trust\n";

const ROLES: &str = "CREATE ROLE app LOGIN PASSWORD 'secret'; CREATE ROLE other LOGIN PASSWORD 'secret'; CREATE ROLE bare LOGIN; \
    CREATE ROLE expired LOGIN PASSWORD 'secret' VALID UNTIL '2020-01-01'; CREATE ROLE nologin PASSWORD 'secret'; \
    CREATE ROLE old LOGIN PASSWORD 'md5dc57844ce28b9f2f0c0eed4ddc94e9b6'; CREATE ROLE understudy_as_1 LOGIN PASSWORD 'unknown'";

fn site() -> Site {
    let mut site = Site::unmanaged("", |server| server.admit(SOME));
    site.asks_clients = true;
    for at in 0..2 {
        site.sides[at].server.sql(&[ROLES]);
        site.manage(at);
    }
    site.settle();
    site
}

/// Clients of libpq that are not let in.
const STRANGERS: &[&str] = &[
    "user=postgres",
    "user=postgres password=''",
    "user=postgres password=wrong",
    "user=postgres password=secret",
    "user=postgres options='-c role=app'",
    "user=app",
    "user=app password=wrong",
    "user=app password=wrong options='-c session_authorization=postgres'",
    "user=bare",
    "user=bare password=x",
    "user=expired password=secret",
    "user=old password=secret",
    "user=nologin password=secret",
    "user=understudy_as_1 password=wrong",
    "user=nobody password=x",
    "user=app password=secret replication=database",
    "user=app password=secret dbname=postgres",
];

/// A client without a password became `postgres`, because the member trusts its manager.
// hazard: MIRROR-63
#[test]
fn whoever_the_member_trusts_the_manager_with_proves_it_to_the_manager() {
    let site = site();
    let as_user = |more: &str| {
        let conninfo = site.conninfo().replace("user=postgres", "");
        psql(&format!("{conninfo} {more}"), "SELECT current_user")
    };
    for stranger in STRANGERS {
        let said = as_user(stranger).expect_err(stranger);
        assert!(!said.contains("timeout"), "{stranger}: {said}");
    }
    for user in ["app", "other"] {
        let told = as_user(&format!("user={user} password=secret"));
        assert_eq!(told.as_deref(), Ok(user));
    }
    // It is not asked again where it goes on.
    let before = site.who_serves();
    std::thread::scope(|scope| {
        let session = scope.spawn(|| {
            let conninfo = site.conninfo().replace("user=postgres", "user=app");
            psql(
                &format!("{conninfo} password=secret"),
                "SELECT pg_sleep(2); SELECT current_user",
            )
        });
        std::thread::sleep(Duration::from_millis(500));
        site.ask_primary(Question::Switchover);
        let told = session.join().expect("no panic");
        assert_eq!(told.as_deref(), Ok("app"));
    });
    site.wait("the other one is primary", || {
        site.primary() == Some(1 - before)
    });
}

/// The answers to messages after a client's first one.
fn answered(site: &Site, startup: &[(&str, &str)], then: &[&[u8]]) -> String {
    let mut out = BytesMut::new();
    startup_message(startup.iter().copied(), &mut out).expect("short");
    let mut raw = Raw::dial(site.client_address(site.who_serves()));
    raw.send(&out);
    let mut kinds = String::new();
    for message in then {
        let Some((kind, _)) = raw.next() else { break };
        kinds.push(kind);
        raw.send(message);
    }
    while let Some((kind, _)) = raw.next() {
        kinds.push(kind);
        if kind == 'Z' {
            break;
        }
    }
    kinds
}

/// Clients that do not say what is expected are not let in either.
#[test]
fn whatever_else_a_client_says_is_no_proof() {
    let site = site();
    let message = |put: &dyn Fn(&mut BytesMut)| {
        let mut out = BytesMut::new();
        put(&mut out);
        out
    };
    let selects = message(&|out| query("ALTER ROLE app SUPERUSER", out).expect("short"));
    let clear = message(&|out| password_message(b"secret", out).expect("short"));
    let empty = message(&|out| sasl_initial_response("SCRAM-SHA-256", b"", out).expect("short"));
    let begins = message(&|out| {
        let first = b"n,,n=,r=abcdefghijklmnopqrstuvwx";
        sasl_initial_response("SCRAM-SHA-256", first, out).expect("short");
    });
    let bound = message(&|out| {
        let first = b"p=tls-server-end-point,,n=,r=abcdefghijklmnopqrstuvwx";
        sasl_initial_response("SCRAM-SHA-256-PLUS", first, out).expect("short");
    });
    let other =
        message(&|out| sasl_initial_response("PLAIN", b"\0app\0secret", out).expect("short"));
    let proof = message(&|out| {
        let text =
            b"c=biws,r=abcdefghijklmnopqrstuvwx,p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        password_message(text, out).expect("short");
    });
    let app = [("user", "app"), ("database", "app")];
    let two = [("user", "app"), ("database", "app"), ("user", "postgres")];
    let long = format!("postgres{}", " ".repeat(80));
    let cut = [("user", long.as_str()), ("database", "app")];
    for (startup, then) in [
        (&app[..], vec![&selects[..]]),
        (&app, vec![&clear[..]]),
        (&app, vec![&empty[..]]),
        (&app, vec![&bound[..]]),
        (&app, vec![&other[..]]),
        (&app, vec![&begins[..], &proof[..]]),
        (&app, vec![&begins[..], &selects[..]]),
        (&two, vec![&begins[..], &proof[..]]),
        (&cut, vec![&begins[..], &proof[..]]),
    ] {
        let kinds = answered(&site, startup, &then);
        assert!(!kinds.contains('Z') && !kinds.contains('K'), "{kinds}");
    }
    for side in &site.sides {
        let more = "SELECT count(*) FROM pg_roles WHERE rolsuper AND rolname <> 'postgres'";
        assert_eq!(side.server.sql(&[more]), "0");
    }
}

/// Without certificates whoever is on the machine may say that he is the other manager, and has a client who has proved something.
#[test]
fn a_session_that_comes_from_elsewhere_proves_it_as_well() {
    use std::io::{Read, Write};
    let site = site();
    let mut startup = BytesMut::new();
    startup_message([("user", "postgres"), ("database", "app")], &mut startup).expect("short");
    // A visit: its kind, the first message without its length, and nothing else.
    let startup = &startup[4..];
    let mut packet = vec![5, u8::try_from(startup.len()).expect("short")];
    packet.extend_from_slice(startup);
    packet.extend_from_slice(&[0; 4]);
    let address = site.peer_address(site.who_serves());
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    let len = u32::try_from(packet.len()).expect("short").to_le_bytes();
    stream.write_all(&len).expect("it is read");
    stream.write_all(&packet).expect("it is read");
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).expect("it answers");
    // It is asked for a proof, and not told that it is in.
    assert_eq!((answer[0], answer[8]), (b'R', 10), "{answer:?}");
}

/// Whoever reached such a manager was let in as whoever they said they were.
#[test]
fn a_manager_does_not_start_before_a_member_that_asks_nobody() {
    let mut site = Site::unmanaged("", |_| {});
    site.asks_clients = true;
    let said = site.is_refused(0);
    assert!(said.contains("clients_need_no_proof"), "{said}");
    // Nor does it use one that stops asking.
    site.sides[0].server.admit(SOME);
    site.sides[0].server.sql(&["SELECT pg_reload_conf()"]);
    site.manage(0);
    site.wait("it serves", || site.primary() == Some(0));
    site.sides[0].server.stop("fast");
    site.sides[0].server.admit(ALL);
    site.sides[0].server.start();
    site.wait("it says why not", || {
        let status = site.status(0);
        let advice = status.and_then(|status| status.advice);
        advice.is_some_and(|advice| advice.contains("clients_need_no_proof"))
    });
    assert_eq!(site.primary(), None);
}
