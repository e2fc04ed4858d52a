import java.io.RandomAccessFile;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Load on a proxy by the official Java client 5.x until it is ended: arguments are {@code name=value}.
 *
 * <p>{@code mode} send or receive; {@code namesrv} is the proxy's endpoint; {@code topic}; {@code inflight} sends on their
 * way, or receives; {@code size} of bodies; {@code stored} messages of the topic: a group that has received four fifths of
 * them is followed by a new one; {@code tls}. Successes (sent, or acknowledged) and failures are written to
 * {@code counter}, a file of two big-endian longs, every 5 ms.
 */
public final class GrpcLoad {
    private static final LongAdder DONE = new LongAdder();
    private static final LongAdder FAILED = new LongAdder();
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Map<String, String> OPTIONS = new HashMap<>();

    private GrpcLoad() {
    }

    public static void main(String[] args) throws Exception {
        for (String arg : args) {
            int equals = arg.indexOf('=');
            OPTIONS.put(arg.substring(0, equals), arg.substring(equals + 1));
        }
        report(OPTIONS.get("counter"));
        if (OPTIONS.get("mode").equals("receive")) {
            receive();
        } else {
            send();
        }
    }

    private static void report(String path) throws Exception {
        RandomAccessFile file = new RandomAccessFile(path, "rw");
        file.setLength(16);
        MappedByteBuffer counters = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 16);
        Thread reporter = new Thread(() -> {
            while (true) {
                counters.putLong(0, DONE.sum());
                counters.putLong(8, FAILED.sum());
                try {
                    Thread.sleep(5);
                } catch (InterruptedException stopped) {
                    return;
                }
            }
        }, "load-counter");
        reporter.setDaemon(true);
        reporter.start();
    }

    private static ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder()
            .setEndpoints(OPTIONS.get("namesrv"))
            .enableSsl(Boolean.parseBoolean(OPTIONS.getOrDefault("tls", "false")))
            .setRequestTimeout(Duration.ofSeconds(30)) // a load is paused for seconds
            .build();
    }

    private static void send() throws Exception {
        String topic = OPTIONS.get("topic");
        Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration())
            .setTopics(topic)
            .build();
        byte[] body = new byte[Integer.parseInt(OPTIONS.getOrDefault("size", "1024"))];
        Semaphore places = new Semaphore(Integer.parseInt(OPTIONS.getOrDefault("inflight", "64")));
        for (long serial = 0; ; serial++) {
            places.acquire();
            Message message = PROVIDER.newMessageBuilder().setTopic(topic).setBody(body)
                .setTag("tag").setKeys("key-" + serial).build();
            producer.sendAsync(message).whenComplete((receipt, error) -> {
                places.release();
                (error == null ? DONE : FAILED).increment();
            });
        }
    }

    private static void receive() throws Exception {
        int loops = Integer.parseInt(OPTIONS.getOrDefault("inflight", "4"));
        long enough = Long.parseLong(OPTIONS.get("stored")) * 4 / 5;
        for (int number = 1; ; number++) {
            AtomicLong taken = new AtomicLong();
            List<Thread> running = new ArrayList<>();
            SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration())
                .setConsumerGroup(OPTIONS.get("group") + "-" + number)
                .setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Collections.singletonMap(OPTIONS.get("topic"), FilterExpression.SUB_ALL))
                .build();
            for (int loop = 0; loop < loops; loop++) {
                Thread thread = new Thread(() -> {
                    while (taken.get() < enough) {
                        taken.addAndGet(receiveOnce(consumer));
                    }
                }, "load-" + loop);
                thread.start();
                running.add(thread);
            }
            for (Thread thread : running) {
                thread.join();
            }
            consumer.close();
        }
    }

    private static int receiveOnce(SimpleConsumer consumer) {
        try {
            List<MessageView> views = consumer.receive(32, Duration.ofSeconds(60));
            List<CompletableFuture<Void>> acks = new ArrayList<>();
            for (MessageView view : views) {
                acks.add(consumer.ackAsync(view));
            }
            for (CompletableFuture<Void> ack : acks) {
                ack.join();
                DONE.increment();
            }
            return views.size();
        } catch (Exception error) {
            FAILED.increment();
            return 0;
        }
    }
}
