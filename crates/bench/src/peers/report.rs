//! The report: medians and spreads of all records with the same setting, as tables.
//!
//! Invariant: made from records alone, so that anybody can make it again from the kept lines.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::footprint::Footprint;
use super::loss::Loss;
use super::mode::Mode;
use super::record::{Finding, Record, Setting};
use super::system::Kind;
use super::{Distance, chart};
use crate::rates::Rate;
use crate::statistics::Sample;

/// All records, by setting.
pub struct Report {
    sections: Vec<Section>,
}

/// All runs of one load on one system.
type Runs = Vec<(Rate, Footprint)>;

/// What was measured with one setting.
pub(super) struct Section {
    setting: Setting,
    runs: BTreeMap<(Mode, u16), BTreeMap<Kind, Runs>>,
    pub losses: BTreeMap<Kind, Vec<Loss>>,
}

impl Report {
    /// Sorts records.
    pub fn of(records: &[Record]) -> Report {
        let mut sections: Vec<Section> = Vec::new();
        for record in records {
            let found = sections
                .iter()
                .position(|section| section.setting == record.setting);
            let at = found.unwrap_or_else(|| {
                sections.push(Section::empty(record.setting));
                sections.len() - 1
            });
            sections[at].add(record);
        }
        Report { sections }
    }

    /// Acknowledged commits that Understudy lost, in all records. Must be none.
    pub fn lost_by_understudy(&self) -> u64 {
        let losses = self.sections.iter().flat_map(|section| &section.losses);
        let ours = losses
            .filter(|(kind, _)| matches!(kind, Kind::Understudy | Kind::Ordered | Kind::Cold));
        ours.flat_map(|(_, losses)| losses)
            .map(|loss| loss.lost + loss.unexpected)
            .sum()
    }

    /// Names and contents of the report's files.
    pub fn files(&self) -> Vec<(String, String)> {
        let mut files = Vec::new();
        let mut text = String::from(
            "# Measured against what people use\n\nMade by `understudy bench peers --report` of its lines of JSON alone.\n",
        );
        for (at, section) in self.sections.iter().enumerate() {
            text.push_str(&section.text());
            if !section.losses.is_empty() {
                let name = format!("peers-{}.svg", at + 1);
                let _ = writeln!(text, "\n![loss of the active]({name})");
                files.push((name, chart::draw(&section.title(), &section.losses)));
            }
        }
        files.push(("peers.md".to_owned(), text));
        files
    }

    /// The tables alone, for a terminal.
    pub fn table(&self) -> String {
        self.sections.iter().map(Section::text).collect()
    }
}

impl Section {
    fn empty(setting: Setting) -> Section {
        Section {
            setting,
            runs: BTreeMap::new(),
            losses: BTreeMap::new(),
        }
    }

    fn add(&mut self, record: &Record) {
        match &record.finding {
            Finding::Load {
                mode,
                clients,
                rate,
                footprint,
                ..
            } => {
                let workload = self.runs.entry((*mode, *clients)).or_default();
                let runs = workload.entry(record.system).or_default();
                runs.push((rate.clone(), footprint.clone()));
            }
            Finding::Loss { loss, .. } => {
                self.losses
                    .entry(record.system)
                    .or_default()
                    .push(loss.clone());
            }
        }
    }

    // Writing to a String never fails, so the results of `write!` carry nothing.
    fn text(&self) -> String {
        let mut out = String::new();
        let setting = &self.setting;
        let _ = writeln!(out, "\n## {}\n", self.title());
        let _ = writeln!(
            out,
            "pgbench scale {}, `shared_buffers` {} MB, `checkpoint_timeout` {} s, Patroni's `ttl` {} s. \
             Medians; in brackets the range of all runs as a share of the median.",
            setting.scale, setting.buffers_mb, setting.checkpoint_seconds, setting.patroni_ttl
        );
        self.throughput(&mut out);
        self.footprints(&mut out);
        self.processors(&mut out);
        self.work(&mut out);
        self.loss_table(&mut out);
        self.subscriber_table(&mut out);
        out
    }

    /// In a line, what it is about.
    pub fn title(&self) -> String {
        let distance = match self.setting.distance {
            Distance::OneZone => "One zone",
            Distance::Regions => "Regions 35 and 75 ms apart",
        };
        let processors = match self.setting.pinned {
            true => "a processor for the database's machine, one for everything else",
            false => "everything on all processors",
        };
        format!("{distance}; {processors}")
    }

    fn throughput(&self, out: &mut String) {
        if self.runs.is_empty() {
            return;
        }
        out.push_str(
            "\n| load | system | runs | transactions/s | to PostgreSQL alone | p50, ms | p99, ms |\n\
             |---|---|---|---|---|---|---|\n",
        );
        for ((mode, clients), systems) in &self.runs {
            let median = |runs: &[(Rate, Footprint)]| of(runs, |(rate, _)| rate.tps).median;
            let alone = systems.get(&Kind::Stock).map(|runs| median(runs));
            for (kind, runs) in systems {
                let tps = of(runs, |(rate, _)| rate.tps);
                let ratio =
                    alone.map_or("".to_owned(), |alone| format!("{:.2}", tps.median / alone));
                let _ = writeln!(
                    out,
                    "| {}, {} | {} | {} | {} | {ratio} | {:.2} | {:.1} |",
                    mode.name(),
                    clients_name(*clients),
                    kind.name(),
                    runs.len(),
                    with_spread(&tps),
                    of(runs, |(rate, _)| rate.p50_ms).median,
                    of(runs, |(rate, _)| rate.p99_ms).median
                );
            }
        }
    }

