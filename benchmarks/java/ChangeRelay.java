import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Properties;

/** Prints the events of Debezium as lines, and confirms a batch when a line comes back. Arguments: a properties file. */
public final class ChangeRelay {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            properties.load(file);
        }
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> relay = (records, committer) -> {
            for (ChangeEvent<String, String> record : (List<ChangeEvent<String, String>>) records) {
                out.println(record.destination() + "\t" + record.key() + "\t" + record.value());
            }
            out.println("END");
            out.flush();
            try {
                if (in.readLine() == null) {
                    Runtime.getRuntime().halt(3);
                }
            } catch (java.io.IOException error) {
                Runtime.getRuntime().halt(3);
            }
            for (ChangeEvent<String, String> record : records) {
                committer.markProcessed(record);
            }
            committer.markBatchFinished();
        };
        DebeziumEngine.create(Json.class).using(properties).notifying(relay).build().run();
    }
}
