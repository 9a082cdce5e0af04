//! What can happen next, and what it does. Replicas decide with [`dax::replica`]; the clients repeat
//! `client::core` (`epoch`, `promote`, `reads`) for one block.

use std::fmt;

use dax::ids::Epoch;
use dax::replica::{Claim, Fence};
use dax::storage::EpochGrant;

use crate::setup::{CLIENTS, NAMES, READ, REPLICAS, Setup, Stamp, Variant, Who};
use crate::state::{Answer, Disk, Grant, Op, Phase, Site, State, Stored, bit};

type Place = usize;

/// A replica takes a message, or a client decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The owner writes; nothing has arrived anywhere.
    Write(Who),
    /// A replica takes the client's n-th write.
    Take(Place, Who, u8),
    /// A replica answers a look at its epoch.
    Look(Place, Who),
    /// Patience ends in a contest that looks undecided.
    GiveUpLooking(Who),
    /// A replica takes a proposal; its reply arrives, or does not.
    Propose(Place, Who, Reply),
    /// A replica takes the owner's announcement.
    Announce(Place, Who),
    /// A replica answers a promotion.
    Promote(Place, Who),
    /// The owner goes on with the quorum that agrees.
    GoOn(Who),
    /// A replica answers a read.
    Read(Place, Who),
    /// What was decided becomes durable, and is told.
    Commit(Place),
    /// What was not durable is gone.
    Crash(Place),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Arrives,
    IsLost,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |who: Who| NAMES[who].to_uppercase();
        match *self {
            Step::Write(c) => write!(f, "{} writes", name(c)),
            Step::Take(r, c, n) => write!(f, "r{r} takes write {n} of {}", name(c)),
            Step::Look(r, c) => write!(f, "r{r} tells {} its epoch", name(c)),
            Step::GiveUpLooking(c) => write!(f, "{} takes the contest as undecided", name(c)),
            Step::Propose(r, c, Reply::Arrives) => {
                write!(f, "r{r} answers the claim of {}", name(c))
            }
            Step::Propose(r, c, Reply::IsLost) => {
                write!(
                    f,
                    "r{r} accepts the claim of {}, the reply is lost",
                    name(c)
                )
            }
            Step::Announce(r, c) => write!(f, "r{r} takes the announcement of {}", name(c)),
            Step::Promote(r, c) => write!(f, "r{r} answers the promotion of {}", name(c)),
            Step::GoOn(c) => write!(f, "{} goes on with the replies that it has", name(c)),
            Step::Read(r, c) => write!(f, "r{r} answers the read of {}", name(c)),
            Step::Commit(r) => write!(f, "r{r} commits"),
            Step::Crash(r) => write!(f, "r{r} crashes"),
        }
    }
}

fn fence(grant: Grant) -> Fence {
    Fence::new(EpochGrant {
        epoch: Epoch(grant.epoch.into()),
        owner: NAMES[usize::from(grant.owner)].to_owned(),
    })
}

impl Site {
    /// What the replica decides by: what is durable, and what is about to be.
    fn decided(&self) -> Disk {
        self.round.map_or(self.disk, |(disk, _)| disk)
    }
}

// --- what can happen ---------------------------------------------------------------------------------

impl State {
    pub fn steps(&self, setup: &Setup, steps: &mut Vec<Step>) {
        for who in 0..CLIENTS {
            match self.clients[who].phase {
                Phase::Idle | Phase::Conflict(_) => {}
                Phase::Looking | Phase::LookingWho => self.look_steps(who, steps),
                Phase::Proposing(epoch) => self.propose_steps(setup, who, epoch, steps),
                Phase::Owner(epoch) => self.owner_steps(setup, who, epoch, steps),
            }
        }
        for place in 0..REPLICAS {
            if self.sites[place].round.is_some() {
                steps.push(Step::Commit(place));
                if self.history.crashes < setup.crashes {
                    steps.push(Step::Crash(place));
                }
            }
        }
    }

    fn look_steps(&self, who: Who, steps: &mut Vec<Step>) {
        let silent = (0..REPLICAS).filter(|r| self.sites[*r].looked[who].is_none());
        steps.extend(silent.clone().map(|r| Step::Look(r, who)));
        let enough = REPLICAS - silent.count() >= READ;
        if self.clients[who].phase == Phase::LookingWho && enough {
            steps.push(Step::GiveUpLooking(who));
        }
    }

