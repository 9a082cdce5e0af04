//! The judge is judged: the load and the verdict against a stock PostgreSQL that is killed.

use std::path::PathBuf;
use std::time::Duration;

use cluster::clients::clock::Clock;
use cluster::clients::history::Outcome;
use cluster::clients::load::{Load, Options};
use cluster::clients::{churn::Churn, schema, session, verify};
use cluster::stock::Stock;
use cluster::{fresh_directory, programs};

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        Scratch(
            fresh_directory(&std::env::temp_dir(), "understudy-harness")
                .expect("a directory to work in"),
        )
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_stock_postgres_loses_nothing_and_a_missing_row_is_noticed() {
    let scratch = Scratch::new();
    let bin = programs::find(None).unwrap();
    let mut stock = Stock::start(&scratch.0.join("pg"), &bin, Vec::new())
        .await
        .unwrap();
    let server = stock.server();
    schema::create(&bin, &server, 1).await.unwrap();

    let clock = Clock::start();
    let options = Options {
        clients: 4,
        scale: 1,
        ..Options::default()
    };
    let load = Load::start(
        schema::any_writable(std::slice::from_ref(&server)),
        options,
        clock,
    );
    let churn = Churn::start(schema::any_writable(std::slice::from_ref(&server)));
    while load.acknowledged() < 200 || churn.rounds() == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let killed = clock.at(stock.kill().unwrap().at);
    stock.restart().await.unwrap();
    let before = load.acknowledged();
    while load.acknowledged() < before + 100 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let history = load.stop().await;
    churn.stop().await;

    let outage = history.outage(killed).expect("commits after the restart");
    assert!(outage.last_before < outage.first_after);
    let (comparison, checks) = verify::database(&server, &history).await.unwrap();
    assert!(checks.iter().all(|check| check.passed), "{checks:?}");
    assert_eq!(
        comparison.acknowledged,
        history.count(Outcome::Acknowledged)
    );
    let check = verify::amcheck(&bin, &server).await.unwrap();
    assert!(check.passed, "{}", check.detail);

    let client = session::connect(&server.config()).await.unwrap();
    let stolen = history.commits().next().unwrap();
    let deleted = client
        .execute(
            "DELETE FROM understudy_ledger WHERE client = $1 AND n = $2",
            &[&stolen.client, &stolen.n],
        )
        .await
        .unwrap();
    assert_eq!(deleted, 1);
    let (comparison, checks) = verify::database(&server, &history).await.unwrap();
    assert_eq!(comparison.lost, [(stolen.client, stolen.n)]);
    let failed: Vec<_> = checks
        .iter()
        .filter(|c| !c.passed)
        .map(|c| c.name)
        .collect();
    assert_eq!(failed, ["no acknowledged commit lost", "balances agree"]);
}
