//! The HTTP interface, asked by a real load balancer and by hand.

use std::fmt::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::ports;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stage::{Stage, TIMEOUT};

/// An HTTP request's status and body.
pub async fn ask(port: u16, request: &str, more: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let length = body.len();
    let request = format!(
        "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((status, body.to_owned()))
}

/// HAProxy with a configuration as people have it for Patroni.
struct Proxy {
    process: Child,
    writes: u16,
    reads: u16,
}

impl Proxy {
    fn start(stage: &Stage, dir: &Path) -> Result<Proxy> {
        let (writes, reads) = (ports::free()?, ports::free()?);
        let mut config = "global\n  maxconn 100\ndefaults\n  mode tcp\n  timeout client 5m\n  timeout server 5m\n  \
                          timeout connect 4s\n  timeout check 2s\n"
            .to_owned();
        for (port, check) in [(writes, "/primary"), (reads, "/replica")] {
            write!(
                config,
                "listen on{port}\n  bind 127.0.0.1:{port}\n  option httpchk OPTIONS {check}\n  \
                 http-check expect status 200\n  \
                 default-server inter 300ms fall 2 rise 1 on-marked-down shutdown-sessions\n"
            )?;
            for name in stage.cluster.names() {
                let node = stage.cluster.node(name)?;
                writeln!(
                    config,
                    "  server {name} 127.0.0.1:{} maxconn 50 check port {}",
                    node.port, node.rest_port
                )?;
            }
        }
        let file = dir.join("haproxy.cfg");
        std::fs::write(&file, config)?;
        let process = Command::new("/usr/sbin/haproxy")
            .args(["-db", "-q", "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.join("haproxy.log"))?)
            .spawn()
            .context("haproxy cannot be run; install it: scripts/packages --test")?;
        Ok(Proxy {
            process,
            writes,
            reads,
        })
    }

    /// Waits until a port of the proxy leads to the server on `expected`. A proxy that has just started
    /// takes every server for up until its checks say otherwise.
    async fn leads(&self, port: u16, template: &Server, expected: u16) -> Result<()> {
        let server = Server {
            port,
            ..template.clone()
        };
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let asked = async {
                let client = connect(&server.config()).await?;
                let row = client.query_one("SELECT inet_server_port()", &[]).await?;
                anyhow::Ok(row.get::<_, i32>(0))
            };
            let found = asked.await;
            if found
                .as_ref()
                .is_ok_and(|port| *port == i32::from(expected))
            {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{port} does not lead to {expected}: {found:?}"
            );
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_load_balancer_finds_the_active_and_orders_need_the_token() -> Result<()> {
    let mut stage = Stage::set("rest").await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let standby = stage.cluster.names().find(|name| **name != active);
    let standby = standby.context("two nodes")?.to_owned();
    let dir = stage.path().to_owned();
    let proxy = Proxy::start(&stage, &dir)?;
    let (first, second) = (
        stage.cluster.node(&active)?.clone(),
        stage.cluster.node(&standby)?.clone(),
    );
    let server = stage.cluster.server(&active)?;
    proxy.leads(proxy.writes, &server, first.port).await?;
    proxy.leads(proxy.reads, &server, second.port).await?;

    let (status, body) = ask(first.rest_port, "GET /patroni", "", "").await?;
    let about: Value = serde_json::from_str(&body)?;
    ensure!(status == 200 && about["role"] == "primary", "{about:#}");
    let (_, cluster) = ask(second.rest_port, "GET /cluster", "", "").await?;
    let cluster: Value = serde_json::from_str(&cluster)?;
    ensure!(role_of(&cluster, &active) == json!("leader"), "{cluster:#}");
    let (_, metrics) = ask(second.rest_port, "GET /metrics", "", "").await?;
    let replica = format!("patroni_replica{{scope=\"demo\",name=\"{standby}\"}} 1");
    ensure!(metrics.contains(&replica), "{metrics}");

    // Without the token, or with another one, nothing happens.
    let order = json!({ "leader": active, "candidate": standby }).to_string();
    for wrong in [
        "",
        "Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n",
    ] {
        let (status, _) = ask(first.rest_port, "POST /switchover", wrong, &order).await?;
        ensure!(status == 401, "{status} without the token");
    }
    let token = std::fs::read_to_string(dir.join("rest.token"))?;
    let right = format!("Authorization: Bearer {}\r\n", token.trim());
    let moved = stage.clock.now();
    let (status, said) = ask(first.rest_port, "POST /switchover", &right, &order).await?;
    ensure!(status == 200, "{status}: {said}");
    stage.outage_after(moved).await?;
    stage.commits(50).await?;
    stage.cluster.wait_follows(&active, TIMEOUT).await?;
    proxy.leads(proxy.writes, &server, second.port).await?;
    proxy.leads(proxy.reads, &server, first.port).await?;

    // The same order again is refused: its leader is none any more.
    let (status, _) = ask(first.rest_port, "POST /switchover", &right, &order).await?;
    ensure!(status == 412, "{status} for an order that came twice");
    let (_, history) = ask(first.rest_port, "GET /history", "", "").await?;
    let history: Value = serde_json::from_str(&history)?;
    let last = history.as_array().and_then(|lines| lines.last()).cloned();
    let last = last.context("no history")?;
    ensure!(
        last[2] == "switchover" && last[4] == standby.as_str(),
        "{history:#}"
    );
    drop(proxy);
    stage.verify().await
}

fn role_of(cluster: &Value, name: &str) -> Value {
    let members = cluster["members"].as_array();
    let found = members.and_then(|members| members.iter().find(|m| m["name"] == name));
    found.map_or(Value::Null, |member| member["role"].clone())
}
