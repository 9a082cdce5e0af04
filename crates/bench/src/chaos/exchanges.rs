//! Exchanges of zones: one of the zone servers is no member, and takes the place of one that is.
//!
//! ```text
//!   spare, empty ── zone replace ──▶ joining ──▶ member; the one that left is emptied, and is the spare
//!        ▲                              │ its disk was lost, or it takes too long
//!        └──── emptied ◀── zone cancel ─┘
//! ```
//!
//! Invariant: between two rounds no exchange is under way, the spare is empty, and every node's configuration lists the
//! members.

use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use super::SIZE;
use super::faults::{Member, Refusal};
use super::stage::{Stage, members, name};
use super::strike::Outcome;

/// An exchange that has not ended so long after everything was healed is given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(180);
/// How long it may take to be told who the members are.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

impl Stage {
    /// An operator lets the spare take a zone's place, or the next one's if it is the spare itself.
    ///
    /// # Errors
    /// The program cannot be asked.
    pub fn order_exchange(&mut self, zone: u8) -> anyhow::Result<Outcome> {
        if std::mem::replace(&mut self.exchanging, true) {
            return Ok(Err(Refusal::Already));
        }
        let leaving = match zone == self.spare {
            true => (zone + 1) % SIZE.zones,
            false => zone,
        };
        let (old, new) = (self.address(leaving)?, self.address(self.spare)?);
        self.order(&["zone", "replace", "--no-wait", &old, &new], None)
    }

    fn address(&self, zone: u8) -> anyhow::Result<String> {
        self.cluster.zone_address(usize::from(zone) + 1)
    }

    /// Sees an exchange through, all faults having been healed for so long. What is missing, if anything.
    ///
    /// # Errors
    /// Something cannot be done that always can.
    pub async fn end_exchange(&mut self, healed: Duration) -> anyhow::Result<Option<String>> {
        if !self.orders.is_empty() {
            return Ok(Some("an operator waits for an answer".into()));
        }
        let listed = match self.listed().await {
            Ok(listed) => listed,
            Err(error) => return Ok(Some(format!("{error:#}"))),
        };
        let change = &listed["members"]["change"];
        if !change.is_null() {
            let spare = self.address(self.spare)?;
            let hopeless = self.faults.damaged().contains(&self.spare) || healed > GIVEN_UP_AFTER;
            let members = &listed["members"]["members"];
            if joins(change, members, &spare) && change["back"] != true && hopeless {
                self.order(&["zone", "cancel"], None)?.ok();
            }
            return Ok(Some(format!("zones are being exchanged: {change}")));
        }
        let addresses = (0..SIZE.zones).map(|zone| self.address(zone));
        let addresses = addresses.collect::<anyhow::Result<Vec<_>>>()?;
        let members = addresses_of(&listed["members"]["members"]);
        let spare = addresses
            .iter()
            .position(|a| !members.contains(&a.as_str()));
        let spare = spare.context("every zone server is a member")? as u8;
        if std::mem::take(&mut self.exchanging) || spare != self.spare {
            self.set_aside(spare, &members)?;
        }
        Ok(None)
    }

    /// What operators do after an exchange: they list the members, and empty the disk of the one that left.
    fn set_aside(&mut self, spare: u8, addresses: &[&str]) -> anyhow::Result<()> {
        tracing::info!(spare, ?addresses, "an exchange is over");
        self.spare = spare;
        for node in members().filter(|member| matches!(member, Member::Node(_))) {
            let config = self.cluster.node(&name(node))?.config.clone();
            let text = std::fs::read_to_string(&config)?;
            let lines = text.lines().map(|line| match line.starts_with("zones = ") {
                true => format!("zones = {addresses:?}"),
                false => line.to_owned(),
            });
            std::fs::write(&config, lines.collect::<Vec<_>>().join("\n"))?;
        }
        self.kill(Member::Zone(spare));
        self.disks[usize::from(spare)].wipe()?;
        self.start(Member::Zone(spare))
    }

    async fn listed(&self) -> anyhow::Result<Value> {
        let config = self.cluster.node(&name(Member::Node(0)))?.config.clone();
        let config = config.display().to_string();
        let asked = ["zone", "list", "--json", "--config", &config];
        let listed = tokio::time::timeout(ANSWER_WITHIN, self.cluster.run(&asked));
        let text = listed.await.context("zone list does not answer")??;
        serde_json::from_str(&text).context("zone list is no JSON")
    }
}

/// The addresses in a list of members.
fn addresses_of(members: &Value) -> Vec<&str> {
    let members = members.as_array().into_iter().flatten();
    members
        .filter_map(|member| member["address"].as_str())
        .collect()
}

/// True if the zone at this address takes another one's place: not its own, as one does whose disk was lost.
fn joins(change: &Value, members: &Value, address: &str) -> bool {
    let leaves = |member: &&Value| {
        let mut leaving = change["leaving"].as_array().into_iter().flatten();
        leaving.any(|store| *store == member["store"])
    };
    let mut leaving = members.as_array().into_iter().flatten().filter(leaves);
    addresses_of(&change["joining"]).contains(&address)
        && leaving.all(|member| member["address"] != address)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The exchange was over, the disk of the zone that had joined was lost, and the run gave its return up.
    #[test]
    fn joining_zone_is_found_in_a_change() {
        let members = json!([
            {"address": "b:1", "store": "2", "zone": 0},
            {"address": "a:1", "store": "3", "zone": 1},
        ]);
        let change =
            json!({"joining": [{"address": "a:1", "store": "1", "zone": 0}], "leaving": ["2"]});
        assert!(joins(&change, &members, "a:1"));
        assert!(!joins(&change, &members, "b:1"));
        assert!(!joins(&Value::Null, &members, "a:1"));
        let returns =
            json!({"joining": [{"address": "a:1", "store": "4", "zone": 1}], "leaving": ["3"]});
        assert!(!joins(&returns, &members, "a:1"));
    }
}
