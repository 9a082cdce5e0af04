//! The two hosts of the demo, and the database in their machine.

use std::path::Path;

use anyhow::Context;
use cluster::machine::{Kept, NAMES, Pair, Settings, clients, keep};
use vm::image::Database;
use vm::network::Protection;

use super::super::progress::Progress;
use super::Options;

/// Everything that runs.
pub struct Stage {
    pub pair: Pair,
    pub password: String,
    pub accelerator: (String, String),
}

fn protection(protection: Protection) -> &'static str {
    match protection {
        Protection::Everything => "everything",
        Protection::Commits => "commits",
        Protection::Nothing => "nothing",
    }
}

async fn image(options: &Options, dir: &Path, progress: &Progress) -> anyhow::Result<Kept> {
    let Some((image, password)) = &options.image else {
        return keep(dir, Database::PostgreSql, |what| progress.say(what)).await;
    };
    let text = std::fs::read_to_string(password)
        .with_context(|| format!("cannot read the password from {}", password.display()))?;
    Ok(Kept {
        image: image.clone(),
        password: text.trim_end().to_owned(),
    })
}

impl Stage {
    /// Starts everything, and fills the tables.
    pub async fn set(options: &Options, dir: &Path, progress: &Progress) -> anyhow::Result<Stage> {
        let kept = image(options, dir, progress).await?;
        let text = |text: &str| format!("\"{text}\"");
        let settings = Settings {
            understudy: std::env::current_exe().context("cannot tell which program this is")?,
            image: kept.image,
            memory_mb: options.memory_mb,
            has_lines: false,
            more: vec![
                (
                    "checkpoint_interval".to_owned(),
                    text(&format!("{}ms", options.checkpoint_interval.as_millis())),
                ),
                (
                    "protection".to_owned(),
                    text(protection(options.protection)),
                ),
            ],
        };
        progress.say("the machine boots");
        let pair = Pair::start(dir, &settings).await?;
        let status = pair.status(0).await.context("no host answers")?;
        let mut stage = Stage {
            pair,
            password: kept.password,
            accelerator: (status.accelerator, status.accelerator_reason),
        };
        clients::set_up(&stage.password).await?;
        stage.pair.restart(1)?;
        Ok(stage)
    }

    /// Waits until the machine has a current standby; which host runs it.
    pub async fn wait_protected(&mut self, progress: &Progress) -> anyhow::Result<usize> {
        let at = self.pair.wait_protected().await?;
        progress.say(&format!(
            "{} runs the machine, and {} protects it",
            NAMES[at],
            NAMES[1 - at]
        ));
        Ok(at)
    }
}
