//! Drivers that applications use: each connects, prepares, copies, cancels and pools through the proxy, and has an idle
//! session and an open transaction when the primary is killed. `scripts/proxy-drivers` installs and builds them.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::site::Site;

/// How long a driver may take for each of its halves.
const WITHIN: Duration = Duration::from_secs(120);

/// A driver's program.
struct Driver {
    name: &'static str,
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Driver {
    fn start(name: &'static str, site: &Site, words: &[String]) -> Driver {
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .env("PGHOST", "127.0.0.1")
            .env("PGPORT", site.address.port().to_string())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "postgres")
            .env("PGCLIENTENCODING", "UTF8")
            // A Python that runs sources here must not leave its own files beside them.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect(name);
        let said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Driver { name, child, said }
    }

    async fn wait_for(&mut self, word: &str) {
        let said = tokio::time::timeout(WITHIN, self.said.next_line()).await;
        let said = said.unwrap_or_else(|_| panic!("{} does not say {word}", self.name));
        let said = said.expect("it can be read");
        assert_eq!(said.as_deref(), Some(word), "{} failed", self.name);
    }

    async fn go_on(&mut self) {
        let input = self.child.stdin.as_mut().expect("it is piped");
        input.write_all(b"\n").await.expect(self.name);
    }
}

fn words(text: &[&str]) -> Vec<String> {
    text.iter().map(|word| (*word).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs drivers; run by scripts/proxy-drivers"]
async fn applications_do_what_they_do_and_survive_a_takeover() {
    let built = std::env::var("DRIVERS_BUILT").expect("scripts/proxy-drivers sets it");
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/drivers");
    let source = |name: &str| sources.join(name).display().to_string();
    for mode in ["session", "transaction"] {
        let site = Site::start(&format!("auth = \"trust\"\npool_mode = \"{mode}\"")).await;
        let jar = "/usr/share/java/postgresql.jar";
        let mut drivers = [
            (
                "psycopg 3",
                words(&["/usr/bin/python3", &source("psycopg_driver.py")]),
            ),
            (
                "psycopg 2",
                words(&["/usr/bin/python3", &source("psycopg2_driver.py")]),
            ),
            (
                "SQLAlchemy",
                words(&["/usr/bin/python3", &source("sqlalchemy_driver.py")]),
            ),
            ("pgjdbc", words(&["java", "-cp", jar, &source("Jdbc.java")])),
            ("pgx", words(&[&format!("{built}/pgx")])),
        ]
        .map(|(name, words)| Driver::start(name, &site, &words));
        for driver in &mut drivers {
            driver.wait_for("ready").await;
        }
        tokio::task::block_in_place(|| site.take_over());
        for driver in &mut drivers {
            driver.go_on().await;
        }
        for driver in &mut drivers {
            driver.wait_for("done").await;
        }
    }
}
