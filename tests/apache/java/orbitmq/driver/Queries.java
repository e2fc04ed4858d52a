package orbitmq.driver;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.Method;
import java.util.Map;
import org.apache.rocketmq.client.MQAdmin;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** query.* on any started client, and admin.*: the admin client, every method by its name. */
final class Queries {
    private final Driver driver;

    Queries(Driver driver) {
        this.driver = driver;
        driver.op("query.byKey", this::byKey);
        driver.op("query.byId", request -> Messages.show(
            any(request).viewMessage(request.getString("topic"), request.getString("msgId"))));
        driver.op("query.maxOffset", request -> any(request).maxOffset(queue(request)));
        driver.op("query.minOffset", request -> any(request).minOffset(queue(request)));
        driver.op("query.searchOffset", request -> any(request).searchOffset(
            queue(request), request.getLongValue("timestamp")));
        driver.op("query.earliestTime", request -> any(request).earliestMsgStoreTime(queue(request)));
        driver.op("query.publishQueues", request -> Messages.showQueues(
            driver.client(request, DefaultMQProducer.class)
                .fetchPublishMessageQueues(request.getString("topic"))));
        driver.op("admin.start", this::startAdmin);
        driver.op("admin.stop", this::stopAdmin);
        driver.op("admin.call", this::call);
    }

    private MQAdmin any(JSONObject request) {
        return driver.client(request, MQAdmin.class);
    }

    private static MessageQueue queue(JSONObject request) {
        return Messages.queue(request.getJSONObject("queue"));
    }

    private Object byKey(JSONObject request) throws Exception {
        QueryResult found = any(request).queryMessage(
            request.getString("topic"), request.getString("key"), request.getIntValue("max"),
            request.getLongValue("begin"), request.getLongValue("end"));
        return Messages.showAll(found.getMessageList());
    }

    private Object startAdmin(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(Options.hook(request), 5_000);
        admin.setInstanceName("driver-" + System.nanoTime());
        Options.apply(admin, request);
        admin.start();
        driver.keep(request, admin);
        return Map.of("clientId", admin.buildMQClientId());
    }

    private Object stopAdmin(JSONObject request) {
        driver.forget(request, DefaultMQAdminExt.class).shutdown();
        return null;
    }

    /** Calls the admin method with that name and number of arguments whose types fit the values. */
    private Object call(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = driver.client(request, DefaultMQAdminExt.class);
        JSONArray values = request.getJSONArray("args");
        RuntimeException misfit = null;
        for (Method method : DefaultMQAdminExt.class.getMethods()) {
            if (!method.getName().equals(request.getString("method"))
                || method.getParameterCount() != values.size()) {
                continue;
            }
            Object[] args = new Object[values.size()];
            try {
                for (int i = 0; i < args.length; i++) {
                    Object value = values.get(i);
                    args[i] = value instanceof JSONObject
                        ? ((JSONObject) value).toJavaObject(method.getParameterTypes()[i])
                        : Options.convert(value, method.getParameterTypes()[i]);
                }
            } catch (RuntimeException wrongOverload) {
                misfit = wrongOverload;
                continue;
            }
            return JSON.toJSON(method.invoke(admin, args));
        }
        throw new IllegalArgumentException(
            "no admin method " + request.getString("method") + " for these arguments", misfit);
    }
}
