package orbitmq.driver;

import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.security.Permission;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * mqadmin without a new JVM a command: {"id", "args": [...]} in, {"exit", "stdout", "stderr"} out.
 * Commands run one after the other, because they print to the process's standard output.
 */
public final class AdminShell {
    private AdminShell() {
    }

    public static void main(String[] args) throws Exception {
        OutputStream out = System.out;
        System.setOut(System.err);
        refuseExit();
        shortenShutdowns(Thread.currentThread());
        Wire wire = new Wire(System.in, out);
        wire.emit("ready", null, Map.of());
        for (JSONObject request = wire.read(); request != null; request = wire.read()) {
            String[] command = request.getJSONArray("args").toArray(new String[0]);
            wire.answer(request.get("id"), run(command));
        }
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> run(String[] command) throws Exception {
        ByteArrayOutputStream stdout = new ByteArrayOutputStream();
        ByteArrayOutputStream stderr = new ByteArrayOutputStream();
        PrintStream realOut = System.out;
        PrintStream realErr = System.err;
        int exit = 0;
        forgetCommands();
        System.clearProperty("rocketmq.namesrv.addr");
        System.setOut(new PrintStream(stdout, true, "UTF-8"));
        System.setErr(new PrintStream(stderr, true, "UTF-8"));
        try {
            MQAdminStartup.main0(command, null);
        } catch (ExitRefused exited) {
            exit = exited.status;
        } catch (Throwable failed) {
            failed.printStackTrace();
            exit = 1;
        } finally {
            System.out.flush();
            System.err.flush();
            System.setOut(realOut);
            System.setErr(realErr);
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("exit", exit);
        result.put("stdout", stdout.toString("UTF-8"));
        result.put("stderr", stderr.toString("UTF-8"));
        return result;
    }

    /** Every call of main0 adds all commands to a static list again; start each one from an empty list. */
    private static void forgetCommands() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    /** Turns System.exit of a command into an exception; needs -Djava.security.manager=allow. */
    @SuppressWarnings("removal")
    private static void refuseExit() {
        System.setSecurityManager(new SecurityManager() {
            @Override
            public void checkExit(int status) {
                throw new ExitRefused(status);
            }

            @Override
            public void checkPermission(Permission permission) {
                // Everything but an exit is allowed.
            }
        });
    }

    /**
     * A 5.x client joins its event thread at shutdown, and that thread looks up every 3 s only. When a command
     * has done its work and waits there, wake the event thread.
     */
    private static void shortenShutdowns(Thread commands) {
        Thread waker = new Thread(() -> {
            while (true) {
                try {
                    Thread.sleep(10);
                } catch (InterruptedException never) {
                    return;
                }
                for (StackTraceElement frame : commands.getStackTrace()) {
                    if (frame.getClassName().endsWith(".ServiceThread") && frame.getMethodName().equals("shutdown")) {
                        Thread.getAllStackTraces().keySet().stream()
                            .filter(thread -> thread.getName().contains("NettyEventExecutor"))
                            .forEach(Thread::interrupt);
                        break;
                    }
                }
            }
        }, "shutdown-waker");
        waker.setDaemon(true);
        waker.start();
    }

    /** An Error, because main0 catches every Exception. */
    private static final class ExitRefused extends Error {
        private static final long serialVersionUID = 1L;
        final int status;

        ExitRefused(int status) {
            super("exit " + status);
            this.status = status;
        }
    }
}
