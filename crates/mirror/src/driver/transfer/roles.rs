//! Roles, which are a server's and not a database's: those of the other member's are made here, and what they have not any more is
//! taken from them.
//!
//! Invariant: of a role that only this server has nothing is changed, unless an operator says that there are none but the mirror's; and
//! never anything of the one that the manager itself logs in as. Deputies ([`crate::driver::deputy`]) are each server's own.

use std::collections::BTreeSet;
use std::process::Stdio;

use postgres_protocol::escape::escape_identifier;
use tokio::io::AsyncWriteExt;

use super::{NAME, TransferError, command, program};
use crate::driver::deputy::PREFIX;
use crate::driver::hub::Hub;
use crate::driver::target::Target;
use crate::driver::wire::Postgres;

/// What roles there are, as a short sum of it.
const SUM: &str = "SELECT pg_catalog.md5( \
    coalesce((SELECT pg_catalog.string_agg(r::text, '|' ORDER BY r.oid) FROM pg_catalog.pg_roles r WHERE rolname !~ '^understudy_as_'), '') || \
    coalesce((SELECT pg_catalog.string_agg(m::text, '|' ORDER BY m::text) FROM pg_catalog.pg_auth_members m \
    WHERE m.member::pg_catalog.regrole::text !~ '^understudy_as_'), ''))";
/// All roles, or those that are not PostgreSQL's own.
const NAMES: &str = "SELECT rolname FROM pg_catalog.pg_roles WHERE rolname !~ '^understudy_as_'";
const MADE: &str = "SELECT rolname FROM pg_catalog.pg_roles WHERE oid >= 16384 AND rolname !~ '^(pg|understudy_as)_'";
/// Which role has which as a member, and since version 16 by whom that was granted, which then has to be said.
const MEMBERSHIPS: &str = "SELECT r.rolname, m.rolname, \
    CASE WHEN pg_catalog.current_setting('server_version_num')::int >= 160000 THEN g.rolname END \
    FROM pg_catalog.pg_auth_members a JOIN pg_catalog.pg_roles r ON r.oid = a.roleid \
    JOIN pg_catalog.pg_roles m ON m.oid = a.member LEFT JOIN pg_catalog.pg_roles g ON g.oid = a.grantor";

/// A membership: the role, who is a member of it, and by whom that was granted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Membership {
    role: String,
    member: String,
    grantor: Option<String>,
}

/// What roles there are at the other member's server.
pub(super) struct Roles {
    /// What makes them.
    text: String,
    /// Their names.
    names: BTreeSet<String>,
    memberships: BTreeSet<Membership>,
}

async fn names(session: &mut Postgres, which: &str) -> Result<BTreeSet<String>, TransferError> {
    let rows = session.query(which).await?.rows().into_iter();
    Ok(rows.filter_map(|row| row.into_iter().next()?).collect())
}

async fn memberships(session: &mut Postgres) -> Result<BTreeSet<Membership>, TransferError> {
    let rows = session.query(MEMBERSHIPS).await?.rows().into_iter();
    let memberships = rows.filter_map(|row| {
        let mut row = row.into_iter();
        Some(Membership {
            role: row.next()??,
            member: row.next()??,
            grantor: row.next()?,
        })
    });
    Ok(memberships.collect())
}

impl Roles {
    /// Reads them; `source` is in a snapshot.
    pub(super) async fn read(
        hub: &Hub,
        other: &Target,
        source: &mut Postgres,
    ) -> Result<Roles, TransferError> {
        let of_snapshot = source.query(SUM).await?.value();
        let (names, memberships) = (names(source, NAMES).await?, memberships(source).await?);
        let without_passwords = ["--roles-only", "--no-role-passwords"];
        let text = program(hub, "pg_dumpall", other, &without_passwords).await?;
        let text = program(hub, "pg_dumpall", other, &["--roles-only"])
            .await
            .unwrap_or(text);
        // Programs do not read in the snapshot: what the log is going to change must not be there already.
        let mut now = Postgres::connect(other, NAME).await?;
        if now.query(SUM).await?.value() != of_snapshot {
            return Err(TransferError::RolesChanged);
        }
        Ok(Roles {
            text,
            names,
            memberships,
        })
    }

