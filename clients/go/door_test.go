package iris_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"iris-mesh/clients/go"
)

// patience is the time after which something that should have happened is taken not to happen.
const patience = 120 * time.Second

// door returns the address of the real door, and a token; without one the test is skipped.
func door(t testing.TB) (address, token string) {
	t.Helper()
	address, token = os.Getenv("IRIS_DOOR"), os.Getenv("IRIS_TOKEN")
	if address == "" || token == "" {
		t.Skip("needs a door, at the root of the checkout: python -m tests.support.door_for_clients go -C clients/go test")
	}
	return address, token
}

func dial(t testing.TB) (context.Context, *iris.Client) {
	t.Helper()
	address, token := door(t)
	return dialAt(t, address, iris.Options{Token: token})
}

func dialAt(t testing.TB, address string, options iris.Options) (context.Context, *iris.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	client, err := iris.Dial(ctx, address, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); cancel() })
	return ctx, client
}

func decode[T any](t testing.TB, payload iris.Payload, err error) T {
	t.Helper()
	var value T
	if err != nil {
		t.Fatal(err)
	}
	if err := payload.Decode(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

func wantError(t testing.TB, err error, wanted error) *iris.Error {
	t.Helper()
	if !errors.Is(err, wanted) {
		t.Fatalf("got %v, want %v", err, wanted)
	}
	var failure *iris.Error
	errors.As(err, &failure)
	return failure
}

func wantEqual[T comparable](t testing.TB, got, wanted T) {
	t.Helper()
	if got != wanted {
		t.Fatalf("got %v, want %v", got, wanted)
	}
}

// until waits until a condition holds.
func until(t testing.TB, holds func() bool) {
	t.Helper()
	for start := time.Now(); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatal("it does not happen")
		}
	}
}

func TestRequestCarriesEveryKindOfPayload(t *testing.T) {
	ctx, client := dial(t)
	reply, err := client.Request(ctx, "mirrors", map[string]any{"cups": 2, "of": []string{"tea", "ü😀\u2028"}})
	value := decode[struct {
		Cups int
		Of   []string
	}](t, reply, err)
	wantEqual(t, fmt.Sprint(value), "{2 [tea ü😀\u2028]}")
	reply, err = client.Request(ctx, "mirrors", []byte{0, 1, 255})
	wantEqual(t, string(decode[[]byte](t, reply, err)), "\x00\x01\xff")
	wantEqual(t, reply.Format, iris.Bytes)
	reply, err = client.Request(ctx, "mirrors", nil)
	wantEqual(t, decode[*int](t, reply, err), nil)
	reply, err = client.Request(ctx, "mirrors", []byte{7}, iris.Operation("nested"))
	wantEqual(t, reply.Format, iris.MessagePack)
	wantEqual(t, string(reply.Data), "\x81\xa5bytes\xc4\x01\x07")
	reply, err = client.Request(ctx, "mirrors", reply)
	wantEqual(t, string(reply.Data), "\x81\xa5bytes\xc4\x01\x07")
	large := bytes.Repeat([]byte("\x00\xff"), 1<<19)
	reply, err = client.Request(ctx, "mirrors", large)
	wantEqual(t, bytes.Equal(decode[[]byte](t, reply, err), large), true)
}

func TestHeadersAndOptionsReachTheMember(t *testing.T) {
	ctx, client := dial(t)
	reply, err := client.Request(
		ctx, "mirrors", nil, iris.Operation("headers"), iris.Header("trace", "ü"), iris.Key("k"), iris.Idempotent(),
		iris.Priority("high"), iris.Wait(time.Second), iris.Timeout(2*time.Second),
	)
	wantEqual(t, fmt.Sprint(decode[map[string]string](t, reply, err)), "map[iris-client:client trace:ü]")
}

