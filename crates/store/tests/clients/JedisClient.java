// jedis: called with the port; prints how many operations were seen to work.
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.resps.ScanResult;

public class JedisClient {
    static int count = 0;

    static void check(Object found, Object expected) {
        if (!Objects.equals(found, expected)) {
            throw new AssertionError(found + " instead of " + expected);
        }
        count++;
    }

    static void refused(Runnable call, String words) {
        try {
            call.run();
        } catch (JedisDataException error) {
            check(error.getMessage().contains(words), true);
            return;
        }
        throw new AssertionError("not refused: " + words);
    }

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        try (JedisPooled client = new JedisPooled("127.0.0.1", port)) {
            check(client.set("j:s", "value", SetParams.setParams().ex(100)), "OK");
            check(client.get("j:s"), "value");
            check(client.get("j:none"), null);
            check(client.set("j:s", "x", SetParams.setParams().nx()), null);
            check(client.incr("j:n"), 1L);
            check(client.incrByFloat("j:f", 1.5), 1.5);
            check(client.mset("j:a", "1", "j:b", "2"), "OK");
            check(client.mget("j:a", "j:b"), List.of("1", "2"));
            check(client.hset("j:h", Map.of("f", "1", "g", "2")), 2L);
            check(client.hgetAll("j:h"), Map.of("f", "1", "g", "2"));
            check(client.sadd("j:set", "x", "y"), 2L);
            check(client.smembers("j:set"), Set.of("x", "y"));
            check(client.zadd("j:z", 1.5, "one"), 1L);
            check(client.zscore("j:z", "one"), 1.5);
            check(client.setbit("j:bits", 7, true), false);
            check(client.bitcount("j:bits"), 1L);
            check(client.pfadd("j:hll", "a", "b"), 1L);
            check(client.pfcount("j:hll"), 2L);
            check(client.type("j:h"), "hash");
            check(client.expire("j:a", 100), 1L);
            check(client.copy("j:a", "j:c", false), true);
            check(client.del("j:b", "j:none"), 1L);
            refused(() -> client.incr("j:s"), "not an integer");
            refused(() -> client.get("j:h"), "WRONGTYPE");

            List<String> keys = new ArrayList<>();
            String cursor = ScanParams.SCAN_POINTER_START;
            do {
                ScanResult<String> page = client.scan(cursor, new ScanParams().match("j:?").count(100));
                keys.addAll(page.getResult());
                cursor = page.getCursor();
            } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
            check(keys.size(), 7);

            try (AbstractTransaction transaction = client.multi()) {
                Response<Long> sum = transaction.incr("j:n");
                transaction.exec();
                check(sum.get(), 2L);
            }
            try (Pipeline pipeline = client.pipelined()) {
                for (int number = 0; number < 1000; number++) {
                    pipeline.set("j:pipe:" + number, "" + number);
                }
                Response<Long> wrong = pipeline.incr("j:s");
                Response<String> last = pipeline.get("j:pipe:999");
                pipeline.sync();
                refused(wrong::get, "not an integer");
                check(last.get(), "999");
            }
        }
        // The server ends the connection; the next one works.
        try (Jedis client = new Jedis("127.0.0.1", port); Jedis killer = new Jedis("127.0.0.1", port)) {
            long id = client.clientId();
            check(killer.clientKill(new redis.clients.jedis.params.ClientKillParams().id(Long.toString(id))), 1L);
            try {
                client.get("j:s");
                throw new AssertionError("the connection is gone");
            } catch (JedisConnectionException ended) {
                client.close();
            }
            try (Jedis again = new Jedis("127.0.0.1", port)) {
                check(again.get("j:s"), "value");
            }
        }
        try (JedisCluster cluster = new JedisCluster(new HostAndPort("127.0.0.1", port))) {
            for (int number = 0; number < 20; number++) {
                check(cluster.set("jc:" + number, "" + number), "OK");
                check(cluster.get("jc:" + number), "" + number);
            }
        }
        System.out.println("operations: " + count);
    }
}
