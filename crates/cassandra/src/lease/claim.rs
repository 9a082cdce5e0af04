//! Owning a new epoch: look, leave who is about to own it alone, change, wait, renew.

use std::time::Duration;

use dax::ids::Epoch;

use super::{Answer, Change, Lease, Renewal, Row, Terms, Time};

/// A row, and when it was first seen like that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    row: Option<Row>,
    first: Time,
}

impl Sighting {
    /// The row was just read; `now` is after the answer came.
    pub fn new(row: Option<Row>, now: Time) -> Sighting {
        Sighting { row, first: now }
    }

    /// It was read again. Who watches a silent owner knows when its last renewal was there at the latest,
    /// and waits from then on (L5).
    #[must_use]
    pub fn again(self, row: Option<Row>, now: Time) -> Sighting {
        match row == self.row {
            true => self,
            false => Sighting::new(row, now),
        }
    }

    /// When it was first seen as it is now.
    pub fn first(&self) -> Time {
        self.first
    }

    /// What was seen.
    pub fn row(&self) -> Option<&Row> {
        self.row.as_ref()
    }
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Send this, and tell [`Claim::changed`].
    Change(Change),
    /// Read the row with a serial read, and tell [`Claim::looked`].
    Look,
    /// Nothing until then; ask again at that time.
    Wait(Time),
    /// Send this renewal, and tell [`Claim::renewed`].
    Renew(Renewal),
    /// The epoch is owned, and everything before it is over.
    Owned,
    /// Somebody else was first. Look who it is, and begin again with another name.
    Lost(Option<Row>),
}

#[derive(Debug, Clone)]
enum State {
    /// Somebody else's claim is under way (L7).
    Yielding {
        until: Time,
    },
    Changing,
    Looking,
    Waiting {
        until: Time,
    },
    Renewing,
    Owned,
    Lost(Option<Row>),
}

/// One attempt to own the epoch after the one that was seen.
#[derive(Debug, Clone)]
pub struct Claim {
    change: Change,
    /// When the predecessor's last renewal had been made for sure.
    renewed_before: Time,
    /// How long the predecessor's lease lasts from then on.
    timeout: Duration,
    state: State,
    lease: Lease,
    renewal: Option<Renewal>,
}

impl Claim {
    /// Wants the next epoch. `name` is of this attempt only: no other one, of this process or of any
    /// other, now or later, has the same. None if epochs are used up.
    pub fn new(terms: Terms, sighting: &Sighting, name: String, now: Time) -> Option<Claim> {
        let before = sighting.row.as_ref();
        let epoch = before.map_or(terms.unowned, |row| row.epoch).next();
        if epoch > Epoch::MAX {
            return None;
        }
        let claim = before.filter(|row| row.is_claim());
        let left_alone = claim.map(|row| sighting.first + Terms::courtesy(row.lease));
        let running = before.filter(|row| !row.released).map(|row| row.lease);
        let new = Row {
            epoch,
            owner: name,
            lease: running.unwrap_or_default().max(terms.lease),
            renewals: 0,
            released: false,
        };
        Some(Claim {
            lease: Lease::won(terms, new.clone(), now),
            change: Change {
                expected: sighting.row.clone(),
                new,
            },
            renewed_before: sighting.first,
            timeout: running.map_or(Duration::ZERO, Terms::timeout),
            state: left_alone.map_or(State::Changing, |until| State::Yielding { until }),
            renewal: None,
        })
    }

    /// What to do next.
    pub fn next(&mut self, now: Time) -> Next {
        match &self.state {
            State::Yielding { until } if now < *until => Next::Wait(*until),
            State::Yielding { .. } => {
                // Refused if the other claimant has got on.
                self.state = State::Changing;
                Next::Change(self.change.clone())
            }
            State::Changing => Next::Change(self.change.clone()),
            State::Looking => Next::Look,
            State::Waiting { until } if now < *until => Next::Wait(*until),
            State::Waiting { .. } => {
                self.state = State::Renewing;
                self.renew(now)
            }
            State::Renewing => self.renew(now),
            State::Owned => Next::Owned,
            State::Lost(row) => Next::Lost(row.clone()),
        }
    }

    fn renew(&mut self, now: Time) -> Next {
        let renewal = self.lease.renew(now);
        self.renewal = Some(renewal.clone());
        Next::Renew(renewal)
    }

    /// What became of the change.
    pub fn changed(&mut self, answer: Answer) {
        if !matches!(self.state, State::Changing) {
            return;
        }
        self.state = match answer {
            Answer::Applied => self.won(),
            Answer::Refused(row) => self.judge(row),
            Answer::Unknown => State::Looking,
        };
    }

    /// What a serial read found, after an unknown outcome. If our name is not there we do not own the
    /// epoch, even if the change is applied later: then its owner does not know, and never acts.
    pub fn looked(&mut self, row: Option<Row>) {
        if matches!(self.state, State::Looking) {
            self.state = self.judge(row);
        }
    }

    fn judge(&self, row: Option<Row>) -> State {
        let own = row
            .as_ref()
            .is_some_and(|row| row.owner == self.change.new.owner);
        match own {
            true => self.won(),
            false => State::Lost(row),
        }
    }

    /// The row was changed under the condition that the predecessor had not renewed again. So its lease
    /// ends no later than if it had renewed just before that was first seen (L2, L5).
    fn won(&self) -> State {
        State::Waiting {
            until: self.renewed_before + self.timeout,
        }
    }

    /// What became of the first renewal.
    pub fn renewed(&mut self, answer: &Answer) {
        let Some(renewal) = self.renewal.take() else {
            return;
        };
        self.lease.renewed(&renewal, answer);
        self.state = match answer {
            Answer::Applied => State::Owned,
            Answer::Refused(row) if self.lease.renewal_at().is_none() => State::Lost(row.clone()),
            Answer::Refused(_) | Answer::Unknown => State::Renewing,
        };
    }

    /// The lease, once owned.
    pub fn into_lease(self) -> Option<Lease> {
        matches!(self.state, State::Owned).then_some(self.lease)
    }
}
