//! Where clients come from: the Unix socket, and rules of who may come from where.

use std::path::PathBuf;

use super::{Auth, Config, ConfigError, value};
use crate::core::hba;

impl Config {
    /// Checks the keys of who may come from where.
    pub(super) fn check_access(&self) -> Result<(), ConfigError> {
        if self.auth_hba_file.is_some() && self.auth == Auth::Trust {
            let reason =
                "has no effect beside auth_hba_file: write the method trust into its rules";
            return Err(value("auth", reason));
        }
        if let Some(path) = &self.unix_socket_dir
            && !path.is_absolute()
        {
            return Err(value("unix_socket_dir", "must begin with /"));
        }
        if self.unix_socket_mode().is_none() {
            let reason = "must be an octal number up to 0777";
            return Err(value("unix_socket_mode", reason));
        }
        Ok(())
    }

    /// Path of the Unix socket to listen on.
    pub fn unix_socket(&self) -> Option<PathBuf> {
        let directory = self.unix_socket_dir.as_ref()?;
        Some(directory.join(format!(".s.PGSQL.{}", self.listen.port())))
    }

    /// Permissions of the Unix socket, if they are understood.
    pub fn unix_socket_mode(&self) -> Option<u32> {
        let mode = u32::from_str_radix(&self.unix_socket_mode, 8).ok()?;
        (mode <= 0o777).then_some(mode)
    }

    /// Reads the rules of who may come from where, if there is a file of them.
    ///
    /// # Errors
    /// If it cannot be read, or a line is not understood.
    pub fn load_rules(&self) -> Result<Option<hba::Rules>, ConfigError> {
        let Some(path) = &self.auth_hba_file else {
            return Ok(None);
        };
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.clone(),
            source,
        })?;
        let include = |file: &str| {
            let beside = path.with_file_name(file);
            let text = std::fs::read_to_string(&beside);
            text.map_err(|error| format!("cannot read {}: {error}", beside.display()))
        };
        let rules = hba::Rules::parse(&text, &include);
        let rules = rules.map_err(|hba::Mistake { line, reason }| ConfigError::Rule {
            path: path.clone(),
            line,
            reason,
        });
        rules.map(Some)
    }
}
