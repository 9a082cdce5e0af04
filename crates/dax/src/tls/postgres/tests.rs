use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Certificates in a directory.
struct Directory(tempfile::TempDir);

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Directory {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, certificate: &str, key: &KeyPair) -> PostgresServer {
        let path = self.path(&format!("{name}.key"));
        fs::write(&path, key.serialize_pem()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let certified = self.path(&format!("{name}.crt"));
        fs::write(&certified, certificate).unwrap();
        PostgresServer::load(certified, path).unwrap()
    }

    fn authority(&self, name: &str) -> Authority {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        fs::write(self.path(name), issuer.pem()).unwrap();
        Authority(issuer)
    }

    fn signed(&self, authority: &Authority, host: &str) -> PostgresServer {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &authority.0).unwrap();
        self.write(host, &certificate.pem(), &key)
    }

    /// What `openssl req -x509` makes: an authority's, for a host.
    fn self_signed(&self, host: &str) -> PostgresServer {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        self.write(&format!("own-{host}"), &certificate.pem(), &key)
    }
}

/// Meets at a port: what the client says of the server, and what the server binds to.
async fn meet(server: &PostgresServer, proof: Proof) -> (Result<Stream>, Option<Arc<[u8]>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = PostgresClient::load(proof).unwrap();
    let called = address.to_string();
    let calling = async {
        let stream = TcpStream::connect(address).await.unwrap();
        client.connect(stream, &called).await
    };
    let accepting = async {
        let (stream, peer) = listener.accept().await.unwrap();
        server.accept(stream, &peer.to_string()).await
    };
    let (connected, accepted) = tokio::join!(calling, accepting);
    (connected, accepted.ok().and_then(|one| one.endpoint))
}

fn why(refused: Result<Stream>) -> String {
    let error = refused.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    error.to_string()
}

#[tokio::test]
async fn a_server_proves_as_much_as_is_asked() {
    let dir = Directory(tempfile::tempdir().unwrap());
    let (authority, _) = (dir.authority("root"), dir.authority("foreign"));
    let here = dir.signed(&authority, "127.0.0.1");
    let there = dir.signed(&authority, "db.example");
    let root = || dir.path("root");
    meet(&here, Proof::Host(root())).await.0.unwrap();
    meet(&there, Proof::Authority(root())).await.0.unwrap();
    let other = why(meet(&there, Proof::Host(root())).await.0);
    assert!(other.contains("for another host"), "{other}");
    for proof in [Proof::Authority, Proof::Host] {
        let foreign = why(meet(&here, proof(dir.path("foreign"))).await.0);
        assert!(foreign.contains("from no authority in"), "{foreign}");
    }
    meet(&there, Proof::None).await.0.unwrap();
}

#[tokio::test]
async fn a_self_signed_certificate_is_its_own_authority() {
    let dir = Directory(tempfile::tempdir().unwrap());
    let server = dir.self_signed("127.0.0.1");
    let own = dir.path("own-127.0.0.1.crt");
    meet(&server, Proof::Host(own.clone())).await.0.unwrap();
    let other = dir.self_signed("db.example");
    let refused = why(meet(&other, Proof::Authority(own.clone())).await.0);
    assert!(
        refused.contains("an authority's own, and not in"),
        "{refused}"
    );
    let refused = why(meet(&other, Proof::Host(dir.path("own-db.example.crt")))
        .await
        .0);
    assert!(refused.contains("for another host"), "{refused}");
}

/// Both sides take it from the same certificate, and it changes with the certificate.
#[tokio::test]
async fn both_sides_know_what_to_bind_to() {
    let dir = Directory(tempfile::tempdir().unwrap());
    let authority = dir.authority("root");
    let server = dir.signed(&authority, "127.0.0.1");
    let (connected, bound) = meet(&server, Proof::None).await;
    let stream = connected.unwrap();
    let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone();
    assert_eq!(endpoint::of(&shown).as_deref(), bound.as_deref());
    let own = |path: &Path| certificates(path, &fs::read(path).unwrap()).unwrap();
    assert_eq!(own(&dir.path("127.0.0.1.crt"))[0], shown);
    let (_, other) = meet(&dir.signed(&authority, "localhost"), Proof::None).await;
    assert_ne!(other, bound);
}

#[tokio::test]
async fn plaintext_answers_are_told_apart_from_broken_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move { drop(listener.accept().await.unwrap()) });
    let client = PostgresClient::load(Proof::None).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    accepting.await.unwrap();
    let error = client.connect(stream, &address.to_string()).await;
    assert_eq!(
        error.map(|_| ()).unwrap_err().kind(),
        ErrorKind::Unavailable
    );
}
