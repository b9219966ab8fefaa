import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Appends transactions to a partition, deletes its front, or reads it: append|delete|read BOOTSTRAP TOPIC PARTITION N. */
public class Appender {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[1]);
        TopicPartition partition = new TopicPartition(args[2], Integer.parseInt(args[3]));
        long number = Long.parseLong(args[4]);
        switch (args[0]) {
            case "append" -> append(settings, partition, number);
            case "delete" -> {
                try (Admin admin = Admin.create(settings)) {
                    admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(number))).all().get();
                }
            }
            default -> read(settings, partition);
        }
    }

    static void append(Properties settings, TopicPartition partition, long transactions) {
        settings.put("transactional.id", "appender");
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (long number = 0; number < transactions; number++) {
                producer.beginTransaction();
                for (int i = 0; i < 5; i++) {
                    producer.send(new ProducerRecord<>(partition.topic(), partition.partition(), null, new byte[300]));
                }
                if (number % 4 == 3) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
    }

    static void read(Properties settings, TopicPartition partition) {
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        AtomicLong records = new AtomicLong();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            consumer.assign(java.util.List.of(partition));
            consumer.seekToBeginning(java.util.List.of(partition));
            long end = consumer.endOffsets(java.util.List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                consumer.poll(java.time.Duration.ofMillis(500)).forEach(record -> records.incrementAndGet());
            }
        }
        System.out.println("records " + records.get());
    }
}
