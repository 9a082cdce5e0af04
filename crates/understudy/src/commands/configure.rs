//! `understudy show-config` and `understudy edit-config`: what all nodes share.

use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use coordination::records::{Control, EditError};
use dax::ids::NodeName;
use operations::configure::{self, Edit, Settings};
use operations::operate::OperateError;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::operate::explain_edit;
use super::registry::{Registry, in_time};
use crate::cli;
use crate::exit::{Code, Failure};

/// How long nodes may take to read a change before it is said who has not.
const READ_WITHIN: Duration = Duration::from_secs(15);
/// What an editor is shown above the settings.
const GUIDE: &str = "\
# The configuration that all nodes share. Delete a line to go back to the nodes' own, or PostgreSQL's
# default.
#
# standbys = 2                  # wanted; without: every node that is no spare
# [heartbeat]
# preset = \"normal\"             # fast, normal or wide; or interval, timeout, poll, grace
# [postgresql.parameters]
# work_mem = \"16MB\"

";

/// Prints the configuration.
pub async fn show(args: cli::ShowConfig) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.asking.config).await?;
    let control = read(&registry).await?;
    match args.asking.json {
        true => println!("{}", document(&control)),
        false => print!(
            "# version {}\n{}",
            control.version,
            Settings::of(&control).to_toml()
        ),
    }
    Ok(Code::Ok)
}

/// The change is made, and somebody does not go by it.
fn not_read(version: u64, error: OperateError) -> anyhow::Error {
    let message = format!("version {version} is stored, but {error}");
    Failure::new(Code::Failed, message)
        .advise("Nodes that have not read it use the version before; a parameter may also wait for a restart.")
        .into()
}

async fn read(registry: &Registry) -> anyhow::Result<Control> {
    in_time(async { Ok(Control::read(&*registry.storage).await?) }).await
}

fn document(control: &Control) -> Value {
    let mut document = json!(Settings::of(control));
    document["version"] = json!(control.version);
    document
}

/// Changes the configuration.
pub async fn edit(args: cli::EditConfig) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.asking.config).await?;
    let before = read(&registry).await?;
    let Some((edit, draft)) = wanted(&args, &before)? else {
        match args.asking.json {
            true => println!("{}", document(&before)),
            false => println!("nothing changed"),
        }
        return Ok(Code::Ok);
    };
    let config = registry.postgres()?;
    let by = config.cluster.name.as_str();
    let bin = &config.postgres.bin;
    let edited = configure::edit(&*registry.storage, by, &edit, bin).await;
    let control = edited.map_err(|error| refused(error, draft))?;
    let waited = registry
        .operator()?
        .wait_configured(control.version, READ_WITHIN)
        .await;
    let readers = waited.map_err(|error| not_read(control.version, error))?;
    let readers: Vec<&str> = readers.iter().map(NodeName::as_str).collect();
    match args.asking.json {
        true => println!("{}", document(&control)),
        false => println!(
            "version {}: read by {}",
            control.version,
            readers.join(", ")
        ),
    }
    Ok(Code::Ok)
}

/// What was written in an editor; gone when it is dropped.
type Draft = NamedTempFile;

/// The edit that the options ask for, or that is made in an editor; none if that changed nothing.
fn wanted(
    args: &cli::EditConfig,
    before: &Control,
) -> anyhow::Result<Option<(Edit, Option<Draft>)>> {
    if let Some(file) = &args.apply {
        let settings = Settings::from_toml(&text_of(file)?).map_err(explain_edit)?;
        let version = before.version;
        return Ok(Some((Edit::Replace { version, settings }, None)));
    }
    let set = args.set.iter().map(|text| configure::setting(text));
    let parameters = args.parameter.iter().map(|text| configure::parameter(text));
    let patches = set
        .chain(parameters)
        .collect::<Result<Vec<Value>, EditError>>();
    let patches = patches.map_err(|e| Failure::new(Code::Usage, e.to_string()))?;
    if !patches.is_empty() {
        return Ok(Some((Edit::Patch(patches), None)));
    }
    let edited = in_editor(&Settings::of(before))?;
    let version = before.version;
    Ok(edited.map(|(settings, draft)| (Edit::Replace { version, settings }, Some(draft))))
}

/// Explains why an edit was not made. What was written is worth more than a message: it is kept.
fn refused(error: EditError, draft: Option<Draft>) -> anyhow::Error {
    let error = explain_edit(error);
    match draft.map(Draft::keep) {
        None => error,
        Some(Ok((_, kept))) => {
            let advice = format!(
                "What you wrote is kept: mend it, and edit-config --apply {}",
                kept.display()
            );
            Failure::new(Code::Refused, format!("{error:#}"))
                .advise(advice)
                .into()
        }
        Some(Err(lost)) => error.context(format!("what you wrote could not be kept ({lost})")),
    }
}

fn text_of(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Has the user edit the settings; none if they stay what they are.
fn in_editor(before: &Settings) -> anyhow::Result<Option<(Settings, Draft)>> {
    let editor = std::env::var("VISUAL").or_else(|_| std::env::var("EDITOR"));
    let editor = editor
        .ok()
        .filter(|editor| !editor.trim().is_empty())
        .ok_or_else(|| {
            Failure::new(Code::Usage, "there is no $EDITOR")
                .advise("Set it, or use -p NAME=VALUE, -s KEY=VALUE or --apply FILE.")
        })?;
    let mut file = tempfile::Builder::new()
        .prefix("understudy-")
        .suffix(".toml")
        .tempfile()?;
    std::io::Write::write_all(&mut file, format!("{GUIDE}{}", before.to_toml()).as_bytes())?;
    // $EDITOR may have arguments: a shell takes it apart as the user expects.
    let status = Command::new("sh")
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(file.path())
        .status()
        .context("the editor cannot be run")?;
    if !status.success() {
        let why = format!("the editor ended with {status}; nothing was changed");
        return Err(Failure::new(Code::Failed, why).into());
    }
    let text = std::fs::read_to_string(file.path())?;
    match Settings::from_toml(&text) {
        Ok(settings) => Ok((settings != *before).then_some((settings, file))),
        Err(error) => Err(refused(error, Some(file))),
    }
}
