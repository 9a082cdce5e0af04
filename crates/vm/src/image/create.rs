//! Makes an image: a Debian of a few packages with a database, from the package sources of this host.
//!
//! ```text
//!   mmdebstrap ─▶ packages, the database (guest/install), the kernel ─▶ initrd ─▶ mke2fs -d ─▶ rename
//! ```
//!
//! The packages are installed in namespaces of their own, in which everything ends when this does: no process and no
//! mount is left, whatever ends it. The operator's password is in files that only root reads, never on a command line.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::process::Command;
use zeroize::Zeroizing;

use super::work::{Work, run};
use super::{Database, FORMAT, Image, ImageError, MANIFEST, Manifest, Result, initrd};

const INSTALL: &str = include_str!("guest/install");
/// Names the newest kernel made for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
const SMALLEST_DISK: u64 = 1 << 30;
/// Nobody reads these in the guest, and they are a third of its files.
const LEFT_OUT: [&str; 4] = [
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/locale/*",
    "/usr/share/info/*",
];

/// What is wanted.
#[derive(Debug, Clone)]
pub struct Create {
    /// Where the image is made. It does not exist yet.
    pub directory: PathBuf,
    /// Database that the image has.
    pub database: Database,
    /// The administrator's password. It is given over the network of the host, and nowhere else.
    pub password: Zeroizing<String>,
    /// Bytes of the disk.
    pub disk_bytes: u64,
    /// The guest's name.
    pub hostname: String,
    /// Packages that the guest has besides.
    pub packages: Vec<String>,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A step begins.
    Step(&'static str),
    /// What the step says about itself.
    Detail(String),
}

/// Makes an image. Given up in the middle, it leaves nothing.
///
/// # Errors
/// See [`ImageError`].
pub async fn create(wanted: &Create, mut progress: impl FnMut(Progress)) -> Result<Image> {
    check(wanted)?;
    let release = Release::of_this_host()?;
    let busybox = busybox()?;
    let work = Work::begin(&wanted.directory)?;
    progress(Progress::Step("installing packages"));
    prepare(wanted, &work, &busybox)?;
    install(wanted, &work, &release, &mut progress).await?;
    progress(Progress::Step("making the initrd"));
    let made = work.path("made");
    std::fs::create_dir(&made).map_err(|e| ImageError::system("cannot make a directory", e))?;
    let kernel = take_kernel(&work, &made)?;
    write_initrd(&made, &busybox, &work.path("kernel"))?;
    progress(Progress::Step("making the disk"));
    make_disk(
        &work.path("root"),
        &made.join("disk.raw"),
        wanted.disk_bytes,
    )
    .await?;
    let version = std::fs::read_to_string(work.path("version")).unwrap_or_default();
    let manifest = Manifest {
        format: FORMAT,
        database: wanted.database,
        version: version.trim().to_owned(),
        suite: release.suite,
        kernel,
        disk_bytes: wanted.disk_bytes,
    };
    write_manifest(&made, &manifest)?;
    work.finish(&made, &wanted.directory)?;
    Image::open(&wanted.directory)
}

fn check(wanted: &Create) -> Result<()> {
    if !nix::unistd::Uid::effective().is_root() {
        let hint = "Run \"understudy vm create\" as root, on any host of the same Debian, and copy the image.";
        return Err(ImageError::refused("only root can make an image", hint));
    }
    if wanted.directory.exists() {
        let what = format!("{} exists already", wanted.directory.display());
        return Err(ImageError::refused(
            what,
            "Remove it, or choose another directory.",
        ));
    }
    if wanted.disk_bytes < SMALLEST_DISK || !wanted.disk_bytes.is_multiple_of(1 << 20) {
        let what = format!(
            "a disk of {} bytes is too small, or not of whole megabytes",
            wanted.disk_bytes
        );
        return Err(ImageError::refused(
            what,
            format!("Choose at least {} MiB.", SMALLEST_DISK >> 20),
        ));
    }
    let password = wanted.password.as_str();
    if password.is_empty() || password.contains(char::is_control) {
        let what = "the password is empty, or has more than one line";
        return Err(ImageError::refused(
            what,
            "Put a password of one line into its file.",
        ));
    }
    let plain = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-.+".contains(&b))
    };
    for name in wanted.packages.iter().chain([&wanted.hostname]) {
        if !plain(name) || name.starts_with('-') {
            let what = format!("{name:?} cannot be the name of a package or of a machine");
            return Err(ImageError::refused(
                what,
                "Use letters, digits and hyphens.",
            ));
        }
    }
    for program in ["mmdebstrap", "mke2fs", "unshare"] {
        if program_path(program).is_none() {
            let what = format!("there is no program \"{program}\"");
            return Err(ImageError::refused(
                what,
                format!("Debian: apt-get install {}", package(program)),
            ));
        }
    }
    Ok(())
}

fn package(program: &str) -> &str {
    match program {
        "mke2fs" => "e2fsprogs",
        "unshare" => "util-linux",
        other => other,
    }
}

/// Where a program is; administrators' programs are not in everybody's path.
fn program_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"])
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.is_file())
}

/// A busybox that needs no libraries.
fn busybox() -> Result<PathBuf> {
    let found = program_path("busybox").filter(|path| {
        // The dynamic linker's name is in every program that needs it.
        let program = std::fs::read(path).unwrap_or_default();
        let linker = b"/lib64/ld-linux";
        !program.is_empty() && !program.windows(linker.len()).any(|window| window == linker)
    });
    let missing = || {
        let what = "there is no busybox that is linked statically";
        ImageError::refused(what, "Debian: apt-get install busybox-static")
    };
    found.ok_or_else(missing)
}

/// The Debian of this host, which the guest gets too.
#[derive(Debug, PartialEq, Eq)]
struct Release {
    suite: String,
}

impl Release {
    fn of_this_host() -> Result<Release> {
        let text = std::fs::read_to_string("/etc/os-release")
            .map_err(|e| ImageError::system("cannot read /etc/os-release", e))?;
        Release::parse(&text)
    }

    fn parse(text: &str) -> Result<Release> {
        let value = |name: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
            Some(line.trim_matches('"').to_owned())
        };
        match (value("ID").as_deref(), value("VERSION_CODENAME")) {
            (Some("debian"), Some(suite)) => Ok(Release { suite }),
            (id, _) => Err(ImageError::refused(
                format!(
                    "images are made on Debian, and this is {}",
                    id.unwrap_or("unknown")
                ),
                "Make the image on a host with Debian 12 or later, and copy it.",
            )),
        }
    }
}

/// Writes what the installation needs.
fn prepare(wanted: &Create, work: &Work, busybox: &Path) -> Result<()> {
    let failed = |e| ImageError::system("cannot write what the installation needs", e);
    let secret = |name: &str, text: &str| {
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(work.path(name));
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(failed)
    };
    let script = |name: &str, text: &str| {
        let path = work.path(name);
        std::fs::write(&path, text)
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)))
            .map_err(failed)
    };
    match wanted.database {
        Database::PostgreSql => secret("password", &wanted.password)?,
        Database::MariaDb => secret("accounts.sql", &accounts(&wanted.password))?,
    }
    std::fs::create_dir(work.path("guest")).map_err(failed)?;
    std::fs::copy(busybox, work.path("guest/busybox")).map_err(failed)?;
    script("install", INSTALL)?;
    let database = match wanted.database {
        Database::PostgreSql => include_str!("guest/database-postgresql"),
        Database::MariaDb => include_str!("guest/database-mariadb"),
    };
    script("guest/database", database)?;
    script("guest/inittab", include_str!("guest/inittab"))?;
    script("guest/setup", include_str!("guest/setup"))?;
    script("guest/dhcp", include_str!("guest/dhcp"))?;
    script("guest/clock", include_str!("guest/clock"))?;
    script("guest/power", include_str!("guest/power"))?;
    script("guest/power-pressed", include_str!("guest/power-pressed"))?;
    script("guest/shutdown", include_str!("guest/shutdown"))
}

/// What makes MariaDB's administrator known on the network.
fn accounts(password: &str) -> Zeroizing<String> {
    let quoted = Zeroizing::new(password.replace('\\', "\\\\").replace('\'', "''"));
    Zeroizing::new(format!(
        "FLUSH PRIVILEGES;\nCREATE USER 'root'@'%' IDENTIFIED BY '{}';\n\
         GRANT ALL PRIVILEGES ON *.* TO 'root'@'%' WITH GRANT OPTION;\n",
        *quoted
    ))
}

async fn install(
    wanted: &Create,
    work: &Work,
    release: &Release,
    progress: &mut impl FnMut(Progress),
) -> Result<()> {
    let settings = work.path("apt.conf");
    let output = std::process::Command::new("apt-config")
        .args(["dump", "--no-empty", "--format", "%F \"%v\";%n", "Acquire"])
        .output()
        .map_err(|e| ImageError::system("cannot run apt-config", e))?;
    std::fs::write(&settings, output.stdout)
        .map_err(|e| ImageError::system("cannot write the settings of apt", e))?;
    let database = match wanted.database {
        Database::PostgreSql => vec!["postgresql"],
        Database::MariaDb => vec!["mariadb-server-core", "mariadb-client"],
    };
    let packages: Vec<&str> = database
        .into_iter()
        .chain(wanted.packages.iter().map(String::as_str))
        .collect();
    let mut command = Command::new("unshare");
    // Everything in it dies with the first process, and its mounts with it.
    command
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "mmdebstrap",
        ])
        .args(["--mode=root", "--variant=minbase", "--format=directory"])
        .arg(format!("--include={}", packages.join(",")))
        .arg(format!("--aptopt={}", settings.display()));
    // Nothing is worth a flush before everything is complete.
    command.arg("--dpkgopt=force-unsafe-io");
    for path in LEFT_OUT {
        command.arg(format!("--dpkgopt=path-exclude={path}"));
    }
    command
        .arg(format!(
            "--customize-hook={}",
            work.path("install").display()
        ))
        .arg(&release.suite)
        .arg(work.path("root"))
        .args(sources(Path::new("/etc/apt"))?)
        .env("UNDERSTUDY_WORK", work.path(""))
        .env("UNDERSTUDY_DATABASE", wanted.database.name())
        .env("UNDERSTUDY_HOSTNAME", &wanted.hostname)
        .env("UNDERSTUDY_KERNEL", KERNEL);
    run(command, |line| {
        if let Some(text) = line.strip_prefix("I: ") {
            progress(Progress::Detail(text.to_owned()));
        }
    })
    .await
}

/// The files in which this host says where its packages come from.
fn sources(apt: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![apt.join("sources.list")];
    for entry in std::fs::read_dir(apt.join("sources.list.d"))
        .into_iter()
        .flatten()
        .flatten()
    {
        found.push(entry.path());
    }
    let named = |path: &PathBuf| {
        let ending = path.extension().unwrap_or_default();
        ending == "list" || ending == "sources"
    };
    found.retain(|path| named(path) && std::fs::metadata(path).is_ok_and(|about| about.len() > 0));
    found.sort();
    if found.is_empty() {
        let what = format!("{} names no package sources", apt.display());
        return Err(ImageError::refused(what, "See sources.list(5)."));
    }
    Ok(found)
}

/// Copies the kernel, and returns its release.
fn take_kernel(work: &Work, made: &Path) -> Result<String> {
    let boot = work.path("kernel/boot");
    let failed =
        |e| ImageError::system(format!("cannot take the kernel from {}", boot.display()), e);
    for entry in std::fs::read_dir(&boot).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(release) = name.strip_prefix("vmlinuz-") {
            std::fs::copy(entry.path(), made.join("kernel")).map_err(failed)?;
            return Ok(release.to_owned());
        }
    }
    Err(failed(std::io::ErrorKind::NotFound.into()))
}

fn write_initrd(made: &Path, busybox: &Path, kernel: &Path) -> Result<()> {
    let failed = |e| ImageError::system("cannot write the initrd", e);
    // A kernel of a later Debian has its modules below usr.
    let modules = [kernel.join("lib/modules"), kernel.join("usr/lib/modules")];
    let modules = modules
        .iter()
        .find(|path| path.is_dir())
        .ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
    let file = File::create(made.join("initrd")).map_err(failed)?;
    let mut into = BufWriter::new(file);
    initrd::write(&mut into, busybox, modules)?;
    into.flush()
        .and_then(|()| into.get_ref().sync_all())
        .map_err(failed)
}

async fn make_disk(root: &Path, disk: &Path, bytes: u64) -> Result<()> {
    let failed = |e| ImageError::system(format!("cannot make {}", disk.display()), e);
    let program =
        program_path("mke2fs").ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
    let mut command = Command::new(program);
    command
        .args([
            "-q",
            "-F",
            "-t",
            "ext4",
            "-m",
            "0",
            "-E",
            "lazy_itable_init=0,lazy_journal_init=0",
            "-d",
        ])
        .arg(root)
        .arg(disk)
        .arg(format!("{}k", bytes >> 10));
    run(command, |_| {}).await?;
    // Nobody else is to read the database.
    let private = std::fs::Permissions::from_mode(0o600);
    File::open(disk)
        .and_then(|file| {
            file.set_permissions(private)?;
            file.sync_all()
        })
        .map_err(failed)
}

fn write_manifest(made: &Path, manifest: &Manifest) -> Result<()> {
    let failed = |e| ImageError::system(format!("cannot write {MANIFEST}"), e);
    let text = toml::to_string(manifest).map_err(|e| failed(std::io::Error::other(e)))?;
    let mut file = File::create(made.join(MANIFEST)).map_err(failed)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(directory: &Path) -> Create {
        Create {
            directory: directory.to_owned(),
            database: Database::PostgreSql,
            password: Zeroizing::new("secret".to_owned()),
            disk_bytes: 2 << 30,
            hostname: "guest".to_owned(),
            packages: vec![],
        }
    }

    #[test]
    fn impossible_images_are_refused_before_anything_is_made() {
        type Spoil = fn(&mut Create);
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        let good = wanted(Path::new("/nonexistent/image"));
        let refused: [(&str, Spoil); 7] = [
            ("exists", |c| c.directory = "/tmp".into()),
            ("too small", |c| c.disk_bytes = 1 << 20),
            ("whole megabytes", |c| c.disk_bytes += 1),
            ("password", |c| c.password = Zeroizing::new(String::new())),
            ("password", |c| {
                c.password = Zeroizing::new("a\nb".to_owned())
            }),
            ("name of a package", |c| c.packages.push("-o=x".to_owned())),
            ("name of a package", |c| c.hostname = "a b".to_owned()),
        ];
        for (part, spoil) in refused {
            let mut wanted = good.clone();
            spoil(&mut wanted);
            let error = check(&wanted).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.hint().is_some());
        }
    }

    #[test]
    fn the_release_of_the_host_is_taken() {
        let debian = "ID=debian\nVERSION_CODENAME=bookworm\nID_LIKE=x\n";
        assert_eq!(Release::parse(debian).unwrap().suite, "bookworm");
        let other = Release::parse("ID=\"fedora\"\n").unwrap_err();
        assert!(other.to_string().contains("fedora"), "{other}");
    }

    #[test]
    fn sources_are_the_files_that_apt_reads() {
        let apt = tempfile::tempdir().unwrap();
        sources(apt.path()).unwrap_err();
        let list = apt.path().join("sources.list.d");
        std::fs::create_dir(&list).unwrap();
        std::fs::write(apt.path().join("sources.list"), "").unwrap();
        for name in ["b.sources", "a.list", "c.sources.disabled", "readme"] {
            std::fs::write(list.join(name), "x").unwrap();
        }
        assert_eq!(
            sources(apt.path()).unwrap(),
            [list.join("a.list"), list.join("b.sources")]
        );
    }

    #[test]
    fn a_password_stays_within_its_quotes() {
        let sql = accounts("it's \\ x");
        assert!(sql.contains("IDENTIFIED BY 'it''s \\\\ x';"), "{}", *sql);
    }
}
