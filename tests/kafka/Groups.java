import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What the consumers of a group do.
 *
 * commit BOOTSTRAP GROUP TOPIC PARTITION OFFSET METADATA   commits an offset
 * transact BOOTSTRAP GROUP TOPIC PARTITION OFFSET END      commits an offset in a transaction, which END ends: commit,
 *                                                          abort, or open for none
 * consume BOOTSTRAP GROUP TOPIC COUNT                      joins the group, and prints where it went on: the first
 *                                                          offset of each partition of COUNT records
 * write BOOTSTRAP TOPIC                                    prints the offset of a record, or what refused it
 */
public class Groups {
    public static void main(String[] args) throws Exception {
        String bootstrap = args[1], group = args[2];
        switch (args[0]) {
            case "commit" -> {
                try (var consumer = consumer(bootstrap, group)) {
                    consumer.commitSync(Map.of(
                        new TopicPartition(args[3], Integer.parseInt(args[4])),
                        new OffsetAndMetadata(Long.parseLong(args[5]), args[6])));
                }
            }
            case "transact" -> transact(bootstrap, group, new TopicPartition(args[3], Integer.parseInt(args[4])),
                Long.parseLong(args[5]), args[6]);
            case "consume" -> consume(bootstrap, group, args[3], Integer.parseInt(args[4]));
            case "write" -> write(bootstrap, args[2]);
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private static void transact(String bootstrap, String group, TopicPartition partition, long offset, String end) {
        try (var producer = new KafkaProducer<byte[], byte[]>(
                Map.of("bootstrap.servers", bootstrap, "transactional.id", group + "-" + end),
                new ByteArraySerializer(), new ByteArraySerializer());
             var consumer = consumer(bootstrap, group)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(offset)), consumer.groupMetadata());
            switch (end) {
                case "commit" -> producer.commitTransaction();
                case "abort" -> producer.abortTransaction();
                default -> Runtime.getRuntime().halt(0); // closing it would abort it
            }
        }
    }

    private static void consume(String bootstrap, String group, String topic, int count) {
        Map<Integer, Long> first = new TreeMap<>();
        try (var consumer = consumer(bootstrap, group)) {
            consumer.subscribe(List.of(topic));
            for (int read = 0; read < count; ) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    first.putIfAbsent(record.partition(), record.offset());
                    read++;
                }
            }
        }
        first.forEach((partition, offset) -> System.out.println(partition + " " + offset));
    }

    private static void write(String bootstrap, String topic) throws InterruptedException {
        try (var producer = new KafkaProducer<byte[], byte[]>(
                Map.of("bootstrap.servers", bootstrap), new ByteArraySerializer(), new ByteArraySerializer())) {
            System.out.println(producer.send(new ProducerRecord<>(topic, 0, null, new byte[] {1})).get().offset());
        } catch (ExecutionException error) {
            System.out.println(error.getCause().getClass().getSimpleName());
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String group) {
        return new KafkaConsumer<>(
            Map.of("bootstrap.servers", bootstrap, "group.id", group, "enable.auto.commit", "false",
                "auto.offset.reset", "none", "isolation.level", "read_committed"),
            new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }
}
