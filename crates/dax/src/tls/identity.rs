//! Certificates and keys, from their files to what the TLS library wants.
//!
//! A cluster's identity is its own root: nobody but who has its key can make a certificate that it
//! signed, so the ordinary verification accepts exactly the holders of that key.

use std::path::Path;
use std::sync::Arc;

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use zeroize::Zeroizing;

use super::files::Files;
use crate::credentials::{Secret, read_file, write_new};
use crate::error::{Error, ErrorKind, Result};

/// The name in every cluster's certificate: machines come and go, and all show the same.
const CLUSTER: &str = "understudy";

/// No file with certificates is longer.
const MAX_BYTES: u64 = 1 << 20;

/// What both sides of connections need.
pub(super) struct Sides {
    pub server: Arc<ServerConfig>,
    pub client: Arc<ClientConfig>,
    /// The name that a server's certificate must have; none for the host that was called.
    pub name: Option<&'static str>,
}

/// Makes the identity of a new cluster, in a new file that only its owner can open.
///
/// # Errors
/// `Conflict` if the file exists, `Invalid` if it cannot be written.
pub fn new_identity(path: &Path) -> Result<()> {
    let failed = |error| {
        Error::with_source(
            ErrorKind::Unavailable,
            "no certificate could be made",
            error,
        )
    };
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::new([CLUSTER.to_owned()]).map_err(failed)?;
    // Every cluster's has another name, so that another's is told from a forged one.
    let number = Secret::random()?.to_hex();
    let name = format!("understudy cluster {}", &number[..16]);
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, name);
    let certificate = params.self_signed(&key).map_err(failed)?.pem();
    let key = Zeroizing::new(key.serialize_pem());
    let text = Zeroizing::new(format!("{certificate}{}", key.trim_end()));
    write_new(path, &text)
}

impl Sides {
    pub fn load(files: &Files) -> Result<Sides> {
        match files {
            Files::Identity(path) => {
                let pem = read_key(path)?;
                let certificates = certificates(path, &pem)?;
                // The first is ours; the others are accepted while one takes the place of another.
                let own = certificates[..1].to_vec();
                let key = private_key(path, &pem)?;
                Sides::new(path, own, key, &certificates, Some(CLUSTER))
            }
            Files::Authority {
                certificate,
                key,
                authority,
            } => {
                let own = certificates(certificate, &read_public(certificate)?)?;
                let private = private_key(key, &read_key(key)?)?;
                let roots = certificates(authority, &read_public(authority)?)?;
                Sides::new(certificate, own, private, &roots, None)
            }
        }
    }

    fn new(
        path: &Path,
        own: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        believed: &[CertificateDer<'static>],
        name: Option<&'static str>,
    ) -> Result<Sides> {
        let unusable = |error| unusable(path, error);
        let roots = store(path, believed)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider());
        let verifier = verifier
            .build()
            .map_err(|error| self::unusable(path, error))?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(own.clone(), key.clone_key())
            .map_err(unusable)?;
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(own, key)
            .map_err(unusable)?;
        // Connections are few and long: each shows its certificate anew.
        server.send_tls13_tickets = 0;
        client.resumption = Resumption::disabled();
        Ok(Sides {
            server: Arc::new(server),
            client: Arc::new(client),
            name,
        })
    }
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The certificates of a file, as what others' are measured by.
pub(super) fn store(
    path: &Path,
    believed: &[CertificateDer<'static>],
) -> Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    for certificate in believed {
        let added = roots.add(certificate.clone());
        added.map_err(|error| unusable(path, error))?;
    }
    Ok(Arc::new(roots))
}

pub(super) fn read_public(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        let message = format!("cannot read {}", path.display());
        Error::with_source(ErrorKind::Invalid, message, error)
    })
}

/// A file that only its owner can open.
pub(super) fn read_key(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    read_file(path, MAX_BYTES)
}

pub(super) fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(lacks(path, "certificate")),
    }
}

pub(super) fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| lacks(path, "private key"))
}

fn lacks(path: &Path, what: &str) -> Error {
    let message = format!("{} holds no {what} in PEM form", path.display());
    Error::new(ErrorKind::Invalid, message)
}

pub(super) fn unusable(
    path: &Path,
    error: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    let message = format!("{} cannot be used", path.display());
    Error::with_source(ErrorKind::Invalid, message, error)
}