    /// Makes them here, with what they are and have there, and nothing else.
    pub(super) async fn make(&self, hub: &Hub, elsewhere: &Target) -> Result<(), TransferError> {
        let own = elsewhere.user.as_str();
        // PostgreSQL's own cannot be altered.
        let is_altered = |name: &&String| *name != own && !name.starts_with("pg_");
        let others = self.names.iter().filter(is_altered);
        let mut text: String = others
            .map(|name| format!("ALTER ROLE {} RESET ALL;\n", escape_identifier(name)))
            .collect();
        text.push_str(&without(own, &self.text));
        // Roles that are there already cannot be made, and others have nothing to reset; what they are is set in any case.
        feed(hub, "psql", elsewhere, &["-X", "-q"], &text).await?;
        let mut session = Postgres::connect(elsewhere, NAME).await?;
        for revoke in self.revokes(own, &memberships(&mut session).await?) {
            match session.query(&revoke).await {
                Ok(_) => tracing::info!(
                    revoke,
                    "a membership that the other server has not any more"
                ),
                Err(error) => {
                    tracing::warn!(%error, revoke, "a membership stays that the other server has not any more")
                }
            }
        }
        Ok(())
    }

    /// What takes away the memberships that the other server has not, of roles that both have.
    fn revokes(&self, own: &str, here: &BTreeSet<Membership>) -> Vec<String> {
        let revoke = |one: &Membership| {
            let by = one.grantor.as_ref();
            let by = by.map(|by| format!(" GRANTED BY {}", escape_identifier(by)));
            format!(
                "REVOKE {} FROM {}{} CASCADE",
                escape_identifier(&one.role),
                escape_identifier(&one.member),
                by.unwrap_or_default()
            )
        };
        let gone = here.iter().filter(|one| self.lacks(one));
        // PostgreSQL's own are what its version makes them.
        let gone = gone.filter(|one| one.member != own && !one.member.starts_with("pg_"));
        gone.map(revoke).collect()
    }

    /// True if the other server has both roles, and not this membership.
    fn lacks(&self, one: &Membership) -> bool {
        let mut there = self.memberships.iter();
        let is_there = there.any(|other| other.role == one.role && other.member == one.member);
        let has_both = self.names.contains(&one.role) && self.names.contains(&one.member);
        has_both && !is_there
    }

    /// Drops the roles that only this server has, if an operator says so; says that they stay otherwise.
    pub(super) async fn end_others(
        &self,
        hub: &Hub,
        elsewhere: &Target,
    ) -> Result<(), TransferError> {
        let mut session = Postgres::connect(elsewhere, NAME).await?;
        let mut others = names(&mut session, MADE).await?;
        others.retain(|name| !self.names.contains(name) && *name != elsewhere.user);
        if others.is_empty() {
            return Ok(());
        }
        if !hub.config.drop_roles {
            tracing::warn!(
                roles = ?others,
                "roles that only this member's server has can still log in; drop them there, or set drop_roles in [mirror], if they \
                 were the mirror's"
            );
            return Ok(());
        }
        for name in others {
            let dropped = session
                .query(&format!("DROP ROLE {}", escape_identifier(&name)))
                .await;
            match dropped {
                Ok(_) => tracing::info!(
                    name,
                    "a role was dropped that the other member's server has not any more"
                ),
                Err(error) => {
                    tracing::warn!(%error, name, "a role stays that the other member's server has not any more")
                }
            }
        }
        Ok(())
    }
}

/// Roles as `pg_dumpall` writes them, without deputies, and without changes of the role that the manager itself logs in as.
fn without(user: &str, roles: &str) -> String {
    let names = [user.to_owned(), escape_identifier(user)];
    let concerns = |line: &&str| {
        let rest = line
            .strip_prefix("CREATE ROLE ")
            .or_else(|| line.strip_prefix("ALTER ROLE "));
        let rest = rest.map(|rest| rest.trim_end_matches(';'));
        rest.is_some_and(|rest| {
            names.iter().any(|name| {
                let after = rest.strip_prefix(name.as_str());
                after.is_some_and(|after| after.is_empty() || after.starts_with(" WITH "))
            })
        })
    };
    let is_deputy = |line: &&str| {
        let words = line.split([' ', ';']).skip(2);
        line.starts_with("GRANT ") && words.clone().any(|word| word.starts_with(PREFIX))
            || words.take(1).any(|word| word.starts_with(PREFIX))
    };
    let kept = roles
        .lines()
        .filter(|line| !concerns(line) && !is_deputy(line));
    let kept: Vec<&str> = kept.collect();
    kept.join("\n") + "\n"
}