    fn propose_steps(&self, setup: &Setup, who: Who, epoch: u8, steps: &mut Vec<Step>) {
        for place in 0..REPLICAS {
            let site = &self.sites[place];
            let told = site.round.map_or(site.told, |(_, told)| told);
            if told.answer[who] != Answer::None {
                continue;
            }
            steps.push(Step::Propose(place, who, Reply::Arrives));
            let mut fence = fence(site.decided().grant);
            let accepts = fence.own(Epoch(epoch.into()), NAMES[who], false) == Claim::Accepted;
            if setup.contest[who] && accepts {
                steps.push(Step::Propose(place, who, Reply::IsLost));
            }
        }
    }

    fn owner_steps(&self, setup: &Setup, who: Who, epoch: u8, steps: &mut Vec<Step>) {
        let client = &self.clients[who];
        if client.wrote < setup.writes[who] {
            steps.push(Step::Write(who));
        }
        // What is not on k replicas is read from memory, and its version is never forgotten.
        let asks = self.is_synced(who);
        let promotes = match client.op {
            Op::None => asks && client.promotions < setup.promotions[who],
            op => matches!(op, Op::Promoting { .. }),
        };
        let reads = match client.op {
            Op::None => asks && setup.reads[who],
            op => matches!(op, Op::Reading { .. }),
        };
        if let Op::Promoting { replies, .. } = client.op
            && usize::from(replies) >= READ
        {
            steps.push(Step::GoOn(who));
        }
        for place in 0..REPLICAS {
            let site = &self.sites[place];
            let decided = site.decided();
            let told = site.round.map_or(site.told, |(_, told)| told);
            if self.admits(decided, epoch) || setup.variant == Variant::UnfencedWrites {
                let missing = (1..=client.given).filter(|w| told.acked[who] & bit(*w) == 0);
                steps.extend(missing.map(|w| Step::Take(place, who, w)));
            }
            let mut fence = fence(decided.grant);
            if told.answer[who] != Answer::Yes
                && fence.own(Epoch(epoch.into()), NAMES[who], true) != Claim::Refused
            {
                steps.push(Step::Announce(place, who));
            }
            if !site.replied[who] {
                if promotes && self.answers_promotion(setup, place, who, epoch) {
                    steps.push(Step::Promote(place, who));
                }
                if reads && self.is_asked(setup, place, who, Variant::ReadsBeforeAcceptance) {
                    steps.push(Step::Read(place, who));
                }
            }
        }
    }

    fn admits(&self, disk: Disk, epoch: u8) -> bool {
        fence(disk.grant).admit(Epoch(epoch.into())).is_ok()
    }

    /// An owner asks replicas that have accepted its epoch, unless the rule is broken.
    fn is_asked(&self, setup: &Setup, place: Place, who: Who, broken: Variant) -> bool {
        setup.variant == broken || self.sites[place].told.answer[who] == Answer::Yes
    }

    /// A promotion is admitted like a write, and answered once everything before it is durable. The
    /// fence may rise between the two; then the reply shows the higher epoch, or what it would have
    /// shown before.
    fn answers_promotion(&self, setup: &Setup, place: Place, who: Who, epoch: u8) -> bool {
        let site = &self.sites[place];
        let unchecked = matches!(
            setup.variant,
            Variant::UnfencedPromotion | Variant::PromotionGuardedByTheOwner
        );
        self.is_asked(setup, place, who, Variant::UnfencedPromotion)
            && site.round.is_none()
            && (unchecked || self.admits(site.disk, epoch))
    }
}

// --- what it does ------------------------------------------------------------------------------------

impl State {
    pub fn take(&mut self, setup: &Setup, step: Step) {
        match step {
            Step::Write(who) => self.write(setup, who),
            Step::Take(place, who, write) => self.take_write(setup, place, who, write),
            Step::Look(place, who) => self.look(setup, place, who),
            Step::GiveUpLooking(who) => self.propose_next(setup, who),
            Step::Propose(place, who, reply) => self.propose(setup, place, who, reply),
            Step::Announce(place, who) => self.announce(setup, place, who),
            Step::Promote(place, who) => self.promote(setup, place, who),
            Step::GoOn(who) => self.rewrite(who),
            Step::Read(place, who) => self.read_one(setup, place, who),
            Step::Commit(place) => self.commit(setup, place),
            Step::Crash(place) => {
                self.sites[place].round = None;
                self.history.crashes += 1;
            }
        }
        if setup.symmetric {
            self.sites.sort_unstable();
        }
    }

    fn write(&mut self, setup: &Setup, who: Who) {
        let origin = self.next_stamp(setup, who);
        self.give(who, origin);
        let client = &mut self.clients[who];
        client.wrote += 1;
        client.shown = Some(origin);
        // A promotion in progress returns the own write, which is the same as none.
        self.end_op(who);
    }

