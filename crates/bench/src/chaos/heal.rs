//! Between two rounds: everything is healed, and has to become whole again by itself.

use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;

use super::faults::Member;
use super::stage::Stage;

/// How long that may take; a rebuild of a disk on a busy machine takes longest.
const WITHIN: Duration = Duration::from_secs(900);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often it is told what is missing.
const TELL_EVERY: Duration = Duration::from_secs(20);
/// Commits that have to be acknowledged after all.
const COMMITS: u64 = 5;

impl Stage {
    /// Ends all faults, gives damaged zones new disks, and waits until everybody serves or follows, every zone has
    /// every copy, and clients commit. How long that took, or what is missing.
    ///
    /// # Errors
    /// Something cannot be done that always can.
    pub async fn heal(&mut self, say: &impl Fn(&str)) -> anyhow::Result<Result<Duration, String>> {
        let began = Instant::now();
        let now = self.now();
        self.faults.end_all(now);
        self.tick()?;
        // What rotted may not be found before somebody reads it: who knows of it takes the disk away.
        for zone in self.faults.damaged().clone() {
            self.kill(Member::Zone(zone));
            self.disks[usize::from(zone)].wipe()?;
            self.start(Member::Zone(zone))?;
        }
        let (mut goal, mut told) = (None, began);
        loop {
            self.tick()?;
            let missing = match self.end_exchange(began.elapsed()).await? {
                None => self.missing().await,
                exchanging => exchanging,
            };
            let missing = match missing {
                Some(why) => why,
                None => {
                    let goal = *goal.get_or_insert_with(|| self.commits() + COMMITS);
                    if self.commits() >= goal {
                        break;
                    }
                    "clients do not commit".to_owned()
                }
            };
            if told.elapsed() > TELL_EVERY {
                told = Instant::now();
                say(&format!(
                    "not whole for {:.0} s: {missing}",
                    began.elapsed().as_secs_f64()
                ));
            }
            if began.elapsed() > WITHIN {
                let trouble = self.clients.transfers.trouble().unwrap_or_default();
                return Ok(Err(format!("{missing}; a client's last words: {trouble}")));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.faults.rebuilt();
        let took = began.elapsed();
        self.healed.push(took);
        Ok(Ok(took))
    }

    /// What is not as it should be, by `understudy status`.
    async fn missing(&self) -> Option<String> {
        let asked = tokio::time::timeout(Duration::from_secs(20), self.cluster.ask("status"));
        let status = match asked.await {
            Ok(Ok(text)) => serde_json::from_str(&text).context("status is no JSON"),
            Ok(Err(error)) => Err(error),
            Err(_) => return Some("status does not answer".into()),
        };
        match status {
            Ok(status) => incomplete(&status),
            Err(error) => Some(format!("{error:#}")),
        }
    }
}

/// What a status says is missing.
fn incomplete(status: &Value) -> Option<String> {
    let active = status["active"].as_str();
    let Some(active) = active else {
        return Some("nobody serves".into());
    };
    for node in status["nodes"].as_array().into_iter().flatten() {
        let (name, state) = (&node["name"], &node["state"]);
        let good = match name == active {
            true => state == "serving",
            false => state == "warm",
        };
        if node["reachable"] != true || !good {
            return Some(format!("{name} is {state}"));
        }
    }
    for replica in status["replicas"].as_array().into_iter().flatten() {
        let whole = replica["up"] == true
            && replica["rebuilding"] == false
            && replica["missed_blocks"] == 0
            && replica["scrub_wanted"] == false;
        if !whole {
            return Some(format!("a zone is not whole: {replica}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_is_one_who_serves_two_who_are_warm_and_zones_that_miss_nothing() {
        let replica = |rebuilding: bool| json!({"up": true, "rebuilding": rebuilding, "missed_blocks": 0, "scrub_wanted": false});
        let node =
            |name: &str, state: &str| json!({"name": name, "state": state, "reachable": true});
        let status = |second: &str, rebuilding| {
            json!({
                "active": "north",
                "nodes": [node("north", "serving"), node("south", second)],
                "replicas": [replica(false), replica(rebuilding)],
            })
        };
        assert_eq!(incomplete(&status("warm", false)), None);
        assert!(incomplete(&status("catching_up", false)).is_some());
        assert!(incomplete(&status("warm", true)).is_some());
        assert!(incomplete(&json!({"active": null})).is_some());
    }
}
