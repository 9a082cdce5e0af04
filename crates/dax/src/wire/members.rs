//! Memberships, and how far stores were seen to be, to and from bytes.

use super::codec::{Decoder, Encoder, malformed};
use crate::error::Result;
use crate::ids::{StoreId, ZoneId};
use crate::membership::{Change, Member, Membership};
use crate::sightings::{Position, Run, Runs, Sighting, Sightings, Standing};

/// The fewest bytes that a member takes: its id, its zone, the length of its address.
const MIN_MEMBER_BYTES: usize = 8 + 1 + 4;
const SIGHTING_BYTES: usize = 8 + 8 + 8;
const RUN_BYTES: usize = 8 + 8;

impl Encoder<'_> {
    pub fn membership(&mut self, v: Option<&Membership>) {
        self.bool(v.is_some());
        let Some(v) = v else {
            return;
        };
        self.version(v.version);
        self.u64(v.changes);
        self.u8(v.sync_replicas);
        self.members(&v.members);
        self.members(&v.former);
        self.bool(v.change.is_some());
        if let Some(change) = &v.change {
            self.members(&change.joining);
            self.stores(&change.leaving);
            self.u8(change.sync_replicas);
            self.version(change.begun);
            self.bool(change.back);
            self.bool(change.joint);
        }
    }

    pub fn standing(&mut self, v: Option<&Standing>) {
        self.bool(v.is_some());
        if let Some(v) = v {
            let Position { runs, commit } = &v.position;
            self.u64(*commit);
            self.len(runs.iter().len());
            for Run { run, began } in runs.iter() {
                self.u64(*run);
                self.u64(*began);
            }
            self.sightings(&v.sightings);
        }
    }

    pub fn sightings(&mut self, v: &Sightings) {
        self.version(v.version);
        self.len(v.stores.len());
        for seen in &v.stores {
            self.store(Some(seen.store));
            self.u64(seen.run);
            self.u64(seen.commit);
        }
    }

    fn members(&mut self, members: &[Member]) {
        self.len(members.len());
        for member in members {
            self.store(Some(member.store));
            self.u8(member.zone.0);
            self.text(&member.address);
        }
    }

    fn stores(&mut self, stores: &[StoreId]) {
        self.len(stores.len());
        stores.iter().for_each(|store| self.store(Some(*store)));
    }
}

impl Decoder {
    pub fn membership(&mut self) -> Result<Option<Box<Membership>>> {
        if !self.bool()? {
            return Ok(None);
        }
        let mut membership = Membership {
            version: self.version()?,
            changes: self.u64()?,
            sync_replicas: self.u8()?,
            members: self.members()?,
            former: self.members()?,
            change: None,
        };
        if self.bool()? {
            membership.change = Some(Change {
                joining: self.members()?,
                leaving: self.stores()?,
                sync_replicas: self.u8()?,
                begun: self.version()?,
                back: self.bool()?,
                joint: self.bool()?,
            });
        }
        Ok(Some(Box::new(membership)))
    }

    pub fn standing(&mut self) -> Result<Option<Box<Standing>>> {
        if !self.bool()? {
            return Ok(None);
        }
        let position = Position {
            commit: self.u64()?,
            runs: self.runs()?,
        };
        let sightings = self.sightings()?;
        Ok(Some(Box::new(Standing {
            position,
            sightings,
        })))
    }

    pub fn sightings(&mut self) -> Result<Sightings> {
        let version = self.version()?;
        let seen = (0..self.count(SIGHTING_BYTES)?).map(|_| {
            Ok(Sighting {
                store: self.some_store()?,
                run: self.u64()?,
                commit: self.u64()?,
            })
        });
        let stores = seen.collect::<Result<Vec<_>>>()?;
        Ok(Sightings { version, stores })
    }

    fn runs(&mut self) -> Result<Runs> {
        let runs = (0..self.count(RUN_BYTES)?).map(|_| {
            Ok(Run {
                run: self.u64()?,
                began: self.u64()?,
            })
        });
        Ok(Runs::new(runs.collect::<Result<_>>()?))
    }

    fn members(&mut self) -> Result<Vec<Member>> {
        let members = (0..self.count(MIN_MEMBER_BYTES)?).map(|_| {
            Ok(Member {
                store: self.some_store()?,
                zone: ZoneId(self.u8()?),
                address: self.text()?,
            })
        });
        members.collect()
    }

    fn stores(&mut self) -> Result<Vec<StoreId>> {
        (0..self.count(8)?).map(|_| self.some_store()).collect()
    }

    /// The id of a store that there is.
    pub fn some_store(&mut self) -> Result<StoreId> {
        self.store()?
            .ok_or_else(|| malformed("a store without an id"))
    }
}
