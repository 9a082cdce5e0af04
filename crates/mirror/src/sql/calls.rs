//! What the functions that a statement calls mean for two databases.

use super::find::Call;
use super::{Facts, Harmless};

/// What a call means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judged {
    /// The same on both members.
    Same,
    /// The same for all of the statement, but not on both members: the primary's value is written in its place.
    Constant,
    /// Not the same on both members.
    Differs,
    /// It has effects that nobody knows of, or that cannot be mirrored.
    Refused(String),
}

/// Stable functions of PostgreSQL that depend on settings alone, which both members have the same of.
const BY_SETTINGS: &[&str] = &[
    "array_to_json",
    "array_to_string",
    "concat",
    "concat_ws",
    "date_bin",
    "date_part",
    "date_trunc",
    "extract",
    "format",
    "json_build_array",
    "json_build_object",
    "json_object",
    "jsonb_build_array",
    "jsonb_build_object",
    "jsonb_set",
    "make_timestamptz",
    "overlaps",
    "phraseto_tsquery",
    "plainto_tsquery",
    "quote_literal",
    "quote_nullable",
    "row_to_json",
    "timezone",
    "to_char",
    "to_date",
    "to_json",
    "to_jsonb",
    "to_number",
    "to_timestamp",
    "to_tsquery",
    "to_tsvector",
    "ts_headline",
    "websearch_to_tsquery",
    "jsonb_path_exists_tz",
    "jsonb_path_query_tz",
    "jsonb_path_query_first_tz",
    "timestamptz",
    "timestamp",
    "date",
    "time",
    "timetz",
    "date_add",
    "date_subtract",
];

/// Functions whose values differ every time, and which do nothing else.
const VALUES: &[&str] = &[
    "clock_timestamp",
    "crypt",
    "currval",
    "gen_random_bytes",
    "gen_random_uuid",
    "gen_salt",
    "lastval",
    "nextval",
    "random",
    "random_normal",
    "setseed",
    "timeofday",
    "txid_current",
    "txid_current_if_assigned",
    "pg_current_xact_id",
    "pg_current_xact_id_if_assigned",
    "uuid_generate_v1",
    "uuid_generate_v1mc",
    "uuid_generate_v4",
    "uuidv4",
    "uuidv7",
    "pg_backend_pid",
    "version",
    "inet_server_addr",
    "inet_client_addr",
    "inet_client_port",
    "inet_server_port",
];

/// Volatile functions of PostgreSQL with effects on the primary's session alone, or on whoever listens there.
const SESSION: &[&str] = &[
    "pg_advisory_lock",
    "pg_advisory_lock_shared",
    "pg_advisory_unlock",
    "pg_advisory_unlock_all",
    "pg_advisory_unlock_shared",
    "pg_advisory_xact_lock",
    "pg_advisory_xact_lock_shared",
    "pg_notify",
    "pg_sleep",
    "pg_sleep_for",
    "pg_sleep_until",
    "pg_try_advisory_lock",
    "pg_try_advisory_lock_shared",
    "pg_try_advisory_xact_lock",
    "pg_try_advisory_xact_lock_shared",
    "set_config",
    "pg_cancel_backend",
    "pg_terminate_backend",
    "pg_stat_reset",
];

/// Aggregates whose value depends on the order of rows, or is rounded on the way.
const BY_ORDER: &[&str] = &[
    "any_value",
    "array_agg",
    "avg",
    "corr",
    "covar_pop",
    "covar_samp",
    "json_agg",
    "json_object_agg",
    "jsonb_agg",
    "jsonb_object_agg",
    "regr_avgx",
    "regr_avgy",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "string_agg",
    "sum",
    "var_pop",
    "var_samp",
    "variance",
    "xmlagg",
    "mode",
    "first_value",
    "last_value",
    "nth_value",
    "lag",
    "lead",
    "row_number",
    "rank",
    "ntile",
];

/// True if the function is one of the big objects', whose numbers are each member's own.
fn is_of_large_objects(name: &str) -> bool {
    name.starts_with("lo_") || matches!(name, "loread" | "lowrite")
}

/// What a call within a statement that writes means.
pub fn judge(call: &Call, facts: &Facts, harmless: &Harmless) -> Judged {
    let name = call.name.as_str();
    if harmless.functions.iter().any(|one| one == name) {
        return Judged::Same;
    }
    if is_of_large_objects(name) {
        return Judged::Refused(
            "large objects have numbers that each member gives by itself".to_owned(),
        );
    }
    if call.is_windowed || BY_ORDER.contains(&name) && !call.is_ordered {
        return Judged::Differs;
    }
    let is_own = call.schema.as_deref() != Some("pg_catalog") && facts.own.contains_key(name);
    if VALUES.contains(&name) {
        return Judged::Differs;
    }
    if is_own {
        return Judged::Refused(format!(
            "nobody knows what function {name} does, or what it reads"
        ));
    }
    match facts.builtin.get(name).map(String::as_str) {
        None => Judged::Same,
        Some("s") if BY_SETTINGS.contains(&name) => Judged::Same,
        Some("s") if !call.has_arguments => Judged::Constant,
        Some("s") => Judged::Differs,
        _ if SESSION.contains(&name) => Judged::Differs,
        _ => Judged::Refused(format!(
            "function {name} has effects that cannot be mirrored"
        )),
    }
}

/// True if a call within a statement that only reads may run on the primary alone; otherwise why not.
pub fn reads_only(call: &Call, facts: &Facts, harmless: &Harmless) -> Result<(), String> {
    let name = call.name.as_str();
    if harmless.functions.iter().any(|one| one == name)
        || VALUES.contains(&name)
        || SESSION.contains(&name)
    {
        return Ok(());
    }
    let is_own = call.schema.as_deref() != Some("pg_catalog");
    if is_own
        && facts
            .own
            .get(name)
            .is_some_and(|volatility| volatility == "v")
    {
        return Err(format!(
            "function {name} is volatile, and nobody knows what it does"
        ));
    }
    if is_of_large_objects(name) && !matches!(name, "lo_get" | "lo_open" | "loread" | "lo_close") {
        return Err("large objects have numbers that each member gives by itself".to_owned());
    }
    if matches!(
        name,
        "dblink_exec"
            | "pg_import_system_collations"
            | "query_to_xml"
            | "cursor_to_xml"
            | "ts_rewrite"
            | "ts_stat"
    ) {
        return Err(format!(
            "function {name} executes a text that is not looked into"
        ));
    }
    Ok(())
}
