//! Watching the active, as a node that holds nothing does: its heartbeats in the registry, and its agent's channel,
//! whose end is noticed at once. What it sees goes to the machine, which decides.

use std::collections::HashMap;
use std::time::Duration;

use coordination::channel::{ClientEvent, Notice, Subscription, subscribe};
use coordination::detector::{Beat, Detector, Hint};
use coordination::records::{Heartbeat, Member, Record};
use dax::ids::{Epoch, NodeName};
use tokio::sync::mpsc;

use super::Context;
use crate::error::Result;
use crate::machine::{Event, LastBeat, Seen, State};

/// How often the nodes' records are listed while the active beats; they change twice a second.
const LIST_EVERY: Duration = Duration::from_secs(1);

/// What a waiting node knows.
pub(super) struct Watch {
    detector: Detector,
    /// The highest epoch that a decision is based on.
    pub(super) seen: Epoch,
    /// How long the active had shown nothing when this node decided.
    pub(super) silent: Duration,
    active: Option<NodeName>,
    channel: Option<Subscription>,
    events: mpsc::UnboundedReceiver<ClientEvent>,
    sender: mpsc::UnboundedSender<ClientEvent>,
    /// The nodes' records, and when they were listed.
    members: Vec<Member>,
    listed: Option<Duration>,
    /// What each node's record said last, and when that changed.
    records: HashMap<NodeName, (String, u64, Duration)>,
    progress: Duration,
    last: Option<Beat>,
    /// The last beat said that nobody serves.
    vacant: bool,
}

impl Watch {
    pub(super) fn new(context: &Context) -> Watch {
        let now = context.driver.now();
        let (sender, events) = mpsc::unbounded_channel();
        Watch {
            detector: Detector::new(context.config.cluster.heartbeat, now),
            seen: Epoch(0),
            silent: Duration::ZERO,
            active: None,
            channel: None,
            events,
            sender,
            members: Vec::new(),
            listed: None,
            records: HashMap::new(),
            progress: now,
            last: None,
            vacant: false,
        }
    }

    /// Watches until the node has something else to do.
    pub(super) async fn run(&mut self, context: &Context) -> Result<()> {
        // An active of another version is followed all the same; only a new epoch outdates what is decided.
        self.seen = context.registry.accepted_epoch().await?.epoch;
        while context.driver.state() == State::Waiting {
            self.look(context).await?;
            let poll = self.detector.poll();
            tokio::select! {
                () = tokio::time::sleep(poll) => {}
                Some(event) = self.events.recv() => self.hear(context, event),
            }
        }
        Ok(())
    }

    async fn look(&mut self, context: &Context) -> Result<()> {
        let storage = context.registry.as_ref();
        self.detector.asked(context.driver.now());
        let lists = self.lists(context.driver.now());
        let read = async {
            let beat = Heartbeat::load(storage).await?;
            let members = match lists {
                true => Some(Member::list(storage).await?),
                false => None,
            };
            Ok::<_, crate::error::EngineError>((beat, members))
        };
        let limit = self.detector.slow() * 10;
        let Ok(read) = tokio::time::timeout(limit, read).await else {
            self.detector.failed(context.driver.now());
            return Ok(());
        };
        let (beat, members) = read.inspect_err(|_| self.detector.failed(context.driver.now()))?;
        if let Some(members) = members {
            self.note(members, context.driver.now());
        }
        let now = context.driver.now();
        if let Some(beat) = &beat {
            self.detector.retime(
                beat.timeout(
                    context
                        .control
                        .lock()
                        .heartbeat(context.config.cluster.heartbeat),
                ),
            );
            self.seen = self.seen.max(beat.epoch);
            self.vacant = beat.state.is_vacant();
            self.follow(context, beat);
        }
        let this = beat.as_ref().map(|beat| Beat {
            epoch: beat.epoch,
            counter: beat.counter,
        });
        if this > self.last {
            (self.last, self.progress) = (this, now);
        }
        self.detector.answered(this, now);
        let seen = Seen {
            better: self.better(context, now),
            verdict: self.detector.verdict(now),
            beat: beat.map(|beat| LastBeat {
                beat: Beat {
                    epoch: beat.epoch,
                    counter: beat.counter,
                },
                node: beat.node,
                state: beat.state,
            }),
        };
        self.silent = now.saturating_sub(self.progress);
        context.driver.tell(Event::Seen(seen));
        Ok(())
    }

    /// True if the nodes' records are worth a look: now and then, and each time while somebody has to take over or
    /// the active is not known yet.
    fn lists(&self, now: Duration) -> bool {
        let old = self
            .listed
            .is_none_or(|at| now.saturating_sub(at) >= LIST_EVERY);
        old || self.channel.is_none() || self.detector.is_in_doubt() || self.vacant
    }

    /// Listens to whoever beats.
    fn follow(&mut self, context: &Context, beat: &Heartbeat) {
        if self.active.as_ref() == Some(&beat.node) && self.channel.is_some() {
            return;
        }
        let me = &context.party.me.node;
        let active = self
            .members
            .iter()
            .find(|m| m.name == beat.node && m.name != *me);
        self.active = active.map(|m| m.name.clone());
        let open = |m: &Member| {
            subscribe(
                m.channel.clone(),
                context.party.clone(),
                self.sender.clone(),
                None,
            )
        };
        self.channel = active.map(open);
    }

    fn hear(&mut self, context: &Context, event: ClientEvent) {
        let hint = match event {
            ClientEvent::Connected(_) => Hint::Connected,
            ClientEvent::Reset => Hint::Reset,
            ClientEvent::Refused => Hint::Refused,
            ClientEvent::Notice(Notice::Bye { epoch, reason, .. }) => {
                Hint::Vacant { epoch, reason }
            }
            ClientEvent::Notice(Notice::PostgresDead { epoch, detail }) => Hint::Vacant {
                epoch,
                reason: detail,
            },
            _ => return,
        };
        self.detector.hint(hint, context.driver.now());
    }

    fn note(&mut self, members: Vec<Member>, now: Duration) {
        for member in &members {
            let says = (member.incarnation.0.clone(), member.updated);
            let known = self.records.get(&member.name);
            if known.is_none_or(|(life, updated, _)| (life, updated) != (&says.0, &says.1)) {
                self.records
                    .insert(member.name.clone(), (says.0, says.1, now));
            }
        }
        (self.members, self.listed) = (members, Some(now));
    }

    /// How many living nodes that wait as well should go first: those with a higher priority, then by name.
    fn better(&self, context: &Context, now: Duration) -> u8 {
        let (me, mine) = (&context.party.me.node, context.config.tags.priority);
        let alive = |m: &&Member| {
            let moved = self.records.get(&m.name);
            moved.is_some_and(|(.., at)| {
                now.saturating_sub(*at) < context.config.cluster.heartbeat.timeout + LIST_EVERY
            })
        };
        let waits = |m: &&Member| !m.tags.nofailover && Some(&m.name) != self.active.as_ref();
        let first = |m: &&Member| m.name != *me && (m.tags.priority, me) > (mine, &m.name);
        let better = self
            .members
            .iter()
            .filter(alive)
            .filter(waits)
            .filter(first)
            .count();
        u8::try_from(better).unwrap_or(u8::MAX)
    }
}
