//! Operations that wait, without a task until there is something to do.
//!
//! A task is polled by a thread of the runtime first, which has to be woken for it, and then waits all the same. What
//! waits here is polled by whoever begins it, and becomes a task when it is woken: by then a thread of the runtime runs,
//! because it is the one that wakes it.
//!
//! Invariant: what was woken is polled again; nothing is polled by two threads at once.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tracing::error;

type Operation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// See the module. Who wakes it holds it, and it holds what it waits for, until then; all that operations here wait for
/// wakes them when it goes.
pub struct Waiting {
    state: Mutex<State>,
    runtime: Handle,
}

enum State {
    /// Whoever began it polls it.
    Polled,
    /// It was woken meanwhile.
    Woken,
    /// Until it is woken.
    Asleep(Operation),
    /// Done, or a task.
    Gone,
}

impl Waiting {
    /// Polls an operation, and leaves it to `runtime` if it is not done; it may use the runtime's timers.
    pub fn begin(runtime: &Handle, operation: impl Future<Output = ()> + Send + 'static) {
        let waiting = Arc::new(Waiting {
            state: Mutex::new(State::Polled),
            runtime: runtime.clone(),
        });
        let waker = Waker::from(Arc::clone(&waiting));
        let mut operation: Operation = Box::pin(operation);
        let polled = {
            let _runtime = runtime.enter();
            let mut cx = Context::from_waker(&waker);
            catch_unwind(AssertUnwindSafe(|| operation.as_mut().poll(&mut cx)))
        };
        match polled {
            Ok(Poll::Pending) => waiting.sleep(operation),
            Ok(Poll::Ready(())) => *waiting.state.lock() = State::Gone,
            // Whoever waits for the reply hears of it when it is dropped.
            Err(_) => error!("an operation panicked: this is a bug"),
        }
    }

    fn sleep(&self, operation: Operation) {
        let mut state = self.state.lock();
        match *state {
            State::Polled => *state = State::Asleep(operation),
            _ => {
                *state = State::Gone;
                drop(state);
                self.runtime.spawn(operation);
            }
        }
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Polled | State::Woken => *state = State::Woken,
            State::Asleep(operation) => {
                drop(state);
                self.runtime.spawn(operation);
            }
            State::Gone => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(1).enable_all().build().unwrap()
    }

    /// Who did what, in order.
    fn heard(from: &mpsc::Receiver<String>) -> String {
        from.recv_timeout(Duration::from_secs(10)).unwrap()
    }

    fn here() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    #[test]
    fn waiting_begins_on_its_thread_and_ends_on_the_runtime() {
        let runtime = runtime();
        let (tell, from) = mpsc::channel();
        let (go, wait) = oneshot::channel();
        Waiting::begin(runtime.handle(), async move {
            tell.send(here()).unwrap();
            wait.await.unwrap();
            tell.send(here()).unwrap();
        });
        assert_eq!(heard(&from), here(), "polled before anything else is");
        go.send(()).unwrap();
        assert!(heard(&from).starts_with("tokio"));
    }

    #[test]
    fn finished_work_is_dropped_at_once() {
        let runtime = runtime();
        let (tell, from) = mpsc::channel();
        Waiting::begin(runtime.handle(), async move { tell.send(here()).unwrap() });
        assert_eq!(heard(&from), here());
        assert!(from.recv().is_err(), "dropped");
    }

    #[test]
    fn a_wake_while_it_is_polled_is_not_lost() {
        let runtime = runtime();
        let (tell, from) = mpsc::channel();
        let mut polls = 0;
        let operation = std::future::poll_fn(move |cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            match polls {
                3 => {
                    tell.send(here()).unwrap();
                    Poll::Ready(())
                }
                _ => Poll::Pending,
            }
        });
        Waiting::begin(runtime.handle(), operation);
        assert!(heard(&from).starts_with("tokio"));
    }

    #[test]
    fn waiting_work_may_sleep() {
        let runtime = runtime();
        let (tell, from) = mpsc::channel();
        Waiting::begin(runtime.handle(), async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tell.send(here()).unwrap();
        });
        heard(&from);
    }

    #[test]
    fn work_whose_waiter_goes_away_ends() {
        let runtime = runtime();
        let (tell, from) = mpsc::channel();
        let (go, wait) = oneshot::channel::<()>();
        Waiting::begin(runtime.handle(), async move {
            let gone = wait.await.is_err();
            tell.send(gone.to_string()).unwrap();
        });
        drop(go);
        assert_eq!(heard(&from), "true");
    }

    #[test]
    fn a_panic_drops_it_and_leaves_the_thread() {
        let runtime = runtime();
        let (tell, from) = mpsc::channel::<String>();
        Waiting::begin(runtime.handle(), async move {
            let _tell = tell;
            panic!("as a view might");
        });
        assert!(from.recv().is_err(), "dropped");
    }
}
