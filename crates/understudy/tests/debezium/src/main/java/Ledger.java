import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Arrays;
import java.util.Properties;

/**
 * Prints the changes of the ledger, one a line, for as long as standard input is open. Arguments: a file for the position, and the hosts
 * and ports of the cluster.
 */
public final class Ledger {
    private static final long AGAIN_MS = 200;

    private Ledger() {}

    /** The port of whichever server accepts writes: Debezium takes one host only. */
    private static int port(String[] arguments) throws SQLException {
        String hosts = String.join(",", Arrays.copyOfRange(arguments, 1, arguments.length));
        String url = "jdbc:postgresql://" + hosts + "/postgres?targetServerType=primary&hostRecheckSeconds=0&connectTimeout=3&socketTimeout=5";
        String password = System.getenv().getOrDefault("PGPASSWORD", "");
        try (Connection connection = DriverManager.getConnection(url, "postgres", password);
                ResultSet row = connection.createStatement().executeQuery("SELECT inet_server_port()")) {
            row.next();
            return row.getInt(1);
        }
    }

    private static Properties properties(String position, int port) {
        Properties properties = new Properties();
        properties.setProperty("name", "ledger");
        properties.setProperty("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        properties.setProperty("offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore");
        properties.setProperty("offset.storage.file.filename", position);
        properties.setProperty("offset.flush.interval.ms", "100");
        properties.setProperty("database.hostname", "127.0.0.1");
        properties.setProperty("database.port", Integer.toString(port));
        properties.setProperty("database.user", "postgres");
        properties.setProperty("database.password", System.getenv().getOrDefault("PGPASSWORD", ""));
        properties.setProperty("database.dbname", "postgres");
        properties.setProperty("driver.connectTimeout", "3");
        properties.setProperty("topic.prefix", "ledger");
        properties.setProperty("plugin.name", "pgoutput");
        properties.setProperty("slot.name", "debezium");
        properties.setProperty("publication.name", "debezium");
        properties.setProperty("publication.autocreate.mode", "disabled");
        properties.setProperty("table.include.list", "public.understudy_ledger");
        properties.setProperty("snapshot.mode", "no_data");
        properties.setProperty("converter.schemas.enable", "false");
        properties.setProperty("poll.interval.ms", "50");
        properties.setProperty("slot.max.retries", "0");
        properties.setProperty("errors.max.retries", "0");
        return properties;
    }

    private static synchronized void print(ChangeEvent<String, String> event) {
        System.out.println(event.value());
        System.out.flush();
    }

    public static void main(String[] arguments) throws Exception {
        Thread ends = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    // Nothing is said: it ends when that is closed.
                }
            } catch (java.io.IOException error) {
                // As if it was.
            }
            Runtime.getRuntime().halt(0);
        });
        ends.setDaemon(true);
        ends.start();
        while (true) {
            // An application whose engine has ended looks for the server that accepts writes, and begins another engine.
            try {
                DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
                    .using(properties(arguments[0], port(arguments)))
                    .using((success, message, error) -> System.err.println("ended: " + message))
                    .notifying(Ledger::print)
                    .build();
                engine.run();
            } catch (SQLException error) {
                System.err.println(error.getMessage());
            }
            Thread.sleep(AGAIN_MS);
        }
    }
}
