package orbitmq.driver;

import com.alibaba.fastjson.JSONObject;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.common.MQVersion;

/**
 * The real Java client behind a line protocol: {"id", "op", "handle", ...} in, {"id", "ok", "result"}
 * or {"id", "ok", "error"} out, and {"event", "handle", ...} at any time. Every request runs on a
 * thread of its own, so a waiting request never holds up another.
 */
public final class Driver {
    /** One operation of the protocol. */
    interface Op {
        Object run(JSONObject request) throws Exception;
    }

    final Wire wire;
    private final Map<String, Op> ops = new HashMap<>();
    private final Map<String, Object> clients = new ConcurrentHashMap<>();

    private Driver(Wire wire) {
        this.wire = wire;
    }

    public static void main(String[] args) throws Exception {
        OutputStream out = System.out;
        System.setOut(System.err);
        Driver driver = new Driver(new Wire(System.in, out));
        new Producers(driver);
        new PushConsumers(driver);
        new PullConsumers(driver);
        new LitePullConsumers(driver);
        new Queries(driver);
        driver.op("abandon", driver::abandon);
        driver.serve();
        Runtime.getRuntime().halt(0);
    }

    void op(String name, Op op) {
        ops.put(name, op);
    }

    /** Keeps a started client under its handle. */
    void keep(JSONObject request, Object client) {
        if (clients.putIfAbsent(request.getString("handle"), client) != null) {
            throw new IllegalArgumentException("handle taken: " + request.getString("handle"));
        }
    }

    <T> T client(JSONObject request, Class<T> type) {
        return client(request.getString("handle"), type);
    }

    <T> T client(String handle, Class<T> type) {
        Object client = clients.get(handle);
        if (client == null) {
            throw new IllegalArgumentException("no client with handle " + handle);
        }
        return type.cast(client);
    }

    <T> T forget(JSONObject request, Class<T> type) {
        T client = client(request, type);
        clients.remove(request.getString("handle"));
        return client;
    }

    /** Forgets every client and stops them in the background, their servers may be gone already. */
    private Object abandon(JSONObject request) {
        List<Object> left = new ArrayList<>(clients.values());
        clients.clear();
        for (Object client : left) {
            Thread stopper = new Thread(() -> {
                try {
                    client.getClass().getMethod("shutdown").invoke(client);
                } catch (ReflectiveOperationException failed) {
                    failed.printStackTrace();
                }
            }, "driver-abandon");
            stopper.setDaemon(true);
            stopper.start();
        }
        return left.size();
    }

    private void serve() throws Exception {
        ExecutorService workers = Executors.newCachedThreadPool(work -> {
            Thread thread = new Thread(work, "driver-op");
            thread.setDaemon(true);
            return thread;
        });
        Map<String, Object> hello = new LinkedHashMap<>();
        hello.put("version", MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
        wire.emit("ready", null, hello);
        for (JSONObject request = wire.read(); request != null; request = wire.read()) {
            JSONObject accepted = request;
            workers.execute(() -> run(accepted));
        }
    }

    private void run(JSONObject request) {
        Object id = request.get("id");
        try {
            Op op = ops.get(request.getString("op"));
            if (op == null) {
                throw new IllegalArgumentException("no op " + request.getString("op"));
            }
            wire.answer(id, op.run(request));
        } catch (Throwable error) {
            wire.refuse(id, error);
        }
    }
}
