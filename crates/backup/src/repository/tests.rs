//! Promises of every kind of place, and errors of S3.

#[path = "../../tests/support/object_server.rs"]
mod object_server;

use object_store::aws::AmazonS3Builder;

use self::object_server::{ACCESS_KEY, ObjectServer, SECRET_KEY};
use super::*;

fn of_directory(directory: &std::path::Path, secret: Option<&Secret>) -> Repository {
    Repository::open(directory.to_str().unwrap(), secret).unwrap()
}

fn of_bucket(server: &ObjectServer, access_key: &str, secret_key: &str) -> Repository {
    let builder = AmazonS3Builder::new()
        .with_endpoint(format!("http://{}", server.address))
        .with_allow_http(true)
        .with_access_key_id(access_key)
        .with_secret_access_key(secret_key);
    Repository {
        store: place::bucket("backups/of/app", builder).unwrap(),
        place: "s3://backups/of/app".to_owned(),
        cipher: None,
        id: Arc::default(),
    }
}

fn cluster(system_identifier: u64, created_unix_ms: u64) -> Cluster {
    serde_json::from_value(serde_json::json!({
        "system_identifier": system_identifier, "postgres_major": 15, "wal_segment_bytes": 1 << 24,
        "page_bytes": 8192, "created_unix_ms": created_unix_ms,
    }))
    .unwrap()
}

/// Promises of every place.
async fn keeps_what_it_is_given(repository: &Repository) {
    assert_eq!(repository.owner().await.unwrap(), None);
    let mine = cluster(7, 1);
    repository.belong_to("app", &mine).await.unwrap();
    repository.belong_to("app", &mine).await.unwrap();
    for (volume, other) in [
        ("app", cluster(8, 1)),
        ("app", cluster(7, 2)),
        ("other", cluster(7, 1)),
    ] {
        let error = repository.belong_to(volume, &other).await.unwrap_err();
        assert!(matches!(error, Error::NotOurs(_)), "{error}");
    }
    let put = |text: &'static str| repository.put_object("log/x/1-2", Bytes::from(text));
    assert!(put("first").await.unwrap());
    put("second").await.unwrap();
    assert_eq!(repository.object("log/x/1-2").await.unwrap(), b"first");
    let missing = repository.object("log/x/2-3").await.unwrap_err();
    assert!(matches!(missing, Error::Missing(_)), "{missing}");
    repository.put_object("log/y", Bytes::new()).await.unwrap();
    assert_eq!(repository.names("log").await.unwrap(), ["x/1-2", "y"]);
    let contents = Bytes::from(vec![3; CHUNK_BYTES]);
    let id = repository.chunk_id(contents.clone()).await.unwrap();
    assert!(repository.put_chunk(id, contents.clone()).await.unwrap() > 0);
    assert_eq!(repository.chunk(id).await.unwrap(), contents);
    let names = vec!["log/y".to_owned(), "log/none".to_owned()];
    repository.remove_all(names).await.unwrap();
    repository.remove("log/none").await.unwrap();
    assert_eq!(repository.names("log").await.unwrap(), ["x/1-2"]);
}

// hazard: MOVE-3
#[tokio::test]
async fn a_directory_keeps_what_it_is_given() {
    let directory = tempfile::tempdir().unwrap();
    keeps_what_it_is_given(&of_directory(directory.path(), None)).await;
}

// hazard: BACKUP-11
#[tokio::test]
async fn an_encrypted_one_keeps_it_and_shows_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let secret = Secret::random().unwrap();
    let repository = of_directory(directory.path(), Some(&secret));
    keeps_what_it_is_given(&repository).await;
    let object = std::fs::read(directory.path().join("log/x/1-2")).unwrap();
    assert!(!object.windows(5).any(|part| part == b"first"));
    // An object under another one's name is no longer what it was.
    std::fs::copy(
        directory.path().join("log/x/1-2"),
        directory.path().join("log/z"),
    )
    .unwrap();
    let moved = repository.object("log/z").await.unwrap_err();
    assert!(matches!(moved, Error::Damaged { .. }), "{moved}");
    let other = Secret::random().unwrap();
    for wrong in [None, Some(&other)] {
        let error = of_directory(directory.path(), wrong).owner().await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("--key-file"), "{error}");
    }
}

/// Two databases had one key: a whole segment of the other one's log took the place of this one's.
#[tokio::test]
async fn an_object_of_another_repository_is_none_of_this_one() {
    let secret = Secret::random().unwrap();
    for secret in [None, Some(&secret)] {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mut repositories = Vec::new();
        for (number, directory) in directories.iter().enumerate() {
            let repository = of_directory(directory.path(), secret);
            let owner = cluster(number as u64, 1);
            repository.belong_to("app", &owner).await.unwrap();
            let log = Bytes::from(vec![number as u8; 100]);
            repository.put_object("log/x/1-2", log).await.unwrap();
            repositories.push(repository);
        }
        let object = |at: usize| directories[at].path().join("log/x/1-2");
        std::fs::copy(object(1), object(0)).unwrap();
        let read = repositories[0].object("log/x/1-2").await;
        assert!(matches!(read.unwrap_err(), Error::Damaged { .. }));
        let marker = |at: usize| directories[at].path().join("understudy.json");
        std::fs::copy(marker(1), marker(0)).unwrap();
        let exchanged = repositories[0].is_still_there().await;
        assert!(matches!(exchanged.unwrap_err(), Error::NotOurs(_)));
    }
}

#[tokio::test]
async fn repository_without_encryption_takes_no_key() {
    let directory = tempfile::tempdir().unwrap();
    let plain = of_directory(directory.path(), None);
    plain.belong_to("app", &cluster(7, 1)).await.unwrap();
    let secret = Secret::random().unwrap();
    let error = of_directory(directory.path(), Some(&secret)).owner().await;
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("give no --key-file")
    );
}

#[tokio::test]
async fn a_bucket_keeps_what_it_is_given() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("backups")).unwrap();
    let server = ObjectServer::start(directory.path()).await;
    keeps_what_it_is_given(&of_bucket(&server, ACCESS_KEY, SECRET_KEY)).await;
}

#[tokio::test]
async fn credentials_that_fail_and_buckets_that_are_not_there_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let server = ObjectServer::start(directory.path()).await;
    for (access, secret) in [(ACCESS_KEY, "wrong"), ("nobody", SECRET_KEY)] {
        let refused = of_bucket(&server, access, secret)
            .belong_to("app", &cluster(7, 1))
            .await;
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Store(_)), "{error}");
        assert!(!format!("{error:?}").contains(SECRET_KEY));
    }
    let none = of_bucket(&server, ACCESS_KEY, SECRET_KEY);
    let error = none.belong_to("app", &cluster(7, 1)).await.unwrap_err();
    assert!(matches!(error, Error::Store(_)), "{error}");
}
