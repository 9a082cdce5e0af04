//! Images: made, given up, and what is in them.

use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use vm::host::{Accelerator, Start, choose};
use vm::image::{Database, Progress, create};

use crate::stage::{PASSWORD, Stage, image, wanted};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a whole machine"]
async fn an_image_that_is_given_up_leaves_nothing() {
    let stage = Stage::new();
    let directory = stage.path().join("image");
    let (sender, mut progress) = tokio::sync::mpsc::unbounded_channel();
    let making = {
        let wanted = wanted(&directory, Database::PostgreSql);
        tokio::spawn(async move {
            create(&wanted, |step| {
                // Nobody listens any more when it is given up.
                let _ = sender.send(step);
            })
            .await
        })
    };
    // In the middle of the packages, when processes and mounts are there.
    while let Some(step) = progress.recv().await {
        if matches!(&step, Progress::Detail(text) if text.contains("installing")) {
            break;
        }
    }
    assert!(stage.path().join("image.partial/root").is_dir());
    making.abort();
    assert!(making.await.unwrap_err().is_cancelled());
    // The kernel ends what was started a moment later.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !left(&directory).is_empty() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(left(&directory), Vec::<String>::new());
    assert!(!directory.exists());
}

/// Processes and mounts that have the directory's name.
fn left(directory: &std::path::Path) -> Vec<String> {
    let name = directory.display().to_string();
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&name) {
            found.push(line);
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    found.extend(
        mounts
            .lines()
            .filter(|line| line.contains(&name))
            .map(str::to_owned),
    );
    found
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a whole machine"]
async fn a_machine_stops_cleanly_when_its_power_button_is_pressed() {
    let stage = Stage::new();
    let image = image(Database::PostgreSql).await;
    assert!(
        image.manifest.version.contains("PostgreSQL"),
        "{:?}",
        image.manifest
    );
    let prepared = stage.machine("a", &image);
    let mut machine = prepared.start(Start::Boot);
    let client = prepared.connect().await;
    client
        .batch_execute("CREATE TABLE kept AS SELECT 7 AS value")
        .await
        .unwrap();
    machine.press_power().unwrap();
    let within = Duration::from_secs(60);
    assert!(
        machine.powered_off(within).unwrap(),
        "{}",
        prepared.console()
    );
    assert!(
        prepared.console().contains("understudy: stopped cleanly"),
        "{}",
        prepared.console()
    );
    drop(machine);
    // The same disk again, with what was written.
    let machine = prepared.start(Start::Boot);
    let client = prepared.connect().await;
    let row = client
        .query_one("SELECT value FROM kept", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, i32>(0), 7);
    drop(machine);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a whole machine"]
async fn mariadb_answers_in_a_machine() {
    let stage = Stage::new();
    let image = image(Database::MariaDb).await;
    let prepared = stage.machine("a", &image);
    let machine = prepared.start(Start::Boot);
    let options = mysql_async::OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(prepared.port)
        .user(Some("root"))
        .pass(Some(PASSWORD))
        .prefer_socket(false);
    let deadline = Instant::now() + Duration::from_secs(90);
    let mut connection = loop {
        let tried = mysql_async::Conn::new(options.clone());
        match tokio::time::timeout(Duration::from_secs(10), tried).await {
            Ok(Ok(connection)) => break connection,
            failed => assert!(
                Instant::now() < deadline,
                "{failed:?}\n{}",
                prepared.console()
            ),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let sum: Option<u32> = connection.query_first("SELECT 3 + 4").await.unwrap();
    assert_eq!(sum, Some(7));
    drop(machine);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a whole machine"]
async fn accelerator_is_found_by_booting() {
    let stage = Stage::new();
    let image = image(Database::PostgreSql).await;
    let remembered = stage.path().join("acceleration");
    let qemu = std::path::Path::new("/usr/bin/qemu-system-x86_64");
    let find = || choose(qemu, &image.kernel(), &image.initrd(), &remembered).unwrap();
    let began = Instant::now();
    let found = find();
    println!("{found:?} after {:?}", began.elapsed());
    // What it says must be true: a machine boots with it.
    let mut prepared = stage.machine("a", &image);
    prepared.spec.accelerator = found.accelerator;
    if found.accelerator == Accelerator::Kvm {
        // Its user need not be one who may use the device.
        prepared.spec.run_as = None;
    }
    let machine = prepared.start(Start::Boot);
    prepared.connect().await;
    drop(machine);
    let again = Instant::now();
    assert_eq!(find(), found);
    assert!(again.elapsed() < Duration::from_secs(1));
}
