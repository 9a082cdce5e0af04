//! How many transactions a second each way lets through, and how long they take.

use cluster::clients::schema;
use cluster::clients::session::connect;
use serde::Serialize;

use super::ways::{Cost, Open, Way};
use super::{Limit, Load, Options};
use crate::peers::{tpcc, ycsb};
use crate::rates::{Logs, Rate};
use crate::statistics::Sample;

/// Foreign keys as pgbench makes them, and a trigger that keeps what accounts had.
const KEYS: &str = "
    ALTER TABLE pgbench_tellers ADD FOREIGN KEY (bid) REFERENCES pgbench_branches;
    ALTER TABLE pgbench_accounts ADD FOREIGN KEY (bid) REFERENCES pgbench_branches;
    ALTER TABLE pgbench_history ADD FOREIGN KEY (bid) REFERENCES pgbench_branches,
        ADD FOREIGN KEY (tid) REFERENCES pgbench_tellers, ADD FOREIGN KEY (aid) REFERENCES pgbench_accounts;
    CREATE TABLE audit (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aid int NOT NULL, old int, new int);
    CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO public.audit (aid, old, new) VALUES (NEW.aid, OLD.abalance, NEW.abalance);
        RETURN NULL;
    END $$;
    CREATE TRIGGER audit AFTER UPDATE ON pgbench_accounts FOR EACH ROW EXECUTE FUNCTION audit()";

/// One load, on all ways.
#[derive(Debug, Clone, Serialize)]
pub struct Workload {
    /// What was sent.
    pub load: Load,
    /// YCSB's records; 0 for others.
    pub records: u32,
    /// By how many clients.
    pub clients: u16,
    /// What limited the servers' processors.
    pub limit: Limit,
    /// Each way; what they are compared with is the first.
    pub ways: Vec<Measured>,
}

/// One load on one way.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Which.
    pub way: Way,
    /// Transactions a second.
    pub tps: Sample,
    /// The middle latency in milliseconds.
    pub p50_ms: Sample,
    /// The latency that one transaction in a hundred exceeds, in milliseconds.
    pub p99_ms: Sample,
    /// Processor time of all database servers for a transaction, in microseconds.
    pub databases_us: Sample,
    /// The same of managers, zones or Pgpool-II: what is between clients and databases.
    pub others_us: Sample,
    /// Its transactions a second by those of the first way: medians.
    pub ratio: f64,
}

/// What one run gave.
struct Run {
    rate: Rate,
    cost: Cost,
}

impl Run {
    fn each_us(&self, seconds: f64) -> f64 {
        seconds * 1e6 / (self.rate.transactions as f64).max(1.0)
    }
}

/// Measures every combination: each number of records on fresh servers.
pub(super) async fn measure(
    options: &Options,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<Workload>> {
    let mut workloads = Vec::new();
    for &load in &options.loads {
        let sizes = match load {
            Load::Ycsb => options.records.as_slice(),
            Load::TpcB | Load::Keys | Load::TpcC => &[0],
        };
        for &records in sizes {
            let mut ways = open(options, load, records, say).await?;
            for &limit in &options.limits {
                for way in &mut ways {
                    way.limit(limit, options.slice_percent)?;
                }
                for &clients in &options.clients {
                    let kind = (load, records, clients);
                    let workload = alternate(options, &ways, kind, limit).await?;
                    say(&sentence(&workload));
                    workloads.push(workload);
                }
            }
            for way in &mut ways {
                way.check().await?;
            }
            drop(ways);
            for way in &options.ways {
                std::fs::remove_dir_all(options.dir.join(way.to_string()))?;
            }
        }
    }
    Ok(workloads)
}

/// All ways, with their data.
async fn open(
    options: &Options,
    load: Load,
    records: u32,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<Open>> {
    let mut ways = Vec::new();
    for &way in &options.ways {
        say(&format!("{way}: starting and filling"));
        let mut open = Open::new(way, options).await?;
        for server in open.filled() {
            match load {
                Load::Ycsb => ycsb::create_table(server, records).await?,
                Load::TpcB => schema::create(&options.bin, server, options.scale).await?,
                Load::Keys => {
                    schema::create(&options.bin, server, options.scale).await?;
                    connect(&server.config()).await?.batch_execute(KEYS).await?;
                }
                Load::TpcC => tpcc::fill(options.scale, server).await?,
            }
        }
        open.begin().await?;
        ways.push(open);
    }
    Ok(ways)
}

/// Runs one load in turn on all ways. A short run of each before them does not count.
async fn alternate(
    options: &Options,
    ways: &[Open],
    (load, records, clients): (Load, u32, u16),
    limit: Limit,
) -> anyhow::Result<Workload> {
    let mut runs: Vec<Vec<Run>> = ways.iter().map(|_| Vec::new()).collect();
    for round in 0..=options.rounds {
        for (way, runs) in ways.iter().zip(&mut runs) {
            let seconds = if round == 0 { 1 } else { options.seconds };
            let before = way.used();
            let rate = timed(options, way, (load, records, clients), seconds).await?;
            let cost = way.used() - before;
            if round > 0 {
                runs.push(Run { rate, cost });
            }
        }
    }
    let of = |runs: &[Run], value: fn(&Run) -> f64| Sample::of(runs.iter().map(value).collect());
    let direct = of(&runs[0], |run| run.rate.tps).median;
    let measured = ways.iter().zip(&runs).map(|(open, runs)| {
        let tps = of(runs, |run| run.rate.tps);
        Measured {
            way: open.way,
            ratio: tps.median / direct.max(f64::MIN_POSITIVE),
            tps,
            p50_ms: of(runs, |run| run.rate.p50_ms),
            p99_ms: of(runs, |run| run.rate.p99_ms),
            databases_us: of(runs, |run| run.each_us(run.cost.databases_s)),
            others_us: of(runs, |run| run.each_us(run.cost.others_s)),
        }
    });
    Ok(Workload {
        load,
        records,
        clients,
        limit,
        ways: measured.collect(),
    })
}

fn sentence(workload: &Workload) -> String {
    let ways = workload.ways.iter().map(|one| {
        let (tps, p50_ms) = (one.tps.median, one.p50_ms.median);
        let (databases, others) = (one.databases_us.median, one.others_us.median);
        format!(
            "{} {tps:.0} tps ({:.2}), {p50_ms:.2} ms, {databases:.0} + {others:.0} us",
            one.way, one.ratio
        )
    });
    format!(
        "{:?}, {} records, {} clients, limit {:?}: {}",
        workload.load,
        workload.records,
        workload.clients,
        workload.limit,
        ways.collect::<Vec<_>>().join("; ")
    )
}

async fn timed(
    options: &Options,
    way: &Open,
    (load, records, clients): (Load, u32, u16),
    seconds: u32,
) -> anyhow::Result<Rate> {
    if load == Load::TpcC {
        return tpcc::run(options.scale, &way.server, clients, seconds).await;
    }
    let dir = options.dir.join("logs");
    let logs = Logs::create(&dir)?;
    let mut arguments = vec![
        "--protocol=prepared".to_owned(),
        "--no-vacuum".to_owned(),
        format!("--client={clients}"),
        "--jobs=1".to_owned(),
        format!("--time={seconds}"),
    ];
    if load == Load::Ycsb {
        arguments.extend(ycsb::scripts(records, 50, &dir)?);
    }
    logs.run(&options.bin, &way.server, &arguments).await
}
