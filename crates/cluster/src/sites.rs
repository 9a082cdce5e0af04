//! Machines of their own for nodes, as far as the network goes: a network namespace each, joined by a
//! bridge or by long lines ([`super::wan`]), from which each can be cut off without a sign to anybody.
//!
//! Invariant: namespaces and the bridge are gone when [`Sites`] is dropped. A cut loses frames and
//! sends nothing, as a machine that vanishes or a broken switch; a killed process's machine would
//! still refuse connections.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};

use super::wan::{self, Quality, Wan};

/// Networks 198.18.N.0/24 are set aside for benchmarks (RFC 2544).
const NETWORKS: std::ops::Range<u8> = 1..250;
/// The last byte of the bridge's address: zones and clients live there.
const CENTRE: u8 = 254;

/// Namespaces of some nodes. See the module.
#[derive(Debug)]
pub struct Sites {
    network: u8,
    nodes: Vec<String>,
    /// Without, they are at a bridge.
    wan: Option<Wan>,
}

impl Sites {
    /// Makes a namespace for each node.
    ///
    /// # Errors
    /// The caller is not root, or `ip` (Debian's `iproute2`) is missing.
    pub fn create(nodes: &[String]) -> anyhow::Result<Sites> {
        let network = networks()
            .find(|n| ip(&["link", "add", &bridge(*n), "type", "bridge"]).is_ok())
            .context(
                "cannot make a network bridge: that needs root, Debian's package iproute2, \
                 and a kernel with bridges",
            )?;
        // From here on dropping it cleans up.
        let sites = Sites {
            network,
            nodes: nodes.to_vec(),
            wan: None,
        };
        let bridge = bridge(network);
        let centre = format!("{}/24", sites.centre());
        ip(&["address", "add", &centre, "dev", &bridge])?;
        ip(&["link", "set", &bridge, "up"])?;
        for at in 0..nodes.len() {
            sites.make(at)?;
        }
        Ok(sites)
    }

    /// Makes a namespace for each node, and long lines between them and to the centre. `one_way` says how
    /// long packets travel from one node to another; the centre is the place after the last node.
    ///
    /// # Errors
    /// The caller is not root, `ip` is missing, or the kernel has no TUN devices.
    pub fn apart(
        nodes: &[String],
        one_way: impl Fn(usize, usize) -> Duration,
    ) -> anyhow::Result<Sites> {
        let first = networks().find_map(|n| Some((n, wan::device(&bridge(n)).ok()?)));
        let (network, device) = first.context(
            "cannot make a network device: that needs root, Debian's package iproute2, and a kernel \
             with TUN devices",
        )?;
        // From here on dropping it cleans up.
        let mut sites = Sites {
            network,
            nodes: nodes.to_vec(),
            wan: None,
        };
        let mut devices = Vec::new();
        for at in 0..nodes.len() {
            let (name, inner) = (sites.namespace(at), sites.inner(at));
            ip(&["netns", "add", &name])?;
            devices.push((at as u8 + 1, wan::device(&inner)?));
            ip(&["link", "set", &inner, "netns", &name])?;
            let address = format!("{}/24", sites.address_at(at));
            ip(&["-n", &name, "address", "add", &address, "dev", &inner])?;
            ip(&[
                "-n",
                &name,
                "link",
                "set",
                &inner,
                "txqueuelen",
                "10000",
                "up",
            ])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
        }
        let (centre, bridge) = (format!("{}/24", sites.centre()), bridge(network));
        ip(&["address", "add", &centre, "dev", &bridge])?;
        ip(&["link", "set", &bridge, "txqueuelen", "10000", "up"])?;
        devices.push((CENTRE, device));
        let wan = Wan::join(devices);
        for (from, to) in pairs(nodes.len() + 1) {
            let quality = Quality {
                delay: one_way(from, to),
                loss_permille: 0,
            };
            wan.set(from, to, quality);
        }
        sites.wan = Some(wan);
        Ok(sites)
    }

