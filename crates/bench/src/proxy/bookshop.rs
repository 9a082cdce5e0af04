//! A bookshop as TPC-W has one: its tables, and its visitors' interactions as pgbench scripts.
//!
//! TPC-W's mixes have 5, 20 and 50 interactions in a hundred that change something (browsing, shopping, ordering). Its
//! web pages, images and think times are left out: what is measured is the database.

use std::path::Path;

use anyhow::Context;
use cluster::clients::schema::Server;
use cluster::clients::session;

/// An interaction: its name, its share of all that read or of all that write, and what it says.
type Interaction = (&'static str, u32, &'static str);

/// Nothing is changed by these. Each is one statement, which may run on a standby.
const READS: [Interaction; 6] = [
    (
        "home",
        30,
        "\\set c random(1, :books)\n\\set i random(1, :books)\n\
         SELECT c_uname, c_discount, related.i_id, related.i_title, related.i_srp \
         FROM customer, item JOIN item related ON related.i_id IN (item.i_related, item.i_id) \
         WHERE c_id = :c AND item.i_id BETWEEN :i AND :i + 4;\n",
    ),
    (
        "product",
        22,
        "\\set i random(1, :books)\n\
         SELECT i.*, a_name FROM item i JOIN author ON a_id = i_a_id WHERE i_id = :i;\n",
    ),
    (
        "new",
        11,
        "\\set s random(0, 23)\n\
         SELECT i_id, i_title, a_name FROM item JOIN author ON a_id = i_a_id WHERE i_subject = :s \
         ORDER BY i_pub_date DESC, i_title LIMIT 50;\n",
    ),
    (
        "best",
        11,
        "\\set s random(0, 23)\n\
         SELECT i_id, i_title, a_name, sum(ol_qty) AS sold FROM order_line JOIN item ON i_id = ol_i_id \
         JOIN author ON a_id = i_a_id WHERE ol_o_id > (SELECT max(o_id) - 1000 FROM orders) AND i_subject = :s \
         GROUP BY i_id, i_title, a_name ORDER BY sold DESC LIMIT 50;\n",
    ),
    (
        "search",
        23,
        "\\set n random(16, 255)\n\
         SELECT i_id, i_title, a_name FROM item JOIN author ON a_id = i_a_id WHERE i_title LIKE to_hex(:n::int) || '%' \
         ORDER BY i_title LIMIT 50;\n",
    ),
    (
        "order",
        3,
        "\\set c random(1, :books)\n\
         SELECT o_id, o_date, o_total, i_title, ol_qty FROM orders JOIN order_line ON ol_o_id = o_id \
         JOIN item ON i_id = ol_i_id WHERE o_c_id = :c ORDER BY o_id DESC LIMIT 20;\n",
    ),
];

/// These change something.
const WRITES: [Interaction; 3] = [
    (
        "cart",
        60,
        "\\set c random(1, :books)\n\\set i random(1, :books)\n\
         INSERT INTO cart_line VALUES (:c, :i, 1) \
         ON CONFLICT (cl_c_id, cl_i_id) DO UPDATE SET cl_qty = cart_line.cl_qty + 1;\n",
    ),
    (
        "buy",
        37,
        "\\set c random(1, :books)\n\\set i random(1, :books)\n\\set j random(1, :books)\n\\set total random(10, 200)\n\
         BEGIN;\n\
         INSERT INTO orders (o_c_id, o_date, o_total) VALUES (:c, now(), :total) RETURNING o_id \\gset\n\
         INSERT INTO order_line VALUES (:o_id, :i, 1), (:o_id, :j, 2) ON CONFLICT DO NOTHING;\n\
         UPDATE item SET i_stock = i_stock - 1 WHERE i_id = :i;\n\
         UPDATE customer SET c_balance = c_balance + :total WHERE c_id = :c;\n\
         DELETE FROM cart_line WHERE cl_c_id = :c;\n\
         COMMIT;\n",
    ),
    (
        "price",
        3,
        "\\set i random(1, :books)\n\\set p random(5, 100)\n\
         UPDATE item SET i_srp = :p WHERE i_id = :i;\n",
    ),
];

/// Makes the tables on an active, with so many books, and as many customers and orders.
pub(super) async fn create(server: &Server, books: u32) -> anyhow::Result<()> {
    let client = session::connect(&server.config()).await?;
    let text = include_str!("bookshop.sql").replace(":books", &books.to_string());
    for statement in text.split(";\n") {
        client
            .batch_execute(statement)
            .await
            .with_context(|| format!("the bookshop cannot be made: {statement}"))?;
    }
    Ok(())
}

/// Writes the scripts to a directory; pgbench's arguments for a mix with so many updates in a hundred interactions.
pub(super) fn arguments(dir: &Path, books: u32, updates: u32) -> anyhow::Result<Vec<String>> {
    let mut arguments = vec![format!("--define=books={books}")];
    let kinds = [
        (READS.as_slice(), 100 - updates),
        (WRITES.as_slice(), updates),
    ];
    for (interactions, share) in kinds {
        for (name, weight, text) in interactions.iter().filter(|_| share > 0) {
            let path = dir.join(format!("{name}.sql"));
            std::fs::write(&path, text).context("cannot write a script")?;
            arguments.push(format!("--file={}@{}", path.display(), weight * share));
        }
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_each_kind_are_whole_and_a_mix_has_so_many_updates() {
        let sum = |all: &[Interaction]| all.iter().map(|(_, weight, _)| weight).sum::<u32>();
        assert_eq!((sum(&READS), sum(&WRITES)), (100, 100));
        let dir = tempfile::tempdir().expect("a directory");
        let arguments = arguments(dir.path(), 100, 5).expect("scripts");
        let weight = |name: &str| {
            let ends = format!("{name}.sql@");
            let found = arguments.iter().find_map(|one| one.split_once(&ends));
            found
                .expect("it is there")
                .1
                .parse::<u32>()
                .expect("a number")
        };
        assert_eq!((weight("home"), weight("cart")), (30 * 95, 60 * 5));
    }
}
