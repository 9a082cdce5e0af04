"""What applications do with psycopg 2, through the proxy. PGHOST and so on say where it is."""

import io
import sys
import threading

import psycopg2
import psycopg2.errors
import psycopg2.pool

TABLE = "driver_psycopg2"


def value(connection, text, *arguments):
    with connection.cursor() as cursor:
        cursor.execute(text, arguments or None)
        return cursor.fetchone()[0] if cursor.description else None


def copies(connection):
    with connection.cursor() as cursor:
        cursor.copy_expert(f"COPY {TABLE} FROM STDIN", io.StringIO("".join(f"{n}\n" for n in range(1000))))
        out = io.StringIO()
        cursor.copy_expert(f"COPY {TABLE} TO STDOUT", out)
        assert len(out.getvalue().splitlines()) == 1000
        cursor.execute(f"TRUNCATE {TABLE}")
    connection.commit()


def cancels(connection):
    timer = threading.Timer(0.3, connection.cancel)
    timer.start()
    try:
        value(connection, "SELECT pg_sleep(60)")
    except psycopg2.errors.QueryCanceled:
        connection.rollback()
    else:
        raise AssertionError("it was not cancelled")


def cursors(connection):
    """A cursor of the server, which lives as long as the transaction."""
    with connection.cursor(name="many") as cursor:
        cursor.itersize = 100
        cursor.execute("SELECT n FROM generate_series(1, 1000) n")
        assert sum(row[0] for row in cursor) == 500500
    connection.commit()


def pools():
    pool = psycopg2.pool.ThreadedConnectionPool(1, 4, "")

    def work():
        for number in range(20):
            connection = pool.getconn()
            value(connection, f"INSERT INTO {TABLE} VALUES (%s)", number)
            connection.commit()
            pool.putconn(connection)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.closeall()


def survives(idle, busy):
    value(idle, "SET work_mem = '7MB'")
    idle.commit()
    value(busy, f"INSERT INTO {TABLE} VALUES (1)")
    print("ready", flush=True)
    sys.stdin.readline()
    value(busy, f"INSERT INTO {TABLE} VALUES (2)")
    busy.commit()
    assert value(idle, "SHOW work_mem") == "7MB"
    assert value(idle, f"SELECT count(*) FROM {TABLE}") == 82


first, second = psycopg2.connect(""), psycopg2.connect("")
value(first, f"CREATE TABLE {TABLE} (a bigint)")
first.commit()
copies(first)
cancels(first)
cursors(first)
pools()
survives(first, second)
print("done", flush=True)
