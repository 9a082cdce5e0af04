//! Applications behind the proxy: what they were told is there, once and as it was told; nobody sees another tenant's rows;
//! and nothing that a session has is lost without a word.

use std::collections::{HashMap, HashSet};

use cluster::clients::history::Outcome;
use serde::Serialize;

/// Which: the client, who is also the tenant, and when it began.
pub(crate) type Id = (i32, i64);

/// The keys that the database chose for a row, and told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Keys {
    pub order: i64,
    pub token: String,
    pub item: i64,
}

/// A client's deed, and the answer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Deed {
    /// A row and one that refers to it, with keys of the database's; the keys, as far as they were told.
    Order {
        id: Id,
        outcome: Outcome,
        keys: Option<Keys>,
    },
    /// A row in a foreign table.
    Remote { id: Id, outcome: Outcome },
    /// A look at the rows of all tenants: those that were seen of each. `tenant` is what the session had been told to be.
    Look {
        client: i32,
        tenant: Option<i32>,
        /// Its own rows that it was told are there.
        told: i64,
        seen: Vec<(i32, i64)>,
    },
    /// The server knew nothing of the tenant that the session is.
    Forgotten { id: Id },
}

impl Deed {
    /// The row that it makes.
    fn id(&self) -> Option<Id> {
        match self {
            Deed::Order { id, .. } | Deed::Remote { id, .. } | Deed::Forgotten { id } => Some(*id),
            Deed::Look { .. } => None,
        }
    }
}

/// A row and the one that refers to it, at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub id: Id,
    pub keys: Keys,
}

/// Something that cannot have been.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Anomaly {
    /// It is there more than once.
    Twice {
        id: Id,
        times: usize,
    },
    /// Acknowledged, and not there.
    Lost {
        id: Id,
    },
    /// Nobody asked for it.
    Invented {
        id: Id,
    },
    /// Its client was told that it is not there.
    Denied {
        id: Id,
    },
    /// It has other keys than its client was told.
    ToldWrongly {
        id: Id,
        told: Keys,
        is: Keys,
    },
    /// The same in the foreign table.
    RemoteTwice {
        id: Id,
        times: usize,
    },
    RemoteLost {
        id: Id,
    },
    RemoteDenied {
        id: Id,
    },
    /// Rows of another tenant were seen.
    Leaked {
        client: i32,
        tenant: Option<i32>,
        seen: Vec<(i32, i64)>,
    },
    /// Of its own rows not all were seen, or none, as by a session that is no tenant.
    Unseen {
        client: i32,
        told: i64,
        seen: i64,
    },
    /// A session was no tenant any more, and had not been told.
    Forgotten {
        id: Id,
    },
}

/// Everything that is wrong: by what clients were told, and the rows at the end.
pub(crate) fn check(deeds: &[Deed], rows: &[Row], remote: &[Id]) -> Vec<Anomaly> {
    let mut orders: HashMap<Id, Vec<&Keys>> = HashMap::new();
    for row in rows {
        orders.entry(row.id).or_default().push(&row.keys);
    }
    let mut remotes: HashMap<Id, usize> = HashMap::new();
    for &id in remote {
        *remotes.entry(id).or_default() += 1;
    }
    let of = |deed: &Deed| match deed {
        Deed::Order { id, outcome, keys } => {
            let found = orders.get(id).map_or(&[][..], Vec::as_slice);
            order(*id, *outcome, keys.as_ref(), found)
        }
        Deed::Remote { id, outcome } => {
            let id = *id;
            let times = remotes.get(&id).copied().unwrap_or(0);
            match (times, outcome) {
                (2.., _) => Some(Anomaly::RemoteTwice { id, times }),
                (0, Outcome::Acknowledged) => Some(Anomaly::RemoteLost { id }),
                (1, Outcome::Refused) => Some(Anomaly::RemoteDenied { id }),
                _ => None,
            }
        }
        Deed::Look {
            client,
            tenant,
            told,
            seen,
        } => look(*client, *tenant, *told, seen),
        Deed::Forgotten { id } => Some(Anomaly::Forgotten { id: *id }),
    };
    let begun: HashSet<Id> = deeds.iter().filter_map(Deed::id).collect();
    let all = rows.iter().map(|row| row.id).chain(remote.iter().copied());
    let invented = all.filter(|id| !begun.contains(id));
    let invented = invented.map(|id| Anomaly::Invented { id });
    deeds.iter().filter_map(of).chain(invented).collect()
}

