//! What is known of functions by their names alone.
//!
//! A function is judged by the catalog ([`Catalog`](super::Catalog)), and a few by their name besides: those that
//! PostgreSQL itself or an extension has, as long as nobody has made another one of that name.

/// Volatile functions of PostgreSQL and of extensions without effects, the same on any server.
pub const HARMLESS: &[&str] = &[
    "clock_timestamp",
    "gen_random_bytes",
    "gen_random_uuid",
    "gen_salt",
    "pg_sleep",
    "pg_sleep_for",
    "pg_sleep_until",
    "random",
    "random_normal",
    "statement_timestamp",
    "timeofday",
    "uuid_generate_v1",
    "uuid_generate_v1mc",
    "uuid_generate_v4",
    "uuidv4",
    "uuidv7",
];

/// Volatile functions of PostgreSQL whose effects end with the transaction, or may happen twice.
pub const REPEATABLE: &[&str] = &[
    "currval",
    "lastval",
    "nextval",
    "pg_current_wal_flush_lsn",
    "pg_current_wal_insert_lsn",
    "pg_current_wal_lsn",
    "pg_current_xact_id_if_assigned",
    "pg_database_size",
    "pg_get_wal_replay_pause_state",
    "pg_indexes_size",
    "pg_is_in_recovery",
    "pg_is_wal_replay_paused",
    "pg_last_wal_receive_lsn",
    "pg_last_wal_replay_lsn",
    "pg_last_xact_replay_timestamp",
    "pg_lock_status",
    "pg_prepared_xact",
    "pg_relation_size",
    "pg_table_size",
    "pg_tablespace_size",
    "pg_total_relation_size",
    "pg_xact_status",
    "txid_current_if_assigned",
    "txid_status",
    "pg_advisory_xact_lock",
    "pg_advisory_xact_lock_shared",
    "pg_current_xact_id",
    "pg_notify",
    "pg_try_advisory_xact_lock",
    "pg_try_advisory_xact_lock_shared",
    "set_config",
    "setseed",
    "setval",
    "txid_current",
];

/// Sets what its arguments say.
pub fn sets(name: &str) -> bool {
    name == "set_config"
}

/// Queues a notification, for which the transaction gets an id when it commits.
pub fn notifies(name: &str) -> bool {
    name == NOTIFIES
}

/// What `NOTIFY` does as well.
pub const NOTIFIES: &str = "pg_notify";

/// Functions of large objects: their descriptors are numbers that one server gave.
pub fn touches_large_objects(name: &str) -> bool {
    name.starts_with("lo_") || matches!(name, "loread" | "lowrite")
}

/// The same by their numbers in PostgreSQL's catalog, which drivers call without a text: `lo_open`, `lo_close`, `loread`,
/// `lowrite`, `lo_lseek`, `lo_creat`, `lo_tell`, `lo_unlink`, `lo_create`, `lo_truncate`, and those of 64 bits.
pub const LARGE_OBJECTS: &[u32] = &[
    952, 953, 954, 955, 956, 957, 958, 964, 715, 1004, 3170, 3171, 3172,
];

/// Takes advisory locks or gives them back. Each server has its own.
pub fn is_about_locks(name: &str) -> bool {
    name.starts_with("pg_advisory_") || name.starts_with("pg_try_advisory_")
}

/// Takes an advisory lock that the session keeps.
pub fn takes_advisory_lock(name: &str) -> bool {
    matches!(
        name,
        "pg_advisory_lock"
            | "pg_advisory_lock_shared"
            | "pg_try_advisory_lock"
            | "pg_try_advisory_lock_shared"
    )
}

/// Functions of PostgreSQL and of extensions that run a text they are given, or read a table by its name: whatever that calls.
pub const EXECUTES_TEXT: &[&str] = &[
    "connectby",
    "crosstab",
    "crosstab2",
    "crosstab3",
    "crosstab4",
    "cursor_to_xml",
    "cursor_to_xmlschema",
    "database_to_xml",
    "database_to_xml_and_xmlschema",
    "database_to_xmlschema",
    "pg_input_error_info",
    "pg_input_is_valid",
    "query_to_xml",
    "query_to_xml_and_xmlschema",
    "query_to_xmlschema",
    "schema_to_xml",
    "schema_to_xml_and_xmlschema",
    "schema_to_xmlschema",
    "table_to_xml",
    "table_to_xml_and_xmlschema",
    "table_to_xmlschema",
    "ts_rewrite",
    "ts_stat",
    "xpath_table",
];

/// Views and functions of PostgreSQL that tell of a server and not of the data: a standby has other answers, whatever it has
/// replayed.
pub fn is_of_server(name: &str) -> bool {
    name.starts_with("pg_stat_") || name.starts_with("pg_statio_") || OF_SERVER.contains(&name)
}

const OF_SERVER: &[&str] = &[
    "inet_server_addr",
    "inet_server_port",
    "pg_backend_memory_contexts",
    "pg_backend_pid",
    "pg_blocking_pids",
    "pg_cursor",
    "pg_cursors",
    "pg_listening_channels",
    "pg_lock_status",
    "pg_locks",
    "pg_my_temp_schema",
    "pg_postmaster_start_time",
    "pg_prepared_statement",
    "pg_prepared_statements",
    "pg_prepared_xact",
    "pg_prepared_xacts",
    "pg_replication_slots",
    "pg_sequence_last_value",
    "pg_sequences",
    "pg_settings",
    "pg_show_all_settings",
];
