//! The address of a member: its hosts, which of them accepts writes, and who logs in.
//!
//! Invariant: sessions of one life of the member are at one server. Only whoever attends to the member looks for another one of a cluster.

use std::sync::Arc;

use parking_lot::Mutex;
use proxy::config::ServerTls;
use proxy::driver::dial::Dialer;
use tokio_postgres::config::Host;

/// A connection string that cannot be used, with the reason.
#[derive(Debug)]
pub enum TargetError {
    /// The text itself.
    Text(String),
    /// Settings of TLS: the proof that the server has to give.
    Tls(String),
}

/// Where a member is, and who logs in.
#[derive(Debug, Clone)]
pub struct Target {
    /// Hosts (a name, an address, or the directory of a socket) and ports. A cluster has several.
    hosts: Vec<(String, u16)>,
    /// The one that accepts writes, once it was found. Clones share it.
    writable: Arc<Mutex<Option<usize>>>,
    /// A superuser.
    pub user: String,
    /// Its password, if it needs one.
    pub password: Option<String>,
    /// The database that is mirrored.
    pub database: String,
    /// Settings of TLS: the proof that it has to give.
    pub tls: ServerTls,
    /// Connects to it.
    pub dialer: Dialer,
}

/// A database that every server has, one without the mirrored database too.
const ELSEWHERE: &str = "template1";

impl Target {
    /// The candidate that accepted writes last, once it was found.
    pub fn known(&self) -> Option<usize> {
        *self.writable.lock()
    }

    /// Its hosts as they are to be tried: the one that accepted writes last is the first.
    pub fn candidates(&self) -> impl Iterator<Item = usize> {
        let (first, count) = (self.first(), self.hosts.len());
        (0..count).map(move |step| (first + step) % count)
    }

    fn first(&self) -> usize {
        self.known().unwrap_or(0)
    }

    /// The server that accepts writes, or may.
    pub fn place(&self) -> (&str, u16) {
        let (host, port) = &self.hosts[self.first()];
        (host, *port)
    }

    /// Address of a candidate, as a dialer takes it.
    pub fn address(&self, candidate: usize) -> String {
        let (host, port) = &self.hosts[candidate];
        format!("{host}:{port}")
    }

    /// True if it is a cluster, of which one server accepts writes.
    pub fn is_cluster(&self) -> bool {
        self.hosts.len() > 1
    }

    /// Notes that this candidate accepts writes.
    pub fn found_writable(&self, candidate: usize) {
        *self.writable.lock() = Some(candidate);
    }

    /// The same server's database that is always there.
    pub fn elsewhere(&self) -> Target {
        self.at(ELSEWHERE)
    }

    /// Another database of the server.
    pub fn at(&self, database: &str) -> Target {
        Target {
            database: database.to_owned(),
            ..self.clone()
        }
    }

    /// The same database for somebody else.
    pub fn for_user(&self, user: String, password: String) -> Target {
        Target {
            user,
            password: Some(password),
            ..self.clone()
        }
    }

    /// Reads a connection string.
    ///
    /// # Errors
    /// [`TargetError`]
    pub fn parse(text: &str, tls: &ServerTls) -> Result<Target, TargetError> {
        let refused = |reason: &str| TargetError::Text(reason.to_owned());
        let parsed: tokio_postgres::Config = text
            .parse()
            .map_err(|error: tokio_postgres::Error| refused(&error.to_string()))?;
        let names = parsed.get_hosts().iter().map(|host| match host {
            Host::Tcp(host) => host.clone(),
            Host::Unix(path) => path.display().to_string(),
        });
        // As libpq: one port for all hosts, or one for each.
        let ports = parsed.get_ports();
        let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let hosts: Vec<_> = names
            .enumerate()
            .map(|(at, name)| (name, port(at)))
            .collect();
        if hosts.is_empty() {
            return Err(refused("name the host: host=10.0.0.1"));
        }
        if ports.len() > 1 && ports.len() != hosts.len() {
            return Err(refused("there are as many ports as hosts, or one"));
        }
        let user = parsed
            .get_user()
            .ok_or_else(|| refused("name the user: user=postgres"))?;
        let database = parsed
            .get_dbname()
            .ok_or_else(|| refused("name the database: dbname=app"))?;
        let password = parsed
            .get_password()
            .map(|password| String::from_utf8_lossy(password).into_owned());
        Ok(Target {
            hosts,
            writable: Arc::default(),
            user: user.to_owned(),
            password,
            database: database.to_owned(),
            dialer: Dialer::new(tls).map_err(|error| TargetError::Tls(error.to_string()))?,
            tls: tls.clone(),
        })
    }

    /// Connection options for PostgreSQL's programs.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        // The server that a session was opened at just before: a snapshot is one server's.
        let (host, port) = self.place();
        let mut environment = vec![
            ("PGHOST", host.to_owned()),
            ("PGPORT", port.to_string()),
            ("PGUSER", self.user.clone()),
            ("PGDATABASE", self.database.clone()),
            ("PGSSLMODE", self.tls.mode.name().to_owned()),
        ];
        let root = self.tls.root.as_ref();
        environment.extend(root.map(|root| ("PGSSLROOTCERT", root.display().to_string())));
        environment.extend(
            self.password
                .clone()
                .map(|password| ("PGPASSWORD", password)),
        );
        environment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the first host was used, which a takeover of the cluster makes a standby.
    #[test]
    fn every_host_of_a_cluster_is_tried_from_the_writable_one_on() {
        let tls = ServerTls::default();
        let parse = |text: &str| Target::parse(text, &tls);
        let target = parse("host=a,b,c port=1,2,3 user=postgres dbname=app").expect("valid");
        let clone = target.clone();
        clone.found_writable(1);
        let tried: Vec<String> = target.candidates().map(|at| target.address(at)).collect();
        assert_eq!(tried, ["b:2", "c:3", "a:1"]);
        assert_eq!(target.place(), ("b", 2));
        assert_eq!(target.known(), Some(1));
        let environment = target.environment();
        assert!(environment.contains(&("PGHOST", "b".to_owned())));
        let one_port = parse("host=a,b port=7 user=postgres dbname=app").expect("valid");
        assert_eq!(one_port.address(1), "b:7");
        assert!(parse("host=a,b,c port=1,2 user=postgres dbname=app").is_err());
    }
}
