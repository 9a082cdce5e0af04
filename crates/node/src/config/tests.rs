//! What the configuration accepts, and how it refuses.

use coordination::config::{Parameter, RENAMED, SHARED_KEYS, WalSync, renamed_keys};

use super::*;

const MINIMAL: &str = r#"
name = "a"
volume = "main"
zones = ["127.0.0.1:7101"]
data = "/var/lib/u/a"
[postgres]
bin = "/usr/lib/postgresql/15/bin"
"#;

fn with(extra: &str) -> Result<Config, ConfigError> {
    Config::parse(&format!("{MINIMAL}{extra}"))
}

fn refusal(extra: &str) -> String {
    with(extra).unwrap_err().to_string()
}

#[test]
fn defaults_are_what_the_example_says() {
    let defaults = Config::parse(MINIMAL).unwrap();
    let example = Config::parse(Config::example()).unwrap();
    // Every commented key, taken in, must be known and equal to the default.
    let uncommented: String = Config::example()
        .lines()
        .filter(|l| {
            let own = [
                "advertise",
                "zone = ",
                "key = ",
                "certificate = ",
                "ca = ",
                "store = ",
                "user = \"/etc",
            ];
            !l.starts_with("# A node") && !own.iter().any(|word| l.contains(word))
        })
        .map(|l| format!("{}\n", l.strip_prefix("# ").unwrap_or(l)))
        .collect();
    let spelled = Config::parse(&uncommented).unwrap();
    assert_eq!(spelled.cluster.heartbeat, defaults.cluster.heartbeat);
    assert_eq!(spelled.cluster.cassandra, defaults.cluster.cassandra);
    assert_eq!(spelled.channel, defaults.channel);
    assert_eq!(spelled.memory, defaults.memory);
    assert_eq!(spelled.cluster.pending, defaults.cluster.pending);
    assert_eq!(spelled.cluster.differences, defaults.cluster.differences);
    assert_eq!(spelled.standby, defaults.standby);
    assert_eq!(spelled.tags, defaults.tags);
    assert_eq!(spelled.postgres.port, example.postgres.port);
    assert_eq!(spelled.postgres.run_as, defaults.postgres.run_as);
    assert_eq!(example.cluster.zones.len(), 3);
}

#[test]
fn wal_syncs_are_strict_unless_they_are_to_be_pipelined() {
    let sync = |extra: &str| with(extra).map(|config| config.storage.wal_sync);
    assert_eq!(sync("").unwrap(), WalSync::Strict);
    assert_eq!(
        sync("[storage]\nwal_sync = \"pipelined\"\n").unwrap(),
        WalSync::Pipelined
    );
    let refused = refusal("[storage]\nwal_sync = \"loose\"\n");
    assert!(
        refused.contains("strict") && refused.contains("pipelined"),
        "{refused}"
    );
}

/// A file of an earlier version must start its node, and one with both names must not: which of them counts?
#[test]
fn files_with_former_names_of_keys_load() {
    let values = [
        ("slow", "\"wait\"", "\"wait\""),
        ("slow_after", "\"2GiB\"", "\"2GiB\""),
        ("claim_cap", "\"9GiB\"", "\"9GiB\""),
        ("log", "\"ordered\"", "\"pipelined\""),
        ("drain", "\"9s\"", "\"9s\""),
    ];
    for (old, before, now) in values {
        let of = RENAMED.iter().find(|of| of.old == old).unwrap();
        let former = format!("[{}]\n{old} = {before}\n", of.table);
        let today = format!("[{}]\n{} = {now}\n", of.table, of.new);
        let (former_config, today_config) = (with(&former).unwrap(), with(&today).unwrap());
        assert_eq!(former_config.standby, today_config.standby, "{old}");
        assert_eq!(former_config.storage, today_config.storage, "{old}");
        assert_eq!(former_config.channel, today_config.channel, "{old}");
        assert_eq!(renamed_keys(&former).unwrap(), [*of]);
        let refused = refusal(&format!("{former}{} = {now}\n", of.new));
        assert!(
            refused.contains(&format!("former name of \"{}\"", of.new)),
            "{refused}"
        );
    }
}

#[test]
fn the_example_shows_every_key() {
    for (_, names) in SHARED_KEYS.iter().chain(keys::OWN) {
        for name in *names {
            assert!(Config::example().contains(name), "{name}");
        }
    }
}

