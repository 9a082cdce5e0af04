//! `/metrics`, in Prometheus' text format (pure).
//!
//! The first ones have Patroni's names, so that dashboards and alarms made for it go on working. Our
//! own begin with `understudy_`. A value that a node does not know is left out, not zero.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

use super::report::Report;
use super::{Facts, lsn_number};

/// A gauge of several things: its name, its help, and its value for one of them.
type GaugeOf<'a> = (&'a str, &'a str, &'a dyn Fn(&Value) -> Option<f64>);

/// The metrics of a node whose status board shows `status`, and of the repositories of `backups`.
pub(super) fn metrics(facts: &Facts, status: &Value, backups: &Value) -> String {
    let report = Report::new(status);
    let mut page = Page::new(facts);
    let flag = |holds: bool| Some(f64::from(u8::from(holds)));
    let number = |path: &str| status.pointer(path).and_then(Value::as_f64);

    page.gauge(
        "patroni_postgres_running",
        "1 if PostgreSQL runs",
        flag(report.is_running()),
    );
    page.gauge(
        "patroni_primary",
        "1 if this node is the active",
        flag(report.is_primary()),
    );
    page.gauge(
        "patroni_replica",
        "1 if this node is a standby",
        flag(report.is_replica()),
    );
    let sync = "1 if this node is a standby that lacks no commit";
    page.gauge("patroni_sync_standby", sync, flag(report.is_warm()));
    page.gauge(
        "patroni_postgres_server_version",
        "Of PostgreSQL",
        Some(f64::from(
            report.server.number().unwrap_or(facts.server_version),
        )),
    );
    let pending = !report.server.pending_restart.is_empty();
    let restart = "1 if parameters wait for a restart of PostgreSQL";
    page.gauge("patroni_pending_restart", restart, flag(pending));
    let paused = status.pointer("/control/paused").map(|p| !p.is_null());
    let pause = "1 if takeovers are paused";
    page.gauge("patroni_is_paused", pause, paused.and_then(flag));
    page.gauge(
        "patroni_postgres_timeline",
        "Of PostgreSQL",
        report.timeline.map(f64::from),
    );
    let synced = report.synced_lsn.as_deref().and_then(pgdata::parse_lsn);
    let position = "Position in the log, in bytes";
    page.counter("patroni_xlog_location", position, synced.map(lsn_number));
    page.counter(
        "patroni_xlog_received_location",
        position,
        report.received.map(lsn_number),
    );
    page.counter(
        "patroni_xlog_replayed_location",
        position,
        report.applied.map(lsn_number),
    );

    page.gauge(
        "understudy_epoch",
        "The epoch that this node knows",
        number("/epoch"),
    );
    page.gauge(
        "understudy_lag_bytes",
        "Durable log that is not replayed yet",
        number("/lag_bytes"),
    );
    let protected = status
        .pointer("/protection/protected")
        .and_then(Value::as_bool);
    let held = "1 if a standby could take over at once (the active says so)";
    page.gauge("understudy_protected", held, protected.and_then(flag));
    let since = number("/protection/since_unix_ms").map(|ms| ms / 1000.0);
    page.gauge(
        "understudy_protection_changed_timestamp_seconds",
        "When that last changed",
        since,
    );
    page.gauge(
        "understudy_standbys_wanted",
        "Standbys that there should be (the active says so)",
        number("/protection/wanted"),
    );
    page.gauge(
        "understudy_standbys_warm",
        "Standbys that could take over at once (the active says so)",
        number("/protection/warm"),
    );
    let level = status.pointer("/protection/level").and_then(Value::as_str);
    page.gauge(
        "understudy_degraded",
        "1 if fewer standbys than wanted could take over at once (the active says so)",
        level.and_then(|level| flag(level != "protected")),
    );
    let restored = number("/protection/restored_after_ms").map(|ms| ms / 1000.0);
    page.gauge(
        "understudy_reprotection_seconds",
        "How long the last loss of protection took to be made good",
        restored,
    );
    page.gauge(
        "understudy_paused",
        "1 if no standby takes over by itself",
        status["paused"].as_bool().and_then(flag),
    );
    page.gauge(
        "understudy_overlay_memory_bytes",
        "A standby's private changes in memory",
        number("/overlay/memory_bytes"),
    );
    page.gauge(
        "understudy_overlay_spill_bytes",
        "A standby's private changes on local disk",
        number("/overlay/spill_bytes"),
    );
    page.counter(
        "understudy_base_moves_total",
        "How often a standby's base moved",
        number("/base/moves"),
    );
    let warm = number("/warmth/percent").map(|percent| percent / 100.0);
    page.gauge(
        "understudy_warm_ratio",
        "Share of the active's buffers that a standby has in memory",
        warm,
    );
    page.backups(backups);
    page.slots(status);
    let images = status.pointer("/past/images").and_then(Value::as_array);
    page.gauge(
        "understudy_past_images",
        "Images of the past that are kept in the zones",
        images.map(|images| images.len() as f64),
    );
    page.gauge(
        "understudy_past_bytes",
        "Bytes that they take in each zone, about",
        number("/past/used_bytes"),
    );
    page.branches(status);
    page.proxies(status);
    page.replicas(status);
    page.counters(status);
    page.requests(status);
    page.text
}