    fn make(&self, at: usize) -> anyhow::Result<()> {
        let (name, outer, inner) = (self.namespace(at), self.outer(at), self.inner(at));
        ip(&["netns", "add", &name])?;
        let peer = ["type", "veth", "peer", "name", &inner, "netns", &name];
        ip(&[&["link", "add", &outer][..], &peer].concat())?;
        ip(&["link", "set", &outer, "master", &bridge(self.network), "up"])?;
        let address = format!("{}/24", self.address_at(at));
        ip(&["-n", &name, "address", "add", &address, "dev", &inner])?;
        ip(&["-n", &name, "link", "set", &inner, "up"])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])
    }

    /// Where zones and clients are.
    pub fn centre(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.network, CENTRE)
    }

    /// Where a node is.
    pub fn address(&self, node: &str) -> Option<Ipv4Addr> {
        self.place(node).map(|at| self.address_at(at))
    }

    /// What runs a command there.
    pub fn wrapper(&self, node: &str) -> Option<Vec<String>> {
        let name = self.namespace(self.place(node)?);
        // Unlike "ip netns exec" this leaves the mounts alone.
        Some(vec![
            "nsenter".to_owned(),
            format!("--net=/run/netns/{name}"),
            "--".to_owned(),
        ])
    }

    /// Cuts a node off from everybody, without a sign.
    ///
    /// # Errors
    /// There is no such node.
    pub fn cut(&self, node: &str) -> anyhow::Result<()> {
        let at = self.place(node).context("no such node")?;
        if let Some(wan) = &self.wan {
            self.set_loss(wan, at, 1000);
            return Ok(());
        }
        ip(&["link", "set", &self.outer(at), "nomaster"])
    }

    /// Undoes a cut.
    ///
    /// # Errors
    /// There is no such node.
    pub fn heal(&self, node: &str) -> anyhow::Result<()> {
        let at = self.place(node).context("no such node")?;
        if let Some(wan) = &self.wan {
            self.set_loss(wan, at, 0);
            return Ok(());
        }
        ip(&[
            "link",
            "set",
            &self.outer(at),
            "master",
            &bridge(self.network),
        ])
    }

    /// Changes what the line from one node to another does to packets; `None` is the centre.
    ///
    /// # Errors
    /// There is no such node, or they are not apart: at a bridge there are no lines.
    pub fn set_line(
        &self,
        from: Option<&str>,
        to: Option<&str>,
        quality: Quality,
    ) -> anyhow::Result<()> {
        let wan = self.wan.as_ref().context("no lines at a bridge")?;
        let place = |end: Option<&str>| match end {
            Some(node) => self.place(node).context("no such node"),
            None => Ok(self.nodes.len()),
        };
        wan.set(place(from)?, place(to)?, quality);
        Ok(())
    }

    /// On all lines from and to a node.
    fn set_loss(&self, wan: &Wan, at: usize, loss_permille: u16) {
        for (from, to) in pairs(self.nodes.len() + 1) {
            if from == at || to == at {
                let quality = Quality {
                    loss_permille,
                    ..wan.quality(from, to)
                };
                wan.set(from, to, quality);
            }
        }
    }

    /// Bytes of all frames or packets that the nodes have sent to each other so far.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn exchanged_bytes(&self) -> anyhow::Result<u64> {
        if let Some(wan) = &self.wan {
            let between = pairs(self.nodes.len()).map(|(from, to)| wan.sent_bytes(from, to));
            return Ok(between.sum());
        }
        let from = |device: &str| received_bytes(device);
        let mut sent = 0;
        for at in 0..self.nodes.len() {
            // What this end receives is what the node sent.
            sent += from(&self.outer(at))?;
        }
        // The bridge itself receives what is for the centre.
        Ok(sent.saturating_sub(from(&bridge(self.network))?))
    }

    fn place(&self, node: &str) -> Option<usize> {
        self.nodes.iter().position(|name| name == node)
    }

    fn address_at(&self, at: usize) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.network, at as u8 + 1)
    }

    fn namespace(&self, at: usize) -> String {
        format!("understudy-{}-{at}", self.network)
    }

    fn outer(&self, at: usize) -> String {
        format!("us{}o{at}", self.network)
    }

    fn inner(&self, at: usize) -> String {
        format!("us{}i{at}", self.network)
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        // What a half-made site does not have cannot be removed.
        for at in 0..self.nodes.len() {
            let _ = ip(&["netns", "delete", &self.namespace(at)]);
            let _ = ip(&["link", "delete", &self.outer(at)]);
        }
        let _ = ip(&["link", "delete", &bridge(self.network)]);
    }
}

