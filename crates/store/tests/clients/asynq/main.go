// asynq, and go-redis's Script: called with the port; prints how many operations were seen to work.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

var (
	ctx   = context.Background()
	count atomic.Int64
)

func check(found, expected any) {
	if !reflect.DeepEqual(found, expected) {
		panic(fmt.Sprintf("%#v instead of %#v", found, expected))
	}
	count.Add(1)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	count.Add(1)
	return value
}

// quiet takes what asynq logs.
type quiet struct{}

func (quiet) Debug(...any) {}
func (quiet) Info(...any)  {}
func (quiet) Warn(...any)  {}
func (quiet) Error(...any) {}
func (quiet) Fatal(args ...any) {
	panic(fmt.Sprint(args...))
}

func until(what string, is func() bool) {
	deadline := time.Now().Add(30 * time.Second)
	for !is() {
		if time.Now().After(deadline) {
			panic("waited for " + what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	count.Add(1)
}

func tasks(address string) {
	at := asynq.RedisClientOpt{Addr: address, DB: 3}
	client, inspector := asynq.NewClient(at), asynq.NewInspector(at)
	defer client.Close()
	defer inspector.Close()
	for n := 0; n < 10; n++ {
		must(client.Enqueue(asynq.NewTask("plain", []byte{byte(n)}), asynq.Queue([]string{"default", "critical"}[n%2])))
	}
	must(client.Enqueue(asynq.NewTask("later", nil), asynq.ProcessIn(time.Second)))
	must(client.Enqueue(asynq.NewTask("retried", nil), asynq.MaxRetry(3)))
	must(client.Enqueue(asynq.NewTask("kept", nil), asynq.Retention(time.Hour), asynq.TaskID("kept")))
	must(client.Enqueue(asynq.NewTask("unique", nil), asynq.Unique(time.Hour), asynq.ProcessIn(time.Hour)))
	_, err := client.Enqueue(asynq.NewTask("unique", nil), asynq.Unique(time.Hour))
	check(errors.Is(err, asynq.ErrDuplicateTask), true)
	_, err = client.Enqueue(asynq.NewTask("kept", nil), asynq.TaskID("kept"))
	check(errors.Is(err, asynq.ErrTaskIDConflict), true)
	for n := 0; n < 3; n++ {
		must(client.Enqueue(asynq.NewTask("part", []byte{'a'}), asynq.Group("together")))
	}
	check(must(inspector.GetQueueInfo("default")).Scheduled, 2)

	var plain, later, tries, grouped atomic.Int64
	server := asynq.NewServer(at, asynq.Config{
		Concurrency:              4,
		Queues:                   map[string]int{"default": 1, "critical": 5},
		Logger:                   quiet{},
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 0 },
		DelayedTaskCheckInterval: 50 * time.Millisecond,
		TaskCheckInterval:        10 * time.Millisecond,
		GroupGracePeriod:         time.Second,
		GroupMaxSize:             3,
		GroupAggregator: asynq.GroupAggregatorFunc(func(_ string, tasks []*asynq.Task) *asynq.Task {
			return asynq.NewTask("whole", []byte{byte(len(tasks))})
		}),
	})
	mux := asynq.NewServeMux()
	mux.HandleFunc("plain", func(context.Context, *asynq.Task) error { plain.Add(1); return nil })
	mux.HandleFunc("later", func(context.Context, *asynq.Task) error { later.Add(1); return nil })
	mux.HandleFunc("kept", func(_ context.Context, task *asynq.Task) error {
		_, err := io.WriteString(task.ResultWriter(), "result")
		return err
	})
	mux.HandleFunc("retried", func(context.Context, *asynq.Task) error {
		if tries.Add(1) < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	mux.HandleFunc("whole", func(_ context.Context, task *asynq.Task) error {
		grouped.Add(int64(task.Payload()[0]))
		return nil
	})
	if err := server.Start(mux); err != nil {
		panic(err)
	}
	until("plain tasks", func() bool { return plain.Load() == 10 })
	until("the retries", func() bool { return tries.Load() == 3 })
	until("the delayed task", func() bool { return later.Load() == 1 })
	until("the group", func() bool { return grouped.Load() == 3 })
	until("the result", func() bool {
		info, err := inspector.GetTaskInfo("default", "kept")
		return err == nil && string(info.Result) == "result"
	})
	server.Shutdown()

	info := must(inspector.GetQueueInfo("default"))
	check([]int{info.Pending, info.Active, info.Scheduled, info.Completed}, []int{0, 0, 1, 1})
	check(must(inspector.DeleteAllScheduledTasks("default")), 1)
	check(must(inspector.DeleteAllCompletedTasks("default")), 1)
	if err := inspector.PauseQueue("default"); err != nil {
		panic(err)
	}
	check(must(inspector.GetQueueInfo("default")).Paused, true)
	must(client.Enqueue(asynq.NewTask("left", nil), asynq.TaskID("left")))
	if err := inspector.ArchiveTask("default", "left"); err != nil {
		panic(err)
	}
	check(must(inspector.RunAllArchivedTasks("default")), 1)
	if err := inspector.DeleteQueue("default", true); err != nil {
		panic(err)
	}
	check(must(inspector.Queues()), []string{"critical"})
}

func scripts(address string, protocol int) {
	client := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol})
	defer client.Close()
	raise := redis.NewScript("return redis.call('INCRBY', KEYS[1], ARGV[1])")
	key := []string{fmt.Sprintf("script%d", protocol)}
	check(must(raise.Run(ctx, client, key, 5).Int()), 5)
	check(must(raise.EvalSha(ctx, client, key, 5).Int()), 10)
	check(must(client.ScriptFlush(ctx).Result()), "OK")
	check(raise.EvalSha(ctx, client, key, 5).Err().Error(), "NOSCRIPT No matching script. Please use EVAL.")
	check(must(raise.Exists(ctx, client).Result()), []bool{false})
	check(must(raise.Run(ctx, client, key, 1).Int()), 11)
	check(must(raise.Load(ctx, client).Result()), raise.Hash())
	check(must(raise.Exists(ctx, client).Result()), []bool{true})
	read := redis.NewScript("return {redis.call('GET', KEYS[1]), false, {1, 'two'}, redis.status_reply('FINE')}")
	check(must(read.RunRO(ctx, client, key).Slice()), []any{"11", nil, []any{int64(1), "two"}, "FINE"})
	err := redis.NewScript("return redis.call('SET', KEYS[1], 1)").RunRO(ctx, client, key).Err()
	check(err != nil, true)
	pipe := client.TxPipeline()
	first, second := raise.Eval(ctx, pipe, key, 1), raise.EvalSha(ctx, pipe, key, 1)
	must(pipe.Exec(ctx))
	check([]any{first.Val(), second.Val()}, []any{int64(12), int64(13)})
}

func main() {
	address := "127.0.0.1:" + os.Args[1]
	tasks(address)
	scripts(address, 2)
	scripts(address, 3)
	fmt.Printf("operations: %d\n", count.Load())
}
