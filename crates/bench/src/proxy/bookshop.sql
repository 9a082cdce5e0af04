-- A bookshop after TPC-W's tables. :books is replaced by the number of books.
CREATE TABLE author (a_id int PRIMARY KEY, a_name text NOT NULL);
CREATE TABLE item (
    i_id int PRIMARY KEY, i_title text NOT NULL, i_a_id int NOT NULL, i_subject int NOT NULL,
    i_pub_date date NOT NULL, i_srp numeric(8,2) NOT NULL, i_stock int NOT NULL, i_desc text NOT NULL,
    i_related int NOT NULL);
CREATE TABLE customer (c_id int PRIMARY KEY, c_uname text NOT NULL, c_discount numeric(4,2) NOT NULL, c_balance numeric(10,2) NOT NULL);
CREATE TABLE cart_line (cl_c_id int, cl_i_id int, cl_qty int NOT NULL, PRIMARY KEY (cl_c_id, cl_i_id));
CREATE TABLE orders (o_id bigserial PRIMARY KEY, o_c_id int NOT NULL, o_date timestamptz NOT NULL, o_total numeric(10,2) NOT NULL);
CREATE TABLE order_line (ol_o_id bigint, ol_i_id int, ol_qty int NOT NULL, PRIMARY KEY (ol_o_id, ol_i_id));

INSERT INTO author SELECT n, 'Author ' || md5(n::text) FROM generate_series(1, :books / 4) n;
INSERT INTO item SELECT n, md5(n::text) || ' of ' || md5((n * 7)::text), 1 + n % (:books / 4), n % 24,
    date '2000-01-01' + n % 9000, 5 + n % 95, 1000000, repeat(md5((n * 3)::text), 8), 1 + (n * 13) % :books
    FROM generate_series(1, :books) n;
INSERT INTO customer SELECT n, 'user' || n, (n % 50) / 100.0, 0 FROM generate_series(1, :books) n;
INSERT INTO orders (o_c_id, o_date, o_total)
    SELECT 1 + n % :books, now() - interval '1 minute' * (:books - n), 20 + n % 80 FROM generate_series(1, :books) n;
INSERT INTO order_line SELECT n, 1 + (n * m * 31) % :books, 1 + m FROM generate_series(1, :books) n, generate_series(1, 3) m
    ON CONFLICT DO NOTHING;

CREATE INDEX item_subject ON item (i_subject, i_pub_date DESC);
CREATE INDEX item_title ON item (i_title text_pattern_ops);
CREATE INDEX item_author ON item (i_a_id);
CREATE INDEX author_name ON author (a_name text_pattern_ops);
CREATE INDEX orders_customer ON orders (o_c_id, o_id DESC);
VACUUM (ANALYZE, FREEZE);
