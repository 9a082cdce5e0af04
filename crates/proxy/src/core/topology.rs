//! A proxy's knowledge of the cluster: the active, the horizons of takeovers, and the positions of standbys.
//!
//! [`News`] from a source outside change it. Invariant: the epoch never goes back, and news of an older one are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dax::ids::Epoch;
use serde::{Deserialize, Serialize};
use volume::lsn::Lsn;

use super::outcome::Horizon;

/// Where PostgreSQL listens: `host:port`, or the path of a socket's directory and a port.
pub type Address = Arc<str>;

/// A standby's name.
pub type NodeName = Arc<str>;

/// Server that a pool has connections to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The server that is active, whichever node that is.
    Active,
    /// A standby.
    Standby(NodeName),
}

impl Place {
    /// Name to show.
    pub fn name(&self) -> &str {
        match self {
            Place::Active => "active",
            Place::Standby(name) => name,
        }
    }
}

/// One run of a server, from its start to its end: when its postmaster started, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRun(pub i64);

/// What is known of a standby.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standby {
    /// Name of the node that the standby runs on.
    pub name: NodeName,
    /// Where its PostgreSQL listens.
    pub address: Address,
    /// How far it has replayed the log.
    pub replayed: Lsn,
    /// Run of its server that `replayed` is of: a restarted server may be behind that position. `None` if the server was not
    /// asked yet.
    pub run: Option<ServerRun>,
    /// Kept as a spare: it gets only a small share of the reads, so that its buffers are warm (section 4.5
    /// of the paper).
    pub is_spare: bool,
}

/// News from a source about the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// This server is active in this epoch.
    ActiveIs {
        /// Epoch that the active owns.
        epoch: Epoch,
        /// Where it listens.
        address: Address,
        /// Run of its server, if the source knows it: a server at this address with another run belongs to another epoch, or
        /// was restarted in this one.
        run: Option<ServerRun>,
        /// Record of each takeover: the epoch that began, and its horizon, if there is one. They go as far back as outcomes
        /// of commits are looked up, and leave out no epoch that had an active.
        horizons: Vec<(Epoch, Option<Horizon>)>,
    },
    /// All standbys, with their positions.
    Standbys(Vec<Standby>),
    /// The standbys that do not answer.
    Silent(BTreeSet<NodeName>),
    /// True: the active has not proved in time that it is still active. False: it has proved it again.
    Unproven(bool),
    /// A planned handover begins: let no transaction begin. Open ones may end.
    Hold,
    /// The planned handover is over.
    Resume,
    /// An operator lets no transaction begin.
    Pause,
    /// The operator's pause is over.
    Unpause,
}

/// The cluster as the proxy knows it.
#[derive(Debug, Clone, Default)]
pub struct Topology {
    /// The newest epoch that is known; [`Epoch::NONE`] at the beginning.
    pub epoch: Epoch,
    /// Its active.
    pub active: Option<Address>,
    /// The run of the active's server, if that is known.
    pub active_run: Option<ServerRun>,
    /// Address of the active in each epoch that is known.
    pub addresses: BTreeMap<Epoch, Address>,
    /// What each takeover recorded.
    pub horizons: BTreeMap<Epoch, Option<Horizon>>,
    /// The standbys that may get reads.
    pub standbys: Vec<Standby>,
    /// All standbys of the last news.
    pub told: Vec<Standby>,
    /// Standbys that do not answer.
    pub silent: BTreeSet<NodeName>,
    /// The active has not proved in time that it is still active: none of its answers may be passed on.
    pub is_unproven: bool,
    /// A planned handover is under way.
    pub is_handing_over: bool,
    /// An operator lets no transaction begin.
    pub is_paused: bool,
}

impl Topology {
    /// Applies news.
    pub fn hear(&mut self, news: News) {
        match news {
            News::ActiveIs {
                epoch,
                address,
                run,
                horizons,
            } => {
                if epoch < self.epoch {
                    return;
                }
                // A new active has just proved that it is active, by owning its epoch.
                self.is_unproven &= epoch == self.epoch;
                if epoch > self.epoch || run.is_some() {
                    self.active_run = run;
                }
                self.epoch = epoch;
                self.addresses.insert(epoch, address.clone());
                self.active = Some(address);
                self.horizons.extend(horizons);
            }
            News::Standbys(standbys) => {
                self.told = standbys;
                self.leave_out_silent();
            }
            News::Silent(names) => {
                self.silent = names;
                self.leave_out_silent();
            }
            News::Unproven(is_unproven) => self.is_unproven = is_unproven,
            News::Hold => self.is_handing_over = true,
            News::Resume => self.is_handing_over = false,
            News::Pause => self.is_paused = true,
            News::Unpause => self.is_paused = false,
        }
    }

    fn leave_out_silent(&mut self) {
        let answers = |one: &&Standby| !self.silent.contains(&one.name);
        self.standbys = self.told.iter().filter(answers).cloned().collect();
    }

