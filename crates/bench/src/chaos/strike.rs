//! Carries faults out, and takes them back when their time is over.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use cluster::disk::Disk;
use cluster::process;
use cluster::wan::Quality;
use tokio::process::Command;

use super::faults::{Member, Refusal, Trouble, directions};
use super::plan::{Fault, Line, ProcessSet, Strike, Target, Way};
use super::report::{Ended, Struck};
use super::stage::{DISK_BYTES, Stage, members, name, postmaster};
use super::{Flaw, SIZE};

/// What ends by itself is started again after this, as a service manager does.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// Between two looks at what is going on.
const TICK: Duration = Duration::from_millis(100);
/// An operator gives up after this.
const ORDER_WITHIN: Duration = Duration::from_secs(60);
/// What a full disk still has: less than a zone wants to leave free, enough for its own needs.
const LEFT_BYTES: u64 = 512 << 20;
/// Bytes that rot at a place,
const ROT_BYTES: u64 = 16;
/// and places that rot, or become unreadable.
const ROT_PLACES: u32 = 8;

pub(super) type Outcome = Result<(), Refusal>;

impl Stage {
    /// Plays a round, until its last fault has struck.
    ///
    /// # Errors
    /// Something cannot be done that always can.
    pub async fn play(&mut self, strikes: &[Strike], say: &impl Fn(&str)) -> anyhow::Result<()> {
        let mut due = self.now();
        for strike in strikes {
            due += strike.after;
            while self.now() < due {
                self.tick()?;
                let left = due.saturating_sub(self.now());
                tokio::time::sleep(left.min(TICK)).await;
            }
            self.strike(strike, say)?;
        }
        if self.flaw == Some(Flaw::TwoDisks) {
            let spare = self.spare;
            for zone in (0..SIZE.zones).filter(|zone| *zone != spare).take(2) {
                self.lose_disk(zone, self.now() + Duration::from_secs(1))
                    .ok();
            }
        }
        Ok(())
    }

    /// Ends what is over, and starts again what ended by itself.
    ///
    /// # Errors
    /// As of [`play`](Stage::play).
    pub fn tick(&mut self) -> anyhow::Result<()> {
        let now = self.now();
        while let Some((member, trouble)) = self.faults.end(now) {
            self.undo(member, trouble)?;
        }
        for member in members() {
            self.look_after(member)?;
        }
        while self.orders.try_join_next().is_some() {}
        Ok(())
    }

    fn look_after(&mut self, member: Member) -> anyhow::Result<()> {
        if self.faults.has(member, Trouble::Down) {
            return Ok(());
        }
        let status = match self.process(member) {
            Some(process) => process.ended(),
            None => return self.start(member),
        };
        let Some(status) = status else {
            self.fallen.remove(&member);
            return Ok(());
        };
        let at = self.clock.now().seconds();
        match self.fallen.get(&member) {
            None => {
                self.fallen.insert(member, Instant::now());
                self.ended.push(Ended {
                    at_s: at,
                    member: name(member),
                    status: status.to_string(),
                });
                Ok(())
            }
            Some(since) if since.elapsed() < RESTART_AFTER => Ok(()),
            Some(_) => {
                self.fallen.remove(&member);
                self.start(member)
            }
        }
    }

    fn strike(&mut self, strike: &Strike, say: &impl Fn(&str)) -> anyhow::Result<()> {
        let until = self.now() + strike.lasts;
        let targets = self.targets(strike.fault);
        let mut refused = match targets.is_empty() {
            true => Some(Refusal::Nobody),
            false => None,
        };
        let mut hit = Vec::new();
        for &member in &targets {
            match self.apply(strike.fault, member, until)? {
                Ok(()) => hit.push(name(member)),
                Err(why) => refused = Some(why),
            }
        }
        let at_s = self.clock.now().seconds();
        let refused = refused.filter(|_| hit.is_empty());
        let what = serde_json::to_string(&strike.fault).context("a fault is plain data")?;
        tracing::info!(at_s, what, ?hit, ?refused, "strike");
        if refused.is_none() {
            say(&format!(
                "{at_s:.1} s: {} {} for {:.1} s",
                strike.fault.kind(),
                hit.join(", "),
                strike.lasts.as_secs_f64()
            ));
        }
        self.struck.push(Struck {
            at_s,
            kind: strike.fault.kind(),
            fault: strike.fault,
            lasts_s: strike.lasts.as_secs_f64(),
            members: hit,
            refused,
        });
        Ok(())
    }