    fn footprints(&self, out: &mut String) {
        if self.runs.is_empty() {
            return;
        }
        out.push_str(
            "\nFor one transaction, all copies and machines together, the checkpoint at the end of the run \
             included:\n\n\
             | load | system | bytes to disk | bytes between machines | processor, ms | memory, MB |\n\
             |---|---|---|---|---|---|\n",
        );
        for ((mode, clients), systems) in &self.runs {
            for (kind, runs) in systems {
                let each = |value: &dyn Fn(&Footprint) -> f64| {
                    of(runs, |(rate, footprint)| {
                        value(footprint) / rate.transactions.max(1) as f64
                    })
                };
                let cpu =
                    |footprint: &Footprint| footprint.cpu_seconds.values().sum::<f64>() * 1000.0;
                let memory =
                    |footprint: &Footprint| footprint.memory_bytes.values().sum::<u64>() as f64;
                let _ = writeln!(
                    out,
                    "| {}, {} | {} | {:.0} | {:.0} | {:.3} | {:.0} |",
                    mode.name(),
                    clients_name(*clients),
                    kind.name(),
                    each(&|footprint| footprint.disk_bytes.unwrap_or_default() as f64).median,
                    each(&|footprint| footprint.network_bytes as f64).median,
                    each(&cpu).median,
                    of(runs, |(_, footprint)| memory(footprint)).median / 1e6
                );
            }
        }
    }

    /// What besides processor time a transaction takes, of the read-write load with eight clients.
    fn work(&self, out: &mut String) {
        let Some((clients, systems)) = self.writes() else {
            return;
        };
        let mut rows = String::new();
        let _ = writeln!(
            rows,
            "\nFor one read-write transaction of {}: switches between threads on all machines (those of the clients \
             included), how often programs had to be woken up, and what Understudy counts on the active's machine:\n\n\
             | system | what | times |\n|---|---|---|",
            clients_name(clients)
        );
        let head = rows.len();
        for (kind, runs) in systems {
            let mut each: BTreeMap<String, Vec<f64>> = BTreeMap::new();
            for (rate, footprint) in runs {
                for (name, times) in footprint.work_each(rate.transactions) {
                    each.entry(name).or_default().push(times);
                }
            }
            for (name, times) in each {
                let _ = writeln!(
                    rows,
                    "| {} | {name} | {:.2} |",
                    kind.name(),
                    Sample::of(times).median
                );
            }
        }
        // Records of before say nothing of it.
        if rows.len() > head {
            out.push_str(&rows);
        }
    }

    /// The runs of the read-write load with eight clients, or what is nearest to them.
    fn writes(&self) -> Option<(u16, &BTreeMap<Kind, Runs>)> {
        let writes = self
            .runs
            .iter()
            .filter(|((mode, _), _)| *mode == Mode::ReadWrite);
        let nearest = writes.min_by_key(|((_, clients), _)| clients.abs_diff(8));
        nearest.map(|((_, clients), systems)| (*clients, systems))
    }

    /// Seconds of processor time for 1,000 transactions, by program, of the read-write load with most runs.
    fn processors(&self, out: &mut String) {
        let Some((clients, systems)) = self.writes() else {
            return;
        };
        let _ = writeln!(
            out,
            "\nProcessor seconds for 1,000 read-write transactions of {}, by machine and program:\n\n\
             | system | program | seconds |\n|---|---|---|",
            clients_name(clients)
        );
        for (kind, runs) in systems {
            let mut programs: Vec<&String> = runs
                .iter()
                .flat_map(|(_, f)| f.cpu_seconds.keys())
                .collect();
            programs.sort();
            programs.dedup();
            for program in programs {
                let seconds = of(runs, |(rate, footprint)| {
                    let seconds = footprint
                        .cpu_seconds
                        .get(program)
                        .copied()
                        .unwrap_or_default();
                    seconds * 1000.0 / rate.transactions.max(1) as f64
                });
                if seconds.median >= 0.001 {
                    let _ = writeln!(
                        out,
                        "| {} | {program} | {:.3} |",
                        kind.name(),
                        seconds.median
                    );
                }
            }
        }
    }

