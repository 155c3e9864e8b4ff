package bench;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.Map;
import java.util.NavigableMap;
import java.util.TreeMap;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.trident.operation.TridentCollector;
import org.apache.storm.trident.spout.ITridentSpout;
import org.apache.storm.trident.topology.TransactionAttempt;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Values;

/**
 * A transactional spout over a folder of JSON-lines files. Its tasks deal the files out among them; a batch is the next
 * lines of each task's files, so that a batch emitted again has the same lines.
 */
public final class Sentences implements ITridentSpout<Long> {
    private final String folder;
    private final long lastBatch;
    private final int batchLines;
    private final int pass;

    Sentences(String folder, long lastBatch, int batchLines, int pass) {
        this.folder = folder;
        this.lastBatch = lastBatch;
        this.batchLines = batchLines;
        this.pass = pass;
    }

    @Override
    public BatchCoordinator<Long> getCoordinator(String id, Map<String, Object> conf, TopologyContext context) {
        return new BatchCoordinator<>() {
            @Override
            public Long initializeTransaction(long txid, Long previous, Long current) {
                return current != null ? current : Long.valueOf(txid);
            }

            @Override
            public void success(long txid) {
                if (txid >= lastBatch) {
                    WordCount.PASSES.get(pass).committed();
                }
            }

            @Override
            public boolean isReady(long txid) {
                return txid <= lastBatch;
            }

            @Override
            public void close() {}
        };
    }

    @Override
    public Emitter<Long> getEmitter(String id, Map<String, Object> conf, TopologyContext context) {
        int tasks = context.getComponentTasks(context.getThisComponentId()).size();
        return new Lines(folder, context.getThisTaskIndex(), tasks, batchLines / tasks, WordCount.PASSES.get(pass));
    }

    @Override
    public Map<String, Object> getComponentConfiguration() {
        return null;
    }

    @Override
    public Fields getOutputFields() {
        return new Fields("sentence");
    }

    /** One task's part of the files. */
    private static final class Lines implements Emitter<Long> {
        private final JsonFactory json = new JsonFactory();
        private final File[] files;
        private final int share;
        private final WordCount.Pass pass;
        /** Where a batch starts: index of the file, offset in it. */
        private final NavigableMap<Long, int[]> starts = new TreeMap<>();
        private byte[] text;
        private int read = -1;

        Lines(String folder, int task, int tasks, int share, WordCount.Pass pass) {
            File[] all = new File(folder).listFiles((at, name) -> name.endsWith(".json"));
            Arrays.sort(all);
            int mine = (all.length - task + tasks - 1) / tasks;
            files = new File[mine];
            for (int i = 0; i < mine; i++) {
                files[i] = all[i * tasks + task];
            }
            this.share = share;
            this.pass = pass;
            starts.put(1L, new int[] {0, 0});
        }

        @Override
        public void emitBatch(TransactionAttempt attempt, Long batch, TridentCollector collector) {
            pass.started();
            try {
                for (long one = starts.floorKey(batch); one <= batch; one++) {
                    int[] end = emit(starts.get(one), one == batch ? collector : null);
                    starts.put(one + 1, end);
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        private int[] emit(int[] start, TridentCollector collector) throws IOException {
            int file = start[0], offset = start[1], lines = 0;
            while (lines < share && file < files.length) {
                if (read != file) {
                    text = Files.readAllBytes(files[file].toPath());
                    read = file;
                }
                while (lines < share && offset < text.length) {
                    int end = offset;
                    while (end < text.length && text[end] != '\n') {
                        end++;
                    }
                    if (collector != null) {
                        collector.emit(new Values(sentence(offset, end - offset)));
                    }
                    offset = end + 1;
                    lines++;
                }
                if (offset >= text.length) {
                    file++;
                    offset = 0;
                }
            }
            return new int[] {file, offset};
        }

        private String sentence(int offset, int length) throws IOException {
            try (JsonParser parser = json.createParser(text, offset, length)) {
                parser.nextToken();
                while (parser.nextToken() == JsonToken.FIELD_NAME) {
                    boolean wanted = parser.currentName().equals("sentence");
                    parser.nextToken();
                    if (wanted) {
                        return parser.getText();
                    }
                }
            }
            return null;
        }

        @Override
        public void success(TransactionAttempt attempt) {
            starts.headMap(attempt.getTransactionId(), false).clear();
        }

        @Override
        public void close() {}
    }
}
