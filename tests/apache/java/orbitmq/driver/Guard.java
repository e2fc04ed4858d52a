package orbitmq.driver;

import java.io.IOException;
import java.io.InputStream;
import java.util.Arrays;

/**
 * Runs another class's main and ends the process when standard input closes, so that no server
 * outlives the test run that started it.
 */
public final class Guard {
    private Guard() {
    }

    public static void main(String[] args) throws Exception {
        watch(System.in);
        Class.forName(args[0])
            .getMethod("main", String[].class)
            .invoke(null, (Object) Arrays.copyOfRange(args, 1, args.length));
    }

    private static void watch(InputStream in) {
        Thread watcher = new Thread(() -> {
            try {
                while (in.read() >= 0) {
                    continue;
                }
            } catch (IOException gone) {
                // The same as an end of input.
            }
            Runtime.getRuntime().halt(137);
        }, "stdin-guard");
        watcher.setDaemon(true);
        watcher.start();
    }
}
