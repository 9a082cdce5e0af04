//! The active's checkpoints, from the redo point to the seal, in steps that others come between.

use super::active::{Active, Checkpoint, Phase};
use super::checkers::Held;
use super::flaw::Flaw;
use super::layout::CONTROL;
use super::log::Record;
use super::page::{File, Rel};
use super::trace::say;
use super::work::DATABASES;
use crate::active::CutImage;
use crate::lsn::Lsn;
use crate::seal::Seal;

impl Active {
    pub fn start_checkpoint(&mut self) {
        self.checkpoints_started += 1;
        let began = self.checkpoints_started;
        say(|| format!("checkpoint {began} begins"));
        let old = |(_, after): &&(File, u64)| *after < began;
        let stubs = self
            .stubs
            .iter()
            .filter(old)
            .map(|(file, _)| *file)
            .collect();
        self.stubs.retain(|(_, after)| *after >= began);
        self.checkpoint = Some(Checkpoint {
            number: began,
            redo: self.log.len() as u64,
            to_write: self.pool.dirty(),
            stubs,
            phase: Phase::Write,
        });
    }

    /// Does some of the checkpoint; returns the seal if that was it.
    pub async fn step_checkpoint(&mut self) -> Held<Option<Seal>> {
        let Some(mut checkpoint) = self.checkpoint.take() else {
            return Ok(None);
        };
        let mut seal = None;
        let next = match checkpoint.phase {
            Phase::Write => match checkpoint.to_write.pop() {
                Some(id) => {
                    self.write_out(id).await?;
                    Phase::Write
                }
                None => Phase::Sync,
            },
            Phase::Sync => {
                for file in std::mem::take(&mut self.unsynced) {
                    // Its removal may be under way; then nobody needs it.
                    if self.files.size(&file.path())?.is_some() {
                        self.files.sync(&file.path()).await?;
                    }
                }
                let redo = checkpoint.redo;
                let record = self.insert(Record::Checkpoint { redo });
                self.flush();
                Phase::Control {
                    record,
                    cut: None,
                    end: None,
                }
            }
            Phase::Control { record, cut, end } => {
                let redo = checkpoint.redo;
                match self
                    .step_seal(redo, record, cut.map(|cut| *cut), end, &mut seal)
                    .await?
                {
                    Some(phase) => phase,
                    None => {
                        let control = Active::control(redo, record);
                        self.files.write(CONTROL, control).await?;
                        Phase::Unlink
                    }
                }
            }
            Phase::Unlink => match checkpoint.stubs.pop() {
                Some(file) => {
                    if self.files.size(&file.path())?.is_some() {
                        self.files.unlink(&file.path())?;
                    }
                    Phase::Unlink
                }
                None => {
                    self.checkpoints_done = checkpoint.number;
                    return Ok(seal);
                }
            },
        };
        checkpoint.phase = next;
        self.checkpoint = Some(checkpoint);
        Ok(seal)
    }

    /// Cut, then W, then the log up to there, then the seal (N10). `None`: the control file may be written.
    async fn step_seal(
        &mut self,
        redo: u64,
        record: u64,
        cut: Option<CutImage>,
        end: Option<u64>,
        seal: &mut Option<Seal>,
    ) -> Held<Option<Phase>> {
        let end_first = self.flaw == Some(Flaw::EndBeforeCut);
        let (cut, end) = match (cut, end) {
            (None, None) if self.lacks_bulk_pages(redo) && !self.ignores_bulk_pages() => {
                return Ok(None);
            }
            (None, None) if end_first => (None, Some(self.synced.end_of_image())),
            (None, end) => {
                let cut = self.view.cut().await?;
                say(|| format!("cut {}", cut.generation));
                self.note_leaks();
                if self.lacks_bulk_pages(redo) {
                    self.lacking.insert(cut.generation);
                }
                (Some(cut), end)
            }
            (Some(cut), None) => (Some(cut), Some(self.synced.end_of_image())),
            (Some(cut), Some(end)) if !self.synced.may_seal(end) => {
                self.synced.land_first();
                (Some(cut), Some(end))
            }
            (Some(cut), Some(end)) => {
                let lies = self.flaw == Some(Flaw::SealedBeforeSync);
                self.cluster.forget_syncs(lies);
                let payload = Active::control(redo, record).to_vec();
                let (redo, end) = (Lsn(redo), Lsn(end));
                let sealed = self.view.commit_seal(cut, redo, end, payload).await;
                self.cluster.forget_syncs(false);
                let sealed = sealed?;
                say(|| format!("sealed {}, redo {redo:?}, W {end:?}", sealed.generation));
                *seal = Some(sealed);
                return Ok(None);
            }
        };
        let cut = cut.map(Box::new);
        Ok(Some(Phase::Control { record, cut, end }))
    }

    fn note_leaks(&mut self) {
        let removed = |rel: &Rel| !self.truth.relations.contains_key(rel);
        let busy = self.tasks.iter().filter_map(|task| task.rel);
        let leaked: Vec<Rel> = busy.filter(removed).collect();
        // A copied database has them, too.
        for rel in leaked {
            let everywhere = (1..=DATABASES).map(|db| Rel { db, ..rel });
            self.leaked.extend(everywhere);
        }
    }

    fn ignores_bulk_pages(&self) -> bool {
        matches!(
            self.flaw,
            Some(Flaw::BulkIgnored | Flaw::DroppedWithoutVersion)
        )
    }

    /// N2: whether a page logged whole below the redo point is not written yet.
    fn lacks_bulk_pages(&self, redo: u64) -> bool {
        self.bulk.values().any(|(lsn, _)| *lsn <= redo)
    }
}
