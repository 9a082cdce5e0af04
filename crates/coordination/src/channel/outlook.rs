//! What a proxy knows of the cluster, from what all agents and the registry tell it.
//!
//! ```text
//!   agents: Serving, Standbys, Notice, Hold, Resume ──┐
//!   the registry, where no agent tells                ├──▶ Outlook ──▶ News
//!   time                                              ┘
//! ```
//!
//! Whoever serves in the newest epoch is believed, whoever tells of it; what an older one says is not heard. That an agent
//! is silent means nothing: its PostgreSQL is left alone until somebody says that it is gone, or another one serves.
//!
//! Invariant: the epochs that are told never go back.

use std::time::Duration;

use dax::ids::Epoch;

use super::held::{Change, Held};
use super::holding::{HoldOrder, Time};
use super::message::{Notice, Serving, StandbySeen};
use super::positions::Position;
use crate::address::Address;

/// What a proxy is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// This server is active; told once for each epoch, and again if it was gone in between, or another run of its
    /// PostgreSQL serves.
    ActiveIs(Serving),
    /// The active of this epoch stops or has died: nobody serves until there is another one.
    ActiveGone(Epoch),
    /// These are the standbys and how far they are.
    Standbys(Vec<StandbySeen>),
    /// The answer to a question, by its number; `None` if nobody can tell.
    Position(u64, Option<Position>),
    /// The active is about to stop: let no transaction begin, say when none is open any more, and give up those that are
    /// still open after `drain`.
    Hold {
        /// What open transactions have.
        drain: Duration,
    },
    /// Transactions may begin again.
    Resume,
}

/// What is heard.
#[derive(Debug)]
pub(super) enum Heard {
    /// The agent there says whether its node serves.
    Serving(Address, Option<Serving>),
    /// The active of that epoch says how far standbys are.
    Standbys(Epoch, Vec<StandbySeen>),
    /// An active says that it ends.
    Notice(Notice),
    /// An active asks for a hold.
    Hold(HoldOrder),
    /// An active ends its hold.
    Resume(Epoch, u64),
    /// The registry says who serves, and where its agent is.
    Registered(Address, Serving),
    /// The registry says that nobody serves, after this epoch.
    Vacant(Epoch),
}

/// See the module. Pure.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    /// The newest epoch that anybody served in, as far as is known.
    epoch: Epoch,
    /// Its active and the agent of that, unless it is gone.
    active: Option<(Address, Serving)>,
    standbys: Vec<StandbySeen>,
    held: Held,
}

impl Outlook {
    /// The agent of the active, which is asked for positions.
    pub(super) fn agent(&self) -> Option<&Address> {
        self.active.as_ref().map(|(agent, _)| agent)
    }

    /// The hold that is under way, and the agent that waits for the proxy to drain.
    pub(super) fn hold(&self) -> Option<u64> {
        self.held.number()
    }

    /// When time alone changes something.
    pub(super) fn wakes_at(&self) -> Option<Time> {
        self.held.wakes_at()
    }

    /// Takes in what was heard, and returns what is new.
    pub(super) fn hear(&mut self, heard: Heard, now: Time) -> Vec<News> {
        match heard {
            Heard::Serving(agent, Some(serving)) | Heard::Registered(agent, serving) => {
                self.serves(agent, serving)
            }
            Heard::Serving(agent, None) if self.agent() == Some(&agent) => self.gone(self.epoch),
            Heard::Serving(..) => Vec::new(),
            Heard::Standbys(epoch, standbys) => self.standbys_are(epoch, standbys),
            Heard::Notice(Notice::Bye { epoch, .. } | Notice::PostgresDead { epoch, .. })
            | Heard::Vacant(epoch) => self.gone(epoch),
            Heard::Notice(Notice::Sealed { .. }) => Vec::new(),
            Heard::Hold(order) if order.epoch == self.epoch => {
                news_of(self.held.ordered(order, now), now)
            }
            Heard::Hold(_) => Vec::new(),
            Heard::Resume(epoch, number) => news_of(self.held.resumed(epoch, number), now),
        }
    }

    /// Time passes.
    pub(super) fn passed(&mut self, now: Time) -> Vec<News> {
        news_of(self.held.passed(now), now)
    }

    fn serves(&mut self, agent: Address, serving: Serving) -> Vec<News> {
        let epoch = serving.epoch;
        let known = (epoch == self.epoch)
            .then_some(self.active.as_ref())
            .flatten();
        // The registry does not know of runs.
        let is_known =
            |known: &Serving| serving.started.is_none() || serving.started == known.started;
        if epoch < self.epoch || known.is_some_and(|(_, known)| is_known(known)) {
            return Vec::new();
        }
        if epoch > self.epoch {
            self.standbys.clear();
        }
        self.epoch = epoch;
        self.active = Some((agent, serving.clone()));
        let mut news = vec![News::ActiveIs(serving)];
        news.extend(news_of(self.held.serves(epoch), Time::ZERO));
        news
    }

    fn gone(&mut self, epoch: Epoch) -> Vec<News> {
        if epoch < self.epoch || self.active.take().is_none() {
            return Vec::new();
        }
        vec![News::ActiveGone(self.epoch)]
    }

    fn standbys_are(&mut self, epoch: Epoch, standbys: Vec<StandbySeen>) -> Vec<News> {
        if epoch != self.epoch || standbys == self.standbys {
            return Vec::new();
        }
        self.standbys.clone_from(&standbys);
        vec![News::Standbys(standbys)]
    }
}

