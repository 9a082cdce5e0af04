//! `understudy backup drill`: a restore that is tried, looked at, and thrown away.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;
use backup::drill::Drill;
use backup::restore::{Plan, Target};
use coordination::records::unix_ms;
use pgserver::{Installation, Postgres, Session, StartOptions, StopMode};
use serde_json::json;
use supervise::RunAs;
use volume::lsn::Lsn;

use super::opened::{existing, programs};
use super::restore;
use crate::cli;
use crate::exit::{Code, Failure};

/// The port is part of the socket's name and nothing else: the server listens on no address.
const PORT: u16 = 5432;
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// The log is copied as it becomes durable, so its last record may be incomplete.
const MISSED_BYTES: u64 = 1 << 20;
/// A file that says whose the directory is.
const MARK: &str = "understudy-drill";

/// The place of a drill, which is removed when this is dropped.
struct Place {
    root: PathBuf,
}

impl Place {
    /// A directory that did not exist, which only its owner can enter. What a drill has left that was killed is removed.
    fn make(directory: &Path, run_as: Option<&RunAs>) -> anyhow::Result<Place> {
        let root = std::path::absolute(directory)?;
        if root.join(MARK).exists() {
            std::fs::remove_dir_all(&root)?;
        }
        let made = std::fs::DirBuilder::new().mode(0o700).create(&root);
        made.with_context(|| {
            format!(
                "cannot make {}: give a --directory that is not there yet",
                root.display()
            )
        })?;
        let place = Place { root };
        std::fs::write(place.root.join(MARK), "")?;
        place.directory(&place.root, run_as)?;
        for name in ["data", "run"] {
            let path = place.root.join(name);
            std::fs::DirBuilder::new().mode(0o700).create(&path)?;
            place.directory(&path, run_as)?;
        }
        std::fs::write(place.hba(), "local all all trust\n")?;
        place.directory(&place.hba(), run_as)?;
        Ok(place)
    }

    /// Gives a path to whom the server runs as.
    fn directory(&self, path: &Path, run_as: Option<&RunAs>) -> anyhow::Result<()> {
        if let Some((uid, gid)) = run_as.map(RunAs::owner) {
            nix::unistd::chown(path, Some(uid), Some(gid))?;
        }
        Ok(())
    }

    fn hba(&self) -> PathBuf {
        self.root.join("pg_hba.conf")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.root) {
            tracing::warn!(%error, "{} stays behind", self.root.display());
        }
    }
}

pub(super) async fn run(args: cli::DrillBackup) -> anyhow::Result<Code> {
    let drill = tokio::select! {
        drill = try_restore(&args) => drill?,
        () = crate::commands::process::interrupted() => return Ok(Code::Interrupted),
    };
    let is_well = drill.wrong.is_empty();
    if args.from.json {
        println!("{}", json!(drill));
    } else {
        println!(
            "the image {} was restored in {:.1} s and recovered in {:.1} s; last commit: {}",
            drill.image,
            Duration::from_millis(drill.restore_ms).as_secs_f64(),
            Duration::from_millis(drill.recovery_ms).as_secs_f64(),
            drill.last_commit.as_deref().unwrap_or("none in its log")
        );
        drill
            .wrong
            .iter()
            .for_each(|wrong| println!("wrong: {wrong}"));
        println!("{}", if is_well { "all is well" } else { "it failed" });
    }
    Ok(match is_well {
        true => Code::Ok,
        false => Code::Failed,
    })
}

/// Restores, starts, looks, and stops. What does not work is in the result, which is noted in the repository.
async fn try_restore(args: &cli::DrillBackup) -> anyhow::Result<Drill> {
    let repository = existing(&args.from.place).await?;
    let run_as = pgserver::run_as(&args.owner)?;
    let place = Place::make(&args.directory, run_as.as_ref())?;
    let data = place.root.join("data");
    let began = Instant::now();
    let plan = restore::to_directory(&repository, &args.to, None, &data, run_as.as_ref()).await?;
    let restore_ms = began.elapsed().as_millis() as u64;
    let began = Instant::now();
    let mut drill = Drill {
        ended_unix_ms: 0,
        image: plan.image.clone(),
        restore_ms,
        recovery_ms: 0,
        last_commit: None,
        wrong: Vec::new(),
    };
    let bin = programs(args.bin.clone(), plan.server());
    match serve(args, &place, &bin, run_as).await {
        Ok((server, session)) => {
            drill.recovery_ms = began.elapsed().as_millis() as u64;
            let last = "SELECT pg_last_xact_replay_timestamp()::text";
            match session.value(last).await {
                Ok(last) => drill.last_commit = last,
                Err(error) => drill.wrong.push(format!("{error:#}")),
            }
            // It ended its recovery; that it was at the end of what it was given it does not say.
            if plan.is_to_the_end() {
                drill.wrong.extend(ended_early(&data, &plan));
            }
            let looked = look(args, &place, &bin, &session).await;
            drop(session);
            server.stop(StopMode::Fast, STOP_WITHIN).await?;
            drill.wrong.extend(looked?);
        }
        Err(error) => drill.wrong.push(format!("{error:#}")),
    }
    drill.ended_unix_ms = unix_ms();
    drill.note(&repository).await?;
    Ok(drill)
}

