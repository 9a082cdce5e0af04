//! A commit in doubt, and what may be said of it from where it ran and who is active now.
//!
//! The proxy labels a connection with the epoch that it knows when it connects. The server may be active in a later one
//! already, if it is at the same address, and so far ahead that the proxy has heard of neither. Invariant: a label counts only
//! as far as it is certain, or the epoch of the active at hand stood after the commit had been sent: nobody was active in a
//! later one by then. In doubt the outcome is unknown.
//!
//! ```text
//!   in doubt ── not certain where it ran ──▶ proof is asked for ── the same epoch stood ──▶ judged
//!      └───────────── certain ───────────────────────────────────────────────────────────────▲
//! ```

use std::fmt::Debug;

use dax::ids::Epoch;

use super::super::outcome::{self, Judgement, Xid};
use super::super::topology::{Address, ServerRun, Topology};
use super::Server;

/// Server of a lost connection to the active, as far as it is known.
#[derive(Debug, Clone)]
pub struct LostServer {
    /// The epoch that it was taken for.
    pub epoch: Epoch,
    address: Option<Address>,
    run: Option<ServerRun>,
    is_certain: bool,
}

/// Commit whose reply did not come.
#[derive(Debug)]
pub struct InDoubtCommit {
    /// The transaction's id.
    pub xid: Xid,
    /// Where it ran.
    pub ran_on: LostServer,
    proof: Proof,
}

/// Proof that the epoch of the active at hand stood after the commit had been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    Missing,
    /// In this epoch.
    Asked(Epoch),
    There,
}

impl LostServer {
    /// Of a connection to the active; `None` of a standby.
    pub fn of(server: &Server) -> Option<LostServer> {
        Some(LostServer {
            epoch: server.epoch()?,
            address: server.address.clone(),
            run: server.run,
            is_certain: server.is_vouched_for,
        })
    }
}

impl InDoubtCommit {
    /// Nothing is known but where it ran.
    pub fn new(xid: Xid, ran_on: LostServer) -> InDoubtCommit {
        InDoubtCommit {
            xid,
            ran_on,
            proof: Proof::Missing,
        }
    }

    /// True if it may have run in an epoch that nobody here has heard of.
    pub fn needs_proof(&self, judged: Judgement) -> bool {
        let is_decided_by_label = judged == Judgement::NotCommitted;
        is_decided_by_label && !self.ran_on.is_certain && self.proof != Proof::There
    }

    /// Proof is asked for, in the epoch of the active at hand.
    pub fn ask_proof(&mut self, now: Epoch) {
        self.proof = Proof::Asked(now);
    }

    /// Here is proof that this epoch stood; whether any was asked for.
    pub fn prove(&mut self, stood: Epoch) -> bool {
        let Proof::Asked(epoch) = self.proof else {
            return false;
        };
        self.proof = match epoch == stood {
            true => Proof::There,
            false => Proof::Missing,
        };
        true
    }

    /// The active at hand is lost as well.
    pub fn forget_proof(&mut self) {
        self.proof = Proof::Missing;
    }

    /// Leaves a line in the log of what an epoch says of it.
    pub fn log(&self, now: Epoch, says: &dyn Debug) {
        let (xid, ran_in) = (self.xid.0, self.ran_on.epoch);
        tracing::info!(xid, %ran_in, %now, ?says, "a commit is in doubt");
    }

    /// What can be said before `now`, the active at hand, is asked.
    pub fn judge(&self, now: &LostServer, topology: &Topology) -> Judgement {
        let lost = &self.ran_on;
        let is_same_run = lost.run.is_some() && lost.run == now.run;
        match outcome::judge(self.xid, lost.epoch, now.epoch, &topology.horizons) {
            Judgement::NotCommitted if is_same_run || self.may_have_run_later(topology) => {
                Judgement::Unknown
            }
            // One of them may be in an epoch that was not heard of, where the number is another's.
            Judgement::Ask
                if lost.epoch == now.epoch
                    && !is_same_run
                    && !(lost.is_certain && now.is_certain) =>
            {
                Judgement::Unknown
            }
            judged => judged,
        }
    }

