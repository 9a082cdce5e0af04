//! Does somebody serve, or must this node? What a node without PostgreSQL makes of the registry.
//!
//! Nobody is asked; the registry is watched (CAC-DB, appendix A). A node starts the volume only if no
//! heartbeat moves for Tmax and no standby is alive that would do it faster. Being wrong is safe:
//! whoever owns the higher epoch wins, the other one follows.

use std::time::Duration;

use coordination::detector::Beat;
use coordination::records::ActiveState;
use dax::ids::NodeName;

use super::{Cause, Decider, Decision, Effect, LastBeat, Machine, Phase, Registry, State};

/// How many times Tmax a living standby is given to take over.
const STANDBY_PATIENCE: u32 = 3;
/// An earlier life of this node may have left so many beats on their way. Whoever writes more lives.
const LATE_BEATS: u32 = 2;

/// What was seen since this node looks.
#[derive(Debug, Clone)]
pub(super) struct Look {
    began: Duration,
    first: Option<LastBeat>,
    own: OwnBeats,
    /// The last owner does not beat, as far as was seen.
    pub(super) quiet: bool,
    /// It was said why nothing happens.
    held: bool,
}

/// What a look comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Not clear yet.
    Unclear,
    /// Somebody serves.
    Active,
    /// Nobody does, and nobody else will.
    Nobody,
    /// Somebody serves under this node's own name.
    Namesake,
}

/// The beats under this node's own name and the epoch that it saw first.
#[derive(Debug, Clone, Default)]
struct OwnBeats {
    newest: Option<Beat>,
    /// How many came since the first, and when the last did.
    late: u32,
    late_at: Duration,
}

impl OwnBeats {
    fn note(&mut self, beat: Beat, now: Duration) {
        let before = self.newest.replace(beat);
        if before.is_some_and(|before| before < beat) {
            self.late += 1;
            self.late_at = now;
        }
    }

    /// An earlier life of this node does not beat any more. That is known soon, unless beats come.
    fn have_ended(&self, began: Duration, timeout: Duration, now: Duration) -> bool {
        match self.late {
            // Longer than from one beat to the next.
            0 => now.saturating_sub(began) >= timeout / 3,
            _ => now.saturating_sub(self.late_at) >= timeout,
        }
    }
}

impl Look {
    fn begin(registry: &Registry, now: Duration) -> Look {
        Look {
            began: now,
            first: registry.beat.clone(),
            own: OwnBeats::default(),
            quiet: false,
            held: false,
        }
    }

    fn judge(
        &mut self,
        registry: &Registry,
        me: &NodeName,
        timeout: Duration,
        reports: Duration,
        now: Duration,
    ) -> Found {
        let Some(last) = &registry.beat else {
            self.quiet = true;
            return Found::Nobody;
        };
        let first = self.first.get_or_insert_with(|| last.clone());
        let mine = last.node == *me && last.beat.epoch == first.beat.epoch;
        if last.beat > first.beat && !last.state.is_vacant() && !mine {
            return Found::Active;
        }
        let waited = now.saturating_sub(self.began);
        let ended = match mine {
            true => {
                self.own.note(last.beat, now);
                self.own.have_ended(self.began, timeout, now)
            }
            false => waited >= timeout,
        };
        self.quiet = ended || last.state.is_vacant();
        if !self.quiet && mine && self.own.late > LATE_BEATS {
            return Found::Namesake;
        }
        // Two of their reports are awaited before nobody counts as alive.
        let looked = waited >= reports;
        let given_up = waited >= timeout * STANDBY_PATIENCE + reports;
        match self.quiet && looked && (!registry.standby_alive || given_up) {
            true => Found::Nobody,
            false => Found::Unclear,
        }
    }
}

impl Machine {
    /// The registry was looked at.
    pub(super) fn seen(&mut self, registry: &Registry, now: Duration) -> Vec<Effect> {
        if !self.state.is_watching() {
            return Vec::new();
        }
        let look = self.look.get_or_insert_with(|| Look::begin(registry, now));
        let (timeout, reports) = (self.limits.timeout, self.limits.reports);
        match look.judge(registry, &self.me, timeout, reports, now) {
            Found::Unclear => Vec::new(),
            Found::Active => self.somebody_serves(registry, now),
            Found::Nobody => self.nobody_serves(registry, now),
            Found::Namesake => self.namesake_serves(),
        }
    }

    fn somebody_serves(&mut self, registry: &Registry, now: Duration) -> Vec<Effect> {
        // From the newest beat on: a spare goes on watching.
        self.look = Some(Look::begin(registry, now));
        if self.state == State::Spare {
            // Whether it is needed is for the active to say.
            return Vec::new();
        }
        let enough = self
            .wanted
            .is_some_and(|wanted| registry.standbys >= wanted);
        if (self.tags.spare || enough) && !self.enlisted {
            self.go(State::Spare);
        } else {
            self.go(State::Attaching);
        }
        Vec::new()
    }

    fn nobody_serves(&mut self, registry: &Registry, now: Duration) -> Vec<Effect> {
        if self.state == State::Spare {
            // It looks again, as a node that is needed, before it does anything.
            self.enlisted = !self.paused;
            if self.enlisted {
                self.look = Some(Look::begin(registry, now));
                self.go(State::Looking);
            }
            return Vec::new();
        }
        let last = registry.beat.as_ref();
        let own = last.is_some_and(|last| last.node == self.me);
        let died = last.is_some_and(|last| last.state == ActiveState::PostgresDead);
        // Who served goes on where it was, unless its server died while nobody shall take over.
        let held = !self.fits
            || match own {
                true => self.paused && died,
                false => (self.paused && last.is_some()) || self.tags.nofailover,
            };
        if !held {
            let decision = Decision {
                cause: Cause::Started,
                by: Decider::Automatic,
            };
            self.take_over(decision);
            return Vec::new();
        }
        if last.is_some() && !own {
            // Ready for an operator's order, or the end of the pause.
            self.go(State::Attaching);
            return Vec::new();
        }
        let Some(look) = self.look.as_mut().filter(|look| !look.held) else {
            return Vec::new();
        };
        look.held = true;
        let why = match (self.fits, self.paused) {
            (false, _) => "texts sort otherwise here: understudy accept-collations",
            (true, true) => "the cluster is paused: resume",
            (true, false) => "this node is tagged nofailover: start another one",
        };
        let text = format!("no node is active, but {why}, or order a failover");
        vec![Effect::Alarm(text)]
    }

    /// Two agents of one name would take the volume from each other again and again.
    fn namesake_serves(&mut self) -> Vec<Effect> {
        let Some(look) = self.look.as_mut().filter(|look| !look.held) else {
            return Vec::new();
        };
        look.held = true;
        vec![Effect::Alarm(format!(
            "another agent serves under the name {0}, so this one does nothing; \
             stop one of the two, or give it another \"name\" in its configuration",
            self.me
        ))]
    }

    /// An operator wants this node, which holds nothing, to serve.
    pub(super) fn asked_while_looking(&mut self) -> Result<(), String> {
        let quiet = self.look.as_ref().is_some_and(|look| look.quiet);
        if !quiet || self.state != State::Looking {
            return Err(format!("{} is {} now; try again", self.me, self.state));
        }
        self.take_over(Decision {
            cause: Cause::Forced,
            by: Decider::Operator,
        });
        Ok(())
    }

    /// Begins a takeover.
    pub(super) fn take_over(&mut self, decision: Decision) {
        self.decision = Some(decision);
        self.go(State::TakingOver(Phase::Fence));
    }
}
