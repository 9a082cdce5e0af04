//! Sessions that ask the standby all the time for what must be true in every snapshot.
//!
//! Invariant: only an answer that is wrong, or an error that speaks of damage, is a fault. A query
//! that gives way to redo, or loses its server, asks again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use cluster::clients::schema::Server;
use cluster::clients::session::connect;

/// A question, and how it must be answered.
enum Question {
    /// The same row however the table is read.
    EveryWay(&'static str),
    /// No rows.
    Nothing(&'static str),
}

const QUESTIONS: [(&str, Question); 7] = [
    (
        "the balances agree",
        Question::Nothing(
            "SELECT 'accounts ' || a || ', tellers ' || t || ', branches ' || b || ', history ' || h
                 || '; history rows ' || n || ', ledger rows ' || l
             FROM (SELECT sum(abalance) a FROM pgbench_accounts) x1,
                  (SELECT sum(tbalance) t FROM pgbench_tellers) x2,
                  (SELECT sum(bbalance) b FROM pgbench_branches) x3,
                  (SELECT coalesce(sum(delta), 0) h, count(*) n FROM pgbench_history) x4,
                  (SELECT count(*) l FROM understudy_ledger) x5
             WHERE a <> t OR a <> b OR a <> h OR n <> l",
        ),
    ),
    (
        "the order entry's conditions hold",
        Question::Nothing("SELECT fault FROM shop.faults()"),
    ),
    (
        "accounts, every way",
        Question::EveryWay(
            "SELECT count(*) || ' ' || sum(aid) FROM pgbench_accounts WHERE aid BETWEEN 30000 AND 60000",
        ),
    ),
    (
        "the ledger, every way",
        Question::EveryWay(
            "SELECT count(*) || ' ' || coalesce(sum(n), 0) FROM understudy_ledger WHERE client = 1",
        ),
    ),
    (
        "orders, every way",
        Question::EveryWay(
            "SELECT count(*) || ' ' || coalesce(sum(o::bigint * c), 0) FROM shop.orders WHERE w > 0",
        ),
    ),
    (
        "order lines, every way",
        Question::EveryWay(
            "SELECT count(*) || ' ' || coalesce(sum(o::bigint * n), 0) FROM shop.order_line WHERE w > 0",
        ),
    ),
    (
        "open orders, every way",
        Question::EveryWay(
            "SELECT count(*) || ' ' || coalesce(sum(o::bigint * d), 0) FROM shop.new_order WHERE w > 0",
        ),
    ),
];

/// Table alone; index and table; index alone where the visibility map allows it.
const WAYS: [&str; 3] = [
    "SET LOCAL enable_seqscan = on; SET LOCAL enable_indexscan = off;
     SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off",
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = on;
     SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off",
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = on;
     SET LOCAL enable_indexonlyscan = on; SET LOCAL enable_bitmapscan = off",
];

/// What became of one question.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Answers {
    /// Right answers.
    pub right: u64,
    /// Given up for redo, or with the server.
    pub gave_way: u64,
    /// Wrong ones, the first few.
    pub wrong: Vec<String>,
}

/// By question.
pub type Tally = BTreeMap<&'static str, Answers>;

/// Running sessions; dropping them ends them.
#[derive(Debug)]
pub struct Readers {
    tally: Arc<Mutex<Tally>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts so many sessions on `server`, with a pause between questions.
    pub fn start(server: &Server, sessions: usize, pause: Duration) -> Readers {
        let tally = Arc::new(Mutex::new(Tally::new()));
        let tasks = (0..sessions).map(|session| {
            let (server, tally) = (server.clone(), Arc::clone(&tally));
            // They are not to ask the same at once.
            let first = session * QUESTIONS.len() / sessions.max(1);
            tokio::spawn(async move { ask_on(&server, first, pause, &tally).await })
        });
        Readers {
            tasks: tasks.collect(),
            tally,
        }
    }

    /// What was answered so far.
    pub fn tally(&self) -> Tally {
        self.tally.lock().clone()
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn ask_on(server: &Server, first: usize, pause: Duration, tally: &Mutex<Tally>) {
    let mut connected: Option<Client> = None;
    for (name, question) in QUESTIONS.iter().cycle().skip(first) {
        tokio::time::sleep(pause).await;
        let client = match connected.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => match connect(&server.config()).await {
                Ok(client) => client,
                Err(_) => continue,
            },
        };
        let answer = ask(&client, question).await;
        // Whatever state the question left the session in.
        if client.batch_execute("ROLLBACK").await.is_ok() {
            connected = Some(client);
        }
        note(tally.lock().entry(name).or_default(), answer);
    }
}

fn note(answers: &mut Answers, answer: Result<Option<String>, tokio_postgres::Error>) {
    const EXAMPLES: usize = 5;
    let wrong = match answer {
        Ok(None) => {
            answers.right += 1;
            return;
        }
        Ok(Some(wrong)) => wrong,
        Err(error) if gave_way(&error) => {
            answers.gave_way += 1;
            return;
        }
        Err(error) => match error.as_db_error() {
            Some(error) => error.to_string(),
            None => error.to_string(),
        },
    };
    if answers.wrong.len() < EXAMPLES {
        answers.wrong.push(wrong);
    }
}

/// Says what is wrong with the answer, if anything is.
async fn ask(
    client: &Client,
    question: &Question,
) -> Result<Option<String>, tokio_postgres::Error> {
    client
        .batch_execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
             SET LOCAL max_parallel_workers_per_gather = 0",
        )
        .await?;
    match question {
        Question::Nothing(query) => {
            let rows = client.query(*query, &[]).await?;
            Ok(rows.first().map(|row| row.get(0)))
        }
        Question::EveryWay(query) => {
            let mut seen: Vec<String> = Vec::new();
            for way in WAYS {
                client.batch_execute(way).await?;
                seen.push(client.query_one(*query, &[]).await?.get(0));
            }
            let agree = seen.windows(2).all(|two| two[0] == two[1]);
            Ok((!agree)
                .then(|| format!("by table, by index, by index alone: {}", seen.join(" | "))))
        }
    }
}

/// True if a query failed for a reason that a healthy standby, or one that is killed, has: it gave
/// way to redo, was told to end, or lost its connection.
fn gave_way(error: &tokio_postgres::Error) -> bool {
    let class = error.code().map(|code| code.code().get(..2));
    error.is_closed() || matches!(class, None | Some(Some("40" | "57" | "08")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_answers_are_kept_and_right_ones_counted() {
        let mut answers = Answers::default();
        note(&mut answers, Ok(None));
        (0..9).for_each(|_| note(&mut answers, Ok(Some("5 | 4 | 5".into()))));
        assert_eq!(answers.right, 1);
        assert_eq!(answers.wrong.len(), 5);
    }
}
