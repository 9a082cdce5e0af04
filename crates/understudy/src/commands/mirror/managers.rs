//! Asks both managers of a mirror. A manager that does not answer is not available now, for every command.

use std::io;
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
            // A manager of another version.
            Some(Ok(json)) => serde_json::from_str(&json).map(Some).map_err(|error| {
                let why = format!("a manager's status cannot be read: {error}");
                Failure::new(Code::Unavailable, why)
                    .advise("Run the command of the manager's own version.")
                    .into()
            }),
            _ => Ok(None),
        })
        .collect()
}

/// The failure of a command that a manager does not answer.
pub(super) fn silent(error: &io::Error) -> Failure {
    let why = format!("a manager does not answer: {error}");
    Failure::new(Code::Unavailable, why).advise("Look at both with understudy mirror status.")
}

/// The failure of a command that a manager has answered with a reason. Members that are not compared, or a history that cannot be read,
/// are not available now; anything else is refused.
pub(super) fn declined(question: Question, is_single: bool, why: String) -> Failure {
    let code = match question {
        Question::Verify | Question::History if !is_single => Code::Unavailable,
        _ => Code::Refused,
    };
    Failure::new(code, why)
}

/// The answer of a manager, or the failure of the command.
fn answer(
    question: Question,
    is_single: bool,
    asked: io::Result<Result<String, String>>,
) -> Result<String, Failure> {
    let told = asked.map_err(|error| silent(&error))?;
    told.map_err(|why| declined(question, is_single, why))
}

/// The place and the status of the primary; of two that say they are, the one of the later epoch.
fn primary(statuses: &[Option<Status>]) -> Option<(usize, &Status)> {
    let all = statuses.iter().enumerate();
    let known = all.filter_map(|(at, status)| Some((at, status.as_ref()?)));
    let serving = known.filter(|(_, status)| status.role.serves());
    serving.max_by_key(|(_, status)| status.epoch)
}

/// The request that the primary hands over. It is refused if the epoch is another one by then.
pub(super) fn switchover(statuses: &[Option<Status>]) -> Question {
    let epoch = primary(statuses).and_then(|(_, status)| status.epoch);
    epoch.map_or(Question::Switchover, Question::SwitchoverIn)
}

/// Asks the manager that is primary by these statuses.
pub(super) async fn ask_primary(
    file: &Path,
    statuses: &[Option<Status>],
    question: Question,
) -> anyhow::Result<String> {
    let none = || {
        Failure::new(Code::Unavailable, "no manager is primary")
            .advise("Look at both with understudy mirror status.")
    };
    let (at, _) = primary(statuses).ok_or_else(none)?;
    let (cluster, config) = load(file)?;
    let address = match at {
        0 => config.peer_listen.to_string(),
        _ => config.peer,
    };
    let asked = ask(&address, cluster.tls()?.as_ref(), question).await;
    Ok(answer(question, config.single, asked)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(epoch: Option<u32>, role: &str) -> Option<Status> {
        let status = serde_json::json!({
            "name": "m", "role": role, "epoch": epoch, "logged": 1, "applied": 1, "other_applied": 1, "has_standby": true,
            "ack": "both", "clients": 0, "difference": null, "is_filling": false,
        });
        Some(serde_json::from_value(status).expect("a status"))
    }

    /// It ended with 1, as if the members differed.
    #[test]
    fn a_manager_that_dies_during_a_comparison_is_not_available() {
        let lost = || Err(io::ErrorKind::UnexpectedEof.into());
        for question in [Question::Verify, Question::SwitchoverIn(7), Question::Adopt] {
            let failure = answer(question, false, lost()).expect_err("it is lost");
            assert_eq!(failure.code(), Code::Unavailable, "{question:?}");
        }
        let why = || Ok(Err("this manager is not primary".to_owned()));
        let failure = answer(Question::Verify, false, why()).expect_err("not compared");
        assert_eq!(failure.code(), Code::Unavailable);
        let failure = answer(Question::SwitchoverIn(7), false, why()).expect_err("refused");
        assert_eq!(failure.code(), Code::Refused);
        let failure = answer(Question::Verify, true, why()).expect_err("there is no mirror");
        assert_eq!(failure.code(), Code::Refused);
        let told = answer(Question::Verify, false, Ok(Ok("{}".to_owned())));
        assert_eq!(told.expect("an answer"), "{}");
    }

    /// The request went to whoever was primary when it was sent, which may be the one that was to take over.
    #[test]
    fn a_switchover_names_the_epoch_that_was_looked_at() {
        let statuses = [status(None, "standby"), status(Some(7), "primary")];
        assert_eq!(switchover(&statuses), Question::SwitchoverIn(7));
        assert_eq!(primary(&statuses).map(|(at, _)| at), Some(1));
        // One that has not heard of its end.
        let both = [status(Some(8), "primary"), status(Some(7), "primary")];
        assert_eq!(switchover(&both), Question::SwitchoverIn(8));
        assert_eq!(switchover(&[None, None]), Question::Switchover);
    }
}