#[test]
fn unknown_keys_are_refused_with_line_and_near_match() {
    let top = format!("nmae = \"a\"\n{MINIMAL}");
    for (refused, what, hint) in [
        (
            with("[heartbeat]\nintervall = \"1s\"\n"),
            "line 9: unknown key \"heartbeat.intervall\"",
            "Perhaps you mean \"interval\".",
        ),
        (
            with("poll = \"1s\"\n"),
            "line 8: unknown key \"postgres.poll\"",
            "It belongs to [heartbeat].",
        ),
        (
            Config::parse(&top),
            "line 1: unknown key \"nmae\"",
            "Perhaps you mean \"name\".",
        ),
        (
            with("[colours]\n"),
            "line 8: unknown key \"colours\"",
            "Known keys are name, volume",
        ),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.to_string(), what);
        assert!(error.hint().unwrap().starts_with(hint), "{error:?}");
    }
}

#[test]
fn nonsense_is_refused_and_says_what_to_change() {
    for (extra, needle) in [
        ("port = 0", "postgres.port"),
        ("[postgres.parameters]\nport = 1", "use postgres.port"),
        ("[postgres.parameters]\nfsync = false", "nothing is durable"),
        (
            "[postgres.parameters]\nhot_standby_feedback = true",
            "use standby.feedback",
        ),
        (
            "[standby]\nmax_streaming_delay = \"1y\"",
            "standby.max_streaming_delay",
        ),
        ("[memory]\ncache = \"4KiB\"", "at least 1MiB"),
        ("[memory]\ncache = 4", "cache"),
        ("[channel]\nlisten = \"0.0.0.0:7\"", "channel.advertise"),
        ("[heartbeat]\npreset = \"brisk\"", "brisk"),
        ("[heartbeat]\ninterval = \"0s\"", "heartbeat.interval"),
        ("[tags]\nzone = 1", "tags.zone"),
        ("[standby]\nprefetch = 1000", "at most 256"),
        ("[standby]\nprefetch = -1", "prefetch"),
        ("[standby]\non_lag = \"hurry\"", "hurry"),
        ("[standby]\nmax_lag = \"1KiB\"", "standby.max_lag"),
        ("[tls]\nidentity = \"a.pem\"", "tls.identity"),
        (
            "[tls]\ncertificate = \"/a\"\nca = \"/b\"",
            "belong together",
        ),
        (
            "[tls]\nidentity = \"/a\"\ncertificate = \"/a\"\nkey = \"/a\"\nca = \"/b\"",
            "either",
        ),
        ("[rest]\ncertificate = \"a.pem\"", "rest.certificate"),
        ("[rest]\nclient_ca = \"/a.pem\"", "rest.certificate"),
    ] {
        let error = refusal(extra);
        assert!(error.contains(needle), "{extra}: {error}");
    }
}

#[test]
fn connections_that_leave_the_machine_are_protected() {
    let identity = "[tls]\nidentity = \"/etc/understudy/cluster.pem\"\n";
    let own = "[tls]\ncertificate = \"/c\"\nkey = \"/k\"\nca = \"/a\"\n";
    let elsewhere = |address: &str, tls: &str| {
        let text = MINIMAL.replace("127.0.0.1:7101", address);
        Config::parse(&format!("{text}{tls}"))
    };
    for address in ["10.0.0.1:7101", "zone-a.example:7101", "[2001:db8::1]:7101"] {
        let error = elsewhere(address, "").unwrap_err().to_string();
        assert!(
            error.contains("\"zones\"") && error.contains("[tls]"),
            "{error}"
        );
        elsewhere(address, identity).unwrap();
        elsewhere(address, own).unwrap();
    }
    for address in ["[::1]:7101", "localhost:7101", "unix:/run/zone"] {
        elsewhere(address, "").unwrap();
    }
    let channel = "[channel]\nlisten = \"10.0.0.1:7432\"\n";
    let error = refusal(channel);
    assert!(error.contains("channel.listen"), "{error}");
    with(&format!("{channel}{identity}")).unwrap();
    let advertised = "[channel]\nadvertise = \"10.0.0.1:7432\"\n";
    assert!(refusal(advertised).contains("channel.advertise"));
}

#[test]
fn the_directory_must_be_usable_by_postgres() {
    let with_data = |data: &str| {
        let text = MINIMAL.replace("/var/lib/u/a", data);
        Config::parse(&text).unwrap_err().to_string()
    };
    assert!(with_data("u/a").contains("not absolute"));
    assert!(with_data("/a,b").contains("commas"));
    assert!(with_data(&format!("/{}", "d".repeat(100))).contains("too long by"));
}

