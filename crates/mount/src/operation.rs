//! How a request becomes a reply: at once where the view can, and where it must wait, on the runtime once there is
//! something to go on with.
//!
//! Invariants: every reply is sent exactly once, also when the view panics or the mount is aborted;
//! requests are first polled in the order in which they were received, all on the reader's thread
//! (see the crate); a change counts as under way until just after its reply was sent.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fuser::{
    Errno, INodeNo, Notifier, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
};
use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{error, warn};
use volume::error::Result as ViewResult;
use volume::view::{Ino, View};
use volume::waiting::Waiting;

use crate::errno::ErrorLog;
use crate::gate::Gate;
use crate::handles::Handles;
use crate::joiner::{Joiner, PartialPage, settle};

/// Kinds of requests that are told apart, at most; there are some thirty.
const KINDS: usize = 64;

/// How many requests the kernel has made, by what they ask for. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Requests(Arc<Counts>);

/// A count for each kind. A kind takes the first free place when it comes first, and is found there without a lock.
#[derive(Debug)]
struct Counts([(OnceLock<&'static str>, AtomicU64); KINDS]);

impl Default for Counts {
    fn default() -> Counts {
        Counts(std::array::from_fn(|_| Default::default()))
    }
}

impl Requests {
    /// Until now.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let counted = self.0.0.iter().filter_map(|(operation, count)| {
            Some((*operation.get()?, count.load(Ordering::Relaxed)))
        });
        counted.collect()
    }

    fn count(&self, operation: &'static str) {
        let is_its = |place: &&(OnceLock<&'static str>, AtomicU64)| {
            let found = *place.0.get_or_init(|| operation);
            std::ptr::eq(found, operation) || found == operation
        };
        if let Some((_, count)) = self.0.0.iter().find(is_its) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What the reader, the replies that wait, and the [`crate::Mount`] share.
pub(crate) struct Core {
    /// The view that is shown.
    pub(crate) view: RwLock<Arc<dyn View>>,
    /// Passed by every request.
    pub(crate) gate: Arc<Gate>,
    /// What is open.
    pub(crate) handles: Handles,
    /// Halves of database pages.
    pub(crate) joiner: Arc<Joiner>,
    /// What was asked for.
    pub(crate) requests: Requests,
    /// True if everything fails from now on.
    pub(crate) aborted: watch::Sender<bool>,
    errors: ErrorLog,
    runtime: Handle,
    /// Tells the kernel what to forget; there once the connection is.
    notifier: OnceLock<Notifier>,
}

/// True if a waiting operation holds up a switch of views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Changes the file: must be finished in the old view before the new one is shown.
    Change,
    /// Reads or syncs.
    Observe,
}

/// A reply that can say no.
pub(crate) trait Reply: Send + 'static {
    /// Sends an errno.
    fn refuse(self, errno: Errno);
}

macro_rules! reply {
    ($($kind:ty),*) => { $(impl Reply for $kind {
        fn refuse(self, errno: Errno) {
            self.error(errno);
        }
    })* };
}
reply!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyEmpty,
    ReplyEntry,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite
);

impl Core {
    /// Nothing open, nothing under way.
    pub(crate) fn new(view: Arc<dyn View>, runtime: Handle) -> Core {
        Core {
            view: RwLock::new(view),
            gate: Arc::default(),
            handles: Handles::default(),
            joiner: Arc::default(),
            requests: Requests::default(),
            aborted: watch::Sender::new(false),
            errors: ErrorLog::default(),
            runtime,
            notifier: OnceLock::new(),
        }
    }

    /// Says through what the kernel is told to forget.
    pub(crate) fn notify_by(&self, notifier: Notifier) {
        // There is one connection, so nobody has said so before.
        let _ = self.notifier.set(notifier);
    }

    /// Has the kernel drop its pages of a range that was written past its cache.
    ///
    /// On a thread that may wait: the kernel waits for reads of these pages that are under way, which
    /// others here answer.
    pub(crate) async fn forget_pages(&self, ino: Ino, offset: u64, len: u32) {
        let Some(notifier) = self.notifier.get().cloned() else {
            return;
        };
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        let told = self
            .runtime
            .spawn_blocking(move || notifier.inval_inode(INodeNo(ino.0), offset, i64::from(len)))
            .await;
        match told {
            Ok(Ok(())) => {}
            // It does not know the file: nothing is cached.
            Ok(Err(e)) if e.kind() == std::io::ErrorKind::NotFound => {}
            Ok(Err(e)) => warn!(ino = ino.0, error = %e, "the kernel may keep pages that are old"),
            Err(e) => warn!(ino = ino.0, error = %e, "the kernel may keep pages that are old"),
        }
    }

