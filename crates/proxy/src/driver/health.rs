//! Standbys that keep still: a frozen server holds its connections open and answers nothing, so nobody would know.
//!
//! Each standby that has connections is asked whether it speaks TLS, which needs no login and leaves no line in its log. One
//! that says nothing for `reads.timeout` gets no reads, and those that wait for it go to the active, until it answers again.

use std::collections::BTreeSet;
use std::sync::Weak;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Proxy;
use super::dial::dial_plain;
use super::pool::Place;
use crate::core::topology::{Address, News, NodeName};

/// Questions in the time that a standby may be silent.
const QUESTIONS: u32 = 2;
/// How long to wait where nothing is asked.
const NOTHING_TO_ASK: Duration = Duration::from_secs(1);

/// Asks standbys as long as there is a proxy.
pub(super) async fn watch(proxy: Weak<Proxy>) {
    let mut sick = BTreeSet::new();
    loop {
        let Some(proxy) = proxy.upgrade() else {
            return;
        };
        let timeout = proxy.settings().config.reads.timeout;
        if timeout.is_zero() {
            hear(&proxy, &mut sick, BTreeSet::new());
            drop(proxy);
            tokio::time::sleep(NOTHING_TO_ASK).await;
            continue;
        }
        let asked = to_ask(&proxy, &sick);
        let is_idle = asked.is_empty();
        let answers = asked.into_iter().map(async |(name, address)| {
            let answers = tokio::time::timeout(timeout, is_there(&address)).await;
            // A server that refuses is there: who is connected to it hears that at once.
            answers.is_err().then_some(name)
        });
        let silent = futures_util::future::join_all(answers).await;
        hear(&proxy, &mut sick, silent.into_iter().flatten().collect());
        drop(proxy);
        let pause = if is_idle {
            NOTHING_TO_ASK
        } else {
            timeout / QUESTIONS
        };
        tokio::time::sleep(pause).await;
    }
}

/// The standbys to which there are connections, and those that did not answer last.
fn to_ask(proxy: &Proxy, sick: &BTreeSet<NodeName>) -> Vec<(NodeName, Address)> {
    let topology = proxy.cluster.topology();
    let pools = proxy.pools.lock();
    let is_used = |name: &NodeName| {
        let place = Place::Standby(name.clone());
        pools.values().any(|pool| pool.is_connected_to(&place))
    };
    let asked = topology.told.iter();
    let asked = asked.filter(|one| sick.contains(&one.name) || is_used(&one.name));
    asked
        .map(|one| (one.name.clone(), one.address.clone()))
        .collect()
}

fn hear(proxy: &Proxy, sick: &mut BTreeSet<NodeName>, silent: BTreeSet<NodeName>) {
    if *sick == silent {
        return;
    }
    for name in silent.difference(sick) {
        tracing::warn!(standby = %name, "a standby does not answer: its reads go to other servers");
    }
    for name in sick.difference(&silent) {
        tracing::info!(standby = %name, "a standby answers again");
    }
    *sick = silent;
    proxy.cluster.hear(News::Silent(sick.clone()));
}

/// Ends when the server has said anything, or cannot be reached.
async fn is_there(address: &str) {
    let Ok(mut socket) = dial_plain(address).await else {
        return;
    };
    let mut question = BytesMut::new();
    frontend::ssl_request(&mut question);
    // Whatever comes back, or an end of the connection, is an answer.
    if socket.write_all(&question).await.is_ok() {
        let _ = socket.read_u8().await;
    }
}
