//! Choice of the server for a batch that begins a transaction, or is one (R2).
//!
//! To a standby only what is known to be read-only; and only to one that has the version that the read needs
//! (R1, R3). Everything else goes to the active.

use volume::lsn::Lsn;

use super::super::choice::{Wanted, choose};
use super::super::flaw::Flaw;
use super::super::settings::Settings;
use super::super::sql::{Hint, Kind, ProxyQuery, SingleStatement};
use super::super::topology::NodeName;
use super::super::version::{ReadMode, Required, parse_lsn};
use super::batch::RequestBatch;
use super::reason::Reason;
use super::{Context, Effect, Out, Phase, Role, Server, Session, Wait};

/// State of a standby for a read that needs a position.
enum Standing {
    /// It has replayed up to the position.
    Good,
    /// It may have restarted since the session read on it.
    Restarted,
    /// It is not known to have replayed up to the position.
    Behind,
}

impl Session {
    /// Finds a server for the batch.
    pub(super) fn route(&mut self, cx: &Context<'_>, out: &mut Out) {
        let Some(batch) = &self.batch else {
            return;
        };
        if batch.facts.proxy_query == Some(ProxyQuery::Version) {
            self.ask_position(cx, out);
            return;
        }
        let mode = self.read_mode(cx);
        if !self.may_read_elsewhere(cx, batch, mode) {
            if self.needs_proof(cx, batch, mode) {
                self.ask_position(cx, out);
            } else {
                self.route_to_active(cx, out);
            }
            return;
        }
        self.turn += 1;
        match self.seen.required(mode, self.least()) {
            Required::At(position) => self.route_to_standby(cx, position, out),
            Required::Same(name) if cx.topology.standby(&name).is_some() => {
                self.required = Lsn::ZERO;
                self.acquire_standby(name, out);
            }
            Required::Position | Required::Same(_) => self.ask_position(cx, out),
        }
    }

    /// True if it must be proved first that the active is active: one that was cut off or stood still shows
    /// what is old. What a transaction writes is its own proof, when it commits; but a function that may write need not.
    fn needs_proof(&self, cx: &Context<'_>, batch: &RequestBatch, mode: ReadMode) -> bool {
        let writes = match cx.lacks(Flaw::CallsAreProof) {
            false => batch.facts.is_more_than_read,
            true => batch.facts.writes,
        };
        let reads = batch.facts.begins.is_some() || !writes;
        match mode {
            ReadMode::Strong => reads,
            // What it may have committed is not to be committed again because it does not show yet.
            ReadMode::Session if self.seen.is_in_doubt() => !changes_settings(batch),
            _ => {
                reads && (self.must_not_age(cx) || self.lacks_version() && !changes_settings(batch))
            }
        }
    }

    /// True if the client asks for more than is proved to be there: an active that was cut off may not have it.
    pub(super) fn lacks_version(&self) -> bool {
        !self.seen.is_proved(self.least())
    }

    /// True if whatever active there is must not answer a read without proof that it is active.
    pub(super) fn distrusts_active(&self, cx: &Context<'_>) -> bool {
        self.must_not_age(cx) || self.lacks_version()
    }

    /// True if the active must prove that it is active, for the session may have seen more than it has.
    pub(super) fn must_not_age(&self, cx: &Context<'_>) -> bool {
        let may_be_ahead = self.seen.may_be_ahead_of(cx.topology.epoch);
        self.read_mode(cx) == ReadMode::Session && may_be_ahead
    }

    /// The position that the client itself asks for.
    pub(super) fn least(&self) -> Lsn {
        let text = self.session_state.settings.value("understudy.min_version");
        text.and_then(parse_lsn).unwrap_or(Lsn::ZERO)
    }