/// Says where recovery ended, if that was before the end of the log.
fn ended_early(data: &Path, plan: &Plan) -> Option<String> {
    let Some(at) = fork(data) else {
        return Some("recovery began no timeline".to_owned());
    };
    let missed_bytes = plan.log_end.bytes_since(at);
    let said = || {
        format!(
            "recovery ended at {at}, and the log goes to {}",
            plan.log_end
        )
    };
    (missed_bytes > MISSED_BYTES).then(said)
}

/// Where the newest timeline of a data directory began.
fn fork(data: &Path) -> Option<Lsn> {
    let files = std::fs::read_dir(data.join("pg_wal")).ok()?;
    let histories = files.filter_map(|file| {
        let path = file.ok()?.path();
        path.extension()
            .is_some_and(|end| end == "history")
            .then_some(path)
    });
    let text = std::fs::read_to_string(histories.max()?).ok()?;
    let last = text.lines().rfind(|line| !line.trim().is_empty())?;
    match Target::position(last.split_whitespace().nth(1)?)? {
        Target::Lsn(at) => Some(at),
        _ => None,
    }
}

/// Starts the server, and waits until it has recovered.
async fn serve(
    args: &cli::DrillBackup,
    place: &Place,
    bin: &Path,
    run_as: Option<RunAs>,
) -> anyhow::Result<(Postgres, Session)> {
    let installation = Installation::find(bin)?;
    let settings = [
        ("hba_file", place.hba().display().to_string()),
        ("ssl", "off".to_owned()),
        ("archive_command", String::new()),
        ("max_logical_replication_workers", "0".to_owned()),
    ];
    let options = StartOptions {
        data: place.root.join("data"),
        run: place.root.join("run"),
        log: place.root.join("server.log"),
        port: PORT,
        listen_addresses: String::new(),
        superuser: args.superuser.clone(),
        settings: settings
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        run_as,
    };
    let server = Postgres::start(&installation, options).await?;
    let session = server.wait_ready(args.within).await?;
    session.wait_promoted(args.within).await?;
    Ok((server, session))
}

/// Checks every index and table, and asks the operator's questions.
async fn look(
    args: &cli::DrillBackup,
    place: &Place,
    bin: &Path,
    session: &Session,
) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    for question in &args.query {
        match session.value(question).await {
            Ok(Some(answer)) if answer == "t" => {}
            Ok(answer) => {
                let answer = answer.unwrap_or_else(|| "nothing".to_owned());
                wrong.push(format!("\"{question}\" is {answer}, not true"));
            }
            Err(error) => wrong.push(format!("\"{question}\": {error:#}")),
        }
    }
    if args.no_amcheck {
        return Ok(wrong);
    }
    let program = bin.join("pg_amcheck");
    let mut check = tokio::process::Command::new(&program);
    check
        .args([
            "--all",
            "--install-missing",
            "--heapallindexed",
            "--no-password",
        ])
        .arg("--host")
        .arg(place.root.join("run"))
        .args(["--port", &PORT.to_string(), "--username", &args.superuser])
        .env_clear()
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let checked = check.output().await.map_err(|error| {
        let said = format!("cannot run {}: {error}", program.display());
        Failure::new(Code::Unavailable, said)
            .advise("Install PostgreSQL's contrib programs (Debian: part of the server's package), or give --no-amcheck.")
    })?;
    if !checked.status.success() {
        let said = [checked.stdout, checked.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        wrong.push(format!("pg_amcheck: {}", said.trim()));
    }
    Ok(wrong)
}