#[test]
fn the_key_is_in_a_file_of_the_owner() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("main.key");
    let with_key = |path: &Path| {
        let key = format!("key = {path:?}\nname =");
        Config::parse(&MINIMAL.replace("name =", &key))
    };
    let relative = with_key(Path::new("main.key")).unwrap_err().to_string();
    assert!(relative.contains("\"key\"") && relative.contains("not absolute"));

    let config = with_key(&file).unwrap();
    let error = config.cluster.volume_key().unwrap_err();
    assert!(error.to_string().contains("main.key"), "{error}");
    dax::credentials::write_new(&file, &"ab".repeat(32)).unwrap();
    let client = config.cluster.client("a").unwrap();
    assert_eq!(*client.key.unwrap().to_hex(), "ab".repeat(32));
    assert!(with("").unwrap().cluster.client("a").unwrap().key.is_none());

    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&file, open).unwrap();
    let error = config.cluster.client("a").unwrap_err();
    assert!(error.to_string().contains("chmod 600"), "{error}");
}

#[test]
fn zones_must_differ() {
    let text = MINIMAL.replace("\"127.0.0.1:7101\"", "\"a:1\", \"a:1\"");
    assert!(
        Config::parse(&text)
            .unwrap_err()
            .to_string()
            .contains("listed twice")
    );
}

#[test]
fn parameters_take_numbers_and_booleans() {
    let config = with("[postgres.parameters]\na = 1\nb = true\n\"x.c\" = \"1GB\"").unwrap();
    let values: Vec<String> = config
        .postgres
        .parameters
        .values()
        .map(Parameter::to_string)
        .collect();
    assert_eq!(values, ["1", "on", "1GB"]);
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::load(Path::new("/nonexistent/u.toml")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/u.toml"));
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn a_zone_may_have_several_servers() {
    let example = Config::example();
    let several = r#"zones = [["a:1", "a:2"], ["b:1", "b:2"], ["c:1", "c:2"]]"#;
    let lines = example
        .lines()
        .map(|line| match line.starts_with("zones = ") {
            true => several,
            false => line
                .strip_prefix("# ")
                .filter(|l| l.starts_with("identity = "))
                .unwrap_or(line),
        });
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let config = Config::parse(&text).unwrap();
    assert_eq!(
        config.cluster.replicas(),
        ["a:1", "a:2", "b:1", "b:2", "c:1", "c:2"]
    );
    let settings = config.cluster.volume_settings();
    assert_eq!(
        (settings.replicas, settings.sync_replicas, settings.zones),
        (6, 4, 3)
    );
    let uneven = text.replace(r#"["b:1", "b:2"]"#, r#"["b:1"]"#);
    assert!(
        Config::parse(&uneven)
            .unwrap_err()
            .to_string()
            .contains("same number")
    );
    let twice = text.replace("c:2", "a:1");
    assert!(
        Config::parse(&twice)
            .unwrap_err()
            .to_string()
            .contains("listed twice")
    );
}

#[test]
fn cassandra_takes_the_place_of_zones() {
    let store = "store = \"cassandra://localhost,127.0.0.2/main\"";
    let replaced = |line: &str| match line.starts_with("zones = ") {
        true => store.to_owned(),
        false => line.to_owned(),
    };
    let text: Vec<String> = MINIMAL.lines().map(replaced).collect();
    let text = text.join("\n");
    let config = Config::parse(&text).unwrap();
    let client = config.cluster.cassandra_client().unwrap().unwrap();
    assert_eq!(client.contact_points, ["localhost", "127.0.0.2"]);
    assert_eq!(config.cluster.volume_settings().replicas, 3);
    let both = format!("zones = [\"127.0.0.1:7101\"]\n{text}");
    let error = Config::parse(&both).unwrap_err().to_string();
    assert!(error.contains("either zones or"), "{error}");
    let other = Config::parse_on(MINIMAL, Some("cassandra://127.0.0.3/x")).unwrap();
    assert!(other.cluster.zones.is_empty() && other.cluster.store.is_some());
}

#[test]
fn rules_of_the_past_are_understood_or_named() {
    let past = |text: &str| with(&format!("[past]\n{text}")).map(|config| config.past);
    assert_eq!(past("").unwrap(), None);
    assert_eq!(past("space = \"1GiB\"").unwrap(), None);
    let policy = past("keep = [\"all for 1h\", \"hourly for 1d\"]\nspace = \"1GiB\"");
    let policy = policy.unwrap().unwrap();
    assert_eq!(policy.keep, "all for 1h, hourly for 1d".parse().unwrap());
    assert_eq!(policy.space, Some(1 << 30));
    let text = format!("{MINIMAL}\n[past]\nkeep = [\"all for 1h\"]");
    let cassandra = Config::parse_on(&text, Some("cassandra://127.0.0.3/x"));
    let refused = cassandra.unwrap_err().to_string();
    assert!(refused.contains("Cassandra"), "{refused}");
    let refused = past("keep = [\"yearly for 1y\"]").unwrap_err().to_string();
    assert!(
        refused.contains("past.keep") && refused.contains("yearly"),
        "{refused}"
    );
}
