//! All numbers as Prometheus reads them.

use crate::core::session::REASONS;
use crate::core::stats::{BOUNDS, Histogram, Tally};

use super::Proxy;
use super::stats::Names;
use super::totals::{COUNTS, NOT_REPLAYED};

type Put<'a> = &'a mut String;

impl Proxy {
    /// All numbers as Prometheus reads them.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        totals(self, &mut text);
        gauges(self, &mut text);
        pools(self, &mut text);
        let all = self.stats.all();
        for (name, help, of) in TIMES {
            histogram(&mut text, name, help, &all, of);
        }
        for (name, help, of) in BYTES {
            let values = all
                .iter()
                .map(|(names, tally)| (format!("{{{}}}", labels(names)), of(tally)));
            page::put_metrics(&mut text, &named(name), help, "counter", values);
        }
        text
    }
}

/// Name, meaning, and how it is found.
type Column<T> = (&'static str, &'static str, fn(&Tally) -> T);

const TIMES: [Column<Histogram>; 3] = [
    (
        "query_duration_seconds",
        "Time from the arrival of a statement or batch to its answer.",
        |tally| tally.queries,
    ),
    (
        "transaction_duration_seconds",
        "Time from the arrival of a transaction's first statement to its last answer.",
        |tally| tally.transactions,
    ),
    (
        "wait_duration_seconds",
        "Time that clients waited for a connection to a server, for each that they got.",
        |tally| tally.waits,
    ),
];

const BYTES: [Column<u64>; 2] = [
    ("received_bytes_total", "Bytes from clients.", |tally| {
        tally.received
    }),
    ("sent_bytes_total", "Bytes to clients.", |tally| tally.sent),
];

fn named(name: &str) -> String {
    format!("understudy_proxy_{name}")
}

/// A text as the value of a label.
fn value(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

fn labels((database, user): &Names) -> String {
    let (database, user) = (value(database), value(user));
    format!("database=\"{database}\",user=\"{user}\"")
}

fn totals(proxy: &Proxy, text: Put<'_>) {
    for ((name, help), value) in COUNTS.iter().zip(proxy.totals.read()) {
        page::put_metric(text, &named(name), help, "counter", value);
    }
    let reasons = REASONS.iter().zip(proxy.totals.not_replayed());
    let reasons = reasons.map(|(why, value)| (format!("{{reason=\"{}\"}}", why.label()), value));
    let (name, help) = NOT_REPLAYED;
    page::put_metrics(text, &named(name), help, "counter", reasons);
}

fn gauges(proxy: &Proxy, text: Put<'_>) {
    let waiting = proxy.pools.lock().values().map(|pool| pool.waiting()).sum();
    let epoch = proxy.cluster.topology().epoch.0 as usize;
    let gauges: [(&str, &str, usize); 3] = [
        ("clients", "Clients connected.", proxy.handles.count()),
        (
            "clients_waiting",
            "Clients that wait for a connection.",
            waiting,
        ),
        ("epoch", "The epoch whose active the proxy knows.", epoch),
    ];
    for (name, help, value) in gauges {
        page::put_metric(text, &named(name), help, "gauge", value);
    }
}

/// Connections and waits of pools as they are now.
fn pools(proxy: &Proxy, text: Put<'_>) {
    let mut connections: Vec<(String, usize)> = Vec::new();
    let mut longest: Vec<(String, f64)> = Vec::new();
    for (names, pools) in proxy.pools_by_names() {
        let labels = labels(&names);
        let wait = pools.iter().map(|pool| pool.longest_wait()).max();
        let wait = wait.unwrap_or_default().as_secs_f64();
        longest.push((format!("{{{labels}}}"), wait));
        let mut servers = std::collections::BTreeMap::new();
        for shown in pools.iter().flat_map(|pool| pool.show()) {
            let counts: &mut [usize; 2] = servers.entry(shown.place).or_default();
            counts[0] += shown.used;
            counts[1] += shown.idle;
        }
        for (place, counts) in servers {
            let server = value(place.name());
            for (state, count) in ["active", "idle"].iter().zip(counts) {
                let labels = format!("{{{labels},server=\"{server}\",state=\"{state}\"}}");
                connections.push((labels, count));
            }
        }
    }
    let help = "Connections to servers, in use or idle.";
    page::put_metrics(
        text,
        &named("server_connections"),
        help,
        "gauge",
        connections,
    );
    let help = "Time that the client has waited for a connection that waits longest.";
    page::put_metrics(text, &named("longest_wait_seconds"), help, "gauge", longest);
}

fn histogram(
    text: Put<'_>,
    name: &str,
    help: &str,
    all: &[(Names, Tally)],
    of: fn(&Tally) -> Histogram,
) {
    let mut values: Vec<(String, String)> = Vec::new();
    for (names, tally) in all {
        let (labels, times) = (labels(names), of(tally));
        for (bound, count) in BOUNDS.iter().zip(times.cumulative()) {
            let bound = *bound as f64 / 1e6;
            let labels = format!("_bucket{{{labels},le=\"{bound}\"}}");
            values.push((labels, count.to_string()));
        }
        let count = times.count().to_string();
        values.push((format!("_bucket{{{labels},le=\"+Inf\"}}"), count.clone()));
        let sum = times.sum().as_secs_f64().to_string();
        values.push((format!("_sum{{{labels}}}"), sum));
        values.push((format!("_count{{{labels}}}"), count));
    }
    page::put_metrics(text, &named(name), help, "histogram", values);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn names_cannot_break_out_of_their_labels() {
        let names = ("a\"b\\".to_owned(), "c\nd".to_owned());
        let mut tally = Tally::default();
        tally.queries.observe(Duration::from_millis(2));
        let mut text = String::new();
        let (name, help, of) = TIMES[0];
        histogram(&mut text, name, help, &[(names, tally)], of);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "# TYPE understudy_proxy_query_duration_seconds histogram"
        );
        let name = "understudy_proxy_query_duration_seconds";
        let labels = "database=\"a\\\"b\\\\\",user=\"c\\nd\"";
        assert_eq!(
            lines[4],
            format!("{name}_bucket{{{labels},le=\"0.001\"}} 0")
        );
        assert_eq!(
            lines[5],
            format!("{name}_bucket{{{labels},le=\"0.0025\"}} 1")
        );
        assert_eq!(
            lines[18],
            format!("{name}_bucket{{{labels},le=\"+Inf\"}} 1")
        );
        assert_eq!(lines[19], format!("{name}_sum{{{labels}}} 0.002"));
        assert_eq!(lines[20], format!("{name}_count{{{labels}}} 1"));
        assert_eq!(lines.len(), 21);
    }
}
