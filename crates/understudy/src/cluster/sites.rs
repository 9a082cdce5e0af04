//! Machines of their own for nodes, as far as the network goes: a network namespace each, joined by a
//! bridge, from which each can be cut off without a sign to anybody.
//!
//! Invariant: namespaces and the bridge are gone when [`Sites`] is dropped. A cut loses frames and
//! sends nothing, as a machine that vanishes or a broken switch; a killed process's machine would
//! still refuse connections.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, bail};

/// Networks 198.18.N.0/24 are set aside for benchmarks (RFC 2544).
const NETWORKS: std::ops::Range<u8> = 1..250;
/// The last byte of the bridge's address: zones and clients live there.
const CENTRE: u8 = 254;

/// Namespaces of some nodes. See the module.
#[derive(Debug)]
pub struct Sites {
    network: u8,
    nodes: Vec<String>,
}

impl Sites {
    /// Makes a namespace for each node.
    ///
    /// # Errors
    /// The caller is not root, or `ip` (Debian's `iproute2`) is missing.
    pub fn create(nodes: &[String]) -> anyhow::Result<Sites> {
        let first = u32::from(NETWORKS.start);
        let count = u32::from(NETWORKS.end) - first;
        let start = std::process::id() % count;
        let mut networks = (0..count).map(|n| (first + (start + n) % count) as u8);
        let network = networks
            .find(|n| ip(&["link", "add", &bridge(*n), "type", "bridge"]).is_ok())
            .context(
                "cannot make a network bridge: that needs root, Debian's package iproute2, \
                 and a kernel with bridges",
            )?;
        // From here on dropping it cleans up.
        let sites = Sites {
            network,
            nodes: nodes.to_vec(),
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
        ip(&["link", "set", &self.outer(at), "nomaster"])
    }

    /// Undoes a cut.
    ///
    /// # Errors
    /// There is no such node.
    pub fn heal(&self, node: &str) -> anyhow::Result<()> {
        let at = self.place(node).context("no such node")?;
        ip(&[
            "link",
            "set",
            &self.outer(at),
            "master",
            &bridge(self.network),
        ])
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

fn bridge(network: u8) -> String {
    format!("us{network}b")
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
}
