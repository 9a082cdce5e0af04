//! Arguments of `understudy upgrade`: the end of an upgrade of Understudy itself.

use clap::Subcommand;

use super::Asking;

/// Show and finish an upgrade of Understudy itself.
///
/// Processes of two releases work side by side, and each of them can go back to the release before, until the upgrade is
/// finished. From then on what is stored may have forms that only the new release reads, and the zones refuse nodes,
/// proxies and commands of the release before. Nothing finishes an upgrade by itself.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  understudy upgrade status --config north.toml
  understudy upgrade finish --config north.toml")]
pub enum Upgrade {
    /// Show which forms may be written, and which every node and zone knows.
    Status(Asking),
    /// Allow the new release's forms. Refused, with their names, if a node or a zone does not know them.
    Finish(Asking),
}
