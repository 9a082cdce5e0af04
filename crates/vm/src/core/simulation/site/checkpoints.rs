//! Checkpoints of a host's machine: made, sent, and applied on the other host.

use rand::Rng;

use super::super::World;
use super::{Flaw, Follower, Guard, Making, Number, Packet, Role, UNDER_WAY};

impl World {
    pub fn make_checkpoint(&mut self, at: usize) {
        let drops = self.flaw == Some(Flaw::PageDropped) && self.rng.random_bool(0.2);
        let is_late = self.flaw == Some(Flaw::HeldLate);
        let site = &mut self.sites[at];
        if self.now_ms < site.stuck_until_ms {
            return;
        }
        if site.making.is_some() {
            return self.send_checkpoint(at);
        }
        let (Some(guest), Some(protection)) = (&mut site.guest, &mut site.protection) else {
            return;
        };
        if protection.made >= protection.confirmed + UNDER_WAY || site.stands_still {
            return;
        }
        let role = site.guard.as_ref().map(Guard::role);
        let is_current = matches!(role, Some(Role::Running(Follower::Current { .. })));
        if !is_late || is_current {
            site.gate.hold();
        }
        let is_first = protection.made == 0;
        protection.made += 1;
        let number = Number(protection.made);
        site.gate.made(number);
        let mut dirty = std::mem::take(&mut site.dirty);
        if is_first {
            dirty = guest.pages.keys().copied().collect();
        } else if drops {
            dirty.pop_last();
        }
        let pages = guest.pages.iter().filter(|(page, _)| dirty.contains(page));
        let pages = pages
            .map(|(page, contents)| (*page, contents.clone()))
            .collect();
        let session = protection.session.clone();
        let blocks = is_first.then(|| guest.blocks.clone());
        let (processor, whole) = (guest.processor(), guest.clone());
        let is_last = matches!(
            role,
            Some(Role::Running(Follower::Current {
                last: Some(None),
                ..
            }))
        );
        site.stands_still = is_last;
        self.coverage.one("checkpoints");
        self.made.insert(World::key(&session, number), whole);
        site.making = Some(Making {
            session,
            number,
            is_last,
            pages,
            processor,
            blocks,
        });
        if self.rng.random_bool(0.7) {
            self.send_checkpoint(at);
        }
    }

    /// The guard hears of a checkpoint, and so does the standby.
    fn send_checkpoint(&mut self, at: usize) {
        let Some(making) = self.sites[at].making.take() else {
            return;
        };
        let Making {
            session, number, ..
        } = making;
        self.with(at, |guard, out| guard.made(number, making.is_last, out));
        self.send(at, Packet::Pages(session.clone(), number, making.pages));
        let end = Packet::End(session, number, making.processor, making.blocks);
        self.send(at, end);
    }

    /// A host hears what came first.
    pub fn deliver(&mut self, at: usize) {
        if !self.sites[at].is_alive() {
            return;
        }
        let Some(packet) = self.sites[at].inbox.pop_front() else {
            return;
        };
        let unbuffered = self.flaw == Some(Flaw::DiskUnbuffered);
        let site = &mut self.sites[at];
        match packet {
            Packet::Message(message) => {
                self.with(at, |guard, out| guard.message(message, out));
            }
            Packet::Block(session, number, block, contents) => {
                if site.follows.as_ref() == Some(&session) {
                    if unbuffered {
                        site.disk.insert(block, contents.clone());
                    }
                    let arriving = site.arriving.entry(number).or_default();
                    arriving.blocks.push((block, contents));
                }
            }
            Packet::Pages(session, number, pages) => {
                if site.follows.as_ref() == Some(&session) {
                    site.arriving.entry(number).or_default().pages = pages;
                }
                self.with(at, |guard, out| {
                    guard.alive(&session);
                    guard.received(&session, number, out);
                });
            }
            Packet::End(session, number, processor, blocks) => {
                if site.follows.as_ref() == Some(&session) {
                    site.arriving.entry(number).or_default().end = Some((processor, blocks));
                }
            }
        }
    }

    /// A whole checkpoint is applied, in two steps.
    pub fn apply(&mut self, at: usize) {
        let site = &mut self.sites[at];
        if site.is_complete {
            return;
        }
        let (Some(session), Some(guest)) = (site.follows.clone(), &mut site.guest) else {
            return;
        };
        let Some(mut first) = site
            .arriving
            .first_entry()
            .filter(|e| e.get().end.is_some())
        else {
            return;
        };
        let number = *first.key();
        let arriving = first.get_mut();
        if !arriving.are_pages_applied {
            arriving.are_pages_applied = true;
            guest.pages.extend(std::mem::take(&mut arriving.pages));
            return;
        }
        let arriving = first.remove();
        if let Some((processor, blocks)) = arriving.end {
            guest.adopt(&processor);
            if let Some(blocks) = blocks {
                site.disk = blocks;
            }
        }
        site.disk.extend(arriving.blocks);
        self.with(at, |guard, out| guard.applied(&session, number, out));
    }
}
