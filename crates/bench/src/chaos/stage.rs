//! The cluster under chaos: its processes, networks, disks and clocks, and its clients.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use cluster::Cluster;
use cluster::clients::churn::Churn;
use cluster::clients::clock::Clock;
use cluster::clients::load::{self, Load};
use cluster::clients::schema;
use cluster::clients::session::connect;
use cluster::disk::Disk;
use cluster::proxy::Proxy;
use cluster::sites::{self, Sites};
use cluster::stock::{Place, Stock};
use nix::unistd::Pid;
use tokio::task::JoinSet;

use super::clients::SCHEMA;
use super::clients::applications::{self, Applications};
use super::clients::lists::Appenders;
use super::clients::numbers::Drawers;
use super::clients::prepared::Coordinators;
use super::clients::readers::Readers;
use super::clients::roles::Roles;
use super::clients::strong::StrongReaders;
use super::clocks::Clocks;
use super::faults::{Faults, Member};
use super::plan::{Line, Way};
use super::releases::Releases;
use super::report::{Ended, Struck};
use super::{Flaw, MEMBERS, Options, SIZE, unproven};

/// How long anything may take at the start.
const TIMEOUT: Duration = Duration::from_secs(180);
/// The names of the nodes; zones are called as the cluster calls them.
const NODES: [&str; 3] = ["north", "south", "east"];
/// Room on a zone's disk, which is in memory. A zone leaves 1 GiB of it free.
pub(super) const DISK_BYTES: u64 = 6 << 30;
/// Sessions through the proxy.
const STRONG_READERS: usize = 2;
/// pgbench's scale.
const SCALE: u32 = 1;

/// Lines of the proxy's configuration. A second name of the database has the other pool mode.
const PROXY: [&str; 5] = [
    "[reads]",
    "mode = \"strong\"",
    "[databases.pooled]",
    "dbname = \"postgres\"",
    "pool_mode = \"transaction\"",
];

/// Everybody who uses the database.
pub(super) struct Clients {
    pub transfers: Load,
    pub lists: Appenders,
    pub numbers: Drawers,
    pub prepared: Coordinators,
    pub readers: Readers,
    pub strong: StrongReaders,
    pub applications: Applications,
    pub churn: Churn,
}

/// Fields are dropped in this order: clients, processes, disks, networks.
pub(super) struct Stage {
    pub clients: Clients,
    pub roles: Roles,
    pub orders: JoinSet<()>,
    pub proxy: Proxy,
    /// Where the applications have a foreign table. Nothing strikes it.
    pub remote: Stock,
    pub cluster: Cluster,
    pub disks: Vec<Disk>,
    pub sites: Arc<Sites>,
    pub clocks: Option<Clocks>,
    pub clock: Clock,
    pub flaw: Option<Flaw>,
    pub faults: Faults,
    /// Which of two releases each member has, if there are two.
    pub releases: Option<Releases>,
    /// The zone server that is no member.
    pub spare: u8,
    /// An exchange was ordered in this round.
    pub exchanging: bool,
    /// Lines that are not perfect: who, to whom or to everybody, which way.
    pub lines: Vec<(Member, Option<Member>, Way, Line)>,
    /// What was stopped of each member.
    pub stopped: HashMap<Member, Vec<Pid>>,
    /// Who ended by itself, and since when; it is started again after a moment.
    pub fallen: HashMap<Member, Instant>,
    pub struck: Vec<Struck>,
    pub ended: Vec<Ended>,
    /// How long it took after each round until everything was whole.
    pub healed: Vec<Duration>,
}

/// What a member is called.
pub(super) fn name(member: Member) -> String {
    match member {
        Member::Node(at) => NODES[usize::from(at) % NODES.len()].to_owned(),
        Member::Zone(at) => format!("zone-{}", at + 1),
    }
}

/// All of them.
pub(super) fn members() -> impl Iterator<Item = Member> {
    let nodes = (0..SIZE.nodes).map(Member::Node);
    nodes.chain((0..SIZE.zones).map(Member::Zone))
}

