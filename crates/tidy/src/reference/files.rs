//! The kinds of files, each with the struct that it is parsed into.

use std::path::Path;

use super::model::{Default, Table};
use super::page::Section;
use super::source::{Found, Sources};
use super::{flags, known, read};

/// A file, or a table of one.
struct Kind {
    title: &'static str,
    text: &'static str,
    /// File with the struct, and its name.
    root: (&'static str, &'static str),
    /// Table that the struct is; empty for a whole file.
    table: &'static str,
    /// File with the list of the keys that are accepted, and the name of the list.
    known: Option<(&'static str, &'static str)>,
}

const SHARED: Kind = Kind {
    title: "Keys of every file",
    text: "A node, a proxy, a mirror's manager and a virtual machine's host are members of a cluster. The file of each has \
        these keys, and beside them those of its own section below.",
    root: ("crates/coordination/src/config.rs", "Raw"),
    table: "",
    known: Some(("crates/coordination/src/config/keys.rs", "SHARED_KEYS")),
};

const KINDS: &[Kind] = &[
    Kind {
        title: "Node with PostgreSQL",
        text: "The file of `understudy node`, beside the [keys of every file](#keys-of-every-file). Commented example: \
            [example.toml](../../crates/node/src/config/example.toml).",
        root: ("crates/node/src/config.rs", "Raw"),
        table: "",
        known: Some(("crates/node/src/config/keys.rs", "OWN")),
    },
    Kind {
        title: "Node with another server",
        text: "The file of `understudy node` with `[engine]` in place of `[postgres]`, beside the \
            [keys of every file](#keys-of-every-file). Commented example: \
            [example.toml](../../crates/engine/src/config/example.toml).",
        root: ("crates/engine/src/config.rs", "Raw"),
        table: "",
        known: Some(("crates/engine/src/config.rs", "OWN")),
    },
    Kind {
        title: "Proxy",
        text: "The table `[proxy]` in the file of a node, or in a file of its own for `understudy proxy`.",
        root: ("crates/proxy/src/config.rs", "Config"),
        table: "proxy",
        known: None,
    },
    Kind {
        title: "Backups",
        text: "The table `[backup]` in the file of a node: its agent archives, in turns with others.",
        root: ("crates/backup/src/config.rs", "Config"),
        table: "backup",
        known: None,
    },
    Kind {
        title: "Cluster file of a proxy",
        text: "The file that `proxy.cluster_file` names, for a PostgreSQL that Understudy does not run.",
        root: ("crates/proxy/src/driver/file_source.rs", "File"),
        table: "",
        known: None,
    },
    Kind {
        title: "Mirror",
        text: "The table `[mirror]` of the file of `understudy mirror`, beside the [keys of every file](#keys-of-every-file).",
        root: ("crates/mirror/src/driver/config.rs", "Config"),
        table: "mirror",
        known: None,
    },
    Kind {
        title: "Virtual machine",
        text: "The table `[vm]` of the file of `understudy vm`, beside the [keys of every file](#keys-of-every-file).",
        root: ("crates/vm/src/driver/config.rs", "Config"),
        table: "vm",
        known: None,
    },
    Kind {
        title: "Settings of the whole cluster",
        text: "The document that `understudy edit-config` changes. It is kept in the cluster, not in a file.",
        root: ("crates/operations/src/configure.rs", "Settings"),
        table: "",
        known: None,
    },
];

const NETWORK: Kind = Kind {
    title: "Emulated network of a zone",
    text: "The file that `understudy store --network` names, for tests and demonstrations on one machine.",
    root: ("crates/store/src/network/file.rs", "Network"),
    table: "",
    known: None,
};

/// A zone has no file.
const ZONE: (&str, &str) = ("crates/understudy/src/cli/cluster.rs", "Store");

/// Tables whose defaults depend on other keys, so that no struct has them; the node's example shows them instead, and a
/// test of the node compares the two.
const BY_EXAMPLE: &[&str] = &["heartbeat"];
const EXAMPLE: &str = "crates/node/src/config/example.toml";

/// Returns the sections of the page.
///
/// # Errors
/// Which struct tidy does not understand.
pub fn sections<'s>(sources: &'s Sources<'s>, root: &Path) -> Result<Vec<Section>, String> {
    let example = std::fs::read_to_string(root.join(EXAMPLE))
        .map_err(|error| format!("{EXAMPLE}: {error}"))?;
    let mut shared = section(sources, &SHARED)?;
    fill(&mut shared.tables, &uncommented(&example)?);
    let mut sections = vec![shared];
    for kind in KINDS {
        sections.push(section(sources, kind)?);
    }
    sections.push(zone(sources)?);
    sections.push(section(sources, &NETWORK)?);
    Ok(sections)
}

fn section<'s>(sources: &'s Sources<'s>, kind: &Kind) -> Result<Section, String> {
    let found = root(sources, kind.root)?;
    let mut tables = read::tables(sources, found, kind.table)?;
    if let Some((file, name)) = kind.known {
        let list = known::list(sources, sources.file(file)?, name)?;
        tables = known::restrict(tables, &list)?;
    }
    Ok(Section {
        title: kind.title,
        text: kind.text,
        unit: "key",
        tables,
    })
}

fn root<'s>(
    sources: &'s Sources<'s>,
    (file, name): (&str, &str),
) -> Result<Found<'s, syn::ItemStruct>, String> {
    let found = sources.structure(sources.file(file)?, &[name.to_owned()]);
    found.ok_or_else(|| format!("{file} has no struct {name}: correct tidy's reference/files.rs"))
}

fn zone<'s>(sources: &'s Sources<'s>) -> Result<Section, String> {
    let table = Table {
        name: String::new(),
        is_list: false,
        meaning: String::new(),
        keys: flags::flags(root(sources, ZONE)?)?,
    };
    Ok(Section {
        title: "Zone",
        text: "A zone has no file: these are the options of `understudy store`.",
        unit: "option",
        tables: vec![table],
    })
}

/// The example with the keys of [`BY_EXAMPLE`] taken in.
fn uncommented(example: &str) -> Result<toml::Table, String> {
    let mut is_inside = false;
    let mut text = String::new();
    for line in example.lines() {
        if let Some(header) = line.strip_prefix('[') {
            let name = header.split(']').next().unwrap_or_default();
            is_inside = BY_EXAMPLE.contains(&name);
        }
        if is_inside {
            text.push_str(line.strip_prefix("# ").unwrap_or(line));
            text.push('\n');
        }
    }
    text.parse().map_err(|error| format!("{EXAMPLE}: {error}"))
}

fn fill(tables: &mut [Table], example: &toml::Table) {
    for table in tables {
        let values = example.get(&table.name).and_then(toml::Value::as_table);
        let Some(values) = values else {
            continue;
        };
        for key in &mut table.keys {
            if let (Default::Absent, Some(value)) = (&key.default, values.get(&key.name)) {
                key.default = Default::Value(value.to_string());
            }
        }
    }
}
