package orbitmq.driver;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByRandom;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** producer.*: start, send in every mode, transactions, request and reply, stop. */
final class Producers {
    private static final int ASYNC_WINDOW = 256;

    private final Driver driver;

    Producers(Driver driver) {
        this.driver = driver;
        driver.op("producer.start", this::start);
        driver.op("producer.stop", this::stop);
        driver.op("producer.send", this::send);
        driver.op("producer.sendMany", this::sendMany);
        driver.op("producer.sendBatch", this::sendBatch);
        driver.op("producer.sendTransaction", this::sendTransaction);
        driver.op("producer.request", this::request);
        driver.op("producer.recall", this::recall);
    }

    private Object start(JSONObject request) throws Exception {
        String group = request.getString("group");
        DefaultMQProducer producer;
        if (request.getBooleanValue("transactional")) {
            TransactionMQProducer transactional = new TransactionMQProducer(group, Options.hook(request));
            transactional.setTransactionListener(new ScriptedListener(driver, request));
            producer = transactional;
        } else if (request.getBooleanValue("trace")) {
            producer = new DefaultMQProducer(
                group, Options.hook(request), true, request.getString("traceTopic"));
        } else {
            producer = new DefaultMQProducer(group, Options.hook(request));
        }
        Options.apply(producer, request);
        producer.start();
        driver.keep(request, producer);
        return Map.of("clientId", producer.buildMQClientId());
    }

    private Object stop(JSONObject request) {
        driver.forget(request, DefaultMQProducer.class).shutdown();
        return null;
    }

    private Object send(JSONObject request) throws Exception {
        DefaultMQProducer producer = driver.client(request, DefaultMQProducer.class);
        Message message = Messages.parse(request.getJSONObject("message"));
        long timeout = timeout(request, producer);
        JSONObject selector = request.getJSONObject("selector");
        JSONObject queue = request.getJSONObject("queue");
        String mode = request.getString("mode");
        if ("async".equals(mode)) {
            Pending pending = new Pending();
            if (selector != null) {
                producer.send(message, selector(selector), selector.get("arg"), pending, timeout);
            } else if (queue != null) {
                producer.send(message, Messages.queue(queue), pending, timeout);
            } else {
                producer.send(message, pending, timeout);
            }
            return Messages.show(pending.await(timeout));
        }
        if ("oneway".equals(mode)) {
            if (selector != null) {
                producer.sendOneway(message, selector(selector), selector.get("arg"));
            } else if (queue != null) {
                producer.sendOneway(message, Messages.queue(queue));
            } else {
                producer.sendOneway(message);
            }
            return null;
        }
        if (selector != null) {
            return Messages.show(producer.send(message, selector(selector), selector.get("arg"), timeout));
        }
        if (queue != null) {
            return Messages.show(producer.send(message, Messages.queue(queue), timeout));
        }
        return Messages.show(producer.send(message, timeout));
    }

    /** Many single sends in one request: one after the other, or with a window of async sends. */
    private Object sendMany(JSONObject request) throws Exception {
        DefaultMQProducer producer = driver.client(request, DefaultMQProducer.class);
        List<Message> messages = Messages.parseAll(request.getJSONArray("messages"));
        JSONObject queue = request.getJSONObject("queue");
        MessageQueue target = queue == null ? null : Messages.queue(queue);
        long timeout = timeout(request, producer);
        List<Object> results = new ArrayList<>(messages.size());
        if (!"async".equals(request.getString("mode"))) {
            for (Message message : messages) {
                results.add(Messages.show(
                    target == null ? producer.send(message, timeout) : producer.send(message, target, timeout)));
            }
            return results;
        }
        Semaphore window = new Semaphore(ASYNC_WINDOW);
        List<Pending> pendings = new ArrayList<>(messages.size());
        for (Message message : messages) {
            window.acquire();
            Pending pending = new Pending();
            pending.future.whenComplete((result, error) -> window.release());
            pendings.add(pending);
            if (target == null) {
                producer.send(message, pending, timeout);
            } else {
                producer.send(message, target, pending, timeout);
            }
        }
        for (Pending pending : pendings) {
            results.add(Messages.show(pending.await(timeout)));
        }
        return results;
    }