async fn feed(
    hub: &Hub,
    name: &'static str,
    target: &Target,
    arguments: &[&str],
    text: &str,
) -> Result<(), TransferError> {
    let mut child = command(hub, name, target, arguments)
        .stdin(Stdio::piped())
        .spawn()?;
    let input = child.stdin.take();
    let feeding = async {
        match input {
            Some(mut input) => input.write_all(text.as_bytes()).await,
            None => Ok(()),
        }
    };
    // What it says meanwhile is read: it may be more than a pipe holds.
    let (fed, ended) = tokio::join!(feeding, child.wait_with_output());
    let ended = ended?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        return Err(TransferError::Program(name, said));
    }
    Ok(fed?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The manager was locked out of its own member, because the other one's superuser had another password.
    #[test]
    fn the_role_that_the_manager_logs_in_as_is_left_as_it_is() {
        let roles = "CREATE ROLE postgres;\nALTER ROLE postgres WITH SUPERUSER PASSWORD 'x';\n\
            CREATE ROLE postgres2;\nALTER ROLE postgres2 WITH LOGIN;\nCREATE ROLE \"Or der\";\n\
            ALTER ROLE postgres SET work_mem TO '1MB';\nGRANT postgres2 TO postgres;\n";
        let kept = "CREATE ROLE postgres2;\nALTER ROLE postgres2 WITH LOGIN;\nCREATE ROLE \"Or der\";\n\
            ALTER ROLE postgres SET work_mem TO '1MB';\nGRANT postgres2 TO postgres;\n";
        assert_eq!(without("postgres", roles), kept);
        assert_eq!(
            without("Or der", roles),
            roles.replace("CREATE ROLE \"Or der\";\n", "")
        );
    }

    #[test]
    fn deputies_are_each_servers_own() {
        let roles = "CREATE ROLE understudy_as_5;\nALTER ROLE understudy_as_5 WITH LOGIN;\nALTER ROLE understudy_as_5 SET a TO 'b';\n\
            CREATE ROLE app;\nGRANT app TO understudy_as_5;\nGRANT app TO understudy_as_5 WITH INHERIT TRUE GRANTED BY postgres;\n\
            GRANT app TO other;\n";
        let kept = "CREATE ROLE app;\nGRANT app TO other;\n";
        assert_eq!(without("postgres", roles), kept);
    }

    fn membership(role: &str, member: &str, grantor: Option<&str>) -> Membership {
        Membership {
            role: role.to_owned(),
            member: member.to_owned(),
            grantor: grantor.map(ToOwned::to_owned),
        }
    }

    /// Whoever was no member any more was one again after a takeover.
    #[test]
    fn what_was_granted_is_taken_away_among_roles_that_both_have() {
        let roles = Roles {
            text: String::new(),
            names: ["app", "Owner", "north", "pg_monitor", "pg_read_all_stats"]
                .map(ToOwned::to_owned)
                .into(),
            memberships: [membership("app", "Owner", Some("postgres"))].into(),
        };
        let here = [
            membership("app", "Owner", None),
            membership("Owner", "app", None),
            membership("pg_monitor", "app", Some("root")),
            // Those that the mirror does not know, the manager's own role, and PostgreSQL's.
            membership("app", "backup", None),
            membership("backup", "app", None),
            membership("app", "north", None),
            membership("pg_read_all_stats", "pg_monitor", None),
        ];
        assert_eq!(
            roles.revokes("north", &here.into()),
            [
                "REVOKE \"Owner\" FROM \"app\" CASCADE",
                "REVOKE \"pg_monitor\" FROM \"app\" GRANTED BY \"root\" CASCADE"
            ]
        );
    }
}
