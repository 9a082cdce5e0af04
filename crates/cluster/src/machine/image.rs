//! Images that are kept between runs: making one takes a minute.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use vm::image::{Create, Database, Image, create};

const DISK_BYTES: u64 = 2 << 30;

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
    create(&wanted, |_| {}).await?;
    Ok(Kept { image, password })
}
