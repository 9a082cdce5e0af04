//! The configuration files of a cluster on this machine.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use dax::credentials::write_new;
use store::Network;

use super::credentials::{Credentials, VOLUME};
use super::ports;
use super::sites::Sites;
use crate::clients::schema::Server;

/// How a cluster is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where data, configuration and logs go. PostgreSQL's user must be able to pass through.
    pub dir: PathBuf,
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// How many zones.
    pub zones: usize,
    /// An address of Cassandra, which is the storage tier then; `zones` is 0.
    pub store: Option<String>,
    /// Zone servers, and copies of every block, in each zone.
    pub servers_per_zone: usize,
    /// Further arguments of `understudy init`.
    pub init_arguments: Vec<String>,
    /// Lines of the nodes' `[memory]`.
    pub memory: Vec<String>,
    /// Lines of the nodes' `[standby]`.
    pub standby: Vec<String>,
    /// Lines of the nodes' `[storage]`.
    pub storage: Vec<String>,
    /// Lines of the nodes' `[backup]`: they archive by themselves.
    pub backup: Vec<String>,
    /// Lines of the nodes' `[past]`.
    pub past: Vec<String>,
    /// Programs that run a node: its name, and the command that its own is given to (`nice -n 10`).
    pub wrappers: Vec<(String, Vec<String>)>,
    /// The nodes' names; the first becomes the active.
    pub nodes: Vec<String>,
    /// Those of them that are spares.
    pub spares: Vec<String>,
    /// The heartbeat's preset: fast, normal or wide.
    pub heartbeat: String,
    /// `RUST_LOG` for the children, if it shall differ from ours.
    pub log_filter: Option<String>,
    /// Parameters of the server for every node.
    pub parameters: Vec<(String, String)>,
    /// Another server than PostgreSQL: the lines of the nodes' `[engine]`, without the port.
    pub engine: Option<Vec<String>>,
    /// The volume's name.
    pub volume: String,
    /// Distances to emulate between zones, which are named "0", "1", ... Each zone server is in its
    /// own; the nodes are in zones 0, 1, ..., and again from 0. Without, all are in one place.
    pub network: Option<Network>,
    /// Network namespaces that the nodes live in, and zone servers whose names ("zone-1", ...) are among
    /// them; the others are at their centre. Without, everything is at 127.0.0.1.
    pub sites: Option<Arc<Sites>>,
    /// The superuser's password, by which everybody logs in with SCRAM; whoever can connect may, if there is none.
    pub password: Option<String>,
    /// True if zones and nodes talk over TLS, as they must between machines. Needed with `sites`.
    pub tls: bool,
}

/// A line of `[memory]` for every node of every cluster, so that all tests can be run with an option that is off by default.
const EVERYWHERE_MEMORY: &str = "UNDERSTUDY_TEST_MEMORY";
/// The same of `[storage]`.
const EVERYWHERE_STORAGE: &str = "UNDERSTUDY_TEST_STORAGE";

/// Of a database that is gone in a minute.
const PASSWORD: &str = "demo";

/// The file with the superuser's password, in a cluster's directory.
pub const PASSWORD_FILE: &str = "postgres.password";

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// What the zone server with this place in the list is called.
pub(super) fn zone_name(at: usize) -> String {
    format!("zone-{}", at + 1)
}

impl Options {
    /// Three zones and two nodes in `dir`.
    pub fn new(dir: &Path, bin: &Path, understudy: &Path) -> Options {
        Options {
            dir: dir.to_owned(),
            bin: bin.to_owned(),
            understudy: understudy.to_owned(),
            zones: 3,
            store: None,
            servers_per_zone: 1,
            init_arguments: Vec::new(),
            memory: Vec::new(),
            standby: Vec::new(),
            storage: Vec::new(),
            backup: Vec::new(),
            past: Vec::new(),
            wrappers: Vec::new(),
            nodes: vec!["north".into(), "south".into()],
            spares: Vec::new(),
            heartbeat: "fast".into(),
            log_filter: None,
            parameters: Vec::new(),
            engine: None,
            volume: VOLUME.to_owned(),
            network: None,
            sites: None,
            password: Some(PASSWORD.to_owned()),
            tls: false,
        }
    }

