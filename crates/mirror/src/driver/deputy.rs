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

use super::target::Target;
use crate::core::manager::Life;
use crate::rows::write::CodeOwner;

/// The beginning of the roles' names. Each server has its own, and a number of the role's there follows.
pub const PREFIX: &str = "understudy_as_";

/// The role that writes rows, and runs no code of clients.
pub const ROWS: &str = "understudy_as_rows";

/// The role that logs in where clients' code runs while rows are written. It has no right: functions write, each as a table's owner.
pub const NOBODY: &str = "understudy_as_0_rows";

/// The role of those whose sessions may have functions write, with the secret.
const DEPUTIES: &str = "understudy_as_deputies";

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
    /// Deputies' sessions have functions write rows with it.
    pub secret: Option<String>,
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

/// The deputies that write rows, without and with clients' code; the secret that deputies' sessions have functions write with; and the
/// statements that make all of it.
pub fn make_writers(member: &Target) -> io::Result<([Deputy; 2], String, String)> {
    let password = protocol::scram::nonce().map_err(|error| io::Error::other(error.to_string()))?;
    let verifier = quote_literal(&scram_sha_256(password.as_bytes()));
    let secret = protocol::scram::nonce().map_err(|error| io::Error::other(error.to_string()))?;
    let hashed = quote_literal(&secret);
    let text = format!(
        "SET LOCAL understudy_mirror.own = 'on'; \
         DO $$ BEGIN IF pg_catalog.to_regrole('{ROWS}') IS NULL THEN CREATE ROLE {ROWS}; END IF; \
           IF pg_catalog.to_regrole('{DEPUTIES}') IS NULL THEN CREATE ROLE {DEPUTIES}; END IF; \
           IF pg_catalog.to_regrole('{NOBODY}') IS NULL THEN CREATE ROLE {NOBODY}; END IF; END $$; \
         GRANT {DEPUTIES} TO {NOBODY}; \
         ALTER ROLE {NOBODY} LOGIN INHERIT NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION NOBYPASSRLS PASSWORD {verifier}; \
         ALTER ROLE {NOBODY} SET session_replication_role = 'replica'; \
         ALTER ROLE {ROWS} LOGIN INHERIT NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION BYPASSRLS PASSWORD {verifier}; \
         GRANT pg_read_all_data, pg_write_all_data TO {ROWS}; GRANT SET ON PARAMETER session_replication_role TO {ROWS}; \
         GRANT EXECUTE ON FUNCTION understudy_mirror.truncate(regclass[], boolean) TO {ROWS}; \
         REVOKE EXECUTE ON FUNCTION understudy_mirror.write(text, text) FROM PUBLIC; \
         GRANT EXECUTE ON FUNCTION understudy_mirror.write(text, text) TO {DEPUTIES}; \
         ALTER FUNCTION understudy_mirror.write(text, text) OWNER TO {ROWS}; \
         DELETE FROM understudy_mirror.secret; \
         INSERT INTO understudy_mirror.secret VALUES (pg_catalog.sha256({hashed}::pg_catalog.bytea))"
    );
    let deputy =
        |name: &str| Deputy::Role(Box::new(member.for_user(name.to_owned(), password.clone())));
    Ok(([deputy(ROWS), deputy(NOBODY)], secret, text))
}

/// The kind of an owner's role, and what it sees. Each kind has a role of its own: what one needs, the other one must not have.
fn kind(owner: &CodeOwner) -> (&'static str, &'static str) {
    match owner.is_forced {
        true => ("forced", "BYPASSRLS"),
        false => ("code", "NOBYPASSRLS"),
    }
}

/// The role that clients' code runs as when rows of an owner's tables are written: a member of the owner.
pub fn code_role(owner: &CodeOwner) -> String {
    format!("{PREFIX}{}_{}", owner.oid, kind(owner).0)
}

/// The statement by which rows of tables of an owner are written that clients' code runs for, and the statements that make its function:
/// it runs as a role that is the owner's member, and nobody else's.
pub fn make_code_writer(owner: &CodeOwner) -> (String, String) {
    let (oid, name) = (owner.oid, escape_identifier(&owner.name));
    let (kind, sees) = kind(owner);
    let role = code_role(owner);
    let function = format!("write_as_{oid}_{kind}");
    let text = format!(
        "SET LOCAL understudy_mirror.own = 'on'; SET LOCAL lock_timeout = '1s'; \
         DO $$ BEGIN IF pg_catalog.to_regrole('{role}') IS NULL THEN CREATE ROLE {role}; END IF; \
           EXECUTE pg_catalog.replace(pg_catalog.pg_get_functiondef('understudy_mirror.write(text, text)'::pg_catalog.regprocedure), \
             'understudy_mirror.write(', 'understudy_mirror.{function}('); END $$; \
         ALTER ROLE {role} NOLOGIN INHERIT NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION {sees}; \
         GRANT {name} TO {role}; GRANT SELECT ON understudy_mirror.secret TO {role}; \
         REVOKE EXECUTE ON FUNCTION understudy_mirror.{function}(text, text) FROM PUBLIC; \
         GRANT EXECUTE ON FUNCTION understudy_mirror.{function}(text, text) TO {DEPUTIES}; \
         ALTER FUNCTION understudy_mirror.{function}(text, text) OWNER TO {role}"
    );
    let by = format!("SELECT understudy_mirror.{function}($1, $2)");
    (by, text)
}

/// A deputy, and the statements that make it. One that is there is of an earlier process, which alone knew the password, or somebody
/// else's.
pub fn make(member: &Target, login: &str, name: String) -> io::Result<(Deputy, String)> {
    let password = protocol::scram::nonce().map_err(|error| io::Error::other(error.to_string()))?;
    // Who may not set whether triggers fire has it from the beginning, and keeps it.
    let text = format!(
        "DROP ROLE IF EXISTS {name}; CREATE ROLE {name} LOGIN INHERIT PASSWORD {}; \
         ALTER ROLE {name} SET session_replication_role = 'replica'; GRANT {DEPUTIES} TO {name}; GRANT {} TO {name}",
        quote_literal(&scram_sha_256(password.as_bytes())),
        escape_identifier(login)
    );
    let target = member.for_user(name, password);
    Ok((Deputy::Role(Box::new(target)), text))
}
