package orbitmq.driver;

import java.io.RandomAccessFile;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Load on a broker by the official client until it is ended: arguments are {@code name=value}.
 *
 * <p>{@code mode} send or consume; {@code namesrv}, {@code topic}, {@code group}, {@code threads};
 * {@code batch} messages a request; {@code sizes} smallest and largest body as {@code 50-500};
 * {@code uniq} length of the unique key when the client's own is not wanted; {@code rich=true} adds
 * KEYS, TAGS and three properties that differ from message to message; {@code accessKey} and
 * {@code secretKey} sign requests. Successes and failures are written to {@code counter}, a file of
 * two big-endian longs, every 5 ms.
 */
public final class Load {
    private static final LongAdder DONE = new LongAdder();
    private static final LongAdder FAILED = new LongAdder();
    private static final AtomicLong SERIAL = new AtomicLong();
    private static final char[] HEX = "0123456789ABCDEF".toCharArray();

    private Load() {
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String arg : args) {
            int equals = arg.indexOf('=');
            options.put(arg.substring(0, equals), arg.substring(equals + 1));
        }
        report(options.get("counter"));
        if (options.get("mode").equals("consume")) {
            consume(options);
        } else {
            send(options);
        }
        Thread.currentThread().join();
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

    private static RPCHook hook(Map<String, String> options) {
        String accessKey = options.get("accessKey");
        return accessKey == null ? null
            : new AclClientRPCHook(new SessionCredentials(accessKey, options.get("secretKey")));
    }

    private static void consume(Map<String, String> options) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            options.get("group"), hook(options), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(options.get("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(options.get("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            DONE.add(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private static void send(Map<String, String> options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.get("group"), hook(options));
        producer.setNamesrvAddr(options.get("namesrv"));
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        int batch = Integer.parseInt(options.getOrDefault("batch", "1"));
        int threads = Integer.parseInt(options.getOrDefault("threads", "64"));
        for (int number = 0; number < threads; number++) {
            Maker maker = new Maker(options, number);
            Thread sender = new Thread(() -> sendForever(producer, maker, batch), "load-" + number);
            sender.setDaemon(true);
            sender.start();
        }
    }

    private static void sendForever(DefaultMQProducer producer, Maker maker, int batch) {
        while (true) {
            try {
                SendStatus status;
                if (batch == 1) {
                    status = producer.send(maker.next()).getSendStatus();
                } else {
                    List<Message> messages = new ArrayList<>(batch);
                    for (int index = 0; index < batch; index++) {
                        messages.add(maker.next());
                    }
                    status = producer.send(messages).getSendStatus();
                }
                (status == SendStatus.SEND_OK ? DONE : FAILED).add(batch);
            } catch (Exception refused) {
                FAILED.add(batch);
            }
        }
    }

    /** Messages of one sender thread. */
    private static final class Maker {
        private final Random random;
        private final String topic;
        private final int smallest;
        private final int largest;
        private final int uniq;
        private final boolean rich;

        Maker(Map<String, String> options, int seed) {
            String[] sizes = options.getOrDefault("sizes", "128-128").split("-");
            this.random = new Random(seed);
            this.topic = options.get("topic");
            this.smallest = Integer.parseInt(sizes[0]);
            this.largest = Integer.parseInt(sizes[1]);
            this.uniq = Integer.parseInt(options.getOrDefault("uniq", "0"));
            this.rich = Boolean.parseBoolean(options.getOrDefault("rich", "false"));
        }

        Message next() {
            byte[] body = new byte[smallest + random.nextInt(largest - smallest + 1)];
            for (int index = 0; index < body.length; index++) {
                body[index] = (byte) ('a' + (index & 15));
            }
            Message message = new Message(topic, body);
            if (rich) {
                int value = random.nextInt(1_000_000);
                message.setKeys("order-" + value);
                message.setTags("tag" + value % 7);
                message.putUserProperty("region", "region-" + value % 13);
                message.putUserProperty("price", Integer.toString(value % 977));
                message.putUserProperty("trace", Long.toHexString(random.nextLong()));
            }
            if (uniq > 0) {
                MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, key());
            }
            return message;
        }

        /** As the client makes them: a constant prefix and a rising number, upper-case hexadecimal. */
        private String key() {
            char[] key = new char[uniq];
            long serial = SERIAL.incrementAndGet();
            for (int index = uniq - 1; index >= 0; index--) {
                key[index] = index < uniq - 12 ? HEX[(index * 7) & 15] : HEX[(int) (serial & 15)];
                serial = index < uniq - 12 ? serial : serial >>> 4;
            }
            return new String(key);
        }
    }
}
