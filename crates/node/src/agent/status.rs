//! What this node tells whoever asks how it is.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use coordination::channel::{Handler, Request};
use coordination::records::finish_upgrade;
use dax::storage::Storage;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::driver::{MachineDriver, Order};
use super::others::Others;

/// Reports this node's status and hands orders to its current life.
pub(crate) struct StatusBoard {
    driver: Arc<MachineDriver>,
    state: Mutex<Value>,
    storage: Mutex<Option<Arc<dyn Storage>>>,
    requests: Mutex<Option<mount::Requests>>,
    /// Volumes besides its own that this node owns while it is the active.
    pub(super) others: Others,
    orders: mpsc::Sender<Order>,
    /// The Unix socket of this node's PostgreSQL.
    postgres: PathBuf,
}

impl StatusBoard {
    pub(crate) fn new(
        driver: Arc<MachineDriver>,
        postgres: PathBuf,
    ) -> (Arc<StatusBoard>, mpsc::Receiver<Order>) {
        let (orders, receiver) = mpsc::channel(4);
        let state = Mutex::new(json!({}));
        (
            Arc::new(StatusBoard {
                driver,
                state,
                storage: Mutex::new(None),
                requests: Mutex::new(None),
                others: Others::default(),
                orders,
                postgres,
            }),
            receiver,
        )
    }

    /// Replaces what is reported besides what the machine knows.
    pub(crate) fn report(&self, state: Value) {
        *self.state.lock() = state;
    }

    /// Reports the zones and counters of this handle from now on.
    pub(crate) fn watch(&self, storage: Arc<dyn Storage>) {
        *self.storage.lock() = Some(storage);
    }

    /// Reports what the kernel asks of this mount from now on.
    pub(crate) fn watch_mount(&self, mount: &mount::Mount) {
        *self.requests.lock() = Some(mount.requests());
    }

    /// What is reported now.
    pub(crate) fn status(&self) -> Value {
        let mut status = self.state.lock().clone();
        self.driver.describe(&mut status);
        status["others"] = json!(self.others.report());
        if let Some(storage) = self.storage.lock().as_ref() {
            status["replicas"] = json!(storage.replicas());
            status["storage"] = json!(storage.counters());
            if let Some(members) = storage.membership() {
                status["members"] = json!(members);
            }
        }
        if let Some(requests) = self.requests.lock().as_ref() {
            status["requests"] = json!(requests.counts());
        }
        status
    }
}

#[async_trait]
impl Handler for StatusBoard {
    async fn request(&self, request: Request) -> Result<Value, String> {
        if request == Request::Status {
            return Ok(self.status());
        }
        if request == Request::FinishUpgrade {
            let storage = self.storage.lock().clone();
            let storage =
                storage.ok_or("this node is not the active, which alone ends an upgrade")?;
            let forms = finish_upgrade(storage.as_ref()).await?;
            return Ok(json!({ "written": forms }));
        }
        let (answer, answered) = oneshot::channel();
        let busy = |_| "this node is busy with another order; try again".to_owned();
        self.orders
            .try_send(Order { request, answer })
            .map_err(busy)?;
        answered
            .await
            .unwrap_or_else(|_| Err("this node changed its role meanwhile".to_owned()))
    }

    async fn session(&self) -> Result<UnixStream, String> {
        let connected = UnixStream::connect(&self.postgres).await;
        connected.map_err(|error| format!("PostgreSQL does not run on this node ({error})"))
    }
}
