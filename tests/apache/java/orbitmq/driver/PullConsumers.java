package orbitmq.driver;

import com.alibaba.fastjson.JSONObject;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** pull.*: the pull consumer of old, where the caller names queue and offset. */
final class PullConsumers {
    private final Driver driver;

    PullConsumers(Driver driver) {
        this.driver = driver;
        driver.op("pull.start", this::start);
        driver.op("pull.stop", this::stop);
        driver.op("pull.queues", request -> Messages.showQueues(
            consumer(request).fetchSubscribeMessageQueues(request.getString("topic"))));
        driver.op("pull.balanced", request -> Messages.showQueues(
            consumer(request).fetchMessageQueuesInBalance(request.getString("topic"))));
        driver.op("pull.pull", this::pull);
        driver.op("pull.fetchOffset", request -> consumer(request).fetchConsumeOffset(
            queue(request), request.getBooleanValue("fromStore")));
        driver.op("pull.updateOffset", this::updateOffset);
        driver.op("pull.sendBack", this::sendBack);
    }

    private DefaultMQPullConsumer consumer(JSONObject request) {
        return driver.client(request, DefaultMQPullConsumer.class);
    }

    private static MessageQueue queue(JSONObject request) {
        return Messages.queue(request.getJSONObject("queue"));
    }

    private Object start(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer =
            new DefaultMQPullConsumer(request.getString("group"), Options.hook(request));
        consumer.setAllocateMessageQueueStrategy(PushConsumers.strategy(request));
        if (request.getJSONArray("topics") != null) {
            consumer.setRegisterTopics(new HashSet<>(request.getJSONArray("topics").toJavaList(String.class)));
        }
        Options.apply(consumer, request);
        consumer.start();
        driver.keep(request, consumer);
        return Map.of("clientId", consumer.buildMQClientId());
    }

    private Object stop(JSONObject request) {
        driver.forget(request, DefaultMQPullConsumer.class).shutdown();
        return null;
    }

    private Object pull(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = consumer(request);
        MessageQueue queue = queue(request);
        String expression = request.getString("expression");
        long offset = request.getLongValue("offset");
        int max = request.getIntValue("max");
        long timeout = request.getLongValue("timeoutMs");
        PullResult result;
        if ("SQL92".equals(request.getString("type"))) {
            result = consumer.pull(queue, MessageSelector.bySql(expression), offset, max, timeout);
        } else if (request.getBooleanValue("block")) {
            result = consumer.pullBlockIfNotFound(queue, expression, offset, max);
        } else {
            result = consumer.pull(queue, expression, offset, max, timeout);
        }
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("status", String.valueOf(result.getPullStatus()));
        json.put("nextOffset", result.getNextBeginOffset());
        json.put("minOffset", result.getMinOffset());
        json.put("maxOffset", result.getMaxOffset());
        json.put("messages", Messages.showAll(result.getMsgFoundList()));
        return json;
    }

    private Object updateOffset(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = consumer(request);
        consumer.updateConsumeOffset(queue(request), request.getLongValue("offset"));
        if (request.getBooleanValue("persist")) {
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore()
                .persistAll(new HashSet<>(Arrays.asList(queue(request))));
        }
        return null;
    }

    /** Pulls one message and hands it back to the broker for a later delivery. */
    private Object sendBack(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = consumer(request);
        PullResult found = consumer.pull(queue(request), "*", request.getLongValue("offset"), 1);
        MessageExt message = found.getMsgFoundList().get(0);
        consumer.sendMessageBack(message, request.getIntValue("delayLevel"), message.getBrokerName());
        return Messages.show(message);
    }
}
