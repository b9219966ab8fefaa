import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A producer and a consumer that go on whatever happens to brokers, and fail at the first error that a client hears of.
 *
 * produce BOOTSTRAP TOPIC...   a transaction after the other, with a number in partition 0 of each topic; every fourth is
 *                              aborted. Ends with a line of input, and prints how many were committed
 * consume BOOTSTRAP TOPIC...   reads committed records from the beginning on. Ends once it has seen as many numbers in
 *                              each topic as a line of input says; each must come once, in order, and none that was aborted
 */
public class Steady {
    static final byte[] KEY = "steady".getBytes(StandardCharsets.UTF_8);
    static final byte[] ABORTED = "aborted".getBytes(StandardCharsets.UTF_8);
    static volatile long wanted = -1;

    public static void main(String[] arguments) throws Exception {
        List<String> topics = List.of(arguments).subList(2, arguments.length);
        Thread listening = new Thread(() -> wanted = new Scanner(System.in).nextLong());
        listening.setDaemon(true);
        listening.start();
        if (arguments[0].equals("produce")) {
            produce(arguments[1], topics);
        } else {
            consume(arguments[1], topics);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static void produce(String bootstrap, List<String> topics) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "acks", "all", "transactional.id", "steady",
            "delivery.timeout.ms", "240000", "max.block.ms", "240000");
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            long committed = 0;
            for (long number = 0; wanted < 0; number++) {
                boolean aborts = number % 4 == 3;
                byte[] value = aborts ? ABORTED : Long.toString(committed).getBytes(StandardCharsets.UTF_8);
                producer.beginTransaction();
                for (String topic : topics) {
                    producer.send(new ProducerRecord<>(topic, 0, KEY, value));
                }
                if (aborts) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                    committed++;
                }
                Thread.sleep(20);
            }
            System.out.println(committed);
        }
    }

    static void consume(String bootstrap, List<String> topics) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "isolation.level", "read_committed",
            "auto.offset.reset", "none");
        Map<String, Long> seen = new HashMap<>();
        topics.forEach(topic -> seen.put(topic, 0L));
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> all = topics.stream().map(topic -> new TopicPartition(topic, 0)).toList();
            consumer.assign(all);
            consumer.seekToBeginning(all);
            while (wanted < 0 || seen.values().stream().anyMatch(count -> count < wanted)) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    if (Arrays.equals(record.key(), KEY)) {
                        long expected = seen.merge(record.topic(), 1L, Long::sum) - 1;
                        String found = new String(record.value(), StandardCharsets.UTF_8);
                        if (!found.equals(Long.toString(expected))) {
                            throw new IllegalStateException(record.topic() + " at " + record.offset() + ": " + found
                                + " where " + expected + " was to come");
                        }
                    }
                }
            }
        }
        System.out.println(seen.values().stream().mapToLong(Long::longValue).min().getAsLong());
    }
}
