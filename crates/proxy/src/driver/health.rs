//! Standbys that keep still: a frozen server holds its connections open and answers nothing, so nobody would know.
//!
//! Each standby that has connections is asked whether it speaks TLS, which needs no login and leaves no line in its log. One
//! that says nothing for `reads.timeout` gets no reads, and those that wait for it go to the active, until it answers again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::cluster::Cluster;
use super::dial::dial_plain;
use crate::core::topology::{Address, News, NodeName};

/// Questions in the time that a standby may be silent.
const QUESTIONS: u32 = 2;
/// How long to wait where nothing is asked.
const NOTHING_TO_ASK: Duration = Duration::from_secs(1);

/// Standbys to ask, and the time that they may be silent.
pub struct Asked {
    /// No limit if it is zero: then nobody is asked.
    pub timeout: Duration,
    /// Standbys, and where they listen.
    pub standbys: Vec<(NodeName, Address)>,
}

/// Asks standbys as long as `whom` tells whom.
pub async fn watch(cluster: Arc<Cluster>, whom: impl Fn() -> Option<Asked>) {
    while let Some(Asked { timeout, standbys }) = whom() {
        let standbys = if timeout.is_zero() {
            Vec::new()
        } else {
            standbys
        };
        let is_idle = standbys.is_empty();
        let answers = standbys.into_iter().map(async |(name, address)| {
            let answers = tokio::time::timeout(timeout, is_there(&address)).await;
            // A server that refuses is there: who is connected to it hears that at once.
            answers.is_err().then_some(name)
        });
        let found = futures_util::future::join_all(answers).await;
        hear(&cluster, found.into_iter().flatten().collect());
        let pause = match is_idle {
            true => NOTHING_TO_ASK,
            false => timeout / QUESTIONS,
        };
        tokio::time::sleep(pause).await;
    }
}

fn hear(cluster: &Cluster, now: BTreeSet<NodeName>) {
    let before = &cluster.topology().silent;
    if *before == now {
        return;
    }
    for name in now.difference(before) {
        tracing::warn!(standby = %name, "a standby does not answer: its reads go to other servers");
    }
    for name in before.difference(&now) {
        tracing::info!(standby = %name, "a standby answers again");
    }
    cluster.hear(News::Silent(now));
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
