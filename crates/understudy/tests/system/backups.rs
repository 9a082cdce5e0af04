//! Backups by others' tools: taken while the active changes, and restored to the end and to a moment.
//!
//! PostgreSQL itself would leave gaps: a standby takes for archived what it was sent. Here all nodes have one log, and who takes
//! over archives what the dead active had not.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use cluster::clients::history::{History, Outcome};
use cluster::clients::session::connect;
use cluster::clients::verify;
use cluster::elsewhere::{Elsewhere, base_backup, open_directory, postgres, succeeded};

use crate::stage::{Stage, TIMEOUT};
use crate::verbs::until;

/// A cluster under load that archives with this command, and a directory of that name where the command may put files.
async fn archiving(test: &str, command: impl FnOnce(&Path) -> String) -> Result<(Stage, PathBuf)> {
    let mut made = None;
    let stage = Stage::with_options(test, &["north", "south"], |options| {
        let command = command(&options.dir.join(test));
        let parameters = [
            ("archive_command", command.as_str()),
            ("checkpoint_timeout", "30s"),
        ];
        let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
        options.parameters.extend(parameters);
        made = Some(open_directory(&options.dir, test));
    })
    .await?;
    Ok((stage, made.context("options were asked for")??))
}

/// A moment, and what clients knew of it.
pub struct Moment {
    /// The active's clock.
    pub time: String,
    /// Commits that were acknowledged before the clock was read.
    before: Vec<(i32, i64)>,
    /// The last that each client can have begun before it.
    last: HashMap<i32, i64>,
}

impl Moment {
    pub async fn now(stage: &mut Stage) -> Result<Moment> {
        let active = stage.cluster.wait_active(TIMEOUT).await?;
        let history = stage.history()?;
        let acknowledged = history.commits();
        let before = acknowledged.map(|one| (one.client, one.n)).collect();
        let client = connect(&stage.cluster.server(&active)?.config()).await?;
        let time = client.query_one("SELECT clock_timestamp()::text", &[]);
        let time = time.await?.get(0);
        let mut last = HashMap::new();
        for attempt in stage.history()?.attempts() {
            let last = last.entry(attempt.client).or_insert(attempt.n);
            // The one that is under way is not in the history yet.
            *last = (*last).max(attempt.n + 1);
        }
        Ok(Moment { time, before, last })
    }

    /// Checks that a copy of it has what was acknowledged before, and nothing that began behind it.
    pub async fn check(&self, restored: &Elsewhere, history: &History) -> Result<()> {
        let client = connect(&restored.server.config()).await?;
        let rows: HashSet<(i32, i64)> = verify::ledger(&client).await?.into_iter().collect();
        let missing = self.before.iter().find(|one| !rows.contains(one));
        ensure!(missing.is_none(), "{missing:?} was there at {}", self.time);
        let late = |(client, n): &&(i32, i64)| self.last.get(client).is_none_or(|last| n > last);
        let late = rows.iter().find(late);
        ensure!(late.is_none(), "{late:?} was not there at {}", self.time);
        let later = history.count(Outcome::Acknowledged) as usize - self.before.len();
        ensure!(later > 100, "only {later} commits came later");
        Ok(())
    }
}

/// Kills the active so often, each time under load, and gives it back.
pub async fn take_over(stage: &mut Stage, times: u32) -> Result<()> {
    for _ in 0..times {
        let (dead, killed) = stage.kill_active().await?;
        stage.outage_after(killed).await?;
        stage.commits(50).await?;
        stage.cluster.start_node(&dead)?;
        stage.cluster.wait_follows(&dead, TIMEOUT).await?;
    }
    Ok(())
}

/// The archive is out of reach while segments become complete, and the active dies before it is there again.
async fn take_over_unarchived(stage: &mut Stage, archive: &Path) -> Result<()> {
    let away = archive.with_extension("away");
    std::fs::rename(archive, &away)?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let client = connect(&stage.cluster.server(&active)?.config()).await?;
    for _ in 0..3 {
        stage.commits(50).await?;
        client.batch_execute("SELECT pg_switch_wal()").await?;
    }
    drop(client);
    take_over(stage, 1).await?;
    std::fs::rename(&away, archive)?;
    Ok(())
}

