//! Looks at the cluster each second, so that the page is answered from memory and has a history at once.
//!
//! Each node looks by itself: at the registry, and at the other nodes over the direct channel. Whoever
//! does not answer is waited for in the background; meanwhile the last answer stands. Invariant: a slow
//! zone or node delays no look, and nothing here changes anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coordination::channel::{self, ChannelError, Request};
use coordination::records::unix_ms;
use coordination::records::{BackupState, Control, Heartbeat, Member, Record, read_history};
use dax::ids::{Epoch, NodeName};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use super::samples::Samples;
use super::state::{Answer, Registry, Sight, document, sample};
use crate::rest::{REGISTRY_WITHIN, Shared};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A look waits so long for answers; what comes later is in the next one.
const LOOK_WITHIN: Duration = Duration::from_millis(500);
/// A node that says nothing for so long does not answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// What changes slowly is read every so many looks.
const SLOW_EVERY: u32 = 5;
/// Changes of the active that the page shows.
const CHANGES: usize = 10;

/// What the page is answered from.
#[derive(Default)]
pub(in crate::rest) struct Observed {
    document: Value,
    samples: Samples,
}

impl Observed {
    /// The repositories of backups.
    pub(in crate::rest) fn backups(&self) -> Value {
        self.document["backups"].clone()
    }

    /// The page's document, with the samples after a moment.
    pub(super) fn state(&self, after_unix_ms: u64) -> Value {
        let mut state = self.document.clone();
        if state.is_object() {
            state["unix_ms"] = json!(unix_ms());
            state["samples"] = json!(self.samples.after(after_unix_ms).collect::<Vec<_>>());
        }
        state
    }
}

/// Looks until it is dropped.
pub(in crate::rest) async fn observe(shared: Arc<Shared>) {
    let mut observer = Observer {
        shared,
        registry: Registry::default(),
        trouble: None,
        reading: None,
        reads: 0,
        beat: None,
        nodes: BTreeMap::new(),
    };
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        observer.look().await;
    }
}

/// A question under way, and what was said last.
struct Asked {
    task: Option<Background<Answer>>,
    last: Answer,
}

impl Asked {
    fn nothing_yet() -> Asked {
        Asked {
            task: None,
            last: Answer::Nothing("not asked yet".to_owned()),
        }
    }
}

/// A task that ends with whoever waits for it.
struct Background<T>(JoinHandle<T>);

