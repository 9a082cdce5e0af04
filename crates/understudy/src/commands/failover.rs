//! `understudy switchover` and `understudy failover`: let another node become the active.

use coordination::channel::Party;
use dax::ids::NodeName;
use operations::handover::{HandoverError, How, hand_over};

use super::registry::Registry;
use crate::cli;
use crate::exit::{Code, Failure};

/// Asks the active to hand over; with `--force`, or if it is gone, the standby to take over.
pub async fn run(args: cli::Failover) -> anyhow::Result<Code> {
    let how = match args.force {
        true => How::Forced,
        false => How::IfPossible,
    };
    change(&args.asking, args.to, how).await
}

/// Asks the active to hand over.
pub async fn switch_over(args: cli::Switchover) -> anyhow::Result<Code> {
    change(&args.asking, args.to, How::Planned).await
}

async fn change(asking: &cli::Asking, to: Option<NodeName>, how: How) -> anyhow::Result<Code> {
    let registry = Registry::open(&asking.config).await?;
    let me = Party::new(registry.config.cluster())?;
    eprintln!("understudy: waiting for the new active");
    let done = hand_over(&*registry.storage, &me, to, how).await;
    let new = done.map_err(explain)?;
    if asking.json {
        println!(
            "{}",
            serde_json::json!({ "active": new.node, "epoch": new.epoch })
        );
    } else {
        println!("{} is the active now ({})", new.node, new.epoch);
    }
    Ok(Code::Ok)
}

pub(super) fn explain(error: HandoverError) -> anyhow::Error {
    let (code, advice) = match error {
        HandoverError::NoCandidate(_) => (
            Code::Refused,
            "See the roles of the nodes: understudy status.",
        ),
        HandoverError::NobodyServes => (
            Code::Refused,
            "Have a standby take over: understudy failover.",
        ),
        HandoverError::NotInTime => (Code::Failed, "See what the nodes say: understudy status."),
        // Their kinds say what to do.
        HandoverError::Channel(error) => return error.into(),
        HandoverError::Record(error) => return error.into(),
        other => return other.into(),
    };
    Failure::new(code, error.to_string()).advise(advice).into()
}
