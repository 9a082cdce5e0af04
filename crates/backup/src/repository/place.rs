//! Where a repository is: a directory, or a bucket of S3 or of what speaks like it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Name;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, RetryConfig};

use crate::error::{Error, Result};

/// How long a request is tried again while the store is busy or cannot be reached.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// Opens a place: `s3://bucket/path`, or a directory.
pub(super) fn open(place: &str) -> Result<Arc<dyn ObjectStore>> {
    match place.split_once("://") {
        Some(("s3", rest)) => bucket(rest, AmazonS3Builder::from_env()),
        Some((scheme, _)) => Err(Error::Refused(format!(
            "{place}: there is no {scheme}: give a directory, or s3://bucket/path"
        ))),
        None => {
            let store = LocalFileSystem::new_with_prefix(Path::new(place))?;
            Ok(Arc::new(store.with_fsync(true)))
        }
    }
}

/// A bucket, with the credentials, region and endpoint of `builder`: those of the usual environment variables.
pub(super) fn bucket(rest: &str, builder: AmazonS3Builder) -> Result<Arc<dyn ObjectStore>> {
    let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        let said = "s3:// needs the name of a bucket: s3://bucket/path";
        return Err(Error::Refused(said.to_owned()));
    }
    // The provider of the whole program; it is no error that it is there.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store = builder
        .with_bucket_name(bucket)
        .with_retry(RetryConfig {
            retry_timeout: RETRY_FOR,
            ..RetryConfig::default()
        })
        .build()?;
    let path = path.trim_matches('/');
    Ok(match path.is_empty() {
        true => Arc::new(store),
        false => Arc::new(PrefixStore::new(
            store,
            Name::parse(path).map_err(object_store::Error::from)?,
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_none_is_refused() {
        for place in ["ftp://x/y", "s3://", "s3:///x", "/not/there"] {
            assert!(open(place).is_err(), "{place}");
        }
    }
}
