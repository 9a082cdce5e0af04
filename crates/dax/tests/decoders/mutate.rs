//! Frames changed at random, from a seed: bits, lengths, cuts, repetitions, splices of two frames.
//!
//! `FUZZ_SECONDS=600 cargo test -p dax --test decoders -- --nocapture mutations` goes on for so long, from
//! a seed of its own that it prints. A failure prints the bytes, which then belong into the corpus.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};

use super::corpus::files;
use super::trial::{self, Outcome};

/// Changed frames that are tried when no time is given.
const ROUNDS: u64 = 40_000;

/// Lengths and counts that have been wrong somewhere before.
const LENGTHS: &[u32] = &[
    0,
    1,
    8,
    9,
    21,
    0x7f,
    0xff,
    4095,
    4096,
    4097,
    65_535,
    65_536,
    4 << 20,
    (4 << 20) + 1,
    1 << 24,
    1 << 28,
    0x0fff_ffff,
    0x1fff_ffff,
    i32::MAX as u32,
    1 << 31,
    u32::MAX - 1,
    u32::MAX,
];

/// Bytes that mean something somewhere.
const BYTES: &[u8] = &[0, 1, 2, 8, 9, 0x7f, 0x80, 0xc0, 0xf5, 0xfe, 0xff];

fn change(bytes: &mut Vec<u8>, seeds: &[(String, Vec<u8>)], rng: &mut SmallRng) {
    let at = rng.random_range(0..=bytes.len());
    let here = at.min(bytes.len().saturating_sub(1));
    match rng.random_range(0..10) {
        0 if !bytes.is_empty() => bytes[here] ^= 1 << rng.random_range(0..8),
        1 if !bytes.is_empty() => bytes[here] = *BYTES.choose(rng).unwrap(),
        2 => bytes.truncate(at),
        3 => {
            let mut more = vec![0; rng.random_range(1..40)];
            rng.fill_bytes(&mut more);
            bytes.splice(at..at, more);
        }
        4 => drop(bytes.drain(at..(at + rng.random_range(1..20)).min(bytes.len()))),
        5 => {
            let end = (at + rng.random_range(1..60)).min(bytes.len());
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        // A length or a count, wherever one may be.
        6 | 7 => {
            let len = match rng.random_range(0..3) {
                0 => (bytes.len() as u32)
                    .wrapping_add(rng.random_range(0..9))
                    .wrapping_sub(8),
                1 => rng.random_range(0..300),
                _ => *LENGTHS.choose(rng).unwrap(),
            };
            let end = (at + 4).min(bytes.len());
            bytes.splice(at..end, len.to_le_bytes());
        }
        _ => {
            let (_, other) = seeds.choose(rng).unwrap();
            let from = rng.random_range(0..=other.len());
            bytes.truncate(at);
            bytes.extend(&other[from..]);
        }
    }
}

/// Sets the length in front to what follows, so that the change reaches the decoders.
fn mend(bytes: &mut [u8]) {
    let len = (bytes.len() as u32).saturating_sub(4);
    if let Some(prefix) = bytes.first_chunk_mut() {
        *prefix = len.to_le_bytes();
    }
}

fn one(seeds: &[(String, Vec<u8>)], rng: &mut SmallRng) -> Outcome {
    let (name, seed) = seeds.choose(rng).unwrap();
    let mut bytes = seed.clone();
    for _ in 0..rng.random_range(1..5) {
        change(&mut bytes, seeds, rng);
    }
    if rng.random_ratio(3, 4) {
        mend(&mut bytes);
    }
    let result = catch_unwind(AssertUnwindSafe(|| trial::run(&bytes)));
    result.unwrap_or_else(|panic| {
        eprintln!("made from {name}: {bytes:02x?}");
        resume_unwind(panic)
    })
}

#[test]
fn mutations_never_panic_and_never_take_memory_that_no_byte_justifies() {
    let seeds = files("");
    let seconds = std::env::var("FUZZ_SECONDS").ok();
    let seconds = seconds.map(|s| Duration::from_secs(s.parse().unwrap()));
    let seed = match seconds {
        Some(_) => rand::rng().next_u64(),
        None => 1,
    };
    println!("seed {seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let start = Instant::now();
    let (mut rounds, mut all) = (0, Outcome::default());
    while seconds.map_or(rounds < ROUNDS, |limit| start.elapsed() < limit) {
        let outcome = one(&seeds, &mut rng);
        all.frames += outcome.frames;
        all.requests += outcome.requests;
        all.responses += outcome.responses;
        rounds += 1;
    }
    println!("{rounds} rounds: {all:?}");
    // The changes reach the decoders, and both verdicts are seen.
    let frames = all.frames as u64;
    assert!(frames > rounds / 2);
    for accepted in [all.requests, all.responses] {
        assert!(accepted as u64 > frames / 20 && (accepted as u64) < frames);
    }
}
