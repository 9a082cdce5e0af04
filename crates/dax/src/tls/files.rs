//! The files that certificates and keys are in, all in PEM form.

use std::path::PathBuf;

/// Who belongs to a cluster, and how this machine shows that it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Files {
    /// The cluster's identity: a certificate, its key, and further certificates to accept. Only its
    /// owner may open it.
    Identity(PathBuf),
    /// An authority of the operator's own.
    Authority {
        /// This machine's certificate, and those between it and the authority's.
        certificate: PathBuf,
        /// Its key. Only its owner may open it.
        key: PathBuf,
        /// The certificates whose holders say who belongs to the cluster.
        authority: PathBuf,
    },
}

/// What an HTTP interface shows to anybody who asks, and whose certificates it looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebFiles {
    /// This machine's certificate, and those between it and an authority's that clients know.
    pub certificate: PathBuf,
    /// Its key. Only its owner may open it.
    pub key: PathBuf,
    /// The certificates whose holders say whom to obey.
    pub client_authority: Option<PathBuf>,
}

impl Files {
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        match self {
            Files::Identity(path) => vec![path.clone()],
            Files::Authority {
                certificate,
                key,
                authority,
            } => vec![certificate.clone(), key.clone(), authority.clone()],
        }
    }
}

impl WebFiles {
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let paths = [Some(&self.certificate), Some(&self.key)];
        let paths = paths.into_iter().chain([self.client_authority.as_ref()]);
        paths.flatten().cloned().collect()
    }
}
