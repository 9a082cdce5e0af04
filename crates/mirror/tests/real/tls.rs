//! Encryption, between clients and a manager and between a manager and its member.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mirror::driver::peer::Question;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::server::psql;
use crate::site::Site;

/// Whoever comes over the network must be encrypted, and clients must prove who they are.
const ENCRYPTED_ONLY: &str = "local all all trust
hostssl all postgres 127.0.0.1/32 trust
hostssl all all 127.0.0.1/32 scram-sha-256
";

/// A file; `psql` runs as another user.
fn write(directory: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).expect("it can be written");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("ours");
    path
}

// hazard: MIRROR-56
#[test]
fn both_ways_are_encrypted_and_clients_bind_to_the_manager() {
    let mut params = CertificateParams::new([]).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(params, key).expect("a certificate");
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
    // OpenSSL takes a certificate for its own authority's that has the same name.
    params
        .distinguished_name
        .push(DnType::CommonName, "manager");
    let certificate = params.signed_by(&key, &authority).expect("a certificate");
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("ours");
    let root = write(directory.path(), "root.crt", &authority.pem(), 0o644);
    let shown = write(directory.path(), "own.crt", &certificate.pem(), 0o644);
    let own_key = write(directory.path(), "own.key", &key.serialize_pem(), 0o600);
    let more = format!(
        "[tls]\ncertificate = '{}'\nkey = '{}'\nrequire = true\n[member_tls]\nmode = 'verify-full'\nroot = '{}'",
        shown.display(),
        own_key.display(),
        root.display()
    );
    let site = Site::start_with(&more, |server| {
        server.listen();
        server.certify(&certificate.pem(), &key.serialize_pem());
        server.configure("ssl = on");
        server.admit(ENCRYPTED_ONLY);
    });
    let as_user = |more: &str| format!("{} sslrootcert={} {more}", site.conninfo(), root.display());
    let admin = as_user("sslmode=verify-full");
    for text in [
        "CREATE ROLE app LOGIN PASSWORD 'secret'",
        "CREATE TABLE t (a int PRIMARY KEY)",
        "GRANT ALL ON t TO app",
    ] {
        psql(&admin, text).expect("it is made");
    }
    let app = |more: &str| {
        let conninfo = as_user(more).replace("user=postgres", "user=app");
        format!("{conninfo} password=secret")
    };
    let bound = app("sslmode=verify-full channel_binding=require");
    psql(&bound, "INSERT INTO t VALUES (1)")
        .expect("its proof is bound to the manager's certificate");
    let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(
        psql(&bound, encrypted).as_deref(),
        Ok("t"),
        "to the member as well"
    );
    let plain = psql(&app("sslmode=disable"), "SELECT 1").expect_err("it is refused");
    assert!(plain.contains("encrypted connections only"), "{plain}");
    let wrong = psql(&bound.replace("=secret", "=wrong"), "SELECT 1").expect_err("refused");
    assert!(wrong.contains("password authentication failed"), "{wrong}");
    // One session, in the middle of which the other manager becomes primary.
    let before = site.who_serves();
    std::thread::scope(|scope| {
        let slow = ["SELECT pg_sleep(2)", "INSERT INTO t VALUES (2)", encrypted];
        let session = scope.spawn(move || one_session(&bound, &slow));
        std::thread::sleep(std::time::Duration::from_millis(500));
        site.ask_primary(Question::Switchover);
        let said = session.join().expect("no panic");
        assert!(said.ends_with('t'), "{said}");
    });
    site.wait("the other one is primary", || {
        site.primary() == Some(1 - before)
    });
    assert_eq!(psql(&admin, "SELECT count(*) FROM t").as_deref(), Ok("2"));
    site.must_be_equal();
}

/// One session of psql that executes these one after the other; what it prints.
fn one_session(conninfo: &str, texts: &[&str]) -> String {
    let mut command = std::process::Command::new("psql");
    command.args(["-XAtw", "-v", "ON_ERROR_STOP=1", "-d", conninfo]);
    for text in texts {
        command.args(["-c", text]);
    }
    let output = command.output().expect("psql");
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{errors}");
    said
}
