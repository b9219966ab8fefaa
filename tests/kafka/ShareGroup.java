import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** BOOTSTRAP GROUP TOPIC: joins a share group (KIP-932), and leaves it once it has a partition. Of 4.2 and later. */
public class ShareGroup {
    public static void main(String[] args) {
        try (var consumer = new KafkaShareConsumer<byte[], byte[]>(
                Map.of("bootstrap.servers", args[0], "group.id", args[1]),
                new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(args[2]));
            consumer.poll(Duration.ofSeconds(5));
        }
    }
}
