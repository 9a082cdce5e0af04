//! Where clients come from: rules of who may, and the Unix socket.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::server::{SLEEP, psql};
use crate::site::Site;
use crate::tls::new_certificate;

/// A directory that PostgreSQL's own programs can use as well.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("ours");
    directory
}

fn write(directory: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, text).expect("it can be written");
    path
}

/// Runs psql as a client of the proxy.
fn ask(site: &Site, more: &str) -> Result<String, String> {
    let port = site.address.port();
    let conninfo = format!("host=127.0.0.1 port={port} {more}");
    tokio::task::block_in_place(|| psql(&conninfo, "SELECT current_user"))
}

const RULES: &str = "# who may come from where
host    all             postgres 127.0.0.0/8 trust
host    all             mallory  all         reject
hostssl postgres,desk   @staff   127.0.0.1   255.255.255.255  scram-sha-256
host    replication     ann      all         trust
local   all             postgres             peer
local   all             all                  scram-sha-256
";

#[tokio::test(flavor = "multi_thread")]
async fn rules_say_who_may_come_from_where() {
    let directory = directory();
    let path = write(&directory, "hba.conf", RULES);
    write(&directory, "staff", "ann bob\n");
    let (certificate, key) = new_certificate(directory.path());
    let site = Site::start(&format!(
        "auth_hba_file = \"{}\"\nquery_wait_timeout = \"5s\"\n[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n\
         [databases.desk]\ndbname = \"postgres\"",
        path.display(),
        certificate.display(),
        key.display()
    ))
    .await;
    site.primary.sql(&[
        "CREATE ROLE ann LOGIN PASSWORD 'right'",
        "CREATE ROLE eve LOGIN PASSWORD 'right'",
        "CREATE ROLE mallory LOGIN PASSWORD 'right'",
    ]);
    let refused = |more: &str, words: &[&str]| {
        let said = ask(&site, more).expect_err(more);
        for word in words {
            assert!(said.contains(word), "{more}: {said}");
        }
    };
    let asked = |more: &str| ask(&site, more);
    assert_eq!(
        asked("user=postgres dbname=postgres"),
        Ok("postgres".to_owned())
    );
    refused(
        "user=mallory dbname=postgres password=right sslmode=disable",
        &[
            "rejects host \"127.0.0.1\", user \"mallory\"",
            "no encryption",
        ],
    );
    for database in ["postgres", "desk"] {
        let ann = format!("user=ann dbname={database} password=right");
        assert_eq!(
            asked(&format!("{ann} sslmode=require")),
            Ok("ann".to_owned())
        );
        refused(
            &format!("{ann} sslmode=disable"),
            &[
                "no rule of auth_hba_file is for",
                "user \"ann\"",
                "no encryption",
            ],
        );
    }
    refused(
        "user=ann dbname=postgres password=wrong sslmode=require",
        &["password authentication failed"],
    );
    refused(
        "user=ann dbname=template1 password=right sslmode=require",
        &["database \"template1\", SSL encryption"],
    );
    refused("user=eve dbname=postgres password=right", &["user \"eve\""]);
    // What PostgreSQL takes for an ordinary session does not come by the rule for replication.
    refused(
        "user=ann dbname=template1 replication=of sslmode=disable",
        &["database \"template1\""],
    );

    // A mistake changes nothing, and is named; what is right counts at once.
    write(
        &directory,
        "hba.conf",
        &format!("{RULES}\nhost all eve nowhere trust\n"),
    );
    let operator = site.operate().await;
    let error = operator
        .simple_query("RELOAD")
        .await
        .expect_err("a mistake");
    let detail = error.as_db_error().and_then(|error| error.detail());
    let detail = detail.expect("it is named");
    assert!(detail.contains("hba.conf, line 9: \"nowhere\""), "{detail}");
    refused("user=eve dbname=postgres password=right", &["user \"eve\""]);
    write(
        &directory,
        "hba.conf",
        &format!("{RULES}\nhost all eve samehost,127.0.0.1/32 trust\n"),
    );
    operator
        .simple_query("RELOAD")
        .await
        .expect_err("a mistake");
    write(
        &directory,
        "hba.conf",
        &format!("{RULES}\nhost all eve ::1/128 reject\nhost all eve 127.0.0.1/32 trust\n"),
    );
    operator.simple_query("RELOAD").await.expect("all right");
    assert_eq!(asked("user=eve dbname=postgres"), Ok("eve".to_owned()));
}

async fn connect(directory: &Path, port: u16, more: &str) -> Result<Client, String> {
    let text = format!("host={} port={port} {more}", directory.display());
    let connected = tokio_postgres::connect(&text, NoTls).await;
    let (client, connection) = connected.map_err(|error| format!("{error:?}"))?;
    tokio::spawn(connection);
    Ok(client)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_come_over_a_unix_socket() {
    let directory = directory();
    let at = directory.path();
    let rules = write(&directory, "hba.conf", RULES);
    write(&directory, "staff", "ann");
    let (certificate, key) = new_certificate(at);
    let site = Site::start(&format!(
        "pool_mode = \"transaction\"\nunix_socket_dir = \"{}\"\nunix_socket_mode = \"0777\"\nauth_hba_file = \"{}\"\n\
         [tls]\ncertificate = \"{}\"\nkey = \"{}\"",
        at.display(),
        rules.display(),
        certificate.display(),
        key.display(),
    ))
    .await;
    site.primary
        .sql(&["CREATE ROLE ann LOGIN PASSWORD 'right'"]);
    let port = site.address.port();
    let ann = "user=ann dbname=postgres password=right";
    let client = connect(at, port, ann).await.expect("she has the password");
    let row = client.query_one("SELECT current_user::text", &[]).await;
    assert_eq!(row.expect("it answers").get::<_, &str>(0), "ann");
    let wrong = connect(at, port, "user=ann dbname=postgres password=wrong").await;
    assert!(wrong.is_err_and(|error| error.contains("password authentication failed")));

    let cancelled = client.batch_execute(SLEEP);
    let code = site.primary.cancel(cancelled, &client.cancel_token()).await;
    assert_eq!(code, SqlState::QUERY_CANCELED);
    client.batch_execute("SELECT 1").await.expect("it goes on");

    let rows = site.operate().await.simple_query("SHOW CLIENTS").await;
    let rows = rows.expect("shows");
    let is_ann = |row: &SimpleQueryMessage| matches!(row, SimpleQueryMessage::Row(row) if row.get("user") == Some("ann") && row.get("addr") == Some("unix"));
    assert!(rows.iter().any(is_ann), "{rows:?}");

    // psql is run by the user postgres, and libpq asks for encryption first if it may.
    let own = nix::unistd::geteuid().is_root();
    let local = |user: &str| {
        let conninfo = format!(
            "host={} port={port} user={user} dbname=postgres sslmode=prefer",
            at.display()
        );
        tokio::task::block_in_place(|| psql(&conninfo, "SELECT current_user"))
    };
    if own {
        assert_eq!(local("postgres"), Ok("postgres".to_owned()));
        let root = connect(at, port, "user=postgres dbname=postgres").await;
        assert!(root.is_err_and(|error| error.contains("peer authentication failed")));
    }
}
