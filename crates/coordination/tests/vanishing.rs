//! Peers of the direct channel that take nothing any more, give up, or say nothing.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coordination::address::Address;
use coordination::channel::{
    ClientEvent, Handler, Identity, Party, Progress, Request, Server, Subscription, Trigger,
    request, subscribe,
};
use coordination::records::Incarnation;
use dax::ids::{Epoch, NodeName, VolumeName};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use volume::lsn::Lsn;
use volume::recent_log::RecentLog;

const LIMIT: Duration = Duration::from_secs(60);
/// Log that is written between two triggers.
const PART: usize = 256 << 10;
/// Connections that an agent has at once.
const CONNECTIONS_MAX: usize = 256;

/// Answers how it is; tells when it begins an order, and when it is not to carry it out any more.
struct Slow(mpsc::UnboundedSender<&'static str>);

struct Ordered(mpsc::UnboundedSender<&'static str>);

impl Drop for Ordered {
    fn drop(&mut self) {
        let _ = self.0.send("given up");
    }
}

#[async_trait]
impl Handler for Slow {
    async fn request(&self, request: Request) -> Result<Value, String> {
        if request == Request::Status {
            return Ok(json!({}));
        }
        let _ordered = Ordered(self.0.clone());
        let _ = self.0.send("asked");
        std::future::pending().await
    }

    async fn session(&self) -> Result<UnixStream, String> {
        Err("not here".into())
    }
}

fn party(node: &str) -> Party {
    let me = Identity {
        node: NodeName::new(node).unwrap(),
        volume: VolumeName::new("main").unwrap(),
        incarnation: Incarnation("1".into()),
    };
    Party { me, tls: None }
}

async fn agent() -> (Server, mpsc::UnboundedReceiver<&'static str>) {
    let (says, said) = mpsc::unbounded_channel();
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(&any, party("a"), Arc::new(Slow(says))).await;
    (server.unwrap(), said)
}

/// A standby, for as long as both are kept.
type Standby = (Subscription, mpsc::UnboundedReceiver<ClientEvent>);

fn standby(server: &Server, name: &str) -> Standby {
    let (events, received) = mpsc::unbounded_channel();
    let subscription = subscribe(server.address().clone(), party(name), events, None);
    (subscription, received)
}

/// A standby that has greeted, and takes what is sent to it for as long as its system has room for it.
async fn greeted(server: &Server, name: &str) -> TcpStream {
    let Address::Tcp { host, port } = server.address() else {
        panic!("not over TCP");
    };
    let mut socket = TcpStream::connect((host.as_str(), *port)).await.unwrap();
    let hello = json!({
        "type": "hello", "version": 1, "wants": "triggers", "log": true,
        "me": { "node": name, "volume": "main", "incarnation": "1" },
    });
    let hello = hello.to_string();
    let length = u32::try_from(hello.len()).unwrap();
    socket.write_all(&length.to_le_bytes()).await.unwrap();
    socket.write_all(hello.as_bytes()).await.unwrap();
    socket
}

async fn until(server: &Server, there: impl Fn(&Server) -> bool) {
    let mut changed = server.subscribers_changed();
    let waited = tokio::time::timeout(LIMIT, changed.wait_for(|_| there(server))).await;
    waited.unwrap().unwrap();
}

/// As one whose machine is lost, or whose process is stopped, under load: what it said last must not count for long.
// hazard: NODE-22
#[tokio::test]
async fn a_standby_that_takes_nothing_any_more_is_not_listed() {
    let (server, _said) = agent().await;
    let log = Arc::new(RecentLog::new(Epoch(1)));
    server.send_along(Arc::clone(&log));
    let _stopped = greeted(&server, "b").await;
    until(&server, |server| server.subscribers().len() == 1).await;
    let writing = async {
        let mut end = Lsn(PART as u64);
        loop {
            log.put(end, &vec![7; PART]);
            end = Lsn(end.0 + PART as u64);
            server.publish(Trigger {
                epoch: Epoch(1),
                synced_lsn: end,
                journal_synced: 7,
                timeline: 1,
                starts: 0,
                proxied: false,
            });
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = until(&server, |server| server.subscribers().is_empty()) => {}
        () = writing => {}
    }
}

// hazard: NODE-22
#[tokio::test]
async fn a_standby_that_comes_again_is_listed_as_its_new_connection_says() {
    let (server, _said) = agent().await;
    let _stopped = greeted(&server, "b").await;
    until(&server, |server| server.subscribers().len() == 1).await;
    let again = standby(&server, "b");
    let progress = Progress {
        applied: Lsn(5),
        ..Progress::default()
    };
    again.0.progress(progress);
    let other = standby(&server, "c");
    other.0.progress(Progress::default());
    until(&server, |server| {
        let listed = server.subscribers();
        let told: Vec<_> = listed
            .iter()
            .map(|s| (s.who.node.as_str(), s.progress))
            .collect();
        told == [("b", Some(progress)), ("c", Some(Progress::default()))]
    })
    .await;
}

// An order whose sender had given up after ten seconds once stayed in the node's queue, behind a restart for example, and
// was carried out minutes later.
// hazard: NODE-23
#[tokio::test]
async fn an_order_whose_asker_gives_up_is_given_up() {
    let (server, mut said) = agent().await;
    let me = party("cli");
    {
        let asking = request(server.address(), &me, Request::Restart, LIMIT);
        tokio::select! {
            answer = asking => panic!("{answer:?}"),
            said = said.recv() => assert_eq!(said, Some("asked")),
        }
    }
    let given_up = tokio::time::timeout(LIMIT, said.recv()).await;
    assert_eq!(given_up.unwrap(), Some("given up"));
}

// hazard: SEC-1
#[tokio::test]
async fn more_connections_than_an_agent_can_have_are_turned_away() {
    let (server, _said) = agent().await;
    let mut standbys = Vec::new();
    for number in 0..CONNECTIONS_MAX {
        standbys.push(standby(&server, &format!("s{number}")));
        until(&server, |server| server.subscribers().len() > number).await;
    }
    let me = party("cli");
    let ask = || request(server.address(), &me, Request::Status, LIMIT);
    assert!(ask().await.is_err());
    // The next one that leaves makes room.
    drop(standbys.pop());
    let asking = async {
        while ask().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, asking).await.unwrap();
}
