//! A primary, a synchronous standby, and a proxy.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proxy::config::Config;
use proxy::driver::file_source::FileSource;
use proxy::driver::{Proxy, ReadAgain, serve};
use tokio::sync::oneshot;
use tokio_postgres::{Client, NoTls};

use crate::server::{Server, free_port};

/// What both servers have.
const SERVER: &str = "
wal_level = replica
hot_standby = on
fsync = off
max_connections = 100
password_encryption = 'scram-sha-256'
";

pub struct Site {
    pub primary: Server,
    pub standby: Server,
    pub proxy: Arc<Proxy>,
    pub address: SocketAddr,
    directory: tempfile::TempDir,
    serving: Serving,
}

/// A proxy, which ends when this is dropped.
pub struct Serving {
    pub proxy: Arc<Proxy>,
    pub address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl Serving {
    /// Starts one whose cluster the file `cluster.toml` of `directory` tells of. `configuration` is its own, beside what it
    /// must have, and is written to `proxy.toml` there.
    pub fn start(directory: &Path, configuration: &str) -> Serving {
        let file = directory.join("cluster.toml");
        let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let text = format!(
            "listen = \"{address}\"\ncluster_file = \"{}\"\ntakeover_wait = \"60s\"\n{configuration}",
            file.display()
        );
        let path = directory.join("proxy.toml");
        fs::write(&path, text).expect("it can be written");
        let config = Config::load(&path).expect("the configuration is valid");
        let source = Arc::new(FileSource::new(file, &config).expect("a source"));
        let again: ReadAgain = Box::new(move || Ok(Config::load(&path)?));
        let proxy = Proxy::new(config, source, Some(again)).expect("a proxy");
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = proxy.clone();
        tokio::spawn(async move {
            let until = async {
                // A dropped sender is as good as a word.
                let _ = stopped.await;
            };
            serve(serving, None, until).await.expect("it serves");
        });
        Serving {
            proxy,
            address,
            _stop: stop,
        }
    }

    /// Waits until clients are let in, or asked for their passwords.
    pub async fn wait_until_served(&self) -> Result<(), String> {
        let mut last = String::new();
        for _ in 0..1000 {
            match self.try_connect("postgres", "").await {
                Ok(_) => return Ok(()),
                // It was asked for one, and has none. (That passwords cannot be looked up yet is the proxy's own word.)
                Err(error)
                    if error.as_db_error().is_none()
                        && format!("{error:?}").contains("password") =>
                {
                    return Ok(());
                }
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(format!("nobody is served ({last})"))
    }

    pub async fn try_connect(
        &self,
        user: &str,
        more: &str,
    ) -> Result<Client, tokio_postgres::Error> {
        let text = format!(
            "host=127.0.0.1 port={} user={user} dbname=postgres {more}",
            self.address.port()
        );
        let (client, connection) = tokio_postgres::connect(&text, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    pub async fn connect(&self) -> Client {
        self.try_connect("postgres", "").await.expect("it connects")
    }
}

impl Site {
    /// Starts everything. `configuration` is the proxy's, beside what it must have.
    pub async fn start(configuration: &str) -> Site {
        let primary = Server::init(SERVER);
        let standby = Server::copy_of(&primary);
        standby.follow(&primary);
        primary
            .configure("synchronous_standby_names = 'standby'\nsynchronous_commit = remote_apply");
        primary.start();
        standby.start();
        let directory = tempfile::tempdir().expect("a directory");
        let serving = Serving::start(directory.path(), configuration);
        let site = Site {
            primary,
            standby,
            proxy: serving.proxy.clone(),
            address: serving.address,
            directory,
            serving,
        };
        site.tell(1, &site.primary, "", true);
        if let Err(error) = site.serving.wait_until_served().await {
            panic!("{error}; the primary says: {}", site.primary.log());
        }
        site
    }

    /// Writes the file that tells of the cluster.
    pub fn tell(&self, epoch: u32, active: &Server, more: &str, has_standby: bool) {
        let mut text = format!(
            "epoch = {epoch}\nactive = \"{}\"\n{more}\n",
            active.address()
        );
        if has_standby {
            let address = self.standby.address();
            text.push_str(&format!(
                "[[standbys]]\nname = \"standby\"\naddress = \"{address}\"\n"
            ));
        }
        let path = self.directory.path().join("cluster.toml");
        let new = path.with_extension("new");
        fs::write(&new, text).expect("it can be written");
        fs::rename(&new, &path).expect("it can be renamed");
    }

    /// Changes the proxy's configuration, of which it hears when it is told to read it again.
    pub fn reconfigure(&self, old: &str, new: &str) {
        let path = self.directory.path().join("proxy.toml");
        let text = fs::read_to_string(&path).expect("it is there");
        assert!(text.contains(old), "{old} is not in {text}");
        fs::write(&path, text.replace(old, new)).expect("it can be written");
    }

    /// An operator's session.
    pub async fn operate(&self) -> Client {
        let text = format!(
            "host=127.0.0.1 port={} user=postgres dbname=understudy",
            self.address.port()
        );
        let (operator, connection) = tokio_postgres::connect(&text, NoTls)
            .await
            .expect("it connects");
        tokio::spawn(connection);
        operator
    }

    /// The standby takes over from a primary that is killed.
    pub fn take_over(&self) {
        self.primary.stop("immediate");
        self.promote();
    }

    /// The standby takes over from a primary that is gone.
    pub fn promote(&self) {
        let replayed = "SELECT pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn()";
        while self.standby.sql(&[replayed]).trim() != "t" {
            std::thread::sleep(Duration::from_millis(10));
        }
        let horizon = self
            .standby
            .sql(&["SELECT pg_snapshot_xmax(pg_current_snapshot())"]);
        self.standby.promote();
        let takeover = format!("[[takeovers]]\nepoch = 2\nhorizon = {}\n", horizon.trim());
        self.tell(2, &self.standby, &takeover, false);
    }

    pub async fn try_connect(
        &self,
        user: &str,
        more: &str,
    ) -> Result<Client, tokio_postgres::Error> {
        self.serving.try_connect(user, more).await
    }

    pub async fn connect(&self) -> Client {
        self.try_connect("postgres", "").await.expect("it connects")
    }
}
