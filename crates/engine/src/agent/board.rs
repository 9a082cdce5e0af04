//! What this node tells whoever asks how it is, and where orders come in.

use std::sync::Arc;

use async_trait::async_trait;
use coordination::channel::{Handler, Request};
use coordination::records::finish_upgrade;
use dax::forms::Forms;
use dax::storage::Storage;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::driver::Driver;
use crate::machine::Ask;

/// Something that an operator asked for; the sender answers it.
pub struct Order {
    pub(super) ask: Ask,
    pub(super) answer: oneshot::Sender<Result<(), String>>,
}

/// Reports this node's status and takes orders.
pub struct Board {
    driver: Arc<Driver>,
    /// What the present life adds.
    life: Mutex<Value>,
    storage: Mutex<Option<Arc<dyn Storage>>>,
    orders: mpsc::Sender<Order>,
}

impl Board {
    pub(super) fn new(driver: Arc<Driver>) -> (Arc<Board>, mpsc::Receiver<Order>) {
        let (orders, receiver) = mpsc::channel(4);
        let board = Board {
            driver,
            life: Mutex::new(json!({})),
            storage: Mutex::new(None),
            orders,
        };
        (Arc::new(board), receiver)
    }

    /// Replaces what is reported besides what the machine knows.
    pub(super) fn report(&self, life: Value) {
        *self.life.lock() = life;
    }

    /// Reports the zones and counters of this handle from now on.
    pub(super) fn watch(&self, storage: Arc<dyn Storage>) {
        *self.storage.lock() = Some(storage);
    }

    /// Has the active write these forms from now on.
    pub(super) fn use_forms(&self, forms: Forms) {
        if let Some(storage) = self.storage.lock().as_ref() {
            storage.use_forms(forms);
        }
    }

    fn status(&self) -> Value {
        let mut status = self.life.lock().clone();
        let (role, state) = self.driver.member();
        status["role"] = json!(role);
        status["state"] = json!(state);
        status["stage"] = json!(self.driver.state().to_string());
        status["paused"] = json!(self.driver.look(|machine| machine.paused()));
        if let Some(trouble) = self.driver.trouble() {
            status["error"] = json!(trouble);
        }
        if let Some(storage) = self.storage.lock().as_ref() {
            status["replicas"] = json!(storage.replicas());
            status["storage"] = json!(storage.counters());
        }
        status
    }

    async fn order(&self, ask: Ask) -> Result<Value, String> {
        let (answer, answered) = oneshot::channel();
        let busy = |_| "this node is busy with another order; try again".to_owned();
        self.orders.try_send(Order { ask, answer }).map_err(busy)?;
        let answered = answered.await;
        answered.unwrap_or_else(|_| Err("this node changed its role meanwhile".to_owned()))?;
        Ok(json!({ "state": self.driver.state().to_string() }))
    }
}

#[async_trait]
impl Handler for Board {
    async fn request(&self, request: Request) -> Result<Value, String> {
        match request {
            Request::Status => Ok(self.status()),
            Request::Failover { to, force } => self.order(Ask::Failover { to, force }).await,
            Request::Restart => self.order(Ask::Restart).await,
            Request::FinishUpgrade => {
                let storage = self.storage.lock().clone();
                let storage =
                    storage.ok_or("this node is not the active, which alone ends an upgrade")?;
                let forms = finish_upgrade(storage.as_ref()).await?;
                Ok(json!({ "written": forms }))
            }
            _ => Err(
                "a node that hosts a server of another kind than PostgreSQL cannot do that"
                    .to_owned(),
            ),
        }
    }

    async fn session(&self) -> Result<UnixStream, String> {
        Err("the volume holds no PostgreSQL; use the server's own client".to_owned())
    }
}
