//! A headless Chromium, driven over the two pipes of its DevTools protocol.
//!
//! Messages are JSON, each ended by a zero byte; Chromium reads them from its descriptor 3 and writes to
//! 4. What a page complains of (exceptions, errors on its console, refused loads) is collected.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cluster::process::Process;
use nix::sys::stat::Mode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::{self, Receiver, Sender};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::stage::TIMEOUT;

/// Debian's name of the program, and of its package.
const PROGRAM: &str = "chromium";

#[derive(Default)]
struct Heard {
    answers: HashMap<u64, oneshot::Sender<Value>>,
    /// With the session that each came from.
    complaints: Vec<(String, String)>,
}

/// A running browser; it ends when this is dropped.
pub struct Browser {
    // Dropping it kills the program and all that it started, which else go on writing into its profile.
    _process: Process,
    to: tokio::sync::Mutex<Sender>,
    heard: Arc<Mutex<Heard>>,
    reading: JoinHandle<()>,
    numbers: AtomicU64,
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Browser {
    /// Starts one that keeps its files in `dir`.
    pub async fn start(dir: &Path) -> Result<Browser> {
        let home = dir.join("browser");
        std::fs::create_dir_all(&home)?;
        let (input, output) = (home.join("in"), home.join("out"));
        for pipe in [&input, &output] {
            nix::unistd::mkfifo(pipe, Mode::S_IRUSR | Mode::S_IWUSR)?;
        }
        // Both ends stand before the shell opens its own, so that nobody waits.
        let from = pipe::OpenOptions::new().open_receiver(&output)?;
        let to = pipe::OpenOptions::new()
            .read_write(true)
            .open_sender(&input)?;
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"exec "$0" "$@" 3<"$HOME/in" 4>"$HOME/out""#])
            .arg(PROGRAM)
            .args(["--headless=new", "--remote-debugging-pipe"])
            // Its pages are ours, and a container seldom allows what its sandbox needs.
            .args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args([
                "--disable-background-networking",
                "--no-first-run",
                "--hide-scrollbars",
            ])
            .arg(format!(
                "--user-data-dir={}",
                home.join("profile").display()
            ))
            .env("HOME", &home);
        let process = Process::spawn(PROGRAM, command, &home.join("log"))?;
        let heard = Arc::new(Mutex::new(Heard::default()));
        let browser = Browser {
            _process: process,
            to: tokio::sync::Mutex::new(to),
            reading: tokio::spawn(hear(from, Arc::clone(&heard))),
            heard,
            numbers: AtomicU64::new(1),
        };
        let version = browser.ask(None, "Browser.getVersion", json!({})).await;
        version.context("chromium cannot be run; install it: scripts/packages --test")?;
        Ok(browser)
    }

    async fn ask(&self, session: Option<&str>, method: &str, params: Value) -> Result<Value> {
        let id = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.heard.lock().answers.insert(id, answer);
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = json!(session);
        }
        let mut frame = message.to_string().into_bytes();
        frame.push(0);
        self.to.lock().await.write_all(&frame).await?;
        let answer = tokio::time::timeout(TIMEOUT, answered).await;
        let mut answer = answer.with_context(|| format!("no answer to {method}"))??;
        ensure!(answer.get("error").is_none(), "{method}: {answer}");
        Ok(answer["result"].take())
    }

    /// Opens an empty page.
    pub async fn tab(&self) -> Result<Tab<'_>> {
        let blank = json!({ "url": "about:blank" });
        let target = self.ask(None, "Target.createTarget", blank).await?;
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = self.ask(None, "Target.attachToTarget", target).await?;
        let session = attached["sessionId"].as_str().context("no session")?;
        let tab = Tab {
            browser: self,
            session: session.to_owned(),
        };
        for domain in ["Page", "Runtime", "Log"] {
            tab.ask(&format!("{domain}.enable"), json!({})).await?;
        }
        tab.size(1200, 900).await?;
        Ok(tab)
    }
}

