//! What operators want of the cluster, as this node knows it: the control record, read again and again.
//!
//! One task per agent, with a handle of its own: that of a node's life ends with a change of roles. What
//! cannot be read leaves what was known; so a node that starts while the zones are away goes by the
//! defaults until they answer, and then does nothing anyway.

use std::time::Duration;

use coordination::records::Control;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::context;
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
    pub(crate) fn start(config: Config) -> (Controls, watch::Receiver<Control>) {
        let (known, control) = watch::channel(Control::default());
        let task = tokio::spawn(run(config, known));
        (Controls { task }, control)
    }
}

async fn run(config: Config, known: watch::Sender<Control>) {
    let storage = loop {
        match context::connect(&config).await {
            Ok(storage) => break storage,
            Err(error) => tracing::debug!(%error, "the control record cannot be read yet"),
        }
        tokio::time::sleep(READ_EVERY).await;
    };
    loop {
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