    /// Whom a fault is about.
    fn targets(&self, fault: Fault) -> Vec<Member> {
        let target = match fault {
            Fault::Kill(target, _)
            | Fault::Freeze(target, _)
            | Fault::Network(target, ..)
            | Fault::Between(target, ..)
            | Fault::JumpClock(target, _)
            | Fault::Restart(target)
            | Fault::Reinit(target)
            | Fault::LosePower(target)
            | Fault::Release(target) => target,
            Fault::LoseDisk(zone)
            | Fault::FillDisk(zone)
            | Fault::RotDisk(zone, _)
            | Fault::FailReads(zone, _) => Target::Zone(zone),
            Fault::LoseHost(host) => return vec![Member::Node(host), Member::Zone(host)],
            // Who hands over is asked, if anybody serves; an operator asks anybody.
            Fault::Switchover | Fault::Failover | Fault::Exchange(_) => Target::Node(0),
        };
        self.resolve(target)
    }

    fn resolve(&self, target: Target) -> Vec<Member> {
        let active = || {
            let active = self.roles.active()?;
            (0..SIZE.nodes).find(|at| name(Member::Node(*at)) == active)
        };
        match target {
            Target::Active => active().map(Member::Node).into_iter().collect(),
            Target::Standby(n) => {
                let first = active().unwrap_or(0);
                vec![Member::Node((first + 1 + n) % SIZE.nodes)]
            }
            Target::Node(at) => vec![Member::Node(at)],
            Target::Zone(at) => vec![Member::Zone(at)],
            Target::EveryNode => (0..SIZE.nodes).map(Member::Node).collect(),
            Target::EveryZone => (0..SIZE.zones).map(Member::Zone).collect(),
            Target::Everything => members().collect(),
        }
    }

    /// Does it to one member.
    fn apply(&mut self, fault: Fault, member: Member, until: Duration) -> anyhow::Result<Outcome> {
        match fault {
            Fault::Kill(_, part) => Ok(self.strike_dead(member, part, until)),
            Fault::Freeze(_, part) => Ok(self.freeze(member, part, until)),
            Fault::Network(_, way, line) => {
                let outcome = self.faults.strike(member, Trouble::Network, until);
                if outcome.is_ok() {
                    self.lines.push((member, None, way, line));
                    self.set_lines()?;
                }
                Ok(outcome)
            }
            Fault::Between(_, other, way, line) => {
                let other = self.resolve(other).into_iter().find(|o| *o != member);
                let Some(other) = other else {
                    return Ok(Err(Refusal::Nobody));
                };
                let outcome = self.faults.strike(member, Trouble::Link(other), until);
                if outcome.is_ok() {
                    self.lines.push((member, Some(other), way, line));
                    self.set_lines()?;
                }
                Ok(outcome)
            }
            Fault::LoseDisk(zone) => Ok(self.lose_disk(zone, until)),
            Fault::FillDisk(zone) => self.fill_disk(zone, until),
            Fault::RotDisk(zone, place) => {
                Ok(self.damage(zone, place, |disk, place| disk.rot(place, ROT_BYTES)))
            }
            Fault::FailReads(zone, place) => Ok(self.damage(zone, place, Disk::fail_reads)),
            Fault::JumpClock(_, seconds) => self.jump_clock(member, seconds, until),
            Fault::Switchover => self.order(&["switchover"], None),
            Fault::Failover => self.order(&["failover", "--force"], None),
            Fault::Restart(_) => self.order(&["restart"], Some(member)),
            Fault::Reinit(_) => self.order(&["reinit"], Some(member)),
            Fault::Exchange(zone) => self.order_exchange(zone),
            Fault::Release(_) => Ok(self.exchange_release(member, until)),
            Fault::LosePower(_) | Fault::LoseHost(_) => self.lose_power(member, until),
        }
    }