    /// True if the batch is known to be read-only and may run where the session's server is not.
    pub(super) fn may_read_elsewhere(
        &self,
        cx: &Context<'_>,
        batch: &RequestBatch,
        mode: ReadMode,
    ) -> bool {
        if mode == ReadMode::Active
            || !batch.is_complete
            || batch.avoids_standbys
            || batch.facts.hint == Some(Hint::Active)
            || self.session_state.is_bound()
            || self.may_lack_its_own(cx, mode)
            || cx.topology.standbys.is_empty()
        {
            return false;
        }
        if let Some(begin) = batch.facts.begins {
            let begins_only = |part: &SingleStatement| matches!(part.kind, Kind::Begin(_));
            let setting = self
                .session_state
                .settings
                .value("default_transaction_read_only");
            let by_default = matches!(setting, Some("on" | "true" | "1" | "yes"));
            let mut parts = batch.facts.statements.iter().flat_map(|all| &all.parts);
            return begin.read_only.unwrap_or(by_default)
                && !begin.is_serializable
                && parts.all(begins_only);
        }
        let hinted = batch.facts.hint == Some(Hint::Standby);
        let mut parts = batch.facts.statements.iter().flat_map(|all| &all.parts);
        let executes = !batch.facts.statements.is_empty();
        executes
            && parts.all(|part| {
                part.kind == Kind::Read
                    && !part.is_for_active()
                    && (hinted || cx.catalog.judge(part).may_run_on_standby)
            })
    }

    /// Its connections begin with these settings, which are not its own to make.
    pub fn begins_with(&mut self, settings: &Settings) {
        let setting = settings.value("synchronous_commit");
        self.commits_async |= setting.is_some_and(|value| !commits_wait(value));
    }

    /// True if what the session has committed may not be in the log yet, so that no position tells of it.
    fn may_lack_its_own(&self, cx: &Context<'_>, mode: ReadMode) -> bool {
        let setting = self.session_state.settings.value("synchronous_commit");
        let is_async = match setting {
            Some(value) => !commits_wait(value),
            None => cx.catalog.commits_async,
        };
        matches!(mode, ReadMode::Strong | ReadMode::Session) && (is_async || self.commits_async)
    }

    pub(super) fn route_to_standby(&mut self, cx: &Context<'_>, required: Lsn, out: &mut Out) {
        self.required = required;
        let wanted = if cx.lacks(Flaw::VersionIgnored) {
            Lsn::ZERO
        } else {
            required
        };
        let wanted = Wanted {
            required: wanted,
            turn: self.turn,
            spare_every: cx.rules.spare_every,
            near: &cx.rules.near,
        };
        let chosen = choose(cx.topology, cx.load, wanted);
        if let Some(standby) = chosen {
            let name = standby.name.clone();
            self.acquire_standby(name, out);
        } else if self.phase == Phase::Waiting(Wait::Version(required)) {
            // It goes on waiting.
        } else if required > Lsn::ZERO && !cx.rules.read_wait.is_zero() {
            self.phase = Phase::Waiting(Wait::Version(required));
            out.effects.push(Effect::Wake(cx.rules.read_wait));
        } else {
            self.give_up_standbys(cx, out);
        }
    }

    /// No standby has in time what the read must see.
    fn give_up_standbys(&mut self, cx: &Context<'_>, out: &mut Out) {
        if !self.lacks_version() && !self.active_may_be_late(cx) {
            self.route_to_active(cx, out);
            return;
        }
        if let Some(batch) = &mut self.batch {
            // Once it is proved where the active is there is nothing more to wait for.
            batch.avoids_standbys = true;
        }
        self.ask_position(cx, out);
    }

    fn acquire_standby(&mut self, name: NodeName, out: &mut Out) {
        self.phase = Phase::Waiting(Wait::Server);
        if self.link.is_some() {
            self.parked = self.link.take();
            out.effects.push(Effect::Park);
        }
        out.effects.push(Effect::AcquireStandby(name));
    }

    /// No standby does it: the active it is, if it must not be feared to show what is older than a standby showed.
    pub(super) fn route_past_standbys(&mut self, cx: &Context<'_>, out: &mut Out) {
        if self.read_mode(cx) == ReadMode::Strong || self.distrusts_active(cx) {
            self.ask_position(cx, out);
        } else {
            self.route_to_active(cx, out);
        }
    }

    /// The active it is, once transactions may begin.
    pub(super) fn route_to_active(&mut self, cx: &Context<'_>, out: &mut Out) {
        if cx.topology.is_held() {
            self.phase = Phase::Waiting(Wait::Resume);
        } else {
            self.acquire_active(cx, out);
        }
    }

    /// Goes on with the connection to the active that is there, or asks for one.
    pub(super) fn acquire_active(&mut self, cx: &Context<'_>, out: &mut Out) {
        if self.link.is_some() {
            self.prepare(cx, out);
        } else if self.parked.is_some() {
            self.link = self.parked.take();
            out.effects.push(Effect::Unpark);
            self.prepare(cx, out);
        } else {
            self.phase = Phase::Waiting(Wait::Server);
            self.ask_for_active(out);
        }
    }

