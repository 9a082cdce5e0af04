//! `understudy failover`: let another node become the active.

use std::time::{Duration, Instant};

use dax::ids::NodeName;
use node::channel::{self, Request};
use node::records::{Heartbeat, Member, MemberState, Record, Role};

use super::registry::{Registry, in_time};
use crate::cli;
use crate::exit::{Code, Failure};

/// Waits until the order is carried out.
const DONE_WITHIN: Duration = Duration::from_secs(60);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Asks the active to hand over; with `--force`, or if it is gone, the standby to take over.
pub async fn run(args: cli::Failover) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.config).await?;
    let storage = &*registry.storage;
    let (members, heartbeat) = in_time(async {
        Ok((
            Member::list(storage).await?,
            Heartbeat::load(storage).await?,
        ))
    })
    .await?;
    let before = heartbeat.map_or(0, |beat| beat.epoch.0);
    let to = args.to.map(NodeName::new).transpose()?;
    let asked = whom(&members, to.as_ref(), args.force)?;
    let me = registry.identity()?;
    let order = Request::Failover {
        to,
        force: args.force,
    };
    channel::request(&asked.channel, &me, order, ANSWER_WITHIN).await?;
    eprintln!(
        "understudy: {} was asked; waiting for the new active",
        asked.name
    );
    let new = wait(&registry, before).await?;
    if args.json {
        println!(
            "{}",
            serde_json::json!({ "active": new.node, "epoch": new.epoch })
        );
    } else {
        println!("{} is the active now ({})", new.node, new.epoch);
    }
    Ok(Code::Ok)
}

/// Who must be asked: the active if it shall cooperate, else the standby.
fn whom<'m>(
    members: &'m [Member],
    to: Option<&NodeName>,
    force: bool,
) -> anyhow::Result<&'m Member> {
    let named = |member: &&Member| to.is_none_or(|to| member.name == *to);
    let standby = members
        .iter()
        .filter(|m| m.role == Role::Standby)
        .find(named);
    let active = members
        .iter()
        .find(|m| m.role == Role::Active && m.state == MemberState::Serving);
    let Some(standby) = standby else {
        let whom = to.map_or("there is no standby".to_owned(), |to| {
            format!("{to} is no standby")
        });
        return Err(Failure::new(Code::Refused, whom)
            .advise("See who is what: understudy status.")
            .into());
    };
    Ok(match (active, force) {
        (Some(active), false) => active,
        _ => standby,
    })
}

async fn wait(registry: &Registry, before: u32) -> anyhow::Result<Heartbeat> {
    let deadline = Instant::now() + DONE_WITHIN;
    loop {
        let beat = in_time(async { Ok(Heartbeat::load(&*registry.storage).await?) }).await?;
        if let Some(beat) = beat
            && beat.epoch.0 > before
            && beat.state == node::records::ActiveState::Serving
        {
            return Ok(beat);
        }
        if Instant::now() > deadline {
            return Err(Failure::new(
                Code::Failed,
                format!("no new active within {DONE_WITHIN:?}"),
            )
            .advise("See what the nodes say: understudy status.")
            .into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, role: &str, state: &str) -> Member {
        serde_json::from_value(serde_json::json!({
            "name": name, "role": role, "state": state, "incarnation": "1",
            "postgres": "127.0.0.1:5432", "channel": "127.0.0.1:7432",
        }))
        .unwrap()
    }

    #[test]
    fn the_active_is_asked_to_hand_over_unless_forced_or_gone() {
        let members = [
            member("a", "active", "serving"),
            member("b", "standby", "warm"),
        ];
        assert_eq!(whom(&members, None, false).unwrap().name.as_str(), "a");
        assert_eq!(whom(&members, None, true).unwrap().name.as_str(), "b");
        assert_eq!(whom(&members[1..], None, false).unwrap().name.as_str(), "b");
        let a = NodeName::new("a").unwrap();
        assert!(whom(&members, Some(&a), false).is_err());
        assert!(whom(&members[..1], None, false).is_err());
    }
}
