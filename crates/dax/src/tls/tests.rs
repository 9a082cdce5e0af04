use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

struct Machines {
    dir: tempfile::TempDir,
}

impl Machines {
    fn new() -> Machines {
        let dir = tempfile::tempdir().unwrap();
        Machines { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A new cluster's identity.
    fn identity(&self, name: &str) -> Tls {
        new_identity(&self.path(name)).unwrap();
        load(&self.path(name)).unwrap()
    }
}

fn load(path: &Path) -> Result<Tls> {
    Tls::load(Files::Identity(path.to_owned()))
}

/// What two sides make of each other: an exchange of a word, or why there is none.
async fn meet(client: &Tls, server: &Tls) -> (Result<String>, Result<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let calling = async {
        let socket = TcpStream::connect(&address).await.unwrap();
        let mut stream = client.connect(socket, &address).await?;
        let mut word = String::new();
        let read = stream.read_to_string(&mut word).await;
        read.map_err(|error| Rejection::of_handshake(&address, error))?;
        Ok(word)
    };
    let answering = async {
        let (socket, peer) = listener.accept().await.unwrap();
        let mut stream = server.accept(socket, &peer.to_string()).await?;
        stream.write_all(b"hello").await.unwrap();
        stream.shutdown().await.unwrap();
        Ok(())
    };
    tokio::join!(calling, answering)
}

fn denied<T: std::fmt::Debug>(result: Result<T>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    error.to_string()
}

#[tokio::test]
async fn machines_with_the_same_identity_believe_each_other() {
    let machines = Machines::new();
    let first = machines.identity("cluster.pem");
    let second = load(&machines.path("cluster.pem")).unwrap();
    let (said, heard) = meet(&first, &second).await;
    assert_eq!(said.unwrap(), "hello");
    heard.unwrap();
}

#[tokio::test]
async fn another_clusters_identity_is_refused_by_both_sides() {
    let machines = Machines::new();
    let (ours, theirs) = (machines.identity("ours"), machines.identity("theirs"));
    let (client, server) = meet(&ours, &theirs).await;
    let client = denied(client);
    assert!(client.contains("another cluster"), "{client}");
    let server = denied(server);
    assert!(
        server.contains("refuses this machine's certificate"),
        "{server}"
    );
    // A client that believes the server is not believed for that.
    fs::write(
        machines.path("spy"),
        [
            fs::read(machines.path("theirs")).unwrap(),
            fs::read(machines.path("ours")).unwrap(),
        ]
        .concat(),
    )
    .unwrap();
    fs::set_permissions(machines.path("spy"), Permissions::from_mode(0o600)).unwrap();
    let spy = load(&machines.path("spy")).unwrap();
    let (client, server) = meet(&spy, &ours).await;
    let server = denied(server);
    assert!(server.contains("another cluster"), "{server}");
    let client = denied(client);
    assert!(
        client.contains("refuses this machine's certificate"),
        "{client}"
    );
}

#[tokio::test]
async fn an_identity_is_exchanged_without_a_moment_in_which_machines_refuse_each_other() {
    let machines = Machines::new();
    let (north, south) = (machines.path("north"), machines.path("south"));
    new_identity(&machines.path("old")).unwrap();
    new_identity(&machines.path("new")).unwrap();
    let read = |name: &str| fs::read_to_string(machines.path(name)).unwrap();
    let (old, new) = (read("old"), read("new"));
    let certificate = |pem: &str| pem.split("-----BEGIN PRIVATE").next().unwrap().to_owned();
    let steps = [
        old.clone(),
        format!("{old}{}", certificate(&new)),
        format!("{new}{}", certificate(&old)),
        new.clone(),
    ];
    let put = |path: &Path, text: &str| {
        let beside = path.with_extension("tmp");
        fs::write(&beside, text).unwrap();
        fs::set_permissions(&beside, Permissions::from_mode(0o600)).unwrap();
        fs::rename(beside, path).unwrap();
    };
    put(&north, &steps[0]);
    put(&south, &steps[0]);
    let (n, s) = (load(&north).unwrap(), load(&south).unwrap());
    for step in &steps {
        // One machine after the other; neither is started anew.
        for path in [&north, &south] {
            put(path, step);
            assert_eq!(meet(&n, &s).await.0.unwrap(), "hello");
            assert_eq!(meet(&s, &n).await.0.unwrap(), "hello");
        }
    }
    let before = machines.path("before");
    put(&before, &old);
    denied(meet(&load(&before).unwrap(), &n).await.1);
}

#[tokio::test]
async fn a_file_that_makes_no_sense_any_more_changes_nothing() {
    let machines = Machines::new();
    let tls = machines.identity("cluster.pem");
    let path = machines.path("cluster.pem");
    for (text, mode) in [("half a certif", 0o600), ("", 0o600)] {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        assert!(load(&path).is_err());
        assert_eq!(meet(&tls, &tls).await.0.unwrap(), "hello");
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(meet(&tls, &tls).await.0.unwrap(), "hello");
}

#[tokio::test]
async fn plaintext_is_named_as_such_on_either_side() {
    let machines = Machines::new();
    let tls = machines.identity("cluster.pem");
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 64]] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut loud = TcpStream::connect(address).await.unwrap();
        loud.write_all(noise).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let why = denied(tls.accept(socket, "somebody").await);
        assert!(why.contains("somebody does not speak TLS"), "{why}");

        let (calling, mut called) = {
            let calling = TcpStream::connect(address);
            let (calling, called) = tokio::join!(calling, listener.accept());
            (calling.unwrap(), called.unwrap().0)
        };
        called.write_all(noise).await.unwrap();
        let why = denied(tls.connect(calling, &address.to_string()).await);
        assert!(why.contains("does not speak TLS"), "{why}");
    }
}

