package iris_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iris-mesh/clients/go"
)

type (
	requests = map[string]iris.RequestHandler
	tunnels  = map[string]iris.TunnelHandler
)

// serving serves a cluster until it is stopped, and returns its name, and what stops it and returns what Serve has returned.
func serving(t *testing.T, client *iris.Client, service iris.Service, capacity int) (cluster string, stop func() error) {
	t.Helper()
	cluster = fmt.Sprintf("go.%s", t.Name())
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan string, 100), make(chan error, 1)
	go func() {
		ended <- client.Serve(ctx, cluster, service, iris.ServeOptions{
			Capacity: capacity, Ready: func(member string) { ready <- member }, Logger: slog.New(slog.DiscardHandler),
		})
	}()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { stop() })
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	case <-time.After(patience):
		t.Fatal("the door does not register the program")
	}
	return cluster, stop
}

func TestServeAnswersRequestsAndSurveys(t *testing.T) {
	ctx, client := dial(t)
	cluster, stop := serving(t, client, iris.Service{Requests: requests{
		"":        func(_ context.Context, r *iris.Request) (any, error) { return r.Payload, nil },
		"headers": func(_ context.Context, r *iris.Request) (any, error) { return r.Headers, nil },
		"sender":  func(_ context.Context, r *iris.Request) (any, error) { return r.Sender.Cluster, nil },
		"left": func(ctx context.Context, _ *iris.Request) (any, error) {
			deadline, has := ctx.Deadline()
			return has && time.Until(deadline) < 3*time.Second, nil
		},
		"fail": func(context.Context, *iris.Request) (any, error) {
			return nil, fmt.Errorf("in vain: %w", &iris.Error{Code: "no-tea", Detail: "there is none"})
		},
		"code":   func(context.Context, *iris.Request) (any, error) { return nil, iris.Code("no-milk") },
		"plain":  func(context.Context, *iris.Request) (any, error) { return nil, errors.New("a plain one") },
		"odd":    func(context.Context, *iris.Request) (any, error) { return nil, iris.Code("no name!") },
		"panic":  func(context.Context, *iris.Request) (any, error) { panic("a secret") },
		"large":  func(context.Context, *iris.Request) (any, error) { return make([]byte, 1<<20), nil },
		"long":   func(context.Context, *iris.Request) (any, error) { return nil, errors.New(strings.Repeat("ü", 5000)) },
		"number": func(context.Context, *iris.Request) (any, error) { return func() {}, nil },
	}}, 0)
	reply, err := client.Request(ctx, cluster, map[string]any{"ü": []int{1}}, iris.Wait(5*time.Second))
	wantEqual(t, string(reply.Data), `{"ü":[1]}`)
	wantEqual(t, err, nil)
	reply, err = client.Request(ctx, cluster, []byte{0, 10, 255})
	wantEqual(t, string(decode[[]byte](t, reply, err)), "\x00\n\xff")
	reply, err = client.Request(ctx, cluster, nil, iris.Operation("headers"), iris.Header("trace", "7"))
	wantEqual(t, fmt.Sprint(decode[map[string]string](t, reply, err)), "map[iris-client:client trace:7]")
	reply, err = client.Request(ctx, cluster, nil, iris.Operation("sender"))
	wantEqual(t, decode[string](t, reply, err) != "", true)
	reply, err = client.Request(ctx, cluster, nil, iris.Operation("left"), iris.Timeout(3*time.Second))
	wantEqual(t, decode[bool](t, reply, err), true)
	for operation, wanted := range map[string]string{
		"fail": "no-tea: there is none", "code": "no-milk: iris: no-milk", "plain": "error: a plain one",
		"odd": "error: iris: no name!", "panic": "error: the handler failed",
		"long":   "error: " + strings.Repeat("ü", 512),
		"number": "error: iris: the payload cannot be sent: json: unsupported type: func()", "none": `no_such_operation: no operation "none"`,
	} {
		_, err := client.Request(ctx, cluster, nil, iris.Operation(operation))
		wantEqual(t, fmt.Sprint(err), "iris: "+wanted)
	}
	_, err = client.Request(ctx, cluster, nil, iris.Operation("large")) // and its head: more than a message may have
	wantError(t, err, iris.Code("reply_too_large"))
	survey, err := client.Survey(ctx, cluster, "all", iris.Timeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	answers := 0
	for answer, err := range survey.All() {
		wantEqual(t, decode[string](t, answer.Payload, err), "all")
		answers++
	}
	wantEqual(t, answers, 1)
	wantEqual(t, stop(), nil)
}

func TestServeTakesBroadcastsInOrder(t *testing.T) {
	ctx, client := dial(t)
	var got []int
	done := make(chan bool)
	cluster, _ := serving(t, client, iris.Service{Broadcast: func(_ context.Context, message *iris.Message) error {
		var n int
		err := message.Payload.Decode(&n)
		if got = append(got, n); len(got) == 80 {
			close(done)
		}
		return errors.Join(err, errors.New("which is logged"))
	}}, 0)
	for n := range 80 {
		if err := client.Broadcast(ctx, cluster, n, iris.Wait(5*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal("fewer broadcasts than were made")
	}
	for n := range 80 {
		wantEqual(t, got[n], n)
	}
}

func TestServeCarriesTunnels(t *testing.T) {
	ctx, client := dial(t)
	ended := make(chan error, 1)
	cluster, _ := serving(t, client, iris.Service{Tunnels: tunnels{
		"": func(ctx context.Context, tunnel *iris.Tunnel, _ *iris.Opening) error {
			for message, err := range tunnel.All(ctx) {
				if err != nil {
					return err
				}
				if err := tunnel.Send(ctx, message); err != nil {
					return err
				}
			}
			return nil
		},
		"close": func(ctx context.Context, tunnel *iris.Tunnel, opening *iris.Opening) error {
			defer tunnel.Close()
			if err := tunnel.Send(ctx, opening.Headers["trace"]); err != nil {
				return err
			}
			if err := tunnel.CloseSend(); err != nil {
				return err
			}
			_, err := tunnel.Receive(ctx)
			if err != io.EOF {
				return fmt.Errorf("got %w, want io.EOF", err)
			}
			return nil
		},
		"fail": func(ctx context.Context, tunnel *iris.Tunnel, _ *iris.Opening) error {
			_, err := tunnel.Receive(ctx)
			return errors.Join(err, iris.Code("no-tea"))
		},
		"wait": func(ctx context.Context, _ *iris.Tunnel, _ *iris.Opening) error {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil
		},
	}}, 0)
	tunnel, err := client.OpenTunnel(ctx, cluster, iris.Credit(3), iris.Wait(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for n := range 100 {
			var message any = n
			if n%2 == 1 {
				message = []byte{byte(n)}
			}
			if err := tunnel.Send(ctx, message); err != nil {
				t.Error(err)
				return
			}
		}
		tunnel.CloseSend()
	}()
	n := 0
	for message, err := range tunnel.All(ctx) {
		if n%2 == 0 {
			wantEqual(t, decode[int](t, message, err), n)
		} else {
			wantEqual(t, string(decode[[]byte](t, message, err)), string([]byte{byte(n)}))
		}
		n++
	}
	wantEqual(t, n, 100)

	tunnel, err = client.OpenTunnel(ctx, cluster, iris.Operation("close"), iris.Header("trace", "7"))
	if err != nil {
		t.Fatal(err)
	}
	tunnel.CloseSend()
	message, err := tunnel.Receive(ctx)
	wantEqual(t, decode[string](t, message, err), "7")
	_, err = tunnel.Receive(ctx)
	wantError(t, err, io.EOF)

	tunnel, err = client.OpenTunnel(ctx, cluster, iris.Operation("fail"))
	if err != nil {
		t.Fatal(err)
	}
	if err := tunnel.Send(ctx, 1); err != nil {
		t.Fatal(err)
	}
	_, err = tunnel.Receive(ctx)
	var failure *iris.Error
	wantEqual(t, errors.As(err, &failure) && failure.Status == 502, true)

	tunnel, err = client.OpenTunnel(ctx, cluster, iris.Operation("wait"))
	if err != nil {
		t.Fatal(err)
	}
	tunnel.Close()
	select {
	case err := <-ended:
		wantEqual(t, errors.As(err, &failure), true)
	case <-ctx.Done():
		t.Fatal("the handler of a tunnel that broke goes on")
	}
}

func TestAServedRequestIsCancelledWithItsCaller(t *testing.T) {
	ctx, client := dial(t)
	began, ended := make(chan bool, 2), make(chan error, 2)
	cluster, _ := serving(t, client, iris.Service{Requests: requests{
		"": func(ctx context.Context, _ *iris.Request) (any, error) {
			began <- true
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		},
	}}, 1)
	calling, cancel := context.WithCancel(ctx)
	go func() { <-began; cancel() }()
	_, err := client.Request(calling, cluster, nil, iris.Wait(5*time.Second), iris.Timeout(20*time.Second))
	wantError(t, err, context.Canceled)
	wantError(t, <-ended, context.Canceled)
	_, err = client.Request(ctx, cluster, nil, iris.Timeout(300*time.Millisecond))
	wantError(t, err, iris.ErrTimeout)
	if err := <-ended; err == nil {
		t.Fatal("it has not ended")
	}
}

func TestServeFinishesWhatIsInProgress(t *testing.T) {
	ctx, client := dial(t)
	began, finish := make(chan bool, 1), make(chan bool)
	cluster, stop := serving(t, client, iris.Service{Requests: requests{
		"": func(context.Context, *iris.Request) (any, error) { began <- true; <-finish; return "done", nil },
	}}, 4)
	replied := make(chan error, 1)
	go func() {
		reply, err := client.Request(ctx, cluster, nil, iris.Wait(5*time.Second), iris.Timeout(20*time.Second))
		if err == nil && string(reply.Data) != `"done"` {
			err = fmt.Errorf("got %s", reply.Data)
		}
		replied <- err
	}()
	<-began
	time.AfterFunc(300*time.Millisecond, func() { close(finish) })
	wantEqual(t, stop(), nil)
	wantEqual(t, <-replied, nil)
	until(t, func() bool {
		_, err := client.Request(ctx, cluster, nil)
		return errors.Is(err, iris.ErrNoSuchCluster)
	})
}

func TestDrainOfAClientFinishesItsServices(t *testing.T) {
	ctx, client := dial(t)
	_, serves := dial(t)
	began := make(chan bool, 1)
	cluster, stop := serving(t, serves, iris.Service{Requests: requests{
		"": func(context.Context, *iris.Request) (any, error) {
			began <- true
			time.Sleep(300 * time.Millisecond)
			return "done", nil
		},
	}}, 4)
	go func() { <-began; serves.Drain(ctx) }()
	reply, err := client.Request(ctx, cluster, nil, iris.Wait(5*time.Second))
	wantEqual(t, decode[string](t, reply, err), "done")
	wantEqual(t, stop(), nil)
	wantError(t, serves.Serve(ctx, cluster, iris.Service{}, iris.ServeOptions{}), iris.ErrClosed)
}

func TestAServiceComesBack(t *testing.T) {
	address, token := door(t)
	w := wireTo(t, address)
	ctx, client := dial(t)
	_, serves := dialAt(t, w.address(), iris.Options{Token: token})
	began, ended := make(chan bool, 10), make(chan error, 10)
	cluster, stop := serving(t, serves, iris.Service{Requests: requests{
		"": func(_ context.Context, r *iris.Request) (any, error) { return r.Payload, nil },
		"never": func(ctx context.Context, _ *iris.Request) (any, error) {
			began <- true
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil, ctx.Err()
		},
	}}, 4)
	go func() { <-began; w.cut() }()
	_, err := client.Request(ctx, cluster, nil, iris.Operation("never"), iris.Wait(5*time.Second), iris.Timeout(20*time.Second))
	wantError(t, err, iris.ErrUnknown)
	wantError(t, <-ended, iris.ErrLost)
	w.mend()
	var reply iris.Payload
	until(t, func() bool {
		reply, err = client.Request(ctx, cluster, "again", iris.Idempotent(), iris.Wait(5*time.Second))
		return err == nil
	})
	wantEqual(t, decode[string](t, reply, err), "again")
	wantEqual(t, stop(), nil)
}

func TestServeSaysWhatHasNoHope(t *testing.T) {
	ctx, client := dial(t)
	err := client.Serve(ctx, "forbidden", iris.Service{}, iris.ServeOptions{})
	wantEqual(t, wantError(t, err, iris.ErrNotAllowed).Status, 403)
	err = client.Serve(ctx, "go.x", iris.Service{}, iris.ServeOptions{Capacity: 100_000})
	wantError(t, err, iris.ErrMalformed)
	address, _ := door(t)
	_, other := dialAt(t, address, iris.Options{Token: "wrong"})
	wantError(t, other.Serve(ctx, "go.x", iris.Service{}, iris.ServeOptions{}), iris.ErrWrongToken)
}

func TestTwoProgramsShareRequests(t *testing.T) {
	ctx, client := dial(t)
	var counts [2]atomic.Int32
	for n := range counts {
		_, serves := dial(t)
		serving(t, serves, iris.Service{Requests: requests{
			"": func(context.Context, *iris.Request) (any, error) { counts[n].Add(1); return nil, nil },
		}}, 4)
	}
	var asking sync.WaitGroup
	for range 8 {
		asking.Add(1)
		go func() {
			defer asking.Done()
			for range 20 {
				if _, err := client.Request(ctx, "go."+t.Name(), nil, iris.Wait(5*time.Second)); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	asking.Wait()
	first, second := counts[0].Load(), counts[1].Load()
	wantEqual(t, first+second, 160)
	if first < 40 || second < 40 {
		t.Fatal("not shared: ", first, second)
	}
}
