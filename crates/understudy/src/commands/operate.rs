//! What operators ask of a running cluster: pause, resume, restart, reload, reinit, remove, flush, and a
//! switchover at a time.

use std::time::{Duration, SystemTime};

use coordination::records::{Control, EditError};
use operations::operate::{OperateError, Operator, parse_time};
use serde_json::json;

use super::failover;
use super::history::utc;
use super::registry::Registry;
use crate::cli::{self, Asking};
use crate::exit::{Code, Failure};

/// How long nodes may take to hear of a change: they read it every second.
const HEARD_WITHIN: Duration = Duration::from_secs(30);

async fn operator(asking: &Asking) -> anyhow::Result<Operator> {
    let registry = Registry::open(&asking.config).await?;
    registry.operator()
}

/// Says what was done: as JSON, or in words.
fn said(asking: &Asking, done: serde_json::Value, words: impl std::fmt::Display) -> Code {
    match asking.json {
        true => println!("{done}"),
        false => println!("{words}"),
    }
    Code::Ok
}

/// Switches takeovers off.
pub async fn pause(args: cli::Pause) -> anyhow::Result<Code> {
    let operator = operator(&args.asking).await?;
    let control = operator.pause(args.reason).await.map_err(explain)?;
    heard(&operator, &control, args.wait).await?;
    let done = json!({ "paused": true, "version": control.version });
    Ok(said(
        &args.asking,
        done,
        "paused: no standby takes over by itself",
    ))
}

/// Switches takeovers on.
pub async fn resume(args: cli::Resume) -> anyhow::Result<Code> {
    let operator = operator(&args.asking).await?;
    let control = operator.resume().await.map_err(explain)?;
    heard(&operator, &control, args.wait).await?;
    let done = json!({ "paused": false, "version": control.version });
    Ok(said(
        &args.asking,
        done,
        "resumed: standbys take over again",
    ))
}

async fn heard(operator: &Operator, control: &Control, wait: bool) -> anyhow::Result<()> {
    if wait {
        let heard = operator.wait_known(control.version, HEARD_WITHIN).await;
        heard.map_err(explain)?;
    }
    Ok(())
}

/// Restarts PostgreSQL.
pub async fn restart(args: cli::Restart) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.asking.config).await?;
    let operator = registry.operator()?;
    let tell = |step: &str| eprintln!("understudy: {step}");
    let node = args
        .node
        .unwrap_or_else(|| registry.config.cluster().name.clone());
    let (done, what) = match (args.all, args.rolling) {
        (true, true) => (
            operator.restart_rolling(tell).await,
            "every node".to_owned(),
        ),
        (true, false) => (operator.restart_all(tell).await, "every node".to_owned()),
        (false, _) => (operator.restart(&node).await, node.to_string()),
    };
    done.map_err(explain)?;
    let words = format!("restarted PostgreSQL on {what}");
    Ok(said(&args.asking, json!({ "restarted": what }), words))
}

/// Has every PostgreSQL read its files again.
pub async fn reload(args: cli::Reload) -> anyhow::Result<Code> {
    let silent = operator(&args.asking)
        .await?
        .reload()
        .await
        .map_err(explain)?;
    for (node, why) in &silent {
        eprintln!("understudy: {node} was not reached: {why}");
    }
    let names: Vec<_> = silent.iter().map(|(node, _)| node).collect();
    said(
        &args.asking,
        json!({ "reloaded": true, "silent": names }),
        "reloaded",
    );
    Ok(match silent.is_empty() {
        true => Code::Ok,
        false => Code::Failed,
    })
}

/// Has a standby begin anew.
pub async fn reinit(args: cli::Reinit) -> anyhow::Result<Code> {
    let operator = operator(&args.asking).await?;
    operator.reinitialize(&args.node).await.map_err(explain)?;
    let words = format!("{} has reattached and is warm", args.node);
    Ok(said(
        &args.asking,
        json!({ "reinitialized": args.node }),
        words,
    ))
}

/// Forgets a dead node.
pub async fn remove(args: cli::Remove) -> anyhow::Result<Code> {
    let operator = operator(&args.asking).await?;
    operator.remove(&args.node).await.map_err(explain)?;
    let words = format!("{} is forgotten; if it starts again, it joins", args.node);
    Ok(said(&args.asking, json!({ "removed": args.node }), words))
}

/// Takes a node's libraries for the volume's.
pub async fn accept_collations(args: cli::AcceptCollations) -> anyhow::Result<Code> {
    let operator = operator(&args.asking).await?;
    let libraries = operator
        .accept_collations(&args.node)
        .await
        .map_err(explain)?;
    let version = |version: &Option<String>| version.clone().unwrap_or_else(|| "unknown".into());
    let words = format!(
        "glibc {} and ICU {} of {} count as the volume's; rebuild indexes on text once it serves: reindexdb --all",
        version(&libraries.glibc),
        version(&libraries.icu),
        args.node
    );
    Ok(said(&args.asking, json!({ "accepted": libraries }), words))
}

/// Exchanges roles, now or at a time.
pub async fn switch_over(args: cli::Switchover) -> anyhow::Result<Code> {
    let Some(at) = &args.at else {
        return failover::switch_over(args).await;
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let at_unix_ms = parse_time(at, now.as_millis() as u64)
        .map_err(|why| Failure::new(Code::Usage, format!("{at:?} is no time: {why}")))?;
    let operator = operator(&args.asking).await?;
    operator
        .schedule(at_unix_ms, args.to)
        .await
        .map_err(explain)?;
    let at = utc(at_unix_ms);
    let words = format!("a switchover is scheduled at {at} UTC");
    Ok(said(
        &args.asking,
        json!({ "scheduled_at_unix_ms": at_unix_ms }),
        words,
    ))
}

/// Cancels what is planned.
pub async fn flush(args: cli::Flush) -> anyhow::Result<Code> {
    let cli::Planned::Switchover(args) = args.what;
    operator(&args.asking)
        .await?
        .unschedule()
        .await
        .map_err(explain)?;
    Ok(said(
        &args.asking,
        json!({ "flushed": true }),
        "the scheduled switchover is cancelled",
    ))
}

pub(super) fn explain(error: OperateError) -> anyhow::Error {
    let (code, advice) = match error {
        OperateError::Edit(error) => return explain_edit(error),
        OperateError::Handover(error) => return failover::explain(error),
        OperateError::Channel(error) => return error.into(),
        OperateError::Record(error) => return error.into(),
        OperateError::NoSuchNode(_) | OperateError::Refused(_) | OperateError::NotNow(_) => (
            Code::Refused,
            "See the roles of the nodes: understudy list.",
        ),
        OperateError::NotInTime(_) => (Code::Failed, "See what the nodes say: understudy status."),
        other => return other.into(),
    };
    Failure::new(code, error.to_string()).advise(advice).into()
}

pub(super) fn explain_edit(error: EditError) -> anyhow::Error {
    let advice = match error {
        EditError::Record(error) => return error.into(),
        EditError::Refused(why) => return Failure::new(Code::Refused, why).into(),
        _ => "See what is there now: understudy show-config.",
    };
    Failure::new(Code::Refused, error.to_string())
        .advise(advice)
        .into()
}
