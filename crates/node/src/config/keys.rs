//! The keys of a node's file that the rest of the cluster does not have.

use coordination::config::Keys;

/// By table; the top level has no name. `postgres.parameters` takes any PostgreSQL parameter, `proxy` what a proxy reads,
/// `backup` what an archiver reads.
pub(super) const OWN: Keys<'_> = &[
    (
        "",
        &[
            "data", "postgres", "channel", "rest", "storage", "past", "standby", "proxy", "backup",
        ],
    ),
    (
        "postgres",
        &[
            "bin",
            "port",
            "listen_addresses",
            "run_as",
            "superuser",
            "log_size",
            "log_kept",
            "advertise",
            "parameters",
        ],
    ),
    ("channel", &["listen", "advertise", "drain_timeout"]),
    (
        "rest",
        &[
            "listen",
            "advertise",
            "token",
            "certificate",
            "key",
            "client_ca",
        ],
    ),
    (
        "memory",
        &["cache", "overlay", "kernel_cache", "warm_every"],
    ),
    (
        "storage",
        &["scrub_every", "scrub_rate", "max_retained_wal", "wal_sync"],
    ),
    ("past", &["keep", "space"]),
    (
        "standby",
        &[
            "prefetch",
            "on_lag",
            "max_lag",
            "max_streaming_delay",
            "feedback",
        ],
    ),
    (
        "tags",
        &["failover_zone", "nofailover", "priority", "spare"],
    ),
];
