//! HTTPS for the interface: connections are handed over once they are protected.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use dax::tls::{ServerStream, WebTls, is_certified};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use super::patience::{Pace, Patient};

/// How long a client may take to agree on how to talk.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Clients that have not agreed yet, at most; more are turned away.
const HANDSHAKES_MAX: usize = 64;

/// What is known of who asks.
#[derive(Debug, Clone)]
pub(super) struct Client {
    /// It has shown a certificate of the configured authority.
    pub certified: bool,
    /// How long it may keep its connection.
    pub pace: Pace,
}

impl Connected<IncomingStream<'_, Patient<TcpListener>>> for Client {
    fn connect_info(stream: IncomingStream<'_, Patient<TcpListener>>) -> Client {
        Client {
            certified: false,
            pace: stream.io().pace(),
        }
    }
}

impl Connected<IncomingStream<'_, Patient<Https>>> for Client {
    fn connect_info(stream: IncomingStream<'_, Patient<Https>>) -> Client {
        Client {
            certified: is_certified(stream.io().io()),
            pace: stream.io().pace(),
        }
    }
}

/// A listener of protected connections.
pub(super) struct Https {
    protected: mpsc::Receiver<(ServerStream, SocketAddr)>,
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Https {
    pub fn new(listener: TcpListener, tls: WebTls) -> std::io::Result<Https> {
        let address = listener.local_addr()?;
        let (hand_over, protected) = mpsc::channel(1);
        Ok(Https {
            protected,
            address,
            accepting: tokio::spawn(accept(listener, tls, hand_over)),
        })
    }
}

impl Drop for Https {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl axum::serve::Listener for Https {
    type Io = ServerStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (ServerStream, SocketAddr) {
        match self.protected.recv().await {
            Some(connection) => connection,
            // The accepting task ends with us only.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(self.address)
    }
}

async fn accept(
    mut listener: TcpListener,
    tls: WebTls,
    hand_over: mpsc::Sender<(ServerStream, SocketAddr)>,
) {
    let mut handshakes = JoinSet::new();
    loop {
        // Waits and tries again by itself when there are too many open files.
        let (stream, peer) = axum::serve::Listener::accept(&mut listener).await;
        while handshakes.try_join_next().is_some() {}
        if handshakes.len() < HANDSHAKES_MAX {
            handshakes.spawn(protect(stream, peer, tls.clone(), hand_over.clone()));
        }
    }
}

async fn protect(
    stream: TcpStream,
    peer: SocketAddr,
    tls: WebTls,
    hand_over: mpsc::Sender<(ServerStream, SocketAddr)>,
) {
    let name = peer.to_string();
    let agreed = tokio::time::timeout(HANDSHAKE_WITHIN, tls.accept(stream, &name)).await;
    match agreed {
        // An error means that the interface is being closed.
        Ok(Ok(stream)) => drop(hand_over.send((stream, peer)).await),
        Ok(Err(error)) => tracing::debug!(%error, "no HTTPS"),
        Err(_) => tracing::debug!(%peer, "no HTTPS within {HANDSHAKE_WITHIN:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::Arc;

    use axum::Router;
    use axum::extract::ConnectInfo;
    use dax::tls::WebFiles;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsConnector;

    use super::*;

    type Authority = CertifiedIssuer<'static, KeyPair>;

    fn authority() -> Authority {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn sign(authority: &Authority, host: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([host.to_owned()]).unwrap();
        (params.signed_by(&key, authority).unwrap(), key)
    }

    /// An interface that says whether a client has shown a certificate.
    async fn serve(dir: &Path, authority: &Authority) -> SocketAddr {
        let (certificate, key) = sign(authority, "127.0.0.1");
        let both = dir.join("rest.pem");
        std::fs::write(&both, certificate.pem() + &key.serialize_pem()).unwrap();
        std::fs::set_permissions(&both, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(dir.join("ca.crt"), authority.pem()).unwrap();
        let tls = WebTls::load(WebFiles {
            certificate: both.clone(),
            key: both,
            client_authority: Some(dir.join("ca.crt")),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener = Https::new(listener, tls.unwrap()).unwrap();
        let address = listener.address;
        let listener = Patient::new(listener);
        let told = |ConnectInfo(client): ConnectInfo<Client>| async move {
            format!("certified: {}", client.certified)
        };
        let router = Router::new().fallback(told);
        let service = router.into_make_service_with_connect_info::<Client>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        address
    }

    /// Asks as a client that trusts `authority` and shows a certificate, or none.
    async fn ask(
        address: SocketAddr,
        authority: &Authority,
        shown: Option<(rcgen::Certificate, KeyPair)>,
    ) -> std::io::Result<String> {
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match shown {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from(certificate.der().to_vec())];
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let socket = TcpStream::connect(address).await?;
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(name, socket).await?;
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn a_certificate_is_asked_for_looked_at_and_not_needed() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = (authority(), authority());
        let address = serve(dir.path(), &ours).await;
        // Who says nothing, or nonsense, keeps nobody waiting.
        let _silent = TcpStream::connect(address).await.unwrap();
        let mut noise = TcpStream::connect(address).await.unwrap();
        noise.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();

        let none = ask(address, &ours, None).await.unwrap();
        assert!(none.ends_with("certified: false"), "{none}");
        let good = ask(address, &ours, Some(sign(&ours, "operator"))).await;
        assert!(good.unwrap().ends_with("certified: true"));
        let forged = ask(address, &ours, Some(sign(&theirs, "operator"))).await;
        assert!(forged.is_err(), "{forged:?}");
    }
}
