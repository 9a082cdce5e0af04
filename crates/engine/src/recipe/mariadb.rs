//! MariaDB on a volume: which settings follow from where it runs, and which are refused.
//!
//! | setting | value | why |
//! |---|---|---|
//! | `innodb_doublewrite` | `OFF` where a page fits a block | a block is written whole or not at all, so no page is ever torn, and each would be sent twice |
//! | `innodb_flush_method` | `O_DIRECT` | InnoDB has its own buffer pool; direct I/O reaches the mount as whole pages, and nothing is cached twice |
//! | `innodb_use_native_aio` | `ON` | reads and writes of the buffer pool do not wait for each other; the mount serves them in parallel |
//! | `innodb_flush_log_at_trx_commit` | `1` | a commit is acknowledged when its log is on k zones |
//! | `sync_binlog` | `1` where there is a binary log | the same for the binary log |
//! | `innodb_temp_data_file_path`, `tmpdir` | local | temporary tables die with the server, so they are not replicated |
//! | `socket`, `pid_file`, `log_error` | local | of this run only |
//!
//! Settings that would lose what was acknowledged are refused with the reason ([`settings`]).

mod settings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Invocation, Places, Ready, Recipe};
use crate::layout::Pattern;

/// What an operator decides about a MariaDB server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MariaDb {
    /// Where `mariadbd` is; found in the usual places if `None`.
    pub bin: Option<PathBuf>,
    /// The port of its network.
    pub port: u16,
    /// The address it listens on.
    pub listen: String,
    /// The user that it runs as when the agent is root.
    pub run_as: String,
    /// See [`Recipe::ready_within`].
    pub ready_within: Duration,
    /// See [`Recipe::stop_within`].
    pub stop_within: Duration,
    /// Settings of the server by name, with `_` between words.
    pub parameters: BTreeMap<String, String>,
}

/// InnoDB's page size unless the operator chose another one when the database was made.
const DEFAULT_PAGE_BYTES: u32 = 16 << 10;

const PROGRAM: &str = "mariadbd";
const INSTALL: &str = "mariadb-install-db";
const USUAL: [&str; 3] = ["/usr/sbin", "/usr/bin", "/usr/local/mysql/bin"];

impl MariaDb {
    /// How such a server is run.
    ///
    /// # Errors
    /// A sentence that says what is missing or refused, and what to do.
    pub fn recipe(&self, places: &Places, block_bytes: u32, owner: &str) -> Result<Recipe, String> {
        settings::check(&self.parameters)?;
        let page_bytes = self.page_bytes()?;
        settings::check_doublewrite(&self.parameters, page_bytes, block_bytes)?;
        let program = self.find(PROGRAM)?;
        let version = Invocation {
            program: program.clone(),
            arguments: vec!["--version".to_owned()],
        };
        let server = Invocation {
            program,
            arguments: self.arguments(places, page_bytes <= block_bytes),
        };
        Ok(Recipe {
            name: "MariaDB".to_owned(),
            run_as: self.run_as.clone(),
            init: Some(self.init(places, owner)?),
            server,
            ready: Ready::MySqlGreeting(socket(places)),
            ready_within: self.ready_within,
            stop_signal: Signal::SIGTERM,
            stop_within: self.stop_within,
            private: private(),
            listens: vec![(self.listen.clone(), self.port)],
            reached: format!("{}:{}", self.host(), self.port),
            warnings: settings::warnings(&self.parameters, page_bytes, block_bytes),
            page_bytes,
            version: Some(version),
        })
    }

    /// The host of a listen address that others can use.
    fn host(&self) -> &str {
        match self.listen.as_str() {
            "" | "*" | "0.0.0.0" | "::" => "localhost",
            host => host,
        }
    }

    fn page_bytes(&self) -> Result<u32, String> {
        let Some(text) = self.parameters.get("innodb_page_size") else {
            return Ok(DEFAULT_PAGE_BYTES);
        };
        let (digits, unit) = match text.strip_suffix(['k', 'K']) {
            Some(digits) => (digits, 1024),
            None => (text.as_str(), 1),
        };
        let bytes = digits.parse::<u32>().ok().and_then(|n| n.checked_mul(unit));
        let known = bytes.filter(|n| n.is_power_of_two() && (4 << 10..=64 << 10).contains(n));
        known.ok_or_else(|| {
            format!("\"engine.parameters.innodb_page_size\" = {text}: use 4k, 8k, 16k, 32k or 64k")
        })
    }

    fn find(&self, program: &str) -> Result<PathBuf, String> {
        let configured = self.bin.iter().map(PathBuf::as_path);
        let usual = USUAL.iter().map(Path::new).filter(|_| self.bin.is_none());
        let mut places = configured
            .chain(usual)
            .map(|directory| directory.join(program));
        places.find(|path| path.exists()).ok_or_else(|| match &self.bin {
            Some(bin) => format!("\"engine.bin\": there is no {program} in {}", bin.display()),
            None => format!(
                "{program} is not installed; install MariaDB (Debian: mariadb-server), or set engine.bin to the \
                 directory of its programs"
            ),
        })
    }

    /// `mariadb-install-db` is not where the server is on every system.
    fn find_install(&self) -> Result<PathBuf, String> {
        self.find(INSTALL).or_else(|error| {
            let beside = self.bin.as_ref().and_then(|bin| bin.parent());
            let places = beside.into_iter().flat_map(|home| {
                ["bin", "scripts"].map(|directory| home.join(directory).join(INSTALL))
            });
            places.into_iter().find(|path| path.exists()).ok_or(error)
        })
    }

