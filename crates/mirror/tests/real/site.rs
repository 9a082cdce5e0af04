//! Two servers of PostgreSQL, two managers in this process, and zones in its memory.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use dax::ids::{BlockKey, FileId, Generation, NodeName};
use dax::memory::{MemoryCluster, MemoryStorage};
use dax::storage::{Authority, Storage, SyncScope, VolumeSettings};
use mirror::core::log::Position;
use mirror::core::manager::Role;
use mirror::core::record::Record;
use mirror::driver::config::Config;
use mirror::driver::peer::{Question, ask};
use mirror::driver::{Checked, Open, Resolved, Status, Verdict, resolve};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::server::{Server, free_port};

/// Opens the zones, and knows who has.
struct Memory(Arc<MemoryCluster>, Handles);

type Handles = Arc<Mutex<Vec<Arc<MemoryStorage>>>>;

#[async_trait]
impl Open for Memory {
    async fn open(&self) -> dax::error::Result<Arc<dyn Storage>> {
        let handle = self.0.client();
        self.1.lock().expect("nobody panics").push(handle.clone());
        Ok(handle)
    }
}

/// A manager and its member.
pub struct Side {
    pub server: Server,
    listen: SocketAddr,
    peer_listen: SocketAddr,
    manager: Option<Runtime>,
    ends: Option<oneshot::Sender<()>>,
    handles: Handles,
}

pub struct Site {
    cluster: Arc<MemoryCluster>,
    pub sides: [Side; 2],
    more: String,
    /// Clients prove who they are: most tests' servers ask nobody.
    pub asks_clients: bool,
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    pub runtime: Runtime,
}

fn address() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

/// How libpq reaches a server.
pub fn conninfo(server: &Server) -> String {
    let address = server.address();
    let (host, port) = address.rsplit_once(':').expect("it has a port");
    format!("host={host} port={port} user=postgres")
}

fn side(prepare: &(impl Fn(&mut Server) + Sync)) -> Side {
    let mut server = Server::init("fsync = off\nmax_connections = 200\nwal_level = logical");
    prepare(&mut server);
    server.start();
    server.sql(&[
        "CREATE DATABASE app",
        "ALTER DATABASE postgres SET synchronous_commit = local",
    ]);
    Side {
        server,
        listen: address(),
        peer_listen: address(),
        manager: None,
        ends: None,
        handles: Handles::default(),
    }
}

impl Site {
    /// Both servers run, and both managers; the second member is filled from the first.
    pub fn start(more: &str) -> Site {
        Site::start_with(more, |_| {})
    }

    /// The same with servers that are prepared before they start.
    pub fn start_with(more: &str, prepare: impl Fn(&mut Server) + Sync) -> Site {
        let mut site = Site::unmanaged(more, prepare);
        site.manage(0);
        site.manage(1);
        site.settle();
        site
    }

    /// Both servers run, and the first has a manager that takes its member for the only one.
    pub fn start_singly() -> Site {
        let mut site = Site::unmanaged("", |_| {});
        site.manage_singly(0);
        site.wait("the only one serves", || site.serves_singly(0));
        site
    }

    /// Both servers run, and nobody manages them.
    pub fn unmanaged(more: &str, prepare: impl Fn(&mut Server) + Sync) -> Site {
        let sides = std::thread::scope(|scope| {
            let made = [0, 1].map(|_| scope.spawn(|| side(&prepare)));
            made.map(|side| side.join().expect("it is made"))
        });
        Site {
            cluster: MemoryCluster::new(VolumeSettings::default()),
            sides,
            more: more.to_owned(),
            asks_clients: false,
            bin: crate::server::bin(),
            runtime: Runtime::new().expect("threads"),
        }
    }

    /// Starts a manager.
    pub fn manage(&mut self, at: usize) {
        self.manage_with(at, 1 - at);
    }

    /// Starts a manager that takes this side's member for the other one.
    pub fn manage_with(&mut self, at: usize, other: usize) {
        self.manage_as(at, other, at == 0);
    }

