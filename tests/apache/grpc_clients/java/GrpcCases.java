import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeMap;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.shaded.io.grpc.StatusRuntimeException;

/**
 * Cases of the official Java client 5.x: ENDPOINT PREFIX TLS [case ...]. The same as python_cases.py, with the same names,
 * all at once; prints one JSON object per case.
 */
public final class GrpcCases {
    interface Case {
        Object run() throws Exception;
    }

    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static ClientConfiguration configuration;
    static String prefix;
    /** Messages the case of this thread received again after their acknowledgement. */
    static final ThreadLocal<Integer> REPEATED = ThreadLocal.withInitial(() -> 0);

    public static void main(String[] args) {
        prefix = args[1];
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(args[0])
            .enableSsl(Boolean.parseBoolean(args[2]))
            .setRequestTimeout(Duration.ofSeconds(5));
        String accessKey = System.getenv("CASES_ACCESS_KEY");
        if (accessKey != null && !accessKey.isEmpty()) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(accessKey, System.getenv("CASES_SECRET_KEY")));
        }
        configuration = builder.build();
        Map<String, Case> cases = new java.util.LinkedHashMap<>();
        cases.put("normal", GrpcCases::normal);
        cases.put("filters", GrpcCases::filters);
        cases.put("fifo", GrpcCases::fifo);
        cases.put("delay", GrpcCases::delay);
        cases.put("recall", GrpcCases::recall);
        cases.put("transaction", GrpcCases::transaction);
        cases.put("change_invisible_duration", GrpcCases::changeInvisibleDuration);
        cases.put("push_with_retry", GrpcCases::pushWithRetry);
        cases.put("dead_letters", GrpcCases::deadLetters);
        cases.put("priority", GrpcCases::priority);
        cases.put("late_ack", GrpcCases::lateAck);
        cases.put("refusals", GrpcCases::refusals);
        Set<String> wanted = new HashSet<>(Arrays.asList(args).subList(3, args.length));
        if (wanted.contains("steady")) {
            cases.put("steady", GrpcCases::steady);
        }
        List<Thread> running = new ArrayList<>();
        for (Map.Entry<String, Case> entry : cases.entrySet()) {
            if (wanted.isEmpty() || wanted.contains(entry.getKey())) {
                Thread thread = new Thread(() -> run(entry.getKey(), entry.getValue()));
                thread.start();
                running.add(thread);
            }
        }
        for (Thread thread : running) {
            try {
                thread.join();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    static void run(String name, Case work) {
        long started = System.nanoTime();
        boolean ok = true;
        Object seen;
        try {
            seen = work.run();
        } catch (Throwable error) {
            ok = false;
            StringWriter text = new StringWriter();
            error.printStackTrace(new PrintWriter(text));
            seen = text.toString();
        }
        System.out.printf("{\"case\": \"%s\", \"ok\": %s, \"seen\": \"%s\", \"repeated\": %d, \"seconds\": %.1f}%n",
            name, ok, escaped(String.valueOf(seen)), REPEATED.get(), (System.nanoTime() - started) / 1e9);
        System.out.flush();
    }

    static String escaped(String text) {
        return text.replace("\\", "\\\\").replace("\"", "'").replace("\n", "\\n").replace("\t", " ").replace("\r", "");
    }

    static void check(boolean holds, Object seen) {
        if (!holds) {
            throw new AssertionError(String.valueOf(seen));
        }
    }

    static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(prefix + topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static String body(MessageView view) {
        ByteBuffer buffer = view.getBody();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    static Producer producer(String... topics) throws ClientException {
        String[] names = Arrays.stream(topics).map(topic -> prefix + topic).toArray(String[]::new);
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(names).build();
    }

    static SimpleConsumer simple(String topic, String group, FilterExpression expression) throws ClientException {
        return PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(prefix + group)
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(prefix + topic, expression))
            .build();
    }

    static List<MessageView> receive(String topic, String group, int count, FilterExpression expression)
        throws Exception {
        try (SimpleConsumer consumer = simple(topic, group, expression)) {
            List<MessageView> found = new ArrayList<>();
            long end = System.nanoTime() + 60_000_000_000L;
            while (found.size() < count && System.nanoTime() < end) {
                for (MessageView view : consumer.receive(16, Duration.ofSeconds(30))) {
                    consumer.ack(view);
                    if (found.stream().anyMatch(one -> one.getMessageId().equals(view.getMessageId()))) {
                        REPEATED.set(REPEATED.get() + 1);
                    } else {
                        found.add(view);
                    }
                }
            }
            check(found.size() == count, found);
            return found;
        }
    }

    static List<String> bodies(List<MessageView> views) {
        List<String> bodies = new ArrayList<>();
        for (MessageView view : views) {
            bodies.add(body(view));
        }
        Collections.sort(bodies);
        return bodies;
    }

    /** What a push consumer got; fails the first deliveries of each message. */
    static final class Collector {
        final List<String> got = new CopyOnWriteArrayList<>();
        final PushConsumer consumer;

        Collector(String topic, String group, String tag, int fail) throws ClientException {
            consumer = PROVIDER.newPushConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(prefix + group)
                .setSubscriptionExpressions(Collections.singletonMap(
                    prefix + topic, new FilterExpression(tag, FilterExpressionType.TAG)))
                .setMessageListener(view -> {
                    got.add(body(view) + "#" + view.getDeliveryAttempt());
                    return view.getDeliveryAttempt() <= fail ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                })
                .build();
        }

        void await(int count) throws InterruptedException {
            long end = System.nanoTime() + 60_000_000_000L;
            while (got.size() < count && System.nanoTime() < end) {
                Thread.sleep(20);
            }
            check(got.size() >= count, got);
        }
    }

    static Object normal() throws Exception {
        try (Producer producer = producer("Normal")) {
            SendReceipt sent = producer.send(message("Normal", "n1").setTag("TagA").setKeys("k1", "k2")
                .addProperty("color", "blue").build());
            MessageView view = receive("Normal", "Plain", 1,
                new FilterExpression("TagA", FilterExpressionType.TAG)).get(0);
            check(view.getMessageId().equals(sent.getMessageId()), view);
            check(body(view).equals("n1") && view.getTag().get().equals("TagA"), view);
            check(view.getKeys().size() == 2 && view.getProperties().get("color").equals("blue"), view);
            check(view.getDeliveryAttempt() == 1, view);
            return sent.getMessageId();
        }
    }

    static Object filters() throws Exception {
        try (Producer producer = producer("Normal")) {
            for (int number = 0; number < 6; number++) {
                producer.send(message("Normal", "f" + number).setTag(number % 2 == 0 ? "Even" : "Odd")
                    .addProperty("number", String.valueOf(number)).build());
            }
            List<String> byTag = bodies(receive("Normal", "ByTag", 3,
                new FilterExpression("Even", FilterExpressionType.TAG)));
            check(byTag.equals(Arrays.asList("f0", "f2", "f4")), byTag);
            List<String> bySql = bodies(receive("Normal", "BySql", 3,
                new FilterExpression("number BETWEEN 2 AND 4", FilterExpressionType.SQL92)));
            check(bySql.equals(Arrays.asList("f2", "f3", "f4")), bySql);
            return bySql;
        }
    }

    static Object fifo() throws Exception {
        Collector collector = new Collector("Fifo", "Orderly", "*", 0);
        List<String> expected = new ArrayList<>();
        try (Producer producer = producer("Fifo")) {
            for (int number = 0; number < 8; number++) {
                producer.send(message("Fifo", "o" + number).setMessageGroup("one").build());
                expected.add("o" + number + "#1");
            }
            collector.await(8);
        }
        collector.consumer.close();
        check(collector.got.equals(expected), collector.got);
        return collector.got;
    }

    static Object delay() throws Exception {
        try (Producer producer = producer("Delay")) {
            long due = System.currentTimeMillis() + 4000;
            producer.send(message("Delay", "later").setTag("Later").setDeliveryTimestamp(due).build());
            receive("Delay", "Waiting", 1, new FilterExpression("Later", FilterExpressionType.TAG));
            long late = System.currentTimeMillis() - due;
            check(late >= -1100 && late < 60_000, late);
            return late;
        }
    }

    /** Of two delayed messages the first is recalled: the second alone is delivered. */
    static Object recall() throws Exception {
        try (Producer producer = producer("Delay")) {
            producer.send(message("Delay", "first").setDeliveryTimestamp(System.currentTimeMillis()).build()); // connects
            long now = System.currentTimeMillis();
            SendReceipt sent = producer.send(message("Delay", "never").setTag("Recall")
                .setDeliveryTimestamp(now + 6000).build());
            producer.send(message("Delay", "after").setTag("Recall").setDeliveryTimestamp(now + 8000).build());
            Object recalled = producer.recallMessage(prefix + "Delay", sent.getRecallHandle()).getMessageId();
            check(recalled.equals(sent.getMessageId()), recalled);
            List<String> found = bodies(receive("Delay", "Recalling", 1,
                new FilterExpression("Recall", FilterExpressionType.TAG)));
            check(found.equals(Arrays.asList("after")), found);
            return recalled;
        }
    }

    /** What has the higher priority is delivered first, though sent last. */
    static Object priority() throws Exception {
        try (Producer producer = producer("Priority")) {
            for (int level = 0; level < 2; level++) {
                for (int number = 0; number < 3; number++) {
                    producer.send(message("Priority", "p" + level + number).setPriority(level).build());
                }
            }
            StringBuilder levels = new StringBuilder();
            for (MessageView view : receive("Priority", "Ranked", 6, FilterExpression.SUB_ALL)) {
                levels.append(body(view).charAt(1));
            }
            check(levels.toString().equals("111000"), levels);
            return levels;
        }
    }

    static Object transaction() throws Exception {
        List<String> asked = new CopyOnWriteArrayList<>();
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(prefix + "Trans")
            .setTransactionChecker(view -> {
                asked.add(body(view));
                return body(view).equals("gone") ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
            }).build()) {
            for (String name : Arrays.asList("committed", "gone", "checked")) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message("Trans", name).build(), transaction);
                if (name.equals("committed")) {
                    transaction.commit();
                } else if (name.equals("gone")) {
                    transaction.rollback();
                }
            }
            List<String> found = bodies(receive("Trans", "Transacted", 2, FilterExpression.SUB_ALL));
            check(found.equals(Arrays.asList("checked", "committed")), found);
            check(asked.contains("checked"), asked);
            return asked;
        }
    }

    static Object changeInvisibleDuration() throws Exception {
        try (Producer producer = producer("Normal");
             SimpleConsumer consumer = simple("Normal", "Changing",
                 new FilterExpression("Change", FilterExpressionType.TAG))) {
            consumer.receive(16, Duration.ofSeconds(15));
            producer.send(message("Normal", "twice").setTag("Change").build());
            List<Integer> attempts = new ArrayList<>();
            long end = System.nanoTime() + 60_000_000_000L;
            while (attempts.size() < 2 && System.nanoTime() < end) {
                for (MessageView view : consumer.receive(16, Duration.ofSeconds(30))) {
                    attempts.add(view.getDeliveryAttempt());
                    if (attempts.size() == 1) {
                        consumer.changeInvisibleDuration(view, Duration.ofSeconds(1));
                    } else {
                        consumer.ack(view);
                    }
                }
            }
            check(attempts.equals(Arrays.asList(1, 2)), attempts);
            return attempts;
        }
    }

    static Object pushWithRetry() throws Exception {
        Collector collector = new Collector("Normal", "Retrying", "Retry", 1);
        try (Producer producer = producer("Normal")) {
            for (int number = 0; number < 3; number++) {
                producer.send(message("Normal", "r" + number).setTag("Retry").build());
            }
            collector.await(6);
        }
        collector.consumer.close();
        List<String> got = new ArrayList<>(collector.got);
        Collections.sort(got);
        check(got.equals(Arrays.asList("r0#1", "r0#2", "r1#1", "r1#2", "r2#1", "r2#2")), got);
        return got;
    }

    static Object deadLetters() throws Exception {
        Collector collector = new Collector("Normal", "Short", "Dead", 99);
        try (Producer producer = producer("Normal")) {
            producer.send(message("Normal", "hopeless").setTag("Dead").build());
            collector.await(2);
            Thread.sleep(12_000);
        }
        collector.consumer.close();
        check(collector.got.equals(Arrays.asList("hopeless#1", "hopeless#2")), collector.got);
        return collector.got;
    }

    /** The code of the status, or what the client itself raised. */
    static String refused(Case work) {
        try {
            work.run();
            return "accepted";
        } catch (Throwable error) {
            java.util.regex.Matcher code = java.util.regex.Pattern.compile("response-code=(\\d+)")
                .matcher(String.valueOf(error.getMessage()));
            return code.find() ? code.group(1) : error.getClass().getSimpleName();
        }
    }

    /** An acknowledgement after the invisible time is refused, and the message comes again. */
    static Object lateAck() throws Exception {
        try (Producer producer = producer("Normal");
             SimpleConsumer consumer = simple("Normal", "Late", new FilterExpression("Late", FilterExpressionType.TAG))) {
            consumer.receive(16, Duration.ofSeconds(15));
            producer.send(message("Normal", "late").setTag("Late").build());
            List<Integer> attempts = new ArrayList<>();
            String seen = "";
            long end = System.nanoTime() + 60_000_000_000L;
            while (attempts.size() < 2 && System.nanoTime() < end) {
                for (MessageView view : consumer.receive(16, Duration.ofSeconds(10))) {
                    attempts.add(view.getDeliveryAttempt());
                    if (attempts.size() == 1) {
                        Thread.sleep(10_500);
                        seen = refused(() -> {
                            consumer.ack(view);
                            return null;
                        });
                    } else {
                        consumer.ack(view);
                    }
                }
            }
            check(attempts.equals(Arrays.asList(1, 2)), attempts);
            return "ack: " + seen;
        }
    }

    static Object refusals() throws Exception {
        Map<String, String> seen = new TreeMap<>();
        try (Producer producer = producer("Normal", "Delay", "Fifo");
             SimpleConsumer consumer = simple("Normal", "Refused", FilterExpression.SUB_ALL);
             SimpleConsumer wrongSql = simple("Normal", "RefusedSql",
                 new FilterExpression("number >", FilterExpressionType.SQL92))) {
            long tomorrow = System.currentTimeMillis() + 2 * 86_400_000L;
            String group = String.join("", Collections.nCopies(64, "g"));
            String large = String.join("", Collections.nCopies(4 * 1024 * 1024 + 1, "x"));
            seen.put("unknown topic", refused(() -> producer.send(message("Unknown", "x").build())));
            seen.put("wrong type", refused(() -> producer.send(message("Normal", "x").setMessageGroup("g").build())));
            seen.put("large body", refused(() -> producer.send(message("Normal", large).build())));
            seen.put("reserved property", refused(() -> producer.send(
                message("Normal", "x").addProperty("TAGS", "t").build())));
            seen.put("long message group", refused(() -> producer.send(
                message("Fifo", "x").setMessageGroup(group).build())));
            seen.put("far delivery", refused(() -> producer.send(
                message("Delay", "x").setDeliveryTimestamp(tomorrow).build())));
            seen.put("recall handle", refused(() -> producer.recallMessage(prefix + "Delay", "junk")));
            seen.put("invisible time", refused(() -> consumer.receive(16, Duration.ofSeconds(1))));
            seen.put("sql", refused(() -> wrongSql.receive(16, Duration.ofSeconds(15))));
        }
        StringBuilder text = new StringBuilder();
        seen.forEach((name, code) -> text.append(text.length() == 0 ? "" : "; ").append(name).append(": ").append(code));
        return text;
    }

    /** Sends and receives until there is a file stop, whatever happens to proxies; then receives the rest. Only when named. */
    static Object steady() throws Exception {
        long until = System.nanoTime() + (long) (Double.parseDouble(System.getenv("CASES_SECONDS")) * 1e9);
        Set<String> sent = java.util.concurrent.ConcurrentHashMap.newKeySet();
        Map<String, Integer> got = new TreeMap<>();
        int[] failed = new int[2];
        try (Producer producer = producer("Normal");
             SimpleConsumer consumer = simple("Normal", "Plain", FilterExpression.SUB_ALL)) {
            Thread sending = new Thread(() -> {
                for (int number = 1; System.nanoTime() < until && !new java.io.File("stop").exists(); number++) {
                    try {
                        producer.send(message("Normal", "s" + number).build());
                        sent.add("s" + number);
                        Thread.sleep(10);
                    } catch (ClientException | StatusRuntimeException error) {
                        failed[0]++; // not acknowledged: it may be stored or not
                    } catch (InterruptedException error) {
                        return;
                    }
                }
            });
            sending.start();
            while (System.nanoTime() < until + 60_000_000_000L
                && (sending.isAlive() || !got.keySet().containsAll(sent))) {
                try {
                    for (MessageView view : consumer.receive(16, Duration.ofSeconds(10))) {
                        got.merge(body(view), 1, Integer::sum);
                        consumer.ack(view);
                    }
                } catch (ClientException | StatusRuntimeException error) {
                    // The client passes on what gRPC raises when a connection ends in a receive.
                    failed[1]++; // what was not acknowledged comes again
                    Thread.sleep(200);
                }
            }
            sending.join();
        }
        REPEATED.set(got.values().stream().mapToInt(count -> count - 1).sum());
        check(got.keySet().containsAll(sent) && !sent.isEmpty(), sent.size() + " sent, " + got.size() + " got");
        return "sent " + sent.size() + ", failed sends " + failed[0] + ", failed receives " + failed[1];
    }
}