impl Stage {
    /// Starts the cluster and the clients.
    ///
    /// # Errors
    /// The caller is not root, or something does not come up.
    pub async fn set(options: &Options) -> anyhow::Result<Stage> {
        let names: Vec<String> = members().map(name).collect();
        let sites = Arc::new(Sites::apart(&names, |_, _| Duration::ZERO)?);
        let clocks = Clocks::find(&options.dir.join("clocks"))?;
        let disks = (0..SIZE.zones)
            .map(|zone| Disk::mount_losing(&options.dir.join(name(Member::Zone(zone))), DISK_BYTES))
            .collect::<anyhow::Result<Vec<Disk>>>()?;
        let settings = settings(options, &sites, clocks.as_ref())?;
        let mut cluster = Cluster::create(settings)?;
        for _ in MEMBERS..SIZE.zones {
            cluster.add_zone()?;
        }
        cluster.start_first().await?;
        let active = cluster.wait_active(TIMEOUT).await?;
        let server = cluster.server(&active)?;
        schema::create(&options.bin, &server, SCALE).await?;
        let client = connect(&server.config()).await?;
        client.batch_execute(SCHEMA).await?;
        let remote = remote(options, &sites).await?;
        applications::create(&server, &remote.server()).await?;
        client.batch_execute("CHECKPOINT").await?;
        cluster.start_others().await?;
        let clock = Clock::start();
        let nodes = nodes(&cluster)?;
        let proxy = cluster.start_proxy(&PROXY).await?;
        Ok(Stage {
            clients: Clients::start(options, &cluster, &proxy, clock)?,
            roles: Roles::watch(nodes),
            orders: JoinSet::new(),
            proxy,
            remote,
            cluster,
            disks,
            sites,
            clocks,
            clock,
            flaw: options.flaw,
            faults: Faults::new(options.flaw == Some(Flaw::TwoDisks)),
            releases: options
                .before
                .clone()
                .map(|before| Releases::begin(before, options.understudy.clone())),
            spare: MEMBERS,
            exchanging: false,
            lines: Vec::new(),
            stopped: HashMap::new(),
            fallen: HashMap::new(),
            struck: Vec::new(),
            ended: Vec::new(),
            healed: Vec::new(),
        })
    }

    /// Since the beginning, as the fault state counts.
    pub fn now(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.clock.now().0).unwrap_or(0))
    }

    /// Commits of the transfers that were acknowledged so far.
    pub fn commits(&self) -> u64 {
        self.clients.transfers.acknowledged()
    }

    /// Starts a member.
    ///
    /// # Errors
    /// Its program cannot be run.
    pub fn start(&mut self, member: Member) -> anyhow::Result<()> {
        if let Some(releases) = &self.releases {
            self.cluster.use_program(releases.program(member));
        }
        match member {
            Member::Node(_) => self.cluster.start_node(&name(member)),
            Member::Zone(at) => self.cluster.start_zone(usize::from(at) + 1),
        }
    }

    /// Kills a member with all its processes.
    pub fn kill(&mut self, member: Member) {
        let kill = tokio::task::block_in_place(|| match member {
            Member::Node(_) => self.cluster.kill_node(&name(member)),
            Member::Zone(at) => self.cluster.kill_zone(usize::from(at) + 1),
        });
        if kill.is_none() {
            tracing::debug!(?member, "was not running");
        }
    }

    /// A member's process.
    pub fn process(&mut self, member: Member) -> Option<&mut cluster::process::Process> {
        match member {
            Member::Node(_) => self.cluster.node_process(&name(member)),
            Member::Zone(at) => self.cluster.zone_process(usize::from(at) + 1),
        }
    }
}

/// A server of its own, at the centre.
async fn remote(options: &Options, sites: &Sites) -> anyhow::Result<Stock> {
    let dir = options.dir.join("remote");
    std::fs::create_dir_all(&dir)?;
    let parameters = vec![("hba_file".to_owned(), sites::hba_file(&dir, "trust")?)];
    let place = Place {
        address: sites.centre(),
        wrapper: Vec::new(),
    };
    Stock::start_at(place, &dir.join("server"), &options.bin, parameters).await
}