/// Whatever was recorded of a connection is of no use for another one.
#[tokio::test]
async fn a_recorded_connection_cannot_be_replayed() {
    let machines = Machines::new();
    let tls = machines.identity("cluster.pem");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // A listener between both writes down what the client says.
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let through = between.local_addr().unwrap().to_string();
    let relay = async {
        let (from_client, _) = between.accept().await.unwrap();
        let to_server = TcpStream::connect(address).await.unwrap();
        let (mut client_read, mut client_write) = from_client.into_split();
        let (mut server_read, mut server_write) = to_server.into_split();
        let record = async {
            let mut recorded = Vec::new();
            let mut chunk = [0; 4096];
            loop {
                let n = client_read.read(&mut chunk).await.unwrap_or(0);
                if n == 0 {
                    return recorded;
                }
                recorded.extend_from_slice(&chunk[..n]);
                server_write.write_all(&chunk[..n]).await.unwrap();
            }
        };
        let back = tokio::io::copy(&mut server_read, &mut client_write);
        tokio::select! { recorded = record => recorded, _ = back => panic!("the server left") }
    };
    let client = async {
        let socket = TcpStream::connect(&through).await.unwrap();
        let mut stream = tls.connect(socket, &through).await.unwrap();
        stream.write_all(b"fail over!").await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.unwrap();
    };
    let server = async {
        let (socket, _) = listener.accept().await.unwrap();
        let mut stream = tls.accept(socket, "client").await.unwrap();
        let mut order = [0; 10];
        stream.read_exact(&mut order).await.unwrap();
        stream.write_all(b"done").await.unwrap();
        // Until the client has left.
        let _ = stream.read(&mut order).await;
    };
    let (recorded, (), ()) = tokio::join!(relay, client, server);
    assert!(!recorded.windows(10).any(|w| w == b"fail over!"));

    let mut replay = TcpStream::connect(address).await.unwrap();
    replay.write_all(&recorded).await.unwrap();
    let (socket, _) = listener.accept().await.unwrap();
    let why = denied(tls.accept(socket, "replay").await);
    assert!(why.contains("replay breaks the rules"), "{why}");
}

