//! The demo of the past: a table is dropped under load, and comes back by a branch, by a restore from a repository, and by a rewind.
//!
//! ```text
//!   load ─▶ DROP TABLE ─▶ branch at the moment before ─▶ restore to it ─▶ rewind to it ─▶ load goes on ─▶ verdict
//! ```
//!
//! Invariant: each of the three must have every commit that was acknowledged before the moment, the table, and no transaction that
//! began after it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use backup::restore::Target;
use cluster::clients::clock::Clock;
use cluster::clients::load::{self, Load};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::clients::verify;
use cluster::elsewhere::{Elsewhere, open_directory};
use cluster::process::Process;
use cluster::tier::{Store, Tier};
use cluster::workspace::Workspace;
use cluster::{Cluster, ports, programs};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio_postgres::Client;

use super::progress::Progress;
use super::regained::{Moment, ROWS, Report, Rows, commits};
use super::run::start_cluster;
use super::timeline::thousands;

/// Choices of the user.
#[derive(Debug, Clone)]
pub struct Options {
    /// Length of the load before the table is dropped, and after the rewind.
    pub between: Duration,
    /// Concurrent clients.
    pub clients: u16,
    /// pgbench's scale.
    pub scale: u32,
    /// Decides the rows touched.
    pub seed: u64,
    /// PostgreSQL's programs, if not Debian's newest.
    pub bin: Option<PathBuf>,
    /// Where to work.
    pub data: Option<PathBuf>,
    /// Leave data and logs in place.
    pub keep: bool,
}

const WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs the demo. Dropping the future ends it and cleans up.
///
/// # Errors
/// Something cannot be started, does not answer, or a command fails. What is lost is no error but a report.
pub async fn run(options: &Options) -> anyhow::Result<Report> {
    let bin = programs::find(options.bin.as_deref())?;
    let mut workspace = Workspace::create(options.data.as_deref(), options.keep)?;
    let result = on_stage(options, &bin, workspace.path()).await;
    workspace.keep_unless(matches!(&result, Ok(report) if report.passed));
    result
}

async fn on_stage(options: &Options, bin: &Path, dir: &Path) -> anyhow::Result<Report> {
    let mut progress = Progress::new();
    let tier = Tier::start(Store::Zones, dir, |what| progress.say(what)).await?;
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let mut settings = cluster::Options::new(dir, bin, &program);
    tier.serve(&mut settings);
    settings.past.push("keep = [\"all for 1h\"]".to_owned());
    let cluster = start_cluster(settings, options.scale, &progress).await?;
    let mut play = Play {
        program,
        dir: dir.to_owned(),
        cluster,
        archiver: None,
    };
    let report = play.run(options, &mut progress).await;
    play.cluster.shutdown();
    tokio::task::block_in_place(|| drop(tier));
    report
}

struct Play {
    program: PathBuf,
    dir: PathBuf,
    cluster: Cluster,
    /// Ends with this.
    archiver: Option<Child>,
}

