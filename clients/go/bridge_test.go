package iris_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"iris-mesh/clients/go"
)

func TestJobsAreDoneOrTriedAgain(t *testing.T) {
	ctx, client := dial(t)
	working, stop := context.WithCancel(ctx)
	defer stop()
	wantEqual(t, client.Put(ctx, "go.jobs", map[string]int{"n": 1}, iris.Key("k"), iris.JobPriority(1), iris.Timeout(40*time.Second)), nil)
	wantEqual(t, client.Put(ctx, "go.jobs", []byte{0, '\n'}, iris.Header("trace", "7"), iris.Timeout(40*time.Second)), nil)
	var mu sync.Mutex
	seen := map[string]int{}
	worked := make(chan error, 1)
	go func() {
		worked <- client.Work(working, "go.jobs", func(_ context.Context, job *iris.Job) error {
			job.Extend()
			mu.Lock()
			defer mu.Unlock()
			seen[fmt.Sprint(job.Key, string(job.Payload.Data), job.Headers["trace"], job.Attempt)]++
			if job.Attempt == 1 && job.Key == "k" {
				panic("the first time")
			}
			if job.Key == "" {
				return iris.Permanent(errors.New("no tea"))
			}
			return nil
		}, iris.WorkOptions{Limit: 4, Attempts: 3, Backoff: 10 * time.Millisecond, Lease: 20 * time.Second})
	}()
	until(t, func() bool {
		status, err := client.QueueStatus(ctx, "go.jobs")
		return err == nil && status["done"] == 1 && status["dead"] == 1 && status["in_hand"] == 0
	})
	stop()
	wantEqual(t, <-worked, nil)
	wantEqual(t, fmt.Sprint(seen), "map[\x00\n71:1 k{\"n\":1}1:1 k{\"n\":1}2:1]")
}

func TestAWorkerFinishesWhatItHasWhenItStops(t *testing.T) {
	ctx, client := dial(t)
	working, stop := context.WithCancel(ctx)
	wantEqual(t, client.Put(ctx, "go.slow", 1, iris.Timeout(40*time.Second)), nil)
	err := client.Work(working, "go.slow", func(ctx context.Context, _ *iris.Job) error {
		stop()
		time.Sleep(100 * time.Millisecond)
		return ctx.Err()
	}, iris.WorkOptions{})
	wantEqual(t, err, nil)
	until(t, func() bool {
		status, err := client.QueueStatus(ctx, "go.slow")
		return err == nil && status["done"] == 1
	})
}

func TestWhatTheTokenDoesNotPermitIsRefused(t *testing.T) {
	ctx, client := dial(t)
	nothing := func(context.Context, *iris.Job) error { return nil }
	wantError(t, client.Work(ctx, "others", nothing, iris.WorkOptions{}), iris.ErrNotAllowed)
	wantError(t, client.Work(ctx, "go.jobs", nothing, iris.WorkOptions{Limit: 1025}), iris.ErrMalformed)
	read := func(context.Context, *iris.LogBatch) error { return nil }
	wantError(t, client.ReadLog(ctx, []string{"others"}, read, iris.ReadOptions{Group: "go"}), iris.ErrNotAllowed)
	hold := func(context.Context, *iris.Lease) error { return nil }
	wantError(t, client.HoldLease(ctx, "others", "leader", hold, iris.LeaseOptions{}), iris.ErrNotAllowed)
	_, err := client.QueueStatus(ctx, "others")
	wantError(t, err, iris.ErrNotAllowed)
}

func TestAGroupGoesOnWhereItWas(t *testing.T) {
	ctx, client := dial(t)
	for number := range 3 {
		wantEqual(t, client.Publish(ctx, "go.log", number, iris.Confirmed(), iris.Timeout(40*time.Second)), nil)
	}
	enough := errors.New("enough")
	read := func(options iris.ReadOptions, end func(*iris.LogBatch) error) (string, error) {
		var found []string
		err := client.ReadLog(ctx, []string{"go.log"}, func(_ context.Context, batch *iris.LogBatch) error {
			for _, event := range batch.Events {
				found = append(found, string(event.Payload.Data))
			}
			return end(batch)
		}, options)
		return fmt.Sprint(found), err
	}
	found, err := read(iris.ReadOptions{Group: "go", Now: true}, func(*iris.LogBatch) error { return nil })
	wantEqual(t, found+fmt.Sprint(err), "[0 1 2]<nil>")
	wantEqual(t, client.Publish(ctx, "go.log", 3, iris.Confirmed(), iris.Timeout(40*time.Second)), nil)
	for range 2 {
		found, err = read(iris.ReadOptions{Group: "go"}, func(*iris.LogBatch) error { return enough })
		wantEqual(t, found+fmt.Sprint(err), "[3]enough")
	}
	found, err = read(iris.ReadOptions{Now: true, Start: "earliest", Limit: 1}, func(*iris.LogBatch) error { return nil })
	wantEqual(t, found+fmt.Sprint(err), "[0 1 2 3]<nil>")
	reading, stop := context.WithCancel(ctx)
	err = client.ReadLog(reading, []string{"go.log"}, func(context.Context, *iris.LogBatch) error {
		stop()
		return nil
	}, iris.ReadOptions{})
	wantEqual(t, err, nil)
}

func TestALeaseIsHeldByOneAndItsTokenGrows(t *testing.T) {
	ctx, client := dial(t)
	options := iris.LeaseOptions{TTL: time.Second, Timeout: 40 * time.Second}
	var first int64
	err := client.HoldLease(ctx, "iris.door", "go", func(ctx context.Context, lease *iris.Lease) error {
		first = lease.Token
		short := iris.LeaseOptions{TTL: time.Second, Timeout: 100 * time.Millisecond}
		wantError(t, client.HoldLease(ctx, "iris.door", "go", nil, short), iris.ErrTimeout)
		time.Sleep(1500 * time.Millisecond) // it is renewed meanwhile
		return ctx.Err()
	}, options)
	wantEqual(t, err, nil)
	held, stop := context.WithCancel(ctx)
	err = client.HoldLease(held, "iris.door", "go", func(ctx context.Context, lease *iris.Lease) error {
		wantEqual(t, lease.Token > first, true)
		stop()
		<-ctx.Done()
		return ctx.Err()
	}, options)
	wantEqual(t, errors.Is(err, context.Canceled), true)
	err = client.HoldLease(ctx, "iris.door", "go", func(context.Context, *iris.Lease) error { return errors.New("mine") }, options)
	wantEqual(t, err.Error(), "mine")
}
