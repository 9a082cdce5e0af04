//! The order entry with a round trip for each statement, as TPC-C's clients usually are written, and RemusDB's were: 26 round trips in a
//! transaction in the middle, 47 in one that places an order. The tables are those of [`crate::soak::orders`].
//!
//! Every transaction locks in the order warehouse, district, customer, stock by item, so that none of them waits in a circle.

use std::collections::BTreeSet;

use cluster::clients::session::connect;
use cluster::clients::work::Work;
use rand::Rng;
use rand::rngs::SmallRng;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, Row, Statement};

use crate::soak::orders::{CUSTOMERS, DISTRICTS, ITEMS};

const LEDGER: &str = "INSERT INTO shop.ledger VALUES ($1, $2)";
const CUSTOMER: &str = "SELECT last, owes FROM shop.customer WHERE w = $1 AND d = $2 AND c = $3";
const TAKE_NUMBER: &str = "UPDATE shop.district SET next_order = next_order + 1 WHERE w = $1 AND d = $2 RETURNING next_order - 1";
const ORDER: &str = "INSERT INTO shop.orders VALUES ($1, $2, $3, $4, NULL, $5, now())";
const NEW_ORDER: &str = "INSERT INTO shop.new_order VALUES ($1, $2, $3)";
const PRICE: &str = "SELECT price FROM shop.item WHERE i = $1";
const STOCK: &str = "SELECT quantity FROM shop.stock WHERE w = $1 AND i = $2 FOR UPDATE";
const TAKE: &str = "UPDATE shop.stock SET lines = lines + 1, quantity = $3 WHERE w = $1 AND i = $2";
const LINE: &str = "INSERT INTO shop.order_line VALUES ($1, $2, $3, $4, $5, 1, $6)";
const PAY_WAREHOUSE: &str = "UPDATE shop.warehouse SET paid = paid + $2 WHERE w = $1";
const PAY_DISTRICT: &str = "UPDATE shop.district SET paid = paid + $3 WHERE w = $1 AND d = $2";
const PAY_CUSTOMER: &str =
    "UPDATE shop.customer SET paid = paid + $4 WHERE w = $1 AND d = $2 AND c = $3";
const PAYMENT: &str = "INSERT INTO shop.payment VALUES ($1, $2, $3, $4, now())";
const DISTRICT: &str = "SELECT next_order FROM shop.district WHERE w = $1 AND d = $2 FOR UPDATE";
const OLDEST: &str = "SELECT o FROM shop.new_order WHERE w = $1 AND d = $2 ORDER BY o LIMIT 1";
const NOT_NEW: &str = "DELETE FROM shop.new_order WHERE w = $1 AND d = $2 AND o = $3";
const GOES_OUT: &str =
    "UPDATE shop.orders SET carrier = 1 WHERE w = $1 AND d = $2 AND o = $3 RETURNING c";
const DELIVERED: &str =
    "UPDATE shop.order_line SET delivered = now() WHERE w = $1 AND d = $2 AND o = $3";
const SUM: &str =
    "SELECT sum(amount)::bigint FROM shop.order_line WHERE w = $1 AND d = $2 AND o = $3";
const OWES: &str = "UPDATE shop.customer SET owes = owes + $4 WHERE w = $1 AND d = $2 AND c = $3";

/// All of them, in the order in which a connection prepares them.
const ALL: [&str; 20] = [
    LEDGER,
    CUSTOMER,
    TAKE_NUMBER,
    ORDER,
    NEW_ORDER,
    PRICE,
    STOCK,
    TAKE,
    LINE,
    PAY_WAREHOUSE,
    PAY_DISTRICT,
    PAY_CUSTOMER,
    PAYMENT,
    DISTRICT,
    OLDEST,
    NOT_NEW,
    GOES_OUT,
    DELIVERED,
    SUM,
    OWES,
];

/// A connection with its statements.
pub(super) struct Statements {
    client: Client,
    prepared: Vec<(&'static str, Statement)>,
}

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

impl Statements {
    fn find(&self, text: &'static str) -> &Statement {
        let found = self.prepared.iter().find(|(known, _)| *known == text);
        &found.expect("all statements are prepared").1
    }

