//! PostgreSQL's own regression suite, through the managers and directly: what is answered otherwise, and what the members make of it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use mirror::core::manager::Role;
use mirror::driver::Verdict;
use mirror::driver::peer::{Question, ask};

use crate::server::{Server, bin};
use crate::site::{Site, conninfo, run};

/// A file that takes longer hangs.
const FILE_TIMEOUT: Duration = Duration::from_secs(180);
/// A standby that needs longer for a file's transactions is stuck.
const STANDBY_TIMEOUT: Duration = Duration::from_secs(60);
/// A copy of the suite's database takes at most so long.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(120);
/// Parts of the mirror's refusals.
const REFUSALS: [&str; 2] = ["the mirror does not carry", "cannot be mirrored"];
/// The settings that the suite's own runner makes.
const SETTINGS: &[&str] = &[
    "ALTER DATABASE app SET lc_messages TO 'C'",
    "ALTER DATABASE app SET lc_monetary TO 'C'",
    "ALTER DATABASE app SET lc_numeric TO 'C'",
    "ALTER DATABASE app SET lc_time TO 'C'",
    "ALTER DATABASE app SET bytea_output TO 'hex'",
    "ALTER DATABASE app SET timezone_abbreviations TO 'Default'",
];
/// Sessions that hang, as the primary's member sees them.
const SESSIONS: &str = "SELECT pid, state, wait_event_type, wait_event, pg_blocking_pids(pid), left(query, 200) FROM pg_stat_activity \
    WHERE backend_type IN ('client backend', 'walsender') AND state <> 'idle'";

/// The suite, and where answers are written.
struct Suite {
    sources: PathBuf,
    answers: PathBuf,
}

impl Suite {
    /// As the environment says; servers write answers as well.
    fn of_environment() -> Suite {
        let of = |name| PathBuf::from(std::env::var_os(name).expect(name));
        let suite = Suite {
            sources: of("MIRROR_REGRESS_SOURCES"),
            answers: of("MIRROR_REGRESS_ANSWERS"),
        };
        for way in ["direct", "mirror"] {
            let results = suite.answers.join(way).join("results");
            fs::create_dir_all(&results).expect("it can be made");
            fs::set_permissions(&results, fs::Permissions::from_mode(0o777)).expect("ours");
        }
        suite
    }

    /// The files in the order of the schedule, whose parallel groups are executed one file after the other.
    fn files(&self) -> Vec<String> {
        let schedule = fs::read_to_string(self.sources.join("parallel_schedule"));
        let schedule = schedule.expect("the suite has a schedule");
        let groups = schedule
            .lines()
            .filter_map(|line| line.strip_prefix("test:"));
        groups
            .flat_map(str::split_whitespace)
            .map(ToOwned::to_owned)
            .collect()
    }

