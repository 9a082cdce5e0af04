//! YCSB's core workloads A to C, run by pgbench: a table of 1 kB rows, reads and updates of single rows, keys
//! by Zipf's law and scattered over the table.
//!
//! Invariant: as YCSB's own, but the law's constant is 1.001 (pgbench allows none below) in place of 0.99.

use std::path::Path;

use anyhow::Context;

use super::Options;
use super::mode::Mode;
use cluster::clients::schema::Server;
use cluster::clients::session::connect;

/// Rows for each unit of pgbench's scale: about 13 MB.
const ROWS_PER_SCALE: u32 = 10_000;
/// YCSB's rows have so many fields of 100 bytes.
const FIELDS: u32 = 10;

const KEY: &str = "\\set key 1 + permute(random_zipfian(1, :rows, 1.001) - 1, :rows)\n";
const READ: &str = "SELECT * FROM usertable WHERE ycsb_key = :key;\n";
const UPDATE: &str = "\\set value random(1, 1000000000)\n\
    UPDATE usertable SET field0 = left(repeat(md5(:value::text), 4), 100) WHERE ycsb_key = :key;\n";

/// Creates and fills the table.
pub(super) async fn create(options: &Options, server: &Server) -> anyhow::Result<()> {
    create_table(server, rows(options)).await
}

/// The same with so many rows.
pub(crate) async fn create_table(server: &Server, rows: u32) -> anyhow::Result<()> {
    let fields = |each: &dyn Fn(u32) -> String| {
        let all: Vec<String> = (0..FIELDS).map(each).collect();
        all.join(", ")
    };
    let columns = fields(&|field| format!("field{field} text"));
    let values =
        fields(&|field| format!("left(repeat(md5((row * {FIELDS} + {field})::text), 4), 100)"));
    let query = format!(
        "CREATE TABLE usertable (ycsb_key bigint PRIMARY KEY, {columns});
         INSERT INTO usertable SELECT row, {values} FROM generate_series(1, {rows}) AS row;
         ANALYZE usertable"
    );
    let client = connect(&server.config()).await?;
    client
        .batch_execute(&query)
        .await
        .context("cannot fill YCSB's table")
}

/// pgbench's arguments for one of the workloads; writes its scripts into `dir`.
pub(super) fn arguments(options: &Options, mode: Mode, dir: &Path) -> anyhow::Result<Vec<String>> {
    let updates = match mode {
        Mode::YcsbA => 50,
        Mode::YcsbB => 5,
        _ => 0,
    };
    scripts(rows(options), updates, dir)
}

/// The same for so many updates in a hundred operations on so many rows.
pub(crate) fn scripts(rows: u32, updates: u32, dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut arguments = vec![format!("--define=rows={rows}")];
    for (name, statement, weight) in [("read", READ, 100 - updates), ("update", UPDATE, updates)] {
        let path = dir.join(format!("{name}.sql"));
        std::fs::write(&path, format!("{KEY}{statement}"))
            .with_context(|| format!("cannot write {}", path.display()))?;
        arguments.push(format!("--file={}@{weight}", path.display()));
    }
    Ok(arguments)
}

fn rows(options: &Options) -> u32 {
    options.scale * ROWS_PER_SCALE
}
