//! SCRAM-SHA-256 on both sides, without passwords.
//!
//! Owns what PostgreSQL keeps of a password ([`Verifier`]) and what a client reveals by proving that it knows
//! it ([`Keys`]): its client key, with which the proxy proves the same to a server. Invariant: keys are kept
//! only of a client whose proof was right. RFC 5802 names the steps.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Buf, BytesMut};
use hmac::{Hmac, KeyInit, Mac};
use postgres_protocol::message::frontend;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use crate::frame::{self, Refusal};

/// The mechanism without channel binding.
pub const MECHANISM: &str = "SCRAM-SHA-256";

/// The one that binds to the channel it goes over: the client proves in addition which certificate it was shown.
pub const BOUND_MECHANISM: &str = "SCRAM-SHA-256-PLUS";

/// What a client binds to, if it does: a hash of the certificate that it was shown (RFC 5929).
const BINDING: &str = "p=tls-server-end-point";

type Key = [u8; 32];

/// The mechanisms that a client may choose from, as `AuthenticationSASL` names them.
pub fn offer(can_bind: bool) -> Vec<u8> {
    let bound = [BOUND_MECHANISM.as_bytes(), b"\0"].concat();
    let plain = [MECHANISM.as_bytes(), b"\0\0"].concat();
    match can_bind {
        true => [bound, plain].concat(),
        false => plain,
    }
}

/// What a client says first (`SASLInitialResponse`): what its proof may be bound to, and the first message of the exchange.
///
/// # Errors
/// If it is invalid, or has chosen what was not offered.
pub fn read_initial<'a>(
    body: &'a [u8],
    endpoint: Option<&'a [u8]>,
) -> Result<(Channel<'a>, &'a str), ScramError> {
    let (mechanism, rest) = frame::name(body).ok_or(ScramError::Malformed)?;
    let first = rest
        .get(4..)
        .and_then(|text| std::str::from_utf8(text).ok());
    let channel = match (mechanism, endpoint) {
        (MECHANISM, None) => Channel::Unbound,
        (MECHANISM, Some(_)) => Channel::Declined,
        (BOUND_MECHANISM, Some(endpoint)) => Channel::Bound(endpoint),
        _ => return Err(ScramError::Malformed),
    };
    Ok((channel, first.ok_or(ScramError::Malformed)?))
}

/// A failed exchange.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// A message that is invalid.
    #[error("malformed SCRAM message")]
    Malformed,
    /// The client asks for channel binding that was not offered.
    #[error("this channel binding is not supported here")]
    ChannelBinding,
    /// The client was shown another certificate than ours.
    #[error("the client was shown another certificate")]
    WrongChannel,
    /// The client would have bound, had it known that it could: somebody took the offer away.
    #[error("the offer of channel binding did not reach the client")]
    Downgraded,
    /// The proof is wrong.
    #[error("password authentication failed")]
    WrongPassword,
    /// The server's signature is wrong: it does not know the password.
    #[error("the server could not prove that it knows the password")]
    WrongServer,
}

impl ScramError {
    /// What a client is told that was not believed.
    pub fn refusal(&self, user: &str) -> Refusal {
        match self {
            ScramError::WrongPassword => Refusal::fatal(
                "28P01",
                format!("password authentication failed for user \"{user}\""),
            ),
            ScramError::WrongChannel => {
                Refusal::fatal("28000", "SCRAM channel binding check failed").detail(
                    "The client saw another certificate than the proxy's: there is a man in the middle.",
                )
            }
            ScramError::Downgraded => {
                Refusal::fatal("28000", "SCRAM channel binding negotiation error").detail(
                    "The client supports channel binding but was told that it is not offered.",
                )
            }
            error => Refusal::fatal("08P01", error.to_string()),
        }
    }
}

/// What PostgreSQL keeps of a password, in `pg_authid.rolpassword`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verifier {
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Key,
    server_key: Key,
}

/// With these a server is told that we know a password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    client_key: Key,
    server_key: Key,
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.client_key.zeroize();
        self.server_key.zeroize();
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

