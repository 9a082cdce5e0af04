//! The proxies in `understudy status`: what each tells the active's agent of itself.

use coordination::channel::Proxy;
use serde_json::Value;

use crate::demo::timeline::thousands;

/// A line for each proxy that is connected to the active's agent.
pub(super) fn lines(proxies: Option<&Value>) -> String {
    let proxies = proxies.cloned().unwrap_or_default();
    let proxies: Vec<Proxy> = serde_json::from_value(proxies).unwrap_or_default();
    let lines: String = proxies.iter().map(line).collect();
    match lines.is_empty() {
        true => lines,
        false => format!("{lines}\n"),
    }
}

fn line(proxy: &Proxy) -> String {
    let name = &proxy.who.node;
    let Some(report) = &proxy.report else {
        return format!("proxy {name}: has reported nothing yet\n");
    };
    let waiting = match report.waiting {
        0 => String::new(),
        waiting => format!(", {waiting} of them wait"),
    };
    format!(
        "proxy {name} at {}: {} clients{waiting}; {} transactions on standbys, {} on the active; {} replayed, \
         {} commits in doubt decided\n",
        report.listen,
        report.clients,
        thousands(report.on_standbys),
        thousands(report.on_active),
        report.replayed,
        report.in_doubt.saturating_sub(report.in_doubt_unknown),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_proxy_has_a_line() {
        let who = json!({ "node": "p1", "volume": "main", "incarnation": "x" });
        let report = json!({ "listen": "10.0.0.9:6432", "clients": 12, "waiting": 3, "on_standbys": 5000,
            "on_active": 70, "replayed": 2, "in_doubt": 4, "in_doubt_unknown": 1 });
        let said = lines(Some(&json!([{ "who": who, "report": report }])));
        let expected = "proxy p1 at 10.0.0.9:6432: 12 clients, 3 of them wait; 5,000 transactions on standbys, \
                        70 on the active; 2 replayed, 3 commits in doubt decided\n\n";
        assert_eq!(said, expected);
        assert_eq!(lines(None), "");
    }
}
