//! A session with the cluster, and what its errors mean to us.

use std::sync::Arc;
use std::time::Duration;

use dax::error::{Error, ErrorKind, Result, describe};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use scylla::client::PoolSize;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{DbError, ExecutionError, NewSessionError, PrepareError, RequestAttemptError};
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::speculative_execution::SimpleSpeculativeExecutionPolicy;
use scylla::statement::Consistency;

use crate::config::{Config, TlsFiles};

/// A request that takes longer is given up and made again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection on which nothing is heard for the sum of these is given up: its node may be stopped.
const KEEPALIVE_EVERY: Duration = Duration::from_millis(1000);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_millis(1500);
/// Connections to each node.
const CONNECTIONS: std::num::NonZeroUsize =
    std::num::NonZeroUsize::new(2).expect("two is not zero");

/// Connects to any of the contact points; waits while none answers.
///
/// # Errors
/// `Denied` for the user, `Invalid` for files or addresses that are invalid.
pub async fn connect(config: &Config) -> Result<Session> {
    let tls = config.tls.as_ref().map(client_config).transpose()?;
    let mut wait = Duration::from_millis(100);
    loop {
        let mut balancing = DefaultPolicy::builder()
            .token_aware(true)
            .permit_dc_failover(true);
        if let Some(data_centre) = &config.data_centre {
            balancing = balancing.prefer_datacenter(data_centre.clone());
        }
        let profile = ExecutionProfile::builder()
            .consistency(Consistency::Quorum)
            .request_timeout(Some(REQUEST_TIMEOUT))
            .load_balancing_policy(balancing.build())
            .speculative_execution_policy(Some(Arc::new(SimpleSpeculativeExecutionPolicy {
                max_retry_count: 2,
                retry_interval: config.speculate_after,
            })))
            .build();
        let mut builder = SessionBuilder::new()
            .known_nodes(&config.contact_points)
            .default_execution_profile_handle(profile.into_handle())
            .keyspaces_to_fetch([config.keyspace.as_str()])
            .pool_size(PoolSize::PerHost(CONNECTIONS))
            .keepalive_interval(KEEPALIVE_EVERY)
            .keepalive_timeout(KEEPALIVE_TIMEOUT)
            .tls_context(tls.clone());
        if let Some(credentials) = &config.credentials {
            builder = builder.user(&credentials.user, credentials.password.as_str());
        }
        match builder.build().await {
            Ok(session) => return Ok(session),
            Err(error) => match of_session(error) {
                error if error.kind() == ErrorKind::Unavailable => {
                    tracing::info!(why = describe(&error), "no node of Cassandra answers yet");
                }
                error => return Err(error),
            },
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(2));
    }
}

fn client_config(files: &TlsFiles) -> Result<Arc<ClientConfig>> {
    let unreadable = |path: &std::path::Path, error: rustls::pki_types::pem::Error| {
        let what = format!("cannot read {}", path.display());
        Error::with_source(ErrorKind::Invalid, what, error)
    };
    let certificates = |path: &std::path::Path| {
        let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        found.map_err(|e| unreadable(path, e))
    };
    let refused = |e: rustls::Error| {
        Error::with_source(
            ErrorKind::Invalid,
            "the certificates of [tls] cannot be used",
            e,
        )
    };
    let mut roots = RootCertStore::empty();
    let authority: Vec<CertificateDer<'static>> = certificates(&files.authority)?;
    for certificate in authority {
        roots.add(certificate).map_err(refused)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .with_root_certificates(roots);
    let config = match &files.own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let own = certificates(certificate)?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable(key, e))?;
            builder.with_client_auth_cert(own, key).map_err(refused)?
        }
    };
    Ok(Arc::new(config))
}

/// What a failed request means.
pub fn of_request(error: ExecutionError) -> Error {
    let kind = match &error {
        ExecutionError::LastAttemptError(attempt) => of_attempt(attempt),
        ExecutionError::BadQuery(_) => ErrorKind::Invalid,
        ExecutionError::PrepareError(error) => of_preparation_kind(error),
        _ => ErrorKind::Unavailable,
    };
    Error::with_source(kind, "Cassandra did not carry out a request", error)
}

/// What a statement that could not be prepared means.
pub fn of_preparation(error: PrepareError) -> Error {
    let kind = of_preparation_kind(&error);
    Error::with_source(kind, "Cassandra did not prepare a statement", error)
}

fn of_preparation_kind(error: &PrepareError) -> ErrorKind {
    match error {
        PrepareError::AllAttemptsFailed { first_attempt } => of_attempt(first_attempt),
        _ => ErrorKind::Unavailable,
    }
}

fn of_attempt(error: &RequestAttemptError) -> ErrorKind {
    match error {
        RequestAttemptError::DbError(error, _) => of_database(error),
        RequestAttemptError::SerializationError(_) => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    }
}

fn of_database(error: &DbError) -> ErrorKind {
    match error {
        DbError::SyntaxError | DbError::Invalid | DbError::ConfigError => ErrorKind::Invalid,
        DbError::AlreadyExists { .. } => ErrorKind::Conflict,
        DbError::AuthenticationError | DbError::Unauthorized => ErrorKind::Denied,
        DbError::ProtocolError => ErrorKind::Protocol,
        _ => ErrorKind::Unavailable,
    }
}

fn of_session(error: NewSessionError) -> Error {
    // The driver keeps what a node said about a user in the text only.
    let text = error.to_string();
    let kind = match &error {
        NewSessionError::EmptyKnownNodesList | NewSessionError::IllegalConfig(_) => {
            ErrorKind::Invalid
        }
        _ if text.contains("uthentication") || text.contains("credentials") => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    };
    Error::with_source(kind, "cannot open a session with Cassandra", error)
}

/// An answer that has not the columns that were asked for.
pub fn unexpected(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::with_source(
        ErrorKind::Protocol,
        "Cassandra answered something else",
        error,
    )
}

/// What a list whose first page does not come means.
pub fn of_page(error: scylla::errors::PagerExecutionError) -> Error {
    Error::with_source(
        ErrorKind::Unavailable,
        "Cassandra did not send a page",
        error,
    )
}
