//! One history from one seed: an active at work, standbys behind it, crashes and takeovers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dax::ids::{Generation, NodeName};
use dax::memory::{MemoryCluster, MemoryStorage};
use dax::storage::{Storage, VolumeSettings};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::{Coverage, Outcome};
use tempfile::TempDir;

use super::super::standing::ClaimWatch;
use super::active::{Active, Checkpoint};
use super::checkers::{Broken, Held, Looker, broken, check_names, check_relations};
use super::files::{Files, owner};
use super::flaw::Flaw;
use super::layout::{CONTROL, ModelLayout};
use super::log::{Standing, Truth};
use super::page::{PAGE_BYTES, directory};
use super::pinned::Pinned;
use super::sleep::Sleep;
use super::standby::{Attach, Standby};
use super::trace::say;
use super::tree::{check_exact, contents, tree};
use crate::active::{ActiveView, NoObserver, Options};
use crate::claim::Claim;
use crate::latest::{Latest, format};
use crate::lsn::Lsn;
use crate::private::PrivateDir;
use crate::seal::{Seal, load_seals};
use crate::view::Timestamp;

const NOW: Timestamp = Timestamp(1);
const STANDBYS_MAX: usize = 2;

pub(super) struct Schedule {
    rng: SmallRng,
    flaw: Option<Flaw>,
    /// Backends take their time where it matters.
    hesitant: bool,
    /// Standbys live long and stay close behind, so their bases move again and again.
    faithful: bool,
    /// Transactions are slow to end and often rolled back, and new actives may be fenced while they write back.
    unsettled: bool,
    /// The log of actives is ordered.
    ordered: bool,
    /// Standbys fall asleep, if they do in this history.
    sleep: Option<Sleep>,
    /// Images are pinned and kept, if they are in this history.
    pinned: Option<Pinned>,
    cluster: Arc<MemoryCluster>,
    disk: TempDir,
    nodes: u32,
    initial: Truth,
    active: Active,
    standbys: Vec<Standby>,
    /// Seals that lack pages of bulk writers.
    lacking: BTreeSet<Generation>,
    coverage: Coverage,
}