    async fn rows(&self, text: &'static str, with: Parameters<'_>) -> Result<Vec<Row>, Error> {
        self.client.query(self.find(text), with).await
    }

    async fn place(&self, w: i32, d: i32, random: &mut SmallRng) -> Result<(), Error> {
        let c = random.random_range(1..=CUSTOMERS);
        let count = random.random_range(5..=15);
        let items: BTreeSet<i32> = (0..count).map(|_| random.random_range(1..=ITEMS)).collect();
        self.rows(CUSTOMER, &[&w, &d, &c]).await?;
        let number = self.rows(TAKE_NUMBER, &[&w, &d]).await?;
        let o: i32 = number[0].get(0);
        let lines = i32::try_from(items.len()).unwrap_or(i32::MAX);
        self.rows(ORDER, &[&w, &d, &o, &c, &lines]).await?;
        self.rows(NEW_ORDER, &[&w, &d, &o]).await?;
        for (n, i) in (1..).zip(&items) {
            let price: i32 = self.rows(PRICE, &[i]).await?[0].get(0);
            let quantity: i32 = self.rows(STOCK, &[&w, i]).await?[0].get(0);
            let left = if quantity > 10 {
                quantity - 1
            } else {
                quantity + 91
            };
            self.rows(TAKE, &[&w, i, &left]).await?;
            self.rows(LINE, &[&w, &d, &o, &n, i, &i64::from(price)])
                .await?;
        }
        Ok(())
    }

    async fn pay(&self, w: i32, d: i32, random: &mut SmallRng) -> Result<(), Error> {
        let c = random.random_range(1..=CUSTOMERS);
        let amount = random.random_range(100..500_000_i64);
        self.rows(PAY_WAREHOUSE, &[&w, &amount]).await?;
        self.rows(PAY_DISTRICT, &[&w, &d, &amount]).await?;
        self.rows(CUSTOMER, &[&w, &d, &c]).await?;
        self.rows(PAY_CUSTOMER, &[&w, &d, &c, &amount]).await?;
        self.rows(PAYMENT, &[&w, &d, &c, &amount]).await?;
        Ok(())
    }

    async fn deliver(&self, w: i32, d: i32) -> Result<(), Error> {
        self.rows(DISTRICT, &[&w, &d]).await?;
        let oldest = self.rows(OLDEST, &[&w, &d]).await?;
        let Some(oldest) = oldest.first() else {
            return Ok(());
        };
        let o: i32 = oldest.get(0);
        self.rows(NOT_NEW, &[&w, &d, &o]).await?;
        let c: i32 = self.rows(GOES_OUT, &[&w, &d, &o]).await?[0].get(0);
        self.rows(DELIVERED, &[&w, &d, &o]).await?;
        let sum: i64 = self.rows(SUM, &[&w, &d, &o]).await?[0].get(0);
        self.rows(OWES, &[&w, &d, &c, &sum]).await?;
        Ok(())
    }
}

impl Work for Statements {
    async fn open(server: &Config) -> Result<Statements, Error> {
        let client = connect(server).await?;
        let mut prepared = Vec::new();
        for text in ALL {
            prepared.push((text, client.prepare(text).await?));
        }
        Ok(Statements { client, prepared })
    }

    async fn prepare_commit(
        &self,
        client: i32,
        n: i64,
        scale: u32,
        random: &mut SmallRng,
    ) -> Result<(), Error> {
        let warehouses = i32::try_from(scale).unwrap_or(i32::MAX);
        let w = random.random_range(1..=warehouses);
        let d = random.random_range(1..=DISTRICTS);
        let kind = random.random_range(0..100);
        self.client.batch_execute("BEGIN").await?;
        self.rows(LEDGER, &[&client, &n]).await?;
        // TPC-C's shares; who only reads delivers here.
        match kind {
            0..45 => self.place(w, d, random).await,
            45..88 => self.pay(w, d, random).await,
            _ => self.deliver(w, d).await,
        }
    }

    async fn commit(&self) -> Result<(), Error> {
        self.client.batch_execute("COMMIT").await
    }
}