    /// Executes a file with psql: its answers. A client that hangs is ended, after a look at what it waits for.
    fn execute(&self, file: &str, conninfo: &str, way: &str, hangs: impl FnOnce()) -> Vec<String> {
        let directory = self.answers.join(way);
        let path = directory.join("results").join(format!("{file}.out"));
        let answers = File::create(&path).expect("it can be written");
        let script = self.sources.join("sql").join(format!("{file}.sql"));
        let mut psql = Command::new(bin().join("psql"))
            .args(["-X", "-a", "-q", "-d", conninfo])
            .args(["-v", "HIDE_TABLEAM=on", "-v", "HIDE_TOAST_COMPRESSION=on"])
            .envs([
                ("LC_MESSAGES", "C"),
                ("PGTZ", "America/Los_Angeles"),
                ("PGDATESTYLE", "Postgres, MDY"),
                ("PGOPTIONS", "-c intervalstyle=postgres_verbose"),
                ("PGAPPNAME", "pg_regress"),
                ("PG_DLSUFFIX", ".so"),
            ])
            .env("PG_ABS_SRCDIR", &self.sources)
            .env("PG_ABS_BUILDDIR", &directory)
            .env("PG_LIBDIR", &self.sources)
            .current_dir(&directory)
            .stdin(File::open(script).expect("the file of the schedule is there"))
            .stdout(answers.try_clone().expect("a descriptor"))
            .stderr(answers)
            .spawn()
            .expect("psql");
        let began = Instant::now();
        while psql.try_wait().expect("it is ours").is_none() {
            if began.elapsed() > FILE_TIMEOUT {
                hangs();
                psql.kill().expect("it is ours");
                psql.wait().expect("it is ours");
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let answers = fs::read(&path).expect("it was written");
        let answers = String::from_utf8_lossy(&answers);
        answers.lines().map(ToOwned::to_owned).collect()
    }
}

/// Lines of one that the other does not have, or has less often.
fn beyond(one: &[String], other: &[String]) -> Vec<String> {
    let mut others: BTreeMap<&str, usize> = BTreeMap::new();
    for line in other {
        *others.entry(line).or_default() += 1;
    }
    let mut found = Vec::new();
    for line in one {
        match others.get_mut(line.as_str()) {
            Some(left) if *left > 0 => *left -= 1,
            _ => found.push(line.clone()),
        }
    }
    found
}

/// The state of the members after a file: nothing if they are equal.
fn judge(site: &Site) -> Option<String> {
    let began = Instant::now();
    loop {
        let Some(at) = site.primary() else {
            if began.elapsed() > STANDBY_TIMEOUT {
                return Some(format!(
                    "nobody serves: {:?}",
                    (site.status(0), site.status(1))
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let (primary, standby) = (site.status(at), site.status(1 - at));
        if let Some(status) = &standby {
            if let Some(difference) = &status.difference {
                return Some(format!("set aside: {difference}"));
            }
            if status.applied == Some(status.logged) && status.role == Role::Standby {
                break;
            }
        }
        if began.elapsed() > STANDBY_TIMEOUT {
            return Some(format!(
                "the standby is stuck: {standby:?} behind {primary:?}"
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let began = Instant::now();
    while began.elapsed() < STANDBY_TIMEOUT {
        let Some(at) = site.primary() else {
            continue;
        };
        let address = site.peer_address(at).to_string();
        let told = site.runtime.block_on(ask(&address, None, Question::Verify));
        let status = site.status(1 - at);
        if let Some(difference) = status.and_then(|status| status.difference) {
            return Some(format!("set aside: {difference}"));
        }
        let verdict = told.ok().and_then(Result::ok);
        if let Some(verdict) = verdict.and_then(|told| serde_json::from_str::<Verdict>(&told).ok())
        {
            return (!verdict.equal)
                .then(|| format!("different: {}", verdict.differences.join("; ")));
        }
    }
    Some("the members cannot be compared".to_owned())
}

#[test]
#[ignore = "needs PostgreSQL's sources: scripts/mirror-regress"]
fn regression_suite_leaves_equal_members() {
    let suite = Suite::of_environment();
    let site = Site::start("drop_roles = true");
    let direct = Server::init("fsync = off\nmax_connections = 200\nwal_level = logical");
    direct.start();
    direct.sql(&["CREATE DATABASE app"]);
    direct.sql(SETTINGS);
    let client = site.connect();
    for text in SETTINGS {
        run(&site, &client, text);
    }
    drop(client);
    // Tablespaces are of a server, and its operator's.
    for name in ["regress_tblspace", "regress_tblspace_renamed"] {
        let create = format!("CREATE TABLESPACE {name} LOCATION ''");
        site.sides[1 - site.who_serves()]
            .server
            .sql(&["SET allow_in_place_tablespaces = on", &create]);
    }
    let (mut same, mut wrong) = (0, Vec::new());
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let files = suite.files();
    println!("file | lines as directly, refusals, other errors, other lines | members");
    for file in &files {
        let began = Instant::now();
        let told = format!("{} dbname=app", conninfo(&direct));
        let directly = suite.execute(file, &told, "direct", || println!("{file} hangs directly"));
        let mirrored = suite.execute(file, &site.conninfo(), "mirror", || {
            println!("{file} hangs: {:?}", (site.status(0), site.status(1)));
            for side in &site.sides {
                println!("{}", side.server.sql(&[SESSIONS]));
            }
        });
        let others = beyond(&mirrored, &directly);
        let (refused, others): (Vec<_>, Vec<_>) = others
            .into_iter()
            .partition(|line| REFUSALS.iter().any(|part| line.contains(part)));
        let errors = others.iter().filter(|line| line.starts_with("ERROR:"));
        let errors = errors.count();
        same += usize::from(refused.is_empty() && others.is_empty());
        for line in &refused {
            let reason = line.split(", as ").next().unwrap_or_default();
            *reasons.entry(reason.to_owned()).or_default() += 1;
        }
        let found = judge(&site);
        println!(
            "{file} | {} as directly, {} refused, {errors} errors, {} lines | {} | {:?}",
            mirrored.len() - refused.len() - others.len(),
            refused.len(),
            others.len() - errors,
            found.as_deref().unwrap_or("equal"),
            began.elapsed(),
        );
        if let Some(found) = found {
            wrong.push(format!("{file}: {found}"));
            if !repair(&site) {
                println!(
                    "the standby is not filled: {:?}",
                    (site.status(0), site.status(1))
                );
                break;
            }
        }
    }
    println!("{same} of {} files are answered as directly", files.len());
    for (reason, times) in reasons {
        println!("{times} times {reason}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Has the standby's member replaced by a copy of the primary's; true if it is filled.
fn repair(site: &Site) -> bool {
    let Some(primary) = site.primary() else {
        return false;
    };
    site.keep(primary);
    let began = Instant::now();
    while began.elapsed() < REPAIR_TIMEOUT {
        let status = site.status(primary);
        if status.is_some_and(|status| status.has_standby) {
            forget(site, 1 - primary);
            return true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    false
}

/// Drops a standby's databases that were replaced, and roles that only these need: the members would differ in them.
fn forget(site: &Site, standby: usize) {
    let [server, primary] = [standby, 1 - standby].map(|at| &site.sides[at].server);
    for name in site.kept(standby) {
        server.sql(&[&format!("DROP DATABASE \"{name}\" WITH (FORCE)")]);
    }
    let roles = "SELECT rolname FROM pg_roles WHERE rolname ~ '^regress'";
    let [here, there] = [server, primary].map(|server| server.sql(&[roles]));
    let there: Vec<&str> = there.lines().collect();
    for name in here.lines().filter(|name| !there.contains(name)) {
        server.sql(&[&format!("DROP ROLE \"{name}\"")]);
    }
}
