//! The gate: what an owner looks at before it acknowledges anything (docs/understand/protocol-cassandra.md, "The gate").

use std::sync::atomic::{AtomicU64, Ordering};

use dax::error::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::Inner;
use crate::config::Fencing;
use crate::lease::{self, Answer, Change, Lease, Renewal, Time};
#[cfg(test)]
use crate::simulation::Flaw;

#[derive(Debug)]
pub(super) struct Gate {
    fencing: Fencing,
    /// Of the epoch that is owned.
    lease: Mutex<Option<Lease>>,
    renewed: watch::Sender<()>,
    /// How often somebody came to the gate, and up to which of them a look at the epoch row has let through.
    came: AtomicU64,
    passed: tokio::sync::Mutex<u64>,
}

impl Gate {
    pub fn new(fencing: Fencing) -> Gate {
        Gate {
            fencing,
            lease: Mutex::new(None),
            renewed: watch::Sender::new(()),
            came: AtomicU64::new(0),
            passed: tokio::sync::Mutex::new(0),
        }
    }

    pub fn fencing(&self) -> Fencing {
        self.fencing
    }

    /// An epoch was won.
    pub fn install(&self, lease: Lease) {
        *self.lease.lock() = Some(lease);
        self.renewed.send_replace(());
    }

    /// When the lease is to be renewed; none if there is none, or never again.
    pub fn renewal_at(&self) -> Option<Time> {
        self.lease.lock().as_ref().and_then(Lease::renewal_at)
    }

    pub fn begin_renewal(&self, now: Time) -> Option<Renewal> {
        self.lease.lock().as_mut().map(|lease| lease.renew(now))
    }

    pub fn renewed(&self, renewal: &Renewal, answer: &Answer) {
        if let Some(lease) = self.lease.lock().as_mut() {
            lease.renewed(renewal, answer);
        }
        self.renewed.send_replace(());
    }

    /// This owner acknowledges nothing any more; what tells others so.
    pub fn release(&self) -> Option<Change> {
        self.lease.lock().as_mut().and_then(Lease::release)
    }

    /// True if nothing will ever be acknowledged again.
    pub fn is_shut_for_good(&self, now: Time) -> bool {
        self.state(now) == lease::Gate::Fenced
    }

    fn state(&self, now: Time) -> lease::Gate {
        let lease = self.lease.lock();
        let open = |lease: &Lease| lease.gate(now);
        lease.as_ref().map_or(lease::Gate::Shut, open)
    }
}

impl Inner {
    /// Passes once it is certain that no newer owner has read yet. Everything that is to be acknowledged
    /// was durable before. Waits while neither that nor a fence is known.
    ///
    /// # Errors
    /// `Fenced`, or `Invalid` if the handle owns no epoch.
    pub(super) async fn pass_gate(&self) -> Result<()> {
        self.check_writer()?;
        #[cfg(test)]
        if self.has_flaw(Flaw::NoGate) {
            return Ok(());
        }
        match self.gate.fencing {
            Fencing::Lease(_) => self.wait_for_lease().await,
            Fencing::Verify => self.verify().await,
        }
    }

    async fn wait_for_lease(&self) -> Result<()> {
        let mut renewed = self.gate.renewed.subscribe();
        loop {
            self.check_writer()?;
            if self.gate.state(self.environment.boot_time()) == lease::Gate::Open {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = self.wait_closed() => {
                    return Err(Error::new(ErrorKind::Unavailable, "the client is closing"));
                }
                () = self.wait_fenced() => {}
                // The sender lives as long as `self`.
                _ = renewed.changed() => {}
            }
        }
    }

    /// One look serves all who came before it began.
    async fn verify(&self) -> Result<()> {
        let mine = self.gate.came.fetch_add(1, Ordering::SeqCst) + 1;
        let mut passed = self.gate.passed.lock().await;
        if *passed >= mine {
            return self.check_writer().map(drop);
        }
        let upto = self.gate.came.load(Ordering::SeqCst);
        self.look_at_epoch().await?;
        self.check_writer()?;
        #[cfg(test)]
        let upto = match self.has_flaw(Flaw::LookServesLatecomers) {
            true => self.gate.came.load(Ordering::SeqCst),
            false => upto,
        };
        *passed = upto;
        Ok(())
    }
}
