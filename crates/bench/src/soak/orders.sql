-- The order entry of TPC-C in small: the same tables, keys and transactions, with counters that make
-- its consistency conditions cheap to check. Amounts are in cents. Every transaction locks in the
-- order warehouse, district, customer, stock by item, so none of them waits in a circle.

CREATE SCHEMA shop;

CREATE TABLE shop.warehouse (w int PRIMARY KEY, paid bigint NOT NULL DEFAULT 0);

CREATE TABLE shop.district (
    w int, d int,
    next_order int NOT NULL DEFAULT 1,
    paid bigint NOT NULL DEFAULT 0,
    purged_orders bigint NOT NULL DEFAULT 0,
    purged_lines bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (w, d));

CREATE TABLE shop.customer (
    w int, d int, c int,
    last text NOT NULL,
    paid bigint NOT NULL DEFAULT 0,
    owes bigint NOT NULL DEFAULT 0,
    note text NOT NULL DEFAULT '',
    PRIMARY KEY (w, d, c));
CREATE INDEX customer_by_name ON shop.customer (w, d, last, c);

CREATE TABLE shop.item (i int PRIMARY KEY, price int NOT NULL, name text NOT NULL);

CREATE TABLE shop.stock (
    w int, i int,
    quantity int NOT NULL DEFAULT 100,
    lines bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (w, i));

CREATE TABLE shop.orders (
    w int, d int, o int, c int NOT NULL,
    carrier int, lines int NOT NULL, entered timestamptz NOT NULL,
    PRIMARY KEY (w, d, o));
CREATE UNIQUE INDEX orders_by_customer ON shop.orders (w, d, c, o);
CREATE INDEX orders_by_time ON shop.orders USING brin (entered);

CREATE TABLE shop.order_line (
    w int, d int, o int, n int, i int NOT NULL,
    quantity int NOT NULL, amount bigint NOT NULL, delivered timestamptz,
    PRIMARY KEY (w, d, o, n));

CREATE TABLE shop.new_order (w int, d int, o int, PRIMARY KEY (w, d, o));

CREATE TABLE shop.payment (w int, d int, c int, amount bigint NOT NULL, at timestamptz NOT NULL);

CREATE TABLE shop.ledger (client int, n bigint, PRIMARY KEY (client, n));

CREATE FUNCTION shop.fill(warehouses int, customers int, items int) RETURNS void LANGUAGE sql AS $$
    INSERT INTO shop.warehouse SELECT generate_series(1, warehouses);
    INSERT INTO shop.district SELECT w, d FROM generate_series(1, warehouses) w, generate_series(1, 10) d;
    INSERT INTO shop.customer (w, d, c, last, note)
        SELECT w, d, c, 'name ' || (c % 97), repeat('n', 100)
        FROM generate_series(1, warehouses) w, generate_series(1, 10) d, generate_series(1, customers) c;
    INSERT INTO shop.item SELECT i, 100 + i % 900, 'item ' || i FROM generate_series(1, items) i;
    INSERT INTO shop.stock SELECT w, i FROM generate_series(1, warehouses) w, generate_series(1, items) i;
$$;

