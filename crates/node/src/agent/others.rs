//! Volumes besides the database's own that its active owns: those that the database has left, and the image of a repository that it lies
//! over. Nobody serves them, so nobody else would bring a zone up to date that lost its disk, or exchange their zones.
//!
//! Invariant: a volume is here only while its owner's handle owns it, as far as that is known.

use std::sync::Arc;
use std::time::Duration;

use coordination::config::ClusterConfig;
use dax::client::identify;
use dax::error::{Error, ErrorKind};
use dax::membership::Member;
use dax::scrub::{Pace, ScrubStatus, Scrubber};
use dax::storage::Storage;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// How long a zone may take to say which store it is.
const IDENTIFY_WITHIN: Duration = Duration::from_secs(4);

/// A volume that this node owns, and the way to it.
pub(super) type Way = (ClusterConfig, Arc<dyn Storage>);

/// A volume, as its owner sees it.
struct Owned {
    cluster: ClusterConfig,
    storage: Arc<dyn Storage>,
    scrub: ScrubStatus,
}

/// All of them; clones share them.
#[derive(Clone, Default)]
pub(super) struct Others(Arc<Mutex<Vec<Arc<Owned>>>>);

/// Takes a volume out when it is dropped.
struct Entry<'a> {
    others: &'a Others,
    owned: Arc<Owned>,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut all = self.others.0.lock();
        all.retain(|other| !Arc::ptr_eq(other, &self.owned));
    }
}

impl Others {
    /// Scrubs a volume until somebody else owns it; operators can exchange its zones meanwhile.
    pub async fn look_after(&self, cluster: ClusterConfig, storage: Arc<dyn Storage>, pace: Pace) {
        let mut scrubber = Scrubber::of_all_files(Arc::clone(&storage));
        scrubber.pace = pace;
        let owned = Arc::new(Owned {
            cluster,
            storage: Arc::clone(&storage),
            scrub: Arc::clone(&scrubber.told),
        });
        self.0.lock().push(Arc::clone(&owned));
        let _entry = Entry {
            others: self,
            owned,
        };
        tokio::select! {
            () = scrubber.run() => {}
            () = storage.fenced() => {}
        }
    }

    /// The ways to all of them, with their owner's handles.
    pub fn ways(&self) -> Vec<Way> {
        let all = self.0.lock();
        let ways = all
            .iter()
            .map(|owned| (owned.cluster.clone(), Arc::clone(&owned.storage)));
        ways.collect()
    }

    /// For the node's status.
    pub fn report(&self) -> Vec<Value> {
        let all = self.0.lock();
        let reports = all.iter().map(|owned| {
            let layer = owned.storage.settings().layer.as_ref();
            json!({
                "volume": owned.cluster.stored_in(),
                "parent": layer.map(|layer| &layer.parent),
                "members": owned.storage.membership(),
                "scrub": *owned.scrub.lock(),
            })
        });
        reports.collect()
    }
}

/// Refuses a zone that shall join a volume if it is not the store that was meant, or has something of the volume, which may be old. It may
/// count in another volume already.
///
/// # Errors
/// `Conflict` with what to do, `Unavailable` if it does not answer.
pub(super) async fn may_join(
    cluster: &ClusterConfig,
    member: &Member,
    counts_elsewhere: bool,
) -> dax::Result<()> {
    let address = &member.address;
    let client = cluster.client(cluster.name.as_str())?;
    let Ok(asked) = tokio::time::timeout(IDENTIFY_WITHIN, identify(&client, address)).await else {
        let said = format!("{address} does not answer the active");
        return Err(Error::new(ErrorKind::Unavailable, said));
    };
    let found = asked?;
    let volume = cluster.stored_in();
    let said = match found.store == member.store {
        false => format!("another zone answers at {address}: ask again"),
        true if found.knows_volume && counts_elsewhere => format!(
            "{address} holds something of the volume {volume} already, which may be old, and counts in other volumes of the database: \
             when all other zones are up, stop it, empty its directory, start it, and ask again"
        ),
        true if found.knows_volume => format!(
            "{address} holds something of the volume {volume} already, which may be old: stop it, empty its directory, \
             start it, and ask again"
        ),
        true => return Ok(()),
    };
    Err(Error::new(ErrorKind::Conflict, said))
}
