import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Kafka's own generated messages. Each line is answered by one:
 *
 * versions CLASS          the lowest and the highest version, or "none" where the release has no such class
 * types                   all types of metadata records, by api key
 * CLASS VERSION HEX       what the class reads from these bytes, as its JsonConverter shows it; the bytes that it writes
 *                         must be the same again
 */
public class Messages {
    public static void main(String[] arguments) throws Exception {
        PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ", -1);
            switch (words[0]) {
                case "versions" -> output.println(versions(words[1]));
                case "types" -> output.println(types());
                default -> output.println(shown(words[0], Short.parseShort(words[1]), HexFormat.of().parseHex(words[2])));
            }
        }
    }

    static Message made(String name) throws ReflectiveOperationException {
        return (Message) Class.forName(name).getDeclaredConstructor().newInstance();
    }

    static String versions(String name) throws ReflectiveOperationException {
        try {
            Message message = made(name);
            return message.lowestSupportedVersion() + " " + message.highestSupportedVersion();
        } catch (ClassNotFoundException | NoSuchMethodException | ClassCastException unknown) {
            return "none";
        }
    }

    static String types() throws ReflectiveOperationException {
        StringBuilder found = new StringBuilder();
        for (Object type : Class.forName("org.apache.kafka.common.metadata.MetadataRecordType").getEnumConstants()) {
            found.append(type.getClass().getMethod("id").invoke(type)).append(' ');
        }
        return found.toString().trim();
    }

    static String shown(String name, short version, byte[] bytes) throws ReflectiveOperationException {
        Message message = made(name);
        ByteBuffer buffer = ByteBuffer.wrap(bytes);
        message.read(new ByteBufferAccessor(buffer), version);
        if (buffer.hasRemaining()) {
            throw new AssertionError(name + " leaves " + buffer.remaining() + " bytes");
        }
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer again = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(again), cache, version);
        if (!again.flip().equals(ByteBuffer.wrap(bytes))) {
            throw new AssertionError(name + " became " + HexFormat.of().formatHex(again.array()));
        }
        return Class.forName(name + "JsonConverter").getMethod("write", message.getClass(), short.class)
            .invoke(null, message, version).toString();
    }
}
