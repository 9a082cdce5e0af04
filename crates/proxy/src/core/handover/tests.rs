//! Both processes in a model, with a successor that ends at any step, and clients that leave when they can.

use std::collections::{BTreeMap, VecDeque};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

const CLIENTS: u32 = 6;
const SEEDS: u64 = 3000;

/// Where a client is, by what each process believes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Here {
    Served,
    /// It waits to be understood, or for the decision.
    Away,
    Forgotten,
}

/// What is on its way to the successor.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Message {
    Listener,
    Client(ClientId),
    Go,
}

struct World {
    rng: SmallRng,
    giving: Giving,
    accepts: bool,
    asked: bool,
    here: BTreeMap<ClientId, Here>,
    to_successor: VecDeque<Message>,
    to_predecessor: VecDeque<Heard>,
    /// True if the successor ends at some step.
    is_mortal: bool,
    /// What the successor does.
    is_alive: bool,
    there_accepts: bool,
    may_serve: bool,
    held: BTreeSet<ClientId>,
    served_there: BTreeSet<ClientId>,
    /// The successor ended before it served anybody who was handed over.
    died_undecided: bool,
}

impl World {
    fn new(seed: u64, flaw: Option<Flaw>) -> World {
        let giving = Giving {
            flaw,
            ..Giving::default()
        };
        let mut rng = SmallRng::seed_from_u64(seed);
        World {
            is_mortal: rng.random_bool(0.5),
            rng,
            giving,
            accepts: true,
            asked: false,
            here: (0..CLIENTS).map(|client| (client, Here::Served)).collect(),
            to_successor: VecDeque::new(),
            to_predecessor: VecDeque::from([Heard::Accepts]),
            is_alive: true,
            there_accepts: false,
            may_serve: false,
            held: BTreeSet::new(),
            served_there: BTreeSet::new(),
            died_undecided: false,
        }
    }

    fn tell(&mut self, heard: &Heard) {
        for act in self.giving.hear(heard) {
            match act {
                Do::SendListener => self.to_successor.push_back(Message::Listener),
                Do::StopAccepting => self.accepts = false,
                Do::AcceptAgain => self.accepts = true,
                Do::AskClients => self.asked = true,
                Do::KeepClients => self.asked = false,
                Do::Send(client) => self.to_successor.push_back(Message::Client(client)),
                Do::TakeBack(client) => {
                    self.here.insert(client, Here::Served);
                }
                Do::Forget(client) => {
                    self.here.insert(client, Here::Forgotten);
                }
                Do::Go => self.to_successor.push_back(Message::Go),
            }
        }
    }

    /// The successor takes its next message.
    fn successor(&mut self) {
        let Some(message) = self.to_successor.pop_front().filter(|_| self.is_alive) else {
            return;
        };
        match message {
            Message::Listener => {
                self.to_predecessor.push_back(Heard::Has);
            }
            Message::Client(client) if self.rng.random_bool(0.1) => {
                self.to_predecessor.push_back(Heard::Declined(client));
            }
            Message::Client(client) => {
                let set = match self.may_serve {
                    true => &mut self.served_there,
                    false => &mut self.held,
                };
                set.insert(client);
                self.to_predecessor.push_back(Heard::Understood(client));
            }
            Message::Go => {
                self.to_predecessor.push_back(Heard::Goes);
                self.there_accepts = true;
                self.may_serve = true;
                self.served_there.append(&mut self.held);
            }
        }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..40) {
            0 if self.is_alive && self.is_mortal => {
                self.is_alive = false;
                self.there_accepts = false;
                self.died_undecided = !self.may_serve;
                self.served_there.clear();
                self.held.clear();
                self.to_successor.clear();
                // What it said is heard, then its end.
                self.to_predecessor.push_back(Heard::Lost);
            }
            1..=12 => self.successor(),
            13..=25 => {
                if let Some(heard) = self.to_predecessor.pop_front() {
                    self.tell(&heard);
                }
            }
            26 if self.asked => {
                self.tell(&Heard::AllAsked);
            }
            27 if self.giving.flaw == Some(Flaw::TakesBackWhatWasUnderstood) => {
                let away = self.here.values_mut().find(|here| **here == Here::Away);
                if let Some(here) = away {
                    *here = Here::Served;
                }
            }
            _ => {
                let client = self.rng.random_range(0..CLIENTS);
                if self.asked && self.here[&client] == Here::Served {
                    self.here.insert(client, Here::Away);
                    self.tell(&Heard::Leaves(client));
                }
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        if !self.accepts && !self.there_accepts && self.to_predecessor.is_empty() {
            return Err("nobody accepts connections".to_owned());
        }
        for (client, here) in &self.here {
            if *here == Here::Served && self.served_there.contains(client) {
                return Err(format!("client {client} is served twice"));
            }
            let is_lost = *here == Here::Forgotten && !self.is_alive;
            if is_lost && self.died_undecided {
                return Err(format!(
                    "client {client} is lost with a successor that was not to serve"
                ));
            }
        }
        Ok(())
    }

    fn run(seed: u64, flaw: Option<Flaw>) -> Result<(bool, bool), String> {
        let mut world = World::new(seed, flaw);
        for _ in 0..600 {
            world.step();
            world.check()?;
        }
        // Everybody is told how it ended.
        while let Some(heard) = world.to_predecessor.pop_front() {
            world.tell(&heard);
        }
        if world.is_alive && world.giving.is_decided() && world.accepts {
            return Err("both accept connections for good".to_owned());
        }
        if !world.is_alive
            && (!world.accepts || world.here.values().any(|here| *here == Here::Away))
        {
            return Err("somebody is left waiting for a successor that is gone".to_owned());
        }
        Ok((world.giving.is_decided(), world.died_undecided))
    }
}

// hazard: PROXY-25
#[test]
fn everybody_is_served_by_one_process_whenever_the_successor_ends() {
    let (mut decided, mut died) = (0, 0);
    for seed in 0..SEEDS {
        let (is_decided, died_undecided) =
            World::run(seed, None).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        decided += u32::from(is_decided);
        died += u32::from(died_undecided);
    }
    assert!(
        decided > 100 && died > 100,
        "{decided} decided, {died} ended before"
    );
}

#[test]
fn every_flaw_is_caught() {
    for flaw in [
        Flaw::StopsTooEarly,
        Flaw::ForgetsTooEarly,
        Flaw::TakesBackWhatWasUnderstood,
    ] {
        let caught = (0..SEEDS).any(|seed| World::run(seed, Some(flaw)).is_err());
        assert!(caught, "{flaw:?}");
    }
}

#[test]
fn nonsense_ends_the_handover_and_nothing_else() {
    let mut giving = Giving::default();
    assert_eq!(giving.hear(&Heard::Has), []);
    assert!(giving.is_over());
    assert_eq!(giving.hear(&Heard::Leaves(1)), [Do::TakeBack(1)]);
}