    /// `owner`: the account of the system that may log in as root over the socket without a password.
    fn init(&self, places: &Places, owner: &str) -> Result<Invocation, String> {
        let page_size = self.parameters.get("innodb_page_size");
        let own = page_size.map(|size| format!("--innodb-page-size={size}"));
        let arguments = [
            "--no-defaults".to_owned(),
            format!("--datadir={}", places.data.display()),
            "--auth-root-authentication-method=socket".to_owned(),
            format!("--auth-root-socket-user={owner}"),
            "--skip-test-db".to_owned(),
            "--skip-name-resolve".to_owned(),
            format!("--tmpdir={}", places.tmp.display()),
        ];
        Ok(Invocation {
            program: self.find_install()?,
            arguments: arguments.into_iter().chain(own).collect(),
        })
    }

    fn arguments(&self, places: &Places, whole_pages: bool) -> Vec<String> {
        // First what an operator may say otherwise, last what nobody may.
        let ours = [
            ("innodb_flush_method", "O_DIRECT".to_owned()),
            (
                "innodb_doublewrite",
                if whole_pages { "OFF" } else { "ON" }.to_owned(),
            ),
            ("innodb_use_native_aio", "ON".to_owned()),
            ("innodb_flush_log_at_trx_commit", "1".to_owned()),
            ("sync_binlog", "1".to_owned()),
            ("skip_name_resolve", "ON".to_owned()),
        ];
        let fixed = [
            ("datadir", places.data.display().to_string()),
            ("socket", socket(places).display().to_string()),
            (
                "pid_file",
                places.run.join("server.pid").display().to_string(),
            ),
            ("tmpdir", places.tmp.display().to_string()),
            ("port", self.port.to_string()),
            ("bind_address", self.listen.clone()),
        ];
        let own = self
            .parameters
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()));
        let all = ours.into_iter().chain(own).chain(fixed);
        let settings = all.map(|(name, value)| format!("--{}={value}", name.replace('_', "-")));
        ["--no-defaults".to_owned()]
            .into_iter()
            .chain(settings)
            .collect()
    }
}

/// Where its clients on this machine connect.
pub fn socket(places: &Places) -> PathBuf {
    places.run.join("server.sock")
}

fn private() -> Vec<Pattern> {
    vec![
        Pattern::Name("ibtmp1".to_owned()),
        Pattern::Ending(".pid".to_owned()),
        Pattern::Ending(".err".to_owned()),
        Pattern::Directory("#innodb_temp".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        Places {
            data: "/v".into(),
            run: "/r".into(),
            tmp: "/t".into(),
        }
    }

    /// A directory with programs of these names, and a configuration that names it.
    fn installed() -> (tempfile::TempDir, MariaDb) {
        let bin = tempfile::tempdir().unwrap();
        for program in [PROGRAM, INSTALL] {
            std::fs::write(bin.path().join(program), "").unwrap();
        }
        let engine = MariaDb {
            bin: Some(bin.path().to_owned()),
            port: 3306,
            listen: "127.0.0.1".to_owned(),
            run_as: "mysql".to_owned(),
            ready_within: Duration::from_secs(60),
            stop_within: Duration::from_secs(60),
            parameters: BTreeMap::new(),
        };
        (bin, engine)
    }

    fn with(parameters: &[(&str, &str)]) -> Result<Recipe, String> {
        let (_bin, mut engine) = installed();
        let owned = parameters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        engine.parameters = owned.collect();
        engine.recipe(&places(), 16 << 10, "root")
    }

    fn value_of(recipe: &Recipe, name: &str) -> Option<String> {
        let prefix = format!("--{name}=");
        let mut values = recipe
            .server
            .arguments
            .iter()
            .filter_map(|a| a.strip_prefix(&prefix));
        values.next_back().map(str::to_owned)
    }

    // hazard: ENGINE-1
    #[test]
    fn pages_that_fit_a_block_are_written_once() {
        let recipe = with(&[]).unwrap();
        assert_eq!(value_of(&recipe, "innodb-doublewrite").unwrap(), "OFF");
        assert!(recipe.warnings.is_empty());
        let large = with(&[("innodb_page_size", "32k")]).unwrap();
        assert_eq!(value_of(&large, "innodb-doublewrite").unwrap(), "ON");
        assert!(large.warnings[0].contains("32768"), "{:?}", large.warnings);
    }

    #[test]
    fn parameters_of_operators_are_checked_and_passed_on() {
        assert!(with(&[("innodb_flush_log_at_trx_commit", "0")]).is_err());
        assert!(with(&[("innodb_page_size", "32k"), ("innodb_doublewrite", "0")]).is_err());
        assert!(with(&[("innodb_page_size", "17k")]).is_err());
        let recipe = with(&[("innodb_buffer_pool_size", "256M")]).unwrap();
        assert_eq!(
            value_of(&recipe, "innodb-buffer-pool-size").unwrap(),
            "256M"
        );
        assert_eq!(value_of(&recipe, "datadir").unwrap(), "/v");
    }

    #[test]
    fn a_missing_program_says_where_it_is_looked_for() {
        let (_bin, mut engine) = installed();
        engine.bin = Some("/nowhere".into());
        let why = engine.recipe(&places(), 16 << 10, "root").unwrap_err();
        assert!(
            why.contains("engine.bin") && why.contains("/nowhere"),
            "{why}"
        );
    }
}
