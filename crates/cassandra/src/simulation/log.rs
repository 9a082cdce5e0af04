//! The log of commits: how an owner writes it, and how the next one finds its end.

use dax::ids::{BlockKey, Generation};
use dax::simulation::history::{Content, NOTHING};

use super::client::LOG;
use super::owner::{After, Doing, Owner};
use super::recorder::Recorder;
use super::world::World;

impl Owner {
    /// The block behind the log's end as far as it is known.
    pub fn log_end(&self) -> BlockKey {
        BlockKey::new(LOG, self.log.commits.len() as u64)
    }

    /// Begins where the seal that it attaches at has the log's end.
    pub fn begin_recovery(&mut self, recorder: &Recorder) {
        let seal = recorder.seals.get(&self.base);
        self.log.commits = seal.map(|s| s.log.clone()).unwrap_or_default();
        self.log.recovering = true;
    }

    /// A promotion at the end has found this.
    pub fn recovered(&mut self, recorder: &mut Recorder, found: Content) {
        if found != NOTHING && recorder.commits.fits(found, &self.log.commits) {
            self.log.commits.push(found);
            return;
        }
        self.log.recovering = false;
        self.attached = true;
        recorder.began(self.epoch, self.log.commits.clone());
    }

    /// Appends a commit, which is acknowledged once it is synced.
    pub fn commit(&mut self, world: &mut World, recorder: &mut Recorder) {
        let (key, position) = (self.log_end(), self.log.commits.len());
        let single = Generation::SINGLE;
        let content = recorder.wrote(self.client, self.epoch, key, single);
        recorder.commits.made(content, &self.log.commits);
        self.log.commits.push(content);
        self.log.unacknowledged += 1;
        self.write(world, key, single, content);
        let after = After::Committed { position, content };
        self.sync(world, recorder, Some(after));
    }

    pub fn committed(&mut self, recorder: &mut Recorder, position: usize, content: Content) {
        self.log.unacknowledged -= 1;
        recorder.committed(self.epoch, position, content);
    }

    /// What somebody waits for.
    pub fn doing(&self) -> Option<Doing> {
        match self.attached {
            true if self.log.unacknowledged > 0 => Some(Doing::Commits),
            _ if self.is_promoting() => Some(Doing::Promotion),
            attached => (!attached).then_some(Doing::Takeover),
        }
    }
}