/// Gives answers to who waits for them and keeps complaints, until the browser ends.
async fn hear(from: Receiver, heard: Arc<Mutex<Heard>>) {
    let mut from = BufReader::new(from);
    let mut frame = Vec::new();
    while matches!(from.read_until(0, &mut frame).await, Ok(1..)) {
        let message: Value =
            serde_json::from_slice(frame.trim_ascii_end().strip_suffix(&[0]).unwrap_or(&frame))
                .unwrap_or_default();
        frame.clear();
        let mut heard = heard.lock();
        if let Some(id) = message["id"].as_u64() {
            if let Some(answer) = heard.answers.remove(&id) {
                // Who asked may have given up.
                let _ = answer.send(message);
            }
        } else if let Some(complaint) = complaint(&message) {
            let session = message["sessionId"].as_str().unwrap_or_default();
            heard.complaints.push((session.to_owned(), complaint));
        }
    }
    // Whoever still waits is told that nothing comes.
    heard.lock().answers.clear();
}

/// What a page complains of in an event, if it does.
fn complaint(event: &Value) -> Option<String> {
    let params = &event["params"];
    let bad = |level: &Value| level == "error" || level == "warning";
    match event["method"].as_str()? {
        "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
        "Runtime.consoleAPICalled" if bad(&params["type"]) => Some(params["args"].to_string()),
        "Log.entryAdded" if bad(&params["entry"]["level"]) => Some(params["entry"].to_string()),
        _ => None,
    }
}

/// One page.
pub struct Tab<'a> {
    browser: &'a Browser,
    session: String,
}

impl Tab<'_> {
    async fn ask(&self, method: &str, params: Value) -> Result<Value> {
        self.browser.ask(Some(&self.session), method, params).await
    }

    /// Loads an address.
    pub async fn open(&self, url: &str) -> Result<()> {
        let opened = self.ask("Page.navigate", json!({ "url": url })).await?;
        ensure!(opened.get("errorText").is_none(), "{url}: {opened}");
        Ok(())
    }

    /// The value of an expression in the page; a promise is awaited.
    pub async fn value(&self, expression: &str) -> Result<Value> {
        let asked =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut said = self.ask("Runtime.evaluate", asked).await?;
        ensure!(
            said.get("exceptionDetails").is_none(),
            "{expression}: {said}"
        );
        Ok(said["result"]["value"].take())
    }

    /// The visible text of all elements that a selector finds, one after the other.
    pub async fn text(&self, selector: &str) -> Result<String> {
        let all = format!(
            "[...document.querySelectorAll({selector:?})].map(e => e.innerText).join('\\n')"
        );
        let text = self.value(&all).await?;
        text.as_str().map(str::to_owned).context("no text")
    }

    /// Waits until the text that a selector finds has `wanted` in it.
    pub async fn wait_text(&self, selector: &str, wanted: &str) -> Result<String> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let text = self.text(selector).await?;
            if text.contains(wanted) {
                return Ok(text);
            }
            if Instant::now() >= deadline {
                let page = self.text("body").await?;
                bail!("{selector} says {text:?}, not {wanted:?}, in:\n{page}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Gives the page's window a size, in pixels.
    pub async fn size(&self, width: u32, height: u32) -> Result<()> {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.ask("Emulation.setDeviceMetricsOverride", size).await?;
        Ok(())
    }

    /// Has the page believe that its reader prefers dark, or light.
    pub async fn scheme(&self, scheme: &str) -> Result<()> {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        let media = json!({ "features": [feature] });
        self.ask("Emulation.setEmulatedMedia", media).await?;
        Ok(())
    }

    /// Writes a picture of the whole page as WebP.
    pub async fn picture(&self, file: &Path) -> Result<()> {
        let whole = json!({ "format": "webp", "quality": 85, "captureBeyondViewport": true });
        let taken = self.ask("Page.captureScreenshot", whole).await?;
        let data = taken["data"].as_str().context("no picture")?;
        std::fs::write(file, BASE64_STANDARD.decode(data)?)?;
        Ok(())
    }

    /// What the page has complained of since this was asked last.
    pub fn complaints(&self) -> Vec<String> {
        let mut heard = self.browser.heard.lock();
        let all = std::mem::take(&mut heard.complaints);
        let (own, others) = all
            .into_iter()
            .partition(|(session, _)| *session == self.session);
        heard.complaints = others;
        let own: Vec<(String, String)> = own;
        own.into_iter().map(|(_, complaint)| complaint).collect()
    }
}
