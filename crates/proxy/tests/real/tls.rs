//! Encryption, on both sides of the proxy.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dax::tls::{PostgresClient, PostgresServer, Proof, Stream};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpSocket};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use crate::input::STARTUP;
use crate::server::{SLEEP, Server, psql};
use crate::site::Serving;

/// Asks for encryption.
pub const SSL_REQUEST: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x2f";
/// The end of an answer.
pub const READY: &[u8] = b"Z\0\0\0\x05I";
/// Whoever comes over the network must be encrypted.
const ENCRYPTED_ONLY: &str = "local all all trust
hostssl all all 127.0.0.1/32 trust
hostssl replication all 127.0.0.1/32 trust
";

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new([]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// A certificate for `host`, and its key.
    fn sign(&self, host: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([host.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

/// A file that only its owner can open, as keys must be.
fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).expect("it can be written");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("ours");
    path
}

/// A server that listens, and a place for the proxies in front of it.
struct Place {
    server: Server,
    directory: tempfile::TempDir,
}

impl Place {
    /// With what the server shows; without, it does not encrypt.
    fn new(shows: Option<&(String, String)>) -> Place {
        let mut server = Server::init("fsync = off");
        server.listen();
        if let Some((certificate, key)) = shows {
            server.certify(certificate, key);
            server.configure("ssl = on");
            server.admit(ENCRYPTED_ONLY);
        }
        server.start();
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place { server, directory };
        let address = place.server.address();
        place.write(
            "cluster.toml",
            &format!("epoch = 1\nactive = \"{address}\"\n"),
        );
        place
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        write(self.directory.path(), name, text)
    }

    fn proxy(&self, configuration: &str) -> Serving {
        Serving::start(self.directory.path(), configuration)
    }

    /// One with `[server_tls]`.
    fn proxy_to_servers(&self, mode: &str, root: Option<&PathBuf>) -> Serving {
        let root = root.map_or_else(String::new, |root| format!("root = \"{}\"", root.display()));
        self.proxy(&format!(
            "auth = \"trust\"\n[server_tls]\nmode = \"{mode}\"\n{root}"
        ))
    }
}

/// A client's session, once the proxy has heard of the cluster.
async fn connect(serving: &Serving) -> Result<Client, tokio_postgres::Error> {
    let port = serving.address.port();
    let text = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    for _ in 0..1000 {
        match tokio_postgres::connect(&text, NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                return Ok(client);
            }
            // It does not listen yet.
            Err(error) if error.code().is_none() => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the proxy does not listen");
}

/// Why nobody gets through.
async fn refusal(serving: &Serving) -> String {
    let error = connect(serving).await.map(|_| ()).expect_err("refused");
    let error = error.as_db_error().expect("the proxy says why");
    let code = SqlState::SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION;
    assert_eq!(error.code(), &code, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("server_tls")));
    error.detail().expect("a reason").to_owned()
}

/// True if a session is encrypted between the proxy and the server.
async fn is_encrypted(client: &Client) -> bool {
    let text = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    client.query_one(text, &[]).await.expect("answers").get(0)
}

// hazard: PROXY-34
#[tokio::test(flavor = "multi_thread")]
async fn servers_prove_as_much_as_they_are_asked() {
    let authority = Authority::new();
    let place = Place::new(Some(&authority.sign("127.0.0.1")));
    let root = place.write("root.crt", &authority.0.pem());
    let foreign = place.write("foreign.crt", &Authority::new().0.pem());
    for (mode, root) in [
        ("prefer", None),
        ("require", None),
        ("verify-ca", Some(&root)),
        ("verify-full", Some(&root)),
    ] {
        let serving = place.proxy_to_servers(mode, root);
        let client = connect(&serving).await.expect(mode);
        assert!(is_encrypted(&client).await, "{mode}");
    }
    // As with libpq, `require` verifies if it has what to verify by.
    for mode in ["require", "verify-ca", "verify-full"] {
        let serving = place.proxy_to_servers(mode, Some(&foreign));
        let why = refusal(&serving).await;
        assert!(why.contains("from no authority in"), "{mode}: {why}");
        assert!(why.contains("foreign.crt"), "{mode}: {why}");
    }
    // The server refuses what is not encrypted.
    let plain = place.proxy_to_servers("disable", None);
    let refused = connect(&plain).await.map(|_| ()).expect_err("refused");
    let code = SqlState::INVALID_AUTHORIZATION_SPECIFICATION;
    assert_eq!(refused.code(), Some(&code));

    let (certificate, key) = authority.sign("db.example");
    place.server.certify(&certificate, &key);
    place.server.sql(&["SELECT pg_reload_conf()"]);
    let serving = place.proxy_to_servers("verify-ca", Some(&root));
    connect(&serving)
        .await
        .expect("any host of the authority's");
    let why = loop {
        let serving = place.proxy_to_servers("verify-full", Some(&root));
        // The postmaster has not read its new certificate yet.
        match connect(&serving).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(_) => break refusal(&serving).await,
        }
    };
    assert!(why.contains("for another host"), "{why}");
}

/// The server accepts nothing that is not encrypted: so whatever works is.
// hazard: PROXY-34
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_servers_are_encrypted() {
    let authority = Authority::new();
    let place = Place::new(Some(&authority.sign("127.0.0.1")));
    let root = place.write("root.crt", &authority.0.pem());
    let serving = place.proxy_to_servers("verify-full", Some(&root));
    let client = connect(&serving).await.expect("it is let in");
    let large = "SELECT sum(length(repeat(md5(i::text), 1000))) FROM generate_series(1, 1000) i";
    let row = client.query_one(large, &[]).await.expect("answers");
    assert_eq!(row.get::<_, i64>(0), 32_000_000);
    let rows = client
        .query(
            "SELECT repeat(md5(i::text), 3000) FROM generate_series(1, 100) i",
            &[],
        )
        .await
        .expect("answers");
    assert!(rows.iter().all(|row| row.get::<_, &str>(0).len() == 96_000));

    let token = client.cancel_token();
    let code = place
        .server
        .cancel(client.batch_execute(SLEEP), &token)
        .await;
    assert_eq!(code, SqlState::QUERY_CANCELED);

    let conninfo = format!(
        "host=127.0.0.1 port={} user=postgres dbname=postgres replication=database",
        serving.address.port()
    );
    let told = tokio::task::block_in_place(|| psql(&conninfo, "IDENTIFY_SYSTEM"));
    assert!(
        told.as_ref().is_ok_and(|told| told.contains("|1|")),
        "{told:?}"
    );

    // What the proxy looks up for itself, it does not look up in the open.
    let own = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
               WHERE client_addr IS NOT NULL AND NOT ssl";
    assert_eq!(place.server.sql(&[own]), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_encryption_is_used_only_if_that_will_do() {
    let place = Place::new(None);
    for mode in ["disable", "prefer"] {
        let serving = place.proxy_to_servers(mode, None);
        let client = connect(&serving).await.expect(mode);
        assert!(!is_encrypted(&client).await, "{mode}");
    }
    let why = refusal(&place.proxy_to_servers("require", None)).await;
    assert!(why.contains("does not offer TLS"), "{why}");
}

/// The files of a certificate that proves nothing, and of its key.
pub fn new_certificate(directory: &Path) -> (PathBuf, PathBuf) {
    let (certificate, key) = Authority::new().sign("127.0.0.1");
    let write = |name: &str, text: &str| write(directory, name, text);
    (write("proxy.crt", &certificate), write("proxy.key", &key))
}

/// A proxy that shows a certificate, and what its clients prove by passwords.
fn proxy_with_certificate(place: &Place, auth: &str) -> Serving {
    let (certificate, key) = new_certificate(place.directory.path());
    place.proxy(&format!(
        "auth = \"{auth}\"\n[tls]\ncertificate = \"{}\"\nkey = \"{}\"",
        certificate.display(),
        key.display()
    ))
}

/// Somebody between a client and the proxy, with a certificate of his own. The port.
async fn in_between(place: &Place, proxy: SocketAddr) -> u16 {
    let (certificate, key) = Authority::new().sign("127.0.0.1");
    let certificate = place.write("between.crt", &certificate);
    let shows = PostgresServer::load(certificate, place.write("between.key", &key));
    let shows = shows.expect("a certificate");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    tokio::spawn(async move {
        let (mut stream, peer) = listener.accept().await.expect("a victim");
        let mut request = [0; 8];
        stream.read_exact(&mut request).await.expect("it asks");
        assert_eq!(request, SSL_REQUEST);
        stream.write_all(b"S").await.expect("he agrees");
        let victim = shows.accept(stream, &peer.to_string()).await;
        let mut victim = victim.expect("it believes him").stream;
        let mut server = encrypted(proxy).await;
        // Either side ends it.
        let _ = copy_bidirectional(&mut victim, &mut server).await;
    });
    port
}

/// An encrypted connection to the proxy, before it is told anything.
pub async fn encrypted(proxy: SocketAddr) -> Stream {
    let socket = TcpSocket::new_v4().expect("a socket");
    encrypt(socket, proxy).await
}

/// An encrypted connection to a proxy.
pub async fn encrypt(socket: TcpSocket, proxy: SocketAddr) -> Stream {
    socket.set_nodelay(true).expect("it is ours");
    let mut stream = socket.connect(proxy).await.expect("it connects");
    stream.write_all(SSL_REQUEST).await.expect("sends");
    assert_eq!(stream.read_u8().await.expect("answers"), b'S');
    let client = PostgresClient::load(Proof::None).expect("nothing to load");
    let address = proxy.to_string();
    client.connect(stream, &address).await.expect("encrypts")
}

// hazard: PROXY-22
#[tokio::test(flavor = "multi_thread")]
async fn passwords_are_proved_over_the_channel_that_the_client_sees() {
    let place = Place::new(None);
    place.server.sql(&["CREATE ROLE r LOGIN PASSWORD 'right'"]);
    let serving = proxy_with_certificate(&place, "scram");
    serving.wait_until_served().await.expect("it listens");
    let through = |port: u16, more: &str| {
        let conninfo = format!(
            "host=127.0.0.1 port={port} user=r dbname=postgres password=right sslmode=require {more}"
        );
        tokio::task::block_in_place(|| psql(&conninfo, "SELECT current_user"))
    };
    let port = serving.address.port();
    for more in [
        "channel_binding=require",
        "channel_binding=disable",
        // Drivers that know no TLS 1.3 bind as well.
        "channel_binding=require ssl_max_protocol_version=TLSv1.2",
    ] {
        assert_eq!(through(port, more), Ok("r".to_owned()), "{more}");
    }
    // Without binding somebody in between goes unnoticed: that is what it is for.
    let between = in_between(&place, serving.address).await;
    assert_eq!(
        through(between, "channel_binding=disable"),
        Ok("r".to_owned())
    );
    let between = in_between(&place, serving.address).await;
    let noticed = through(between, "channel_binding=prefer").expect_err("refused");
    assert!(
        noticed.contains("channel binding check failed"),
        "{noticed}"
    );
}

/// libpq of PostgreSQL 17 and later names the protocol, and ends the connection if the server names another.
#[tokio::test(flavor = "multi_thread")]
async fn the_protocol_is_named_as_libpq_names_it() {
    let place = Place::new(None);
    let serving = proxy_with_certificate(&place, "trust");
    connect(&serving).await.expect("it listens");
    let stream = encrypted(serving.address).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"postgresql"[..]));
}

/// Reads an answer, of at least so many bytes.
async fn read_answer(stream: &mut Stream, least_bytes: usize) {
    let mut buffer = vec![0; 64 << 10];
    let (mut bytes, mut end) = (0, Vec::new());
    while bytes < least_bytes || !end.ends_with(READY) {
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut buffer));
        let read = read
            .await
            .unwrap_or_else(|_| panic!("it stops after {bytes} bytes"));
        let read = read.expect("reads");
        assert!(read > 0, "it ended after {bytes} bytes");
        bytes += read;
        end.extend_from_slice(&buffer[..read]);
        end.drain(..end.len().saturating_sub(READY.len()));
    }
}

