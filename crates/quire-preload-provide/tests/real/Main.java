// Objects that die and objects that stay, threads, and big arrays.
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;

class Main {
    static long churn(int seed) {
        Random random = new Random(seed);
        Map<Integer, byte[]> kept = new HashMap<>();
        long sum = 0;
        for (int i = 0; i < 60_000; i++) {
            byte[] block = new byte[100 + random.nextInt(2000)];
            Arrays.fill(block, (byte) i);
            byte[] old = kept.put(random.nextInt(4000), block);
            if (old != null)
                sum = sum * 31 + old[old.length / 2];
        }
        for (int key : new TreeSet<>(kept.keySet()))
            sum = sum * 31 + kept.get(key)[0];
        return sum;
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Long>> results = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            int seed = i;
            results.add(pool.submit(() -> churn(seed)));
        }
        for (Future<Long> result : results)
            System.out.println(result.get());
        pool.shutdown();
        long[] big = new long[3_000_000];
        for (int i = 0; i < big.length; i++)
            big[i] = (i * 2654435761L) % 1000003;
        Arrays.parallelSort(big);
        System.out.println(Arrays.hashCode(big));
        System.gc();
        System.out.println(IntStream.range(0, 200_000).mapToObj(Integer::toString)
            .collect(Collectors.joining()).hashCode());
    }
}
