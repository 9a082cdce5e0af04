//! Why a peer is not talked to, in an operator's words.

use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError, Error as TlsError};

use crate::error::{Error, ErrorKind};

/// What is wrong with a peer, or with us in its eyes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// Its certificate is none of ours.
    OtherCluster,
    /// Its certificate is for another host.
    OtherHost(String),
    /// Its certificate cannot be used.
    Certificate(String),
    /// It shows none.
    NoCertificate,
    /// It speaks plaintext, or something else.
    NoTls,
    /// It refuses this machine's certificate.
    Refused(String),
    /// Anything else.
    Other(String),
}

impl Rejection {
    /// What an error of a protected stream says about the peer; none if it only broke.
    pub fn of(error: &io::Error) -> Option<Rejection> {
        let error = error.get_ref()?.downcast_ref::<TlsError>()?;
        Some(Rejection::from(error))
    }

    /// An error of a handshake with the peer at `address`.
    pub(super) fn of_handshake(address: &str, error: io::Error) -> Error {
        if let Some(why) = Rejection::of(&error) {
            return Error::new(ErrorKind::Denied, format!("{address} {why}"));
        }
        if error.kind() == io::ErrorKind::UnexpectedEof {
            let message = format!(
                "{address} closed the connection where TLS begins: it may have been started without \
                 certificates"
            );
            return Error::new(ErrorKind::Denied, message);
        }
        let message = format!("the connection to {address} broke");
        Error::with_source(ErrorKind::Unavailable, message, error)
    }
}

impl From<&TlsError> for Rejection {
    fn from(error: &TlsError) -> Rejection {
        use CertificateError as Of;
        match error {
            TlsError::InvalidCertificate(Of::UnknownIssuer | Of::BadSignature) => {
                Rejection::OtherCluster
            }
            TlsError::InvalidCertificate(
                why @ (Of::NotValidForName | Of::NotValidForNameContext { .. }),
            ) => Rejection::OtherHost(why.to_string()),
            TlsError::InvalidCertificate(why) => Rejection::Certificate(why.to_string()),
            TlsError::NoCertificatesPresented => Rejection::NoCertificate,
            TlsError::InvalidMessage(_) => Rejection::NoTls,
            TlsError::AlertReceived(
                alert @ (AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateRequired
                | AlertDescription::DecryptError
                | AlertDescription::AccessDenied),
            ) => Rejection::Refused(format!("{alert:?}")),
            other => Rejection::Other(other.to_string()),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejection::OtherCluster => f.write_str(
                "shows the certificate of another cluster: every machine needs the same identity file, \
                 or certificates of the same authority",
            ),
            Rejection::OtherHost(why) => {
                write!(f, "shows a certificate of this cluster for another host: {why}")
            }
            Rejection::Certificate(why) => write!(f, "shows a certificate that cannot be used: {why}"),
            Rejection::NoCertificate => f.write_str("shows no certificate"),
            Rejection::NoTls => f.write_str(
                "does not speak TLS: it may have been started without certificates",
            ),
            Rejection::Refused(why) => write!(
                f,
                "refuses this machine's certificate ({why}): every machine needs the same identity file, or \
                 certificates of the same authority"
            ),
            Rejection::Other(why) => write!(f, "breaks the rules of TLS: {why}"),
        }
    }
}
