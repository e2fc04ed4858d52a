package orbitmq.driver;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.common.message.MessageQueue;

/** lite.*: the lite pull consumer, by subscription or by assignment. */
final class LitePullConsumers {
    private final Driver driver;

    LitePullConsumers(Driver driver) {
        this.driver = driver;
        driver.op("lite.start", this::start);
        driver.op("lite.stop", this::stop);
        driver.op("lite.poll", request -> Messages.showAll(consumer(request).poll(request.getLongValue("timeoutMs"))));
        driver.op("lite.queues", request -> Messages.showQueues(
            consumer(request).fetchMessageQueues(request.getString("topic"))));
        driver.op("lite.assignment", request -> Messages.showQueues(consumer(request).assignment()));
        driver.op("lite.assign", this::assign);
        driver.op("lite.seek", this::seek);
        driver.op("lite.pause", this::pause);
        driver.op("lite.resume", this::resume);
        driver.op("lite.commit", this::commit);
        driver.op("lite.committed", request -> consumer(request).committed(queue(request)));
        driver.op("lite.offsetForTime", request -> consumer(request).offsetForTimestamp(
            queue(request), request.getLong("timestamp")));
    }

    private DefaultLitePullConsumer consumer(JSONObject request) {
        return driver.client(request, DefaultLitePullConsumer.class);
    }

    private static MessageQueue queue(JSONObject request) {
        return Messages.queue(request.getJSONObject("queue"));
    }

    private Object start(JSONObject request) throws Exception {
        DefaultLitePullConsumer consumer =
            new DefaultLitePullConsumer(request.getString("group"), Options.hook(request));
        consumer.setAllocateMessageQueueStrategy(PushConsumers.strategy(request));
        Options.apply(consumer, request);
        JSONArray subscriptions = request.getJSONArray("subscriptions");
        for (int i = 0; i < subscriptions.size(); i++) {
            JSONObject subscription = subscriptions.getJSONObject(i);
            String topic = subscription.getString("topic");
            String expression = subscription.getString("expression");
            if ("SQL92".equals(subscription.getString("type"))) {
                consumer.subscribe(topic, MessageSelector.bySql(expression));
            } else {
                consumer.subscribe(topic, expression);
            }
        }
        consumer.start();
        driver.keep(request, consumer);
        return Map.of("clientId", consumer.buildMQClientId());
    }

    private Object stop(JSONObject request) {
        driver.forget(request, DefaultLitePullConsumer.class).shutdown();
        return null;
    }

    private Object assign(JSONObject request) {
        consumer(request).assign(Messages.queues(request.getJSONArray("queues")));
        return null;
    }

    private Object seek(JSONObject request) throws Exception {
        DefaultLitePullConsumer consumer = consumer(request);
        Object offset = request.get("offset");
        if ("begin".equals(offset)) {
            consumer.seekToBegin(queue(request));
        } else if ("end".equals(offset)) {
            consumer.seekToEnd(queue(request));
        } else {
            consumer.seek(queue(request), request.getLongValue("offset"));
        }
        return null;
    }

    private Object pause(JSONObject request) {
        consumer(request).pause(Messages.queues(request.getJSONArray("queues")));
        return null;
    }

    private Object resume(JSONObject request) {
        consumer(request).resume(Messages.queues(request.getJSONArray("queues")));
        return null;
    }

    /** Commits what was polled, or given offsets, and writes them to the broker at once. */
    private Object commit(JSONObject request) {
        DefaultLitePullConsumer consumer = consumer(request);
        JSONArray rows = request.getJSONArray("offsets");
        if (rows == null) {
            consumer.commitSync();
            return null;
        }
        Map<MessageQueue, Long> offsets = new HashMap<>();
        for (int i = 0; i < rows.size(); i++) {
            offsets.put(Messages.queue(rows.getJSONObject(i)), rows.getJSONObject(i).getLong("offset"));
        }
        consumer.commitSync(offsets, true);
        return null;
    }
}