fn hmac(key: &[u8], message: &[u8]) -> Key {
    let mut mac: Hmac<Sha256> = Hmac::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

fn sha256(bytes: &[u8]) -> Key {
    Sha256::digest(bytes).into()
}

fn xor(one: &Key, other: &Key) -> Key {
    std::array::from_fn(|at| one[at] ^ other[at])
}

/// Compares without telling by the time where they differ.
fn is_equal(one: &Key, other: &Key) -> bool {
    let difference = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    difference == 0
}

fn decode_key(text: &str) -> Option<Key> {
    BASE64.decode(text).ok()?.try_into().ok()
}

impl Verifier {
    /// Reads `SCRAM-SHA-256$4096:salt$StoredKey:ServerKey`.
    pub fn parse(text: &str) -> Option<Verifier> {
        let mut parts = text.strip_prefix("SCRAM-SHA-256$")?.split(['$', ':']);
        let iterations = parts.next()?.parse().ok()?;
        let salt = BASE64.decode(parts.next()?).ok()?;
        let stored_key = decode_key(parts.next()?)?;
        let server_key = decode_key(parts.next()?)?;
        parts.next().is_none().then_some(Verifier {
            iterations,
            salt,
            stored_key,
            server_key,
        })
    }

    /// Nobody's, the same each time for a name, so that nobody can find out who has none.
    pub fn of_nobody(secret: &[u8], name: &str) -> Verifier {
        let salt = hmac(secret, name.as_bytes());
        Verifier {
            iterations: 4096,
            salt: salt[..16].to_vec(),
            stored_key: hmac(secret, &salt),
            server_key: hmac(&salt, secret),
        }
    }
}

/// What a client's proof may be bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel<'a> {
    /// Nothing: the connection is not encrypted.
    Unbound,
    /// It could have been, and the client has chosen the mechanism without.
    Declined,
    /// To a channel that ends at the certificate with this hash.
    Bound(&'a [u8]),
}

/// The side that lets a client in.
#[derive(Debug)]
pub struct Doorkeeper {
    verifier: Verifier,
    binding: String,
    client_first_bare: String,
    server_first: String,
    nonce: String,
}

impl Doorkeeper {
    /// Answers a client's first message: the exchange, and the message to send.
    ///
    /// # Errors
    /// If it is invalid, or does not go with what was offered.
    pub fn begin(
        verifier: Verifier,
        channel: Channel<'_>,
        client_first: &str,
        own_nonce: &str,
    ) -> Result<(Doorkeeper, String), ScramError> {
        let mut parts = client_first.splitn(3, ',');
        let (Some(flag), Some(name), Some(bare)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(ScramError::Malformed);
        };
        let bound_to = match (flag, channel) {
            (BINDING, Channel::Bound(endpoint)) => endpoint,
            ("n", Channel::Unbound | Channel::Declined) | ("y", Channel::Unbound) => &[],
            ("y", Channel::Declined) => return Err(ScramError::Downgraded),
            (flag, _) if flag.starts_with("p=") => return Err(ScramError::ChannelBinding),
            _ => return Err(ScramError::Malformed),
        };
        let client_nonce = attribute(bare, 'r').ok_or(ScramError::Malformed)?;
        let nonce = format!("{client_nonce}{own_nonce}");
        let salt = BASE64.encode(&verifier.salt);
        let server_first = format!("r={nonce},s={salt},i={}", verifier.iterations);
        let doorkeeper = Doorkeeper {
            verifier,
            binding: BASE64.encode([format!("{flag},{name},").as_bytes(), bound_to].concat()),
            client_first_bare: bare.to_owned(),
            server_first: server_first.clone(),
            nonce,
        };
        Ok((doorkeeper, server_first))
    }

    /// Judges the client's last message: the keys that its proof reveals, and the message to send.
    ///
    /// # Errors
    /// If it is invalid or the proof is wrong.
    pub fn finish(self, client_final: &str) -> Result<(Keys, String), ScramError> {
        let (without_proof, proof) = client_final
            .rsplit_once(",p=")
            .ok_or(ScramError::Malformed)?;
        let binding = attribute(without_proof, 'c').ok_or(ScramError::Malformed)?;
        let nonce = attribute(without_proof, 'r').ok_or(ScramError::Malformed)?;
        if nonce != self.nonce {
            return Err(ScramError::Malformed);
        }
        if binding != self.binding {
            return Err(ScramError::WrongChannel);
        }
        let proof = decode_key(proof).ok_or(ScramError::Malformed)?;
        let message = auth_message(&self.client_first_bare, &self.server_first, without_proof);
        let signature = hmac(&self.verifier.stored_key, &message);
        let client_key = xor(&proof, &signature);
        if !is_equal(&sha256(&client_key), &self.verifier.stored_key) {
            return Err(ScramError::WrongPassword);
        }
        let server_signature = hmac(&self.verifier.server_key, &message);
        let keys = Keys {
            client_key,
            server_key: self.verifier.server_key,
        };
        Ok((keys, format!("v={}", BASE64.encode(server_signature))))
    }
}

/// The side that logs in to a server.
#[derive(Debug)]
pub struct Visitor {
    keys: Keys,
    first_bare: String,
    message: Vec<u8>,
}

impl Visitor {
    /// An exchange, and its first message.
    pub fn begin(keys: Keys, nonce: &str) -> (Visitor, String) {
        let first_bare = format!("n=,r={nonce}");
        let first = format!("n,,{first_bare}");
        let visitor = Visitor {
            keys,
            first_bare,
            message: Vec::new(),
        };
        (visitor, first)
    }

    /// Answers the server's first message.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn answer(&mut self, server_first: &str) -> Result<String, ScramError> {
        let nonce = attribute(server_first, 'r').ok_or(ScramError::Malformed)?;
        let own = attribute(&self.first_bare, 'r').ok_or(ScramError::Malformed)?;
        if !nonce.starts_with(own) || nonce.len() == own.len() {
            return Err(ScramError::Malformed);
        }
        let without_proof = format!("c={},r={nonce}", BASE64.encode("n,,"));
        self.message = auth_message(&self.first_bare, server_first, &without_proof);
        let signature = hmac(&sha256(&self.keys.client_key), &self.message);
        let proof = xor(&self.keys.client_key, &signature);
        Ok(format!("{without_proof},p={}", BASE64.encode(proof)))
    }

    /// Judges the server's last message.
    ///
    /// # Errors
    /// If the server does not know the password either.
    pub fn finish(self, server_final: &str) -> Result<(), ScramError> {
        let signature = attribute(server_final, 'v').and_then(decode_key);
        let expected = hmac(&self.keys.server_key, &self.message);
        match signature {
            Some(signature) if is_equal(&signature, &expected) => Ok(()),
            _ => Err(ScramError::WrongServer),
        }
    }
}