    fn loss_table(&self, out: &mut String) {
        if self.losses.is_empty() {
            return;
        }
        out.push_str(
            "\nThe active's machine is killed (SIGKILL of PostgreSQL and its agent) under load:\n\n\
             | system | times | no commits, s | worst, s | 90 % of throughput, s | protected again, s | before, 1/s | after, 1/s | acknowledged | lost |\n\
             |---|---|---|---|---|---|---|---|---|---|\n",
        );
        for (kind, losses) in &self.losses {
            let downtime = of(losses, |loss| loss.downtime_ms / 1000.0);
            let back: Vec<f64> = losses.iter().filter_map(|loss| loss.back_ms).collect();
            let back = match back.len() == losses.len() {
                true => format!("{:.1}", Sample::of(back).median / 1000.0),
                false => format!("not in {} of {}", losses.len() - back.len(), losses.len()),
            };
            let protected: Vec<f64> = losses.iter().filter_map(|loss| loss.protected_ms).collect();
            let protected = match protected.is_empty() {
                true => "-".to_owned(),
                false => format!("{:.1}", Sample::of(protected).median / 1000.0),
            };
            let _ = writeln!(
                out,
                "| {} | {} | {} | {:.1} | {back} | {protected} | {:.0} | {:.0} | {} | {} |",
                kind.name(),
                losses.len(),
                seconds_with_spread(&downtime),
                losses
                    .iter()
                    .map(|loss| loss.downtime_ms / 1000.0)
                    .fold(0.0, f64::max),
                of(losses, |loss| loss.tps_before).median,
                of(losses, |loss| loss.tps_after).median,
                losses.iter().map(|loss| loss.acknowledged).sum::<u64>(),
                losses.iter().map(|loss| loss.lost).sum::<u64>(),
            );
        }
    }

    fn subscriber_table(&self, out: &mut String) {
        let seen = |losses: &[Loss]| -> Vec<_> {
            losses.iter().filter_map(|loss| loss.subscriber).collect()
        };
        if self.losses.values().all(|losses| seen(losses).is_empty()) {
            return;
        }
        out.push_str(
            "\nA PostgreSQL subscribes to the prober's rows meanwhile:\n\n\
             | system | times | no rows, s | worst, s | missed | not on the new active |\n|---|---|---|---|---|---|\n",
        );
        for (kind, losses) in &self.losses {
            let seen = seen(losses);
            if seen.is_empty() {
                continue;
            }
            let silent = of(&seen, |seen| seen.silent_ms / 1000.0);
            let worst = silent.runs.iter().copied().fold(0.0, f64::max);
            let _ = writeln!(
                out,
                "| {} | {} | {} | {worst:.1} | {} | {} |",
                kind.name(),
                seen.len(),
                seconds_with_spread(&silent),
                seen.iter().map(|seen| seen.missing).sum::<u64>(),
                seen.iter().map(|seen| seen.unexpected).sum::<u64>(),
            );
        }
    }
}

fn of<T>(values: &[T], value: impl Fn(&T) -> f64) -> Sample {
    Sample::of(values.iter().map(value).collect())
}

fn with_spread(sample: &Sample) -> String {
    match sample.runs.len() {
        0 | 1 => format!("{:.0}", sample.median),
        _ => format!("{:.0} ({:.0} %)", sample.median, sample.spread * 100.0),
    }
}

fn seconds_with_spread(sample: &Sample) -> String {
    match sample.runs.len() {
        0 | 1 => format!("{:.2}", sample.median),
        _ => format!("{:.2} ({:.0} %)", sample.median, sample.spread * 100.0),
    }
}

fn clients_name(clients: u16) -> String {
    match clients {
        1 => "1 client".to_owned(),
        n => format!("{n} clients"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(system: Kind, tps: f64, pinned: bool) -> Record {
        Record {
            system,
            setting: Setting {
                distance: Distance::OneZone,
                pinned,
                scale: 1,
                buffers_mb: 128,
                checkpoint_seconds: 30,
                patroni_ttl: 20,
            },
            finding: Finding::Load {
                mode: Mode::ReadWrite,
                clients: 8,
                seconds: 5,
                rate: Rate {
                    tps,
                    transactions: 100,
                    p50_ms: 1.0,
                    p99_ms: 2.0,
                },
                footprint: Footprint {
                    disk_bytes: Some(5000),
                    switches: 1200,
                    work: [("flushes".to_owned(), 50)].into(),
                    ..Footprint::default()
                },
            },
        }
    }

    #[test]
    fn systems_are_compared_within_one_setting_by_their_medians() {
        let records = [
            record(Kind::Stock, 1000.0, true),
            record(Kind::Understudy, 500.0, true),
            record(Kind::Understudy, 900.0, true),
            record(Kind::Understudy, 700.0, true),
            record(Kind::Stock, 10.0, false),
        ];
        let text = Report::of(&records).table();
        let row = "| read-write, 8 clients | Understudy | 3 | 700 (57 %) | 0.70 | 1.00 | 2.0 |";
        assert!(text.contains(row), "{text}");
        assert!(
            text.contains("| read-write, 8 clients | Understudy | 50 | 0 |"),
            "{text}"
        );
        assert!(text.contains("| Understudy | flushes | 0.50 |"), "{text}");
        assert!(text.contains("| Understudy | switches | 12.00 |"), "{text}");
        assert_eq!(text.matches("## ").count(), 2);
    }

    #[test]
    fn a_record_is_the_same_after_it_was_written() {
        let record = record(Kind::PatroniSync, 3.0, true);
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }
}
