package orbitmq.driver;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** push.*: a push consumer whose listener follows a script and reports every message. */
final class PushConsumers {
    private final Driver driver;
    private final Map<String, Script> scripts = new ConcurrentHashMap<>();

    PushConsumers(Driver driver) {
        this.driver = driver;
        driver.op("push.start", this::start);
        driver.op("push.stop", this::stop);
        driver.op("push.queues", request -> Messages.showQueues(consumer(request).getDefaultMQPushConsumerImpl()
            .getRebalanceImpl().getProcessQueueTable().keySet()));
        driver.op("push.offsets", this::offsets);
        driver.op("push.persist", this::persist);
        driver.op("push.rebalance", this::rebalance);
        driver.op("push.suspend", this::suspend);
        driver.op("push.resume", this::resume);
        driver.op("push.subscribe", this::subscribe);
        driver.op("push.unsubscribe", this::unsubscribe);
        driver.op("push.count", request -> scripts.get(request.getString("handle")).count.get());
    }

    private DefaultMQPushConsumer consumer(JSONObject request) {
        return driver.client(request, DefaultMQPushConsumer.class);
    }

    private Object start(JSONObject request) throws Exception {
        AllocateMessageQueueStrategy strategy = strategy(request);
        String group = request.getString("group");
        DefaultMQPushConsumer consumer = request.getBooleanValue("trace")
            ? new DefaultMQPushConsumer(
                group, Options.hook(request), strategy, true, request.getString("traceTopic"))
            : new DefaultMQPushConsumer(group, Options.hook(request), strategy);
        Options.apply(consumer, request);
        JSONArray subscriptions = request.getJSONArray("subscriptions");
        for (int i = 0; i < subscriptions.size(); i++) {
            subscribe(consumer, subscriptions.getJSONObject(i));
        }
        Script script = new Script(driver, request);
        if (request.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) script::consumeOrderly);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) script::consumeConcurrently);
        }
        scripts.put(script.handle, script);
        driver.keep(request, consumer);
        try {
            consumer.start();
        } catch (Exception refused) {
            driver.forget(request, DefaultMQPushConsumer.class).shutdown();
            throw refused;
        }
        return Map.of("clientId", consumer.buildMQClientId());
    }

    private Object stop(JSONObject request) {
        driver.forget(request, DefaultMQPushConsumer.class).shutdown();
        return scripts.remove(request.getString("handle")).count.get();
    }

    /** Committed offsets as this consumer knows them, queue by queue. */
    private Object offsets(JSONObject request) {
        List<Object> rows = new ArrayList<>();
        Map<MessageQueue, Long> table = consumer(request).getDefaultMQPushConsumerImpl()
            .getOffsetStore().cloneOffsetTable(request.getString("topic"));
        table.forEach((queue, offset) -> {
            Map<String, Object> row = Messages.show(queue);
            row.put("offset", offset);
            rows.add(row);
        });
        return rows;
    }

    private Object persist(JSONObject request) {
        consumer(request).getDefaultMQPushConsumerImpl().persistConsumerOffset();
        return null;
    }

    private Object rebalance(JSONObject request) {
        consumer(request).getDefaultMQPushConsumerImpl().getmQClientFactory().rebalanceImmediately();
        return null;
    }

    private Object suspend(JSONObject request) {
        consumer(request).suspend();
        return null;
    }

    private Object resume(JSONObject request) {
        consumer(request).resume();
        return null;
    }

    private Object subscribe(JSONObject request) throws Exception {
        subscribe(consumer(request), request);
        return null;
    }

    private Object unsubscribe(JSONObject request) {
        consumer(request).unsubscribe(request.getString("topic"));
        return null;
    }

    private static void subscribe(DefaultMQPushConsumer consumer, JSONObject subscription) throws Exception {
        String topic = subscription.getString("topic");
        String expression = subscription.getString("expression");
        if ("SQL92".equals(subscription.getString("type"))) {
            consumer.subscribe(topic, MessageSelector.bySql(expression));
        } else if ("CLASS".equals(subscription.getString("type"))) {
            consumer.subscribe(topic, expression, subscription.getString("source"));
        } else {
            consumer.subscribe(topic, expression);
        }
    }

    static AllocateMessageQueueStrategy strategy(JSONObject request) {
        String name = request.getString("strategy");
        switch (name == null ? "AVG" : name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            case "CONFIG":
                AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
                config.setMessageQueueList(Messages.queues(request.getJSONArray("strategyQueues")));
                return config;
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(new HashSet<>(request.getJSONArray("rooms").toJavaList(String.class)));
                return rooms;
            case "MACHINE_ROOM_NEARBY":
                return new AllocateMachineRoomNearby(
                    new AllocateMessageQueueAveragely(), new RoomsByNumber(request.getIntValue("roomCount")));
            default:
                throw new IllegalArgumentException("no allocation strategy " + name);
        }
    }

    /** Queue i is in room i modulo n; a client is in the room its id names. */
    private static final class RoomsByNumber implements AllocateMachineRoomNearby.MachineRoomResolver {
        private static final Pattern ROOM = Pattern.compile("room\\d+");
        private final int count;

        RoomsByNumber(int count) {
            this.count = count;
        }

        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return "room" + queue.getQueueId() % count;
        }

        @Override
        public String consumerDeployIn(String clientId) {
            Matcher found = ROOM.matcher(clientId);
            return found.find() ? found.group() : "room0";
        }
    }

    /** What the listener does with each message, and the report of it. */
    private static final class Script {
        final String handle;
        final AtomicLong count = new AtomicLong();
        private final Driver driver;
        private final int failTimes;
        private final String failTag;
        private final String failMode;
        private final long sleepMs;
        private final Integer delayLevel;
        private final Integer ackIndex;
        private final Long suspendMs;
        private final String replyHandle;
        private final boolean report;
        private final Map<String, Integer> attempts = new ConcurrentHashMap<>();

        Script(Driver driver, JSONObject request) {
            this.driver = driver;
            this.handle = request.getString("handle");
            JSONObject script = request.getJSONObject("script");
            script = script == null ? new JSONObject() : script;
            failTimes = script.getIntValue("failTimes");
            failTag = script.getString("failTag");
            failMode = script.getString("failMode") == null ? "later" : script.getString("failMode");
            sleepMs = script.getLongValue("sleepMs");
            delayLevel = script.getInteger("delayLevel");
            ackIndex = script.getInteger("ackIndex");
            suspendMs = script.getLong("suspendMs");
            replyHandle = script.getString("replyBy");
            report = script.getBoolean("report") == null || script.getBoolean("report");
        }

        ConsumeConcurrentlyStatus consumeConcurrently(
            List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            if (delayLevel != null) {
                context.setDelayLevelWhenNextConsume(delayLevel);
            }
            if (ackIndex != null) {
                context.setAckIndex(ackIndex);
            }
            if (consume(messages)) {
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            return "null".equals(failMode) ? null : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }

        ConsumeOrderlyStatus consumeOrderly(List<MessageExt> messages, ConsumeOrderlyContext context) {
            if (suspendMs != null) {
                context.setSuspendCurrentQueueTimeMillis(suspendMs);
            }
            if (consume(messages)) {
                return ConsumeOrderlyStatus.SUCCESS;
            }
            return "null".equals(failMode) ? null : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        }

        /** True when the script lets the whole batch succeed. */
        private boolean consume(List<MessageExt> messages) {
            long receivedAt = System.currentTimeMillis();
            boolean success = true;
            List<Map<String, Object>> events = new ArrayList<>(messages.size());
            for (MessageExt message : messages) {
                int attempt = failTimes == 0 ? 1 : attempts.merge(message.getMsgId(), 1, Integer::sum);
                boolean fails = attempt <= failTimes && (failTag == null || failTag.equals(message.getTags()));
                success &= !fails;
                if (report) {
                    Map<String, Object> event = new LinkedHashMap<>();
                    event.put("attempt", attempt);
                    event.put("batch", messages.size());
                    event.put("receivedAt", receivedAt);
                    event.put("thread", Thread.currentThread().getName());
                    event.put("failed", fails);
                    event.put("message", Messages.show(message));
                    events.add(event);
                }
            }
            if (replyHandle != null && success) {
                reply(messages);
            }
            count.addAndGet(messages.size());  // before a test hears of them
            events.forEach(event -> driver.wire.emit("message", handle, event));
            if (sleepMs > 0) {
                try {
                    Thread.sleep(sleepMs);
                } catch (InterruptedException stopped) {
                    Thread.currentThread().interrupt();
                }
            }
            if (!success && "throw".equals(failMode)) {
                throw new IllegalStateException("scripted failure");
            }
            return success;
        }

        private void reply(List<MessageExt> messages) {
            DefaultMQProducer producer = driver.client(replyHandle, DefaultMQProducer.class);
            for (MessageExt message : messages) {
                try {
                    byte[] body = ("reply to " + new String(message.getBody(), "UTF-8")).getBytes("UTF-8");
                    producer.send(MessageUtil.createReplyMessage(message, body), 3_000);
                } catch (Exception failed) {
                    driver.wire.emit("replyFailed", handle, Wire.describe(failed));
                }
            }
        }
    }
}
