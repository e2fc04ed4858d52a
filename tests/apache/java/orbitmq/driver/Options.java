package orbitmq.driver;

import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.parser.ParserConfig;
import com.alibaba.fastjson.util.TypeUtils;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.util.Map;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.remoting.RPCHook;

/** Client settings by their bean names, so one source serves every client version. */
final class Options {
    private Options() {
    }

    /** Calls the setter of every option on the client; an unknown option is an error. */
    static void apply(Object client, JSONObject request) throws Exception {
        String namesrv = request.getString("namesrv");
        if (namesrv != null) {
            set(client, "namesrvAddr", namesrv);
        }
        JSONObject options = request.getJSONObject("options");
        if (options != null) {
            for (Map.Entry<String, Object> option : options.entrySet()) {
                set(client, option.getKey(), option.getValue());
            }
        }
        // The client names itself apart from others in the process, but not when broadcasting: then two of them
        // would share one connection, and refuse to share a group.
        ClientConfig config = (ClientConfig) client;
        boolean broadcasting = options != null && "BROADCASTING".equals(options.get("messageModel"));
        if (broadcasting && "DEFAULT".equals(config.getInstanceName())) {
            config.setInstanceName(request.getString("handle"));
        }
    }

    static void set(Object client, String name, Object value) throws Exception {
        String setter = "set" + Character.toUpperCase(name.charAt(0)) + name.substring(1);
        for (Method method : client.getClass().getMethods()) {
            boolean named = method.getName().equals(setter) || method.getName().equals(name);
            if (named && method.getParameterCount() == 1) {
                method.invoke(client, convert(value, method.getParameterTypes()[0]));
                return;
            }
        }
        throw new IllegalArgumentException(client.getClass().getSimpleName() + " has no option " + name);
    }

    static Object convert(Object value, Class<?> type) {
        return TypeUtils.cast(value, type, ParserConfig.getGlobalInstance());
    }

    /** A signing hook when the request names an access key, else null. */
    static RPCHook hook(JSONObject request) throws Exception {
        String accessKey = request.getString("accessKey");
        if (accessKey == null) {
            return null;
        }
        Class<?> credentials = Class.forName("org.apache.rocketmq.acl.common.SessionCredentials");
        Object pair = credentials.getConstructor(String.class, String.class)
            .newInstance(accessKey, request.getString("secretKey"));
        Constructor<?> hook = Class.forName("org.apache.rocketmq.acl.common.AclClientRPCHook")
            .getConstructor(credentials);
        return (RPCHook) hook.newInstance(pair);
    }
}
