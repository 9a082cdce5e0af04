//! Showing something again and again (`--watch`).

use std::io::{IsTerminal, Write};

use crate::cli::Watching;
use crate::exit::Code;

/// What is shown, and what the process would end with.
pub(super) struct Picture {
    pub text: String,
    pub code: Code,
}

impl Picture {
    /// All is well.
    pub(super) fn new(text: impl Into<String>) -> Picture {
        Picture {
            text: text.into(),
            code: Code::Ok,
        }
    }
}

/// Prints what `look` makes, once or until interrupted. While it watches, a look that fails is told and
/// repeated: the zones may come back.
pub(super) async fn show(
    watching: Watching,
    mut look: impl AsyncFnMut() -> anyhow::Result<Picture>,
) -> anyhow::Result<Code> {
    let Some(every) = watching.watch else {
        let picture = look().await?;
        print!("{}", picture.text);
        return Ok(picture.code);
    };
    let on_terminal = std::io::stdout().is_terminal();
    let watch = async {
        loop {
            let text = match look().await {
                Ok(picture) => picture.text,
                Err(error) => format!("understudy: {error:#}\n"),
            };
            let clear = if on_terminal { "\x1b[2J\x1b[H" } else { "" };
            let mut out = std::io::stdout().lock();
            if write!(out, "{clear}{text}")
                .and_then(|()| out.flush())
                .is_err()
            {
                // Nobody reads it any more.
                return;
            }
            drop(out);
            tokio::time::sleep(every).await;
        }
    };
    tokio::select! {
        () = watch => {}
        () = super::process::interrupted() => {}
    }
    Ok(Code::Ok)
}
