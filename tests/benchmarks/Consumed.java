import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads the committed records of a topic to its last stable offsets, several times: PORT TOPIC PARTITIONS TIMES.
 * It prints these offsets on one line, and for each time the seconds, the records, and the bytes of their values.
 */
public final class Consumed {
    public static void main(String[] given) {
        Map<String, Object> config = Map.of(
            "bootstrap.servers", "127.0.0.1:" + given[0],
            "isolation.level", "read_committed",
            "enable.auto.commit", "false",
            "max.poll.records", "5000",
            "key.deserializer", ByteArrayDeserializer.class,
            "value.deserializer", ByteArrayDeserializer.class);
        List<TopicPartition> all = IntStream.range(0, Integer.parseInt(given[2]))
            .mapToObj(number -> new TopicPartition(given[1], number)).collect(Collectors.toList());
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config)) {
            consumer.assign(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            System.out.println(all.stream().map(one -> ends.get(one).toString()).collect(Collectors.joining(" ")));
            for (int round = 0; round < Integer.parseInt(given[3]); round++) {
                consumer.seekToBeginning(all);
                long began = System.nanoTime(), records = 0, bytes = 0;
                while (all.stream().anyMatch(one -> consumer.position(one) < ends.get(one))) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                        records++;
                        bytes += record.value() == null ? 0 : record.value().length;
                    }
                }
                System.out.println((System.nanoTime() - began) / 1e9 + " " + records + " " + bytes);
                System.out.flush();
            }
        }
    }
}
