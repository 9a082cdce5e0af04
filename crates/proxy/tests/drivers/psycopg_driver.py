"""What applications do with psycopg 3, through the proxy. PGHOST and so on say where it is."""

import sys
import threading

import psycopg

TABLE = "driver_psycopg"


def connect():
    return psycopg.connect(autocommit=True, prepare_threshold=1)


def prepares(connection):
    for number in range(5):
        row = connection.execute("SELECT %s::int + 1, %s::text", (number, "x" * number)).fetchone()
        assert row == (number + 1, "x" * number), row
    row = connection.execute("SELECT %b::bigint * 2", (21,), binary=True).fetchone()
    assert row == (42,), row


def copies(connection):
    with connection.cursor() as cursor:
        with cursor.copy(f"COPY {TABLE} FROM STDIN") as copy:
            for number in range(1000):
                copy.write_row((number,))
        with cursor.copy(f"COPY {TABLE} TO STDOUT") as copy:
            assert len(list(copy.rows())) == 1000
    try:
        connection.execute("COPY nothing FROM STDIN")
    except psycopg.errors.UndefinedTable:
        pass
    else:
        raise AssertionError("a table that does not exist was copied to")
    connection.execute(f"TRUNCATE {TABLE}")


def pipelines(connection):
    with connection.pipeline():
        cursors = [connection.execute("SELECT %s::int", (number,)) for number in range(20)]
    assert [cursor.fetchone()[0] for cursor in cursors] == list(range(20))
    try:
        with connection.pipeline():
            connection.execute("SELECT 1")
            connection.execute("SELECT 1/0")
            connection.execute("SELECT 2")
    except psycopg.errors.DivisionByZero:
        pass
    assert connection.execute("SELECT 3").fetchone() == (3,)


def cancels(connection):
    timer = threading.Timer(0.3, connection.cancel)
    timer.start()
    try:
        connection.execute("SELECT pg_sleep(60)")
    except psycopg.errors.QueryCanceled:
        pass
    else:
        raise AssertionError("it was not cancelled")


def hands_over(connection):
    """What one session has written another one reads, wherever it reads it."""
    with connect() as other:
        other.execute("SET understudy.read = 'any'")
        for number in range(5):
            connection.execute(f"INSERT INTO {TABLE} VALUES (%s)", (number,))
            version = connection.execute("SHOW understudy.version").fetchone()[0]
            other.execute(f"SET understudy.min_version = '{version}'")
            count = other.execute(f"SELECT count(*) FROM {TABLE}").fetchone()
            assert count == (number + 1,), (count, version)
            assert other.execute("SHOW understudy.min_version").fetchone() == (version,)
    connection.execute(f"TRUNCATE {TABLE}")


def pools():
    def work():
        for number in range(20):
            with connect() as connection:
                with connection.transaction():
                    connection.execute(f"INSERT INTO {TABLE} VALUES (%s)", (number,))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with connect() as connection:
        assert connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone() == (80,)
        connection.execute(f"TRUNCATE {TABLE}")


def survives():
    idle, busy = connect(), connect()
    idle.execute("SET work_mem = '7MB'")
    prepares(idle)
    with busy.transaction():
        busy.execute(f"INSERT INTO {TABLE} VALUES (%s)", (1,))
        print("ready", flush=True)
        sys.stdin.readline()
        busy.execute(f"INSERT INTO {TABLE} VALUES (%s)", (2,))
    prepares(idle)
    assert idle.execute("SHOW work_mem").fetchone() == ("7MB",)
    assert idle.execute(f"SELECT count(*) FROM {TABLE}").fetchone() == (2,)


with connect() as first:
    first.execute(f"CREATE TABLE {TABLE} (a bigint)")
    prepares(first)
    copies(first)
    pipelines(first)
    cancels(first)
    hands_over(first)
pools()
survives()
print("done", flush=True)
