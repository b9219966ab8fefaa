import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogKey;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogKeyJsonConverter;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogValue;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogValueJsonConverter;

/**
 * Records of __transaction_state as Kafka's own classes read them.
 *
 * TransactionState FILE    of each line, key and value in hex: the key and the value as JSON, and the value in hex again
 */
public class TransactionState {
    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] parts = line.split(" ");
            ByteBuffer key = ByteBuffer.wrap(HexFormat.of().parseHex(parts[0]));
            ByteBuffer value = ByteBuffer.wrap(HexFormat.of().parseHex(parts[1]));
            short keyVersion = key.getShort();
            short version = value.getShort();
            TransactionLogKey readKey = new TransactionLogKey(new ByteBufferAccessor(key), keyVersion);
            TransactionLogValue read = new TransactionLogValue(new ByteBufferAccessor(value), version);
            System.out.println(TransactionLogKeyJsonConverter.write(readKey, keyVersion));
            System.out.println(TransactionLogValueJsonConverter.write(read, version));
            ByteBuffer again = MessageUtil.toVersionPrefixedByteBuffer(version, read);
            System.out.println(HexFormat.of().formatHex(again.array(), again.position(), again.limit()));
        }
    }
}
