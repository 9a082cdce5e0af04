//! Images that are kept between runs: making one takes a minute.
//!
//! Invariant: packages are fetched by way of the network that the process came from, whatever network it has entered since.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Context;
use nix::sched::{CloneFlags, setns};
use vm::image::{Create, Database, Image, create};

const DISK_BYTES: u64 = 2 << 30;

/// The network that the process came from.
static NETWORK: OnceLock<File> = OnceLock::new();

/// Keeps the way to the network of this thread, which is about to enter another one.
pub(super) fn keep_network() -> anyhow::Result<()> {
    let network = File::open("/proc/thread-self/ns/net").context("cannot open the network")?;
    // Who enters a second one comes from the first.
    let _ = NETWORK.set(network);
    Ok(())
}

/// An image and the password of its administrator.
#[derive(Debug, Clone)]
pub struct Kept {
    /// Where it is.
    pub image: PathBuf,
    /// Of `postgres`, or of MariaDB's `root`.
    pub password: String,
}

/// The image of a database in this directory: made, with a password of its own, unless it is there already.
///
/// # Errors
/// It cannot be made.
pub async fn keep(dir: &Path, database: Database, say: impl Fn(&str)) -> anyhow::Result<Kept> {
    let name = format!("{database:?}").to_lowercase();
    let (image, file) = (dir.join(&name), dir.join(format!("{name}.password")));
    if let (Ok(_), Ok(password)) = (Image::open(&image), std::fs::read_to_string(&file)) {
        return Ok(Kept { image, password });
    }
    say(&format!("making an image of Debian with {database:?}"));
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let password = format!("kept-{:x}", rand::random::<u64>());
    let mut options = std::fs::OpenOptions::new();
    let opened = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&file);
    let written = opened.and_then(|mut it| std::io::Write::write_all(&mut it, password.as_bytes()));
    written.with_context(|| format!("cannot write {}", file.display()))?;
    let wanted = Create {
        directory: image.clone(),
        database,
        password: password.clone().into(),
        disk_bytes: DISK_BYTES,
        hostname: "database".to_owned(),
        packages: Vec::new(),
    };
    make(wanted).await?;
    Ok(Kept { image, password })
}

/// Makes an image, by a thread of its own: which network it is in is a thread's own affair.
async fn make(wanted: Create) -> anyhow::Result<()> {
    let (made, outcome) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // Who does not wait any more does not care.
        let _ = made.send(make_here(&wanted));
    });
    outcome
        .await
        .context("the thread that makes it has ended")?
}

fn make_here(wanted: &Create) -> anyhow::Result<()> {
    if let Some(network) = NETWORK.get() {
        setns(network, CloneFlags::CLONE_NEWNET).context("cannot go back to the network")?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(create(wanted, |_| {}))?;
    Ok(())
}