impl<T: Send + 'static> Background<T> {
    fn spawn(work: impl Future<Output = T> + Send + 'static) -> Background<T> {
        Background(tokio::spawn(work))
    }

    /// Its result, if it is there by then.
    async fn result(&mut self, by: Instant) -> Option<T> {
        let done = tokio::time::timeout_at(by, &mut self.0).await.ok()?;
        Some(done.expect("asking neither panics nor is cancelled"))
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

type Read = Result<Registry, String>;

struct Observer {
    shared: Arc<Shared>,
    registry: Registry,
    trouble: Option<String>,
    reading: Option<Background<Read>>,
    reads: u32,
    /// The last heartbeat that was seen, and since when.
    beat: Option<(Epoch, u64, Instant)>,
    nodes: BTreeMap<NodeName, Asked>,
}

impl Observer {
    async fn look(&mut self) {
        let by = Instant::now() + LOOK_WITHIN;
        self.read_registry(by).await;
        self.ask(by).await;
        let storage = self.shared.storage.get();
        let replicas = storage.map_or_else(Vec::new, |storage| storage.replicas());
        let own = self.shared.status().await;
        let nodes: Vec<_> = self
            .registry
            .members
            .iter()
            .map(|m| (m.clone(), self.answer(m, &own)))
            .collect();
        let mut observed = self.shared.observed.lock();
        let since = &observed.document["unserved_since_unix_ms"];
        let document = document(&Sight {
            facts: &self.shared.facts,
            unix_ms: unix_ms(),
            registry: &self.registry,
            trouble: self.trouble.as_deref(),
            silent_ms: self
                .beat
                .map_or(0, |(.., since)| since.elapsed().as_millis() as u64),
            nodes: &nodes,
            replicas: &replicas,
            unserved_since_unix_ms: since.as_u64(),
        });
        observed.samples.push(sample(&document));
        observed.document = document;
    }

    /// Reads the registry in the background; what is there in time counts for this look.
    async fn read_registry(&mut self, by: Instant) {
        let reading = self.reading.get_or_insert_with(|| {
            let (shared, last) = (Arc::clone(&self.shared), self.registry.clone());
            let slow = self.reads.is_multiple_of(SLOW_EVERY);
            self.reads = self.reads.wrapping_add(1);
            Background::spawn(async move {
                let read = tokio::time::timeout(REGISTRY_WITHIN, read(&shared, last, slow)).await;
                read.unwrap_or_else(|_| Err("the zones do not answer".to_owned()))
            })
        });
        let Some(read) = reading.result(by).await else {
            return;
        };
        self.reading = None;
        match read {
            Ok(registry) => {
                self.trouble = None;
                self.registry = registry;
            }
            Err(why) => self.trouble = Some(why),
        }
        let beat = self
            .registry
            .heartbeat
            .as_ref()
            .map(|b| (b.epoch, b.counter));
        if beat != self.beat.map(|(epoch, counter, _)| (epoch, counter)) {
            self.beat = beat.map(|(epoch, counter)| (epoch, counter, Instant::now()));
        }
    }

    /// Asks every other node, each once at a time.
    async fn ask(&mut self, by: Instant) {
        let me = self.shared.party.clone();
        self.nodes
            .retain(|name, _| self.registry.members.iter().any(|m| m.name == *name));
        for member in self
            .registry
            .members
            .iter()
            .filter(|m| m.name != me.me.node)
        {
            let asked = self.nodes.entry(member.name.clone());
            let asked = asked.or_insert_with(Asked::nothing_yet);
            let question = || Background::spawn(ask(member.clone(), me.clone()));
            asked.task.get_or_insert_with(question);
        }
        for asked in self.nodes.values_mut() {
            let Some(task) = &mut asked.task else {
                continue;
            };
            if let Some(answer) = task.result(by).await {
                (asked.task, asked.last) = (None, answer);
            }
        }
    }

    /// What a node said last; this one says `own`.
    fn answer(&self, member: &Member, own: &Value) -> Answer {
        if member.name == self.shared.me.node {
            return Answer::Status(own.clone());
        }
        let asked = self.nodes.get(&member.name);
        asked.map_or_else(
            || Answer::Nothing("not asked yet".to_owned()),
            |a| a.last.clone(),
        )
    }
}

async fn ask(member: Member, me: channel::Party) -> Answer {
    match channel::request(&member.channel, &me, Request::Status, ANSWER_WITHIN).await {
        Ok(status) => Answer::Status(status),
        Err(error @ ChannelError::Refused { .. }) => Answer::Refused(error.to_string()),
        Err(error) => Answer::Nothing(error.to_string()),
    }
}

/// The registry as it is now; what changes slowly is taken over from the last time, unless it is due.
async fn read(shared: &Shared, last: Registry, slow: bool) -> Read {
    let failed = |error: &dyn std::error::Error| error.to_string();
    let storage = shared
        .storage()
        .await
        .map_err(|(_, why)| why.trim().to_owned())?
        .as_ref();
    let heartbeat = Heartbeat::load(storage).await.map_err(|e| failed(&e))?;
    let mut members = Member::list(storage).await.map_err(|e| failed(&e))?;
    members.sort_by(|a, b| a.name.cmp(&b.name));
    let epoch = heartbeat.as_ref().map(|beat| beat.epoch);
    let changed = epoch > last.history.last().map(|entry| entry.epoch);
    let history = match slow || changed {
        true => read_history(storage, CHANGES)
            .await
            .map_err(|e| failed(&e))?,
        false => last.history,
    };
    let (usage, control, backups) = match slow {
        true => (
            storage.usage().await.map_err(|e| failed(&e))?,
            Control::read(storage).await.map_err(|e| failed(&e))?,
            BackupState::list(storage).await.map_err(|e| failed(&e))?,
        ),
        false => (last.usage, last.control, last.backups),
    };
    Ok(Registry {
        heartbeat,
        members,
        history,
        usage,
        settings: Some(storage.settings().clone()),
        control,
        backups,
    })
}
