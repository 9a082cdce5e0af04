//! What goes wrong.

use rand::Rng;

use super::super::manager::{Manager, Role};
use super::World;

impl World {
    pub(super) fn fault(&mut self) {
        if !self.rng.random_bool(0.1) {
            return;
        }
        let at = self.rng.random_range(0..2);
        match self.rng.random_range(0..16) {
            0 | 1 => self.kill_manager(at),
            2 | 3 | 14 => self.kill_member(at),
            4..=7 => self.mend(at),
            8 => {
                self.cut_link();
                self.suspect(at, 0.3);
            }
            9 | 10 => self.is_linked = true,
            11 => {
                self.coverage.one("cut off from the zones");
                self.sites[at].reaches = false;
            }
            12 | 15 => {
                self.coverage.one("handovers asked for");
                self.with(at, |manager, out| manager.switch_over(out));
            }
            _ => self.corrupt(at),
        }
        if self.rng.random_bool(0.3) {
            self.sites[0].reaches = true;
            self.sites[1].reaches = true;
        }
        if self.rng.random_bool(0.2) {
            self.with(at, |manager, _| manager.stay());
        }
    }

    pub(super) fn start(&mut self, at: usize) {
        let mut rules = self.rules.clone();
        rules.patience_ms = if at == 0 { 0 } else { rules.timeout_ms };
        let site = &mut self.sites[at];
        site.manager = Manager::new(rules, self.now_ms);
        site.is_alive = true;
        site.life += 1;
        site.knows = None;
        site.inbox.clear();
        site.reports.clear();
        site.late.clear();
        site.asked.clear();
        site.confirms.clear();
        site.stream = None;
        site.began = None;
        site.level = None;
        site.replaces = false;
        self.trace(|| format!("{at}: the manager starts"));
    }

    fn kill_manager(&mut self, at: usize) {
        if !self.sites[at].is_alive {
            return;
        }
        self.trace(|| format!("{at}: the manager is killed"));
        self.coverage.one("managers killed");
        let site = &mut self.sites[at];
        site.is_alive = false;
        site.serves = false;
        site.stream = None;
        site.applying.clear();
        site.reports.clear();
        site.late.clear();
        self.lose_clients(at);
        self.cut_link();
        self.is_linked = true;
        self.suspect(1 - at, 0.5);
    }

    /// A manager takes the other one for gone, rightly or not.
    fn suspect(&mut self, at: usize, share: f64) {
        if self.sites[at].is_alive && self.rng.random_bool(share) {
            self.coverage.one("taken for gone");
            self.with(at, |manager, out| manager.peer_gone(out));
        }
    }

    fn kill_member(&mut self, at: usize) {
        if !self.sites[at].member.is_alive {
            return;
        }
        self.trace(|| format!("{at}: the member is killed"));
        self.coverage.one("members killed");
        self.lose_clients(at);
        let site = &mut self.sites[at];
        let unsaved = site.member.unsaved.len();
        let kept = self.rng.random_range(0..=unsaved);
        site.member.crash(kept);
        if kept < unsaved {
            self.coverage.one("commits lost with their server");
        }
        let is_back = self.rng.random_bool(0.3);
        let hears_late = self.rng.random_bool(0.5);
        let site = &mut self.sites[at];
        site.stream = None;
        site.applying.clear();
        if hears_late {
            site.late.append(&mut site.reports);
        }
        if is_back {
            self.trace(|| format!("{at}: the member is back at once"));
            self.sites[at].member.is_alive = true;
        }
    }

    fn mend(&mut self, at: usize) {
        if !self.sites[at].is_alive {
            self.start(at);
        } else if !self.sites[at].member.is_alive {
            self.trace(|| format!("{at}: the member starts"));
            self.sites[at].member.is_alive = true;
        }
    }

    fn cut_link(&mut self) {
        self.trace(|| "the managers lose each other".to_owned());
        self.is_linked = false;
        self.lose_words();
    }

    /// Messages between the managers that are on their way are lost.
    pub(super) fn lose_words(&mut self) {
        for at in 0..2 {
            self.sites[at].inbox.clear();
            if self.sites[at].is_alive {
                self.with(at, |manager, out| manager.peer_lost(out));
            }
        }
    }

    /// Something in a standby's member becomes wrong.
    fn corrupt(&mut self, at: usize) {
        if self.sites[at].manager.role() != Role::Standby || !self.rng.random_bool(0.4) {
            return;
        }
        let member = &mut self.sites[at].member;
        member.save();
        if member.content.pop_first().is_some() {
            member.save();
            member.is_corrupt = true;
            self.trace(|| format!("{at}: the member becomes wrong"));
            self.coverage.one("members made wrong");
        }
    }

    pub(super) fn heal(&mut self) {
        self.trace(|| "faults end".to_owned());
        self.is_linked = true;
        for at in 0..2 {
            self.sites[at].reaches = true;
            self.sites[at].member.is_alive = true;
            if !self.sites[at].is_alive {
                self.start(at);
            }
            self.with(at, |manager, _| manager.stay());
        }
    }
}
