//! A directory for one test, with machines whose disks are copies of an image.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use supervise::RunAs;
use tokio::sync::Mutex;
use vm::disk::{self, Disk};
use vm::host::{Accelerator, Mac, Machine, Network, Spec, Start};
use vm::image::{Create, Database, Image, create};
use zeroize::Zeroizing;

pub(crate) const PASSWORD: &str = "it's a \\ secret";
/// Guests under translation are slow, and so are machines that run tests.
const ANSWERS_WITHIN: Duration = Duration::from_secs(90);

pub(crate) struct Stage {
    directory: Option<tempfile::TempDir>,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        let parent = std::env::var_os("UNDERSTUDY_TEST_DIR");
        let parent = parent.map_or_else(std::env::temp_dir, PathBuf::from);
        let directory = tempfile::Builder::new()
            .prefix("vm")
            .tempdir_in(parent)
            .unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Stage {
            directory: Some(directory),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.as_ref().unwrap().path()
    }

    /// A machine of 256 MiB called `name`, with a disk of its own. It is not started.
    pub(crate) fn machine(&self, name: &str, image: &Image) -> Prepared {
        let path = |what: &str| self.path().join(format!("{name}{what}"));
        // QEMU's user may not be allowed into the directory of the images.
        let (kernel, initrd) = (path("-kernel"), path("-initrd"));
        std::fs::copy(image.kernel(), &kernel).unwrap();
        std::fs::copy(image.initrd(), &initrd).unwrap();
        let file = path("-disk");
        let copied = Command::new("cp")
            .arg("--sparse=always")
            .arg(image.disk())
            .arg(&file)
            .status();
        assert!(copied.unwrap().success());
        let disk = Disk::open(&file).unwrap();
        let socket = path("-nbd");
        let server = disk::serve(disk.clone(), &socket).unwrap();
        let port = supervise::ports::free().unwrap();
        let unique = self.path().file_name().unwrap().display().to_string();
        let spec = Spec {
            qemu: "/usr/bin/qemu-system-x86_64".into(),
            accelerator: Accelerator::Tcg,
            memory: 256 << 20,
            cpus: 1,
            kernel,
            initrd,
            append: vm::image::address([10, 0, 2, 15].into(), 24, None),
            disk: socket,
            network: Network::Forwarded(vec![(port, image.manifest.database.port())]),
            mac: Mac([0x52, 0x54, 0, 1, 2, 3]),
            memory_dir: format!("/dev/shm/understudy-{unique}-{name}").into(),
            run: path(""),
            console: path("-console"),
            log: path("-log"),
            // Nothing here needs a privileged QEMU.
            run_as: RunAs::resolve("postgres").unwrap(),
        };
        Prepared {
            spec,
            port,
            disk,
            _server: server,
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(directory) = self.directory.take()
        {
            eprintln!("left for a look: {}", directory.keep().display());
        }
    }
}

pub(crate) struct Prepared {
    pub(crate) spec: Spec,
    /// The database's port, on this host.
    pub(crate) port: u16,
    pub(crate) disk: Arc<Disk>,
    _server: disk::Server,
}

impl Prepared {
    pub(crate) fn start(&self, start: Start) -> Machine {
        vm::host::check(&self.spec).unwrap();
        Machine::start(&self.spec, start).unwrap()
    }

    /// A client of the guest's PostgreSQL, as soon as it answers.
    pub(crate) async fn connect(&self) -> tokio_postgres::Client {
        let mut config = tokio_postgres::Config::new();
        config
            .host("127.0.0.1")
            .port(self.port)
            .user("postgres")
            .dbname("postgres");
        config
            .password(PASSWORD)
            .connect_timeout(Duration::from_secs(5));
        let deadline = Instant::now() + ANSWERS_WITHIN;
        loop {
            // QEMU accepts connections before the guest does, and closes them then.
            let tried = tokio::time::timeout(
                Duration::from_secs(10),
                config.connect(tokio_postgres::NoTls),
            );
            match tried.await {
                Ok(Ok((client, connection))) => {
                    tokio::spawn(connection);
                    return client;
                }
                failed => assert!(
                    Instant::now() < deadline,
                    "PostgreSQL does not answer: {:?}\n{}",
                    failed.map(|tried| tried.err()),
                    self.console()
                ),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) fn console(&self) -> String {
        let said = std::fs::read(&self.spec.console).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }
}

/// What an image of the tests is made from.
pub(crate) fn wanted(directory: &Path, database: Database) -> Create {
    Create {
        directory: directory.to_owned(),
        database,
        password: Zeroizing::new(PASSWORD.to_owned()),
        disk_bytes: 2 << 30,
        hostname: "guest".to_owned(),
        packages: vec![],
    }
}

/// An image with a database: the one of PostgreSQL that all tests share, or one that is made by the first test that needs it.
pub(crate) async fn image(database: Database) -> Image {
    if database == Database::PostgreSql
        && let Some(shared) = std::env::var_os("UNDERSTUDY_TEST_IMAGE")
    {
        return Image::open(Path::new(&shared)).unwrap();
    }
    static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
    let _turn = ONE_AT_A_TIME.lock().await;
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name = format!("{database:?}-{:x}", recipe()).to_lowercase();
    let directory = cache.join(&name);
    if let Ok(image) = Image::open(&directory) {
        return image;
    }
    // Those of other recipes are not needed any more.
    for entry in std::fs::read_dir(cache).unwrap().flatten() {
        let old = entry.file_name().to_string_lossy().into_owned();
        if old.starts_with(&format!("{database:?}-").to_lowercase()) && !old.ends_with(".partial") {
            std::fs::remove_dir_all(entry.path()).unwrap();
        }
    }
    let made = create(&wanted(&directory, database), |progress| {
        println!("{progress:?}")
    })
    .await;
    made.unwrap_or_else(|error| panic!("{error}"))
}

/// Changes when images are made otherwise.
fn recipe() -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/image")];
    let mut files = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            if entry.path().is_dir() {
                directories.push(entry.path());
            } else {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    for file in files {
        std::fs::read(file).unwrap().hash(&mut hasher);
    }
    hasher.finish()
}
