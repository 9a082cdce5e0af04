//! The calling side of a proxy: it is connected to every agent, looks into the registry, and yields one stream of news.
//!
//! The agents are those that the registry names; it is read once a second, so a node that joins is soon known. Who serves is told
//! by whoever begins to; the registry counts where the channel is silent. Positions are asked for one at a time: whoever wants
//! one while a question is under way is answered by the next ([`super::positions`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dax::storage::Storage;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Party;
use super::client::open;
use super::frame::{Frames, Writer, send};
use super::message::{Message, PING_EVERY, ProxyReport, SILENCE, Serving, Wants};
use super::outlook::{Heard, News, Outlook};
use super::positions::{Position, Rounds};
use crate::address::Address;
use crate::config::ClusterConfig;
use crate::records::{ActiveState, Heartbeat, Horizon, Member, Record, RecordError};
use crate::tier;

/// How often the registry is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The wait before an agent that cannot be reached is tried again.
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// Message of a proxy to the agents.
enum ProxyMessage {
    Ask(u64, bool),
    Drained,
    Report(ProxyReport),
}

/// A proxy's sight of the cluster. Dropping it ends the connections.
pub struct Watching {
    said: mpsc::UnboundedSender<ProxyMessage>,
    task: JoinHandle<()>,
}

impl Watching {
    /// Asks how far the log is durable, with proof; if `shown`, how much of it the active shows, too. [`News::Position`] with
    /// this number answers; never waits.
    pub fn ask(&self, number: u64, shown: bool) {
        self.say(ProxyMessage::Ask(number, shown));
    }

    /// After [`News::Hold`]: no transaction is open any more.
    pub fn drained(&self) {
        self.say(ProxyMessage::Drained);
    }

    /// Tells the agents how this proxy is.
    pub fn report(&self, report: ProxyReport) {
        self.say(ProxyMessage::Report(report));
    }

