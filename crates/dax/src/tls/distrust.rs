//! Why a peer is not talked to, in an operator's words.

use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError, Error as TlsError};

use crate::error::{Error, ErrorKind};

/// What is wrong with a peer, or with us in its eyes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Distrust {
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
    /// It refuses our certificate.
    Refused(String),
    /// Anything else.
    Other(String),
}

impl Distrust {
    /// What an error of a protected stream says about the peer; none if it only broke.
    pub fn of(error: &io::Error) -> Option<Distrust> {
        let error = error.get_ref()?.downcast_ref::<TlsError>()?;
        Some(Distrust::from(error))
    }

    /// An error of a handshake with the peer at `address`.
    pub(super) fn of_handshake(address: &str, error: io::Error) -> Error {
        if let Some(why) = Distrust::of(&error) {
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

impl From<&TlsError> for Distrust {
    fn from(error: &TlsError) -> Distrust {
        use CertificateError as Of;
        match error {
            TlsError::InvalidCertificate(Of::UnknownIssuer | Of::BadSignature) => {
                Distrust::OtherCluster
            }
            TlsError::InvalidCertificate(
                why @ (Of::NotValidForName | Of::NotValidForNameContext { .. }),
            ) => Distrust::OtherHost(why.to_string()),
            TlsError::InvalidCertificate(why) => Distrust::Certificate(why.to_string()),
            TlsError::NoCertificatesPresented => Distrust::NoCertificate,
            TlsError::InvalidMessage(_) => Distrust::NoTls,
            TlsError::AlertReceived(
                alert @ (AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateRequired
                | AlertDescription::DecryptError
                | AlertDescription::AccessDenied),
            ) => Distrust::Refused(format!("{alert:?}")),
            other => Distrust::Other(other.to_string()),
        }
    }
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distrust::OtherCluster => f.write_str(
                "shows the certificate of another cluster: every machine needs the same identity file, \
                 or certificates of the same authority",
            ),
            Distrust::OtherHost(why) => {
                write!(f, "shows a certificate of this cluster for another host: {why}")
            }
            Distrust::Certificate(why) => write!(f, "shows a certificate that cannot be used: {why}"),
            Distrust::NoCertificate => f.write_str("shows no certificate"),
            Distrust::NoTls => f.write_str(
                "does not speak TLS: it may have been started without certificates",
            ),
            Distrust::Refused(why) => write!(
                f,
                "refuses our certificate ({why}): every machine needs the same identity file, or \
                 certificates of the same authority"
            ),
            Distrust::Other(why) => write!(f, "breaks the rules of TLS: {why}"),
        }
    }
}
