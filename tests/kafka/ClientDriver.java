import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Lives of real producers, one per line of standard input: NAME KIND RECORDS RETRIES. NAME is the client's id.
 *
 * init         a transactional one asks for its producer id
 * transaction  a transactional one: a record, then the batch that matters, then offsets, then commit
 * idempotent   one record, then the batch that matters, then another record
 *
 * Prints NAME, what became of the step that failed (or "fine"), the producer's state then, and whether it could abort.
 */
public class ClientDriver {
    static String bootstrap;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        ExecutorService many = Executors.newFixedThreadPool(6);
        List<Future<String>> lives = new ArrayList<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            lives.add(many.submit(() -> live(words[0], words[1], Integer.parseInt(words[2]), words[3])));
        }
        for (Future<String> life : lives) {
            System.out.println(life.get());
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static String live(String name, String kind, int records, String retries) throws Exception {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "client.id", name, "acks", "all",
            "enable.idempotence", true, "retries", retries, "retry.backoff.ms", 1, "reconnect.backoff.ms", 1,
            "linger.ms", 600000, "batch.size", 1, "delivery.timeout.ms", 900000));
        settings.put("max.block.ms", 200000);
        settings.put("retry.backoff.max.ms", 1);
        settings.put("enable.metrics.push", false);
        if (!kind.equals("idempotent")) {
            settings.put("transactional.id", name);
        }
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        try {
            return name + " " + (kind.equals("idempotent") ? idempotent(producer, records) : transactional(producer, kind, records));
        } finally {
            producer.close(java.time.Duration.ZERO);
        }
    }

    static String idempotent(KafkaProducer<byte[], byte[]> producer, int records) throws Exception {
        send(producer, 1);
        String failed = "fine";
        try {
            send(producer, records);
        } catch (Exception e) {
            failed = named(e);
        }
        try {
            send(producer, 1);
        } catch (Exception e) {
            // the state tells
        }
        return failed + " " + state(producer) + " -";
    }

    static String transactional(KafkaProducer<byte[], byte[]> producer, String kind, int records) throws Exception {
        try {
            producer.initTransactions();
            if (kind.equals("init")) {
                return "fine " + state(producer) + " -";
            }
            producer.beginTransaction();
            send(producer, 1);
            send(producer, records);
            producer.sendOffsetsToTransaction(Map.of(new TopicPartition("t", 0), new OffsetAndMetadata(1)), new ConsumerGroupMetadata("g"));
            producer.commitTransaction();
            return "fine " + state(producer) + " -";
        } catch (Exception e) {
            return named(e) + " " + settled(producer, kind, e) + " " + aborted(producer);
        }
    }

    static void send(KafkaProducer<byte[], byte[]> producer, int records) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int i = 0; i < records; i++) {
            sent.add(producer.send(new ProducerRecord<>("t", 0, null, new byte[0])));
        }
        for (Future<RecordMetadata> one : sent) {
            while (!one.isDone()) {
                producer.flush(); // what is split goes back into the queue, where the first clients forget that it is wanted
                Thread.sleep(1);
            }
            one.get();
        }
    }

    static String aborted(KafkaProducer<byte[], byte[]> producer) {
        try {
            producer.abortTransaction();
            return "aborted";
        } catch (Exception e) {
            return "stuck";
        }
    }

    static String named(Exception e) {
        return (e.getCause() == null ? e : e.getCause()).getClass().getSimpleName();
    }

    /**
     * The state after an error, which producers take after they have told of it; while they initialize, one of
     * authorization is abortable at first, and from 3.6 on forgotten right after.
     */
    static String settled(KafkaProducer<byte[], byte[]> producer, String kind, Exception e) throws Exception {
        List<String> passing = new ArrayList<>(List.of("INITIALIZING", "READY", "IN_TRANSACTION", "COMMITTING_TRANSACTION"));
        if (kind.equals("init") && e instanceof AuthorizationException) {
            passing.add("ABORTABLE_ERROR");
        }
        for (int i = 0; i < 24000 && passing.contains(state(producer)); i++) {
            Thread.sleep(10);
        }
        return state(producer);
    }

    static String state(KafkaProducer<byte[], byte[]> producer) throws Exception {
        Field manager = KafkaProducer.class.getDeclaredField("transactionManager");
        manager.setAccessible(true);
        Object found = manager.get(producer);
        Field state = found.getClass().getDeclaredField("currentState");
        state.setAccessible(true);
        return state.get(found).toString();
    }
}
