import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What clients do to a broker, one verb at a time.
 *
 * create BOOTSTRAP TOPIC PARTITIONS NAME=VALUE...    a topic with these settings
 * assign BOOTSTRAP TOPIC BROKERS NAME=VALUE...       a topic of one partition on these brokers, the first of which leads
 * reassign BOOTSTRAP TOPIC PARTITION BROKERS         moves a partition to these brokers, and waits until it is there
 * elect BOOTSTRAP TOPIC PARTITION                    makes the first of its brokers the leader
 * drop BOOTSTRAP TOPIC                               deletes a topic
 * configure BOOTSTRAP TOPIC NAME=VALUE...            other settings for it
 * scram BOOTSTRAP USER PASSWORD                      lets a user log in by SCRAM-SHA-512
 * broker BOOTSTRAP ID NAME VALUE                     a setting of broker ID, or of all for "-"; VALUE "-" takes it away
 * place BOOTSTRAP TOPIC PARTITION LOG_DIR            moves a partition to a log dir of broker 1, if it is not there
 * traffic BOOTSTRAP TOPIC PARTITIONS ROUNDS SEED     producers of every kind, in turn; prints what became of them
 * append BOOTSTRAP TOPIC PARTITION TRANSACTIONS      transactions of five records, each fourth aborted
 * decide BOOTSTRAP TOPIC PARTITION                   waits until no transaction is open
 * delete BOOTSTRAP TOPIC PARTITION OFFSET            the records below an offset
 * read BOOTSTRAP TOPIC PARTITION [LEVEL [END]]       reads it all, up to END, as read_committed, or as is said; prints
 *                                                    offsets, count and digest of all that it sees
 */