    /// Standbys have moved on, or the cluster has changed.
    pub fn news(&mut self, cx: &Context<'_>, out: &mut Out) {
        let now = cx.topology.epoch;
        let is_old = |server: &Server| server.epoch().is_some_and(|epoch| epoch < now);
        if self.parked.as_deref().is_some_and(is_old) {
            self.parked = None;
            out.effects.push(Effect::DropParked);
            if self.session_state.cannot_move() {
                self.tell_lost_affinities(out);
                return;
            }
        }
        if self.link.as_deref().is_some_and(is_old) || self.is_on_silent_standby(cx) {
            self.server_lost(cx, out);
            return;
        }
        match self.phase {
            Phase::Waiting(Wait::Resume) if !cx.topology.is_held() => self.acquire_active(cx, out),
            Phase::Waiting(Wait::Version(required)) => {
                self.route_to_standby(cx, required, out);
            }
            _ => {}
        }
    }

    /// The time of an [`Effect::Wake`] has come.
    pub fn woken(&mut self, cx: &Context<'_>, out: &mut Out) {
        match self.phase {
            Phase::Waiting(Wait::Version(_)) => self.give_up_standbys(cx, out),
            // Unless it is being asked, or a server is on its way.
            Phase::Deciding if self.link.is_some() && self.replies.is_empty() => {
                self.decide(cx, out)
            }
            // Its client waits for something, most probably: what PostgreSQL would have by now it gets.
            Phase::Gathering if self.batch.as_deref().is_some_and(is_unanswered) => {
                self.dispatch(cx, out);
            }
            _ => {}
        }
    }

    /// Here is a connection. `waited` tells that it could not be had at once.
    pub fn linked(&mut self, cx: &Context<'_>, server: Box<Server>, waited: bool, out: &mut Out) {
        if self.phase != Phase::Waiting(Wait::Server) && self.phase != Phase::Deciding {
            self.link = Some(server);
            self.release(cx, out);
            return;
        }
        let is_old = |epoch| epoch < cx.topology.epoch;
        if server.epoch().is_some_and(is_old) {
            // Another took over while it was connected to.
            out.effects.push(Effect::Drop);
            self.ask_for_active(out);
            return;
        }
        let is_same_epoch = server.epoch().is_some() && server.epoch() == self.lost_epoch;
        self.link = Some(server);
        self.lost_epoch = None;
        if let Some(words) = self.last_words.take()
            && is_same_epoch
            && !waited
        {
            // The server is well and did not end everybody's connections: it meant this one.
            out.client.extend_from_slice(&words);
            self.shut(out);
            return;
        }
        if let Some(word) = self.dying_word.take()
            && is_same_epoch
            && !waited
            && self.in_doubt.is_none()
        {
            // The server is well: the word was an answer.
            let fields = protocol::frame::error_fields(&word);
            let (code, text) = (fields.code, String::from_utf8_lossy(fields.message));
            let code = if code == b"58P01" { "58P01" } else { "58030" };
            let refusal = super::Refusal::error(code, text.into_owned());
            self.fail_batch(&refusal, out);
            if self.phase == Phase::Idle {
                self.release(cx, out);
            }
            return;
        }
        if cx.topology.is_held() && self.begins_on_active() {
            // The hold began while the connection was made.
            self.phase = Phase::Waiting(Wait::Resume);
            return;
        }
        if self.phase == Phase::Waiting(Wait::Server) && self.has_met_another_active(cx) {
            self.ask_position(cx, out);
            return;
        }
        match self.judge_standby(cx) {
            Standing::Good => {}
            Standing::Restarted => {
                self.unlink_standby(out);
                self.ask_position(cx, out);
                return;
            }
            Standing::Behind => {
                self.unlink_standby(out);
                self.give_up_standbys(cx, out);
                return;
            }
        }
        self.prepare(cx, out);
    }

    /// True if the active in hand is that of another epoch than when it was asked for, and may have less than the session saw.
    fn has_met_another_active(&self, cx: &Context<'_>) -> bool {
        let epoch = self.link.as_deref().and_then(|link| link.epoch());
        let is_other = epoch.is_some_and(|epoch| self.seen.was_taken_for_other_than(epoch));
        is_other && self.read_mode(cx) == ReadMode::Session
    }

