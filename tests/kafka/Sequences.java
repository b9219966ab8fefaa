import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.message.ProduceRequestData;
import org.apache.kafka.common.message.ProduceResponseData;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Idempotent producers and what a broker knows of them.
 *
 * live BOOTSTRAP TOPIC                                           a producer that sends as many batches as each line of its
 *                                                                input says, one record each, and prints their last offset
 * batch HOST PORT TOPIC PRODUCER_ID EPOCH SEQUENCE               one batch of one record under a producer's name; prints
 *                                                                the broker's error and the offset that it gives
 * bumped BOOTSTRAP TOPIC                                        a batch by each of two producers of one transactional id;
 *                                                                prints the offset of the later one
 */
public class Sequences {
    static final short VERSION = 7; // of the produce request: before topics had ids, understood by all releases of the tests

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "live" -> live(arguments[1], arguments[2]);
            case "bumped" -> bumped(arguments[1], arguments[2]);
            default -> batch(arguments[1], Integer.parseInt(arguments[2]), arguments[3], Long.parseLong(arguments[4]),
                Short.parseShort(arguments[5]), Integer.parseInt(arguments[6]));
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static KafkaProducer<byte[], byte[]> producer(String bootstrap, Map<String, Object> own) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "acks", "all",
            "enable.idempotence", "true", "delivery.timeout.ms", "240000"));
        all.putAll(own);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static void live(String bootstrap, String topic) throws Exception {
        KafkaProducer<byte[], byte[]> producer = producer(bootstrap, Map.of());
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextInt()) {
            long offset = -1;
            for (int left = lines.nextInt(); left > 0; left--) {
                offset = producer.send(new ProducerRecord<>(topic, 0, null, new byte[300])).get().offset();
            }
            System.out.println(offset);
            System.out.flush();
        }
    }

    static void bumped(String bootstrap, String topic) throws Exception {
        long offset = -1;
        for (int i = 0; i < 2; i++) {
            KafkaProducer<byte[], byte[]> producer = producer(bootstrap, Map.of("transactional.id", topic + "-bumped"));
            producer.initTransactions();
            producer.beginTransaction();
            offset = producer.send(new ProducerRecord<>(topic, 0, null, new byte[300])).get().offset();
            producer.commitTransaction();
        }
        System.out.println(offset);
    }

    static void batch(String host, int port, String topic, long producerId, short epoch, int sequence) throws Exception {
        MemoryRecords records = MemoryRecords.withIdempotentRecords(Compression.NONE, producerId, epoch, sequence,
            new SimpleRecord(System.currentTimeMillis(), new byte[300]));
        ProduceRequestData.TopicProduceDataCollection topics = new ProduceRequestData.TopicProduceDataCollection();
        topics.add(new ProduceRequestData.TopicProduceData().setName(topic).setPartitionData(
            List.of(new ProduceRequestData.PartitionProduceData().setIndex(0).setRecords(records))));
        ProduceRequestData request = new ProduceRequestData().setAcks((short) -1).setTimeoutMs(60000).setTopicData(topics);
        ProduceResponseData.PartitionProduceResponse answer = ask(host, port, request)
            .responses().iterator().next().partitionResponses().get(0);
        System.out.println(Errors.forCode(answer.errorCode()) + " " + answer.baseOffset());
    }

    static ProduceResponseData ask(String host, int port, ProduceRequestData request) throws Exception {
        RequestHeaderData header = new RequestHeaderData().setRequestApiKey(ApiKeys.PRODUCE.id)
            .setRequestApiVersion(VERSION).setCorrelationId(1).setClientId("sequences");
        short headerVersion = ApiKeys.PRODUCE.requestHeaderVersion(VERSION);
        ObjectSerializationCache cache = new ObjectSerializationCache();
        int size = header.size(cache, headerVersion) + request.size(cache, VERSION);
        ByteBuffer body = ByteBuffer.allocate(size);
        header.write(new ByteBufferAccessor(body), cache, headerVersion);
        request.write(new ByteBufferAccessor(body), cache, VERSION);
        try (Socket socket = new Socket(host, port)) {
            DataOutputStream out = new DataOutputStream(socket.getOutputStream());
            out.writeInt(size);
            out.write(body.array());
            out.flush();
            DataInputStream in = new DataInputStream(socket.getInputStream());
            ByteBuffer answer = ByteBuffer.wrap(in.readNBytes(in.readInt()));
            answer.getInt(); // the correlation id, which is all of this header's version
            return new ProduceResponseData(new ByteBufferAccessor(answer), VERSION);
        }
    }
}
