//! Whether a configuration agrees with who the volume's members are, before it serves anybody.
//!
//! Quorums are counted by the recorded members alone, whatever a configuration lists; its entries are only where a
//! client begins to look. One that leads to a store which is no member, and never was, is a mistake that its operator
//! should hear of at once.

use tokio::task::JoinSet;

use super::ClientConfig;
use super::greeting::{Greeting, Introduction};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::StoreId;
use crate::membership::{Member, Membership, same_store};

/// Which store answers at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Store that answered at the address.
    pub store: StoreId,
    /// It holds something of the volume.
    pub knows_volume: bool,
}

/// Asks a zone server which store it is.
///
/// # Errors
/// `Unavailable` if it does not answer, `Denied` if it refuses the key or is refused, `Invalid` if it is of an older
/// version, which does not say.
pub async fn identify(config: &ClientConfig, address: &str) -> Result<Identity> {
    let (identity, _) = look(&Introduction::new(config), address).await?;
    Ok(identity)
}

/// Which store is at an address, and who the members are, as far as it knows.
async fn look(
    introduction: &Introduction,
    address: &str,
) -> Result<(Identity, Option<Box<Membership>>)> {
    let (store, knows_volume, membership) = match introduction.greet(address).await? {
        Greeting::Known(known) => (known.arrival.store, true, known.arrival.membership),
        Greeting::Unknown(store) => (store, false, None),
    };
    let nameless = || {
        Error::new(
            ErrorKind::Invalid,
            format!("{address} is of an older version: update it first"),
        )
    };
    let identity = Identity {
        store: store.ok_or_else(nameless)?,
        knows_volume,
    };
    Ok((identity, membership))
}

/// Looks where the entries lead that are no member's address; those that do not answer now are passed over. If one of
/// them knows newer members than `membership`, which may be what a former member was told last, it is judged by those.
///
/// # Errors
/// `Invalid` if one of them leads to a store that is no member and never was, where none ever was, or to the store of another entry.
pub(super) async fn check(
    entries: &[String],
    membership: &Membership,
    introduction: &Introduction,
) -> Result<()> {
    let member_at = |address: &String| membership.everybody().find(|m| m.address == *address);
    let mut found: Vec<(StoreId, &String)> = Vec::new();
    let mut attempts = JoinSet::new();
    for entry in entries {
        if let Some(member) = member_at(entry) {
            found.push((member.store, entry));
            continue;
        }
        let (entry, introduction) = (entry.clone(), introduction.clone());
        attempts.spawn(async move {
            let found = look(&introduction, &entry).await;
            (entry, found)
        });
    }
    let mut others = Vec::new();
    let mut newest = membership.clone();
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok((entry, Ok((identity, heard)))) => {
                others.push((identity.store, entry));
                if let Some(heard) = heard.filter(|heard| heard.version > newest.version) {
                    newest = *heard;
                }
            }
            Ok((entry, Err(error))) => {
                tracing::warn!(entry, %error, "this zone of the configuration is no zone of the volume, as far as known");
            }
            Err(error) => tracing::debug!(%error, "a zone was not looked at"),
        }
    }
    for (store, entry) in &others {
        let twin = found.iter().find(|(other, _)| other == store);
        if let Some((_, twin)) = twin {
            return Err(same_store(*store, twin, entry));
        }
        if !newest.knows(entry, *store) {
            return Err(stranger(entry, *store, &newest));
        }
        found.push((*store, entry));
    }
    Ok(())
}

fn stranger(entry: &str, store: StoreId, membership: &Membership) -> Error {
    let addresses: Vec<&str> = membership
        .members
        .iter()
        .map(|m: &Member| m.address.as_str())
        .collect();
    Error::new(
        ErrorKind::Invalid,
        format!(
            "{entry} (store {store}) is not one of the volume's zones, which are {}: list those in \"zones\", or \
             exchange the zone with: understudy zone replace",
            addresses.join(", ")
        ),
    )
}
