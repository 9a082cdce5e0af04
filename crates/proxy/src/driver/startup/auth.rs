//! A client proves who it is.

use bytes::BytesMut;

use nix::unistd::{Uid, User};

use crate::config::Auth;
use crate::core::hba::{Method, Visitor};
use protocol::frame::{self, Refusal};
use protocol::scram::{self, Doorkeeper, Keys, Verifier};

use super::message::{Replication, Startup, replicates};
use super::{Turned, Visit};

/// A message of the authentication cannot be longer.
const AUTH_BYTES: usize = 64 << 10;

impl Visit {
    /// Lets a client prove who it is, as the configuration asks for. Returns the keys that this reveals.
    pub(super) async fn authenticate(&mut self, startup: &Startup) -> Result<Option<Keys>, Turned> {
        match self.method(startup)? {
            Method::Trust => Ok(None),
            Method::Scram => self.ask_password(&startup.user).await.map(Some),
            Method::Peer => match self.is_run_by(&startup.user).await {
                true => Ok(None),
                false => Err(no_peer(&startup.user).into()),
            },
            Method::Reject => {
                let text = format!("a rule of auth_hba_file rejects {}", self.name(startup));
                Err(Refusal::fatal("28000", text).into())
            }
        }
    }

    /// Proof that the client has to bring.
    fn method(&self, startup: &Startup) -> Result<Method, Refusal> {
        let settings = self.proxy.settings();
        let Some(rules) = &settings.rules else {
            return Ok(match settings.config.auth {
                Auth::Scram => Method::Scram,
                Auth::Trust => Method::Trust,
            });
        };
        let method = rules.method(&Visitor {
            database: &startup.database,
            user: &startup.user,
            address: self.peer,
            is_encrypted: self.socket.is_encrypted(),
            is_replication: replicates(&startup.parameters) == Some(Replication::Physical),
        });
        method.ok_or_else(|| {
            let text = format!("no rule of auth_hba_file is for {}", self.name(startup));
            Refusal::fatal("28000", text)
                .hint("Add a rule and let the proxy RELOAD, or connect otherwise.")
        })
    }

    /// The client as rules see it.
    fn name(&self, startup: &Startup) -> String {
        let from = self.peer.map_or_else(
            || "the Unix socket".to_owned(),
            |peer| format!("host \"{peer}\""),
        );
        let encryption = match self.socket.is_encrypted() {
            true => "SSL encryption",
            false => "no encryption",
        };
        let (user, database) = (&startup.user, &startup.database);
        format!("{from}, user \"{user}\", database \"{database}\", {encryption}")
    }

    /// True if the other end of a Unix socket is a process of this user of the operating system.
    async fn is_run_by(&self, name: &str) -> bool {
        let Some(id) = self.socket.peer_user() else {
            return false;
        };
        // It may be looked up over a network.
        let found = tokio::task::spawn_blocking(move || User::from_uid(Uid::from_raw(id)));
        let found = found.await.ok().and_then(Result::ok).flatten();
        found.is_some_and(|user| user.name == name)
    }

    async fn ask_password(&mut self, user: &str) -> Result<Keys, Turned> {
        let within = self.proxy.settings().config.takeover_wait;
        let kept = self.proxy.catalogs.verifier(user, within).await;
        let kept = kept.map_err(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "no verifiers");
            Refusal::fatal("57P03", "the proxy cannot look up passwords now")
                .detail(error.to_string())
                .hint("Try again; [control] in the proxy's configuration says who looks them up.")
        })?;
        if kept.as_deref().is_some_and(|kept| kept.starts_with("md5")) {
            let text = format!("the password of \"{user}\" is kept as an MD5 sum");
            return Err(Refusal::fatal("28P01", text)
                .hint("Set it again, with password_encryption = 'scram-sha-256'.")
                .into());
        }
        let verifier = kept
            .as_deref()
            .and_then(Verifier::parse)
            .unwrap_or_else(|| Verifier::of_nobody(&self.proxy.secret, user));
        self.exchange(user, verifier).await
    }

    async fn exchange(&mut self, user: &str, verifier: Verifier) -> Result<Keys, Turned> {
        let endpoint = self.endpoint.clone();
        self.send_auth(10, &scram::offer(endpoint.is_some()))
            .await?;
        let first = self.auth_message().await?;
        let (channel, first) =
            scram::read_initial(&first, endpoint.as_deref()).map_err(|_| malformed())?;
        let nonce = scram::nonce().map_err(|error| Refusal::fatal("58000", error.to_string()))?;
        let begun = Doorkeeper::begin(verifier, channel, first, &nonce);
        let (doorkeeper, answer) = begun.map_err(|error| error.refusal(user))?;
        self.send_auth(11, answer.as_bytes()).await?;
        let last = self.auth_message().await?;
        let last = std::str::from_utf8(&last).map_err(|_| malformed())?;
        let judged = doorkeeper.finish(last);
        let (keys, answer) = judged.map_err(|error| error.refusal(user))?;
        frame::put(
            &mut self.output,
            b'R',
            &[&12u32.to_be_bytes(), answer.as_bytes()],
        );
        Ok(keys)
    }

    async fn send_auth(&mut self, step: u32, text: &[u8]) -> Result<(), Turned> {
        frame::put(&mut self.output, b'R', &[&step.to_be_bytes(), text]);
        Ok(self.socket.drain(&mut self.output).await?)
    }

    async fn auth_message(&mut self) -> Result<BytesMut, Turned> {
        loop {
            let taken = frame::take(&mut self.input, AUTH_BYTES);
            match taken.map_err(|error| Refusal::fatal("08P01", error.to_string()))? {
                Some(message) if message[0] == b'p' => {
                    return Ok(BytesMut::from(frame::body(&message)));
                }
                Some(_) => return Err(malformed().into()),
                None => self.read().await?,
            }
        }
    }
}

fn no_peer(user: &str) -> Refusal {
    Refusal::fatal(
        "28000",
        format!("peer authentication failed for user \"{user}\""),
    )
}

fn malformed() -> Refusal {
    Refusal::fatal("08P01", "malformed authentication message")
}
