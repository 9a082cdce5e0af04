//! Arguments of what makes up a cluster: zones, keys, the volume, nodes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use coordination::config::ByteSize;
use dax::ids::{NodeName, VolumeName};
use dax::storage::Protocol;

use super::{node_name, volume_name};

/// Serve one zone: keep a replica of every volume's blocks in a local directory.
///
/// Run one in each data centre, in each rack, or on each disk. `init` waits until all of them serve.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy store --data /var/lib/understudy/zone-a --listen 10.0.0.1:7101 \\
    --identity /etc/understudy/cluster.pem
  understudy store --data ./zone-a --listen 127.0.0.1:7101")]
pub struct Store {
    /// Directory for the blocks; created if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Address to listen on: host:port or unix:/path. Can be given several times. Serving other machines
    /// requires --identity, or --certificate, --certificate-key and --ca.
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub listen: Vec<String>,
    /// For tests on one machine: emulate the distances to clients that this file specifies (see
    /// docs/operate/zones.md). The file is watched: a change takes effect at once.
    #[arg(long, value_name = "FILE", requires = "zone")]
    pub network: Option<PathBuf>,
    /// The zone that this server is in, as the network file names it.
    #[arg(long, value_name = "NAME", requires = "network")]
    pub zone: Option<String>,
    /// The cluster's identity, the same file on every machine: clients that connect to host:port must have
    /// it, and connections are encrypted. understudy init creates it. Without an identity, or certificates
    /// of your own authority, only this machine can connect.
    #[arg(long, value_name = "FILE", conflicts_with = "certificate")]
    pub identity: Option<PathBuf>,
    /// Instead of an identity: this machine's certificate, issued by your own authority.
    #[arg(long, value_name = "FILE", requires_all = ["certificate_key", "ca"])]
    pub certificate: Option<PathBuf>,
    /// The certificate's key.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub certificate_key: Option<PathBuf>,
    /// The authority's certificate: clients with a certificate of this authority can connect.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub ca: Option<PathBuf>,
    /// If several databases share the zones: the zones' secret. Clients must prove that they know their
    /// volume's key, which is derived from it. See understudy key.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Memory for what was read, beside the kernel's cache of the zone's files.
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    pub cache: ByteSize,
    /// End when standard input ends.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// Create the cluster's identity, the zones' secret, or the key of a volume.
///
/// The identity is the same file on every machine. All zones have the same secret. A node gets only the
/// key of its volume, and cannot read or write any other volume with it. The files are created so that
/// only their owner can read them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy key --new-identity /etc/understudy/cluster.pem
  understudy key --new-secret /etc/understudy/zones.secret
  understudy key --secret-file /etc/understudy/zones.secret --volume main --output main.key")]
pub struct Key {
    /// Write a new certificate and its key to this file, which must not exist.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["new_secret", "secret_file", "volume", "output"]
    )]
    pub new_identity: Option<PathBuf>,
    /// Write a new random secret to this file, which must not exist.
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present_any = ["secret_file", "new_identity"],
        conflicts_with_all = ["secret_file", "volume", "output"]
    )]
    pub new_secret: Option<PathBuf>,
    /// The zones' secret: at least 32 random bytes, raw or as hexadecimal digits.
    #[arg(long, value_name = "FILE", requires = "volume")]
    pub secret_file: Option<PathBuf>,
    /// The volume whose key to create; it need not exist yet.
    #[arg(long, value_name = "NAME", requires = "secret_file", value_parser = volume_name)]
    pub volume: Option<VolumeName>,
    /// Write the key to this file, which must not exist. Default: standard output.
    #[arg(long, value_name = "FILE", requires = "secret_file")]
    pub output: Option<PathBuf>,
}

/// Create a volume in the zones, and an empty or imported database in it.
///
/// Run it once for each cluster, on any node, before the first `node`. The superuser's name and
/// PostgreSQL's version are taken from the configuration. If the configuration names an identity that
/// does not exist, it is created, and the command then waits until the zones have it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy init --config /etc/understudy/north.toml
  understudy init --config north.toml --password-file /etc/understudy/postgres.password
  understudy init --config north.toml -- --locale=C.UTF-8 --data-checksums
  understudy init --config north.toml --import /var/lib/postgresql/15/main
  understudy init --config north.toml --store cassandra://10.0.0.1,10.0.0.2/understudy")]
