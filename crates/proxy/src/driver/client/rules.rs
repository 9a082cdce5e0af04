//! Keeps a client to the configuration, which may be read again while it is there.

use std::sync::Arc;
use std::task::Context as Wake;

use super::Client;

impl Client {
    /// Goes by the configuration that was read last. The pool, and for how long a server is its own, stay.
    pub(super) fn heed_settings(&mut self) {
        let settings = self.proxy.settings();
        if !Arc::ptr_eq(&settings, &self.settings) {
            self.scope = settings.scope(&self.pool.login());
            self.settings = settings;
        }
    }

    /// Ends the client if it has kept still, or a statement has run, for too long.
    pub(super) fn keep_limit(&mut self, wake: &mut Wake<'_>) -> bool {
        self.heed_settings();
        let batches = self.session.counts().batches;
        self.limit.watch(&self.session, batches, &self.scope);
        let Some((refusal, is_statement)) = self.limit.poll(wake) else {
            return false;
        };
        let target = self.held.as_ref().map(|held| held.conn.target());
        if let Some(request) = target.filter(|_| is_statement).and_then(|one| one.begin()) {
            let dialer = self.proxy.dialer.clone();
            tokio::spawn(async move { request.send(&dialer).await });
        }
        self.with(|session, _, out| session.close(&refusal, out));
        true
    }
}
