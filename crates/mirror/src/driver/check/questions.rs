//! Questions of checks. DATABASE stands for the name of the member's database, and SCHEMAS for a query of its schemas.

use serde::{Deserialize, Serialize};

/// Meaning of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The mirror does not start with it, or refuses it.
    Refused,
    /// The members may come to differ.
    Differs,
    /// It works, and costs something.
    Advice,
}

/// Settings of sessions that ask.
pub(super) const BEGIN: &str =
    "SET default_transaction_read_only = on; SET search_path = pg_catalog; SET TimeZone = 'UTC'";
/// The query that stands for SCHEMAS.
pub(super) const SCHEMAS: &str = "SELECT oid FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'understudy_mirror')";

/// A question. In CHECKS each row names something that is not as it should be.
pub(super) struct Check {
    pub(super) level: Level,
    /// It concerns the server, and not the database.
    pub(super) of_server: bool,
    pub(super) asks: &'static str,
    pub(super) what: &'static str,
    pub(super) advice: &'static str,
}

const fn of_server(
    level: Level,
    asks: &'static str,
    what: &'static str,
    advice: &'static str,
) -> Check {
    Check {
        level,
        of_server: true,
        asks,
        what,
        advice,
    }
}

const fn of_database(
    level: Level,
    asks: &'static str,
    what: &'static str,
    advice: &'static str,
) -> Check {
    Check {
        of_server: false,
        ..of_server(level, asks, what, advice)
    }
}