/// Every node with the connection string for it alone.
fn nodes(cluster: &Cluster) -> anyhow::Result<Vec<(String, tokio_postgres::Config)>> {
    let names = cluster.names().map(str::to_owned);
    names
        .map(|name| {
            let server = cluster.server(&name)?.config();
            Ok((name, server))
        })
        .collect()
}

fn settings(
    options: &Options,
    sites: &Arc<Sites>,
    clocks: Option<&Clocks>,
) -> anyhow::Result<cluster::Options> {
    // The volume is of the release before, and so is everybody at first.
    let program = options.before.as_ref().unwrap_or(&options.understudy);
    let mut settings = cluster::Options::new(&options.dir, &options.bin, program);
    settings.tls = true;
    settings.nodes = NODES.map(str::to_owned).to_vec();
    settings.zones = usize::from(MEMBERS);
    settings.sites = Some(Arc::clone(sites));
    settings.heartbeat.clone_from(&options.heartbeat);
    // Whatever is found has to be explained afterwards.
    settings.log_filter = Some("info".into());
    if let Some(clocks) = clocks {
        for member in members().map(name) {
            let wrapper = clocks.wrapper(&member)?;
            settings.wrappers.push((member, wrapper));
        }
    }
    let parameters = [
        ("hba_file", sites::hba_file(&options.dir, "scram-sha-256")?),
        // Pages leave all the time, and every takeover is near a checkpoint.
        ("shared_buffers", "16MB".into()),
        ("checkpoint_timeout", "30s".into()),
        ("max_prepared_transactions", "50".into()),
        // A client that is cut off must not hold its locks for ever.
        ("tcp_user_timeout", "10s".into()),
        ("idle_in_transaction_session_timeout", "20s".into()),
    ];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value));
    settings.parameters.extend(parameters);
    Ok(settings)
}

impl Clients {
    fn start(
        options: &Options,
        cluster: &Cluster,
        proxy: &Proxy,
        clock: Clock,
    ) -> anyhow::Result<Clients> {
        let application = cluster.any_writable();
        let (rate, seed) = (options.rate, options.seed);
        let transfers = load::Options {
            clients: 4,
            scale: SCALE,
            rate: Some(rate * 0.5),
            connects: Some(2),
            seed,
            timeout: Duration::from_secs(10),
            connect_within: Duration::from_millis(1_500),
            retry: Duration::from_millis(500),
            ..load::Options::default()
        };
        let standby = match options.flaw {
            Some(Flaw::StaleReads) => Some(cluster.server(NODES[2])?.config()),
            _ => None,
        };
        let strong = match options.flaw {
            Some(Flaw::UnprovenPosition) => unproven::start(proxy)?.config(),
            _ => standby.clone().unwrap_or_else(|| proxy.server().config()),
        };
        let lists = Appenders::start(application.clone(), standby, (6, rate * 0.3, seed), clock);
        let readers = Readers::start(nodes(cluster)?, &lists.window(), clock);
        let strong = StrongReaders::start(&strong, STRONG_READERS, &lists.window(), clock);
        Ok(Clients {
            transfers: Load::start(application.clone(), transfers, clock),
            lists,
            numbers: Drawers::start(&application, 3, rate * 0.1, clock),
            prepared: Coordinators::start(application.clone(), 3, rate * 0.1, seed),
            readers,
            strong,
            applications: Applications::start(proxy.server(), rate * 0.2, clock),
            churn: Churn::paced(application, Some(rate / 120.0)),
        })
    }
}

/// The process id of a node's postmaster.
///
/// # Errors
/// It has none.
pub(super) fn postmaster(stage: &mut Stage, member: Member) -> anyhow::Result<Pid> {
    let name = name(member);
    stage.cluster.postmaster(&name).context("no postmaster")
}