    /// Where the zone server with this place in the list listens: at a site of its own if there is one.
    pub(super) fn zone_address(&self, at: usize) -> Ipv4Addr {
        let site = |sites: &Arc<Sites>| sites.address(&zone_name(at)).unwrap_or(sites.centre());
        self.sites.as_ref().map_or(LOOPBACK, site)
    }

    /// Where a node listens.
    fn address_of(&self, node: &str) -> Ipv4Addr {
        let site = self.sites.as_ref().and_then(|sites| sites.address(node));
        site.unwrap_or(LOOPBACK)
    }

    /// The command that a member's own is given to, if there is one.
    pub(super) fn wrapper_of(&self, name: &str) -> Vec<String> {
        let site = self.sites.as_ref().and_then(|sites| sites.wrapper(name));
        let wrapper = self.wrappers.iter().find(|(member, _)| member == name);
        let wrapper = wrapper.map(|(_, words)| words.clone());
        [site, wrapper].into_iter().flatten().flatten().collect()
    }

    /// The file with the superuser's password.
    pub(super) fn password_file(&self) -> PathBuf {
        self.dir.join(PASSWORD_FILE)
    }

    /// Writes the superuser's password down; the arguments of `understudy init` that say how clients log in.
    pub(super) fn login(&self) -> anyhow::Result<Vec<String>> {
        let arguments = match &self.password {
            _ if self.engine.is_some() => vec![],
            Some(password) => {
                let file = self.password_file();
                write_new(&file, password)?;
                vec!["--password-file".to_owned(), file.display().to_string()]
            }
            None => vec!["--".to_owned(), "--auth-host=trust".to_owned()],
        };
        Ok(arguments)
    }

    /// Where the logs of all processes are.
    pub fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// The log of one of them.
    pub(super) fn log_of(&self, name: &str) -> PathBuf {
        self.logs().join(format!("{name}.log"))
    }

    /// The network file, if a network is emulated.
    pub(super) fn network_file(&self) -> PathBuf {
        self.dir.join("network.toml")
    }

    /// The zone that a node is in, if that matters.
    fn zone_of(&self, node: &str) -> Option<usize> {
        let at = self.nodes.iter().position(|name| name == node)?;
        if self.store.is_some() {
            // As many data centres as a development cluster of Cassandra has.
            return Some(at % 3);
        }
        let sites = self.sites.as_ref();
        let apart = self.network.is_some()
            || sites.is_some_and(|sites| sites.address(&zone_name(0)).is_some());
        apart.then_some(at % self.zones.max(1))
    }
}

/// One node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSettings {
    /// Name of the node in its configuration.
    pub name: String,
    /// Its configuration file.
    pub config: PathBuf,
    /// Its local directory.
    pub data: PathBuf,
    /// Where it is.
    pub address: Ipv4Addr,
    /// Where its PostgreSQL listens.
    pub port: u16,
    /// Where its HTTP interface listens.
    pub rest_port: u16,
    /// The superuser's password, if there is one.
    pub password: Option<String>,
}

impl NodeSettings {
    /// Chooses ports and writes the file.
    pub(super) fn write(
        options: &Options,
        name: &str,
        zone_ports: &[u16],
        credentials: &Credentials,
    ) -> anyhow::Result<NodeSettings> {
        let node = NodeSettings {
            name: name.to_owned(),
            config: options.dir.join(format!("{name}.toml")),
            data: options.dir.join(name),
            address: options.address_of(name),
            port: ports::free()?,
            rest_port: ports::free()?,
            password: options.password.clone(),
        };
        let text = text(options, &node, (zone_ports, credentials), ports::free()?);
        std::fs::write(&node.config, text)
            .with_context(|| format!("cannot write {}", node.config.display()))?;
        Ok(node)
    }

    /// Where its PostgreSQL listens.
    pub fn server(&self) -> Server {
        Server {
            host: self.address.to_string(),
            port: self.port,
            user: "postgres".into(),
            database: "postgres".into(),
            password: self.password.clone(),
        }
    }
}

