//! The beginning of a connection, before it has a volume: who is there, and for which volume.
//!
//! ```text
//!  stranger ──Hello──▶ challenged ──Proof──▶ admitted ─┬─ volume exists: bound to it
//!     └── zone without a secret: Hello ────────▲ │     └─ CreateVolume of it, Hello again
//!                                              └─┘
//! ```
//!
//! Invariant: until a client has proved to know the key of the volume that it names, it learns nothing
//! of what is stored, not even whether the volume exists, and costs no more than [`MAX_GREETING_BYTES`]
//! of a frame, one of a few places for strangers, and those only for a while.

use std::io::{self, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use dax::credentials::{Greeting, Nonce, Secret, Side};
use dax::error::{Error, ErrorKind};
use dax::ids::VolumeName;
use dax::wire::{MAX_GREETING_BYTES, MAX_REQUEST_BYTES, Request, Response, read_frame};

use crate::shared::Shared;
use crate::stream::Stream;

/// How far a connection without a volume has got.
#[derive(Debug)]
enum Stage {
    Stranger,
    Challenged(Greeting, About),
    Admitted(VolumeName),
}

/// What a client says about itself.
#[derive(Debug, Clone)]
pub(crate) struct About {
    pub protocol: u16,
    pub client: String,
}

/// What to do about a request of a greeting.
#[derive(Debug)]
pub(crate) enum Step {
    /// Answer, and wait for the proof.
    Answer(Response),
    /// Give it its volume, or say that there is none.
    Bind(VolumeName, About),
    /// Make the volume.
    Create(Request),
}

/// A greeting under way.
pub(crate) struct Door {
    stage: Stage,
    /// Taken until somebody is admitted.
    place: Option<Place>,
    until: Instant,
}

impl Door {
    /// For a stranger who has a place.
    pub fn new(place: Place) -> Door {
        Door {
            stage: Stage::Stranger,
            until: Instant::now() + place.0.config.greeting_timeout,
            place: Some(place),
        }
    }

    /// Takes a request of a connection that has no volume. An error ends the connection.
    pub fn hear(&mut self, secret: Option<&Secret>, request: Request) -> Result<Step, Error> {
        match (&self.stage, request) {
            (
                Stage::Stranger | Stage::Admitted(_),
                Request::Hello {
                    protocol,
                    volume,
                    client,
                    nonce,
                    ..
                },
            ) => {
                let about = About { protocol, client };
                let Some(secret) = secret else {
                    self.admit(&volume);
                    return Ok(Step::Bind(volume, about));
                };
                let zone = Nonce::random()?;
                let greeting = Greeting {
                    volume,
                    client: nonce,
                    zone,
                };
                let proof = secret.key(&greeting.volume).proof(Side::Zone, &greeting);
                self.stage = Stage::Challenged(greeting, about);
                Ok(Step::Answer(Response::Challenge { nonce: zone, proof }))
            }
            (Stage::Challenged(greeting, about), Request::Proof { proof }) => {
                let key = secret.map(|secret| secret.key(&greeting.volume));
                if !key.is_some_and(|key| key.is_proven(Side::Client, greeting, &proof)) {
                    let text = format!("this is not the key of volume {}", greeting.volume);
                    return Err(Error::new(ErrorKind::Denied, text));
                }
                let (volume, about) = (greeting.volume.clone(), about.clone());
                self.admit(&volume);
                Ok(Step::Bind(volume, about))
            }
            (Stage::Admitted(name), create @ Request::CreateVolume { .. }) if matches!(&create, Request::CreateVolume { volume, .. } if volume == name) => {
                Ok(Step::Create(create))
            }
            (Stage::Challenged(..), _) => {
                let text = "answer the challenge first";
                Err(Error::new(ErrorKind::Protocol, text))
            }
            _ => {
                let text = "say hello first, to name a volume";
                Err(Error::new(ErrorKind::Protocol, text))
            }
        }
    }

    fn admit(&mut self, volume: &VolumeName) {
        self.stage = Stage::Admitted(volume.clone());
        self.place = None;
    }

    /// The next frame; of a stranger a short one, and soon.
    pub fn next_frame(&self, input: &mut BufReader<Stream>) -> io::Result<Option<Bytes>> {
        if self.place.is_none() {
            return read_frame(input, MAX_REQUEST_BYTES);
        }
        let mut input = Until {
            input,
            until: self.until,
        };
        let frame = read_frame(&mut input, MAX_GREETING_BYTES)?;
        input.input.get_ref().set_read_timeout(None)?;
        Ok(frame)
    }
}

/// Reads until a moment, however the bytes trickle.
struct Until<'a> {
    input: &'a mut BufReader<Stream>,
    until: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.input.buffer().is_empty() {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.input.get_ref().set_read_timeout(Some(left))?;
        }
        self.input.read(buf)
    }
}

/// One of the places for connections that are not admitted yet.
pub(crate) struct Place(Arc<Shared>);

impl Place {
    /// A place, if one is free.
    pub fn take(shared: &Arc<Shared>) -> Option<Place> {
        let before = shared.strangers.fetch_add(1, Ordering::Relaxed);
        let place = Place(shared.clone());
        (before < shared.config.strangers_max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.strangers.fetch_sub(1, Ordering::Relaxed);
    }
}