    /// True if it may have run in a later epoch than its server was taken for.
    fn may_have_run_later(&self, topology: &Topology) -> bool {
        let lost = &self.ran_on;
        !lost.is_certain && topology.may_have_been_later(lost.address.as_ref(), lost.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::outcome::Horizon;
    use super::super::super::topology::News;
    use super::*;

    fn server(epoch: u32, address: &str, run: Option<i64>, is_certain: bool) -> LostServer {
        LostServer {
            epoch: Epoch(epoch),
            address: Some(address.into()),
            run: run.map(ServerRun),
            is_certain,
        }
    }

    /// Epoch 1 was on `a`, and the last one is on the address given; takeovers recorded 100 and 200.
    fn topology(epochs: u32, address: &str) -> Topology {
        let mut topology = Topology::default();
        for (epoch, address) in [(1, "a"), (epochs, address)] {
            let horizons =
                (2..=epoch).map(|one| (Epoch(one), Some(Horizon(u64::from(one) * 100 - 100))));
            topology.hear(News::ActiveIs {
                epoch: Epoch(epoch),
                address: address.into(),
                run: None,
                horizons: horizons.collect(),
            });
        }
        topology
    }

    fn judged(xid: u64, ran_on: &LostServer, now: &LostServer, topology: &Topology) -> Judgement {
        InDoubtCommit::new(Xid(xid), ran_on.clone()).judge(now, topology)
    }

    /// The node of epoch 1 is active again in epoch 2, before the proxy hears of it: what it commits has a number above the
    /// horizon.
    #[test]
    fn a_commit_on_a_server_that_was_started_again_is_not_taken_for_undone() {
        let topology = topology(2, "a");
        let now = server(2, "a", Some(8), true);
        let judged = |xid, ran_on: &LostServer| judged(xid, ran_on, &now, &topology);
        let unsure = server(1, "a", Some(8), false);
        assert_eq!(judged(150, &unsure), Judgement::Unknown);
        let older = server(1, "a", Some(7), false);
        assert_eq!(judged(150, &older), Judgement::Unknown);
        assert_eq!(judged(99, &unsure), Judgement::Ask);
        let certain = server(1, "a", Some(7), true);
        assert_eq!(judged(150, &certain), Judgement::NotCommitted);
    }

    #[test]
    fn horizon_counts_where_no_server_was_active_later() {
        let ran_on = server(1, "a", Some(7), false);
        let now = server(2, "b", Some(9), false);
        assert_eq!(
            judged(150, &ran_on, &now, &topology(2, "b")),
            Judgement::NotCommitted
        );
        let later = server(3, "b", Some(9), false);
        assert_eq!(
            judged(150, &ran_on, &later, &topology(3, "b")),
            Judgement::Unknown,
            "nobody told where the active of epoch 2 was"
        );
    }

    /// The proxy has heard of epoch 2 on `b`, but the server on `a` was active in epoch 4 when it connected there.
    // hazard: PROXY-12
    #[test]
    fn active_must_prove_itself_where_it_may_have_run_ahead_of_all_news() {
        let ran_on = server(1, "a", Some(7), false);
        let now = server(2, "b", Some(9), true);
        let mut doubt = InDoubtCommit::new(Xid(150), ran_on);
        let judged = doubt.judge(&now, &topology(2, "b"));
        assert_eq!(judged, Judgement::NotCommitted);
        assert!(doubt.needs_proof(judged));
        assert!(!doubt.prove(Epoch(2)), "it was not asked for");
        doubt.ask_proof(Epoch(2));
        assert!(doubt.prove(Epoch(3)) && doubt.needs_proof(judged));
        doubt.ask_proof(Epoch(2));
        assert!(doubt.prove(Epoch(2)) && !doubt.needs_proof(judged));
        doubt.forget_proof();
        assert!(doubt.needs_proof(judged));
        assert!(!doubt.needs_proof(Judgement::Ask), "the number says enough");
        let certain = InDoubtCommit::new(Xid(150), server(1, "a", Some(7), true));
        assert!(!certain.needs_proof(judged));
    }

    /// Neither is known to be what it is taken for: the number may be another's on the server that is asked.
    #[test]
    fn another_run_of_the_server_is_asked_only_if_its_epoch_is_certain() {
        let topology = topology(2, "a");
        let judged = |ran_on: &LostServer, now: &LostServer| judged(150, ran_on, now, &topology);
        let [one, other] = [7, 8].map(|run| server(2, "a", Some(run), false));
        assert_eq!(judged(&one, &one), Judgement::Ask);
        assert_eq!(judged(&one, &other), Judgement::Unknown);
        let nobody = server(2, "a", None, false);
        assert_eq!(judged(&nobody, &nobody), Judgement::Unknown);
        let [one, other] = [7, 8].map(|run| server(2, "a", Some(run), true));
        assert_eq!(judged(&one, &other), Judgement::Ask, "restarted in place");
    }
}
