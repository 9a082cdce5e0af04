//! Commands on branches that are killed at any time: the same command, or a drop, makes everything good.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::process::Process;
use coordination::records::{Branch, Record};
use dax::storage::{Storage, Usage};
use rand::random_range;
use serde_json::Value;
use volume::past::Pin;

use crate::backups::wanted;
use crate::branched::{KEEP, command, names, number};
use crate::operator::json;
use crate::past::registry;
use crate::slots::active;
use crate::stage::{Stage, program};
use crate::verbs::until;

/// Kills of each kind; more of them by hand.
const KILLS: (&str, usize) = ("UNDERSTUDY_TEST_KILLS", 2);

/// Begins a command, and kills it with all that it has started.
fn killed_after(stage: &Stage, arguments: &[&str], time: Duration) -> Result<()> {
    let mut command = Command::new(program());
    command
        .args(arguments)
        .arg("--config")
        .arg(&stage.cluster.node("north")?.config)
        .arg("--secret-file")
        .arg(stage.path().join("zones.secret"))
        .stdin(Stdio::null());
    let mut process = Process::spawn("killed", command, &stage.path().join("killed.log"))?;
    std::thread::sleep(time);
    process.kill_all();
    Ok(())
}

fn unmount(place: &Path) {
    let data = place.join("node/pgdata");
    let _ = Command::new("fusermount3")
        .args(["-u", "-z"])
        .arg(data)
        .output();
    let _ = std::fs::remove_dir_all(place);
}

fn create<'a>(name: &'a str, place: &'a str) -> [&'a str; 5] {
    ["branch", "create", name, "--directory", place]
}

/// Whenever `create`, `reset` or `drop` is killed, `drop` removes everything that was made.
// hazard: BRANCH-1
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn commands_that_are_killed_leave_what_a_drop_removes() -> Result<()> {
    let mut stage = Stage::set("branch-kills").await?;
    stage.commits(50).await?;
    let storage = registry(&stage).await?;
    let place = stage.path().join("try");
    let text = place.display().to_string();
    let began = Instant::now();
    ensure!(command(&stage, &create("try", &text))?.status.success());
    let whole = began.elapsed();
    for kill in 0..wanted(KILLS)? {
        // One that is there is reset or dropped, and killed in it; then another one is made, and killed in it.
        let is_reset = kill % 2 == 0;
        let verb = if is_reset { "reset" } else { "drop" };
        let mut arguments = vec!["branch", verb, "try"];
        if is_reset {
            arguments.extend(["--directory", &text]);
        }
        killed_after(&stage, &arguments, whole.mul_f64(random_range(0.0..1.1)))?;
        if is_reset && names(&stage)?.iter().any(|name| name == "try") {
            let finished = command(&stage, &arguments)?;
            ensure!(finished.status.success(), "{finished:?}");
            ensure!(names(&stage)? == ["try"], "{:?}", names(&stage)?);
        }
        drop_all(&stage)?;
        unmount(&place);
        killed_after(
            &stage,
            &create("try", &text),
            whole.mul_f64(random_range(0.0..1.1)),
        )?;
        unmount(&place);
        drop_all(&stage)?;
        ensure!(command(&stage, &create("try", &text))?.status.success());
        stage.commits(20).await?;
    }
    of_two_names_one_is_dropped(&stage, &storage).await?;
    a_users_branch_is_not_taken_for_a_resets(&stage)?;
    drop_all(&stage)?;
    ensure!(Pin::all(&storage).await?.is_empty());
    until(
        "no volume is left",
        async || Ok(storage.usage().await?),
        |usage| usage.iter().all(|(_, usage)| usage.relatives.is_empty()),
    )
    .await?;
    stage.verify().await
}