fn order(id: Id, outcome: Outcome, told: Option<&Keys>, found: &[&Keys]) -> Option<Anomaly> {
    match (found, outcome) {
        ([], Outcome::Acknowledged) => Some(Anomaly::Lost { id }),
        ([], _) => None,
        ([_], Outcome::Refused) => Some(Anomaly::Denied { id }),
        ([is], _) => told.filter(|told| told != is).map(|told| {
            let (told, is) = (told.clone(), (*is).clone());
            Anomaly::ToldWrongly { id, told, is }
        }),
        (found, _) => {
            let times = found.len();
            Some(Anomaly::Twice { id, times })
        }
    }
}

fn look(client: i32, tenant: Option<i32>, told: i64, seen: &[(i32, i64)]) -> Option<Anomaly> {
    let (own, others): (Vec<_>, Vec<_>) = seen.iter().partition(|(of, _)| Some(*of) == tenant);
    if !others.is_empty() {
        let seen = seen.to_vec();
        return Some(Anomaly::Leaked {
            client,
            tenant,
            seen,
        });
    }
    let seen = own.iter().map(|(_, count)| count).sum();
    (tenant.is_some() && seen < told).then_some(Anomaly::Unseen { client, told, seen })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(order: i64) -> Keys {
        Keys {
            order,
            token: format!("token {order}"),
            item: order + 1,
        }
    }

    fn ordered(n: i64, outcome: Outcome) -> Deed {
        Deed::Order {
            id: (1, n),
            outcome,
            keys: Some(keys(n)),
        }
    }

    fn row(n: i64, keys: Keys) -> Row {
        Row { id: (1, n), keys }
    }

    #[test]
    fn answers_to_clients_are_right() {
        let deeds = [
            ordered(1, Outcome::Acknowledged),
            ordered(2, Outcome::Unknown),
            ordered(3, Outcome::Unknown),
            ordered(4, Outcome::Refused),
        ];
        assert_eq!(check(&deeds, &[row(1, keys(1)), row(2, keys(2))], &[]), []);
    }

    #[test]
    fn rows_that_are_lost_doubled_denied_or_told_wrongly_are_found() {
        let id = (1, 7);
        let with = |outcome, rows: &[Row]| check(&[ordered(7, outcome)], rows, &[]);
        let twice = [row(7, keys(7)), row(7, keys(8))];
        assert_eq!(with(Outcome::Acknowledged, &[]), [Anomaly::Lost { id }]);
        assert_eq!(
            with(Outcome::Unknown, &twice),
            [Anomaly::Twice { id, times: 2 }]
        );
        assert_eq!(
            with(Outcome::Refused, &twice[..1]),
            [Anomaly::Denied { id }]
        );
        let (told, is) = (keys(7), keys(8));
        assert_eq!(
            with(Outcome::Unknown, &twice[1..]),
            [Anomaly::ToldWrongly { id, told, is }]
        );
    }

    #[test]
    fn rows_that_nobody_asked_for_are_found() {
        let deeds = [ordered(1, Outcome::Acknowledged)];
        let rows = [row(1, keys(1)), row(2, keys(2))];
        let invented = |id| Anomaly::Invented { id };
        assert_eq!(
            check(&deeds, &rows, &[(4, 4)]),
            [invented((1, 2)), invented((4, 4))]
        );
    }

    #[test]
    fn rows_elsewhere_that_are_lost_doubled_or_denied_are_found() {
        let id = (1, 7);
        let with =
            |outcome, times| check(&[Deed::Remote { id, outcome }], &[], &[id, id, id][..times]);
        assert_eq!(with(Outcome::Acknowledged, 1), []);
        assert_eq!(with(Outcome::Unknown, 0), []);
        assert_eq!(with(Outcome::Acknowledged, 0), [Anomaly::RemoteLost { id }]);
        assert_eq!(with(Outcome::Refused, 1), [Anomaly::RemoteDenied { id }]);
        assert_eq!(
            with(Outcome::Unknown, 2),
            [Anomaly::RemoteTwice { id, times: 2 }]
        );
    }

    #[test]
    fn rows_of_others_and_missing_ones_are_found() {
        let with = |tenant, told, seen: &[(i32, i64)]| {
            let seen = seen.to_vec();
            let client = 1;
            let looked = Deed::Look {
                client,
                tenant,
                told,
                seen,
            };
            check(&[looked], &[], &[])
        };
        assert_eq!(with(Some(1), 3, &[(1, 4)]), []);
        assert_eq!(with(None, 3, &[]), []);
        assert!(matches!(
            with(Some(1), 3, &[(1, 3), (2, 1)])[..],
            [Anomaly::Leaked { .. }]
        ));
        assert!(matches!(
            with(None, 3, &[(1, 3)])[..],
            [Anomaly::Leaked { .. }]
        ));
        assert!(matches!(
            with(Some(1), 3, &[])[..],
            [Anomaly::Unseen { seen: 0, .. }]
        ));
    }
}
