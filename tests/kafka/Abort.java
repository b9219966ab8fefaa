import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.common.TopicPartition;

/**
 * What kafka-transactions.sh does with a start offset, by the same arguments: its jar is not among those of a broker.
 *
 * --bootstrap-server HOST:PORT abort --topic TOPIC --partition PARTITION --start-offset OFFSET
 */
public class Abort {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (int i = 0; i < arguments.length; i++) {
            if (arguments[i].startsWith("--")) {
                given.put(arguments[i], arguments[++i]);
            } else if (!arguments[i].equals("abort")) {
                throw new IllegalArgumentException(arguments[i]);
            }
        }
        TopicPartition partition = new TopicPartition(given.get("--topic"), Integer.parseInt(given.get("--partition")));
        long start = Long.parseLong(given.get("--start-offset"));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", given.get("--bootstrap-server")))) {
            ProducerState hanging = admin.describeProducers(List.of(partition)).partitionResult(partition).get()
                .activeProducers().stream()
                .filter(one -> one.currentTransactionStartOffset().orElse(-1) == start).findFirst().orElseThrow();
            admin.abortTransaction(new AbortTransactionSpec(partition, hanging.producerId(),
                (short) hanging.producerEpoch(), hanging.coordinatorEpoch().orElse(0))).all().get();
        }
    }
}