    /// The same; `first` if its member is what a mirror begins with.
    pub fn manage_as(&mut self, at: usize, other: usize, first: bool) {
        let text = self.config(at, other, first);
        self.run(at, &text);
    }

    /// Findings before anything starts.
    pub fn check(&self, at: usize) -> Checked {
        let config = Config::parse(&self.config(at, 1 - at, at == 0)).expect("valid");
        let checked = self.runtime.block_on(mirror::driver::check(&config));
        checked.expect("the configuration makes sense")
    }

    /// Why a manager does not start.
    pub fn is_refused(&self, at: usize) -> String {
        let config = Config::parse(&self.config(at, 1 - at, at == 0)).expect("valid");
        let opener = Box::new(Memory(self.cluster.clone(), Handles::default()));
        let name = NodeName::new("refused").expect("valid");
        let running = mirror::driver::run(config, name, opener, None, std::future::pending());
        let ended = self
            .runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(20), running).await });
        ended
            .expect("it ends")
            .expect_err("it does not start")
            .to_string()
    }

    fn config(&self, at: usize, other: usize, first: bool) -> String {
        let member = |at: usize| format!("{} dbname=app", conninfo(&self.sides[at].server));
        format!(
            "listen = '{}'\npeer_listen = '{}'\npeer = '{}'\nmember = \"{}\"\nother_member = \"{}\"\nfirst = {}\n\
             timeout = '2s'\nlease = '1s'\nbin = '{}'\n{}\n{}",
            self.sides[at].listen,
            self.sides[at].peer_listen,
            self.sides[1 - at].peer_listen,
            member(at),
            member(other),
            first,
            self.bin.display(),
            self.proof(),
            self.more,
        )
    }

    fn proof(&self) -> &str {
        match self.asks_clients {
            true => "",
            false => "clients_need_no_proof = true",
        }
    }

    /// Starts a manager whose member is the only one.
    pub fn manage_singly(&mut self, at: usize) {
        let text = format!(
            "single = true\nlisten = '{}'\npeer_listen = '{}'\nmember = \"{}\"\n{}",
            self.sides[at].listen,
            self.sides[at].peer_listen,
            self.bare(at),
            self.proof(),
        );
        self.run(at, &text);
    }

    /// True if a manager serves its only member.
    pub fn serves_singly(&self, at: usize) -> bool {
        let role = self.status(at).map(|status| status.role);
        role == Some(Role::Single)
    }

    fn run(&mut self, at: usize, text: &str) {
        let config = Config::parse(text).expect("valid");
        let opener = Box::new(Memory(self.cluster.clone(), self.sides[at].handles.clone()));
        let name = NodeName::new(format!("m{at}")).expect("valid");
        let runtime = Runtime::new().expect("threads");
        let (ends, asked) = oneshot::channel();
        runtime.spawn(async move {
            let asked = async move {
                if asked.await.is_err() {
                    std::future::pending().await
                }
            };
            if let Err(error) = mirror::driver::run(config, name, opener, None, asked).await {
                panic!("the manager does not run: {error}");
            }
        });
        self.sides[at].manager = Some(runtime);
        self.sides[at].ends = Some(ends);
    }

    /// Where a manager listens for the other one.
    pub fn peer_address(&self, at: usize) -> SocketAddr {
        self.sides[at].peer_listen
    }

    /// Where a manager listens for clients.
    pub fn client_address(&self, at: usize) -> SocketAddr {
        self.sides[at].listen
    }

    /// Whatever is written to the log is durable only later.
    pub fn hold_log(&self, held: bool) {
        self.cluster.hold_syncs(held);
    }

    /// A manager does not reach the zones.
    pub fn cut_off(&self, at: usize, is_cut_off: bool) {
        let handles = self.sides[at].handles.lock().expect("nobody panics");
        handles.iter().for_each(|one| one.cut_off(is_cut_off));
    }

    /// Another log, of which nobody has written anything.
    pub fn lose_log(&mut self) {
        self.cluster = MemoryCluster::new(VolumeSettings::default());
    }

    /// Another log, which is called so, and of which an earlier version is said to have written this record.
    pub fn give_earlier_log(&mut self, log: &str, record: Record) {
        self.lose_log();
        let storage = self.cluster.client();
        let name = NodeName::new("earlier").expect("valid");
        self.runtime.block_on(async {
            storage.own_epoch(&name).await.expect("nobody else does");
            let at = Position {
                number: record.number,
                ..Position::BEGINNING
            };
            let begins = serde_json::to_vec(&at).expect("it is written");
            for (name, value) in [
                ("mirror/identity", log.as_bytes().to_vec()),
                ("mirror/log", begins),
            ] {
                let put = storage.put_record(name, value.into(), Authority::Owner);
                put.await.expect("it owns the epoch");
            }
            let bytes = storage.settings().block_size_bytes as usize;
            let (mut blocks, _) = mirror::core::log::write(at, &[record], bytes).expect("short");
            blocks[0][..8].copy_from_slice(b"USmirr01");
            let file = FileId(1);
            for (index, block) in (0..).zip(blocks) {
                let key = BlockKey::new(file, index);
                let written = storage.write(key, Generation::SINGLE, block.into());
                written.expect("it owns the epoch");
            }
            let synced = storage.csync(SyncScope::File(file)).await;
            synced.expect("it owns the epoch");
            storage.release().await.expect("it owns the epoch");
        });
    }

    /// The connection string of a member, for whoever does something behind the manager's back: nobody confirms that where no manager
    /// runs.
    pub fn member(&self, at: usize) -> String {
        format!("{} options='-c synchronous_commit=local'", self.bare(at))
    }

    fn bare(&self, at: usize) -> String {
        format!("{} dbname=app", conninfo(&self.sides[at].server))
    }

    /// A manager is gone, as if it was killed, and its ports are free.
    ///
    /// A thread of its runtime that is busy at the moment ends later than the runtime, and holds what it listens at.
    pub fn kill_manager(&mut self, at: usize) {
        let Some(runtime) = self.sides[at].manager.take() else {
            return;
        };
        runtime.shutdown_timeout(Duration::from_millis(100));
        let side = &self.sides[at];
        let is_free = |address| supervise::ports::check(address).is_ok();
        let killed = Instant::now();
        while !(is_free(side.listen) && is_free(side.peer_listen)) {
            assert!(
                killed.elapsed() < Duration::from_secs(90),
                "it still listens"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A manager is asked to end, and has time to.
    pub fn end_manager(&mut self, at: usize) {
        if let Some(ends) = self.sides[at].ends.take() {
            ends.send(()).expect("it runs");
        }
    }

    /// What a manager says of itself.
    pub fn status(&self, at: usize) -> Option<Status> {
        let address = self.sides[at].peer_listen.to_string();
        let told = self.runtime.block_on(ask(&address, None, Question::Status));
        serde_json::from_str(&told.ok()?.ok()?).ok()
    }

    /// Asks whoever is primary, until it can answer: the machine may be so busy that epochs change.
    pub fn ask_primary(&self, question: Question) -> String {
        let told = std::cell::RefCell::new(None);
        self.wait("the primary answers", || {
            let Some(at) = self.primary() else {
                return false;
            };
            let address = self.sides[at].peer_listen.to_string();
            let answer = self.runtime.block_on(ask(&address, None, question));
            told.replace(answer.ok().and_then(Result::ok));
            told.borrow().is_some()
        });
        told.into_inner().expect("it was waited for")
    }

    /// Has this side be primary. A manager that was cut off may have been quicker, and may own another epoch meanwhile.
    pub fn switch_to(&self, at: usize) {
        let other = self.sides[1 - at].peer_listen.to_string();
        self.wait("it is primary", || {
            let is_other = self.primary() == Some(1 - at);
            is_other.then(|| {
                let asking = ask(&other, None, Question::Switchover);
                self.runtime.block_on(asking)
            });
            self.primary() == Some(at)
        });
    }

    /// Who is primary, as soon as somebody is.
    pub fn who_serves(&self) -> usize {
        self.wait("a primary", || self.primary().is_some());
        self.primary().expect("somebody was a moment ago")
    }

    pub fn primary(&self) -> Option<usize> {
        (0..2).find(|at| {
            self.status(*at)
                .is_some_and(|status| format!("{:?}", status.role) == "Primary")
        })
    }

    /// Waits until one is primary, and the other one a standby that is waited for.
    pub fn settle(&self) {
        self.wait("a primary and a standby", || {
            self.primary()
                .is_some_and(|at| self.status(at).is_some_and(|status| status.has_standby))
        });
    }

    pub fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let started = Instant::now();
        while !is_so() {
            let told: Vec<_> = (0..2).map(|at| self.status(at)).collect();
            assert!(
                started.elapsed() < Duration::from_secs(90),
                "not in time: {what}: {told:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the standby has executed everything.
    pub fn level(&self) {
        let standby = 1 - self.who_serves();
        self.wait("the standby has everything", || {
            let status = self.status(standby);
            status.is_some_and(|status| status.applied == Some(status.logged))
        });
    }

    /// Where clients connect.
    pub fn conninfo(&self) -> String {
        let [one, other] = &self.sides;
        format!(
            "host=127.0.0.1,127.0.0.1 port={},{} user=postgres dbname=app connect_timeout=5",
            one.listen.port(),
            other.listen.port()
        )
    }

    /// A session with the primary.
    pub fn connect(&self) -> Client {
        // On a busy machine a primary may be another one by the time that the client comes.
        let connected = std::cell::OnceCell::new();
        self.wait("the primary lets clients in", || {
            self.who_serves();
            let client = self.runtime.block_on(connect(&self.conninfo()));
            client.is_ok_and(|client| connected.set(client).is_ok())
        });
        connected.into_inner().expect("it was let in")
    }

    /// An operator says that this side's member is the right one.
    pub fn keep(&self, at: usize) -> Resolved {
        let addresses = [0, 1].map(|at| self.sides[at].peer_listen.to_string());
        let keep = format!("m{at}");
        let resolving = resolve([&addresses[0], &addresses[1]], None, &keep);
        let resolved = self.runtime.block_on(resolving).expect("both answer");
        resolved.expect("it is decided")
    }

    /// Databases that a member's server keeps in place of which there are others.
    pub fn kept(&self, at: usize) -> Vec<String> {
        let text = "SELECT datname FROM pg_database WHERE datname LIKE 'app_replaced_%' ORDER BY 1";
        let names = self.sides[at].server.sql(&[text]);
        names.lines().map(ToOwned::to_owned).collect()
    }

    /// Compares the members.
    pub fn verify(&self) -> Verdict {
        let told = self.ask_primary(Question::Verify);
        serde_json::from_str(&told).expect("a verdict")
    }

    /// The members are equal.
    #[track_caller]
    pub fn must_be_equal(&self) -> Verdict {
        let verdict = self.verify();
        assert!(verdict.equal, "{verdict:?}");
        verdict
    }
}

/// A session; its connection ends with it.
pub async fn connect(conninfo: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(conninfo, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Executes a text.
#[track_caller]
pub fn run(site: &Site, client: &Client, text: &str) {
    let done = site.runtime.block_on(client.batch_execute(text));
    done.unwrap_or_else(|error| panic!("{text}: {error:?}"));
}

/// The first value that a text returns.
#[track_caller]
pub fn value(site: &Site, client: &Client, text: &str) -> Option<String> {
    let rows = site.runtime.block_on(client.simple_query(text));
    let rows = rows.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    rows.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(ToOwned::to_owned),
        _ => None,
    })
}
