//! The life of a mount: start, switch, abort, unmount.
//!
//! Invariant: a [`Mount`] that is gone (dropped or unmounted) serves nothing, holds nothing open in
//! its view, and has left no dead mount behind.
//!
//! ```text
//!   start ──▶ serving ──pause──▶ paused ──install──▶ paused (new view) ──drop──▶ serving
//!                │ abort
//!                ▼
//!             failing (EIO) ──unmount──▶ ended     (also: somebody else unmounts ──▶ ended)
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{Config, Session, SessionACL};
use nix::unistd::geteuid;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{debug, info, warn};
use volume::view::View;

use crate::adapter::Adapter;
use crate::attach;
use crate::child_io;
use crate::error::{Error, Result};
use crate::gate::Pause;
use crate::mountpoint::{self, connection_number, is_busy, mounted_at};
use crate::operation::{Core, Requests};

/// How long an ended mount may take to let its reader go.
const LINGER: Duration = Duration::from_secs(2);

/// Where and how to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// An existing, empty directory.
    pub path: PathBuf,
    /// Let users other than the one that mounts in; permissions are checked by the kernel either
    /// way. Ordinary users may ask for this only where `/etc/fuse.conf` says `user_allow_other`.
    pub allow_other: bool,
    /// How far the kernel reads ahead of sequential reads, in KiB; `None` leaves its default (128).
    /// Needs root; without it the default stays.
    pub readahead_kib: Option<u32>,
}

impl MountOptions {
    /// The usual: other users are let in when we are root, because PostgreSQL then runs as one.
    pub fn new(path: impl Into<PathBuf>) -> MountOptions {
        MountOptions {
            path: path.into(),
            allow_other: geteuid().is_root(),
            readahead_kib: None,
        }
    }
}