func TestFailuresAreErrorsByTheirCode(t *testing.T) {
	ctx, client := dial(t)
	_, err := client.Request(ctx, "nobody", 1)
	wantEqual(t, wantError(t, err, iris.ErrNoSuchCluster).Status, 404)
	_, err = client.Request(ctx, "mirrors", 1, iris.Operation("fail"))
	failure := wantError(t, err, iris.Code("out-of-tea"))
	wantEqual(t, failure.Status, 502)
	wantEqual(t, failure.Detail, "no tea is left")
	_, err = client.Request(ctx, "mirrors", 1, iris.Operation("none"))
	wantError(t, err, iris.ErrNoSuchOperation)
	_, err = client.Request(ctx, "mirrors", 1, iris.Confirmed())
	wantError(t, err, iris.ErrMalformed)
	_, err = client.Request(ctx, "mirrors", make([]byte, 1<<20+1))
	wantError(t, err, iris.ErrTooLarge)
	_, err = client.Request(ctx, "mirrors", 1, iris.IdempotencyKey(`a "key"`))
	wantError(t, err, iris.ErrNoOutcomes)
	for _, header := range []iris.CallOption{iris.Header("a b", "1"), iris.Header("a", "1\n"), iris.IdempotencyKey("\x00")} {
		_, err = client.Request(ctx, "mirrors", 1, header, iris.Idempotent())
		wantEqual(t, wantError(t, err, iris.ErrMalformed).Status, 0) // which nobody has asked the door
	}
	_, err = client.Request(ctx, "mirrors", func() {})
	if err == nil || errors.As(err, &failure) {
		t.Fatal(err)
	}
	_, err = client.Request(ctx, "../iris.js", 1) // a name, and no way to another address of the door
	wantEqual(t, wantError(t, err, iris.ErrNotAllowed).Status, 403)
	address, _ := door(t)
	_, other := dialAt(t, address, iris.Options{Token: "wrong"})
	_, err = other.Request(ctx, "mirrors", 1)
	wantEqual(t, wantError(t, err, iris.ErrWrongToken).Status, 401)
}

func stopped(t testing.TB, ctx context.Context, client *iris.Client) int {
	t.Helper()
	reply, err := client.Request(ctx, "mirrors", nil, iris.Operation("stopped"))
	return decode[int](t, reply, err)
}

func TestTheHandlerIsCancelledWithTheContext(t *testing.T) {
	ctx, client := dial(t)
	before := stopped(t, ctx, client)
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, err := client.Request(short, "mirrors", nil, iris.Operation("never"))
	wantError(t, err, context.DeadlineExceeded)
	until(t, func() bool { return stopped(t, ctx, client) == before+1 })
	cancelled, cancel := context.WithCancel(ctx)
	time.AfterFunc(300*time.Millisecond, cancel)
	_, err = client.Request(cancelled, "mirrors", nil, iris.Operation("never"))
	wantError(t, err, context.Canceled)
	until(t, func() bool { return stopped(t, ctx, client) == before+2 })
	_, err = client.Request(ctx, "mirrors", nil, iris.Operation("never"), iris.Timeout(200*time.Millisecond))
	wantError(t, err, context.DeadlineExceeded)
	wantEqual(t, wantError(t, err, iris.ErrTimeout).Status, 504)
}

func TestBroadcastReachesTheMembers(t *testing.T) {
	ctx, client := dial(t)
	word := t.Name()
	if err := client.Broadcast(ctx, "mirrors", word, iris.Wait(time.Second)); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool {
		reply, err := client.Request(ctx, "mirrors", nil, iris.Operation("noted"))
		for _, noted := range decode[[]string](t, reply, err) {
			if noted == word {
				return true
			}
		}
		return false
	})
	wantError(t, client.Broadcast(ctx, "nobody", 1), iris.ErrNoSuchCluster)
}