    /// True if the active of this epoch is known, or that of a later one.
    pub fn knows(&self, epoch: Epoch) -> bool {
        self.active.is_some() && self.epoch >= epoch
    }

    /// True if `run` is the run of the active's server. Another run at the active's address may belong to an epoch that is not
    /// known yet. `None` if the active's run is not known.
    pub fn is_actives_run(&self, run: ServerRun) -> Option<bool> {
        self.active_run.map(|active| active == run)
    }

    /// True if a server at `address`, used as the active of `epoch`, may have been the active of a later epoch: its node was
    /// active again, or the address of a later active is not known.
    pub fn may_have_been_later(&self, address: Option<&Address>, epoch: Epoch) -> bool {
        let mut later = self.horizons.range(epoch.next()..);
        later.any(|(later, _)| match (self.addresses.get(later), address) {
            (Some(of_later), Some(address)) => of_later == address,
            _ => true,
        })
    }

    /// True if transactions may not begin.
    pub fn is_held(&self) -> bool {
        self.is_handing_over || self.is_paused
    }

    /// The standby of this name.
    pub fn standby(&self, name: &str) -> Option<&Standby> {
        self.standbys.iter().find(|standby| &*standby.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_standby_is_left_out_until_it_answers() {
        let standby = |name: &str| Standby {
            name: name.into(),
            address: "host:1".into(),
            replayed: Lsn::ZERO,
            run: None,
            is_spare: false,
        };
        let names = |topology: &Topology| -> Vec<String> {
            let standbys = topology.standbys.iter();
            standbys.map(|one| one.name.to_string()).collect()
        };
        let mut topology = Topology::default();
        let all = News::Standbys(vec![standby("a"), standby("b")]);
        topology.hear(all.clone());
        topology.hear(News::Silent(["a".into()].into()));
        assert_eq!(names(&topology), ["b"]);
        topology.hear(all);
        assert_eq!(names(&topology), ["b"], "news of positions are no answer");
        topology.hear(News::Silent(BTreeSet::new()));
        assert_eq!(names(&topology), ["a", "b"]);
    }

    fn active(epoch: u32) -> News {
        News::ActiveIs {
            epoch: Epoch(epoch),
            address: format!("host{epoch}:5432").into(),
            run: None,
            horizons: vec![(Epoch(epoch), None)],
        }
    }

    // hazard: PROXY-29
    #[test]
    fn an_active_of_an_older_epoch_is_not_enough() {
        let mut topology = Topology::default();
        assert!(!topology.knows(Epoch(0)), "no active is known");
        topology.hear(active(3));
        assert!(topology.knows(Epoch(3)));
        assert!(!topology.knows(Epoch(4)), "there is a newer one");
        topology.hear(active(5));
        assert!(topology.knows(Epoch(4)));
    }

    #[test]
    fn a_server_is_of_a_later_epoch_only_where_one_was_active() {
        let mut topology = Topology::default();
        topology.hear(active(3));
        topology.hear(active(5));
        let host = |number: u32| Address::from(format!("host{number}:5432"));
        let may_be = |topology: &Topology, host: &Address, epoch| {
            topology.may_have_been_later(Some(host), Epoch(epoch))
        };
        assert!(!may_be(&topology, &host(3), 3));
        assert!(may_be(&topology, &host(5), 3), "it is active again");
        assert!(topology.may_have_been_later(None, Epoch(3)));
        topology.horizons.insert(Epoch(4), None);
        assert!(may_be(&topology, &host(3), 3), "nobody told where 4 was");
        assert!(!may_be(&topology, &host(3), 5));
    }

    #[test]
    fn a_new_epoch_is_proven_and_news_of_the_same_one_prove_nothing() {
        let mut topology = Topology::default();
        topology.hear(active(3));
        topology.hear(News::Unproven(true));
        topology.hear(active(3));
        assert!(topology.is_unproven);
        topology.hear(active(4));
        assert!(!topology.is_unproven);
    }

    #[test]
    fn active_is_the_run_that_was_announced() {
        let mut topology = Topology::default();
        topology.hear(active(3));
        assert_eq!(topology.is_actives_run(ServerRun(7)), None);
        let News::ActiveIs {
            epoch,
            address,
            horizons,
            ..
        } = active(3)
        else {
            return;
        };
        topology.hear(News::ActiveIs {
            epoch,
            address,
            run: Some(ServerRun(7)),
            horizons,
        });
        topology.hear(active(3));
        assert_eq!(topology.is_actives_run(ServerRun(7)), Some(true));
        assert_eq!(topology.is_actives_run(ServerRun(8)), Some(false));
        topology.hear(active(4));
        assert_eq!(topology.is_actives_run(ServerRun(7)), None);
    }

    #[test]
    fn an_older_epoch_is_not_believed() {
        let mut topology = Topology::default();
        topology.hear(active(3));
        topology.hear(active(2));
        assert_eq!(topology.epoch, Epoch(3));
        assert_eq!(topology.active.as_deref(), Some("host3:5432"));
        assert!(!topology.horizons.contains_key(&Epoch(2)));
    }
}