    fn next_stamp(&self, setup: &Setup, who: Who) -> Stamp {
        let client = &self.clients[who];
        Stamp {
            epoch: client.epoch().expect("only owners write"),
            seq: setup.first_seq(who) + client.given + 1,
        }
    }

    /// Sends contents to all replicas, as a version of the client's own.
    fn give(&mut self, who: Who, origin: Stamp) -> u8 {
        let highest = self.history.highest_owned();
        let client = &mut self.clients[who];
        client.origins[usize::from(client.given)] = origin;
        client.given += 1;
        if client.epoch().is_some_and(|epoch| epoch < highest) {
            client.late_from.get_or_insert(client.given);
        }
        client.given
    }

    fn end_op(&mut self, who: Who) {
        self.clients[who].op = Op::None;
        self.sites.iter_mut().for_each(|s| s.replied[who] = false);
    }

    // --- replicas ------------------------------------------------------------------------------------

    fn take_write(&mut self, setup: &Setup, place: Place, who: Who, write: u8) {
        let new = self.write_of(setup, who, write);
        let replaces = |stored: Stored| {
            let version = (!stored.is_absent()).then_some(stored.version);
            setup.replaces(new.version, version)
        };
        let site = &mut self.sites[place];
        let (disk, told) = site.round.get_or_insert((site.disk, site.told));
        told.acked[who] |= bit(write);
        if replaces(disk.stored) {
            disk.stored = new;
        }
        self.after_decision(setup, place);
    }

    fn after_decision(&mut self, setup: &Setup, place: Place) {
        if setup.crashes == 0 {
            self.commit(setup, place);
        } else if setup.variant == Variant::AnswersBeforeCommit {
            self.tell(setup, place);
        }
    }

    fn commit(&mut self, setup: &Setup, place: Place) {
        self.tell(setup, place);
        let site = &mut self.sites[place];
        if let Some((disk, _)) = site.round.take() {
            site.disk = disk;
        }
    }

    /// Answers what the round has decided.
    fn tell(&mut self, setup: &Setup, place: Place) {
        let before = self.sites[place].told;
        let Some((_, told)) = self.sites[place].round else {
            return;
        };
        self.sites[place].told = told;
        for who in 0..CLIENTS {
            let new = told.acked[who] & !before.acked[who];
            for write in (1..=8).filter(|w| new & bit(*w) != 0) {
                self.acknowledged(setup, who, write);
            }
            if told.answer[who] != before.answer[who] {
                self.answered(setup, who);
            }
        }
    }

    // --- epochs --------------------------------------------------------------------------------------

    fn own(&mut self, place: Place, epoch: u8, who: Who, settled: bool) -> bool {
        let site = &mut self.sites[place];
        let (disk, _) = site.round.get_or_insert((site.disk, site.told));
        let mut fence = fence(disk.grant);
        let claim = fence.own(Epoch(epoch.into()), NAMES[who], settled);
        if claim == Claim::Accepted {
            let owner = who as u8;
            disk.grant = Grant { epoch, owner };
        }
        claim != Claim::Refused
    }

    fn propose(&mut self, setup: &Setup, place: Place, who: Who, reply: Reply) {
        let Phase::Proposing(epoch) = self.clients[who].phase else {
            return;
        };
        let accepted = self.own(place, epoch, who, false);
        if reply == Reply::Arrives {
            let answer = if accepted { Answer::Yes } else { Answer::No };
            self.answer(place, who, answer);
        }
        self.after_decision(setup, place);
    }

    fn announce(&mut self, setup: &Setup, place: Place, who: Who) {
        let Phase::Owner(epoch) = self.clients[who].phase else {
            return;
        };
        if self.own(place, epoch, who, true) {
            self.answer(place, who, Answer::Yes);
        }
        self.after_decision(setup, place);
    }

    fn answer(&mut self, place: Place, who: Who, answer: Answer) {
        if let Some((_, told)) = &mut self.sites[place].round {
            told.answer[who] = answer;
        }
    }

    /// A client has one more answer to its proposal.
    fn answered(&mut self, setup: &Setup, who: Who) {
        let Phase::Proposing(epoch) = self.clients[who].phase else {
            return;
        };
        let count = |answer| {
            let told = self.sites.iter().map(|s| s.told.answer[who]);
            told.filter(|a| *a == answer).count()
        };
        if count(Answer::Yes) >= setup.epoch_quorum() {
            self.clients[who].phase = Phase::Owner(epoch);
            self.owned(epoch);
        } else if count(Answer::No) > REPLICAS - setup.epoch_quorum() && setup.contest[who] {
            self.clients[who].phase = Phase::LookingWho;
        }
    }