public class Driver {
    static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};
    static final int LONG_MS = 900000; // of a transaction: the longest that a broker allows
    static String bootstrap;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[1];
        String topic = arguments[2];
        String[] rest = Arrays.copyOfRange(arguments, 3, arguments.length);
        switch (arguments[0]) {
            case "create" -> create(topic, Integer.parseInt(rest[0]), settings(Arrays.copyOfRange(rest, 1, rest.length)));
            case "assign" -> assign(topic, brokers(rest[0]), settings(Arrays.copyOfRange(rest, 1, rest.length)));
            case "reassign" -> reassign(new TopicPartition(topic, Integer.parseInt(rest[0])), brokers(rest[1]));
            case "elect" -> elect(new TopicPartition(topic, Integer.parseInt(rest[0])));
            case "drop" -> drop(topic);
            case "scram" -> scram(topic, rest[0]);
            case "configure" -> configure(topic, settings(rest));
            case "broker" -> broker(topic.equals("-") ? "" : topic, rest[0], rest[1]);
            case "place" -> place(new TopicPartitionReplica(topic, Integer.parseInt(rest[0]), 1), rest[1]);
            case "traffic" -> new Traffic(topic, Integer.parseInt(rest[0]), Long.parseLong(rest[2])).run(Integer.parseInt(rest[1]));
            case "append" -> append(new TopicPartition(topic, Integer.parseInt(rest[0])), Integer.parseInt(rest[1]));
            case "decide" -> awaitDecided(List.of(new TopicPartition(topic, Integer.parseInt(rest[0]))));
            case "delete" -> delete(new TopicPartition(topic, Integer.parseInt(rest[0])), Long.parseLong(rest[1]));
            case "read" -> read(new TopicPartition(topic, Integer.parseInt(rest[0])),
                rest.length > 1 ? rest[1] : "read_committed", rest.length > 2 ? Long.parseLong(rest[2]) : Long.MAX_VALUE);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0); // without closing producers, which would abort what is to stay open
    }

    static Map<String, String> settings(String[] pairs) {
        Map<String, String> found = new HashMap<>();
        for (String pair : pairs) {
            found.put(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
        }
        return found;
    }

    static Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    static KafkaProducer<byte[], byte[]> producer(Map<String, Object> own) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "acks", "all", "linger.ms", "5",
            "batch.size", "4096", "delivery.timeout.ms", "240000"));
        all.putAll(own);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaProducer<byte[], byte[]> transactional(String id, String codec, int timeoutMs) {
        KafkaProducer<byte[], byte[]> made = producer(
            Map.of("transactional.id", id, "compression.type", codec, "transaction.timeout.ms", timeoutMs));
        made.initTransactions();
        return made;
    }

    static void create(String topic, int partitions, Map<String, String> settings) throws Exception {
        try (Admin admin = admin()) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(settings))).all().get();
        }
    }

    static List<Integer> brokers(String named) {
        return Arrays.stream(named.split(",")).map(Integer::valueOf).toList();
    }

    static void assign(String topic, List<Integer> brokers, Map<String, String> settings) throws Exception {
        try (Admin admin = admin()) {
            admin.createTopics(List.of(new NewTopic(topic, Map.of(0, brokers)).configs(settings))).all().get();
        }
    }

    static void reassign(TopicPartition partition, List<Integer> brokers) throws Exception {
        try (Admin admin = admin()) {
            admin.alterPartitionReassignments(
                Map.of(partition, Optional.of(new NewPartitionReassignment(brokers)))).all().get();
            while (!admin.listPartitionReassignments(Set.of(partition)).reassignments().get().isEmpty()) {
                Thread.sleep(200);
            }
        }
    }

    static void elect(TopicPartition partition) throws Exception {
        try (Admin admin = admin()) {
            admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).all().get();
        }
    }

    static void drop(String topic) throws Exception {
        try (Admin admin = admin()) {
            admin.deleteTopics(List.of(topic)).all().get();
        }
    }

    static void scram(String user, String password) throws Exception {
        ScramCredentialInfo how = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096);
        try (Admin admin = admin()) {
            admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(user, how, password))).all().get();
        }
    }

    static void configure(String topic, Map<String, String> settings) throws Exception {
        List<AlterConfigOp> all = new ArrayList<>();
        settings.forEach((name, value) -> all.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        try (Admin admin = admin()) {
            admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, topic), all)).all().get();
        }
    }

    static void broker(String id, String name, String value) throws Exception {
        AlterConfigOp.OpType how = value.equals("-") ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET;
        List<AlterConfigOp> one = List.of(new AlterConfigOp(new ConfigEntry(name, value), how));
        try (Admin admin = admin()) {
            admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.BROKER, id), one)).all().get();
        }
    }

    static void place(TopicPartitionReplica replica, String logDir) throws Exception {
        try (Admin admin = admin()) {
            admin.alterReplicaLogDirs(Map.of(replica, logDir)).all().get();
        }
    }

    static void append(TopicPartition partition, int transactions) {
        KafkaProducer<byte[], byte[]> producer = transactional("appender", "none", LONG_MS);
        for (int number = 0; number < transactions; number++) {
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

    /** Wait until no transaction is open: its markers are written, or the coordinator has aborted what took too long. */
    static void awaitDecided(List<TopicPartition> partitions) throws Exception {
        try (Admin admin = admin()) {
            while (!ends(admin, partitions, IsolationLevel.READ_COMMITTED)
                    .equals(ends(admin, partitions, IsolationLevel.READ_UNCOMMITTED))) {
                Thread.sleep(100);
            }
        }
    }

    static Map<TopicPartition, Long> ends(Admin admin, List<TopicPartition> partitions, IsolationLevel level) throws Exception {
        Map<TopicPartition, OffsetSpec> latest = new HashMap<>();
        partitions.forEach(partition -> latest.put(partition, OffsetSpec.latest()));
        Map<TopicPartition, Long> found = new HashMap<>();
        admin.listOffsets(latest, new ListOffsetsOptions(level)).all().get()
            .forEach((partition, end) -> found.put(partition, end.offset()));
        return found;
    }

    static void delete(TopicPartition partition, long offset) throws Exception {
        try (Admin admin = admin()) {
            admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(offset))).all().get();
        }
    }

    static void read(TopicPartition partition, String level, long most) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "isolation.level", level,
            "auto.offset.reset", "earliest", "fetch.max.wait.ms", "200");
        long records = 0;
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long start = consumer.position(partition);
            long end = Math.min(most, consumer.endOffsets(List.of(partition)).get(partition));
            while (consumer.position(partition) < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    if (record.offset() >= end) {
                        continue;
                    }
                    records++;
                    digest.update(told(record).getBytes(StandardCharsets.UTF_8));
                }
            }
            System.out.printf("start %d%nend %d%nrecords %d%nsha256 %s%n",
                start, end, records, HexFormat.of().formatHex(digest.digest()));
        }
    }

    /** A line with all that a consumer sees of a record. */
    static String told(ConsumerRecord<byte[], byte[]> record) {
        StringBuilder told = new StringBuilder(record.offset() + " " + record.timestamp() + " "
            + record.leaderEpoch().orElse(-1) + " " + hex(record.key()) + " " + hex(record.value()));
        record.headers().forEach(header -> told.append(" " + header.key() + "=" + hex(header.value())));
        return told.append("\n").toString();
    }

    static String hex(byte[] bytes) {
        return bytes == null ? "null" : HexFormat.of().formatHex(bytes);
    }

    /** Producers of every kind, in an order that a seed decides: some are fenced, some transactions time out or hang. */
    static class Traffic {
        final String topic;
        final int partitions;
        final Random random;
        final List<KafkaProducer<byte[], byte[]>> idempotent = new ArrayList<>();
        final KafkaProducer<byte[], byte[]> plain;
        final Map<String, KafkaProducer<byte[], byte[]>> writers = new HashMap<>();
        final Map<String, Boolean> open = new HashMap<>();
        final Map<String, Integer> counted = new TreeMap<>();

        Traffic(String topic, int partitions, long seed) {
            this.topic = topic;
            this.partitions = partitions;
            this.random = new Random(seed);
            for (int i = 0; i < 4; i++) {
                idempotent.add(producer(Map.of("enable.idempotence", "true", "compression.type", codec())));
            }
            plain = producer(Map.of("enable.idempotence", "false", "compression.type", codec()));
        }

        void run(int rounds) throws Exception {
            List<KafkaProducer<byte[], byte[]>> slow = List.of(begun("slow-0", 2000), begun("slow-1", 3000));
            for (int round = 0; round < rounds; round++) {
                int choice = random.nextInt(100);
                if (choice < 8) {
                    send(plain, random.nextInt(partitions), 1 + random.nextInt(12));
                } else if (choice < 40) {
                    send(idempotent.get(random.nextInt(idempotent.size())), random.nextInt(partitions), 1 + random.nextInt(15));
                } else {
                    transact(topic + "-" + random.nextInt(4));
                }
                Thread.sleep(random.nextInt(6));
            }
            for (String id : List.copyOf(writers.keySet())) {
                end(id, random.nextBoolean());
            }
            KafkaProducer<byte[], byte[]> old = begun("fenced", LONG_MS);
            transactional(topic + "fenced", codec(), LONG_MS);
            refused(old, "fenced");
            awaitDecided(all());
            for (KafkaProducer<byte[], byte[]> late : slow) {
                refused(late, "timedOut");
            }
            for (int i = 0; i < 60; i++) {
                send(idempotent.get(random.nextInt(idempotent.size())), i % partitions, 5);
            }
            begun("hanging", LONG_MS);
            for (int i = 0; i < 60; i++) {
                send(idempotent.get(random.nextInt(idempotent.size())), i % partitions, 5);
            }
            counted.forEach((what, times) -> System.out.println(what + " " + times));
        }

        /** Begin, go on with, or end the transaction of an id; or let a new producer fence the old one. */
        void transact(String id) throws Exception {
            KafkaProducer<byte[], byte[]> writer = writers.get(id);
            if (writer == null || random.nextInt(15) == 0) {
                KafkaProducer<byte[], byte[]> next = transactional(topic + id, codec(), LONG_MS);
                if (open.getOrDefault(id, false)) {
                    refused(writer, "fenced");
                }
                writers.put(id, next);
                open.put(id, false);
                writer = next;
            }
            if (!open.get(id)) {
                writer.beginTransaction();
                open.put(id, true);
            }
            send(writer, random.nextInt(partitions), 1 + random.nextInt(10));
            int choice = random.nextInt(10);
            if (choice < 6) {
                end(id, choice < 4);
            }
        }

        void end(String id, boolean commit) {
            if (open.put(id, false)) {
                if (commit) {
                    writers.get(id).commitTransaction();
                } else {
                    writers.get(id).abortTransaction();
                }
                count(commit ? "committed" : "aborted");
            }
        }

        KafkaProducer<byte[], byte[]> begun(String id, int timeoutMs) throws Exception {
            KafkaProducer<byte[], byte[]> made = transactional(topic + id, codec(), timeoutMs);
            made.beginTransaction();
            try {
                for (int partition = 0; partition < partitions; partition++) {
                    send(made, partition, 3);
                }
            } catch (ExecutionException tooLate) { // its time was over before it had sent it all: a very slow machine
                count("sentTooLate");
            }
            return made;
        }

        void refused(KafkaProducer<byte[], byte[]> late, String what) {
            try {
                late.commitTransaction();
                throw new AssertionError("committed, and should have been " + what);
            } catch (KafkaException expected) {
                count(what);
            }
        }

        List<TopicPartition> all() {
            List<TopicPartition> found = new ArrayList<>();
            for (int partition = 0; partition < partitions; partition++) {
                found.add(new TopicPartition(topic, partition));
            }
            return found;
        }

        void send(KafkaProducer<byte[], byte[]> producer, int partition, int records) throws Exception {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < records; i++) {
                byte[] value = new byte[10 + random.nextInt(200)];
                random.nextBytes(value);
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, partition,
                    i % 3 == 1 ? ("k" + i).getBytes(StandardCharsets.UTF_8) : null, i % 7 == 6 ? null : value);
                for (int number = 0; number < i % 4; number++) {
                    record.headers().add("h\u00e9" + number, number == 2 ? null : new byte[] {(byte) i});
                }
                sent.add(producer.send(record));
            }
            producer.flush();
            for (Future<RecordMetadata> one : sent) {
                one.get();
            }
        }

        void count(String what) {
            counted.merge(what, 1, Integer::sum);
        }

        String codec() {
            return CODECS[random.nextInt(CODECS.length)];
        }
    }
}