/// Stops the load, and waits until all of its log is archived. Returns the clients' history.
pub async fn end_load(stage: &mut Stage) -> Result<History> {
    let history = stage.load.take().context("no load")?.stop().await;
    stage.stop_churn().await;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let client = connect(&stage.cluster.server(&active)?.config()).await?;
    let switched = "SELECT pg_walfile_name(pg_switch_wal())";
    let last: String = client.query_one(switched, &[]).await?.get(0);
    let look = async || {
        let text = "SELECT coalesce(last_archived_wal, ''), coalesce(last_failed_wal, '') FROM pg_stat_archiver";
        let row = client.query_one(text, &[]).await?;
        Ok((row.get::<_, String>(0), row.get::<_, String>(1)))
    };
    // A history file has a longer name.
    until("the log is archived", look, |(done, _)| {
        done.len() == last.len() && *done >= last
    })
    .await?;
    Ok(history)
}

/// A copy of a base backup that is recovered with this in its configuration.
fn recover(base: &Path, to: &Path, settings: &str) -> Result<()> {
    let mut copy = postgres("cp");
    copy.arg("-a").arg(base).arg(to);
    succeeded(copy)?;
    let mut touch = postgres("touch");
    touch.arg(to.join("recovery.signal"));
    succeeded(touch)?;
    let file = to.join("postgresql.auto.conf");
    let text = std::fs::read_to_string(&file)?;
    std::fs::write(&file, text + settings)?;
    Ok(())
}

pub async fn check_all(restored: &Elsewhere, history: &History) -> Result<()> {
    let (_, checks) = verify::database(&restored.server, history).await?;
    let failed: Vec<_> = checks.iter().filter(|check| !check.passed).collect();
    ensure!(failed.is_empty(), "{failed:#?}");
    Ok(())
}

// hazard: ST4
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_plain_archive_has_no_gap_after_five_takeovers() -> Result<()> {
    let archive_into = |archive: &Path| {
        // As PostgreSQL's documentation has it, and content with a file that is there already and the same.
        format!(
            "cmp -s %p {0}/%f || (test ! -f {0}/%f && cp %p {0}/%f.new && mv {0}/%f.new {0}/%f)",
            archive.display()
        )
    };
    let (mut stage, archive) = archiving("archive", archive_into).await?;
    let home = open_directory(stage.path(), "restored")?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    base_backup(&stage.cluster, &active, &home.join("base"))?;
    take_over(&mut stage, 3).await?;
    let moment = Moment::now(&mut stage).await?;
    take_over_unarchived(&mut stage, &archive).await?;
    take_over(&mut stage, 1).await?;
    stage.commits(100).await?;
    let history = end_load(&mut stage).await?;

    let fetch = format!("restore_command = 'cp {}/%f %p'\n", archive.display());
    let latest = home.join("latest");
    recover(&home.join("base"), &latest, &fetch)?;
    let restored = Elsewhere::start(&stage.cluster, &latest, TIMEOUT).await?;
    check_all(&restored, &history).await?;
    drop(restored);

    let then = home.join("then");
    let target = format!(
        "{fetch}recovery_target_time = '{}'\nrecovery_target_action = 'promote'\n",
        moment.time
    );
    recover(&home.join("base"), &then, &target)?;
    let restored = Elsewhere::start(&stage.cluster, &then, TIMEOUT).await?;
    moment.check(&restored, &history).await?;
    drop(restored);
    stage.end().await
}

/// pgBackRest as it is configured for this test: the nodes' directories differ here, so commands name theirs.
struct Backrest {
    config: PathBuf,
}

