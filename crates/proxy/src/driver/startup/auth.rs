//! A client proves who it is.

use bytes::BytesMut;

use crate::config::Auth;
use protocol::frame::{self, Refusal};
use protocol::scram::{self, Doorkeeper, Keys, Verifier};

use super::{Turned, Visit};

/// A message of the authentication cannot be longer.
const AUTH_BYTES: usize = 64 << 10;

impl Visit {
    pub(super) async fn authenticate(&mut self, user: &str) -> Result<Option<Keys>, Turned> {
        if self.proxy.settings().config.auth == Auth::Trust {
            return Ok(None);
        }
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
        self.exchange(user, verifier).await.map(Some)
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

fn malformed() -> Refusal {
    Refusal::fatal("08P01", "malformed authentication message")
}