    /// Kills a member, and takes from a zone's disk what was not synced. A node keeps nothing that it needs.
    fn lose_power(&mut self, member: Member, until: Duration) -> anyhow::Result<Outcome> {
        let dead = self.strike_dead(member, ProcessSet::Whole, until);
        if let (Ok(()), Member::Zone(zone)) = (dead, member) {
            self.disks[usize::from(zone)].lose_power()?;
        }
        Ok(dead)
    }

    /// Kills a member, which is started with the other release then.
    fn exchange_release(&mut self, member: Member, until: Duration) -> Outcome {
        if self.releases.is_none() {
            return Err(Refusal::Nobody);
        }
        self.strike_dead(member, ProcessSet::Whole, until)?;
        if let Some(releases) = &mut self.releases {
            releases.exchange(member);
        }
        Ok(())
    }

    fn strike_dead(&mut self, member: Member, part: ProcessSet, until: Duration) -> Outcome {
        if matches!(part, ProcessSet::Whole | ProcessSet::Agent)
            || matches!(member, Member::Zone(_))
        {
            self.faults.strike(member, Trouble::Down, until)?;
            self.faults.thaw(member);
            if part == ProcessSet::Agent {
                let pid = self.process(member).map(|process| process.pid());
                process::kill_each(pid.as_slice());
            } else {
                self.kill(member);
            }
            // Its PostgreSQL may be one of them, and outlives an agent that is killed while it is stopped.
            process::resume(&self.stopped.remove(&member).unwrap_or_default());
            return Ok(());
        }
        self.faults.running(member)?;
        let pids = self.part(member, part);
        process::kill_each(&pids);
        match pids.is_empty() {
            true => Err(Refusal::Nobody),
            false => Ok(()),
        }
    }

    fn freeze(&mut self, member: Member, part: ProcessSet, until: Duration) -> Outcome {
        let pids = self.part(member, part);
        if pids.is_empty() {
            return Err(Refusal::Nobody);
        }
        self.faults.strike(member, Trouble::Frozen, until)?;
        process::pause(&pids);
        self.stopped.insert(member, pids);
        Ok(())
    }

    /// The processes of a part of a member; none if there are none.
    fn part(&mut self, member: Member, part: ProcessSet) -> Vec<nix::unistd::Pid> {
        let Some(root) = self.process(member).map(|process| process.pid()) else {
            return Vec::new();
        };
        let part = match member {
            Member::Zone(_) => ProcessSet::Whole,
            Member::Node(_) => part,
        };
        match part {
            ProcessSet::Whole => process::family(root),
            ProcessSet::Agent => vec![root],
            ProcessSet::Postgres | ProcessSet::Postmaster | ProcessSet::Child(_) => {
                let Ok(postmaster) = postmaster(self, member) else {
                    return Vec::new();
                };
                match part {
                    ProcessSet::Postgres => process::family(postmaster),
                    ProcessSet::Child(n) => {
                        let children = process::family(postmaster).split_off(1);
                        let at = usize::from(n) % children.len().max(1);
                        children.get(at).copied().into_iter().collect()
                    }
                    _ => vec![postmaster],
                }
            }
        }
    }

    fn lose_disk(&mut self, zone: u8, until: Duration) -> Outcome {
        let member = Member::Zone(zone);
        self.faults.damage(zone)?;
        if !self.faults.has(member, Trouble::Down) {
            self.faults.strike(member, Trouble::Down, until)?;
        }
        self.faults.thaw(member);
        self.stopped.remove(&member);
        self.kill(member);
        if let Err(error) = self.disks[usize::from(zone)].wipe() {
            tracing::warn!(zone, %error, "a disk could not be emptied");
        }
        Ok(())
    }

    fn fill_disk(&mut self, zone: u8, until: Duration) -> anyhow::Result<Outcome> {
        let outcome = self.faults.strike(Member::Zone(zone), Trouble::Full, until);
        if outcome.is_ok() {
            let disk = &self.disks[usize::from(zone)];
            disk.resize(disk.used_bytes()? + LEFT_BYTES)?;
        }
        Ok(outcome)
    }

