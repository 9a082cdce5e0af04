//! What goes wrong while a schedule storms.

use std::time::Duration;

use dax::simulation::history::ClientId;
use rand::Rng;

use super::life::{Doing, Life};
use super::world::{World, ms};
use crate::config::Fencing;

/// What one schedule has most of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weather {
    /// A bit of everything.
    Mixed,
    /// Owners that are frozen in the middle of commits, until after a takeover.
    Zombies,
    /// And their successors in the middle of the takeover.
    Relays,
    /// Hints that come much later, if at all before the storm is over; deletes that are forgotten early.
    Forgetful,
}

impl Weather {
    pub fn any(world: &mut World) -> Weather {
        match world.rng.random_range(0..4) {
            0 => Weather::Mixed,
            1 => Weather::Zombies,
            2 => Weather::Relays,
            _ => Weather::Forgetful,
        }
    }

    /// How long faults happen. Three owners, one after the other, take longer than two.
    pub fn storm(self) -> Duration {
        match self {
            Weather::Relays => ms(20_000),
            _ => ms(14_000),
        }
    }

    /// How likely an owner is frozen after one step of one of its tasks, in the middle of something. `relay`: its
    /// predecessor is, in the middle of commits, and nobody else. An owner that looks at the epoch row is better
    /// frozen while it does, and so rarely before.
    fn freezes(self, doing: Doing, relay: bool, fencing: Fencing) -> f64 {
        match (self, doing) {
            (Weather::Zombies | Weather::Relays, Doing::Gate) => 0.9,
            (Weather::Zombies | Weather::Relays, Doing::Commits) if fencing == Fencing::Verify => {
                0.005
            }
            (Weather::Zombies | Weather::Relays, Doing::Commits) => 0.1,
            (Weather::Relays, Doing::Promotion) if relay => 0.3,
            (Weather::Relays, Doing::Takeover) if relay => 0.001,
            (Weather::Relays, Doing::Promotion) => 0.002,
            (Weather::Relays, Doing::Takeover) => 0.0002,
            (Weather::Zombies, Doing::Promotion) => 0.005,
            _ => 0.0,
        }
    }
}

/// One fault, or the end of one. Who is killed, if anybody is.
pub(super) fn strike(world: &mut World, nodes: &[ClientId], weather: Weather) -> Option<ClientId> {
    let count = world.cluster.setup().nodes;
    let server = world.rng.random_range(0..count);
    let victim = nodes[world.rng.random_range(0..nodes.len())];
    let freezes = matches!(weather, Weather::Zombies | Weather::Relays);
    let spared = freezes && world.rng.random_bool(0.8);
    let pause = ms(world.rng.random_range(100..6_000));
    match world.rng.random_range(0..100) {
        0..12 if spared => {}
        0..12 => crash(world, server),
        12..40 => revive(world, server),
        40..70 if weather == Weather::Forgetful => purge_all(world),
        40..70 => world.send_hint(server),
        70..76 if spared => {}
        70..76 => {
            world.coverage.one("coordinators paused");
            world.pause_node(server, pause);
        }
        76..82 => {
            world.cluster.purge(server);
            world.coverage.one("replicas that forgot tombstones");
        }
        82..92 if spared => {}
        82..90 => {
            world.coverage.one("clients paused");
            world.pause_client(victim, pause);
        }
        // Only who goes on after a freeze shows what it does then.
        90..92 if world.lives[victim].is_frozen() => {}
        90..92 => {
            if world.lives[victim].epoch.is_some() {
                world.coverage.one("owners killed");
            }
            return Some(victim);
        }
        _ => world.cluster.sync_log(server),
    }
    None
}

/// What still comes when nothing goes wrong any more.
pub(super) fn drizzle(world: &mut World) {
    for server in 0..world.cluster.setup().nodes {
        world.send_hint(server);
    }
    if world.rng.random_bool(0.05) {
        purge_all(world);
    }
}

/// All replicas forget the tombstones that they have.
fn purge_all(world: &mut World) {
    (0..world.cluster.setup().nodes).for_each(|node| world.cluster.purge(node));
}

/// An owner that has just gone on stops in the middle of commits, or of its takeover, for longer than its lease.
/// Some of what it has sent leaves its machine only when it goes on.
pub(super) fn freeze(world: &mut World, nodes: &[ClientId], client: ClientId, weather: Weather) {
    let frozen = nodes.iter().map(|node| &world.lives[*node]);
    let frozen = frozen.filter(|life| life.is_frozen());
    let frozen: Vec<_> = frozen.filter_map(Life::doing).collect();
    let relay = !frozen.is_empty() && frozen.iter().all(|doing| *doing == Doing::Commits);
    let life = &world.lives[client];
    let Some(doing) = life.doing() else {
        return;
    };
    let likely = weather.freezes(doing, relay, world.fencing);
    if life.is_frozen() || !world.rng.random_bool(likely) {
        return;
    }
    if relay {
        world
            .coverage
            .one("owners frozen while their predecessor was");
    }
    world.coverage.one(match doing {
        Doing::Commits => "owners frozen in the middle of commits",
        Doing::Gate => "owners frozen at the gate",
        Doing::Takeover => "owners frozen in the middle of a takeover",
        Doing::Promotion => "owners frozen in the middle of a promotion",
    });
    let first = weather == Weather::Relays && doing.is_commits();
    // For so long that the successor is in the middle of its takeover.
    let least = if first { 6_000 } else { 3_500 };
    let length = ms(world.rng.random_range(least..9_000));
    world.pause_client(client, length);
    // What a successor chooses meanwhile, it chooses without what this one has written, or found.
    let (most, late) = match doing {
        // What it has written is done when it goes on, beside the answer to its look.
        Doing::Gate => (length, 0.9),
        Doing::Promotion => (2 * length, 0.9),
        _ if first => (2 * length, 0.9),
        _ => (2 * length, 0.5),
    };
    world.stall(most, late);
    if let (Doing::Promotion, Some(own)) = (doing, world.lives[client].epoch) {
        world.hurry(own, ms(1_500));
    }
    world.lives[client].freeze();
}

fn crash(world: &mut World, server: usize) {
    let count = world.cluster.setup().nodes;
    let down = (0..count).filter(|n| !world.cluster.is_up(*n)).count();
    // Rarely a majority at once.
    if world.cluster.is_up(server) && (down == 0 || world.rng.random_bool(0.1)) {
        world.coverage.one("servers crashed");
        world.cluster.crash(server);
    }
}

pub(super) fn revive(world: &mut World, server: usize) {
    if !world.cluster.is_up(server) {
        world.coverage.one("servers restarted");
        world.cluster.restart(server);
    }
}
