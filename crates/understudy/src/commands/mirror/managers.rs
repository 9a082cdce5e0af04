//! Asks both managers of a mirror.

use std::path::Path;

use coordination::config::{ClusterConfig, check_keys};
use mirror::driver::Status;
use mirror::driver::config::Config;
use mirror::driver::peer::{Question, ask};

use crate::commands::process::load_table;
use crate::exit::{Code, Failure};

/// Reads the configuration of the cluster and of the mirror.
pub(super) fn load(file: &Path) -> anyhow::Result<(ClusterConfig, Config)> {
    let advice = "Write [mirror], and below it peer_listen, peer, member and other_member.";
    let check = |text: &str| check_keys(text, &[("", &["mirror"])]);
    let (cluster, mirror) = load_table(file, check, "mirror", advice)?;
    let config =
        Config::parse(&mirror).map_err(|error| Failure::new(Code::Usage, error.to_string()))?;
    Ok((cluster, config))
}

/// Answers of both managers, the one of the file first; nothing from one that cannot be reached. A single member has one.
pub(super) async fn ask_both(
    file: &Path,
    question: Question,
) -> anyhow::Result<Vec<Option<Result<String, String>>>> {
    let (cluster, config) = load(file)?;
    let tls = cluster.tls()?;
    let (own, other) = (config.peer_listen.to_string(), config.peer);
    if config.single {
        return Ok(vec![ask(&own, tls.as_ref(), question).await.ok()]);
    }
    let told = tokio::join!(
        ask(&own, tls.as_ref(), question),
        ask(&other, tls.as_ref(), question)
    );
    Ok(vec![told.0.ok(), told.1.ok()])
}

pub(super) async fn statuses(file: &Path) -> anyhow::Result<Vec<Option<Status>>> {
    let told = ask_both(file, Question::Status).await?;
    told.into_iter()
        .map(|told| match told {
            Some(Ok(json)) => Ok(Some(serde_json::from_str(&json)?)),
            _ => Ok(None),
        })
        .collect()
}

/// Asks the manager that is primary.
pub(super) async fn ask_primary(file: &Path, question: Question) -> anyhow::Result<String> {
    let at = statuses(file)
        .await?
        .iter()
        .position(|status| status.as_ref().is_some_and(|status| status.role.serves()));
    let none = || {
        Failure::new(Code::Unavailable, "no manager is primary")
            .advise("Look at both with understudy mirror status.")
    };
    let at = at.ok_or_else(none)?;
    let (cluster, config) = load(file)?;
    let address = match at {
        0 => config.peer_listen.to_string(),
        _ => config.peer,
    };
    let told = ask(&address, cluster.tls()?.as_ref(), question).await?;
    Ok(told.map_err(|why| Failure::new(Code::Refused, why))?)
}