impl Backrest {
    fn configure(directory: &Path) -> Result<Backrest> {
        let config = directory.join("pgbackrest.conf");
        let at = directory.display();
        std::fs::write(
            &config,
            format!(
                "[global]\nrepo1-path={at}/repository\nlog-path={at}\nlock-path={at}\nspool-path={at}\n\
                 start-fast=y\nrepo1-retention-full=2\nlog-level-console=warn\n[main]\npg1-path={at}/none\n"
            ),
        )?;
        Ok(Backrest { config })
    }

    fn command(&self, data: &Path) -> Command {
        let mut command = postgres("pgbackrest");
        command.arg(format!("--config={}", self.config.display()));
        command.args([
            "--stanza=main".to_owned(),
            format!("--pg1-path={}", data.display()),
        ]);
        command
    }

    /// Backs the active up, in whole or what is new.
    async fn back_up(&self, stage: &mut Stage, kind: &str) -> Result<()> {
        let active = stage.cluster.wait_active(TIMEOUT).await?;
        // pgBackRest refuses until the new timeline's first checkpoint is complete.
        let client = connect(&stage.cluster.server(&active)?.config()).await?;
        client.batch_execute("CHECKPOINT").await?;
        let mut command = self.command_on(stage, &active).await?;
        command.args([&format!("--type={kind}"), "backup"]);
        succeeded(command).map(drop)
    }

    async fn command_on(&self, stage: &Stage, node: &str) -> Result<Command> {
        let server = stage.cluster.server(node)?;
        let client = connect(&server.config()).await?;
        let asked =
            "SELECT current_setting('data_directory'), current_setting('unix_socket_directories')";
        let row = client.query_one(asked, &[]).await?;
        let mut command = self.command(Path::new(row.get::<_, &str>(0)));
        command.arg(format!("--pg1-port={}", server.port));
        command.arg(format!("--pg1-socket-path={}", row.get::<_, &str>(1)));
        command.arg("--pg1-user=postgres");
        Ok(command)
    }
}

/// Takeovers between two backups; more of them by hand.
const TAKEOVERS: (&str, u32) = ("UNDERSTUDY_TEST_TAKEOVERS", 1);

/// So many, or what the environment asks for.
pub fn wanted<N: FromStr>((variable, usual): (&str, N)) -> Result<N, N::Err> {
    std::env::var(variable).map_or(Ok(usual), |number| number.parse())
}

// hazard: ST4
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn pgbackrest_restores_what_was_backed_up_over_takeovers() -> Result<()> {
    let archive_with = |directory: &Path| {
        format!(
            "pgbackrest --config={}/pgbackrest.conf --stanza=main --pg1-path=$PWD archive-push %p",
            directory.display()
        )
    };
    let takeovers = wanted(TAKEOVERS)?;
    let (mut stage, directory) = archiving("backrest", archive_with).await?;
    let backrest = Backrest::configure(&directory)?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let mut create = backrest.command_on(&stage, &active).await?;
    create.arg("stanza-create");
    succeeded(create)?;
    backrest.back_up(&mut stage, "full").await?;
    take_over(&mut stage, takeovers).await?;
    backrest.back_up(&mut stage, "incr").await?;
    take_over(&mut stage, takeovers).await?;
    let moment = Moment::now(&mut stage).await?;
    stage.commits(100).await?;
    backrest.back_up(&mut stage, "incr").await?;
    take_over(&mut stage, takeovers).await?;
    let history = end_load(&mut stage).await?;

    let home = open_directory(stage.path(), "restored")?;
    let latest = home.join("latest");
    let mut restore = backrest.command(&latest);
    restore.arg("restore");
    succeeded(restore)?;
    let restored = Elsewhere::start(&stage.cluster, &latest, TIMEOUT).await?;
    check_all(&restored, &history).await?;
    drop(restored);

    let then = home.join("then");
    let mut restore = backrest.command(&then);
    restore.args(["--type=time", &format!("--target={}", moment.time)]);
    restore.args(["--target-action=promote", "restore"]);
    succeeded(restore)?;
    let restored = Elsewhere::start(&stage.cluster, &then, TIMEOUT).await?;
    moment.check(&restored, &history).await?;
    drop(restored);
    stage.end().await
}