/// Answers what a server asks before it lets somebody in.
#[derive(Debug, Default)]
pub struct Prover {
    keys: Option<Keys>,
    visitor: Option<Visitor>,
}

/// Why a server cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum Unproved {
    /// It asks for a proof, and there is none.
    #[error("the server asks for a password, and there is no proof of it")]
    NoKeys,
    /// It asks for something that cannot be given in somebody's place.
    #[error("the server asks for authentication method {0}")]
    Method(i32),
    /// The exchange has failed.
    #[error(transparent)]
    Scram(#[from] ScramError),
    /// The system has no randomness.
    #[error(transparent)]
    Random(#[from] getrandom::Error),
}

impl Prover {
    /// With these, if there are any.
    pub fn new(keys: Option<Keys>) -> Prover {
        Prover {
            keys,
            visitor: None,
        }
    }

    /// Answers the body of an authentication request, in `out` if something is to be said; whether the server has let us in.
    ///
    /// # Errors
    /// If it cannot be answered.
    pub fn answer(&mut self, mut body: &[u8], out: &mut BytesMut) -> Result<bool, Unproved> {
        if body.len() < 4 {
            return Err(ScramError::Malformed.into());
        }
        let too_long = |_| ScramError::Malformed;
        match body.get_i32() {
            0 => return Ok(true),
            10 => {
                let keys = self.keys.clone().ok_or(Unproved::NoKeys)?;
                let (begun, first) = Visitor::begin(keys, &nonce()?);
                self.visitor = Some(begun);
                frontend::sasl_initial_response(MECHANISM, first.as_bytes(), out)
                    .map_err(too_long)?;
            }
            11 => {
                let text = String::from_utf8_lossy(body);
                let visitor = self.visitor.as_mut().ok_or(ScramError::Malformed)?;
                let answer = visitor.answer(&text)?;
                frontend::sasl_response(answer.as_bytes(), out).map_err(too_long)?;
            }
            12 => {
                let text = String::from_utf8_lossy(body);
                let visitor = self.visitor.take().ok_or(ScramError::Malformed)?;
                visitor.finish(&text)?;
            }
            method => return Err(Unproved::Method(method)),
        }
        Ok(false)
    }
}

fn auth_message(client_first_bare: &str, server_first: &str, client_final: &str) -> Vec<u8> {
    format!("{client_first_bare},{server_first},{client_final}").into_bytes()
}

/// The value of an attribute like `r=value`.
fn attribute(message: &str, name: char) -> Option<&str> {
    message
        .split(',')
        .find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

/// A nonce for one exchange, of printable characters.
pub fn nonce() -> Result<String, getrandom::Error> {
    let mut random = [0; 18];
    getrandom::fill(&mut random)?;
    Ok(BASE64.encode(random))
}

#[cfg(test)]
mod tests {
    use super::*;
    use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};
    use postgres_protocol::password::scram_sha_256;

    fn verifier(password: &str) -> Verifier {
        Verifier::parse(&scram_sha_256(password.as_bytes())).expect("a verifier")
    }

    /// Lets a client of another library in.
    fn let_in(verifier: Verifier, password: &str) -> Result<Keys, ScramError> {
        let binding = ChannelBinding::unsupported();
        let_in_bound(verifier, password, binding, Channel::Unbound)
    }

    fn let_in_bound(
        verifier: Verifier,
        password: &str,
        binding: ChannelBinding,
        channel: Channel<'_>,
    ) -> Result<Keys, ScramError> {
        let mut client = ScramSha256::new(password.as_bytes(), binding);
        let first = String::from_utf8(client.message().to_vec()).expect("text");
        let (doorkeeper, answer) = Doorkeeper::begin(verifier, channel, &first, "own")?;
        client.update(answer.as_bytes()).expect("it goes on");
        let last = String::from_utf8(client.message().to_vec()).expect("text");
        let (keys, answer) = doorkeeper.finish(&last)?;
        client.finish(answer.as_bytes()).expect("it believes us");
        Ok(keys)
    }

    #[test]
    fn a_client_is_let_in_and_its_keys_open_the_server() {
        let verifier = verifier("secret");
        let keys = let_in(verifier.clone(), "secret").expect("the right password");
        let (mut visitor, first) = Visitor::begin(keys, "nonce");
        let begun = Doorkeeper::begin(verifier, Channel::Unbound, &first, "own");
        let (doorkeeper, answer) = begun.expect("begins");
        let last = visitor.answer(&answer).expect("answers");
        let (_, answer) = doorkeeper.finish(&last).expect("the proof is right");
        visitor.finish(&answer).expect("the signature is right");
    }

    #[test]
    fn a_wrong_password_is_refused() {
        let refused = let_in(verifier("secret"), "guess");
        assert_eq!(refused.err(), Some(ScramError::WrongPassword));
        let nobody = let_in(Verifier::of_nobody(b"x", "name"), "guess");
        assert_eq!(nobody.err(), Some(ScramError::WrongPassword));
    }

    #[test]
    fn nonsense_is_refused() {
        for first in ["", "n", "n,,", "x,,r=a", "n,,n=a"] {
            let begun = Doorkeeper::begin(verifier("a"), Channel::Unbound, first, "own");
            assert_eq!(begun.err(), Some(ScramError::Malformed), "{first}");
        }
    }

    #[test]
    fn a_client_is_let_in_over_the_channel_that_it_sees() {
        let bound_to = |seen: &[u8], ours: &[u8]| {
            let binding = ChannelBinding::tls_server_end_point(seen.to_vec());
            let_in_bound(verifier("secret"), "secret", binding, Channel::Bound(ours)).err()
        };
        assert_eq!(bound_to(b"certificate", b"certificate"), None);
        let wrong = Some(ScramError::WrongChannel);
        assert_eq!(bound_to(b"another's", b"certificate"), wrong);
    }

    #[test]
    fn channel_binding_of_a_client_matches_the_offer() {
        let begin = |channel, first: &str| {
            let begun = Doorkeeper::begin(verifier("a"), channel, first, "own");
            begun.err()
        };
        let other = Some(ScramError::ChannelBinding);
        assert_eq!(
            begin(Channel::Unbound, "p=tls-server-end-point,,r=a"),
            other
        );
        assert_eq!(
            begin(Channel::Declined, "p=tls-server-end-point,,r=a"),
            other
        );
        assert_eq!(begin(Channel::Bound(b"x"), "p=tls-unique,,r=a"), other);
        assert_eq!(
            begin(Channel::Bound(b"x"), "n,,r=a"),
            Some(ScramError::Malformed)
        );
        assert_eq!(begin(Channel::Declined, "n,,r=a"), None);
        assert_eq!(begin(Channel::Unbound, "y,,r=a"), None);
        // It thinks that nothing was offered.
        assert_eq!(
            begin(Channel::Declined, "y,,r=a"),
            Some(ScramError::Downgraded)
        );
    }

    #[test]
    fn a_server_that_does_not_know_the_password_is_found_out() {
        let keys = let_in(verifier("secret"), "secret").expect("the right password");
        let (mut visitor, _) = Visitor::begin(keys, "nonce");
        visitor
            .answer("r=nonceown,s=c2FsdA==,i=4096")
            .expect("answers");
        let signature = format!("v={}", BASE64.encode([0; 32]));
        assert_eq!(visitor.finish(&signature), Err(ScramError::WrongServer));
    }

    #[test]
    fn other_verifiers_are_not_understood() {
        assert_eq!(Verifier::parse("md5abc"), None);
        assert_eq!(
            Verifier::parse("SCRAM-SHA-256$4096:c2FsdA==$AAAA:AAAA"),
            None
        );
    }
}
