//! What clients of a MariaDB do in a transaction, and what must hold of it afterwards.

use rand::Rng;
use rand::rngs::SmallRng;

/// What clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A row of the ledger, and money from one account to another.
    Transfers,
    /// A row of the ledger, a large new row, an old one deleted, and the fillers of many accounts: writes that
    /// take many pages each.
    LargeRows,
    /// One account is read.
    Reads,
}

/// So many large rows of a client are kept; with more, the oldest is deleted.
const KEPT: i64 = 12;
/// A large row repeats a hash of 128 characters between so many times.
const REPEATS: std::ops::Range<u32> = 500..6000;
/// Accounts whose fillers one transaction changes.
const FILLED: u32 = 2000;

/// The tables, and accounts with so much money each.
pub(super) fn tables(accounts: u32, money: i64) -> String {
    let mut text = format!(
        "CREATE TABLE ledger (client INT, n BIGINT, filler CHAR(64), PRIMARY KEY (client, n)) ENGINE=InnoDB;\n\
         CREATE TABLE large (client INT, n BIGINT, body LONGBLOB, PRIMARY KEY (client, n)) ENGINE=InnoDB;\n\
         CREATE TABLE accounts (id INT PRIMARY KEY, money BIGINT, filler CHAR(64)) ENGINE=InnoDB;\n\
         INSERT INTO accounts VALUES (1, {money}, 'x');\n"
    );
    // Twice as many each time, which every server that speaks the protocol can.
    let mut made = 1;
    while made < accounts {
        let more = made.min(accounts - made);
        text.push_str(&format!(
            "INSERT INTO accounts SELECT id + {made}, {money}, 'x' FROM accounts WHERE id <= {more};\n"
        ));
        made += more;
    }
    text
}

impl Work {
    /// The statements of transaction `n` before its COMMIT, or one that needs none.
    pub(super) fn statements(
        self,
        client: i32,
        n: i64,
        accounts: u32,
        rng: &mut SmallRng,
    ) -> Vec<String> {
        let ledger = format!("INSERT INTO ledger VALUES ({client}, {n}, 'x')");
        match self {
            Work::Reads => {
                let id = rng.random_range(1..=accounts);
                vec![format!("SELECT money FROM accounts WHERE id = {id}")]
            }
            Work::Transfers => {
                let (mut from, mut to) = (
                    rng.random_range(1..=accounts),
                    rng.random_range(1..=accounts),
                );
                // In one order, so that no two clients wait for each other.
                if from > to {
                    (from, to) = (to, from);
                }
                vec![
                    "BEGIN".to_owned(),
                    ledger,
                    format!("UPDATE accounts SET money = money - 1 WHERE id = {from}"),
                    format!("UPDATE accounts SET money = money + 1 WHERE id = {to}"),
                ]
            }
            Work::LargeRows => {
                let first = rng.random_range(1..=accounts);
                let repeats = rng.random_range(REPEATS);
                vec![
                    "BEGIN".to_owned(),
                    ledger,
                    format!(
                        "INSERT INTO large VALUES ({client}, {n}, REPEAT({}, {repeats}))",
                        hash(&client.to_string(), &n.to_string())
                    ),
                    format!(
                        "DELETE FROM large WHERE client = {client} AND n = {}",
                        n - KEPT
                    ),
                    format!(
                        "UPDATE accounts SET filler = '{client} {n}' WHERE id BETWEEN {first} AND {}",
                        first + FILLED
                    ),
                ]
            }
        }
    }

    /// True if a COMMIT follows.
    pub(super) fn commits(self) -> bool {
        self != Work::Reads
    }
}

/// What a large row repeats.
fn hash(client: &str, n: &str) -> String {
    format!("SHA2(CONCAT({client}, ':', {n}), 512)")
}

/// Counts large rows that are not whole: the content tells whose it has to be.
pub(super) fn damaged_rows() -> String {
    let hash = hash("client", "n");
    format!(
        "SELECT COUNT(*) FROM large WHERE LENGTH(body) % 128 <> 0 OR LENGTH(body) = 0 \
         OR body <> REPEAT({hash}, LENGTH(body) DIV 128)"
    )
}

/// Counts large rows that are there without their transaction, or were deleted without the one that deletes.
/// Clients with numbers from `from` on write them.
pub(super) fn misplaced_rows(from: i32) -> String {
    format!(
        "SELECT (SELECT COUNT(*) FROM large b LEFT JOIN ledger l USING (client, n) WHERE l.n IS NULL) + \
         (SELECT COUNT(*) FROM ledger l LEFT JOIN ledger d ON d.client = l.client AND d.n = l.n + {KEPT} \
         LEFT JOIN large b ON b.client = l.client AND b.n = l.n \
         WHERE l.client >= {from} AND (b.n IS NULL) <> (d.n IS NOT NULL))"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn exactly_the_accounts_wanted_are_made() {
        for accounts in [1, 2, 3, 1000] {
            let text = tables(accounts, 1);
            let more = text.lines().filter_map(|line| {
                let (_, count) = line.rsplit_once("id <= ")?;
                count.trim_end_matches(';').parse::<u32>().ok()
            });
            assert_eq!(1 + more.sum::<u32>(), accounts);
        }
    }

    #[test]
    fn a_transfer_locks_accounts_in_one_order() {
        let mut rng = SmallRng::seed_from_u64(1);
        for n in 0..100 {
            let statements = Work::Transfers.statements(1, n, 50, &mut rng);
            let id = |at: usize| {
                let (_, id) = statements[at].rsplit_once(' ').unwrap();
                id.parse::<u32>().unwrap()
            };
            assert!(id(2) <= id(3));
        }
    }
}
