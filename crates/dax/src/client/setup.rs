//! Making a volume, and learning how one is laid out, before there is a client.
//!
//! ```text
//!   what does each replica know of it?
//!     a majority knows it ────────────────────────────▶ it exists; the others lost it: to be rebuilt
//!     all answered, nobody ever owned it ─────────────▶ it is being made: made where it is missing
//!     all answered, somebody owned it, a few know it ─▶ it is lost
//! ```
//!
//! Invariant: a replica is made fresh, to count at once, only after every replica has said that it does
//! not know the volume, or has it as it was made, without an owner so far: then no quorum of it ever did
//! anything that a fresh replica might have forgotten. So whoever was interrupted here repeats it.

use std::collections::BTreeMap;

use tokio::task::JoinSet;

use super::ClientConfig;
use super::connection::Backoff;
use super::core::Arrival;
use super::greeting::{Greeting, Introduction};
use crate::error::{Error, ErrorKind, Result, describe};
use crate::ids::{ReplicaId, StoreId, VolumeName};
use crate::membership::{Member, Membership, same_store};
use crate::storage::VolumeSettings;

/// Makes the volume that `config` names in its replicas. A fresh one is made once every replica has said
/// that it does not know it, because one that is away might; returns once all have it. Repeating is
/// harmless, also while another does the same, and finishes what was interrupted. Of a volume that is in
/// use, replicas that do not know it are told that they have lost it. Waits while replicas are missing.
///
/// # Errors
/// `Conflict` if it exists with other settings, or if it was in use and most of its replicas do not know it any
/// more; `Invalid` if the settings are invalid, or two of the replicas are one store; `Denied` if a replica refuses
/// the key, or is refused.
pub async fn create_volume(config: &ClientConfig, settings: &VolumeSettings) -> Result<()> {
    settings.check()?;
    let (replicas, volume) = (&config.replicas, &config.volume);
    check_replicas(replicas, settings)?;
    let introduction = Introduction::new(config);
    let mut attempts = JoinSet::new();
    for (index, replica) in replicas.iter().enumerate() {
        let (replica, introduction) = (replica.clone(), introduction.clone());
        attempts.spawn(async move { (index, ask(&replica, &introduction).await) });
    }
    let mut survey = Survey::new(replicas, settings);
    while !survey.is_known()
        && let Some(attempt) = attempts.join_next().await
    {
        let cut_short = "creating the volume was cut short";
        let (index, answer) = attempt
            .map_err(|error| Error::with_source(ErrorKind::Unavailable, cut_short, error))?;
        match answer? {
            Knows::This(found, _) if found != *settings => {
                return Err(other_settings(volume, &found));
            }
            answer => survey.note(index, answer)?,
        }
    }
    let membership = survey.membership()?;
    for (index, store) in &survey.unknown {
        let Some(rebuild) = survey.is_lost(volume, *store, membership.as_ref())? else {
            continue;
        };
        let replica = &replicas[*index];
        create_in(
            replica,
            &introduction,
            settings,
            rebuild,
            membership.as_ref(),
        )
        .await?;
    }
    Ok(())
}

/// What the replicas have said so far.
struct Survey<'a> {
    replicas: &'a [String],
    settings: &'a VolumeSettings,
    stores: BTreeMap<StoreId, usize>,
    known: usize,
    /// One of them may have been part of something.
    owned: bool,
    unknown: Vec<(usize, Option<StoreId>)>,
    /// The newest that is recorded.
    recorded: Option<Membership>,
}

impl Survey<'_> {
    fn new<'a>(replicas: &'a [String], settings: &'a VolumeSettings) -> Survey<'a> {
        Survey {
            replicas,
            settings,
            stores: BTreeMap::new(),
            known: 0,
            owned: false,
            unknown: Vec::new(),
            recorded: None,
        }
    }

    fn note(&mut self, index: usize, answer: Knows) -> Result<()> {
        let store = match answer {
            Knows::This(_, arrival) => {
                self.known += 1;
                self.owned |= arrival.rebuilding || arrival.grant.epoch > self.settings.unowned();
                let version = |m: Option<&Membership>| m.map(|m| m.version);
                if version(arrival.membership.as_deref()) > version(self.recorded.as_ref()) {
                    self.recorded = arrival.membership.map(|m| *m);
                }
                arrival.store
            }
            Knows::Nothing(store) => {
                self.unknown.push((index, store));
                store
            }
        };
        if let Some(store) = store {
            let first = *self.stores.entry(store).or_insert(index);
            if first != index {
                let (one, other) = (&self.replicas[first], &self.replicas[index]);
                return Err(same_store(store, one, other));
            }
        }
        Ok(())
    }

    /// A majority has the volume: the others need not be heard.
    fn is_known(&self) -> bool {
        self.known > self.replicas.len() / 2
    }

    /// The members that are recorded; of a new volume, those that were asked.
    fn membership(&self) -> Result<Option<Membership>> {
        let all_met = self.stores.len() == self.replicas.len();
        if self.recorded.is_some() || self.known > 0 || !all_met {
            return Ok(self.recorded.clone());
        }
        let member = |(store, index): (&StoreId, &usize)| Member {
            store: *store,
            address: self.replicas[*index].clone(),
            zone: self.settings.zone_of(ReplicaId(*index as u8)),
        };
        let mut members: Vec<(usize, Member)> =
            self.stores.iter().map(|at| (*at.1, member(at))).collect();
        members.sort_by_key(|(index, _)| *index);
        let members = members.into_iter().map(|(_, member)| member).collect();
        Membership::first(self.settings, members, Membership::FIRST).map(Some)
    }

    /// True if a store without the volume has lost it, rather than never had it; none if that is for
    /// the volume's owner to say.
    fn is_lost(
        &self,
        volume: &VolumeName,
        store: Option<StoreId>,
        membership: Option<&Membership>,
    ) -> Result<Option<bool>> {
        let is_member = membership.is_none_or(|m| store.is_some_and(|s| m.member(s).is_some()));
        if self.is_known() {
            let fresh = !self.owned && membership.is_some();
            return Ok(is_member.then_some(!fresh));
        }
        let (known, all) = (self.known, self.replicas.len());
        let conflict = |message: String| Err(Error::new(ErrorKind::Conflict, message));
        if self.owned {
            return conflict(format!(
                "volume {volume} was in use, and only {known} of {all} zones know it: the others have lost \
                 it, and with them what it held, unless their directories come back"
            ));
        }
        if !is_member {
            return conflict(format!(
                "volume {volume} was begun with other zones; nobody ever used it: give it another name, or \
                 start over with empty directories"
            ));
        }
        Ok(Some(false))
    }
}

