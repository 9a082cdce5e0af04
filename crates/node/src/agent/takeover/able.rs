//! Whether this node could be the active at all, asked before anybody is fenced for it.
//!
//! A fence is for good: whoever owns the epoch and then cannot go on has deposed an active that was perhaps well, and
//! nobody serves. So what is known to make a takeover fail is looked at first, by reading only: a volume that nodes of a newer
//! release write, a journal or seals that this program does not understand, another PostgreSQL.
//!
//! Invariant: nothing here changes anything that others see, or waits for more than the takeover itself would.

use std::sync::Arc;

use coordination::records::{Cluster, Record, written_forms};
use dax::error::ErrorKind;
use dax::forms::Forms;
use dax::storage::Storage;
use pgdata::control::ControlFile;
use volume::error::Error;
use volume::journal::JournalTail;
use volume::seal::{self, Seal};
use volume::snapshot;

use crate::agent::context::Context;
use crate::agent::error::{AgentError, Result};

/// Refuses if this node could not be the active of what is stored now; `followed` is the journal as far as a standby has
/// followed it.
///
/// # Errors
/// `Refused`, with what to do; those of the storage tier, which may pass.
pub(crate) async fn check(
    context: &Context,
    storage: &Arc<dyn Storage>,
    followed: Option<JournalTail>,
) -> Result<()> {
    let cluster = Cluster::load(storage.as_ref());
    let (forms, cluster, journal) =
        tokio::join!(readable(storage), cluster, understood(storage, followed),);
    // What this node writes as the active is what everybody reads.
    storage.use_forms(forms?);
    if let Some(cluster) = cluster? {
        context.installation.require_major(cluster.postgres_major)?;
    }
    journal
}

/// Which forms may be in the volume, if this program reads all of them.
pub(crate) async fn readable(storage: &Arc<dyn Storage>) -> Result<Forms> {
    let forms = written_forms(storage.as_ref()).await?;
    match forms.check_reader(Forms::NEWEST) {
        Ok(()) => Ok(forms),
        Err(error) => Err(AgentError::Refused(error.to_string())),
    }
}

/// True if seals, journal and the control file of the last seal can be read.
async fn understood(storage: &Arc<dyn Storage>, followed: Option<JournalTail>) -> Result<()> {
    let looked = async {
        let seals = seal::load_seals(storage).await?;
        if let Some(last) = seals.last().filter(|seal| !seal.payload.is_empty()) {
            ControlFile::parse(&last.payload).map_err(|e| Error::Damaged(e.to_string()))?;
        }
        let tail = match (followed, seals.last()) {
            (Some(followed), _) => followed,
            (None, Some(last)) => from_seal(storage, last).await?,
            (None, None) => return Ok(()),
        };
        tail.look().await.map(drop)
    };
    looked.await.map_err(not_understood)
}

async fn from_seal(storage: &Arc<dyn Storage>, seal: &Seal) -> volume::error::Result<JournalTail> {
    let namespace = snapshot::load(storage, &seal.snapshot).await?;
    Ok(JournalTail::new(
        Arc::clone(storage),
        namespace,
        seal.snapshot.place(),
    ))
}

/// What cannot be read for good is told from what may pass.
fn not_understood(error: Error) -> AgentError {
    let is_for_good = match &error {
        Error::Damaged(_) => true,
        Error::Storage(error) => error.kind() == ErrorKind::Corrupt,
        _ => false,
    };
    match is_for_good {
        true => AgentError::Refused(format!(
            "{error}: this program cannot read the stored data, so it does not take over and fences no node; a newer \
             release may have written the data"
        )),
        false => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dax::ids::{Epoch, NodeName};
    use dax::memory::MemoryCluster;
    use dax::storage::{Authority, VolumeSettings};
    use volume::latest::{Latest, format};
    use volume::seal::SEALS_RECORD;
    use volume::view::{Ownership, Timestamp};

    use super::*;

    const NOW: Timestamp = Timestamp(1);

    fn node(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    /// A volume whose journal an active has opened, and that active's handle.
    async fn served(cluster: &Arc<MemoryCluster>) -> Arc<dyn Storage> {
        let storage: Arc<dyn Storage> = cluster.client();
        storage.own_epoch(&node("north")).await.unwrap();
        let root = Ownership {
            mode: 0o700,
            uid: 1,
            gid: 1,
        };
        format(&storage, root, NOW).await.unwrap();
        let latest = Latest::recover(storage.clone(), NOW).await.unwrap();
        latest.commit().await.unwrap();
        storage
    }

    #[tokio::test]
    async fn node_that_cannot_read_the_stored_data_fences_no_other() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let active = served(&cluster).await;
        let standby: Arc<dyn Storage> = cluster.client();
        understood(&standby, None).await.unwrap();
        let newer = Bytes::from_static(b"{\"form\": 2, \"seals\": []}");
        let put = active.put_record(SEALS_RECORD, newer, Authority::Owner);
        put.await.unwrap();
        let error = understood(&standby, None).await.unwrap_err();
        assert!(
            matches!(&error, AgentError::Refused(why) if why.contains("newer release")),
            "{error}"
        );
        assert_eq!(standby.accepted_epoch().await.unwrap().epoch, Epoch(1));
        active.confirm().await.unwrap();
    }

    #[tokio::test]
    async fn node_that_does_not_know_the_volumes_forms_does_not_take_over() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let active = served(&cluster).await;
        let standby: Arc<dyn Storage> = cluster.client();
        assert_eq!(readable(&standby).await.unwrap(), Forms::RELEASE_0_1);
        let newer = dax::forms::WrittenForms {
            written: Forms(Forms::NEWEST.0 + 1),
        };
        newer.store(active.as_ref()).await.unwrap();
        let error = readable(&standby).await.unwrap_err();
        assert!(error.to_string().contains("upgrade it"), "{error}");
    }
}
