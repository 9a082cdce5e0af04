//! A proxy of its own process, for tests of what happens when another one takes its place.

use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio_postgres::{Client, NoTls};

use crate::program::example;
use crate::server::{Server, free_port};

/// A proxy of its own process, and of whatever processes take its place.
pub struct Service {
    pub server: Server,
    pub directory: tempfile::TempDir,
    pub address: SocketAddr,
    pub first: Child,
    /// Messages for a service manager.
    manager: UnixDatagram,
    /// The processes that were said to be the main one.
    pub mains: Vec<Pid>,
}

impl Service {
    pub async fn start(configuration: &str) -> Service {
        let directory = tempfile::tempdir().expect("a directory");
        Service::start_in(directory, configuration).await
    }

    pub async fn start_in(directory: tempfile::TempDir, configuration: &str) -> Service {
        let server = Server::init("fsync = off\nmax_connections = 100");
        server.start();
        let path = |name: &str| directory.path().join(name);
        let text = format!("epoch = 1\nactive = \"{}\"\n", server.address());
        std::fs::write(path("cluster.toml"), text).expect("it can be written");
        let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let text = format!(
            "listen = \"{address}\"\ncluster_file = \"{}\"\nauth = \"trust\"\n{configuration}",
            path("cluster.toml").display()
        );
        std::fs::write(path("proxy.toml"), text).expect("it can be written");
        // Not by us: a child of another test's could keep the file open for writing, and it could not be run.
        let copied = Command::new("cp")
            .arg(example("serve"))
            .arg(path("serve"))
            .status();
        assert!(copied.expect("it runs").success(), "a program of its own");
        let manager = UnixDatagram::bind(path("notify")).expect("a socket");
        manager
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a timeout");
        let first = Command::new(path("serve"))
            .arg(path("proxy.toml"))
            .env("NOTIFY_SOCKET", path("notify"))
            .spawn()
            .expect("it runs");
        let mains = vec![Pid::from_raw(first.id().cast_signed())];
        let service = Service {
            server,
            directory,
            address,
            first,
            manager,
            mains,
        };
        for _ in 0..1000 {
            if service.try_connect("postgres").await.is_ok() {
                return service;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("nobody is served");
    }

    pub fn text(&self, database: &str) -> String {
        let port = self.address.port();
        format!("host=127.0.0.1 port={port} user=postgres dbname={database}")
    }

    pub async fn try_connect(&self, database: &str) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&self.text(database), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    pub async fn connect(&self) -> Client {
        self.try_connect("postgres").await.expect("it connects")
    }

    /// Asks for a restart, and waits until it is answered.
    pub async fn restart(&self) -> Result<(), String> {
        let operator = self.try_connect("understudy").await.expect("it connects");
        let answered = operator.simple_query("RESTART").await;
        answered.map(drop).map_err(|error| {
            let told = error.as_db_error().map(ToString::to_string);
            told.unwrap_or_else(|| error.to_string())
        })
    }

    /// The process that the service manager was told of.
    pub fn heed_manager(&mut self) -> Pid {
        let mut told = [0; 64];
        let len = self.manager.recv(&mut told).expect("it is told");
        let told = String::from_utf8_lossy(&told[..len]).into_owned();
        let pid = told.strip_prefix("MAINPID=").expect("the main process");
        let pid = Pid::from_raw(pid.parse().expect("a number"));
        self.mains.push(pid);
        pid
    }

    /// The process that is being started, once it is there.
    pub async fn successor(&self) -> Pid {
        let main = self.mains.last().expect("one");
        let path = format!("/proc/{main}/task/{main}/children");
        for _ in 0..10_000 {
            let children = std::fs::read_to_string(&path).unwrap_or_default();
            if let Some(child) = children.split_whitespace().next() {
                return Pid::from_raw(child.parse().expect("a number"));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("no process is started");
    }

    pub fn program(&self) -> PathBuf {
        self.directory.path().join("serve")
    }

    /// As an upgrade does it: the file is another one, under the same name.
    pub fn replace_program(&self, with: impl FnOnce(&PathBuf)) {
        let new = self.directory.path().join("serve.new");
        with(&new);
        std::fs::rename(&new, self.program()).expect("it can be renamed");
    }
}

impl Service {
    /// All processes of its program, by their ids.
    pub fn processes(&self) -> Vec<Pid> {
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let is_ours = |entry: &std::fs::DirEntry| {
            let program = std::fs::read_link(entry.path().join("exe"));
            program.is_ok_and(|program| program.starts_with(self.directory.path()))
        };
        let ours = all.filter(is_ours);
        ours.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw))
            .collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for pid in self.processes() {
            // It may have ended meanwhile.
            let _ = kill(pid, Signal::SIGKILL);
        }
        let _ = self.first.wait();
    }
}

/// Waits for the end of a process.
pub fn ends(service: &mut Service, pid: Pid) {
    for _ in 0..1000 {
        let is_first = pid.as_raw() == service.first.id().cast_signed();
        let has_ended = match is_first {
            true => service.first.try_wait().expect("a child").is_some(),
            // Ended, or waited for by nobody here.
            false => std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .map_or(true, |stat| stat.contains(") Z ")),
        };
        if has_ended {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("process {pid} does not end");
}
