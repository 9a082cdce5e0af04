//! What goes wrong.

use rand::Rng;

use super::super::Guard;
use super::World;

impl World {
    pub fn fault(&mut self) {
        if !self.rng.random_bool(0.09) {
            return;
        }
        let at = self.rng.random_range(0..2);
        match self.rng.random_range(0..18) {
            0 => self.kill(at),
            1 => {
                self.coverage.one("power failures");
                self.kill(at);
                self.sites[at].lose_power(&mut self.rng);
            }
            2..=6 => self.mend(at),
            7 | 8 => self.cut_link(),
            9 => {
                self.coverage.one("pauses");
                self.now_ms += 250;
            }
            10 => {
                self.coverage.one("machines stuck");
                let length = self.rng.random_range(0..1000);
                self.sites[at].stuck_until_ms = self.now_ms + length;
            }
            11..=14 => {
                self.coverage.one("hosts stopped");
                // Often for less than its absence is noticed.
                let most = if self.rng.random_bool(0.7) { 90 } else { 500 };
                let length = self.rng.random_range(0..most);
                self.sites[at].frozen_until_ms = self.now_ms + length;
            }
            15 => {
                let done = self.with(at, |guard, out| guard.hand_over(out));
                if done == Some(Ok(())) {
                    self.coverage.one("handovers");
                }
            }
            _ if self.sites[at].is_alive() && self.sites[at].runs() => {
                self.coverage.one("machines lost");
                self.with(at, Guard::machine_lost);
            }
            _ => {}
        }
        if !self.is_linked && self.rng.random_bool(0.3) {
            self.join();
        }
    }

    fn kill(&mut self, at: usize) {
        if !self.sites[at].is_alive() {
            return;
        }
        if self.sites[at].is_applying() {
            self.coverage.one("killed while applying");
        }
        self.coverage.one("killed");
        self.trace(|| format!("{at} is killed"));
        self.sites[at].kill();
        self.lose(1 - at);
    }

    fn lose(&mut self, at: usize) {
        if self.sites[at].is_alive() {
            self.with(at, Guard::link_lost);
        }
    }

    fn mend(&mut self, at: usize) {
        if !self.sites[at].is_alive() {
            self.start(at);
            if self.is_linked {
                self.join();
            }
        }
    }

    fn cut_link(&mut self) {
        if !self.is_linked {
            return;
        }
        self.coverage.one("links lost");
        self.trace(|| "the hosts lose each other".to_owned());
        self.is_linked = false;
        for at in 0..2 {
            // What has arrived may be looked at late, after the next connection has begun.
            let keep = self.rng.random_range(0..=self.sites[at].inbox.len());
            self.sites[at].inbox.truncate(keep);
        }
        (0..2).for_each(|at| self.lose(at));
    }

    fn join(&mut self) {
        self.is_linked = true;
        for at in 0..2 {
            if self.sites[at].is_alive() {
                self.with(at, Guard::link_up);
            }
        }
    }

    pub fn heal(&mut self) {
        self.trace(|| "faults end".to_owned());
        for site in &mut self.sites {
            site.stuck_until_ms = 0;
            site.frozen_until_ms = 0;
        }
        (0..2).for_each(|at| self.mend(at));
        self.join();
    }
}