    private Object sendBatch(JSONObject request) throws Exception {
        DefaultMQProducer producer = driver.client(request, DefaultMQProducer.class);
        List<Message> messages = Messages.parseAll(request.getJSONArray("messages"));
        JSONObject queue = request.getJSONObject("queue");
        long timeout = timeout(request, producer);
        if ("async".equals(request.getString("mode"))) {
            Pending pending = new Pending();
            if (queue != null) {
                producer.send(messages, Messages.queue(queue), pending, timeout);
            } else {
                producer.send(messages, pending, timeout);
            }
            return Messages.show(pending.await(timeout));
        }
        if (queue != null) {
            return Messages.show(producer.send(messages, Messages.queue(queue), timeout));
        }
        return Messages.show(producer.send(messages, timeout));
    }

    private Object sendTransaction(JSONObject request) throws Exception {
        TransactionMQProducer producer = driver.client(request, TransactionMQProducer.class);
        return Messages.show(producer.sendMessageInTransaction(
            Messages.parse(request.getJSONObject("message")), request));
    }

    private Object request(JSONObject request) throws Exception {
        DefaultMQProducer producer = driver.client(request, DefaultMQProducer.class);
        Message reply = producer.request(
            Messages.parse(request.getJSONObject("message")), timeout(request, producer));
        return reply instanceof MessageExt ? Messages.show((MessageExt) reply) : Messages.show(reply);
    }

    /** Takes back a timer message (clients from 5.3 on). */
    private Object recall(JSONObject request) throws Exception {
        DefaultMQProducer producer = driver.client(request, DefaultMQProducer.class);
        return producer.getClass().getMethod("recallMessage", String.class, String.class)
            .invoke(producer, request.getString("topic"), request.getString("recallHandle"));
    }

    private static long timeout(JSONObject request, DefaultMQProducer producer) {
        return request.containsKey("timeoutMs") ? request.getLongValue("timeoutMs") : producer.getSendMsgTimeout();
    }

    private static MessageQueueSelector selector(JSONObject selector) {
        switch (selector.getString("kind")) {
            case "hash":
                return new SelectMessageQueueByHash();
            case "random":
                return new SelectMessageQueueByRandom();
            case "index":
                return (queues, message, arg) -> queues.get(((Number) arg).intValue() % queues.size());
            default:
                throw new IllegalArgumentException("no selector " + selector.getString("kind"));
        }
    }

    /** A callback that can be waited for. */
    private static final class Pending implements SendCallback {
        final CompletableFuture<SendResult> future = new CompletableFuture<>();

        @Override
        public void onSuccess(SendResult result) {
            future.complete(result);
        }

        @Override
        public void onException(Throwable error) {
            future.completeExceptionally(error);
        }

        SendResult await(long timeoutMs) throws Exception {
            try {
                // The client itself must give up first; the margin only bounds a callback that never comes.
                return future.get(timeoutMs * 4 + 5_000, TimeUnit.MILLISECONDS);
            } catch (java.util.concurrent.ExecutionException failed) {
                Throwable cause = failed.getCause();
                throw cause instanceof Exception ? (Exception) cause : failed;
            }
        }
    }

    /** Answers what the request's script says: the local result first, then one entry a check. */
    private static final class ScriptedListener implements TransactionListener {
        private final Driver driver;
        private final String handle;
        private final JSONArray defaultChecks;
        private final Map<String, JSONArray> scripts = new ConcurrentHashMap<>();
        private final Map<String, Integer> checked = new ConcurrentHashMap<>();

        ScriptedListener(Driver driver, JSONObject request) {
            this.driver = driver;
            this.handle = request.getString("handle");
            this.defaultChecks = request.getJSONArray("checks");
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
            JSONObject request = (JSONObject) arg;
            if (request.getJSONArray("checks") != null) {
                scripts.put(message.getTransactionId(), request.getJSONArray("checks"));
            }
            return state(request.getString("local"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            int attempt = checked.merge(message.getTransactionId(), 1, Integer::sum);
            JSONArray script = scripts.getOrDefault(message.getTransactionId(), defaultChecks);
            String answer = "UNKNOW";
            if (script != null && !script.isEmpty()) {
                answer = script.getString(Math.min(attempt, script.size()) - 1);
            }
            Map<String, Object> event = new LinkedHashMap<>();
            event.put("attempt", attempt);
            event.put("answer", answer);
            event.put("receivedAt", System.currentTimeMillis());
            event.put("message", Messages.show(message));
            driver.wire.emit("check", handle, event);
            return state(answer);
        }

        private static LocalTransactionState state(String name) {
            if ("THROW".equals(name)) {
                throw new IllegalStateException("scripted failure");
            }
            return LocalTransactionState.valueOf(name);
        }
    }
}
