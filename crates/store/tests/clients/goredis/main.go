// go-redis: called with the port; prints how many operations were seen to work.
package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	ctx   = context.Background()
	count = 0
)

func check(found, expected any) {
	if !reflect.DeepEqual(found, expected) {
		panic(fmt.Sprintf("%#v instead of %#v", found, expected))
	}
	count++
}

func refused(err error, words string) {
	if err == nil || !strings.Contains(err.Error(), words) {
		panic(fmt.Sprintf("%v instead of %s", err, words))
	}
	count++
}

func plain(protocol int) {
	address := "127.0.0.1:" + os.Args[1]
	client := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol, PoolSize: 4})
	defer client.Close()
	key := fmt.Sprintf("go%d:", protocol)
	check(client.Ping(ctx).Val(), "PONG")
	check(client.Set(ctx, key+"s", "value", 100*time.Second).Err(), nil)
	check(client.Get(ctx, key+"s").Val(), "value")
	check(client.Get(ctx, key+"none").Err(), redis.Nil)
	check(client.SetNX(ctx, key+"s", "x", 0).Val(), false)
	check(client.Incr(ctx, key+"n").Val(), int64(1))
	check(client.IncrByFloat(ctx, key+"f", 1.5).Val(), 1.5)
	check(client.MSet(ctx, key+"a", 1, key+"b", 2).Val(), "OK")
	check(client.MGet(ctx, key+"a", key+"none", key+"b").Val(), []any{"1", nil, "2"})
	check(client.HSet(ctx, key+"h", "f", "1", "g", "2").Val(), int64(2))
	check(client.HGetAll(ctx, key+"h").Val(), map[string]string{"f": "1", "g": "2"})
	check(client.SAdd(ctx, key+"set", "x", "y").Val(), int64(2))
	members := client.SMembers(ctx, key+"set").Val()
	sort.Strings(members)
	check(members, []string{"x", "y"})
	check(client.ZAdd(ctx, key+"z", redis.Z{Score: 1, Member: "one"}).Val(), int64(1))
	check(client.ZRangeWithScores(ctx, key+"z", 0, -1).Val(), []redis.Z{{Score: 1, Member: "one"}})
	check(client.SetBit(ctx, key+"bits", 7, 1).Val(), int64(0))
	check(client.BitCount(ctx, key+"bits", nil).Val(), int64(1))
	check(client.PFAdd(ctx, key+"hll", "a", "b").Val(), int64(1))
	check(client.PFCount(ctx, key+"hll").Val(), int64(2))
	check(client.Type(ctx, key+"h").Val(), "hash")
	check(client.ExpireNX(ctx, key+"a", time.Minute).Val(), true)
	check(client.Copy(ctx, key+"a", key+"c", 0, false).Val(), int64(1))
	check(client.MemoryUsage(ctx, key+"s").Val() > 0, true)
	refused(client.Incr(ctx, key+"s").Err(), "not an integer")
	refused(client.Get(ctx, key+"h").Err(), "WRONGTYPE")
	refused(client.Do(ctx, "NOSUCHCOMMAND").Err(), "unknown command")

	found := []string{}
	scan := client.Scan(ctx, 0, key+"?", 100).Iterator()
	for scan.Next(ctx) {
		found = append(found, scan.Val())
	}
	check(len(found), 8)

	replies, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for number := 0; number < 1000; number++ {
			pipe.Set(ctx, fmt.Sprintf("%spipe:%d", key, number), number, 0)
		}
		pipe.Get(ctx, key+"pipe:999")
		pipe.Incr(ctx, key+"s")
		return nil
	})
	refused(err, "not an integer")
	check(len(replies), 1002)
	check(replies[1000].(*redis.StringCmd).Val(), "999")

	done, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Incr(ctx, key+"n")
		return nil
	})
	check(err, nil)
	check(done[0].(*redis.IntCmd).Val(), int64(2))

	// The server ends every connection; the client comes back.
	killer := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1})
	defer killer.Close()
	single := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol, PoolSize: 1})
	defer single.Close()
	id := single.ClientID(ctx).Val()
	check(killer.ClientKillByFilter(ctx, "ID", fmt.Sprint(id)).Val(), int64(1))
	check(single.Get(ctx, key+"s").Val(), "value")
	check(single.ClientID(ctx).Val() > id, true)
}

func cluster() {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:" + os.Args[1]}})
	defer client.Close()
	for number := 0; number < 20; number++ {
		key := fmt.Sprintf("goc:%d", number)
		check(client.Set(ctx, key, number, 0).Err(), nil)
		check(client.Get(ctx, key).Val(), fmt.Sprint(number))
	}
}

func main() {
	plain(2)
	plain(3)
	cluster()
	fmt.Printf("operations: %d\n", count)
}
