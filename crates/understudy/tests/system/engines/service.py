"""A service that keeps its rows in an SQLite file, for the tests of hosted servers.

usage: service.py DIRECTORY PORT JOURNAL_MODE

One request a line: "put N" answers "ok" when the row is committed and synced, "has N" yes or no, "count" a number,
"check" what SQLite's own check of the file says.
"""
import fcntl
import mmap
import os
import signal
import socketserver
import sqlite3
import sys

directory, port, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]

# What a server may do with its files besides reading and writing: lock one, and map one into memory.
lock = open(os.path.join(directory, "lock"), "w")
fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
with open(os.path.join(directory, "mapped"), "w+b") as file:
    file.truncate(8192)
    with mmap.mmap(file.fileno(), 8192) as mapped:
        mapped[4096:4100] = b"here"
        mapped.flush()
    os.fsync(file.fileno())
    assert os.pread(file.fileno(), 4, 4096) == b"here"

# And past the kernel's cache.
direct = os.open(os.path.join(directory, "direct"), os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
page = mmap.mmap(-1, 4096)
page.write(b"d" * 4096)
assert os.pwritev(direct, [page], 0) == 4096
os.fsync(direct)
page[:] = bytes(4096)
assert os.preadv(direct, [page], 0) == 4096 and page[:1] == b"d"
os.close(direct)

database = sqlite3.connect(os.path.join(directory, "rows.db"), isolation_level=None)
database.execute(f"PRAGMA journal_mode={mode}")
# With FULL a commit in DELETE mode is a removed file whose directory is not synced: a power failure undoes it.
database.execute("PRAGMA synchronous=" + ("EXTRA" if mode == "DELETE" else "FULL"))
database.execute("CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY, filler TEXT)")


def answer(words):
    if words[0] == "put":
        database.execute("INSERT INTO rows VALUES (?, ?)", (int(words[1]), "x" * 200))
        return "ok"
    if words[0] == "has":
        found = database.execute("SELECT 1 FROM rows WHERE n = ?", (int(words[1]),)).fetchone()
        return "yes" if found else "no"
    if words[0] == "count":
        return str(database.execute("SELECT count(*) FROM rows").fetchone()[0])
    return database.execute("PRAGMA integrity_check").fetchone()[0]


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write((answer(line.decode().split()) + "\n").encode())


class Server(socketserver.TCPServer):
    allow_reuse_address = True


def stop(*_):
    database.close()
    os._exit(0)


signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with Server(("127.0.0.1", port), Handler) as server:
    server.serve_forever()
