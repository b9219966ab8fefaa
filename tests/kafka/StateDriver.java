import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.BatchMetadata;
import org.apache.kafka.storage.internals.log.CompletedTxn;
import org.apache.kafka.storage.internals.log.LogOffsetMetadata;
import org.apache.kafka.storage.internals.log.ProducerAppendInfo;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.internals.log.VerificationStateEntry;

/**
 * Drives Kafka's own ProducerStateManager: one command per line of standard input, one line with the verdict and the whole
 * state after it per command. What an append does around the manager (duplicates, guards) is private to Kafka's log, and
 * is done here as the log of the same release does it.
 */
public class StateDriver {
    static final TopicPartition PARTITION = new TopicPartition("driven", 0);
    static final HexFormat HEX = HexFormat.of();

    final File directory;
    final boolean v2;
    final Method verify;
    final Method versioned = Arrays.stream(ProducerAppendInfo.class.getMethods())
            .filter(method -> method.getName().equals("append") && method.getParameterCount() == 3
                    && method.getParameterTypes()[2] == short.class).findFirst().orElse(null);
    final Map<Long, VerificationGuard> guards = new HashMap<>();
    ProducerStateManagerConfig config;
    ProducerStateManager manager;
    int timeoutMs;
    long now;

    StateDriver(File directory) throws Exception {
        this.directory = directory;
        verify = Arrays.stream(ProducerStateManager.class.getMethods())
                .filter(method -> method.getName().equals("maybeCreateVerificationStateEntry")).findFirst().get();
        v2 = verify.getParameterCount() == 4;
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false);
        System.setOut(System.err);
        StateDriver driver = new StateDriver(new File(args[0]));
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String verdict;
            try {
                verdict = driver.run(line.split(" "));
            } catch (Exception error) {
                verdict = String.valueOf(Errors.forException(error).code());
            }
            out.println(verdict + "|" + driver.state());
            if (!commands.ready()) {
                out.flush();
            }
        }
    }

    String run(String[] words) throws Exception {
        switch (words[0]) {
            case "reset" -> reset(Integer.parseInt(words[1]), words[2].equals("1"), Integer.parseInt(words[3]));
            case "time" -> now = number(words[1]);
            case "expiration" -> config.setProducerIdExpirationMs(Integer.parseInt(words[1]));
            case "verification" -> config.setTransactionVerificationEnabled(words[1].equals("1"));
            case "verify" -> {
                return verify(number(words[1]), Integer.parseInt(words[2]), Short.parseShort(words[3]), words[4].equals("1"));
            }
            case "append" -> {
                return append(AppendOrigin.valueOf(words[1]), guards.get(number(words[2])), number(words[3]),
                        Short.parseShort(words[4]), words[5]);
            }
            case "expire" -> manager.removeExpiredProducers(now);
            case "snapshot" -> {
                return snapshot();
            }
            case "highwatermark" -> manager.onHighWatermarkUpdated(number(words[1]));
            case "logstart" -> manager.onLogStartOffsetIncremented(number(words[1]));
            case "truncate" -> manager.truncateAndReload(number(words[1]), number(words[2]), now);
            case "restart" -> {
                open();
                manager.truncateAndReload(number(words[1]), number(words[2]), now);
            }
            case "forget" -> manager.truncateFullyAndStartAt(number(words[1]));
            case "reload" -> manager.truncateFullyAndReloadSnapshots();
            case "strays" -> manager.removeStraySnapshots(numbers(words[1]));
            case "delete" -> manager.deleteSnapshotsBefore(number(words[1]));
            case "aside" -> {
                return String.valueOf(manager.removeAndMarkSnapshotForDeletion(number(words[1])).isPresent());
            }
            case "damage" -> Files.write(file(number(words[1])), new byte[] {0, 1, 2});
            default -> throw new AssertionError(words[0]);
        }
        return "0";
    }

    void reset(int expirationMs, boolean verification, int transactionTimeoutMs) throws Exception {
        for (File file : directory.listFiles()) {
            file.delete();
        }
        guards.clear();
        now = 0;
        timeoutMs = transactionTimeoutMs;
        config = new ProducerStateManagerConfig(expirationMs, verification);
        open();
    }

    void open() throws Exception {
        manager = new ProducerStateManager(PARTITION, directory, timeoutMs, config, new Clock());
    }

    String verify(long producerId, int sequence, short epoch, boolean bumps) throws Exception {
        ProducerStateEntry known = manager.activeProducers().get(producerId);
        if (v2 && known != null && epoch < known.producerEpoch()) {
            throw new InvalidProducerEpochException("");
        }
        if (inTransaction(producerId, epoch)) {
            return "none";
        }
        Object entry = v2 ? verify.invoke(manager, producerId, sequence, epoch, bumps)
                : verify.invoke(manager, producerId, sequence, epoch);
        guards.put(producerId, ((VerificationStateEntry) entry).verificationGuard());
        return "guard";
    }

    boolean inTransaction(long producerId, short epoch) {
        ProducerStateEntry known = manager.activeProducers().get(producerId);
        return known != null && known.currentTxnFirstOffset().isPresent() && (!v2 || known.producerEpoch() == epoch);
    }

    String append(AppendOrigin origin, VerificationGuard guard, long endOffset, short version, String hex)
            throws Exception {
        Map<Long, ProducerAppendInfo> appends = new HashMap<>();
        List<CompletedTxn> completed = new ArrayList<>();
        for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(HEX.parseHex(hex))).batches()) {
            long producerId = batch.producerId();
            if (origin == AppendOrigin.CLIENT) {
                Optional<BatchMetadata> duplicate = manager.lastEntry(producerId).isEmpty() ? Optional.empty()
                        : duplicate(manager.lastEntry(producerId).get(), batch);
                if (duplicate.isPresent()) {
                    return "duplicate " + text(duplicate.get());
                }
            }
            checkVerified(batch, origin, guard);
            ProducerAppendInfo append =
                    appends.computeIfAbsent(producerId, id -> manager.prepareUpdate(id, origin));
            Optional<LogOffsetMetadata> at = Optional.of(new LogOffsetMetadata(batch.baseOffset()));
            (versioned == null ? append.append(batch, at) : versioned(append, batch, at, version)).ifPresent(completed::add);
            endVerification(batch);
        }
        appends.values().forEach(manager::update);
        StringBuilder ended = new StringBuilder("0");
        for (CompletedTxn transaction : completed) {
            ended.append(" ").append(of(transaction, "producerId")).append("/").append(of(transaction, "firstOffset"))
                    .append("/").append(of(transaction, "lastOffset")).append("/").append(of(transaction, "isAborted")).append("/")
                    .append(manager.lastStableOffset(transaction));
            manager.completeTxn(transaction);
        }
        manager.updateMapEndOffset(endOffset);
        return ended.toString();
    }

    void checkVerified(RecordBatch batch, AppendOrigin origin, VerificationGuard guard) {
        if (origin != AppendOrigin.CLIENT && origin != AppendOrigin.COORDINATOR) {
            return;
        }
        VerificationStateEntry entry = manager.verificationStateEntry(batch.producerId());
        VerificationGuard wanted = entry == null ? VerificationGuard.SENTINEL : entry.verificationGuard();
        VerificationGuard given = guard == null ? VerificationGuard.SENTINEL : guard;
        if (batch.isTransactional() && !inTransaction(batch.producerId(), batch.producerEpoch())
                && config.transactionVerificationEnabled() && !batch.isControlBatch() && !wanted.verify(given)) {
            // The order of UnifiedLog.analyzeAndValidateProducerState from 4.1.1 on (KAFKA-19690).
            ProducerStateEntry known = manager.activeProducers().get(batch.producerId());
            if (known != null && known.producerEpoch() > batch.producerEpoch()) {
                throw new InvalidProducerEpochException("");
            }
            throw new InvalidTxnStateException("");
        }
    }

    void endVerification(RecordBatch batch) {
        VerificationStateEntry entry = manager.verificationStateEntry(batch.producerId());
        boolean next = v2 && entry != null && batch.isControlBatch() && batch.producerEpoch() == entry.epoch() && bumps(entry);
        if (batch.isTransactional() && !next) {
            manager.clearVerificationStateEntry(batch.producerId());
        }
    }

    static boolean bumps(VerificationStateEntry entry) {
        try {
            return (boolean) VerificationStateEntry.class.getMethod("supportsEpochBump").invoke(entry);
        } catch (ReflectiveOperationException error) {
            throw new AssertionError(error);
        }
    }

    String snapshot() throws Exception {
        Optional<File> taken = manager.takeSnapshot(false);
        return taken.isEmpty() ? "none" : "taken " + HEX.formatHex(Files.readAllBytes(taken.get().toPath()));
    }

    Path file(long offset) {
        return directory.toPath().resolve(String.format("%020d.snapshot", offset));
    }

    String state() throws Exception {
        String producers = new TreeMap<>(manager.activeProducers()).values().stream().map(StateDriver::text)
                .collect(Collectors.joining(";"));
        StringBuilder verifications = new StringBuilder();
        for (long producerId = 0; producerId < 5; producerId++) {
            VerificationStateEntry entry = manager.verificationStateEntry(producerId);
            if (entry != null) {
                verifications.append(producerId).append("/").append(entry.timestamp()).append("/")
                        .append(entry.lowestSequence()).append("/").append(entry.epoch()).append(";");
            }
        }
        String files;
        try (Stream<Path> listed = Files.list(directory.toPath())) {
            files = listed.map(path -> path.getFileName().toString()).sorted().collect(Collectors.joining(","));
        }
        return String.join("|", producers, verifications, files, manager.mapEndOffset() + "",
                manager.latestSnapshotOffset().orElse(-1) + "", manager.oldestSnapshotOffset().orElse(-1) + "",
                manager.firstUndecidedOffset().orElse(-1) + "",
                manager.firstUnstableOffset().map(offset -> offset.messageOffset).orElse(-1L) + "",
                manager.hasLateTransaction(now) + "");
    }

    static String text(ProducerStateEntry entry) {
        return entry.producerId() + "/" + entry.producerEpoch() + "/" + entry.coordinatorEpoch() + "/" + entry.lastTimestamp()
                + "/" + entry.currentTxnFirstOffset().orElse(-1) + "/"
                + entry.batchMetadata().stream().map(StateDriver::text).collect(Collectors.joining(","));
    }

    static String text(BatchMetadata batch) {
        return batch.firstSeq() + ":" + of(batch, "lastSeq") + ":" + batch.firstOffset() + ":" + of(batch, "lastOffset") + ":"
                + of(batch, "timestamp");
    }

    /** Returns a component of what was a class with public fields once, and is a record since 4.2. */
    static Object of(Object owner, String name) {
        try {
            try {
                return owner.getClass().getMethod(name).invoke(owner);
            } catch (NoSuchMethodException none) {
                return owner.getClass().getField(name).get(owner);
            }
        } catch (ReflectiveOperationException error) {
            throw new AssertionError(error);
        }
    }

    @SuppressWarnings("unchecked")
    static Optional<BatchMetadata> duplicate(ProducerStateEntry entry, RecordBatch batch) throws Exception {
        Method find = ProducerStateEntry.class.getDeclaredMethod("findDuplicateBatch", RecordBatch.class);
        find.setAccessible(true);
        return (Optional<BatchMetadata>) find.invoke(entry, batch);
    }

    @SuppressWarnings("unchecked")
    Optional<CompletedTxn> versioned(
            ProducerAppendInfo append, RecordBatch batch, Optional<LogOffsetMetadata> at, short version) throws Exception {
        try {
            return (Optional<CompletedTxn>) versioned.invoke(append, batch, at, version);
        } catch (java.lang.reflect.InvocationTargetException error) {
            throw (Exception) error.getCause();
        }
    }

    static long number(String word) {
        return Long.parseLong(word);
    }

    static Collection<Long> numbers(String words) {
        return words.equals("-") ? List.of() : Arrays.stream(words.split(",")).map(Long::parseLong).toList();
    }

    class Clock implements Time {
        @Override
        public long milliseconds() {
            return now;
        }

        @Override
        public long nanoseconds() {
            return now * 1_000_000;
        }

        @Override
        public void sleep(long ms) {
            throw new AssertionError("nobody waits here");
        }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
            throw new AssertionError("nobody waits here");
        }
    }
}