fn text(
    options: &Options,
    node: &NodeSettings,
    (zone_ports, credentials): (&[u16], &Credentials),
    channel: u16,
) -> String {
    let server = |(at, port): (usize, &u16)| format!("\"{}:{port}\"", options.zone_address(at));
    let servers: Vec<String> = zone_ports.iter().enumerate().map(server).collect();
    let zones = servers.chunks(options.servers_per_zone.max(1));
    let zones: Vec<String> = zones.map(|zone| format!("[{}]", zone.join(", "))).collect();
    let storage = match &options.store {
        Some(store) => format!("store = \"{store}\""),
        None => format!(
            "zones = [{}]\nkey = \"{}\"",
            zones.join(", "),
            credentials.key.display()
        ),
    };
    let address = node.address;
    let mut text = format!(
        "name = \"{}\"\n\
         volume = \"{}\"\n\
         {storage}\n\
         data = \"{}\"\n\
         \n\
         {}\n\
         \n\
         [heartbeat]\n\
         preset = \"{}\"\n\
         \n\
         [channel]\n\
         listen = \"{address}:{channel}\"\n\
         \n\
         [rest]\n\
         listen = \"{address}:{}\"\n\
         token = \"{}\"\n",
        node.name,
        options.volume,
        node.data.display(),
        server_lines(options, node),
        options.heartbeat,
        node.rest_port,
        credentials.token.display(),
    );
    if let Some(identity) = &credentials.identity {
        // Writing to a String never fails.
        let _ = write!(text, "\n[tls]\nidentity = \"{}\"\n", identity.display());
    }
    let zone = options.zone_of(&node.name);
    let zone = zone.map(|zone| format!("zone = {zone}\n"));
    let spare = options.spares.contains(&node.name);
    let spare = spare.then(|| "spare = true\n".to_owned());
    let tags: String = zone.into_iter().chain(spare).collect();
    if !tags.is_empty() {
        // Writing to a String never fails.
        let _ = write!(text, "\n[tags]\n{tags}");
    }
    let everywhere = |variable: &str| match options.engine {
        Some(_) => String::new(),
        None => std::env::var(variable).unwrap_or_default(),
    };
    text.push_str(&table(
        "memory",
        &options.memory,
        &everywhere(EVERYWHERE_MEMORY),
    ));
    text.push_str(&table("standby", &options.standby, ""));
    text.push_str(&table("backup", &options.backup, ""));
    text.push_str(&table("past", &options.past, ""));
    text.push_str(&table(
        "storage",
        &options.storage,
        &everywhere(EVERYWHERE_STORAGE),
    ));
    if !options.parameters.is_empty() {
        let table = if options.engine.is_some() {
            "engine"
        } else {
            "postgres"
        };
        // Writing to a String never fails.
        let _ = write!(text, "\n[{table}.parameters]\n");
        for (name, value) in &options.parameters {
            // Writing to a String never fails.
            let _ = writeln!(text, "{name} = \"{value}\"");
        }
    }
    text
}

/// The table of the server that the node runs.
fn server_lines(options: &Options, node: &NodeSettings) -> String {
    let (address, port) = (node.address, node.port);
    match &options.engine {
        Some(lines) => format!(
            "[engine]\nport = {port}\nlisten = \"{address}\"\n{}",
            lines.join("\n")
        ),
        None => format!(
            "[postgres]\nbin = \"{}\"\nport = {port}\nlisten_addresses = \"{address}\"",
            options.bin.display()
        ),
    }
}

/// A table with these lines, and one that is there unless they say something else; nothing if there are none.
fn table(name: &str, lines: &[String], everywhere: &str) -> String {
    let key = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
    let is_said = lines.iter().any(|line| key(line) == key(everywhere));
    let more = (!everywhere.is_empty() && !is_said).then(|| everywhere.to_owned());
    let lines: Vec<String> = lines.iter().cloned().chain(more).collect();
    match lines.is_empty() {
        true => String::new(),
        false => format!("\n[{name}]\n{}\n", lines.join("\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_cluster_override_general_ones() {
        let own = ["wal_sync = \"strict\"".to_owned()];
        let ordered = "wal_sync = \"pipelined\"";
        assert_eq!(
            table("storage", &own, ordered),
            "\n[storage]\nwal_sync = \"strict\"\n"
        );
        assert_eq!(
            table("storage", &[], ordered),
            "\n[storage]\nwal_sync = \"pipelined\"\n"
        );
        assert_eq!(table("storage", &[], ""), "");
    }
}
