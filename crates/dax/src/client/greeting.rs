//! The greeting of a client and a zone: the client introduces itself, and the zone proves that it knows the key.
//!
//! Invariant: until the zone has proved that it knows the key, a client with a key uses no answer of the zone, and sends it
//! nothing but names.

use super::ClientConfig;
use super::core::Arrival;
use super::stream::{Stream, within};
use crate::credentials::{self, Nonce, Side, VolumeKey};
use crate::error::{Error, ErrorKind, Result};
use crate::forms::Forms;
use crate::ids::{StoreId, VolumeName};
use crate::membership::Membership;
use crate::storage::VolumeSettings;
use crate::tls::Tls;
use crate::wire::{PROTOCOL, Request, Response};

/// The client as it introduces itself to every zone.
#[derive(Debug, Clone)]
pub(super) struct Introduction {
    pub volume: VolumeName,
    /// For the zones' logs.
    pub client: String,
    /// Zone of this client, for emulated networks ([`super::ClientConfig::zone`]).
    pub zone: Option<String>,
    pub key: Option<VolumeKey>,
    pub tls: Option<Tls>,
}

/// A replica that answered the greeting.
pub(super) struct Greeted {
    pub stream: Stream,
    pub settings: VolumeSettings,
    pub arrival: Arrival,
}

/// What a replica answers to a greeting.
pub(super) enum Greeting {
    Known(Box<Greeted>),
    /// The replica does not know the volume. It may name its store.
    Unknown(Option<StoreId>),
}

impl Introduction {
    /// Introduction with the names and keys of `config`.
    pub fn new(config: &ClientConfig) -> Introduction {
        Introduction {
            volume: config.volume.clone(),
            client: config.client_name.clone(),
            zone: config.zone.clone(),
            key: config.key.clone(),
            tls: config.tls.clone(),
        }
    }

    /// Connects and says hello.
    pub async fn greet(&self, address: &str) -> Result<Greeting> {
        let greeting = async {
            let mut stream = Stream::open(address, self.tls.as_ref()).await?;
            match self.hello(&mut stream, address).await {
                Ok(Response::Welcome {
                    protocol,
                    settings,
                    grant,
                    rebuilding,
                    store,
                    membership,
                    standing,
                }) => Ok(Greeting::Known(Box::new(Greeted {
                    stream,
                    settings,
                    arrival: Arrival {
                        grant,
                        rebuilding,
                        store,
                        membership,
                        reads: Forms::of_protocol(protocol),
                        standing,
                    },
                }))),
                Ok(Response::NoVolume { store }) => Ok(Greeting::Unknown(Some(store))),
                Ok(other) => Err(unexpected(address, &other)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(Greeting::Unknown(None)),
                Err(error) => Err(error),
            }
        };
        within(address, greeting).await
    }

    /// Connects, says hello and has the volume made with these members, to be rebuilt if the replica has lost it.
    pub async fn create(
        &self,
        address: &str,
        settings: &VolumeSettings,
        rebuild: bool,
        membership: Option<&Membership>,
    ) -> Result<()> {
        let attempt = async {
            let mut stream = Stream::open(address, self.tls.as_ref()).await?;
            match self.hello(&mut stream, address).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                // If it exists, the zone compares the settings.
                Ok(_) => {}
            }
            let create = Request::CreateVolume {
                volume: self.volume.clone(),
                settings: settings.clone(),
                rebuild,
                membership: membership.cloned().map(Box::new),
            };
            match stream.ask(&create).await?.into_result()? {
                Response::Done => Ok(()),
                other => Err(unexpected(address, &other)),
            }
        };
        within(address, attempt).await
    }

    /// Says hello. If the zone asks for a proof of the key, verifies the zone's own proof first, and then answers.
    async fn hello(&self, stream: &mut Stream, address: &str) -> Result<Response> {
        let nonce = Nonce::random()?;
        let hello = Request::Hello {
            protocol: PROTOCOL,
            volume: self.volume.clone(),
            client: self.client.clone(),
            zone: self.zone.clone(),
            nonce,
        };
        let answer = stream.ask(&hello).await?;
        let challenge = match answer {
            Response::Challenge { nonce, proof } => Some((nonce, proof)),
            _ => None,
        };
        let (key, (zone, proof)) = match (&self.key, challenge) {
            (None, None) => return answer.into_result(),
            (None, Some(_)) => return Err(self.no_key(address)),
            (Some(_), None) => return Err(self.unproven(address, answer)),
            (Some(key), Some(challenge)) => (key, challenge),
        };
        let greeting = credentials::Greeting {
            volume: self.volume.clone(),
            client: nonce,
            zone,
        };
        if !key.is_proven(Side::Zone, &greeting, &proof) {
            return Err(self.other_key(address));
        }
        let proof = key.proof(Side::Client, &greeting);
        let answer = stream.ask(&Request::Proof { proof }).await?;
        answer.into_result()
    }

    /// The error of a replica that does not know the volume.
    pub fn no_volume(&self, address: &str) -> Error {
        let message = format!("no volume {} at {address}", self.volume);
        Error::new(ErrorKind::NotFound, message)
    }

    fn no_key(&self, address: &str) -> Error {
        denied(format!(
            "{address} asks for the key of volume {}, and none is configured",
            self.volume
        ))
    }

    fn other_key(&self, address: &str) -> Error {
        denied(format!(
            "{address} has another key for volume {}: this key is not made from that zone's secret \
             for this volume, or something only pretends to be the zone",
            self.volume
        ))
    }

    fn unproven(&self, address: &str, answer: Response) -> Error {
        denied(match answer {
            Response::Error { message, .. } => {
                format!("{address} does not prove to be a zone, and says: {message}")
            }
            _ => format!(
                "{address} has no secret, so it may only pretend to be the zone: start the zone with \
                 --secret-file, or configure no key"
            ),
        })
    }
}

fn denied(message: String) -> Error {
    Error::new(ErrorKind::Denied, message)
}

pub(super) fn unexpected(address: &str, reply: &Response) -> Error {
    Error::new(
        ErrorKind::Protocol,
        format!("{address} does not answer as a replica: {reply:?}"),
    )
}