    /// Damages a zone's disk in several places.
    fn damage(
        &mut self,
        zone: u8,
        place: u32,
        damage: impl Fn(&Disk, u32) -> anyhow::Result<Option<(PathBuf, u64)>>,
    ) -> Outcome {
        self.faults.damage(zone)?;
        for n in 0..ROT_PLACES {
            let place = place.wrapping_add((u32::MAX / ROT_PLACES).wrapping_mul(n));
            let damaged = damage(&self.disks[usize::from(zone)], place);
            tracing::info!(zone, ?damaged, "damage");
        }
        Ok(())
    }

    fn jump_clock(
        &mut self,
        member: Member,
        seconds: i32,
        until: Duration,
    ) -> anyhow::Result<Outcome> {
        let Some(clocks) = &self.clocks else {
            return Ok(Err(Refusal::Nobody));
        };
        let outcome = self.faults.strike(member, Trouble::Clock, until);
        if outcome.is_ok() {
            clocks.set(&name(member), seconds)?;
        }
        Ok(outcome)
    }

    /// What an operator asks for, with any node's configuration; the answer is not waited for.
    pub fn order(&mut self, words: &[&str], node: Option<Member>) -> anyhow::Result<Outcome> {
        let options = self.cluster.options();
        let any = self.cluster.node(&name(Member::Node(0)))?;
        let mut command = Command::new(&options.understudy);
        command
            .args(words)
            .args(node.map(name))
            .arg("--config")
            .arg(&any.config)
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        let words = words.join(" ");
        self.orders.spawn(async move {
            match tokio::time::timeout(ORDER_WITHIN, command.output()).await {
                Ok(Ok(output)) => {
                    let said = String::from_utf8_lossy(&output.stderr);
                    tracing::info!(words, status = %output.status, said = said.trim(), "an order");
                }
                Ok(Err(error)) => tracing::warn!(words, %error, "an order cannot be given"),
                Err(_) => tracing::info!(words, "an order had no answer"),
            }
        });
        Ok(Ok(()))
    }

    /// Takes a trouble back whose time is over.
    fn undo(&mut self, member: Member, trouble: Trouble) -> anyhow::Result<()> {
        match trouble {
            Trouble::Down => {
                // Of an agent that was killed alone something may hang on.
                self.kill(member);
                self.start(member)
            }
            Trouble::Frozen => {
                process::resume(&self.stopped.remove(&member).unwrap_or_default());
                Ok(())
            }
            Trouble::Network => {
                self.lines.retain(|(m, to, ..)| (*m, *to) != (member, None));
                self.set_lines()
            }
            Trouble::Link(other) => {
                let link = (member, Some(other));
                self.lines.retain(|(m, to, ..)| (*m, *to) != link);
                self.set_lines()
            }
            Trouble::Full => match member {
                Member::Zone(zone) => self.disks[usize::from(zone)].resize(DISK_BYTES),
                Member::Node(_) => Ok(()),
            },
            Trouble::Clock => match &self.clocks {
                Some(clocks) => clocks.set(&name(member), 0),
                None => Ok(()),
            },
        }
    }

    /// Every line as bad as the worst of what is wrong with it.
    fn set_lines(&self) -> anyhow::Result<()> {
        let ends: Vec<Option<Member>> = members().map(Some).chain([None]).collect();
        for &from in &ends {
            for &to in ends.iter().filter(|to| **to != from) {
                let mut quality = Quality::default();
                for &(member, other, way, line) in &self.lines {
                    let concerns = |(a, b): (Option<Member>, Option<Member>)| (a, b) == (from, to);
                    let hit = match other {
                        Some(other) => directions(Some(member), Some(other), way)
                            .into_iter()
                            .any(concerns),
                        None => match way {
                            Way::In => to == Some(member),
                            Way::Out => from == Some(member),
                            Way::Both => [from, to].contains(&Some(member)),
                        },
                    };
                    if hit {
                        worsen(&mut quality, line);
                    }
                }
                let (from, to) = (from.map(name), to.map(name));
                self.sites
                    .set_line(from.as_deref(), to.as_deref(), quality)?;
            }
        }
        Ok(())
    }
}

fn worsen(quality: &mut Quality, line: Line) {
    match line {
        Line::Cut => quality.loss_permille = 1000,
        Line::Slow { ms } => quality.delay = quality.delay.max(Duration::from_millis(ms.into())),
        Line::Lossy { permille } => quality.loss_permille = quality.loss_permille.max(permille),
    }
}
