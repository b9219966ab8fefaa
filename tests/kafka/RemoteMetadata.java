package org.apache.kafka.server.log.remote.metadata.storage;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;

/**
 * Kafka's own reader of remote log metadata, in whose package it must be: 4.x hides it. Reads lines, and answers
 * those marked with an arrow:
 *
 * new                              an empty cache
 * tell HEX                         a record for it, which must come out as the same bytes again
 * state EPOCHS OFFSETS  ->         the state of each segment, and the segments that offsets lead to
 * kill HEX  ->                     whether a reader survives this record
 * place TOPIC_ID PARTITION N  ->   the metadata partition, of N
 */
public class RemoteMetadata {
    static final RemoteLogMetadataSerde SERDE = new RemoteLogMetadataSerde();

    public static void main(String[] arguments) throws Exception {
        RemoteLogMetadataCache cache = new RemoteLogMetadataCache();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "new" -> {
                    cache = new RemoteLogMetadataCache();
                    cache.markInitialized();
                }
                case "tell" -> tell(cache, words[1]);
                case "state" -> System.out.println(state(cache, Integer.parseInt(words[1]), Long.parseLong(words[2])));
                case "kill" -> System.out.println(survives(words[1]) ? "lives" : "dies");
                case "place" -> System.out.println(new RemoteLogMetadataTopicPartitioner(Integer.parseInt(words[3]))
                    .metadataPartition(new TopicIdPartition(Uuid.fromString(words[1]),
                        new TopicPartition("whatever", Integer.parseInt(words[2])))));
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    static void tell(RemoteLogMetadataCache cache, String hex) throws Exception {
        RemoteLogMetadata record = SERDE.deserialize(HexFormat.of().parseHex(hex));
        String again = HexFormat.of().formatHex(SERDE.serialize(record));
        if (!again.equals(hex)) {
            throw new AssertionError(hex + " became " + again);
        }
        apply(cache, record);
    }

    static void apply(RemoteLogMetadataCache cache, RemoteLogMetadata record) throws Exception {
        if (record instanceof RemoteLogSegmentMetadata first) {
            cache.addCopyInProgressSegment(first);
        } else if (record instanceof RemoteLogSegmentMetadataUpdate update) {
            try {
                cache.updateRemoteLogSegmentMetadata(update);
            } catch (RemoteResourceNotFoundException unknown) {
                // a broker's reader warns, and goes on
            }
        }
    }

    static boolean survives(String hex) {
        try {
            RemoteLogMetadata record = SERDE.deserialize(HexFormat.of().parseHex(hex));
            record.topicIdPartition();
            apply(new RemoteLogMetadataCache(), record);
            return true;
        } catch (Exception deadly) {
            return false;
        }
    }

    static String state(RemoteLogMetadataCache cache, int epochs, long offsets) throws Exception {
        TreeMap<String, String> states = new TreeMap<>();
        Iterator<RemoteLogSegmentMetadata> all = cache.listAllRemoteLogSegments();
        while (all.hasNext()) {
            RemoteLogSegmentMetadata one = all.next();
            states.put(one.remoteLogSegmentId().id().toString(), one.state().name());
        }
        Set<String> readable = new TreeSet<>();
        for (int epoch = 0; epoch < epochs; epoch++) {
            for (long offset = 0; offset < offsets; offset++) {
                cache.remoteLogSegmentMetadata(epoch, offset)
                    .ifPresent(one -> readable.add(one.remoteLogSegmentId().id().toString()));
            }
        }
        return states + " " + readable;
    }
}
