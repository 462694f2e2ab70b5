// Writes a refund for each order that pg_expiry has cancelled: java -cp postgresql.jar Refunds.java JDBC_URL
import java.sql.*;
import org.postgresql.PGConnection;

class Refunds {
    static final long FIRST_PAUSE_MS = 100;
    static long pauseMs = FIRST_PAUSE_MS;

    public static void main(String[] arguments) throws InterruptedException {
        while (true) {
            try {
                session(arguments[0]);
            } catch (SQLException error) {
                System.err.println("refunds: " + error.getMessage() + "; again in " + pauseMs + " ms");
            }
            Thread.sleep(pauseMs);
            pauseMs = Math.min(pauseMs * 2, 10_000);
        }
    }

    static void session(String url) throws SQLException {
        try (Connection db = DriverManager.getConnection(url)) {
            try (Statement statement = db.createStatement()) {
                statement.execute("LISTEN order_expired"); // first: what is cancelled from here on wakes us
            }
            db.setAutoCommit(false);
            while (true) {
                while (catchUp(db)) {}
                pauseMs = FIRST_PAUSE_MS;
                // A notification (one event, many, or a resync) says that there is news; events_after() says
                // what. After 30 s we look anyway.
                db.unwrap(PGConnection.class).getNotifications(30_000);
            }
        }
    }

    /** Deals with the next events, in one transaction with the place in the stream. False: there are none. */
    static boolean catchUp(Connection db) throws SQLException {
        long newest = -1;
        try (Statement statement = db.createStatement();
             PreparedStatement read = db.prepareStatement("SELECT id, kind, key FROM expiry.events_after(?, 100)");
             PreparedStatement write = db.prepareStatement(
                 "INSERT INTO refund (event_id, order_key) VALUES (?, ?::jsonb) ON CONFLICT DO NOTHING");
             PreparedStatement move = db.prepareStatement("UPDATE refund_place SET last_id = ?")) {
            ResultSet place = statement.executeQuery("SELECT last_id FROM refund_place FOR UPDATE");
            place.next();
            read.setLong(1, place.getLong(1));
            ResultSet events = read.executeQuery();
            while (events.next()) {
                newest = events.getLong("id");
                if (events.getString("kind").equals("cancelled")) {
                    write.setLong(1, newest);
                    write.setString(2, events.getString("key"));
                    write.executeUpdate();
                }
            }
            if (newest >= 0) {
                move.setLong(1, newest);
                move.executeUpdate();
            }
        }
        db.commit();
        return newest >= 0;
    }
}
