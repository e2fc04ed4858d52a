package orbitmq.driver;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Messages, queues and results to and from JSON. */
final class Messages {
    private Messages() {
    }

    static Message parse(JSONObject json) {
        Message message = new Message(json.getString("topic"), body(json.getString("body")));
        message.setFlag(json.getIntValue("flag"));
        if (json.getString("tags") != null) {
            message.setTags(json.getString("tags"));
        }
        if (json.getString("keys") != null) {
            message.setKeys(json.getString("keys"));
        }
        if (json.getBoolean("waitStoreMsgOK") != null) {
            message.setWaitStoreMsgOK(json.getBoolean("waitStoreMsgOK"));
        }
        if (json.getIntValue("delayLevel") != 0) {
            message.setDelayTimeLevel(json.getIntValue("delayLevel"));
        }
        JSONObject properties = json.getJSONObject("properties");
        if (properties != null) {
            // Past the check of reserved names in putUserProperty: tests need those names too.
            properties.forEach((name, value) -> MessageAccessor.putProperty(message, name, String.valueOf(value)));
        }
        return message;
    }

    static List<Message> parseAll(JSONArray array) {
        List<Message> messages = new ArrayList<>(array.size());
        for (int i = 0; i < array.size(); i++) {
            messages.add(parse(array.getJSONObject(i)));
        }
        return messages;
    }

    static byte[] body(String base64) {
        return base64 == null ? null : Base64.getDecoder().decode(base64);
    }

    static MessageQueue queue(JSONObject json) {
        return new MessageQueue(json.getString("topic"), json.getString("brokerName"), json.getIntValue("queueId"));
    }

    static List<MessageQueue> queues(JSONArray array) {
        List<MessageQueue> queues = new ArrayList<>(array.size());
        for (int i = 0; i < array.size(); i++) {
            queues.add(queue(array.getJSONObject(i)));
        }
        return queues;
    }

    static Map<String, Object> show(MessageQueue queue) {
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("topic", queue.getTopic());
        json.put("brokerName", queue.getBrokerName());
        json.put("queueId", queue.getQueueId());
        return json;
    }

    static List<Object> showQueues(Collection<MessageQueue> queues) {
        List<MessageQueue> sorted = new ArrayList<>(queues);
        sorted.sort(null);
        List<Object> json = new ArrayList<>(sorted.size());
        sorted.forEach(queue -> json.add(show(queue)));
        return json;
    }

    static List<Object> showAll(Collection<? extends MessageExt> messages) {
        List<Object> json = new ArrayList<>();
        if (messages != null) {
            messages.forEach(message -> json.add(show(message)));
        }
        return json;
    }

    static Map<String, Object> show(MessageExt message) {
        Map<String, Object> json = show((Message) message);
        json.put("brokerName", message.getBrokerName());
        json.put("queueId", message.getQueueId());
        json.put("queueOffset", message.getQueueOffset());
        json.put("commitLogOffset", message.getCommitLogOffset());
        json.put("msgId", message.getMsgId());
        json.put("offsetMsgId", message instanceof MessageClientExt
            ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId());
        json.put("bornTimestamp", message.getBornTimestamp());
        json.put("storeTimestamp", message.getStoreTimestamp());
        json.put("bornHost", show(message.getBornHost()));
        json.put("storeHost", show(message.getStoreHost()));
        json.put("reconsumeTimes", message.getReconsumeTimes());
        json.put("sysFlag", message.getSysFlag());
        json.put("bodyCrc", message.getBodyCRC());
        json.put("storeSize", message.getStoreSize());
        json.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        return json;
    }

    static Map<String, Object> show(Message message) {
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("topic", message.getTopic());
        json.put("tags", message.getTags());
        json.put("keys", message.getKeys());
        json.put("flag", message.getFlag());
        json.put("transactionId", message.getTransactionId());
        json.put("properties", message.getProperties() == null ? Map.of() : new TreeMap<>(message.getProperties()));
        json.put("body", message.getBody() == null ? null : Base64.getEncoder().encodeToString(message.getBody()));
        return json;
    }

    static Map<String, Object> show(SendResult result) {
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("status", String.valueOf(result.getSendStatus()));
        json.put("msgId", result.getMsgId());
        json.put("offsetMsgId", result.getOffsetMsgId());
        json.put("queue", result.getMessageQueue() == null ? null : show(result.getMessageQueue()));
        json.put("queueOffset", result.getQueueOffset());
        json.put("transactionId", result.getTransactionId());
        json.put("regionId", result.getRegionId());
        json.put("traceOn", result.isTraceOn());
        json.put("recallHandle", ifPresent(result, "getRecallHandle"));
        if (result instanceof TransactionSendResult) {
            json.put("localState", String.valueOf(((TransactionSendResult) result).getLocalTransactionState()));
        }
        return json;
    }

    private static String show(SocketAddress address) {
        if (!(address instanceof InetSocketAddress)) {
            return null;
        }
        InetSocketAddress inet = (InetSocketAddress) address;
        return inet.getAddress().getHostAddress() + ":" + inet.getPort();
    }

    /** The value of a getter that only newer clients have. */
    private static Object ifPresent(Object bean, String getter) {
        try {
            return bean.getClass().getMethod(getter).invoke(bean);
        } catch (ReflectiveOperationException absent) {
            return null;
        }
    }
}