impl Schedule {
    /// Runs the history of a seed, and prints its steps if that is wanted.
    pub fn run(seed: u64, flaw: Option<Flaw>, trace: bool) -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        super::trace::print(trace);
        let (chained, chains) = super::chain::run(seed, flaw);
        if let Err(broken) = chained {
            return Outcome {
                coverage: chains,
                broken: Some(broken.to_string()),
                trace: 0,
            };
        }
        let (done, mut coverage) = runtime.block_on(async {
            match Schedule::begin(seed, flaw).await {
                Ok(schedule) => schedule.finish().await,
                Err(broken) => (Err(broken), Coverage::default()),
            }
        });
        coverage.add(&chains);
        Outcome {
            coverage,
            broken: done.err().map(|broken| broken.to_string()),
            trace: 0,
        }
    }

    async fn finish(mut self) -> (Held<()>, Coverage) {
        let done = self.go().await;
        self.coverage.one("histories");
        let records = self.active.log.len() as u64;
        self.coverage.some("records", records);
        (done, self.coverage)
    }

    async fn begin(seed: u64, flaw: Option<Flaw>) -> Held<Schedule> {
        let settings = VolumeSettings {
            block_size_bytes: PAGE_BYTES as u32,
            ..VolumeSettings::default()
        };
        let cluster = MemoryCluster::new(settings);
        // A history makes and removes many small files: in memory if possible.
        let disk = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let disk = disk.expect("a temporary directory");
        let storage = cluster.client();
        storage.own_epoch(&node("first")).await.map_err(wrap)?;
        let shared: Arc<dyn Storage> = storage.clone();
        format(&shared, owner(), NOW).await?;
        let layout = Arc::new(ModelLayout { flaw });
        let private = PrivateDir::prepare(disk.path(), &*layout, false, owner())?;
        let view = ActiveView::open(
            Latest::recover(shared, NOW).await?,
            layout,
            Arc::new(private),
            Arc::new(NoObserver),
            None,
            Options::default(),
        );
        let view = view.await?;
        let files = Files {
            view: Arc::new(view.clone()),
        };
        let mut initial = Truth::default();
        for dir in ["global", "base"] {
            files.mkdir(dir)?;
        }
        for db in [1, 2] {
            files.mkdir(&directory(db))?;
            initial.databases.insert(db, Standing::Committed);
        }
        files.create(CONTROL)?;
        files.write(CONTROL, Active::control(0, 0)).await?;
        let cut = view.cut().await?;
        let payload = Active::control(0, 0).to_vec();
        view.commit_seal(cut, Lsn(0), Lsn(0), payload).await?;
        let log = Vec::new();
        let mut rng = SmallRng::seed_from_u64(seed);
        let unsettled = seed % 4 == 1;
        let pinned_by: Arc<dyn Storage> = storage.clone();
        let mut active = Active::new(storage, cluster.clone(), view, flaw, initial.clone(), log);
        active.unsettled = unsettled;
        let ordered = seed % 8 == 6;
        let pinned = match seed % 8 {
            2 => Some(Pinned::new(seed, flaw, &pinned_by).await?),
            _ => None,
        };
        pinned.iter().for_each(|pinned| pinned.begin(&active));
        active.synced.is_ordered = ordered;
        Ok(Schedule {
            hesitant: rng.random_ratio(1, 2),
            faithful: seed % 4 == 3,
            unsettled,
            ordered,
            sleep: (seed % 8 == 4).then(|| Sleep::new(seed)),
            pinned,
            rng,
            flaw,
            active,
            cluster,
            disk,
            nodes: 0,
            initial,
            standbys: Vec::new(),
            lacking: BTreeSet::new(),
            coverage: Coverage::default(),
        })
    }

    async fn go(&mut self) -> Held<()> {
        let reigns = self.rng.random_range(1..4);
        for _ in 0..reigns {
            let steps = self.rng.random_range(20..300);
            let steps = if self.faithful { 5 * steps } else { steps };
            for _ in 0..steps {
                self.step().await?;
            }
            if !self.take_over().await? {
                return Ok(());
            }
        }
        self.finish_checkpoint().await?;
        self.attach().await?;
        self.catch_up().await
    }

    async fn step(&mut self) -> Held<()> {
        // Some syncs are done before the next one begins, and many long after: a crash finds some under way.
        if self.ordered
            && self.rng.random_ratio(1, 8)
            && self.active.synced.land_some(&mut self.rng)
        {
            self.coverage.one("syncs answered early");
        }
        if let Some(sleep) = &mut self.sleep {
            let (active, standbys) = (&self.active, &mut self.standbys);
            sleep.step(active, standbys, &mut self.coverage).await?;
        }
        match self.rng.random_range(0..100) {
            0..20 => self.active.work(&mut self.rng).await,
            20..43 => self.step_task().await,
            43..55 => self.active.background(&mut self.rng).await,
            55..66 => self.step_checkpoint().await,
            66..68 => self.attach().await,
            _ => self.step_standby().await,
        }
    }

    async fn step_task(&mut self) -> Held<()> {
        if self.active.tasks.is_empty() {
            return Ok(());
        }
        let at = self.rng.random_range(0..self.active.tasks.len());
        let task = &self.active.tasks[at];
        let waits =
            (self.hesitant && task.is_exposed()) || (self.unsettled && task.is_unfinished());
        if waits && self.rng.random_ratio(5, 6) {
            return Ok(());
        }
        self.active.step_task(at, &mut self.rng).await
    }

    async fn step_checkpoint(&mut self) -> Held<()> {
        if self.active.checkpoint.is_none() {
            if self.active.wants_checkpoint() || self.rng.random_ratio(1, 3) {
                self.active.start_checkpoint();
            }
            return Ok(());
        }
        // Some checkpoints are in a hurry.
        for _ in 0..self.rng.random_range(1..5) {
            let checkpoint = self.active.checkpoint.as_ref();
            let cuts = self.unsettled && checkpoint.is_some_and(Checkpoint::is_about_to_cut);
            if cuts && self.rng.random() {
                self.active.roll_back_some(&mut self.rng).await?;
            }
            if let Some(seal) = self.active.step_checkpoint().await? {
                self.sealed(&seal).await?;
            }
        }
        Ok(())
    }

    async fn sealed(&mut self, seal: &Seal) -> Held<()> {
        self.coverage.one("seals");
        if self.sleep.is_some() {
            self.active.view.reclaim().await?;
        }
        if let Some(pinned) = &mut self.pinned {
            pinned
                .sealed(&self.active, seal, &mut self.coverage)
                .await?;
        }
        if self.active.lacking.contains(&seal.generation) {
            self.coverage.one("seals without bulk pages");
            self.lacking.insert(seal.generation);
        }
        Ok(())
    }

    /// A checkpoint from its beginning to its seal, with backends that get on meanwhile.
    async fn finish_checkpoint(&mut self) -> Held<()> {
        for _ in 0..400 {
            if self.active.checkpoint.is_none() {
                self.active.start_checkpoint();
            }
            let seal = self.active.step_checkpoint().await?;
            if let Some(seal) = seal {
                self.sealed(&seal).await?;
                return Ok(());
            }
            self.step_task().await?;
        }
        Ok(())
    }

    async fn step_standby(&mut self) -> Held<()> {
        if self.standbys.is_empty() {
            return Ok(());
        }
        let at = self.rng.random_range(0..self.standbys.len());
        if self.standbys[at].sleeps > 0 {
            return Ok(());
        }
        let stepped = self.step_standby_at(at).await;
        match stepped {
            Err(broken) if self.standbys[at].noticed(&broken) => {
                self.coverage.one("standbys that noticed after a sleep");
                self.standbys.remove(at);
                Ok(())
            }
            other => other,
        }
    }

    async fn step_standby_at(&mut self, at: usize) -> Held<()> {
        let rng = &mut self.rng;
        let standby = &mut self.standbys[at];
        match rng.random_range(0..40) {
            0..7 => {
                let synced = match self.flaw {
                    Some(Flaw::PastTheLimit) => self.active.log.len() as u64,
                    _ => self.active.synced.confirmed(),
                };
                let more = synced.saturating_sub(standby.shown);
                let all = self.faithful || rng.random_ratio(1, 2);
                let some = if all {
                    more
                } else {
                    rng.random_range(0..=more)
                };
                standby.show(standby.shown + some);
            }
            7..20 => {
                let most = if self.faithful { 100 } else { 20 };
                for _ in 0..rng.random_range(1..most) {
                    standby.step(&self.active.log).await?;
                    self.coverage.one("records applied");
                }
            }
            20..28 => {
                if let Some(id) = standby.pool.pick(rng) {
                    standby.write_out(id).await?;
                    standby.pool.evict(id);
                }
            }
            28 => standby.restartpoint().await?,
            29..36 => {
                if rng.random_ratio(2, 3) {
                    match standby.plan_move().await {
                        // What it needs to move is gone, too; it is found out later.
                        Err(_) if standby.forgotten => {}
                        planned => planned?,
                    }
                }
                if rng.random_ratio(2, 3) && standby.move_base().await? {
                    self.coverage.one("moves");
                    standby.check(&self.active.orphans).await?;
                }
            }
            36..38 => standby.check(&self.active.orphans).await?,
            38 => standby.tell(),
            _ => self.crash_standby(at),
        }
        Ok(())
    }

    /// The standby's database dies; what follows is a fresh attach (rule 1).
    fn crash_standby(&mut self, at: usize) {
        if self.flaw == Some(Flaw::RestartedInPlace) {
            let log = &self.active.log;
            return self.standbys[at].restart_in_place(&self.initial, log);
        }
        let least = if self.faithful { 40 } else { 4 };
        if self.rng.random_ratio(1, least) {
            self.coverage.one("standbys crashed");
            self.standbys.remove(at);
        }
    }

    async fn attach(&mut self) -> Held<()> {
        if self.standbys.len() >= STANDBYS_MAX {
            return Ok(());
        }
        let storage = self.cluster.client();
        let shared: Arc<dyn Storage> = storage.clone();
        let node = node(&format!("node{}", self.nodes));
        self.nodes += 1;
        let clock = match &self.sleep {
            Some(sleep) => sleep.clock(),
            None => Arc::new(Duration::default),
        };
        let claim = ClaimWatch::begin_by(&shared, node.clone(), clock).await?;
        let mut seals = load_seals(&shared).await?;
        // Nobody attaches at a volume that was only formatted.
        seals.retain(|seal| !seal.payload.is_empty());
        if self.flaw == Some(Flaw::DroppedWithoutVersion) {
            seals.retain(|seal| !self.lacking.contains(&seal.generation));
        }
        if seals.len() > 1 && self.rng.random_ratio(1, 4) {
            seals.pop();
        }
        let Some(seal) = seals.last() else {
            claim.release(&shared).await?;
            return Ok(());
        };
        if seal.end.max(seal.redo).0 > self.active.log.len() as u64 {
            let what = format!("{} needs log up to {:?}", seal.generation, seal.end);
            return Err(broken("a seal has its log", what));
        }
        let place = self.disk.path().join(node.to_string());
        std::fs::create_dir_all(&place).expect("a temporary directory");
        let attach = Attach {
            node,
            storage,
            seal,
            place: &place,
            flaw: self.flaw,
            initial: &self.initial,
            log: &self.active.log,
            leaked: &self.active.leaked,
            claim,
            may_sleep: self.sleep.is_some(),
        };
        let standby = Standby::attach(attach, &mut self.rng).await?;
        self.standbys.push(standby);
        self.coverage.one("attaches");
        Ok(())
    }

    /// Standbys apply all that is synced, and are looked at.
    async fn catch_up(&mut self) -> Held<()> {
        self.active.flush();
        self.active.synced.land_all();
        self.standbys.retain(|standby| !standby.forgotten);
        for standby in &mut self.standbys {
            standby.show(self.active.flushed);
            while standby.applied < standby.shown.min(self.active.flushed) {
                standby.step(&self.active.log).await?;
            }
            standby.check(&self.active.orphans).await?;
            self.coverage.some("records excused (N7)", standby.excused);
        }
        Ok(())
    }

    /// The active dies, and a standby takes over; that may die as well, at any point (section 5).
    /// True if there was one to take over.
    async fn take_over(&mut self) -> Held<bool> {
        let synced = &self.active.synced;
        let (landed, inserted) = (synced.landed(), self.active.log.len() as u64);
        let end = self.rng.random_range(landed..=inserted);
        say(|| format!("the active dies; the log ends at {end} of {inserted}"));
        if end < self.active.flushed {
            self.coverage.one("log lost that was answered");
        }
        let told = synced.confirmed();
        if told > end {
            let what = format!("clients were told of commits up to {told}, the log ends at {end}");
            return Err(broken("acknowledged commits survive", what));
        }
        self.active.log.truncate(end as usize);
        self.active.flushed = end;
        crash(&self.active.storage, &mut self.rng);
        loop {
            if self.standbys.is_empty() {
                self.attach().await?;
            }
            if self.standbys.is_empty() {
                return Ok(false);
            }
            let at = self.rng.random_range(0..self.standbys.len());
            let standby = self.standbys.remove(at);
            if self.take_over_with(standby).await? {
                self.coverage.one("takeovers");
                return Ok(true);
            }
            self.coverage.one("takeovers that died");
        }
    }

    /// True if the standby got as far as being the active.
    async fn take_over_with(&mut self, mut standby: Standby) -> Held<bool> {
        let storage = self.cluster.client();
        storage.own_epoch(&standby.node).await.map_err(wrap)?;
        let shared: Arc<dyn Storage> = storage.clone();
        if !standby.claim.look(&shared).await? {
            return Ok(false);
        }
        let latest = Latest::recover(storage.clone(), NOW).await?;
        latest.commit().await?;
        let end = self.active.flushed;
        standby.shown = standby.shown.max(end);
        let live = latest.namespace().clone();
        standby.view.show_log(live, Lsn(standby.shown));
        while standby.applied < end {
            standby.step(&self.active.log).await?;
            if self.rng.random_ratio(1, 8)
                && let Some(id) = standby.pool.pick(&mut self.rng)
            {
                standby.write_out(id).await?;
                standby.pool.evict(id);
            }
            if self.rng.random_ratio(1, 100) {
                crash(&storage, &mut self.rng);
                return Ok(false);
            }
        }
        standby.check(&self.active.orphans).await?;
        self.coverage.some("records excused (N7)", standby.excused);
        say(|| format!("switch: {}", standby.describe()));
        let control = standby.files.read(CONTROL).await?;
        let before = tree(&standby.files)?;
        let contents = match self.unsettled {
            true => contents(&standby.files, &before).await?,
            false => BTreeMap::new(),
        };
        let observer = Arc::new(NoObserver);
        let options = Options::default();
        let view = standby
            .view
            .become_active(latest, observer, options, NOW)
            .await?;
        let log = std::mem::take(&mut self.active.log);
        let truth = Truth::after(&self.initial, &log);
        let mut active = Active::new(storage, self.cluster.clone(), view, self.flaw, truth, log);
        active.unsettled = self.unsettled;
        active.synced.is_ordered = self.ordered;
        active.pool = std::mem::take(&mut standby.pool);
        active.leaked = std::mem::take(&mut self.active.leaked);
        active.orphans = std::mem::take(&mut self.active.orphans);
        active.orphans.extend(&standby.orphans);
        active.checkpoints_done = self.active.checkpoints_started;
        active.checkpoints_started = self.active.checkpoints_started;
        self.active = active;
        if let Some(pinned) = &self.pinned {
            pinned.begin(&self.active);
            pinned.check(&self.active, &mut self.coverage).await?;
        }
        check_exact(&before, &tree(&self.active.files)?)?;
        let shared: Arc<dyn Storage> = self.active.storage.clone();
        Claim::release(&shared, &standby.node).await?;
        if self.rng.random_ratio(1, 8) {
            crash(&self.active.storage, &mut self.rng);
            return Ok(false);
        }
        if self.unsettled && self.rng.random_ratio(1, 3) && self.fence(&contents).await? {
            return Ok(false);
        }
        standby.reset_unlogged().await?;
        self.check_promoted(&standby, &control).await?;
        let dead = self.rng.random_ratio(1, 8);
        if dead {
            crash(&self.active.storage, &mut self.rng);
        }
        Ok(!dead)
    }

    /// The new active is fenced in the middle of its write-back, if there is anything to write. Sessions go on
    /// until it notices: what they still get to see is what was there before.
    async fn fence(&mut self, contents: &BTreeMap<String, Bytes>) -> Held<bool> {
        let left = self.active.view.inherited_left();
        if left == 0 {
            return Ok(false);
        }
        let writes = self.rng.random_range(0..left);
        say(|| format!("fenced after {writes} of {left} blocks were written back"));
        self.cluster.fence_after_writes(Some(writes));
        let fenced = self.active.view.cut().await.is_err();
        self.cluster.fence_after_writes(None);
        for (path, bytes) in contents {
            for (block, should) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
                match self.active.files.read_block(path, block as u64).await {
                    Err(e) if e.is_fenced() => {}
                    Ok(found) if found == should => {}
                    other => {
                        let what = format!("block {block} of {path}: {other:?}");
                        return Err(broken("a fenced server reads what it had", what));
                    }
                }
            }
        }
        if fenced {
            self.coverage.one("fenced while writing back");
        }
        crash(&self.active.storage, &mut self.rng);
        Ok(true)
    }

    async fn check_promoted(&self, standby: &Standby, control: &[u8]) -> Held<()> {
        let Active {
            files, pool, truth, ..
        } = &self.active;
        let with_place = |mut b: Broken| {
            b.what = format!("{} was promoted: {}", standby.describe(), b.what);
            b
        };
        check_relations(files, pool, truth, Looker::Server)
            .await
            .map_err(with_place)?;
        let known = (&standby.known, &self.active.orphans);
        check_names(files, truth, known, Looker::Server)
            .await
            .map_err(with_place)?;
        let latest = files.read(CONTROL).await?;
        if latest != control {
            let what = format!("it holds {latest:?}, the standby had {control:?}");
            return Err(broken("the control file is the promoted standby's", what));
        }
        Ok(())
    }
}

fn node(name: &str) -> NodeName {
    NodeName::new(name).expect("a plain name")
}

fn wrap(error: dax::error::Error) -> Broken {
    broken("operations succeed", error.to_string())
}

/// The writer dies; any of what it had not synced may have arrived.
fn crash(storage: &MemoryStorage, rng: &mut SmallRng) {
    let mut fate = SmallRng::seed_from_u64(rng.random());
    storage.crash(|_| fate.random());
}
