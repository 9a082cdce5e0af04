//! Whatever bytes arrive, the frame reader and both decoders give a message or an error: no panic, and
//! no memory beyond what the frame itself justifies. Replays the corpus, and changes it at random.

#![allow(clippy::unwrap_used)] // helpers of tests are not seen as tests

mod corpus;
mod memory;
mod mutate;
mod trial;