    fn say(&self, said: ProxyMessage) {
        // An error means that the task ended, which it does with this handle.
        let _ = self.said.send(said);
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Begins to watch the cluster of this registry as `me`, which names the proxy. With the configuration that led to the registry, a
/// database that moves to another volume is followed there. Must be called inside a tokio runtime.
pub fn watch(
    me: Party,
    registry: Arc<dyn Storage>,
    cluster: Option<ClusterConfig>,
) -> (Watching, mpsc::UnboundedReceiver<News>) {
    let (said, says) = mpsc::unbounded_channel();
    let (tell, news) = mpsc::unbounded_channel();
    let watcher = Watcher::new(me, tell);
    let task = tokio::spawn(watcher.run((registry, cluster), says));
    (Watching { said, task }, news)
}

/// What a link to an agent passes on.
enum FromLink {
    Heard(Heard),
    /// The answer to the question of this round; `None` if there is none.
    Answer(u64, Option<Position>),
    Connected(Address),
}

/// A connection to an agent, made again whenever it breaks.
struct Link {
    to: mpsc::UnboundedSender<Message>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Watcher {
    me: Party,
    tell: mpsc::UnboundedSender<News>,
    outlook: Outlook,
    links: BTreeMap<String, Link>,
    from_links: mpsc::UnboundedSender<FromLink>,
    received: Option<mpsc::UnboundedReceiver<FromLink>>,
    /// Those who wait for a position, and whether for what is shown, too.
    rounds: Rounds<(u64, bool)>,
    /// The number of the round that was begun last, and the agent that was asked.
    round: u64,
    asked: Option<Address>,
    report: Option<ProxyReport>,
    started: Instant,
}

impl Watcher {
    fn new(me: Party, tell: mpsc::UnboundedSender<News>) -> Watcher {
        let (from_links, received) = mpsc::unbounded_channel();
        Watcher {
            me,
            tell,
            outlook: Outlook::default(),
            links: BTreeMap::new(),
            from_links,
            received: Some(received),
            rounds: Rounds::default(),
            round: 0,
            asked: None,
            report: None,
            started: Instant::now(),
        }
    }

    async fn run(
        mut self,
        registry: (Arc<dyn Storage>, Option<ClusterConfig>),
        mut says: mpsc::UnboundedReceiver<ProxyMessage>,
    ) {
        let (found, mut seen) = mpsc::unbounded_channel();
        let _looking = Looking(tokio::spawn(look_again_and_again(registry, found)));
        let Some(mut received) = self.received.take() else {
            return;
        };
        loop {
            let wakes_at = self.outlook.wakes_at().map(|at| self.started + at);
            let wake = wakes_at.unwrap_or_else(|| Instant::now() + LOOK_EVERY);
            tokio::select! {
                biased;
                from = received.recv() => match from {
                    Some(from) => self.received(from),
                    None => return,
                },
                said = says.recv() => match said {
                    Some(said) => self.say(said),
                    None => return,
                },
                Some(look) = seen.recv() => self.looked(look),
                () = tokio::time::sleep_until(wake) => {
                    let news = self.outlook.passed(self.started.elapsed());
                    self.tell(news);
                }
            }
        }
    }

    fn tell(&self, news: Vec<News>) {
        for news in news {
            // An error means that nobody listens any more.
            let _ = self.tell.send(news);
        }
    }

    fn hear(&mut self, heard: Heard) {
        let news = self.outlook.hear(heard, self.started.elapsed());
        self.tell(news);
        if self.asked.is_some() && self.asked.as_ref() != self.outlook.agent() {
            // Who was asked does not count any more: a new question, to whoever serves now.
            self.answer(None);
        }
    }

    fn received(&mut self, from: FromLink) {
        match from {
            FromLink::Heard(heard) => self.hear(heard),
            FromLink::Answer(round, position) if round == self.round => self.answer(position),
            FromLink::Answer(..) => {}
            FromLink::Connected(agent) => {
                if let Some(report) = self.report.clone() {
                    self.send(&agent, Message::Proxy(report));
                }
            }
        }
    }

    fn say(&mut self, said: ProxyMessage) {
        match said {
            ProxyMessage::Ask(number, shown) => {
                self.rounds.asked((number, shown));
                self.ask();
            }
            ProxyMessage::Drained => {
                if let (Some(agent), Some(number)) = (self.outlook.agent(), self.outlook.hold()) {
                    self.send(&agent.clone(), Message::Drained { number });
                }
            }
            ProxyMessage::Report(report) => {
                if self.report.as_ref() != Some(&report) {
                    for link in self.links.values() {
                        let _ = link.to.send(Message::Proxy(report.clone()));
                    }
                    self.report = Some(report);
                }
            }
        }
    }

    /// True if there is a connection's task that takes it.
    fn send(&self, agent: &Address, message: Message) -> bool {
        let link = self.links.get(&agent.to_string());
        link.is_some_and(|link| link.to.send(message).is_ok())
    }

    /// Asks the active for those who wait, if no question is under way.
    fn ask(&mut self) {
        if !self.rounds.begin() {
            return;
        }
        self.round += 1;
        let agent = self.outlook.agent().cloned();
        let message = Message::Ask {
            number: self.round,
            shown: self.rounds.under_way().iter().any(|(_, shown)| *shown),
        };
        let sent = agent
            .as_ref()
            .is_some_and(|agent| self.send(agent, message));
        self.asked = agent;
        if !sent {
            self.answer(None);
        }
    }

    /// The question that is under way is over.
    fn answer(&mut self, position: Option<Position>) {
        self.asked = None;
        for (number, _) in self.rounds.over() {
            self.tell(vec![News::Position(number, position)]);
        }
        self.ask();
    }

    fn looked(&mut self, look: Look) {
        let named: BTreeSet<String> = look.agents.iter().map(Address::to_string).collect();
        self.links.retain(|agent, _| named.contains(agent));
        for agent in look.agents {
            let link = || {
                let (to, from) = mpsc::unbounded_channel();
                let link = Calling {
                    agent: agent.clone(),
                    me: self.me.clone(),
                    tell: self.from_links.clone(),
                    asked: BTreeSet::new(),
                };
                let task = tokio::spawn(link.run(from));
                Link { to, task }
            };
            self.links.entry(agent.to_string()).or_insert_with(link);
        }
        if let Some(heard) = look.heard {
            self.hear(heard);
        }
    }
}

/// One look into the registry.
struct Look {
    agents: Vec<Address>,
    heard: Option<Heard>,
}

struct Looking(JoinHandle<()>);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn look_again_and_again(
    (mut registry, mut cluster): (Arc<dyn Storage>, Option<ClusterConfig>),
    found: mpsc::UnboundedSender<Look>,
) {
    loop {
        if let Some(from) = &cluster {
            match follow(from, registry.as_ref()).await {
                Ok(Some((to, storage))) => (registry, cluster) = (storage, Some(to)),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "the registry cannot be read"),
            }
        }
        match look(registry.as_ref()).await {
            Ok(look) => {
                if found.send(look).is_err() {
                    return;
                }
            }
            Err(error) => tracing::debug!(%error, "the registry cannot be read"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The volume that the database has moved to, if it has.
async fn follow(
    from: &ClusterConfig,
    registry: &dyn Storage,
) -> dax::Result<Option<(ClusterConfig, Arc<dyn Storage>)>> {
    let Some(moved) = tier::has_moved(from, registry).await? else {
        return Ok(None);
    };
    tracing::info!(volume = %moved.volume, "the database goes on in another volume");
    let to = from.moved_to(Some(moved));
    tier::current(&to, from.name.as_str()).await.map(Some)
}

async fn look(registry: &dyn Storage) -> Result<Look, RecordError> {
    let members = Member::list(registry).await?;
    let beat = Heartbeat::load(registry).await?;
    let heard = match beat {
        Some(beat) if beat.state == ActiveState::Serving => {
            match members.iter().find(|member| member.name == beat.node) {
                Some(member) => {
                    let serving = Serving {
                        epoch: beat.epoch,
                        node: beat.node,
                        postgres: member.postgres.clone(),
                        horizons: Horizon::known(registry).await?,
                        started: None,
                    };
                    Some(Heard::Registered(member.channel.clone(), serving))
                }
                None => None,
            }
        }
        Some(beat) if beat.state.is_vacant() => Some(Heard::Vacant(beat.epoch)),
        _ => None,
    };
    let agents = members.into_iter().map(|member| member.channel).collect();
    Ok(Look { agents, heard })
}

/// Keeps one agent on the line.
struct Calling {
    agent: Address,
    me: Party,
    tell: mpsc::UnboundedSender<FromLink>,
    /// Questions that this connection has not answered.
    asked: BTreeSet<u64>,
}

impl Calling {
    async fn run(mut self, mut from: mpsc::UnboundedReceiver<Message>) {
        loop {
            match open(&self.agent, &self.me, Wants::Proxy, false).await {
                Ok((frames, writer, _)) => {
                    self.tell(FromLink::Connected(self.agent.clone()));
                    let ended = self.follow(frames, writer, &mut from).await;
                    tracing::debug!(agent = %self.agent, ?ended, "the channel to an agent ended");
                }
                Err(error) => tracing::trace!(%error, "no channel to an agent"),
            }
            // What was sent to nobody is answered by nobody.
            while let Ok(message) = from.try_recv() {
                self.note(&message);
            }
            for number in std::mem::take(&mut self.asked) {
                self.tell(FromLink::Answer(number, None));
            }
            if self.tell.is_closed() {
                return;
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    fn tell(&self, from: FromLink) {
        // An error means that the watcher is gone, and this task with it.
        let _ = self.tell.send(from);
    }

    fn note(&mut self, message: &Message) {
        if let Message::Ask { number, .. } = message {
            self.asked.insert(*number);
        }
    }

    async fn follow(
        &mut self,
        mut frames: Frames,
        mut writer: Writer,
        from: &mut mpsc::UnboundedReceiver<Message>,
    ) -> io::Result<()> {
        let mut ping = tokio::time::interval(PING_EVERY);
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                biased;
                incoming = frames.next() => {
                    heard = Instant::now();
                    match incoming? {
                        Some(message) => self.take(message)?,
                        None => return Ok(()),
                    }
                }
                Some(message) = from.recv() => {
                    self.note(&message);
                    send(&mut writer, &message).await?;
                }
                _ = ping.tick() => {
                    if heard.elapsed() > SILENCE {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    send(&mut writer, &Message::Ping).await?;
                }
            }
        }
    }

    fn take(&mut self, message: Message) -> io::Result<()> {
        let heard = match message {
            Message::Ping => return Ok(()),
            Message::Position {
                number,
                epoch,
                durable,
                shown,
            } => {
                self.asked.remove(&number);
                let position = Some(Position {
                    epoch,
                    durable,
                    shown,
                });
                self.tell(FromLink::Answer(number, position));
                return Ok(());
            }
            Message::NoPosition { number, why } => {
                tracing::debug!(why, "no position");
                self.asked.remove(&number);
                self.tell(FromLink::Answer(number, None));
                return Ok(());
            }
            Message::Serving { serving } => Heard::Serving(self.agent.clone(), serving),
            Message::Standbys { epoch, standbys } => Heard::Standbys(epoch, standbys),
            Message::Notice(notice) => Heard::Notice(notice),
            Message::Hold(order) => Heard::Hold(order),
            Message::Resume { epoch, number } => Heard::Resume(epoch, number),
            _ => return Err(io::Error::other("the agent speaks out of turn")),
        };
        self.tell(FromLink::Heard(heard));
        Ok(())
    }
}