pub(super) const CHECKS: &[Check] = &[
    of_server(
        Level::Refused,
        "SELECT current_setting('wal_level') WHERE current_setting('wal_level') <> 'logical'",
        "wal_level is not logical",
        "Set wal_level = logical, and restart the server.",
    ),
    of_server(
        Level::Refused,
        "SELECT format('%s of %s are used', used, most) FROM (SELECT count(*) FILTER (WHERE slot_name <> 'understudy_mirror') AS used, \
           current_setting('max_replication_slots')::int AS most FROM pg_replication_slots) s WHERE most - used < 2",
        "two replication slots are needed, and not free (max_replication_slots)",
        "Raise max_replication_slots, and restart the server.",
    ),
    of_server(
        Level::Refused,
        "SELECT format('%s of %s are used', used, most) FROM (SELECT count(*) FILTER (WHERE application_name !~ '^understudy') AS used, \
           current_setting('max_wal_senders')::int AS most FROM pg_stat_replication) s WHERE most - used < 2",
        "two WAL senders are needed, and not free (max_wal_senders)",
        "Raise max_wal_senders, and restart the server.",
    ),
    of_server(
        Level::Refused,
        "SELECT s FROM current_setting('synchronous_standby_names') s WHERE s NOT IN ('', 'understudy_mirror') AND ( \
           s !~ 'understudy_mirror' OR coalesce(substring(s FROM '(\\d+)\\s*\\('), '1')::int < array_length(string_to_array(s, ','), 1))",
        "commits wait for other standbys, and can go on without the manager (synchronous_standby_names)",
        "Leave it empty, or have all be waited for that are named, as '2 (understudy_mirror, other)' does.",
    ),
    of_server(
        Level::Refused,
        "SELECT s FROM current_setting('lc_messages') s WHERE s !~ '^(C|POSIX|en|$)'",
        "messages are translated, and definitions are recognized by them (lc_messages)",
        "ALTER SYSTEM SET lc_messages = 'C', and reload.",
    ),
    of_server(
        Level::Refused,
        "SELECT database FROM pg_replication_slots WHERE slot_name = 'understudy_mirror' AND database <> 'DATABASE'",
        "another database of the server has a mirror already",
        "A server has one mirror with rows: use another server.",
    ),
    of_server(
        Level::Refused,
        "SELECT current_user WHERE NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)",
        "the manager's role is no superuser",
        "Let the manager log in as a superuser.",
    ),
    of_server(
        Level::Refused,
        "SELECT 'pg_is_in_recovery()' WHERE pg_is_in_recovery()",
        "the server is a standby, which cannot be written",
        "Name the primary of that cluster.",
    ),
    of_database(
        Level::Refused,
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()",
        "there are prepared transactions, which are refused",
        "Commit them or roll them back, and use transactions that commit themselves.",
    ),
    of_database(
        Level::Refused,
        "SELECT oid::regclass::text FROM pg_class WHERE relpersistence = 'u' AND relkind IN ('r', 'p') AND relnamespace IN (SCHEMAS)",
        "unlogged tables are refused, and their rows are not carried",
        "ALTER TABLE ... SET LOGGED.",
    ),
    of_database(
        Level::Refused,
        "SELECT count(*)::text FROM pg_largeobject_metadata HAVING count(*) > 0",
        "large objects are refused, and not carried",
        "Use columns of the type bytea.",
    ),
    of_database(
        Level::Refused,
        "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid WHERE c.relkind = 'f'",
        "foreign tables as partitions are refused",
        "Make them tables.",
    ),
    of_database(
        Level::Refused,
        "SELECT format('%I on %s', tgname, tgrelid::regclass) FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid \
           WHERE tgenabled IN ('A', 'R') AND NOT tgisinternal AND relnamespace IN (SCHEMAS) \
         UNION ALL SELECT evtname::text FROM pg_event_trigger WHERE evtenabled IN ('A', 'R') AND evtname !~ '^understudy_mirror'",
        "triggers with ENABLE ALWAYS or REPLICA are refused: they would fire twice",
        "ALTER TABLE ... ENABLE TRIGGER, ALTER EVENT TRIGGER ... ENABLE.",
    ),
    of_database(
        Level::Refused,
        "SELECT format('%I on %s', rulename, ev_class::regclass) FROM pg_rewrite WHERE ev_enabled IN ('A', 'R')",
        "rules with ENABLE ALWAYS or REPLICA are refused: they would run twice",
        "ALTER TABLE ... ENABLE RULE.",
    ),
    of_database(
        Level::Refused,
        "SELECT DISTINCT format('%s (%s) calls %s', c.oid::regclass, r.rolname, p.oid::regprocedure) FROM pg_class c \
           JOIN pg_roles r ON r.oid = c.relowner CROSS JOIN LATERAL ( \
             SELECT 'pg_constraint'::regclass, oid FROM pg_constraint WHERE conrelid = c.oid \
             UNION ALL SELECT 'pg_class'::regclass, indexrelid FROM pg_index WHERE indrelid = c.oid \
             UNION ALL SELECT 'pg_attrdef'::regclass, d.oid FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid \
               AND a.attnum = d.adnum AND a.attgenerated <> '' WHERE d.adrelid = c.oid \
             UNION ALL SELECT 'pg_constraint'::regclass, k.oid FROM pg_attribute a JOIN pg_constraint k ON k.contypid = a.atttypid \
               WHERE a.attrelid = c.oid AND NOT a.attisdropped) code (class, oid) \
           JOIN pg_depend d ON d.classid = code.class AND d.objid = code.oid AND d.refclassid = 'pg_proc'::regclass \
           JOIN pg_proc p ON p.oid = d.refobjid \
           WHERE c.relkind = 'r' AND c.relnamespace IN (SCHEMAS) AND NOT r.rolsuper AND NOT has_function_privilege(r.oid, p.oid, 'EXECUTE')",
        "checks, domains, indexes and generated columns run as the table's owner on the standby, who may not call what they need",
        "GRANT EXECUTE ON FUNCTION ... TO the table's owner.",
    ),
    of_database(
        Level::Refused,
        "SELECT p.partrelid::regclass::text FROM pg_partitioned_table p JOIN pg_attribute a ON a.attrelid = p.partrelid \
           AND a.attnum = ANY (p.partattrs) JOIN pg_type t ON t.oid = a.atttypid WHERE p.partstrat = 'h' AND t.typtype = 'e'",
        "hash partitions by an enum are refused: its values have other numbers elsewhere",
        "Use LIST, or another column.",
    ),
    of_database(
        Level::Differs,
        "SELECT format('%I: %s, and now %s', datname, datcollversion, pg_database_collation_actual_version(oid)) FROM pg_database \
           WHERE datname = current_database() AND datcollversion <> pg_database_collation_actual_version(oid) \
         UNION ALL SELECT format('%s: %s, and now %s', oid::regcollation, collversion, pg_collation_actual_version(oid)) FROM pg_collation \
           WHERE collversion <> pg_collation_actual_version(oid)",
        "the library of collations has changed since indexes were made",
        "REINDEX, and ALTER DATABASE (or COLLATION) ... REFRESH COLLATION VERSION.",
    ),
    of_database(
        Level::Differs,
        "SELECT concat_ws(' in ', coalesce(nullif(setrole, 0)::regrole::text, 'all roles'), d.datname) FROM pg_db_role_setting s \
           LEFT JOIN pg_database d ON d.oid = s.setdatabase CROSS JOIN unnest(setconfig) c \
           WHERE c ~ '^synchronous_commit=(off|local)$' AND (d.oid IS NULL OR d.datname = current_database())",
        "commits do not wait for the log (synchronous_commit): a takeover may lose them",
        "ALTER ROLE or DATABASE ... RESET synchronous_commit.",
    ),
    of_database(
        Level::Advice,
        "SELECT concat_ws(' in ', coalesce(nullif(setrole, 0)::regrole::text, 'all roles'), d.datname) FROM pg_db_role_setting s \
           LEFT JOIN pg_database d ON d.oid = s.setdatabase CROSS JOIN unnest(setconfig) c \
           WHERE c ~* '^client_min_messages=(error|fatal|panic)$' AND (d.oid IS NULL OR d.datname = current_database())",
        "warnings are hidden (client_min_messages): the manager does not hear of a commit whose wait for the log pg_cancel_backend ends",
        "ALTER ROLE or DATABASE ... RESET client_min_messages; sessions that set it themselves are watched.",
    ),
    of_database(
        Level::Advice,
        "SELECT c.oid::regclass::text FROM pg_class c WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND relnamespace IN (SCHEMAS) \
           AND c.relreplident <> 'i' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary \
             AND i.indimmediate AND i.indisvalid)",
        "tables without a primary key that is checked at once get REPLICA IDENTITY FULL, and each row is searched for",
        "Add a primary key where rows are updated or deleted.",
    ),
    of_database(
        Level::Differs,
        "SELECT DISTINCT i.inhrelid::regclass::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid AND NOT c.relispartition \
           JOIN pg_attribute own ON own.attrelid = c.oid AND own.attnum > 0 AND NOT own.attisdropped AND own.attinhcount = 0 \
           JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > own.attnum AND NOT a.attisdropped AND a.attinhcount > 0 \
           WHERE c.relnamespace IN (SCHEMAS)",
        "columns that were added to a table which others inherit from: a copy of those has inherited columns first",
        "Name columns in INSERT and SELECT, or make the table again.",
    ),
    of_database(
        Level::Advice,
        "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'f' AND relnamespace IN (SCHEMAS)",
        "foreign tables are defined on both members, and their rows are not the mirror's",
        "Let both servers reach what they name.",
    ),
    of_database(
        Level::Advice,
        "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'm' AND relnamespace IN (SCHEMAS)",
        "materialized views are refreshed on each member: those of anything that is not immutable are refused",
        "Make it a table if it depends on the time, on chance, or on settings.",
    ),
    of_server(
        Level::Advice,
        "SELECT datname::text FROM pg_database d WHERE datallowconn AND NOT datistemplate AND datname <> 'DATABASE' AND NOT EXISTS (SELECT \
           FROM pg_db_role_setting s WHERE s.setdatabase = d.oid AND s.setrole = 0 AND 'synchronous_commit=local' = ANY (s.setconfig))",
        "commits of the server's other databases wait for the mirror as well",
        "ALTER DATABASE ... SET synchronous_commit = local.",
    ),
    of_server(
        Level::Advice,
        "SELECT 'max_slot_wal_keep_size = -1' WHERE current_setting('max_slot_wal_keep_size') = '-1'",
        "WAL that is not decoded may fill the disk while the manager is away",
        "Set max_slot_wal_keep_size to what the disk can hold: the member is replaced if it is not enough.",
    ),
    of_server(
        Level::Advice,
        "SELECT format('%s = %s', name, setting) FROM pg_settings WHERE name = 'idle_replication_slot_timeout' AND setting <> '0'",
        "a manager that is away for longer loses its slot, and its member is replaced",
        "Set idle_replication_slot_timeout = 0.",
    ),
];