struct Page {
    text: String,
    labels: String,
}

impl Page {
    fn new(facts: &Facts) -> Page {
        // Names of volumes and nodes have no characters that would need escaping.
        let labels = format!("scope=\"{}\",name=\"{}\"", facts.scope, facts.node);
        Page {
            text: String::new(),
            labels,
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: Option<f64>) {
        self.metric("gauge", name, help, value);
    }

    fn counter(&mut self, name: &str, help: &str, value: Option<f64>) {
        self.metric("counter", name, help, value);
    }

    fn metric(&mut self, kind: &str, name: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.head(kind, name, help);
            self.sample(name, "", value);
        }
    }

    fn head(&mut self, kind: &str, name: &str, help: &str) {
        // Writing to a String never fails.
        let _ = writeln!(self.text, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, more: &str, value: f64) {
        let labels = &self.labels;
        // Writing to a String never fails.
        let _ = writeln!(self.text, "{name}{{{labels}{more}}} {value}");
    }

    /// Each repository of backups, by the name of who archives into it.
    fn backups(&mut self, backups: &Value) {
        let Some(backups) = backups.as_array().filter(|all| !all.is_empty()) else {
            return;
        };
        let seconds = |ms: Option<f64>| ms.map(|ms| ms / 1000.0);
        let of = |key: &'static str| move |one: &Value| one[key].as_f64();
        let in_seconds = |key: &'static str| move |one: &Value| seconds(one[key].as_f64());
        let failing = |one: &Value| Some(f64::from(u8::from(!one["trouble"].is_null())));
        let told: [GaugeOf<'_>; 5] = [
            (
                "understudy_backup_age_seconds",
                "Time since the last image was begun",
                &in_seconds("age_ms"),
            ),
            (
                "understudy_backup_drill_age_seconds",
                "Time since a restore was tried and all was well",
                &in_seconds("drill_age_ms"),
            ),
            (
                "understudy_log_archived_lag_seconds",
                "Time since all durable log was in the repository",
                &in_seconds("lag_ms"),
            ),
            (
                "understudy_log_archived_lag_bytes",
                "Durable log that is not in the repository yet",
                &of("lag_bytes"),
            ),
            (
                "understudy_backup_failing",
                "1 if the last try to archive failed",
                &failing,
            ),
        ];
        self.gauges(backups, ("archiver", "name"), &told);
    }

    /// Branches of the database; the active tells of them.
    fn branches(&mut self, status: &Value) {
        let Some(branches) = status.pointer("/past/branches").and_then(Value::as_array) else {
            return;
        };
        let told: [GaugeOf<'_>; 2] = [
            (
                "understudy_branch_used_bytes",
                "Bytes of the branch's own blocks in a zone",
                &|branch| branch["used_bytes"].as_f64(),
            ),
            (
                "understudy_branch_expires_seconds",
                "When the branch need not be kept any more, in Unix seconds",
                &|branch| Some(branch["expires_unix_ms"].as_f64()? / 1000.0),
            ),
        ];
        self.gauges(branches, ("branch", "name"), &told);
    }

    /// Gauges of several things, each with a label of its own: what it is called, and the key that has its value.
    fn gauges(&mut self, things: &[Value], (label, key): (&str, &str), told: &[GaugeOf<'_>]) {
        for (name, help, value) in told {
            let samples = things.iter().filter_map(|thing| {
                let of = thing[key].as_str().unwrap_or_default();
                Some((format!(",{label}=\"{of}\""), value(thing)?))
            });
            let samples: Vec<_> = samples.collect();
            if !samples.is_empty() {
                self.head("gauge", name, help);
            }
            for (labels, value) in samples {
                self.sample(name, &labels, value);
            }
        }
    }

    /// The proxies that are connected to the active's agent, together.
    /// Replication slots, as the active sees them.
    fn slots(&mut self, status: &Value) {
        let Some(slots) = status["slots"].as_array().filter(|all| !all.is_empty()) else {
            return;
        };
        let flag = |holds: bool| Some(f64::from(u8::from(holds)));
        let told: [GaugeOf<'_>; 3] = [
            (
                "understudy_slot_held_bytes",
                "Log that is kept for a replication slot",
                &|slot| slot["held_bytes"].as_f64(),
            ),
            (
                "understudy_slot_active",
                "1 if somebody reads from the slot",
                &|slot| slot["active"].as_bool().and_then(flag),
            ),
            (
                "understudy_slot_lost",
                "1 if PostgreSQL gave the slot up, because it held too much log",
                &|slot| {
                    slot["wal_status"]
                        .as_str()
                        .and_then(|is| flag(is == "lost"))
                },
            ),
        ];
        self.gauges(slots, ("slot", "slot_name"), &told);
    }

    fn proxies(&mut self, status: &Value) {
        let Some(proxies) = status["proxies"].as_array() else {
            return;
        };
        let count = Some(proxies.len() as f64);
        self.gauge(
            "understudy_proxies",
            "Proxies that are connected (the active says so)",
            count,
        );
        let sum = |what: &str| {
            let values = proxies.iter().map(|proxy| proxy["report"][what].as_f64());
            Some(values.map(Option::unwrap_or_default).sum())
        };
        for (what, help) in [
            ("clients", "Clients that are connected to proxies"),
            ("waiting", "Clients of proxies that wait for a server"),
        ] {
            self.gauge(&format!("understudy_proxy_{what}"), help, sum(what));
        }
        for (what, help) in [
            ("on_active", "Transactions of proxies that the active ran"),
            ("on_standbys", "Transactions of proxies that standbys ran"),
            ("replayed", "Transactions that proxies ran again elsewhere"),
            ("in_doubt", "Commits of proxies whose answer did not come"),
        ] {
            let name = format!("understudy_proxy_{what}_total");
            self.counter(&name, help, sum(what));
        }
    }

    /// True if each replica of the volume answers this node, and how fast.
    fn replicas(&mut self, status: &Value) {
        let replicas = status["replicas"].as_array().into_iter().flatten();
        let seen: Vec<_> = replicas
            .filter_map(|replica| {
                let address = replica["address"].as_str()?;
                let zone = replica["zone"].to_string();
                let labels = format!(",zone=\"{}\",address=\"{address}\"", zone.trim_matches('"'));
                let away: Option<Duration> =
                    serde_json::from_value(replica["round_trip"].clone()).unwrap_or_default();
                Some((labels, replica["up"].as_bool()?, away))
            })
            .collect();
        if seen.is_empty() {
            return;
        }
        self.head(
            "gauge",
            "understudy_replica_up",
            "1 if the zone's server answers this node",
        );
        for (labels, up, _) in &seen {
            self.sample("understudy_replica_up", labels, f64::from(u8::from(*up)));
        }
        let away = seen
            .iter()
            .filter_map(|(labels, _, away)| Some((labels, (*away)?)));
        let away: Vec<_> = away.collect();
        if !away.is_empty() {
            let name = "understudy_replica_round_trip_seconds";
            self.head("gauge", name, "The last round trip to the zone's server");
            for (labels, time) in away {
                self.sample(name, labels, time.as_secs_f64());
            }
        }
    }

    /// What the handle to the storage tier counted.
    fn requests(&mut self, status: &Value) {
        let Some(requests) = status["requests"].as_object() else {
            return;
        };
        let name = "understudy_mount_requests_total";
        self.head("counter", name, "Requests of the kernel to the mount");
        for (operation, count) in requests {
            let labels = format!(",operation=\"{operation}\"");
            self.sample(name, &labels, count.as_f64().unwrap_or_default());
        }
    }

    fn counters(&mut self, status: &Value) {
        let counters = status["storage"].as_object().into_iter().flatten();
        for (name, value) in counters.filter_map(|(n, v)| Some((n, v.as_f64()?))) {
            let name = format!("understudy_storage_{name}_total");
            self.counter(
                &name,
                "Counted by the client of the storage tier",
                Some(value),
            );
        }
    }
}

#[cfg(test)]
mod tests;