impl Play {
    async fn run(&mut self, options: &Options, progress: &mut Progress) -> anyhow::Result<Report> {
        let repository = open_directory(&self.dir, "repository")?;
        self.archive(&repository).await?;
        progress.say("an archiver copies an image and the log into a repository");
        let client = self.session().await?;
        let make = format!("CREATE TABLE precious AS SELECT generate_series(1, {ROWS}) AS number");
        client.batch_execute(&make).await?;
        client.batch_execute("CHECKPOINT").await?;

        let clock = Clock::start();
        let load = Load::start(
            self.cluster.any_writable(),
            load::Options {
                clients: options.clients,
                scale: options.scale,
                seed: options.seed,
                connects: Some(2),
                ..load::Options::default()
            },
            clock,
        );
        let count = load.counter();
        progress.start(clock, move || count.get(), || None);
        tokio::time::sleep(options.between).await;
        let moment = self.drop_table(&client, &load, clock).await?;
        drop(client);
        progress.say(&format!(
            "{:>4.1} s  DROP TABLE precious: {} rows are gone. The moment before is {}",
            clock.now().seconds(),
            thousands(ROWS as u64),
            moment.position
        ));
        let mut report = Report {
            acknowledged: moment.before.len() as u64,
            moment: moment.position.clone(),
            seed: options.seed,
            postgres: self.version().await?,
            ..Report::default()
        };
        let mut found = Vec::new();

        let (rows, took) = self.branch(&moment).await?;
        report.branch_ms = took;
        found.push(rows);
        progress.say(&format!(
            "{:>4.1} s  a branch has it: the first answer came {took} ms after the command. The database was served all the time",
            clock.now().seconds()
        ));
        let (rows, took) = self.restore(&repository, &moment).await?;
        report.restore_ms = took;
        report.gap_bytes = self.gap(&repository).await?;
        found.push(rows);
        progress.say(&format!(
            "{:>4.1} s  a restore from the repository has it, after {took} ms",
            clock.now().seconds()
        ));
        // Another history has no place in the repository.
        self.archiver = None;
        let began = Instant::now();
        let rewound = self
            .command(&["rewind", "--json", "--to", &moment.position])
            .await?;
        report.rewind_ms = began.elapsed().as_millis() as u64;
        report.pause_ms = rewound["pause_ms"].as_u64().context("no node serves it")?;
        let returned = clock.now();
        found.push(self.rows(&self.session().await?).await?);
        progress.say(&format!(
            "{:>4.1} s  the database went back to it: {} ms, of which nobody served for {} ms",
            returned.seconds(),
            report.rewind_ms,
            report.pause_ms
        ));
        tokio::time::sleep(options.between).await;
        progress.stop();
        let history = load.stop().await;
        let at_end = self.rows(&self.session().await?).await?;
        report.judge(&moment, &history, &found, &at_end, returned);
        Ok(report)
    }

