//! `understudy upgrade`: shows and finishes an upgrade of Understudy itself.

use operations::upgrade::Upgrade;
use serde_json::json;

use super::operate::explain;
use super::registry::{Registry, in_time};
use crate::cli::{self, Asking};
use crate::exit::Code;

/// Runs what was asked for.
pub async fn run(command: cli::Upgrade) -> anyhow::Result<Code> {
    let (asking, finish) = match &command {
        cli::Upgrade::Status(asking) => (asking, false),
        cli::Upgrade::Finish(asking) => (asking, true),
    };
    let registry = Registry::open(&asking.config).await?;
    // Every zone that is there has answered then.
    let _ = in_time(async { Ok(registry.storage.usage().await?) }).await;
    let operator = registry.operator()?;
    let upgrade = match finish {
        true => operator.finish_upgrade().await,
        false => operator.upgrade().await,
    };
    say(asking, &upgrade.map_err(explain)?);
    Ok(Code::Ok)
}

fn say(asking: &Asking, upgrade: &Upgrade) {
    let finished = upgrade.is_finished();
    if asking.json {
        let mut json = json!(upgrade);
        json["finished"] = json!(finished);
        return println!("{json}");
    }
    print!("{}", table(upgrade));
}

fn table(upgrade: &Upgrade) -> String {
    let mut text = format!(
        "forms written: {}, known to this program: {}\n\n",
        upgrade.written, upgrade.newest
    );
    for node in &upgrade.nodes {
        text += &format!("node {:<24} reads {}\n", node.node.as_str(), node.reads);
    }
    for zone in &upgrade.zones {
        let knows = zone.knows.map_or("does not answer".to_owned(), |forms| {
            format!("knows {forms}")
        });
        text += &format!("zone {:<24} {knows}\n", zone.address);
    }
    text += &match (&upgrade.behind, upgrade.is_finished()) {
        (_, true) => "\nthe upgrade is finished\n".to_owned(),
        (None, false) => "\nthe upgrade can be finished: understudy upgrade finish\n".to_owned(),
        (Some(behind), false) => format!("\nthe upgrade cannot be finished yet: {behind}\n"),
    };
    text
}

#[cfg(test)]
mod tests {
    use coordination::records::MemberState;
    use dax::forms::Forms;
    use dax::ids::NodeName;
    use operations::upgrade::{NodeReads, ZoneKnows};

    use super::*;

    #[test]
    fn the_table_says_who_is_behind_and_what_to_do() {
        let mut upgrade = Upgrade {
            written: Forms::RELEASE_0_1,
            newest: Forms::NEWEST,
            nodes: vec![NodeReads {
                node: NodeName::new("south").unwrap(),
                state: MemberState::Warm,
                reads: Forms::RELEASE_0_1,
            }],
            zones: vec![ZoneKnows {
                address: "zone1:7101".into(),
                knows: None,
            }],
            behind: Some("node south reads forms up to 1".into()),
        };
        let text = table(&upgrade);
        assert!(
            text.contains("reads 1") && text.contains("does not answer"),
            "{text}"
        );
        assert!(
            text.contains("cannot be finished yet: node south"),
            "{text}"
        );
        upgrade.behind = None;
        assert!(table(&upgrade).contains("understudy upgrade finish"));
        upgrade.written = Forms::NEWEST;
        assert!(table(&upgrade).ends_with("the upgrade is finished\n"));
    }
}
