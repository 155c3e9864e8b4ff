package bench;

import java.io.PrintWriter;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.task.IMetricsContext;
import org.apache.storm.trident.TridentTopology;
import org.apache.storm.trident.operation.BaseFunction;
import org.apache.storm.trident.operation.TridentCollector;
import org.apache.storm.trident.operation.builtin.Count;
import org.apache.storm.trident.state.State;
import org.apache.storm.trident.state.StateFactory;
import org.apache.storm.trident.testing.MemoryMapState;
import org.apache.storm.trident.tuple.TridentTuple;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Values;

/**
 * Counts the words of a folder of sentences, several times in one LocalCluster.
 *
 * <p>Arguments: folder, lines, lines a batch, tasks, passes, file for the counts of the last pass. Prints one line: RESULT
 * and a JSON object with `pass_seconds` (first emit to last commit) and `first_committed` (seconds since 1970).
 */
public final class WordCount {
    static final Map<Integer, Pass> PASSES = new ConcurrentHashMap<>();
    private static final int PENDING_BATCHES = 4;
    private static final int SECONDS_A_PASS = 300;

    /** One pass: its times and its states. All runs in this process, so that statics reach the topology's tasks. */
    static final class Pass {
        private final CountDownLatch done = new CountDownLatch(1);
        private final List<State> states = Collections.synchronizedList(new ArrayList<>());
        private long firstEmit;
        private long lastCommit;
        private long committedMillis;

        synchronized void started() {
            if (firstEmit == 0) {
                firstEmit = System.nanoTime();
            }
        }

        synchronized void committed() {
            if (lastCommit == 0) {
                lastCommit = System.nanoTime();
                committedMillis = System.currentTimeMillis();
                done.countDown();
            }
        }

        synchronized double seconds() {
            return (lastCommit - firstEmit) / 1e9;
        }
    }

    public static final class Split extends BaseFunction {
        @Override
        public void execute(TridentTuple tuple, TridentCollector collector) {
            String sentence = tuple.getString(0);
            int start = 0;
            while (start < sentence.length()) {
                int end = sentence.indexOf(' ', start);
                if (end < 0) {
                    end = sentence.length();
                }
                if (end > start) {
                    collector.emit(new Values(sentence.substring(start, end)));
                }
                start = end + 1;
            }
        }
    }

    /** MemoryMapState, remembered so that its counts can be read. */
    public static final class RememberedState implements StateFactory {
        private final int pass;
        private final MemoryMapState.Factory factory = new MemoryMapState.Factory();

        RememberedState(int pass) {
            this.pass = pass;
        }

        @Override
        public State makeState(Map<String, Object> conf, IMetricsContext metrics, int partition, int partitions) {
            State state = factory.makeState(conf, metrics, partition, partitions);
            PASSES.get(pass).states.add(state);
            return state;
        }
    }

    public static void main(String[] arguments) throws Exception {
        String folder = arguments[0];
        long lines = Long.parseLong(arguments[1]);
        int batchLines = Integer.parseInt(arguments[2]);
        int tasks = Integer.parseInt(arguments[3]);
        int passes = Integer.parseInt(arguments[4]);
        List<Double> seconds = new ArrayList<>();
        try (LocalCluster cluster = new LocalCluster()) {
            for (int number = 0; number < passes; number++) {
                Pass pass = new Pass();
                PASSES.put(number, pass);
                long batches = (lines + batchLines - 1) / batchLines;
                TridentTopology topology = new TridentTopology();
                // A name of its own: by it the cluster remembers the transactions of an earlier pass.
                topology.newStream("sentences-" + number, new Sentences(folder, batches, batchLines, number))
                    .parallelismHint(tasks)
                    .each(new Fields("sentence"), new Split(), new Fields("word"))
                    .groupBy(new Fields("word"))
                    .persistentAggregate(new RememberedState(number), new Count(), new Fields("count"))
                    .parallelismHint(tasks);
                cluster.submitTopology("pass-" + number, settings(), topology.build());
                if (!pass.done.await(SECONDS_A_PASS, TimeUnit.SECONDS)) {
                    System.err.println("pass " + number + " did not end within " + SECONDS_A_PASS + " s");
                    Runtime.getRuntime().halt(3);
                }
                seconds.add(pass.seconds());
                if (number == passes - 1) {
                    write(pass, arguments[5]);
                }
                end(cluster, "pass-" + number);
                pass.states.clear();
            }
            String listed = seconds.stream().map(one -> String.format(Locale.ROOT, "%.3f", one)).collect(Collectors.joining(", "));
            double first = PASSES.get(0).committedMillis / 1e3;
            System.out.printf(Locale.ROOT, "RESULT {\"pass_seconds\": [%s], \"first_committed\": %.3f}%n", listed, first);
            System.out.flush();
            // The cluster's end is no part of the measurement, and takes long.
            Runtime.getRuntime().halt(0);
        }
    }

    /** One worker, four batches at once, and waits so short that no batch lies idle. */
    private static Config settings() {
        Config conf = new Config();
        conf.setDebug(false);
        conf.setNumWorkers(1);
        conf.setMaxSpoutPending(PENDING_BATCHES);
        conf.setMessageTimeoutSecs(120);
        conf.put(Config.TOPOLOGY_TRIDENT_BATCH_EMIT_INTERVAL_MILLIS, 1);
        conf.put(Config.TOPOLOGY_PRODUCER_BATCH_SIZE, 1);
        conf.put(Config.TOPOLOGY_BOLT_WAIT_PROGRESSIVE_LEVEL2_COUNT, 10);
        conf.put(Config.TOPOLOGY_BACKPRESSURE_WAIT_PROGRESSIVE_LEVEL2_COUNT, 10);
        return conf;
    }

    private static void end(LocalCluster cluster, String topology) throws Exception {
        cluster.killTopologyWithOpts(topology, LocalCluster.KILL_NOW);
        for (int i = 0; i < 200 && !cluster.getTopologySummaries().isEmpty(); i++) {
            Thread.sleep(100);
        }
        Thread.sleep(500);
    }

    private static void write(Pass pass, String file) throws Exception {
        try (PrintWriter out = new PrintWriter(file, "UTF-8")) {
            for (State state : pass.states) {
                Iterator<List<Object>> tuples = ((MemoryMapState<?>) state).getTuples();
                while (tuples.hasNext()) {
                    List<Object> tuple = tuples.next();
                    out.println(tuple.get(0) + "\t" + tuple.get(1));
                }
            }
        }
    }
}
