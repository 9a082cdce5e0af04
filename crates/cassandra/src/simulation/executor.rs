//! Runs the tasks of all clients, one step at a time, in an order that the seed decides.
//!
//! A client's tasks are polled only while it is not paused; those of one that was killed are dropped where they
//! stand. Invariant: which task is next depends on the seed and on who was woken, never on the order in which they
//! were woken: what tokio wakes together, it wakes in no certain order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use dax::simulation::history::ClientId;
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use rand::Rng;

use super::world::World;

type TaskId = u64;

/// The world, for whoever acts in it. Locked only between two waits.
#[derive(Clone)]
pub struct Stage(Arc<Mutex<World>>);

impl Stage {
    pub fn new(world: World) -> Stage {
        Stage(Arc::new(Mutex::new(world)))
    }

    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock()
    }
}

type Woken = Arc<Mutex<BTreeSet<TaskId>>>;

struct Alarm {
    task: TaskId,
    woken: Woken,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.woken.lock().insert(self.task);
    }
}

struct Task {
    client: ClientId,
    future: BoxFuture<'static, ()>,
    waker: Waker,
}

pub struct Executor {
    stage: Stage,
    tasks: BTreeMap<TaskId, Task>,
    woken: Woken,
    next: TaskId,
}

impl Executor {
    pub fn new(stage: Stage) -> Executor {
        Executor {
            stage,
            tasks: BTreeMap::new(),
            woken: Woken::default(),
            next: 0,
        }
    }

    /// Lets one task go on as far as it can; whose. None if all of them wait.
    pub fn step(&mut self) -> Option<ClientId> {
        self.adopt();
        let id = self.choose()?;
        let mut task = self.tasks.remove(&id)?;
        let mut context = Context::from_waker(&task.waker);
        let poll = task.future.as_mut().poll(&mut context);
        let client = task.client;
        if poll == Poll::Pending {
            self.tasks.insert(id, task);
        }
        Some(client)
    }

    /// A client is killed: its tasks go no further.
    pub fn kill(&mut self, client: ClientId) {
        self.adopt();
        self.stage.lock().kill_client(client);
        let gone = self.tasks.extract_if(.., |_, task| task.client == client);
        // Whoever is dropped may spawn, wake or lock something.
        let gone: Vec<_> = gone.collect();
        drop(gone);
    }

    fn adopt(&mut self) {
        let spawned = std::mem::take(&mut self.stage.lock().spawned);
        for (client, future) in spawned {
            let id = self.next;
            self.next += 1;
            let woken = Arc::clone(&self.woken);
            let waker = Waker::from(Arc::new(Alarm { task: id, woken }));
            let task = Task {
                client,
                future,
                waker,
            };
            self.tasks.insert(id, task);
            self.woken.lock().insert(id);
        }
    }

    fn choose(&mut self) -> Option<TaskId> {
        let mut world = self.stage.lock();
        let mut woken = self.woken.lock();
        woken.retain(|id| self.tasks.contains_key(id));
        let may_run = |id: &&TaskId| !world.is_paused(self.tasks[*id].client);
        let ready: Vec<TaskId> = woken.iter().filter(may_run).copied().collect();
        if ready.is_empty() {
            return None;
        }
        let id = ready[world.rng.random_range(0..ready.len())];
        woken.remove(&id);
        let client = self.tasks[&id].client;
        world.trace_step(4, [client as u64, id, 0], || {
            format!("client {client}: task {id} goes on")
        });
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::world::{Turn, ms};

    /// What tokio wakes together goes on in the same order in every run.
    #[test]
    fn the_order_of_those_who_are_woken_together_is_the_seeds() {
        let order = |seed| {
            let stage = Stage::new(World::new(seed, None, false));
            let client = stage.lock().add_client();
            let mut executor = Executor::new(stage.clone());
            let bell = Arc::new(tokio::sync::watch::Sender::new(false));
            let heard = Arc::new(Mutex::new(Vec::new()));
            for number in 0..16 {
                let (bell, heard) = (Arc::clone(&bell), Arc::clone(&heard));
                let hear = async move {
                    let mut rings = bell.subscribe();
                    let _ = rings.wait_for(|rings| *rings).await;
                    heard.lock().push(number);
                };
                stage.lock().spawned.push((client, Box::pin(hear)));
            }
            while executor.step().is_some() {}
            bell.send_replace(true);
            while executor.step().is_some() {}
            let heard = heard.lock();
            heard.clone()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn paused_tasks_continue_later_and_killed_ones_never() {
        let stage = Stage::new(World::new(1, None, false));
        let clients = [0; 2].map(|_| stage.lock().add_client());
        let mut executor = Executor::new(stage.clone());
        for client in clients {
            let over = stage.lock().sleep(client, ms(10));
            let sleep = async move { over.await.unwrap() };
            stage.lock().spawned.push((client, Box::pin(sleep)));
        }
        while executor.step().is_some() {}
        stage.lock().pause_client(clients[0], ms(50));
        executor.kill(clients[1]);
        let mut went_on = Vec::new();
        loop {
            while let Some(client) = executor.step() {
                went_on.push((client, stage.lock().now.as_millis()));
            }
            let turn = stage.lock().turn(ms(100));
            if !matches!(turn, Some(Turn::Go)) {
                break;
            }
        }
        assert_eq!(went_on, [(clients[0], 50)]);
    }
}
