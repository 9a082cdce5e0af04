// What applications do with pgjdbc, through the proxy. PGHOST and so on say where it is.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.io.StringWriter;
import java.sql.BatchUpdateException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import org.postgresql.copy.CopyManager;
import org.postgresql.core.BaseConnection;

public class Jdbc {
    static final String TABLE = "driver_jdbc";

    static Connection connect() throws SQLException {
        String url = "jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/"
            + System.getenv("PGDATABASE") + "?user=" + System.getenv("PGUSER") + "&prepareThreshold=1&sslmode=disable";
        return DriverManager.getConnection(url);
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static void prepares(Connection connection) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement("SELECT ?::int + 1, ?::text")) {
            for (int number = 0; number < 5; number++) {
                statement.setInt(1, number);
                statement.setString(2, "x".repeat(number));
                ResultSet row = statement.executeQuery();
                check(row.next() && row.getInt(1) == number + 1 && row.getString(2).length() == number, "prepared");
            }
        }
    }

    static long value(Connection connection, String text) throws SQLException {
        try (Statement statement = connection.createStatement(); ResultSet row = statement.executeQuery(text)) {
            check(row.next(), text);
            return row.getLong(1);
        }
    }

    static void run(Connection connection, String text) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(text);
        }
    }

    static void batches(Connection connection) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement("INSERT INTO " + TABLE + " VALUES (?)")) {
            for (int number = 0; number < 500; number++) {
                statement.setLong(1, number);
                statement.addBatch();
            }
            check(statement.executeBatch().length == 500, "a batch");
            for (int number = 0; number < 3; number++) {
                statement.setLong(1, number == 1 ? 7 : 1000 + number);
                statement.addBatch();
            }
            try {
                statement.executeBatch();
                throw new AssertionError("a duplicate was inserted");
            } catch (BatchUpdateException expected) {
                check(expected.getNextException().getSQLState().equals("23505"), expected.toString());
            }
        }
        check(value(connection, "SELECT count(*) FROM " + TABLE) == 500, "a batch is all or nothing");
        run(connection, "TRUNCATE " + TABLE);
    }

    static void copies(Connection connection) throws Exception {
        CopyManager copy = new CopyManager(connection.unwrap(BaseConnection.class));
        StringBuilder rows = new StringBuilder();
        for (int number = 0; number < 1000; number++) rows.append(number).append('\n');
        copy.copyIn("COPY " + TABLE + " FROM STDIN", new StringReader(rows.toString()));
        StringWriter out = new StringWriter();
        check(copy.copyOut("COPY " + TABLE + " TO STDOUT", out) == 1000, "copied out");
        run(connection, "TRUNCATE " + TABLE);
    }

    static void cancels(Connection connection) throws Exception {
        try (Statement statement = connection.createStatement()) {
            Thread canceller = new Thread(() -> {
                try {
                    Thread.sleep(300);
                    statement.cancel();
                } catch (Exception error) {
                    throw new RuntimeException(error);
                }
            });
            canceller.start();
            try {
                statement.execute("SELECT pg_sleep(60)");
                throw new AssertionError("it was not cancelled");
            } catch (SQLException cancelled) {
                check(cancelled.getSQLState().equals("57014"), cancelled.toString());
            }
            canceller.join();
        }
    }

    /** Rows that are fetched in portions: portals stay open between two round trips. */
    static void fetches(Connection connection) throws SQLException {
        connection.setAutoCommit(false);
        try (Statement statement = connection.createStatement()) {
            statement.setFetchSize(100);
            ResultSet rows = statement.executeQuery("SELECT n FROM generate_series(1, 1000) n");
            long sum = 0;
            while (rows.next()) sum += rows.getLong(1);
            check(sum == 500500, "fetched in portions");
        }
        connection.commit();
        connection.setAutoCommit(true);
    }

    /** What one session has written another one reads, wherever it reads it. */
    static void handsOver(Connection connection) throws SQLException {
        try (Connection other = connect();
                PreparedStatement version = connection.prepareStatement("SHOW understudy.version")) {
            run(other, "SET understudy.read = 'any'");
            for (int number = 0; number < 5; number++) {
                run(connection, "INSERT INTO " + TABLE + " VALUES (" + number + ")");
                ResultSet row = version.executeQuery();
                check(row.next(), "a version");
                run(other, "SET understudy.min_version = '" + row.getString(1) + "'");
                check(value(other, "SELECT count(*) FROM " + TABLE) == number + 1, "what was written is read");
            }
        }
        run(connection, "TRUNCATE " + TABLE);
    }

    static void pools() throws Exception {
        List<Thread> threads = new ArrayList<>();
        List<Throwable> failed = new ArrayList<>();
        for (int thread = 0; thread < 4; thread++) {
            int first = thread * 100;
            threads.add(new Thread(() -> {
                try {
                    for (int number = 0; number < 20; number++) {
                        try (Connection connection = connect()) {
                            run(connection, "INSERT INTO " + TABLE + " VALUES (" + (first + number) + ")");
                        }
                    }
                } catch (Throwable error) {
                    synchronized (failed) { failed.add(error); }
                }
            }));
        }
        for (Thread thread : threads) thread.start();
        for (Thread thread : threads) thread.join();
        check(failed.isEmpty(), failed.toString());
    }

    static void survives(Connection idle, Connection busy) throws Exception {
        run(idle, "SET work_mem = '7MB'");
        prepares(idle);
        busy.setAutoCommit(false);
        run(busy, "INSERT INTO " + TABLE + " VALUES (1001)");
        System.out.println("ready");
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        run(busy, "INSERT INTO " + TABLE + " VALUES (1002)");
        busy.commit();
        prepares(idle);
        check(value(idle, "SELECT setting::int FROM pg_settings WHERE name = 'work_mem'") == 7168, "work_mem");
        check(value(idle, "SELECT count(*) FROM " + TABLE) == 82, "all rows");
    }

    public static void main(String[] arguments) throws Exception {
        Connection first = connect(), second = connect();
        run(first, "CREATE TABLE " + TABLE + " (a bigint PRIMARY KEY)");
        prepares(first);
        batches(first);
        copies(first);
        cancels(first);
        fetches(first);
        handsOver(first);
        pools();
        survives(first, second);
        System.out.println("done");
    }
}