    fn look(&mut self, setup: &Setup, place: Place, who: Who) {
        self.sites[place].looked[who] = Some(self.sites[place].disk.grant);
        let grants: Vec<Grant> = self.sites.iter().filter_map(|s| s.looked[who]).collect();
        if grants.len() < setup.epoch_quorum() {
            return;
        }
        if self.clients[who].phase == Phase::Looking {
            return self.propose_next(setup, who);
        }
        let votes = |grant: &Grant| grants.iter().filter(|g| *g == grant).count();
        let highest = grants.iter().max_by_key(|g| (g.epoch, votes(g)));
        let highest = *highest.expect("a quorum has answered");
        if votes(&highest) >= setup.epoch_quorum() && usize::from(highest.owner) != who {
            self.clients[who].phase = Phase::Conflict(highest.epoch);
            self.sites.iter_mut().for_each(|s| s.looked[who] = None);
        } else if grants.len() == REPLICAS {
            self.propose_next(setup, who);
        }
    }

    fn propose_next(&mut self, setup: &Setup, who: Who) {
        let looked = self.sites.iter().filter_map(|s| s.looked[who]);
        let next = looked.map(|g| g.epoch).max().unwrap_or_default() + 1;
        self.clients[who].phase = match next <= setup.max_epoch {
            true => Phase::Proposing(next),
            false => Phase::Idle,
        };
        for site in &mut self.sites {
            site.looked[who] = None;
            site.told.answer[who] = Answer::None;
        }
    }

    // --- reads ---------------------------------------------------------------------------------------

    /// What a replica says; none if it shows a higher epoch, which fences the reader.
    fn reply(&self, place: Place, who: Who) -> Option<Stored> {
        let stored = self.sites[place].disk.stored;
        let epoch = self.clients[who].epoch()?;
        (stored.version.epoch <= epoch).then_some(stored)
    }

    fn promote(&mut self, setup: &Setup, place: Place, who: Who) {
        let Some(reply) = self.reply(place, who) else {
            return self.end_op(who);
        };
        let (replies, newest, agree) = match self.clients[who].op {
            Op::Promoting {
                replies,
                newest,
                agree,
            } => {
                let same = reply.version == newest.version;
                let newer = setup.is_newer(reply.version, newest.version);
                (replies, if newer { reply } else { newest }, agree && same)
            }
            _ => {
                self.clients[who].promotions += 1;
                (0, reply, true)
            }
        };
        let replies = replies + 1;
        self.sites[place].replied[who] = true;
        self.clients[who].op = Op::Promoting {
            replies,
            newest,
            agree,
        };
        let count = usize::from(replies);
        if setup.variant == Variant::Relabelling {
            return self.relabel(place, who, (count, newest, agree));
        }
        let complete = count == REPLICAS || setup.variant == Variant::QuorumAgrees;
        if count < READ {
            return;
        }
        if newest.is_absent() || (agree && complete) {
            self.end_op(who);
            self.promoted(who, newest);
        } else if !agree {
            self.rewrite(who);
        }
    }

    /// The newest is written again, with a version of the own epoch.
    fn rewrite(&mut self, who: Who) {
        let Op::Promoting { newest, .. } = self.clients[who].op else {
            return;
        };
        self.end_op(who);
        let seq = self.give(who, newest.origin);
        self.clients[who].op = Op::Rewriting { seq };
    }

    /// Figure 5 of the paper: the replica relabels what it has; the client returns the latest of its
    /// own epoch, or what all of a quorum agree on, or writes the newest again.
    fn relabel(&mut self, place: Place, who: Who, (count, newest, agree): (usize, Stored, bool)) {
        let epoch = self.clients[who].epoch().expect("only owners promote");
        let stored = &mut self.sites[place].disk.stored;
        if !stored.is_absent() {
            stored.version.epoch = epoch;
        }
        if count < READ {
            return;
        }
        if newest.is_absent() || newest.version.epoch == epoch || agree {
            self.end_op(who);
            self.promoted(who, newest);
        } else {
            self.rewrite(who);
        }
    }

    fn read_one(&mut self, setup: &Setup, place: Place, who: Who) {
        let Some(reply) = self.reply(place, who) else {
            return self.end_op(who);
        };
        let Op::Reading { first } = self.clients[who].op else {
            self.clients[who].op = Op::Reading { first: reply };
            self.sites[place].replied[who] = true;
            return;
        };
        let newer = setup.is_newer(reply.version, first.version);
        self.end_op(who);
        self.read(who, if newer { reply } else { first });
    }
}