fn other_settings(volume: &VolumeName, found: &VolumeSettings) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("volume {volume} exists with other settings: {found:?}"),
    )
}

/// Tries until the replica has the volume or refuses it.
async fn create_in(
    replica: &str,
    introduction: &Introduction,
    settings: &VolumeSettings,
    rebuild: bool,
    membership: Option<&Membership>,
) -> Result<()> {
    patiently(replica, || {
        introduction.create(replica, settings, rebuild, membership)
    })
    .await
}

/// Tries until the replica answers, or refuses.
pub(super) async fn patiently<T, F: Future<Output = Result<T>>>(
    replica: &str,
    mut attempt: impl FnMut() -> F,
) -> Result<T> {
    let mut backoff = Backoff::new();
    loop {
        match attempt().await {
            Err(error) if is_passing(&error) => {
                tracing::info!(
                    replica,
                    why = describe(&error),
                    "the replica has not done it yet"
                );
            }
            result => return result,
        }
        backoff.wait().await;
    }
}

fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Full)
}

/// How a volume is laid out and who its members are, from the first replica that knows it. A few replicas that do not know it,
/// or cannot be trusted, keep nobody from using the others.
///
/// # Errors
/// `NotFound` or `Denied` if a majority of the replicas answers so.
pub(super) async fn find_volume(
    replicas: &[String],
    introduction: &Introduction,
) -> Result<(VolumeSettings, Option<Membership>)> {
    let mut attempts = JoinSet::new();
    for replica in replicas {
        let (replica, introduction) = (replica.clone(), introduction.clone());
        attempts.spawn(async move { volume_at(&replica, &introduction).await });
    }
    let mut refusals = Vec::new();
    while let Some(attempt) = attempts.join_next().await {
        let Ok(result) = attempt else {
            continue;
        };
        match result {
            Ok((settings, membership)) => {
                settings.check()?;
                if membership.is_none() {
                    check_replicas(replicas, &settings)?;
                }
                return Ok((settings, membership));
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Denied) => {
                tracing::info!(why = describe(&error), "replica cannot be used");
                refusals.push(error);
                if refusals.len() > replicas.len() / 2 {
                    break;
                }
            }
            Err(error) => return Err(error),
        }
    }
    // What is to be changed comes before what is not there.
    let denied = refusals
        .iter()
        .position(|error| error.kind() == ErrorKind::Denied);
    let told = (!refusals.is_empty()).then(|| refusals.swap_remove(denied.unwrap_or(0)));
    Err(told.unwrap_or_else(|| {
        let message = format!("no replica knows volume {}", introduction.volume);
        Error::new(ErrorKind::NotFound, message)
    }))
}

/// What a replica knows of a volume.
enum Knows {
    /// It has it so, and is as it says.
    This(VolumeSettings, Arrival),
    /// It has no such volume. Which store it is, if it says.
    Nothing(Option<StoreId>),
}

/// Asks one replica until it answers.
async fn ask(replica: &str, introduction: &Introduction) -> Result<Knows> {
    let greeting = patiently(replica, || introduction.greet(replica)).await?;
    Ok(match greeting {
        Greeting::Known(known) => Knows::This(known.settings, known.arrival),
        Greeting::Unknown(store) => Knows::Nothing(store),
    })
}

/// What one replica knows of the volume.
async fn volume_at(
    replica: &str,
    introduction: &Introduction,
) -> Result<(VolumeSettings, Option<Membership>)> {
    match ask(replica, introduction).await? {
        Knows::This(settings, arrival) => Ok((settings, arrival.membership.map(|m| *m))),
        Knows::Nothing(_) => Err(introduction.no_volume(replica)),
    }
}

/// Without recorded members, the addresses are the members.
fn check_replicas(replicas: &[String], settings: &VolumeSettings) -> Result<()> {
    if replicas.len() != usize::from(settings.replicas) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{} replicas for {} replicas: give one address for each replica",
                replicas.len(),
                settings.replicas
            ),
        ));
    }
    Ok(())
}