    /// Begins to archive, and waits for the first image.
    async fn archive(&mut self, repository: &Path) -> anyhow::Result<()> {
        let log = std::fs::File::create(self.dir.join("archiver.log"))?;
        let archiver = self
            .understudy(&["backup", "archive", "--log-every", "500ms", "--repository"])
            .arg(repository)
            .arg("--config")
            .arg(&self.config()?)
            .stderr(log)
            .spawn()?;
        self.archiver = Some(archiver);
        let deadline = Instant::now() + WITHIN;
        while self.timeline(repository).await.is_none() {
            ensure!(Instant::now() < deadline, "no image is in the repository");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Moments that can be restored; `None` while there are none.
    async fn timeline(&self, repository: &Path) -> Option<Value> {
        let mut timeline = self.understudy(&["timeline", "--json", "--repository"]);
        let output = timeline.arg(repository).output().await.ok()?;
        let found: Value = serde_json::from_slice(&output.stdout).ok()?;
        let spans = found["spans"].as_array()?;
        (!spans.is_empty()).then_some(found)
    }

    async fn gap(&self, repository: &Path) -> anyhow::Result<u64> {
        let found = self
            .timeline(repository)
            .await
            .context("the repository has no image")?;
        let spans = found["spans"].as_array().context("a list")?;
        let position = |span: &Value, key: &str| {
            let text = span[key].as_str().unwrap_or_default();
            match Target::position(text) {
                Some(Target::Lsn(lsn)) => lsn.0,
                _ => 0,
            }
        };
        let gaps = spans
            .windows(2)
            .map(|two| position(&two[1], "from").saturating_sub(position(&two[0], "to")));
        Ok(gaps.sum())
    }

    async fn drop_table(
        &self,
        client: &Client,
        load: &Load,
        clock: Clock,
    ) -> anyhow::Result<Moment> {
        let before = commits(&load.history());
        let asked = "SELECT pg_current_wal_insert_lsn()::text";
        let position = client.query_one(asked, &[]).await?.get(0);
        client.batch_execute("DROP TABLE precious").await?;
        Ok(Moment {
            position,
            before,
            dropped: clock.now(),
        })
    }

    /// A branch at the moment, on a port of its own.
    async fn branch(&self, moment: &Moment) -> anyhow::Result<(Rows, u64)> {
        let began = Instant::now();
        let directory = self.dir.join("branch");
        let place = directory.display().to_string();
        let port = ports::free()?;
        let number = port.to_string();
        let create = [
            "branch",
            "create",
            "before",
            "--json",
            "--at",
            &moment.position,
            "--directory",
            &place,
            "--port",
            &number,
        ];
        self.command(&create).await?;
        let mut serve = std::process::Command::new(&self.program);
        serve
            .args(["branch", "run", "--until-stdin-closes", "--directory"])
            .arg(&directory);
        let mut node = Process::spawn("branch", serve, &self.dir.join("branch.log"))?;
        let server = Server {
            port,
            ..self.server().await?
        };
        let client = connected(&server).await?;
        client
            .query_one("SELECT count(*) FROM precious", &[])
            .await?;
        let took = began.elapsed().as_millis() as u64;
        let rows = self.rows(&client).await?;
        drop(client);
        ensure!(node.terminate(WITHIN), "the branch does not end");
        Ok((rows, took))
    }

    /// A restore to the moment, served elsewhere.
    async fn restore(&self, repository: &Path, moment: &Moment) -> anyhow::Result<(Rows, u64)> {
        let home = open_directory(&self.dir, "restored")?;
        let began = Instant::now();
        let directory = home.join("before");
        let mut restore = self.understudy(&[
            "backup",
            "restore",
            "--to",
            &moment.position,
            "--repository",
        ]);
        restore.arg(repository).arg("--directory").arg(&directory);
        done(restore).await?;
        let restored = Elsewhere::start(&self.cluster, &directory, WITHIN).await?;
        let client = connect(&restored.server.config()).await?;
        client
            .query_one("SELECT count(*) FROM precious", &[])
            .await?;
        let took = began.elapsed().as_millis() as u64;
        Ok((self.rows(&client).await?, took))
    }

    async fn rows(&self, client: &Client) -> anyhow::Result<Rows> {
        let precious = "SELECT count(*) FROM pg_class WHERE relname = 'precious'";
        let has_table = client.query_one(precious, &[]).await?.get::<_, i64>(0) == 1;
        let ledger = verify::ledger(client).await?;
        Ok(Rows {
            precious: match has_table {
                true => client
                    .query_one("SELECT count(*) FROM precious", &[])
                    .await?
                    .get(0),
                false => 0,
            },
            commits: ledger.into_iter().collect(),
        })
    }

    async fn session(&self) -> anyhow::Result<Client> {
        connected(&self.server().await?).await
    }

    async fn server(&self) -> anyhow::Result<Server> {
        let active = self.cluster.active().await.context("nobody is active")?;
        self.cluster.server(&active)
    }

    async fn version(&self) -> anyhow::Result<String> {
        super::run::version(&self.server().await?).await
    }

    fn config(&self) -> anyhow::Result<PathBuf> {
        let first = self.cluster.names().next().context("no node")?;
        Ok(self.cluster.node(first)?.config.clone())
    }

    fn understudy(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command.stdout(Stdio::piped());
        command
    }

    /// Runs a command on the cluster; returns its JSON.
    async fn command(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let mut command = self.understudy(arguments);
        command.arg("--config").arg(&self.config()?);
        command
            .arg("--secret-file")
            .arg(self.dir.join("zones.secret"));
        let said = done(command).await?;
        serde_json::from_slice(&said).context("it printed no JSON")
    }
}

async fn done(mut command: Command) -> anyhow::Result<Vec<u8>> {
    let output = command.stderr(Stdio::piped()).output().await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{:?} failed: {said}",
        command.as_std().get_args()
    );
    Ok(output.stdout)
}

/// A session, as soon as a server accepts writes.
async fn connected(server: &Server) -> anyhow::Result<Client> {
    let deadline = Instant::now() + WITHIN;
    loop {
        match connect(&server.config()).await {
            Ok(client) => return Ok(client),
            Err(error) => ensure!(Instant::now() < deadline, "no server answers: {error:#}"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