func TestSurveyGathersAnswersAndTellsOfTheEnd(t *testing.T) {
	ctx, client := dial(t)
	survey, err := client.Survey(ctx, "mirrors", "all", iris.Timeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	var answers []string
	for answer, err := range survey.All() {
		answers = append(answers, decode[string](t, answer.Payload, err))
		wantEqual(t, answer.Member != "", true)
	}
	wantEqual(t, fmt.Sprint(answers), "[all]")
	wantEqual(t, survey.EndedBy, "all")
	wantEqual(t, len(survey.Missing), 0)
	survey, err = client.Survey(ctx, "mirrors", nil, iris.Operation("fail"), iris.Count(2))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range survey.All() {
		t.Fatal(err)
	}
	wantEqual(t, len(survey.Errors), 1)
	for _, failure := range survey.Errors {
		wantError(t, failure, iris.Code("out-of-tea"))
	}
	_, err = client.Survey(ctx, "nobody", nil)
	wantError(t, err, iris.ErrNoSuchCluster)
}

func TestEventsArriveAfterSubscribeHasReturned(t *testing.T) {
	ctx, client := dial(t)
	events, err := client.SubscribeGroup(ctx, "", "go.first.>", "go.second")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	for _, payload := range []any{1, []byte{2}, map[string]int{"n": 3}} {
		if err := client.Publish(ctx, "go.first.a", payload, iris.Header("who", "test"), iris.Key("k")); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for event, err := range events.All(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, event.Topic, "go.first.a")
		wantEqual(t, event.Headers["who"], "test")
		wantEqual(t, event.Missed, 0)
		if got = append(got, string(event.Payload.Data)); len(got) == 3 {
			break
		}
	}
	wantEqual(t, fmt.Sprint(got), "[1 \x02 {\"n\":3}]")
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = events.Next(short)
	wantError(t, err, context.DeadlineExceeded)
	if err := client.Publish(ctx, "go.second", "later"); err != nil {
		t.Fatal(err)
	}
	event, err := events.Next(ctx) // the wait that was given up has cost no event
	wantEqual(t, decode[string](t, event.Payload, err), "later")
	events.Close()
	_, err = events.Next(ctx)
	wantError(t, err, iris.ErrClosed)
}

func TestRetainedEventsAreMarked(t *testing.T) {
	ctx, client := dial(t)
	if err := client.Publish(ctx, "go.retained", "kept", iris.Retain()); err != nil {
		t.Fatal(err)
	}
	events, err := client.Subscribe(ctx, "go.retained")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	event, err := events.Next(ctx)
	wantEqual(t, decode[string](t, event.Payload, err), "kept")
	wantEqual(t, event.Retained, true)
}

func TestAGroupSharesEvents(t *testing.T) {
	ctx, client := dial(t)
	counts := make(chan string, 100)
	for _, name := range []string{"one", "two"} {
		events, err := client.SubscribeGroup(ctx, "workers", "go.shared")
		if err != nil {
			t.Fatal(err)
		}
		defer events.Close()
		go func() {
			for _, err := range events.All(ctx) {
				if err != nil {
					return
				}
				counts <- name
			}
		}()
	}
	for n := range 40 {
		if err := client.Publish(ctx, "go.shared", n); err != nil {
			t.Fatal(err)
		}
	}
	for range 40 {
		select {
		case <-counts:
		case <-ctx.Done():
			t.Fatal("fewer events than were published")
		}
	}
	wantEqual(t, len(counts), 0)
}

func TestSubscribeFailsAtOnceWhereItMayNot(t *testing.T) {
	ctx, client := dial(t)
	_, err := client.Subscribe(ctx, "a..b")
	wantError(t, err, iris.ErrMalformed)
	_, err = client.SubscribeGroup(ctx, "no/name", "a")
	wantError(t, err, iris.ErrBadGroup)
}

func TestATunnelCarriesMessagesInOrderBothWays(t *testing.T) {
	ctx, client := dial(t)
	tunnel, err := client.OpenTunnel(ctx, "mirrors", iris.Credit(4))
	if err != nil {
		t.Fatal(err)
	}
	defer tunnel.Close()
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
		if err := tunnel.CloseSend(); err != nil {
			t.Error(err)
		}
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
	_, err = tunnel.Receive(ctx)
	wantError(t, err, io.EOF)
	wantError(t, tunnel.Send(ctx, 1), iris.ErrClosed)
}

func TestATunnelIsThrottledByWhoReceives(t *testing.T) {
	ctx, client := dial(t)
	tunnel, err := client.OpenTunnel(ctx, "mirrors", iris.Operation("count"), iris.Credit(2))
	if err != nil {
		t.Fatal(err)
	}
	defer tunnel.Close()
	if err := tunnel.Send(ctx, 50); err != nil {
		t.Fatal(err)
	}
	for n := range 50 {
		message, err := tunnel.Receive(ctx)
		wantEqual(t, decode[int](t, message, err), n)
	}
	_, err = tunnel.Receive(ctx)
	wantError(t, err, io.EOF)
}

func TestAMemberThatDoesNotReceiveHoldsUpSend(t *testing.T) {
	ctx, client := dial(t)
	tunnel, err := client.OpenTunnel(ctx, "mirrors", iris.Operation("count"))
	if err != nil {
		t.Fatal(err)
	}
	defer tunnel.Close()
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	sent := 0
	for err == nil {
		err = tunnel.Send(short, 1_000_000_000)
		sent++
	}
	wantError(t, err, context.DeadlineExceeded)
	wantEqual(t, sent < 10_000, true)
	_, err = tunnel.Receive(ctx)
	if err != nil {
		t.Fatal(err) // a Send that was given up has not broken the tunnel
	}
}

func TestATunnelThatFailsTellsWhyAfterWhatArrived(t *testing.T) {
	ctx, client := dial(t)
	tunnel, err := client.OpenTunnel(ctx, "mirrors", iris.Operation("fail"))
	if err != nil {
		t.Fatal(err)
	}
	defer tunnel.Close()
	message, err := tunnel.Receive(ctx)
	wantEqual(t, decode[string](t, message, err), "last")
	if err := tunnel.Send(ctx, "enough"); err != nil {
		t.Fatal(err)
	}
	_, err = tunnel.Receive(ctx)
	failure := new(iris.Error)
	wantEqual(t, errors.As(err, &failure), true)
	wantEqual(t, failure.Status, 502)
	_, err = client.OpenTunnel(ctx, "nobody")
	wantEqual(t, wantError(t, err, iris.ErrNoSuchCluster).Status, 404)
}

func TestManyGoroutinesUseOneClient(t *testing.T) {
	ctx, client := dial(t)
	var working sync.WaitGroup
	for worker := range 8 {
		working.Add(1)
		go func() {
			defer working.Done()
			for n := range 10 {
				reply, err := client.Request(ctx, "mirrors", worker*100+n)
				if value := 0; err != nil || reply.Decode(&value) != nil || value != worker*100+n {
					t.Error(worker, n, value, err)
					return
				}
			}
		}()
	}
	working.Wait()
}

func TestDrainWaitsForCallsAndBeginsNone(t *testing.T) {
	ctx, client := dial(t)
	before := stopped(t, ctx, client)
	ended := make(chan error)
	go func() {
		_, err := client.Request(ctx, "mirrors", nil, iris.Operation("never"), iris.Timeout(time.Second))
		ended <- err
	}()
	drained := make(chan error)
	time.AfterFunc(300*time.Millisecond, func() { drained <- client.Drain(ctx) })
	wantError(t, <-ended, iris.ErrTimeout)
	wantError(t, <-drained, nil)
	_, err := client.Request(ctx, "mirrors", nil)
	wantError(t, err, iris.ErrClosed)
	_, again := dial(t)
	until(t, func() bool { return stopped(t, ctx, again) == before+1 })
}

func TestCloseEndsEverything(t *testing.T) {
	ctx, client := dial(t)
	events, err := client.Subscribe(ctx, "go.closed")
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := client.OpenTunnel(ctx, "mirrors")
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(300*time.Millisecond, func() { client.Close() })
	_, err = client.Request(ctx, "mirrors", nil, iris.Operation("never"))
	wantError(t, err, iris.ErrClosed)
	_, err = events.Next(ctx)
	wantError(t, err, iris.ErrClosed)
	_, err = tunnel.Receive(ctx)
	wantError(t, err, iris.ErrClosed)
}

// wire is a way to the real door that can be cut and mended.
type wire struct {
	listener net.Listener
	target   string
	mu       sync.Mutex
	open     map[net.Conn]bool
	isCut    bool
}

func wireTo(t *testing.T, address string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: listener, target: address[len("http://"):], open: map[net.Conn]bool{}}
	t.Cleanup(func() { listener.Close(); w.cut() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", w.target)
			if err != nil {
				t.Error(err)
			}
			w.mu.Lock()
			w.open[from], w.open[to] = true, true
			if w.isCut {
				from.Close()
				to.Close()
			}
			w.mu.Unlock()
			go func() { io.Copy(to, from); to.Close() }()
			go func() { io.Copy(from, to); from.Close() }()
		}
	}()
	return w
}

