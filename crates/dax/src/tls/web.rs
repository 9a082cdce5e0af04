//! HTTPS: everybody may ask; who shows a certificate of the operator's authority may order.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::version::TLS13;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::files::WebFiles;
use super::identity::{
    certificates, private_key, provider, read_key, read_public, store, unusable,
};
use super::watched::Watched;
use super::{Rejection, ServerStream};
use crate::error::Result;

/// An HTTP interface's certificate. Clones share it.
#[derive(Clone)]
pub struct WebTls(Arc<Watched<ServerConfig>>);

impl fmt::Debug for WebTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WebTls").field(&self.0.paths()).finish()
    }
}

impl WebTls {
    /// Reads the files.
    ///
    /// # Errors
    /// `Invalid` if one cannot be read or is invalid, or others than its owner can open the key.
    pub fn load(files: WebFiles) -> Result<WebTls> {
        let watched = Watched::new(files.paths(), move || config(&files))?;
        Ok(WebTls(Arc::new(watched)))
    }

    /// Protects a connection from `peer`.
    ///
    /// # Errors
    /// `Denied` if it speaks something else, or shows a certificate that is not believed;
    /// `Unavailable` if the connection broke.
    pub async fn accept(&self, stream: TcpStream, peer: &str) -> Result<ServerStream> {
        let acceptor = TlsAcceptor::from(self.0.get());
        let accepting = acceptor.accept(BufReader::new(stream));
        accepting
            .await
            .map_err(|error| Rejection::of_handshake(peer, error))
    }
}

/// True if the other side has shown a certificate, which was verified then.
pub fn is_certified(stream: &ServerStream) -> bool {
    stream.get_ref().1.peer_certificates().is_some()
}

fn config(files: &WebFiles) -> Result<ServerConfig> {
    let unusable = |error| unusable(&files.certificate, error);
    let own = certificates(&files.certificate, &read_public(&files.certificate)?)?;
    let key = private_key(&files.key, &read_key(&files.key)?)?;
    let verifier = match &files.client_authority {
        None => Arc::new(NoClientAuth),
        Some(authority) => {
            let believed = certificates(authority, &read_public(authority)?)?;
            let roots = store(authority, &believed)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            let verifier = verifier.allow_unauthenticated().build();
            verifier.map_err(|error| super::identity::unusable(authority, error))?
        }
    };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(own, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
