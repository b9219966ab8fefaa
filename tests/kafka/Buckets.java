import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;

/**
 * Drives Kafka's own TokenBucket and Rate by lines on standard input, and prints the bits of what they measure.
 *
 * new SECONDS|HOURS SAMPLES WINDOW_MS QUOTA | quota QUOTA | bucket VALUE NOW_MS | rate VALUE NOW_MS
 */
public class Buckets {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        TokenBucket bucket = null;
        Rate rate = null;
        MetricConfig config = null;
        TimeUnit unit = null;
        double quota = 0;
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "new" -> {
                    unit = TimeUnit.valueOf(words[1]);
                    bucket = new TokenBucket(unit);
                    rate = new Rate(unit);
                    quota = Double.parseDouble(words[4]);
                    config = new MetricConfig().samples(Integer.parseInt(words[2]))
                        .timeWindow(Long.parseLong(words[3]), TimeUnit.MILLISECONDS).quota(Quota.upperBound(quota));
                }
                case "quota" -> {
                    quota = Double.parseDouble(words[1]);
                    config = new MetricConfig().samples(config.samples())
                        .timeWindow(config.timeWindowMs(), TimeUnit.MILLISECONDS).quota(Quota.upperBound(quota));
                }
                case "bucket" -> {
                    long now = Long.parseLong(words[2]);
                    bucket.record(config, Double.parseDouble(words[1]), now);
                    double tokens = bucket.measure(config, now);
                    double millis = unit == TimeUnit.HOURS ? 3_600_000.0 : 1000.0;
                    long throttle = tokens < 0 ? Math.round(-tokens / quota * millis) : 0;
                    out.append(Double.doubleToRawLongBits(tokens)).append(' ').append(throttle).append('\n');
                }
                default -> {
                    long now = Long.parseLong(words[2]);
                    rate.record(config, Double.parseDouble(words[1]), now);
                    double measured = rate.measure(config, now);
                    long window = rate.windowSize(config, now);
                    long throttle = measured > quota ? Math.round((measured - quota) / quota * window) : 0;
                    out.append(Double.doubleToRawLongBits(measured)).append(' ').append(throttle).append('\n');
                }
            }
        }
        System.out.print(out);
    }
}