    /// The view that is shown now.
    pub(crate) fn view(&self) -> Arc<dyn View> {
        Arc::clone(&self.view.read())
    }

    /// Hands everything that waits for its rest to the view, as far as that works within `limit`.
    pub(crate) fn settle_all(&self, limit: Duration) {
        let parts = self.joiner.all();
        if parts.is_empty() || self.is_aborted() {
            return;
        }
        let (tell, settled) = std::sync::mpsc::channel();
        let settling = self.settle_parts(parts);
        self.runtime.spawn(async move {
            settling.await;
            let _ = tell.send(());
        });
        let _ = settled.recv_timeout(limit);
    }

    /// Hands everything that waits for its rest to the view.
    pub(crate) async fn settle_waiting(&self) {
        self.settle_parts(self.joiner.all()).await;
    }

    fn settle_parts(
        &self,
        parts: Vec<(Ino, Arc<PartialPage>)>,
    ) -> impl Future<Output = ()> + use<> {
        let (view, joiner) = (self.view(), Arc::clone(&self.joiner));
        async move {
            for (ino, _) in parts {
                if let Err(e) = settle(&*view, &joiner, ino).await {
                    warn!(ino = ino.0, error = %e, "the last bytes of a write are lost");
                }
            }
        }
    }

    /// Makes everything fail from now on, also what waits.
    pub(crate) fn abort(&self) {
        self.aborted.send_replace(true);
        self.gate.open_for_good();
    }

    fn is_aborted(&self) -> bool {
        *self.aborted.borrow()
    }

    /// Serves a request that only touches memory.
    pub(crate) fn answer<R: Reply, T>(
        &self,
        operation: &'static str,
        reply: R,
        ask: impl FnOnce(&dyn View) -> ViewResult<T>,
        say: impl FnOnce(R, T),
    ) {
        let _inside = self.gate.enter();
        self.requests.count(operation);
        if self.is_aborted() {
            return reply.refuse(Errno::EIO);
        }
        let view = self.view();
        // A view may use timers or spawn, here as on the runtime.
        let _runtime = self.runtime.enter();
        match catch_unwind(AssertUnwindSafe(|| ask(&*view))) {
            Ok(Ok(answer)) => say(reply, answer),
            Ok(Err(e)) => reply.refuse(self.errors.reply(operation, &e)),
            Err(_) => {
                error!(operation, "the view panicked: this is a bug");
                reply.refuse(Errno::EIO);
            }
        }
    }

    /// Serves a request that may wait: begun here, and finished on the runtime if it is not done.
    pub(crate) fn start<R: Reply, T: Send + 'static, F>(
        self: &Arc<Self>,
        operation: &'static str,
        effect: Effect,
        reply: R,
        ask: impl FnOnce(Arc<dyn View>) -> F,
        say: impl FnOnce(R, T) + Send + 'static,
    ) where
        F: Future<Output = ViewResult<T>> + Send + 'static,
    {
        let _inside = self.gate.enter();
        self.requests.count(operation);
        if self.is_aborted() {
            return reply.refuse(Errno::EIO);
        }
        let mut future: Pin<Box<dyn Future<Output = ViewResult<T>> + Send>> =
            Box::pin(ask(self.view()));
        let first = {
            let _runtime = self.runtime.enter();
            catch_unwind(AssertUnwindSafe(|| {
                future
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
            }))
        };
        match first {
            Ok(Poll::Ready(result)) => self.finish(operation, reply, result, say),
            Ok(Poll::Pending) => {
                let change = (effect == Effect::Change).then(|| self.gate.begin_change());
                let core = Arc::clone(self);
                // Polled again at once, so the first poll's deaf waker does no harm.
                Waiting::begin(&self.runtime, async move {
                    core.wait(operation, reply, future, say).await;
                    drop(change);
                });
            }
            Err(_) => {
                error!(operation, "the view panicked: this is a bug");
                reply.refuse(Errno::EIO);
            }
        }
    }

    async fn wait<R: Reply, T>(
        &self,
        operation: &'static str,
        reply: R,
        future: Pin<Box<dyn Future<Output = ViewResult<T>> + Send>>,
        say: impl FnOnce(R, T),
    ) {
        let mut aborted = self.aborted.subscribe();
        tokio::select! {
            biased;
            result = future => self.finish(operation, reply, result, say),
            _ = aborted.wait_for(|aborted| *aborted) => reply.refuse(Errno::EIO),
        }
    }

    fn finish<R: Reply, T>(
        &self,
        operation: &'static str,
        reply: R,
        result: ViewResult<T>,
        say: impl FnOnce(R, T),
    ) {
        match result {
            Ok(answer) => say(reply, answer),
            Err(e) => reply.refuse(self.errors.reply(operation, &e)),
        }
    }
}