-- A customer orders 5 to 15 things.
CREATE FUNCTION shop.place_order(w_ int, d_ int, c_ int, items int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    o_ int;
    wanted int[];
    lines_ int;
BEGIN
    SELECT array_agg(DISTINCT 1 + floor(random() * items)::int) INTO wanted
        FROM generate_series(1, 5 + floor(random() * 11)::int);
    lines_ := cardinality(wanted);
    UPDATE shop.district SET next_order = next_order + 1 WHERE w = w_ AND d = d_
        RETURNING next_order - 1 INTO o_;
    INSERT INTO shop.orders VALUES (w_, d_, o_, c_, NULL, lines_, now());
    INSERT INTO shop.new_order VALUES (w_, d_, o_);
    PERFORM FROM shop.stock WHERE w = w_ AND i = ANY (wanted) ORDER BY i FOR UPDATE;
    UPDATE shop.stock SET lines = lines + 1,
            quantity = CASE WHEN quantity > 10 THEN quantity - 1 ELSE quantity + 91 END
        WHERE w = w_ AND i = ANY (wanted);
    INSERT INTO shop.order_line
        SELECT w_, d_, o_, row_number() OVER (ORDER BY i), i, 1, price
        FROM shop.item WHERE i = ANY (wanted);
END $$;

CREATE FUNCTION shop.pay(w_ int, d_ int, c_ int, amount_ bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE shop.warehouse SET paid = paid + amount_ WHERE w = w_;
    UPDATE shop.district SET paid = paid + amount_ WHERE w = w_ AND d = d_;
    UPDATE shop.customer SET paid = paid + amount_, note = left(amount_ || ' ' || note, 100)
        WHERE w = w_ AND d = d_ AND c = c_;
    INSERT INTO shop.payment VALUES (w_, d_, c_, amount_, now());
END $$;

-- The oldest open order of a district goes out.
CREATE FUNCTION shop.deliver(w_ int, d_ int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    o_ int;
    c_ int;
    sum_ bigint;
BEGIN
    PERFORM FROM shop.district WHERE w = w_ AND d = d_ FOR UPDATE;
    SELECT o INTO o_ FROM shop.new_order WHERE w = w_ AND d = d_ ORDER BY o LIMIT 1;
    IF o_ IS NULL THEN
        RETURN;
    END IF;
    DELETE FROM shop.new_order WHERE w = w_ AND d = d_ AND o = o_;
    UPDATE shop.orders SET carrier = 1 + o_ % 10 WHERE w = w_ AND d = d_ AND o = o_ RETURNING c INTO c_;
    UPDATE shop.order_line SET delivered = now() WHERE w = w_ AND d = d_ AND o = o_;
    SELECT sum(amount) INTO sum_ FROM shop.order_line WHERE w = w_ AND d = d_ AND o = o_;
    UPDATE shop.customer SET owes = owes + sum_ WHERE w = w_ AND d = d_ AND c = c_;
END $$;

-- What was delivered long ago goes, so that the tables stay at one size.
CREATE FUNCTION shop.purge(w_ int, d_ int, kept int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    below int;
    orders_ bigint;
    lines_ bigint;
BEGIN
    SELECT next_order - kept INTO below FROM shop.district WHERE w = w_ AND d = d_ FOR UPDATE;
    SELECT least(below, min(o)) INTO below FROM shop.new_order WHERE w = w_ AND d = d_;
    DELETE FROM shop.order_line WHERE w = w_ AND d = d_ AND o < below;
    GET DIAGNOSTICS lines_ = ROW_COUNT;
    DELETE FROM shop.orders WHERE w = w_ AND d = d_ AND o < below;
    GET DIAGNOSTICS orders_ = ROW_COUNT;
    UPDATE shop.district SET purged_orders = purged_orders + orders_, purged_lines = purged_lines + lines_
        WHERE w = w_ AND d = d_;
END $$;

-- Every condition that does not hold in this snapshot; no rows if all is well.
CREATE FUNCTION shop.faults() RETURNS TABLE (fault text) LANGUAGE sql STABLE AS $$
    SELECT 'warehouse ' || w || ': paid ' || paid || ', its districts ' || sum
        FROM shop.warehouse JOIN (SELECT w, sum(paid) FROM shop.district GROUP BY w) d USING (w)
        WHERE paid <> sum
    UNION ALL
    SELECT 'payments ' || p || ', warehouses ' || w || ', customers ' || c
        FROM (SELECT coalesce(sum(amount), 0) p FROM shop.payment) a,
             (SELECT sum(paid) w FROM shop.warehouse) b, (SELECT sum(paid) c FROM shop.customer) x
        WHERE p <> w OR p <> c
    UNION ALL
    SELECT 'district ' || w || '/' || d || ': ' || next_order - 1 || ' numbers given, '
            || count || ' orders, ' || purged_orders || ' purged, last ' || max
        FROM shop.district LEFT JOIN
             (SELECT w, d, count(*), max(o) FROM shop.orders GROUP BY w, d) o USING (w, d)
        WHERE next_order - 1 <> coalesce(count, 0) + purged_orders
           OR next_order - 1 <> coalesce(max, purged_orders)
    UNION ALL
    SELECT 'lines: orders say ' || o || ', there are ' || l || ', purged ' || p || ', stock says ' || s
        FROM (SELECT coalesce(sum(lines), 0) o FROM shop.orders) a,
             (SELECT count(*) l FROM shop.order_line) b,
             (SELECT sum(purged_lines) p FROM shop.district) c,
             (SELECT sum(lines) s FROM shop.stock) d
        WHERE o <> l OR l + p <> s
    UNION ALL
    SELECT 'open orders: ' || a || ' without carrier, ' || b || ' listed'
        FROM (SELECT count(*) a FROM shop.orders WHERE carrier IS NULL) x,
             (SELECT count(*) b FROM shop.new_order) y
        WHERE a <> b
$$;