pub struct Init {
    /// The node's configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The storage tier, overriding the configuration: nodes of Apache Cassandra and a keyspace, which
    /// is created if it is missing. The configuration of every node must then name the same.
    #[arg(long, value_name = "cassandra://HOST,HOST/KEYSPACE")]
    pub store: Option<String>,
    /// Which server the configuration must be for, if not PostgreSQL: mariadb, or command. See
    /// docs/products/engines.md.
    #[arg(long, value_name = "KIND")]
    pub engine: Option<String>,
    /// Copy this data directory of a cleanly stopped PostgreSQL instead of running initdb.
    #[arg(long, value_name = "DIR")]
    pub import: Option<PathBuf>,
    /// Number of copies that make a write durable (k). Default: a majority, in at least two zones. There
    /// are as many copies (N) as servers listed under "zones" in the configuration.
    #[arg(long, value_name = "K")]
    pub sync_replicas: Option<u8>,
    /// How blocks are written and read. All protocols but the default are for comparison only.
    #[arg(long, value_enum, default_value_t = BlockProtocol::StrongOptimistic)]
    pub protocol: BlockProtocol,
    /// File whose first line is the password of the superuser. Without a password, nobody can log in over
    /// the network until one is set.
    #[arg(long, value_name = "FILE", conflicts_with = "import")]
    pub password_file: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Additional arguments for initdb.
    #[arg(
        last = true,
        value_name = "INITDB ARGUMENTS",
        conflicts_with = "import"
    )]
    pub initdb: Vec<String>,
}

/// Open a session on the active with psql, as the superuser, from any node.
///
/// No password is needed: on the active's own machine, psql uses PostgreSQL's private socket, and on other
/// nodes the agents' protected channel ([tls]). In a cluster without [tls], psql connects over the network
/// from other nodes, and asks for the password.
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is that of psql. psql is taken from postgres.bin of the configuration, or else from PATH.

Examples:
  understudy psql --config /etc/understudy/north.toml
  understudy psql --config north.toml -- -d app -c 'SELECT now()'
  understudy psql --config north.toml --node south")]
pub struct Psql {
    /// A node's configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The node to connect to. Default: the active.
    #[arg(long, value_name = "NODE", value_parser = node_name)]
    pub node: Option<NodeName>,
    /// Arguments for psql.
    #[arg(last = true, value_name = "PSQL ARGUMENTS")]
    pub arguments: Vec<OsString>,
}

/// The variants of the block protocol that DAX compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BlockProtocol {
    /// Baseline 1: writes wait for all copies, reads ask one.
    WriteAll,
    /// Baseline 2: writes wait for k copies, reads ask N-k+1.
    Quorum,
    /// Sync points wait for one copy: losing a zone loses acknowledged commits.
    BasicOptimistic,
    /// Sync points wait for k copies, reads ask one where its version proves to be the newest.
    StrongOptimistic,
}

impl From<BlockProtocol> for Protocol {
    fn from(protocol: BlockProtocol) -> Protocol {
        match protocol {
            BlockProtocol::WriteAll => Protocol::WriteAll,
            BlockProtocol::Quorum => Protocol::Quorum,
            BlockProtocol::BasicOptimistic => Protocol::BasicOptimistic,
            BlockProtocol::StrongOptimistic => Protocol::StrongOptimistic,
        }
    }
}

/// Run a proxy: one address for clients that survives takeovers.
///
/// Clients connect to it as to PostgreSQL. It follows the cluster's agents to whoever is the active, holds
/// transactions during planned work, runs interrupted ones again, and sends reads to standbys if it is
/// configured to. Several proxies may run side by side. A node whose configuration has [proxy] runs one itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy proxy --config /etc/understudy/proxy.toml")]
pub struct Proxy {
    /// A configuration file with the name, volume, zones and [tls] of a node's, and [proxy].
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// End when standard input ends.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// Run a node: agent, mount and PostgreSQL.
///
/// It becomes the active if there is none, and a standby otherwise, and takes over when the active fails.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy node --config /etc/understudy/north.toml")]
pub struct Node {
    /// The node's configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// End when standard input ends.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}
