//! The health checks: paths that answer 200 or 503, with Patroni's names and meanings (pure).
//!
//! Two differ, and say less than they could: every commit is in the shared storage before it is
//! acknowledged, so every standby is a synchronous one, and none an asynchronous.

use super::report::Report;

/// What the query of a check asks for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    /// At most so far behind, in bytes.
    pub lag_bytes_max: Option<u64>,
}

impl Wanted {
    /// From a query like `lag=16MB`; what is not known is ignored, as Patroni does with tags.
    pub fn parse(query: &str) -> Result<Wanted, String> {
        let mut wanted = Wanted::default();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            if name == "lag" {
                let bytes = bytes(value).ok_or_else(|| format!("lag={value}: not a size"))?;
                wanted.lag_bytes_max = Some(bytes);
            }
        }
        Ok(wanted)
    }

    fn holds(&self, report: &Report) -> bool {
        let most = self.lag_bytes_max;
        most.is_none_or(|most| report.lag_bytes.is_some_and(|lag| lag <= most))
    }
}

/// `1048576`, `1024kB`, `16MB`, `1GB`, as PostgreSQL writes sizes.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1 << 10,
        "mb" => 1 << 20,
        "gb" => 1 << 30,
        "tb" => 1 << 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// True if a check holds; `None` if the path is no check.
pub(super) fn check(path: &str, wanted: Wanted, report: &Report) -> Option<bool> {
    let replica = || report.is_replica() && wanted.holds(report);
    Some(match path {
        "/" | "/primary" | "/master" | "/leader" | "/read-write" => report.is_primary(),
        "/replica" | "/secondary" => replica(),
        "/read-only" | "/read-only-sync" => report.is_primary() || replica(),
        "/sync" | "/synchronous" => replica() && report.is_warm(),
        "/async" | "/asynchronous" | "/standby-leader" | "/standby_leader" => false,
        "/health" => report.is_running(),
        "/readiness" => report.is_primary() || replica(),
        // It answers, so it lives: a long replay is no reason to be killed.
        "/liveness" => true,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn holds(path: &str, query: &str, status: Value) -> bool {
        check(path, Wanted::parse(query).unwrap(), &Report::new(&status)).unwrap()
    }

    #[test]
    fn each_role_answers_its_own_checks() {
        let active = json!({ "role": "active", "state": "serving", "epoch": 3 });
        let warm = json!({ "role": "standby", "state": "warm", "lag_bytes": 100 });
        let behind = json!({ "role": "standby", "state": "catching_up", "lag_bytes": 99_000_000 });
        let taking_over = json!({ "role": "active", "state": "starting" });
        let restarting = json!({ "role": "active", "state": "restarting" });
        let starting = json!({ "role": "starting" });
        let nothing = json!({});
        for (path, expected) in [
            ("/", [true, false, false, false, false, false, false]),
            ("/primary", [true, false, false, false, false, false, false]),
            (
                "/read-write",
                [true, false, false, false, false, false, false],
            ),
            ("/replica", [false, true, true, false, false, false, false]),
            ("/read-only", [true, true, true, false, false, false, false]),
            (
                "/synchronous",
                [false, true, false, false, false, false, false],
            ),
            ("/asynchronous", [false; 7]),
            ("/health", [true, true, true, false, false, false, false]),
            ("/readiness", [true, true, true, false, false, false, false]),
            ("/liveness", [true; 7]),
        ] {
            let nodes = [
                &active,
                &warm,
                &behind,
                &taking_over,
                &restarting,
                &starting,
                &nothing,
            ];
            let answers = nodes.map(|status| holds(path, "", status.clone()));
            assert_eq!(answers, expected, "{path}");
        }
    }

    /// Load balancers sent everybody to a server that let nobody in.
    // hazard: NODE-14
    #[test]
    fn an_active_whose_server_stands_still_is_used_by_nobody() {
        let active = json!({ "role": "active", "state": "failing", "epoch": 3 });
        for path in [
            "/",
            "/primary",
            "/read-only",
            "/replica",
            "/health",
            "/readiness",
        ] {
            assert!(!holds(path, "", active.clone()), "{path}");
        }
        assert!(holds("/liveness", "", active));
    }

    #[test]
    fn a_replica_too_far_behind_is_not_used() {
        let standby = json!({ "role": "standby", "state": "warm", "lag_bytes": 2_000_000 });
        assert!(holds("/replica", "lag=2MB", standby.clone()));
        assert!(!holds("/replica", "lag=1024kB", standby.clone()));
        assert!(!holds("/replica", "x=1&lag=1", standby));
        let silent = json!({ "role": "standby", "state": "warm" });
        assert!(
            !holds("/replica", "lag=1TB", silent),
            "nobody knows how far"
        );
        assert!(Wanted::parse("lag=much").is_err());
        assert!(Wanted::parse("lag=99999999999999999999").is_err());
    }

    #[test]
    fn other_paths_are_no_checks() {
        assert_eq!(
            check("/metrics", Wanted::default(), &Report::default()),
            None
        );
    }
}