/// Facts that both members must have alike: rows of a name and a value.
pub(super) const ALIKE: &[Check] = &[
    Check {
        level: Level::Differs,
        of_server: false,
        asks: "SELECT 'encoding', pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database() \
            UNION ALL SELECT 'collate', datcollate FROM pg_database WHERE datname = current_database() \
            UNION ALL SELECT 'ctype', datctype FROM pg_database WHERE datname = current_database()",
        what: "the databases have other encodings or locales",
        advice: "Let the mirror make the other database, or make it alike.",
    },
    Check {
        level: Level::Differs,
        of_server: true,
        asks: "SELECT name, setting FROM pg_settings WHERE name IN ('max_identifier_length', 'max_function_args', 'max_index_keys', \
            'integer_datetimes', 'wal_segment_size', 'block_size', 'timezone_abbreviations')",
        what: "the servers are built or set otherwise",
        advice: "Use the same build and setting on both.",
    },
    Check {
        level: Level::Differs,
        of_server: true,
        asks: "SELECT collname || ' ' || collprovider::text, max(pg_collation_actual_version(oid)) FROM pg_collation \
            WHERE collprovider <> 'd' AND pg_collation_actual_version(oid) IS NOT NULL \
            AND collname IN ('en_US', 'en_US.utf8', 'en-US-x-icu', 'de-x-icu', 'und-x-icu', 'unicode', 'C.UTF-8', 'C.utf8') GROUP BY 1",
        what: "collations are of other versions of glibc or ICU: texts are sorted, and compared, otherwise",
        advice: "Use the same release of the operating system on both.",
    },
    Check {
        level: Level::Differs,
        of_server: true,
        asks: "SELECT n.name, md5(string_agg(extract(epoch FROM t AT TIME ZONE n.name)::text, ' ' ORDER BY t)) FROM pg_timezone_names n \
            CROSS JOIN generate_series(timestamptz '1970-01-01Z', timestamptz '2037-01-01Z', interval '5 months') t \
            WHERE n.name !~ '^(posix|posixrules|localtime|Factory)' GROUP BY n.name",
        what: "time zones are of other releases (tzdata)",
        advice: "Update tzdata on both, or use servers with the same one built in.",
    },
    Check {
        level: Level::Advice,
        of_server: true,
        asks: "SELECT 'server_version', current_setting('server_version')",
        what: "the servers are of different versions: definitions are not compared if the major one is another",
        advice: "Use one version, but for an upgrade.",
    },
    Check {
        level: Level::Advice,
        of_server: true,
        asks: "SELECT rolname, concat_ws(' ', rolsuper, rolcreaterole, rolcreatedb, rolcanlogin, rolbypassrls) FROM pg_roles \
            WHERE rolname !~ '^(pg|understudy_as)_'",
        what: "roles differ: a member that is filled gets those of the other one, and what is compared then includes them",
        advice: "Drop roles that only one server has, or set drop_roles.",
    },
];
