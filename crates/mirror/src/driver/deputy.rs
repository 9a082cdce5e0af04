//! Roles that the log is executed as: a deputy of whoever has logged in at the primary.
//!
//! ```text
//!   client logs in as app ──▶ the log says so ──▶ a session logged in as understudy_as_16388, a member of app and of nothing else
//! ```
//!
//! Code that a client's definition sets off (checks, indexes, casts) is executed by that session, and can get out of every role
//! that the session is put into, back to whoever has logged in. Invariant: that is nobody with more rights than whoever has logged in at
//! the primary had. A superuser's statements are executed by the manager's own sessions, as PostgreSQL would.

use std::collections::HashMap;
use std::io;

use postgres_protocol::escape::escape_identifier;
use postgres_protocol::password::scram_sha_256;
use proxy::core::settings::quote_literal;

use super::config::Target;
use crate::core::manager::Life;

/// The beginning of the roles' names. Each server has its own, and a number of the role's there follows.
pub const PREFIX: &str = "understudy_as_";

/// The role that writes rows: no superuser, because checks and expressions of clients' tables run as it.
pub const ROWS: &str = "understudy_as_rows";

/// A role that a transaction of the log is executed as.
#[derive(Debug, Clone)]
pub enum Deputy {
    /// The manager's own, for a superuser.
    Own,
    /// Another one, with its password.
    Role(Box<Target>),
}

impl Deputy {
    /// The name of the role; nothing of the manager's own.
    pub fn name(&self) -> &str {
        match self {
            Deputy::Own => "",
            Deputy::Role(target) => &target.user,
        }
    }
}

/// Deputies that were found out, and as of which definitions, in one life of the server.
#[derive(Debug, Default)]
pub struct Deputies {
    life: Life,
    known: HashMap<String, (u64, Deputy)>,
}

impl Deputies {
    /// The deputy of a role, and whether definitions have changed since that was found out.
    pub fn of(&mut self, life: Life, definitions: u64, login: &str) -> Option<(Deputy, bool)> {
        if self.life != life {
            // They may be lost with the server's last commits.
            self.life = life;
            self.known.clear();
        }
        let (of, deputy) = self.known.get(login)?;
        Some((deputy.clone(), *of != definitions))
    }

    /// A deputy was found out.
    pub fn learn(&mut self, definitions: u64, login: &str, deputy: &Deputy) {
        let entry = (definitions, deputy.clone());
        self.known.insert(login.to_owned(), entry);
    }
}

/// Asks whether a role is a superuser, and what its deputy is called.
pub fn question(login: &str) -> String {
    format!(
        "SELECT rolsuper, pg_catalog.format('{PREFIX}%s_rows', oid) FROM pg_catalog.pg_roles WHERE rolname = {}",
        quote_literal(login)
    )
}

/// The statement by which a session that has logged in as a deputy writes something as the role that writes rows. Its parameters are a
/// secret and a statement: a parameter is in no text that clients' functions could read in that session.
pub const WRITE: &str = "SELECT understudy_mirror.write($1, $2)";

/// The deputy that writes rows, and the statements that make it. Its password is what other deputies' sessions write rows with.
pub fn make_writer(member: &Target) -> io::Result<(Deputy, String)> {
    let password = protocol::scram::nonce().map_err(|error| io::Error::other(error.to_string()))?;
    let verifier = quote_literal(&scram_sha_256(password.as_bytes()));
    let secret = quote_literal(&password);
    let text = format!(
        "SET LOCAL understudy_mirror.own = 'on'; \
         DO $$ BEGIN IF pg_catalog.to_regrole('{ROWS}') IS NULL THEN CREATE ROLE {ROWS}; END IF; END $$; \
         ALTER ROLE {ROWS} LOGIN INHERIT NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION BYPASSRLS PASSWORD {verifier}; \
         GRANT pg_read_all_data, pg_write_all_data TO {ROWS}; GRANT SET ON PARAMETER session_replication_role TO {ROWS}; \
         GRANT EXECUTE ON FUNCTION understudy_mirror.truncate(regclass[], boolean) TO {ROWS}; \
         ALTER FUNCTION understudy_mirror.write(text, text) OWNER TO {ROWS}; \
         DELETE FROM understudy_mirror.secret; \
         INSERT INTO understudy_mirror.secret VALUES (pg_catalog.sha256({secret}::pg_catalog.bytea))"
    );
    let target = Target {
        user: ROWS.to_owned(),
        password: Some(password),
        ..member.clone()
    };
    Ok((Deputy::Role(Box::new(target)), text))
}

/// A deputy, and the statements that make it. One that is there is of an earlier process, which alone knew the password, or somebody
/// else's.
pub fn make(member: &Target, login: &str, name: String) -> io::Result<(Deputy, String)> {
    let password = protocol::scram::nonce().map_err(|error| io::Error::other(error.to_string()))?;
    // Who may not set whether triggers fire has it from the beginning, and keeps it.
    let text = format!(
        "DROP ROLE IF EXISTS {name}; CREATE ROLE {name} LOGIN INHERIT PASSWORD {}; \
         ALTER ROLE {name} SET session_replication_role = 'replica'; GRANT {} TO {name}",
        quote_literal(&scram_sha_256(password.as_bytes())),
        escape_identifier(login)
    );
    let target = Target {
        user: name,
        password: Some(password),
        ..member.clone()
    };
    Ok((Deputy::Role(Box::new(target)), text))
}