func (w *wire) address() string { return "http://" + w.listener.Addr().String() }

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = true
	for connection := range w.open {
		connection.Close()
	}
	clear(w.open)
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = false
}

func TestACutConnectionIsMadeAnew(t *testing.T) {
	address, token := door(t)
	w := wireTo(t, address)
	ctx, client := dialAt(t, w.address(), iris.Options{Token: token})
	events, err := client.Subscribe(ctx, "go.cut")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	tunnel, err := client.OpenTunnel(ctx, "mirrors")
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, w.cut)
	_, err = client.Request(ctx, "mirrors", nil, iris.Operation("never"))
	wantError(t, err, iris.ErrLost)
	_, err = tunnel.Receive(ctx)
	wantError(t, err, iris.ErrLost)
	_, err = client.Request(ctx, "mirrors", nil)
	wantError(t, err, iris.ErrLost)
	time.AfterFunc(500*time.Millisecond, w.mend)
	reply, err := client.Request(ctx, "mirrors", "again", iris.Idempotent())
	wantEqual(t, decode[string](t, reply, err), "again")
	event, err := events.Next(ctx)
	wantEqual(t, fmt.Sprint(event.Gap, event.Missed, err), "true -1 <nil>")
	if err := client.Publish(ctx, "go.cut", "after"); err != nil {
		t.Fatal(err)
	}
	event, err = events.Next(ctx)
	wantEqual(t, decode[string](t, event.Payload, err), "after")
}

func TestTheTokenMayChange(t *testing.T) {
	address, token := door(t)
	shown := "wrong"
	source := func(context.Context) (string, error) {
		if shown == "" {
			return "", errors.New("the vault is closed")
		}
		return shown, nil
	}
	ctx, client := dialAt(t, address, iris.Options{TokenSource: source})
	_, err := client.Request(ctx, "mirrors", 1)
	wantError(t, err, iris.ErrWrongToken)
	shown = token + "\n"
	if _, err = client.Request(ctx, "mirrors", 1); err != nil {
		t.Fatal(err)
	}
	shown = ""
	_, err = client.Request(ctx, "mirrors", 1)
	wantEqual(t, fmt.Sprint(err), "iris: no token: the vault is closed")
}

func TestNoDoorIsSaidAtOnce(t *testing.T) {
	ctx := context.Background()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	_, err = iris.Dial(ctx, "http://"+listener.Addr().String(), iris.Options{Token: "t"})
	wantError(t, err, iris.ErrNotSent)
	for _, address := range []string{"127.0.0.1:8080", "ftp://door", "", "http://", "http://door.example:8080"} {
		if _, err := iris.Dial(ctx, address, iris.Options{Token: "t"}); err == nil {
			t.Fatal(address)
		}
	}
}
