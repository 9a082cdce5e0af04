//! Judges a server's certificate as libpq does.
//!
//! It differs from the library's own judgement where people's certificates do: one that is in the file of authorities
//! itself is believed, although it is an authority's and not a server's, as what `openssl req -x509` makes is. Nobody
//! gets further by that than with the key of a certificate that the operator has named.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme};

use super::super::identity::{certificates, provider, read_public, store};
use super::Proof;
use crate::error::Result;

#[derive(Debug)]
pub(super) struct Verifier {
    /// None: anybody is.
    believed: Option<Believed>,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
struct Believed {
    /// What the file holds.
    certificates: Vec<CertificateDer<'static>>,
    /// The same, as authorities.
    roots: Arc<RootCertStore>,
    /// The certificate must be for the host that was called.
    checks_host: bool,
}

impl Verifier {
    pub fn load(proof: &Proof) -> Result<Verifier> {
        let believed = match proof.root() {
            None => None,
            Some(root) => {
                let certificates = certificates(root, &read_public(root)?)?;
                Some(Believed {
                    roots: store(root, &certificates)?,
                    certificates,
                    checks_host: matches!(proof, Proof::Host(_)),
                })
            }
        };
        Ok(Verifier {
            believed,
            algorithms: provider().signature_verification_algorithms,
        })
    }

    /// Has the signature verified if it proves anything.
    fn verify(
        &self,
        signature: impl FnOnce(
            &WebPkiSupportedAlgorithms,
        ) -> std::result::Result<HandshakeSignatureValid, TlsError>,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        match self.believed {
            Some(_) => signature(&self.algorithms),
            // Who may show any certificate may as well show one of its own: its key proves nothing.
            None => Ok(HandshakeSignatureValid::assertion()),
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, TlsError> {
        let Some(believed) = &self.believed else {
            return Ok(ServerCertVerified::assertion());
        };
        let parsed = ParsedCertificate::try_from(end_entity)?;
        if !believed.certificates.contains(end_entity) {
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &believed.roots,
                intermediates,
                now,
                self.algorithms.all,
            )?;
        }
        if believed.checks_host {
            verify_server_name(&parsed, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        self.verify(|of| verify_tls12_signature(message, certificate, signed, of))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        self.verify(|of| verify_tls13_signature(message, certificate, signed, of))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
