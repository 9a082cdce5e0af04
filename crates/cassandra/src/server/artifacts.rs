//! Where Cassandra's jars and a Java that runs them are.
//!
//! The jars are Maven artifacts of the project itself, fetched once into a cache directory. Invariant:
//! a directory named after the version is complete; what a broken download left has another name.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

use super::error::{Result, ServerError, Tried};

/// The version that is fetched.
pub const VERSION: &str = "5.0.6";
const SHA256: &str = "bd533204e1088179ba58bd817082673b211cc78f605e64e34c3cd001c42aca2a";
const GOAL: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";
const POM: &str = include_str!("template/pom.xml");

/// Releases of Java on which Cassandra 5.0 runs. Later ones have no security manager, which it wants.
const JAVA_RELEASES: [u32; 2] = [17, 11];

/// A Cassandra that can be started.
#[derive(Debug, Clone)]
pub struct Artifacts {
    /// The directory of all jars.
    pub(super) jars: PathBuf,
    /// The agent that measures objects, which Cassandra wants to be loaded with.
    pub(super) agent: PathBuf,
    /// The program `java`.
    pub(super) java: PathBuf,
}

impl Artifacts {
    /// Finds Java, and the jars in the cache; fetches them if they are not there.
    ///
    /// # Errors
    /// `Missing` if Java or Maven is not installed, `Fetch` if Maven fails.
    pub fn get() -> Result<Artifacts> {
        let java = find_java()?;
        let cache = cache_directory();
        let jars = cache.join(VERSION);
        if !jars.is_dir() {
            fetch_locked(&cache, &jars)?;
        }
        let agent = jar(&jars, "jamm-")?;
        Ok(Artifacts { jars, agent, java })
    }
}

/// `UNDERSTUDY_CASSANDRA_CACHE`, or what suits the user.
fn cache_directory() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(directory) = set("UNDERSTUDY_CASSANDRA_CACHE") {
        return directory.into();
    }
    if nix::unistd::geteuid().is_root() {
        return "/var/cache/understudy/cassandra".into();
    }
    let base = set("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")));
    base.unwrap_or_else(std::env::temp_dir)
        .join("understudy/cassandra")
}

fn find_java() -> Result<PathBuf> {
    let installed = |release: &u32| {
        let names = [
            format!("java-{release}-openjdk-amd64"),
            format!("java-{release}-openjdk-arm64"),
            format!("java-{release}-openjdk"),
            format!("temurin-{release}-jdk-amd64"),
        ];
        let programs = names.map(|name| Path::new("/usr/lib/jvm").join(name).join("bin/java"));
        programs.into_iter().find(|program| program.is_file())
    };
    JAVA_RELEASES.iter().find_map(installed).ok_or_else(|| {
        let install = "apt-get install openjdk-17-jre-headless";
        ServerError::Missing(format!("no Java 17 below /usr/lib/jvm: {install}"))
    })
}

/// Only one process fetches at a time.
fn fetch_locked(cache: &Path, jars: &Path) -> Result<()> {
    fs::create_dir_all(cache).tried(|| format!("make {}", cache.display()))?;
    let path = cache.join("lock");
    let file = File::create(&path).tried(|| format!("write {}", path.display()))?;
    let _lock = Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .tried(|| format!("lock {}", path.display()))?;
    if jars.is_dir() {
        return Ok(());
    }
    let new = cache.join("new");
    if new.exists() {
        fs::remove_dir_all(&new).tried(|| format!("remove {}", new.display()))?;
    }
    fetch(&new)?;
    check(&new)?;
    fs::rename(&new, jars).tried(|| format!("make {}", jars.display()))
}

fn fetch(into: &Path) -> Result<()> {
    fs::create_dir_all(into).tried(|| format!("make {}", into.display()))?;
    let pom = into.join("pom.xml");
    fs::write(&pom, POM.replace("@VERSION@", VERSION))
        .tried(|| format!("write {}", pom.display()))?;
    tracing::info!(version = VERSION, "fetching Apache Cassandra with Maven");
    let output = Command::new("mvn")
        .args(["-q", "-B", "-C", "-f"])
        .arg(&pom)
        .arg(GOAL)
        .arg(format!("-DoutputDirectory={}", into.display()))
        .arg("-DincludeScope=runtime")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            ServerError::Missing(format!("cannot run mvn ({error}): apt-get install maven"))
        })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&str> = said.lines().take(5).collect();
        return Err(ServerError::Fetch(lines.join("; ")));
    }
    Ok(())
}

/// True if the server itself is what it was when its checksum was noted; Maven has checked the others.
fn check(jars: &Path) -> Result<()> {
    let path = jar(jars, "cassandra-all-")?;
    let bytes = fs::read(&path).tried(|| format!("read {}", path.display()))?;
    if hex::encode(Sha256::digest(bytes)) != SHA256 {
        let what = format!("{} has another checksum than was noted", path.display());
        return Err(ServerError::Fetch(what));
    }
    Ok(())
}

fn jar(jars: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(jars).tried(|| format!("list {}", jars.display()))?;
    let fits = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(prefix) && name.ends_with(".jar"))
    };
    let found = entries.flatten().map(|entry| entry.path()).find(fits);
    found.ok_or_else(|| {
        ServerError::Fetch(format!(
            "no {prefix}*.jar in {}: remove the directory",
            jars.display()
        ))
    })
}
