//! Orders of operators, as this node knows them: the control record, and which forms may be written, read
//! again and again.
//!
//! One task per agent, with a handle of its own: that of a node's life ends with a change of roles. What
//! cannot be read leaves what was known; so a node that starts while the zones are away goes by the
//! defaults until they answer, and then does nothing anyway.

use std::time::Duration;

use coordination::records::{Control, written_forms};
use dax::forms::Forms;
use dax::storage::Storage;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::context::{self, Known};
use crate::config::Config;

/// How often the record is read.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Reads the control record until it is dropped.
pub(crate) struct Controls {
    task: JoinHandle<()>,
}

impl Drop for Controls {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Controls {
    /// Begins to read, and returns what is known: at first the default.
    pub(crate) fn start(config: Config) -> (Controls, Known) {
        let (known, control) = watch::channel(Control::default());
        let (written, forms) = watch::channel(None);
        let task = tokio::spawn(run(config, known, written));
        (Controls { task }, Known { control, forms })
    }
}

/// Reads which forms may be in the volume.
async fn read_forms(storage: &dyn Storage, written: &watch::Sender<Option<Forms>>) {
    match written_forms(storage).await {
        Ok(forms) => {
            let changed = written.send_if_modified(|known| {
                // Never lowered, but a read during the change may see the number of before.
                let higher = Some(forms) > *known;
                if higher {
                    *known = Some(forms);
                }
                higher
            });
            if changed && !forms.is_known() {
                tracing::error!(
                    %forms,
                    "the volume may have formats that this program does not read: this node does not take over; \
                     upgrade it"
                );
            } else if changed {
                tracing::info!(%forms, "forms that may be written");
            }
        }
        Err(error) => tracing::info!(%error, "the number of forms was not read"),
    }
}

async fn run(config: Config, known: watch::Sender<Control>, written: watch::Sender<Option<Forms>>) {
    let storage = loop {
        match context::connect(&config).await {
            Ok(storage) => break storage,
            Err(error) => tracing::debug!(%error, "the control record cannot be read yet"),
        }
        tokio::time::sleep(READ_EVERY).await;
    };
    loop {
        read_forms(storage.as_ref(), &written).await;
        match Control::read(storage.as_ref()).await {
            Ok(read) => {
                known.send_if_modified(|known| {
                    // Two reads during an edit may see the new version first and then the old one.
                    let newer = read.version > known.version;
                    if newer {
                        tracing::info!(version = read.version, "the cluster's configuration");
                        *known = read;
                    }
                    newer
                });
            }
            Err(error) => tracing::info!(%error, "the control record was not read"),
        }
        tokio::time::sleep(READ_EVERY).await;
    }
}
