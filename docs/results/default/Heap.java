import java.util.HashMap;

/** A large map, built, and looked up at random: Heap [ROUNDS] */
public class Heap {
    public static void main(String[] arguments) {
        int rounds = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 3;
        HashMap<Integer, String> map = new HashMap<>();
        for (int i = 0; i < 2_000_000; i++) map.put(i, "v" + i);
        long sum = 0;
        for (int round = 0; round < rounds; round++)
            for (int i = 0; i < 2_000_000; i++) sum += map.get((int) ((i * 7919L) % 2_000_000)).length();
        System.out.println(sum);
    }
}