#[test]
fn a_key_that_others_can_open_is_refused_and_never_shown() {
    let machines = Machines::new();
    let tls = machines.identity("cluster.pem");
    let path = machines.path("cluster.pem");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!format!("{tls:?}").contains("PRIVATE"));
    for mode in [0o640, 0o604, 0o660] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let error = load(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
    assert_eq!(new_identity(&path).unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn files_that_are_no_identity_are_named() {
    let machines = Machines::new();
    let path = machines.path("x.pem");
    let missing = load(&path).unwrap_err().to_string();
    assert!(missing.contains("x.pem"), "{missing}");
    new_identity(&machines.path("good")).unwrap();
    let good = fs::read_to_string(machines.path("good")).unwrap();
    let key_at = good.find("-----BEGIN PRIVATE").unwrap();
    for (text, says) in [
        ("nothing", "holds no certificate"),
        (&good[key_at..], "holds no certificate"),
        (&good[..key_at], "holds no private key"),
    ] {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("x.pem"), "{error}");
    }
}

/// An operator's authority, and what it signs.
struct Authority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl Authority {
    fn new(machines: &Machines, name: &str) -> Authority {
        let mut params = rcgen::CertificateParams::new([]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let name_of = &mut params.distinguished_name;
        name_of.push(rcgen::DnType::OrganizationName, name);
        let key = rcgen::KeyPair::generate().unwrap();
        let issuer = rcgen::CertifiedIssuer::self_signed(params, key).unwrap();
        fs::write(machines.path(name), issuer.pem()).unwrap();
        Authority(issuer)
    }

    fn sign(&self, machines: &Machines, name: &str, host: &str, authority: &str) -> Files {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new([host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let files = Files::Authority {
            certificate: machines.path(&format!("{name}.crt")),
            key: machines.path(&format!("{name}.key")),
            authority: machines.path(authority),
        };
        fs::write(machines.path(&format!("{name}.crt")), certificate.pem()).unwrap();
        let path = machines.path(&format!("{name}.key"));
        fs::write(&path, key.serialize_pem()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        files
    }
}

#[tokio::test]
async fn certificates_of_an_authority_are_for_their_hosts() {
    let machines = Machines::new();
    let authority = Authority::new(&machines, "authority");
    let here = Tls::load(authority.sign(&machines, "here", "127.0.0.1", "authority")).unwrap();
    let there = Tls::load(authority.sign(&machines, "there", "db2.example", "authority")).unwrap();
    assert_eq!(meet(&there, &here).await.0.unwrap(), "hello");
    let why = denied(meet(&here, &there).await.0);
    assert!(why.contains("for another host"), "{why}");
    let foreign = Authority::new(&machines, "foreign");
    let foreign = Tls::load(foreign.sign(&machines, "f", "127.0.0.1", "authority")).unwrap();
    let why = denied(meet(&foreign, &here).await.1);
    assert!(why.contains("another cluster"), "{why}");
    let readable = machines.path("here.key");
    fs::set_permissions(&readable, Permissions::from_mode(0o644)).unwrap();
    let files = Files::Authority {
        certificate: machines.path("here.crt"),
        key: readable,
        authority: machines.path("authority"),
    };
    let error = Tls::load(files).unwrap_err().to_string();
    assert!(error.contains("chmod 600"), "{error}");
}

#[test]
fn a_broken_stream_is_no_matter_of_trust() {
    let broken = io::Error::from(io::ErrorKind::ConnectionReset);
    assert_eq!(Rejection::of(&broken), None);
    let error = Rejection::of_handshake("a:1", broken);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[test]
fn hosts_of_addresses() {
    assert_eq!(host("db1.example:7101"), "db1.example");
    assert_eq!(host("[::1]:7101"), "::1");
}