    /// True if the server in hand is the active, for a transaction that has not begun.
    fn begins_on_active(&self) -> bool {
        let is_active = self
            .link
            .as_ref()
            .is_some_and(|link| link.epoch().is_some());
        is_active && self.status == b'I' && self.replay.is_none() && self.in_doubt.is_none()
    }

    /// True if the server in hand has what the read must see.
    fn judge_standby(&self, cx: &Context<'_>) -> Standing {
        let Some(link) = &self.link else {
            return Standing::Good;
        };
        let Role::Standby(name) = &link.role else {
            return Standing::Good;
        };
        let required = self.seen.required(self.read_mode(cx), self.least());
        if matches!(required, Required::Same(_)) && self.transaction.is_none() {
            let is_same = self.seen.is_same_run(name, link.run);
            return if is_same || cx.lacks(Flaw::AnyStandby) {
                Standing::Good
            } else {
                Standing::Restarted
            };
        }
        let is_said = cx.topology.standby(name).is_some_and(|standby| {
            let is_same = link.run.is_some() && standby.run == link.run;
            (is_same || cx.lacks(Flaw::RestartIgnored)) && standby.replayed >= self.required
        });
        if is_said || link.replayed >= self.required || cx.lacks(Flaw::VersionIgnored) {
            Standing::Good
        } else {
            Standing::Behind
        }
    }

    /// No connection is to be had.
    pub fn refused(&mut self, cx: &Context<'_>, refusal: &super::Refusal, out: &mut Out) {
        if !matches!(self.phase, Phase::Waiting(Wait::Server) | Phase::Deciding) {
            return;
        }
        if refusal.severity == "FATAL" {
            self.close(refusal, out);
        } else if self.in_doubt.take().is_some() {
            self.tell_unknown(out);
        } else if self.replay.is_some() {
            self.fail_transaction(Reason::NoServer, out);
        } else {
            let avoids = self.batch.as_mut().is_some_and(|batch| {
                let is_first = !batch.avoids_standbys;
                batch.avoids_standbys = true;
                is_first
            });
            if avoids && self.read_mode(cx) != ReadMode::Active {
                self.route_past_standbys(cx, out);
            } else if self.batch.is_some() {
                self.fail_batch(refusal, out);
            } else {
                self.close(refusal, out);
            }
        }
    }

    /// Nothing is under way: give back what need not be kept.
    pub(super) fn release(&mut self, cx: &Context<'_>, out: &mut Out) {
        let Some(link) = &self.link else {
            return;
        };
        if self.status != b'I' || !self.replies.is_empty() {
            return;
        }
        match &link.role {
            Role::Standby(name) => {
                self.seen.on_standby(&name.clone(), link.run);
                self.counts.on_standby += 1;
                if self.session_state.is_bound() {
                    // It has something of this session after all, which nobody else must get.
                    self.drop_standby(out);
                } else {
                    self.unlink_standby(out);
                }
            }
            Role::Active(_) => {
                if !cx.lacks(Flaw::OwnWritesForgotten) {
                    let label = link.uncertain_epoch();
                    self.seen
                        .on_active(label.filter(|_| !cx.lacks(Flaw::NewsBelieved)));
                }
                let keeps =
                    cx.rules.mode == super::PoolMode::Session || self.session_state.is_bound();
                if !keeps {
                    self.return_link(out);
                }
            }
        }
    }
}

/// True if something of the batch has come, and nobody has seen to it.
fn is_unanswered(batch: &RequestBatch) -> bool {
    !batch.skips && !batch.noted.is_empty()
}

/// True if commits wait until they are durable with this value of `synchronous_commit`.
pub(super) fn commits_wait(value: &str) -> bool {
    !["off", "false", "no", "0"]
        .iter()
        .any(|off| value.eq_ignore_ascii_case(off))
}

/// True if the batch does nothing else: it reads nothing, and may be what takes back what was asked for.
fn changes_settings(batch: &RequestBatch) -> bool {
    let mut parts = batch.facts.statements.iter().flat_map(|all| &all.parts);
    parts.all(|part| part.kind == Kind::Session && !part.effects.is_empty())
}