/// Half the round trip between two of three regions. `round_trips_ms` are between the first and the second,
/// the first and the third, the second and the third; within a region there is none.
pub fn one_way(round_trips_ms: [f64; 3], from: usize, to: usize) -> Duration {
    let [near, far, between] = round_trips_ms;
    let round_trip_ms = match (from.min(to), from.max(to)) {
        (0, 1) => near,
        (0, 2) => far,
        (1, 2) => between,
        _ => 0.0,
    };
    Duration::from_secs_f64(round_trip_ms / 2000.0)
}

/// Writes a `pg_hba.conf` by whose method everybody logs in who reaches the bridge (initdb's own has the loopback only);
/// the value of PostgreSQL's parameter `hba_file`.
///
/// # Errors
/// It cannot be written.
pub fn hba_file(dir: &Path, method: &str) -> anyhow::Result<String> {
    let path = dir.join("pg_hba.conf");
    let lines =
        format!("local all all trust\nhost all all all {method}\nlocal replication all trust\n");
    std::fs::write(&path, lines).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.display().to_string())
}

/// The networks to try, from another one on in each process.
fn networks() -> impl Iterator<Item = u8> {
    let first = u32::from(NETWORKS.start);
    let count = u32::from(NETWORKS.end) - first;
    let start = std::process::id() % count;
    (0..count).map(move |n| (first + (start + n) % count) as u8)
}

/// All ordered pairs of different ones.
fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    let all = (0..count).flat_map(move |from| (0..count).map(move |to| (from, to)));
    all.filter(|(from, to)| from != to)
}

fn bridge(network: u8) -> String {
    format!("us{network}b")
}

fn received_bytes(device: &str) -> anyhow::Result<u64> {
    let path = format!("/sys/class/net/{device}/statistics/rx_bytes");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    text.trim()
        .parse()
        .with_context(|| format!("{path} is no number"))
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .context("cannot run ip (Debian's package iproute2)")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("ip {} failed: {}", arguments.join(" "), said.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_that_is_cut_off_is_not_reached_until_that_is_healed() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let names = ["a".to_owned(), "b".to_owned()];
        let sites = Sites::create(&names).unwrap();
        let reach = |node: &str| {
            let from = sites.wrapper("a").unwrap();
            let to = sites.address(node).unwrap().to_string();
            let probe = format!("exec 3<>/dev/tcp/{to}/9");
            let output = Command::new(&from[0])
                .args(&from[1..])
                .args(["timeout", "0.5", "bash", "-c", &probe])
                .output()
                .unwrap();
            // Refused is an answer, silence is none.
            String::from_utf8_lossy(&output.stderr).contains("refused")
        };
        assert!(reach("b"));
        sites.cut("b").unwrap();
        assert!(!reach("b"));
        sites.heal("b").unwrap();
        assert!(reach("b"));
        let bridge = bridge(sites.network);
        drop(sites);
        assert!(ip(&["link", "show", &bridge]).is_err());
    }

    #[test]
    fn a_packet_over_a_long_line_is_late_and_over_a_cut_one_does_not_arrive() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let delay = Duration::from_millis(50);
        let sites = Sites::apart(&["a".to_owned()], |_, _| delay).unwrap();
        let to = (sites.address("a").unwrap(), 9);
        let connect = || {
            let began = std::time::Instant::now();
            let timeout = Duration::from_millis(500);
            let error = std::net::TcpStream::connect_timeout(&to.into(), timeout).unwrap_err();
            (error.kind(), began.elapsed())
        };
        // Nobody listens there, which is an answer.
        let (kind, took) = connect();
        assert_eq!(kind, std::io::ErrorKind::ConnectionRefused);
        assert!(took >= 2 * delay, "{took:?}");
        sites.cut("a").unwrap();
        assert_eq!(connect().0, std::io::ErrorKind::TimedOut);
        sites.heal("a").unwrap();
        assert_eq!(connect().0, std::io::ErrorKind::ConnectionRefused);
    }
}