/// What waits for the network at the end of an answer is sent when the network takes it. The network takes a few megabytes
/// before it makes its writer wait, so one of these answers ends just after that.
// hazard: PROXY-35
#[tokio::test(flavor = "multi_thread")]
async fn late_reader_of_an_encrypted_answer_gets_all_of_it() {
    let place = Place::new(None);
    let serving = proxy_with_certificate(&place, "trust");
    connect(&serving).await.expect("it listens");
    let socket = TcpSocket::new_v4().expect("a socket");
    // Or it would take more and more.
    socket.set_recv_buffer_size(64 << 10).expect("a small one");
    let mut stream = encrypt(socket, serving.address).await;
    stream.write_all(STARTUP).await.expect("sends");
    stream.flush().await.expect("sends");
    read_answer(&mut stream, 0).await;
    for thousands in (500..6000).step_by(40) {
        let text = format!("SELECT repeat('x', 1000) FROM generate_series(1, {thousands})\0");
        let len = u32::try_from(text.len() + 4).expect("short").to_be_bytes();
        let said = [b"Q", &len[..], text.as_bytes()].concat();
        stream.write_all(&said).await.expect("sends");
        stream.flush().await.expect("sends");
        tokio::time::sleep(Duration::from_millis(30)).await;
        read_answer(&mut stream, thousands * 1000).await;
    }
}