/// A view shown at a directory. Dropping it unmounts (see [`Mount::unmount`]).
pub struct Mount {
    core: Arc<Core>,
    path: PathBuf,
    /// `major:minor`, by which the mount is known to the kernel.
    device: String,
    ended: watch::Receiver<bool>,
    reader: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount")
            .field("path", &self.path)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl Mount {
    /// Mounts `view`. Operations that must wait run on `runtime`, which must live as long as the
    /// mount. Blocks for some milliseconds. A dead mount at the path is taken away first.
    ///
    /// # Errors
    /// Each says what to do about it; see [`Error`].
    pub fn start(view: Arc<dyn View>, options: MountOptions, runtime: Handle) -> Result<Mount> {
        mountpoint::detach_stale(&options.path)?;
        let path = mountpoint::check_usable(&options.path)?;
        let descriptor = attach::attach(&path, options.allow_other)?;
        let started = Mount::serve(view, &path, descriptor, runtime).and_then(|mount| {
            // Until it has asked once, the kernel takes the root directory for root's.
            child_io::look_at(&path).map_err(Error::io("look at the new mount on", &path))?;
            Ok(mount)
        });
        let mount = match started {
            Ok(mount) => mount,
            Err(e) => {
                if let Err(e) = attach::detach(&path) {
                    warn!(path = %path.display(), error = %e, "a mount whose start failed is left: umount -l");
                }
                return Err(e);
            }
        };
        if let Some(kib) = options.readahead_kib {
            mount.set_readahead(kib);
        }
        info!(path = %mount.path.display(), "mounted");
        Ok(mount)
    }

    /// Counts what the kernel asks for, also after the mount is gone.
    pub fn requests(&self) -> Requests {
        self.core.requests.clone()
    }

    fn serve(
        view: Arc<dyn View>,
        path: &Path,
        descriptor: std::os::fd::OwnedFd,
        runtime: Handle,
    ) -> Result<Mount> {
        let device = mounted_at(path)?
            .ok_or_else(|| {
                let gone = std::io::Error::other("it is not in the mount table");
                Error::io("find the new mount on", path)(gone)
            })?
            .device;
        let core = Arc::new(Core::new(view, runtime));
        // Who may use the mount is the kernel's decision (allow_other), so fuser need not check.
        let session = Session::from_fd(
            Adapter::new(Arc::clone(&core)),
            descriptor,
            SessionACL::All,
            Config::default(),
        )
        .map_err(Error::io("greet the kernel for", path))?;
        core.notify_by(session.notifier());
        let (tell_end, ended) = watch::channel(false);
        let at = path.to_path_buf();
        let reader = std::thread::Builder::new()
            .name("mount".to_owned())
            .spawn(move || {
                if let Err(e) = session.run() {
                    warn!(path = %at.display(), error = %e, "the mount ended with an error");
                }
                tell_end.send_replace(true);
            })
            .map_err(Error::io("start the reader of", path))?;
        Ok(Mount {
            core,
            path: path.to_path_buf(),
            device,
            ended,
            reader: Mutex::new(Some(reader)),
        })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The view that is shown now.
    pub fn view(&self) -> Arc<dyn View> {
        self.core.view()
    }

    /// True if requests are served. False after [`Mount::abort`] and when somebody else unmounted.
    pub fn is_alive(&self) -> bool {
        !*self.ended.borrow() && !*self.core.aborted.borrow()
    }

    /// Hands halves of pages whose rest has not come to the view. For who syncs the view, and not its files, once
    /// nobody writes any more: what waits reaches it otherwise with the last handle, of whose release the kernel
    /// tells only after the process has ended.
    pub async fn settle(&self) {
        self.core.settle_waiting().await;
    }

    /// Returns when the mount has ended, whoever ended it.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error means that the reader is gone, which is the same.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Holds back new requests and returns when no change (write, truncation, allocation) is under
    /// way in the view. Processes that use the mount just wait meanwhile. While this is held the
    /// caller must not use the mount itself. Dropping the future gives up, dropping the result goes
    /// on.
    pub async fn pause(&self) -> Paused<'_> {
        let _pause = self.core.gate.pause().await;
        // Asked now: a view that becomes another one answers for that one afterwards.
        let caching = !self.core.view.read().cache_policy().metadata.is_zero();
        Paused {
            mount: self,
            caching,
            _pause,
        }
    }

    /// Shows another view from now on; returns the one before. The same as [`Mount::pause`] and
    /// [`Paused::install`].
    ///
    /// Why nothing stale survives in the kernel: the old view must not let it cache names and
    /// attributes (a standby's view does not: zero timeouts, N5; anything else is refused), and a
    /// view with zero timeouts has its files opened past the page cache. A handle opened before the
    /// switch keeps bypassing the page cache, and what is written through it makes the kernel drop
    /// the pages that handles opened later have cached. What the kernel read ahead on the standby,
    /// it drops when a file is opened next. From the switch on only this mount changes what is
    /// cached.
    ///
    /// # Errors
    /// [`Error::CachingView`].
    pub async fn switch(&self, new: Arc<dyn View>) -> Result<Arc<dyn View>> {
        self.pause().await.install(new)
    }

    /// Fails what waits, and everything from now on, with `EIO`. For when PostgreSQL must die and
    /// the view cannot answer: a process that waits for a reply cannot even be killed.
    pub fn abort(&self) {
        self.core.abort();
    }

    /// Ends the mount and waits until it is gone. If processes still use it, what they wait for and
    /// ask from now on fails, and the mount disappears from the tree at once. Unmounting twice, or
    /// after somebody else did, does nothing.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses, which it should never do.
    pub fn unmount(&self) -> Result<()> {
        let Some(reader) = self.reader.lock().take() else {
            return Ok(());
        };
        // A pause that is still held must not stop the kernel's last requests.
        self.core.gate.open_for_good();
        self.core.settle_all(LINGER);
        let taken_away = self.take_away();
        self.core.abort();
        if !self.wait_for_end() {
            self.cut_connection();
            self.wait_for_end();
        }
        if *self.ended.borrow() {
            // It has said that it ends; a panic in it was logged as such.
            let _ = reader.join();
        } else {
            warn!(path = %self.path.display(), "processes still use the mount that was taken away; they get errors");
        }
        self.close_handles();
        taken_away?;
        info!(path = %self.path.display(), "unmounted");
        Ok(())
    }

    fn take_away(&self) -> Result<()> {
        let ours = |mount: Option<mountpoint::MountInfo>| {
            mount.is_some_and(|mount| mount.device == self.device)
        };
        if *self.ended.borrow() || !ours(mounted_at(&self.path)?) {
            return Ok(());
        }
        match attach::unmount(&self.path) {
            Err(e) if is_busy(&e) => {
                info!(path = %self.path.display(), "processes still use the mount: they get errors from now on");
                self.core.abort();
                attach::force(&self.path)
            }
            other => other,
        }
        .map_err(Error::io("unmount", &self.path))
    }

    /// Waits a little for the reader to end.
    fn wait_for_end(&self) -> bool {
        let step = Duration::from_millis(2);
        let mut left = LINGER;
        while !*self.ended.borrow() && !left.is_zero() {
            std::thread::sleep(step);
            left = left.saturating_sub(step);
        }
        *self.ended.borrow()
    }

    /// Makes the kernel end the connection, which a lazy unmount by an ordinary user does not.
    fn cut_connection(&self) {
        let Some(number) = connection_number(&self.device) else {
            return;
        };
        let control = format!("/sys/fs/fuse/connections/{number}/abort");
        if let Err(e) = fs::write(&control, b"1") {
            debug!(control, error = %e, "cannot cut the connection");
        }
    }

    /// Gives the view back what processes left open.
    fn close_handles(&self) {
        let view = self.core.view();
        for (ino, count) in self.core.handles.files() {
            self.core.handles.lose_file(ino);
            (0..count).for_each(|_| view.release(ino));
        }
    }

    fn set_readahead(&self, kib: u32) {
        let control = format!("/sys/class/bdi/{}/read_ahead_kb", self.device);
        if let Err(e) = fs::write(&control, kib.to_string()) {
            info!(control, error = %e, "the kernel's default readahead stays");
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(e) = self.unmount() {
            warn!(path = %self.path.display(), error = %e, "left mounted: umount -l");
        }
    }
}

/// A mount that serves nothing for the moment; goes on when dropped. See [`Mount::pause`].
#[derive(Debug)]
pub struct Paused<'a> {
    mount: &'a Mount,
    /// True if the kernel may have cached what the view at the time of the pause returned.
    caching: bool,
    _pause: Pause,
}

impl Paused<'_> {
    /// Shows another view when the mount goes on; returns the one before.
    ///
    /// Each open handle is opened in the new view (`View::open`, once per handle) and then released
    /// in the old one, so a view need not carry open counts over by itself. A file that the new
    /// view does not have is lost to its handles: their operations get what the view says.
    ///
    /// # Errors
    /// [`Error::CachingView`] if the kernel may have cached what the old view returned; nothing has
    /// changed then.
    pub fn install(&self, new: Arc<dyn View>) -> Result<Arc<dyn View>> {
        let core = &self.mount.core;
        let mut view = core.view.write();
        if self.caching {
            return Err(Error::CachingView);
        }
        for (ino, count) in core.handles.files() {
            let opened = (0..count).take_while(|_| new.open(ino).is_ok()).count() as u64;
            if opened < count {
                debug!(ino = ino.0, "an open file is not in the new view");
                (0..opened).for_each(|_| new.release(ino));
                core.handles.lose_file(ino);
            }
            (0..count).for_each(|_| view.release(ino));
        }
        core.handles.switched();
        Ok(std::mem::replace(&mut *view, new))
    }
}
