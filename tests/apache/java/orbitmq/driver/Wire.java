package orbitmq.driver;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;

/** One JSON object a line in both directions: requests in, answers and events out. */
final class Wire {
    private final BufferedReader in;
    private final OutputStream out;

    Wire(InputStream in, OutputStream out) {
        this.in = new BufferedReader(new InputStreamReader(in, StandardCharsets.UTF_8));
        this.out = out;
    }

    /** The next request, or null when the other side is gone. */
    JSONObject read() throws IOException {
        String line = in.readLine();
        return line == null ? null : JSON.parseObject(line);
    }

    void answer(Object id, Object result) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", id);
        line.put("ok", true);
        line.put("result", result);
        write(line);
    }

    void refuse(Object id, Throwable error) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", id);
        line.put("ok", false);
        line.put("error", describe(error));
        write(line);
    }

    void emit(String event, String handle, Map<String, Object> fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.put("handle", handle);
        line.putAll(fields);
        write(line);
    }

    static Map<String, Object> describe(Throwable error) {
        Throwable cause = error;
        while (cause instanceof InvocationTargetException && cause.getCause() != null) {
            cause = cause.getCause();
        }
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("type", cause.getClass().getSimpleName());
        fields.put("message", String.valueOf(cause.getMessage()));
        if (cause instanceof MQBrokerException) {
            fields.put("code", ((MQBrokerException) cause).getResponseCode());
        } else if (cause instanceof MQClientException) {
            fields.put("code", ((MQClientException) cause).getResponseCode());
        }
        if (cause.getCause() != null && cause.getCause() != cause) {
            fields.put("cause", cause.getCause().toString());
        }
        StackTraceElement[] trace = cause.getStackTrace();
        if (trace.length > 0) {
            fields.put("at", trace[0].toString());
        }
        return fields;
    }

    private void write(Object line) {
        byte[] bytes = (JSON.toJSONString(line,
            SerializerFeature.DisableCircularReferenceDetect, SerializerFeature.WriteMapNullValue) + "\n")
            .getBytes(StandardCharsets.UTF_8);
        synchronized (out) {
            try {
                out.write(bytes);
                out.flush();
            } catch (IOException gone) {
                Runtime.getRuntime().halt(3);
            }
        }
    }
}