fn news_of(change: Option<Change>, now: Time) -> Vec<News> {
    let news = change.map(|change| match change {
        Change::Held { drain_until } => News::Hold {
            drain: drain_until.saturating_sub(now),
        },
        Change::Free => News::Resume,
    });
    news.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use dax::ids::NodeName;

    use super::super::message::ServerStarted;
    use super::*;

    fn agent(node: &str) -> Address {
        format!("{node}:7432").parse().unwrap()
    }

    fn serving(node: &str, epoch: u32) -> Serving {
        Serving {
            epoch: Epoch(epoch),
            node: NodeName::new(node).unwrap(),
            postgres: format!("{node}:5432").parse().unwrap(),
            horizons: Vec::new(),
            started: None,
        }
    }

    fn says(node: &str, epoch: u32) -> Heard {
        Heard::Serving(agent(node), Some(serving(node, epoch)))
    }

    fn hold(epoch: u32, number: u64) -> Heard {
        Heard::Hold(HoldOrder {
            epoch: Epoch(epoch),
            number,
            drain_ms: 5_000,
            at_most_ms: 20_000,
        })
    }

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    /// The registry names the active before its agent does, and PostgreSQL may be restarted in place: whoever connects must
    /// know which run of the server is the active's.
    // hazard: PROXY-11
    #[test]
    fn another_run_of_the_active_is_news() {
        let of_run = |started: Option<i64>| Serving {
            started: started.map(ServerStarted),
            ..serving("a", 3)
        };
        let mut outlook = Outlook::default();
        let mut says = |started| {
            outlook.hear(
                Heard::Serving(agent("a"), Some(of_run(started))),
                Time::ZERO,
            )
        };
        assert_eq!(says(None), [News::ActiveIs(of_run(None))]);
        assert_eq!(says(Some(7)), [News::ActiveIs(of_run(Some(7)))]);
        assert_eq!(says(Some(7)), []);
        assert_eq!(says(None), [], "the registry knows of no run");
        assert_eq!(says(Some(8)), [News::ActiveIs(of_run(Some(8)))]);
    }

    #[test]
    fn the_newest_epoch_is_believed_whoever_tells_of_it() {
        let mut outlook = Outlook::default();
        let mut hear = |heard| outlook.hear(heard, at(0));
        assert_eq!(hear(says("a", 3)), [News::ActiveIs(serving("a", 3))]);
        assert_eq!(hear(says("a", 3)), [], "nothing new");
        assert_eq!(hear(says("b", 2)), [], "it was frozen");
        assert_eq!(hear(Heard::Registered(agent("a"), serving("a", 3))), []);
        let registered = Heard::Registered(agent("b"), serving("b", 4));
        assert_eq!(hear(registered), [News::ActiveIs(serving("b", 4))]);
        assert_eq!(hear(Heard::Serving(agent("a"), None)), [], "that is known");
        assert_eq!(outlook.agent(), Some(&agent("b")));
    }

    #[test]
    fn an_active_that_ends_may_serve_again() {
        let mut outlook = Outlook::default();
        let mut hear = |heard| outlook.hear(heard, at(0));
        hear(says("a", 3));
        let bye = |epoch| {
            Heard::Notice(Notice::PostgresDead {
                epoch: Epoch(epoch),
                detail: String::new(),
            })
        };
        assert_eq!(hear(bye(2)), []);
        assert_eq!(hear(bye(3)), [News::ActiveGone(Epoch(3))]);
        assert_eq!(hear(Heard::Vacant(Epoch(3))), []);
        assert_eq!(hear(says("a", 3)), [News::ActiveIs(serving("a", 3))]);
        let gone = [News::ActiveGone(Epoch(3))];
        assert_eq!(hear(Heard::Serving(agent("a"), None)), gone);
    }

    #[test]
    fn standbys_are_those_that_the_active_names() {
        let mut outlook = Outlook::default();
        let mut hear = |heard| outlook.hear(heard, at(0));
        hear(says("a", 3));
        let standbys = vec![StandbySeen {
            node: NodeName::new("b").unwrap(),
            postgres: "b:5432".parse().unwrap(),
            applied: volume::lsn::Lsn(7),
            warm: true,
            started: None,
        }];
        let named = |epoch| Heard::Standbys(Epoch(epoch), standbys.clone());
        assert_eq!(hear(named(2)), []);
        assert_eq!(hear(named(3)), [News::Standbys(standbys.clone())]);
        assert_eq!(hear(named(3)), []);
    }

    #[test]
    fn a_hold_ends_when_the_next_one_serves_or_by_itself() {
        let mut outlook = Outlook::default();
        outlook.hear(says("a", 3), at(0));
        assert_eq!(outlook.hear(hold(2, 1), at(1)), []);
        let held = [News::Hold { drain: at(5) }];
        assert_eq!(outlook.hear(hold(3, 1), at(1)), held);
        assert_eq!(outlook.hold(), Some(1));
        let gone = [News::ActiveGone(Epoch(3))];
        assert_eq!(outlook.hear(Heard::Vacant(Epoch(3)), at(2)), gone);
        let served = [News::ActiveIs(serving("b", 4)), News::Resume];
        assert_eq!(outlook.hear(says("b", 4), at(3)), served);

        outlook.hear(hold(4, 1), at(10));
        assert_eq!(outlook.passed(at(29)), []);
        assert_eq!(outlook.wakes_at(), Some(at(30)));
        assert_eq!(outlook.passed(at(30)), [News::Resume]);

        outlook.hear(hold(4, 2), at(40));
        assert_eq!(outlook.hear(Heard::Resume(Epoch(4), 1), at(41)), []);
        let resumed = [News::Resume];
        assert_eq!(outlook.hear(Heard::Resume(Epoch(4), 2), at(41)), resumed);
    }
}