/// A name that a reset needs may be a user's.
fn a_users_branch_is_not_taken_for_a_resets(stage: &Stage) -> Result<()> {
    let place = stage.path().join("new");
    let (text, of) = (place.display().to_string(), stage.path().join("try"));
    ensure!(command(stage, &create("try-new", &text))?.status.success());
    let of = of.display().to_string();
    let refused = command(stage, &["branch", "reset", "try", "--directory", &of])?;
    ensure!(refused.status.code() == Some(4), "{refused:?}");
    ensure!(names(stage)? == ["try", "try-new"], "{:?}", names(stage)?);
    Ok(())
}

/// A reset that died between its steps has left two names of one volume: a drop of one does not touch the other.
async fn of_two_names_one_is_dropped(stage: &Stage, storage: &Arc<dyn Storage>) -> Result<()> {
    let there = Branch::load_named(storage.as_ref(), &Branch::record_name("try")).await?;
    let there = there.context("it is there")?;
    let twin = Branch {
        name: "try-old".to_owned(),
        reset_of: Some("try".to_owned()),
        ..there.clone()
    };
    twin.store(storage.as_ref()).await?;
    let dropped = command(stage, &["branch", "drop", "try-old"])?;
    ensure!(dropped.status.success(), "{dropped:?}");
    ensure!(names(stage)? == ["try"], "{:?}", names(stage)?);
    let usage = storage.usage().await?;
    let is_there =
        |(_, usage): &(_, Usage)| usage.relatives.iter().any(|one| one.volume == there.volume);
    ensure!(usage.iter().all(is_there), "its volume is gone: {usage:?}");
    Ok(())
}

fn drop_all(stage: &Stage) -> Result<()> {
    for name in names(stage)? {
        let dropped = command(stage, &["branch", "drop", &name])?;
        ensure!(dropped.status.success(), "{name}: {dropped:?}");
    }
    Ok(())
}

/// Whenever a promotion is killed, the database is served in one of both histories, and the same command finishes.
// hazard: MOVE-1
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn promotions_that_are_killed_move_the_database_or_do_not() -> Result<()> {
    let mut stage = Stage::with_options("promote-kills", &["north", "south"], |options| {
        options.past.push(KEEP.to_owned());
    })
    .await?;
    let client = active(&mut stage).await?;
    client
        .batch_execute("CREATE TABLE way (history text); INSERT INTO way VALUES ('main')")
        .await?;
    drop(client);
    let place = stage.path().join("other").display().to_string();
    ensure!(command(&stage, &create("other", &place))?.status.success());
    let made = json(&command(&stage, &["branch", "promote", "other", "--json"])?)?;
    println!("{made}");
    let main = made["left"].as_str().context("a name")?.to_owned();
    let whole = Duration::from_millis(made["pause_ms"].as_u64().context("it is served")?);
    // Rows that each history must have.
    let mut rows = [1_i64, 1];
    for kill in 0..wanted(KILLS)? {
        let (to, of) = match kill % 2 {
            0 => (main.as_str(), 0),
            _ => ("other", 1),
        };
        let promote = ["branch", "promote", to];
        killed_after(&stage, &promote, whole.mul_f64(random_range(0.0..0.6)))?;
        let finished = command(&stage, &promote)?;
        // It may be there already.
        ensure!(
            matches!(finished.status.code(), Some(0 | 4)),
            "{finished:?}"
        );
        let client = active(&mut stage).await?;
        let found = number(&client, "SELECT count(*) FROM way").await?;
        ensure!(found == rows[of], "{to}: {found} rows, not {}", rows[of]);
        client
            .batch_execute("INSERT INTO way VALUES ('more')")
            .await?;
        rows[of] += 1;
        let listed = json(&command(&stage, &["branch", "list", "--json"])?)?;
        let current: Vec<&Value> = listed
            .as_array()
            .context("a list")?
            .iter()
            .filter(|one| one["current"] == true)
            .map(|one| &one["name"])
            .collect();
        ensure!(current == [to], "{listed}");
    }
    stage.end().await
}
