package iris_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"iris-mesh/clients/go"
)

// fake is a server that is no good door: handle has what comes after Dial.
func fake(t *testing.T, silence time.Duration, handle http.HandlerFunc) (context.Context, *iris.Client) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/iris.js" {
			handle(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return dialAt(t, server.URL, iris.Options{Token: "t", Silence: silence})
}

func TestAnAnswerThatIsNoneOfADoorIsSaid(t *testing.T) {
	ctx, client := fake(t, 0, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "<html>bad gateway</html>", http.StatusBadGateway)
	})
	_, err := client.Request(ctx, "a", 1)
	wantError(t, err, iris.ErrProtocol)
	_, err = client.OpenTunnel(ctx, "a")
	wantError(t, err, iris.ErrProtocol)
}

func TestARedirectIsNotFollowed(t *testing.T) {
	ctx, client := fake(t, 0, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			t.Error("the token went elsewhere")
		}
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	_, err := client.Request(ctx, "a", 1)
	wantError(t, err, iris.ErrProtocol)
}

func TestTheDeadlineTravels(t *testing.T) {
	ctx, client := fake(t, 0, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, "%q", r.URL.RawQuery)
	})
	for wanted, options := range map[string][]iris.CallOption{
		"":                     {},
		"timeout=2.5":          {iris.Timeout(2500 * time.Millisecond)},
		"timeout=5&wait=3":     {iris.Wait(3 * time.Second)},
		"hedge=0.25&timeout=5": {iris.Hedge(250 * time.Millisecond)},
	} {
		if wanted == "" {
			wanted = "timeout=5"
		}
		reply, err := client.Request(context.Background(), "a", 1, options...)
		wantEqual(t, decode[string](t, reply, err), wanted)
	}
	long, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	reply, err := client.Request(long, "a", 1, iris.Wait(10*time.Second))
	var seconds float64
	_, scanned := fmt.Sscanf(decode[string](t, reply, err), "timeout=%f&wait=10", &seconds)
	wantEqual(t, scanned, nil)
	wantEqual(t, seconds <= 40 && seconds > 39-patience.Seconds(), true)
}

func TestAnIdempotentRequestIsTriedAgainAndAPlainOneIsNot(t *testing.T) {
	var tries atomic.Int32
	ctx, client := fake(t, 0, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		switch tries.Add(1) % 3 {
		case 1:
			connection, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
			}
			connection.Close()
			return
		case 2:
			w.Header().Set("Content-Length", "100") // of which less comes
			fmt.Fprint(w, "1")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, r.URL.Query().Has("idempotent") || r.Header.Get("Idempotency-Key") == `"a \"key\" \\"`)
	})
	reply, err := client.Request(ctx, "a", 1, iris.Idempotent())
	wantEqual(t, decode[bool](t, reply, err), true)
	wantEqual(t, tries.Load(), 3)
	reply, err = client.Request(ctx, "a", 1, iris.IdempotencyKey(`a "key" \`))
	wantEqual(t, decode[bool](t, reply, err), true)
	before := tries.Load()
	_, err = client.Request(ctx, "a", 1)
	wantError(t, err, iris.ErrLost)
	wantEqual(t, tries.Load(), before+1)
}

func TestASilentDoorIsTakenForLost(t *testing.T) {
	var opened atomic.Int32
	ctx, client := fake(t, 200*time.Millisecond, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/tunnel/") {
			socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"iris.tunnel.1"}})
			if err != nil {
				t.Error(err)
				return
			}
			defer socket.CloseNow()
			socket.Write(r.Context(), websocket.MessageText, []byte(`{"credit":1}`))
			time.Sleep(time.Second) // a pong would be sent by a reader
			return
		}
		if opened.Add(1) > 1 && r.Header.Get("Last-Event-Id") != "" {
			fmt.Fprint(w, "id: x-1\nevent: gap\ndata: {\"missed\":null}\n\n")
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	events, err := client.Subscribe(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	event, err := events.Next(ctx)
	wantEqual(t, fmt.Sprint(event.Gap, event.Missed, err), "true -1 <nil>")
	events.Close()
	tunnel, err := client.OpenTunnel(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	_, err = tunnel.Receive(ctx)
	wantError(t, err, iris.ErrLost)
}

func TestASubscriptionEndsByWhatHasNoHope(t *testing.T) {
	answers := []string{
		"data: {\"topic\":\"a\",\"payload\":null,\"missed\":3}\n\nevent: end\ndata: {\"status\":401,\"code\":\"ended\",\"detail\":\"closes\"}\n\n",
		"event: gap\ndata: {\"missed\":2}\n\n: a comment\n\nevent: end\ndata: {\"status\":503,\"code\":\"overloaded\",\"detail\":\"\"}\n\n",
		"event: end\ndata: {\"status\":403,\"code\":\"not_allowed\",\"detail\":\"no more\"}\n\n",
	}
	var opened atomic.Int32
	ctx, client := fake(t, 0, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answers[opened.Add(1)-1]) })
	events, err := client.Subscribe(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for event, err := range events.All(ctx) {
		if err != nil {
			wantError(t, err, iris.ErrNotAllowed)
			break
		}
		got = append(got, fmt.Sprint(event.Topic, string(event.Payload.Data), event.Missed, event.Gap))
	}
	wantEqual(t, fmt.Sprint(got), "[anull3 false 2 true]")
}

func TestASurveyThatIsCutOffFails(t *testing.T) {
	ctx, client := fake(t, 0, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "{\"member\":\"m\",\"payload\":\"eA==\",\"encoding\":\"base64\"}\n")
	})
	survey, err := client.Survey(ctx, "a", 1)
	if err != nil {
		t.Fatal(err)
	}
	answers := 0
	for answer, err := range survey.All() {
		if err != nil {
			wantError(t, err, iris.ErrLost)
			break
		}
		wantEqual(t, string(answer.Payload.Data), "x")
		answers++
	}
	wantEqual(t, answers, 1)
	wantEqual(t, survey.EndedBy, "")
}

func TestADoorThatDoesNotKeepToTheProtocolCostsItsTunnelOnly(t *testing.T) {
	says := make(chan []string, 1)
	ctx, client := fake(t, 0, func(w http.ResponseWriter, r *http.Request) {
		socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"iris.tunnel.1"}})
		if err != nil {
			t.Error(err)
			return
		}
		defer socket.CloseNow()
		for _, message := range <-says {
			socket.Write(r.Context(), websocket.MessageText, []byte(message))
		}
		for err == nil { // and drops what the client has sent meanwhile
			_, _, err = socket.Read(r.Context())
		}
	})
	for _, messages := range [][]string{
		{`{"credit":1}`, `{"credit":-1}`},
		{`{"credit":1}`, `{"credit":1048576}`},
		{`{"credit":1}`, `{"eof":true}`, `{"payload":1}`},
		{`{"credit":1}`, `{"eof":true}`, `{"eof":true}`},
		{`{"credit":1}`, `{"payload":"!","encoding":"base64"}`},
		{`{"credit":1}`, `{"payload":"eA==","encoding":"gzip"}`},
		{`{"credit":1}`, `nothing`},
		{`{"credit":1}`, `[1]`},
		{`{"credit":1}`, `{}`},
	} {
		says <- messages
		tunnel, err := client.OpenTunnel(ctx, "a", iris.Credit(2))
		for err == nil {
			if _, err = tunnel.Receive(ctx); err == io.EOF {
				until(t, func() bool { err = tunnel.Send(ctx, 1); return err != nil })
			}
		}
		wantError(t, err, iris.ErrProtocol)
	}
	says <- []string{`{"credit":1}`, `{"payload":1}`, `{"payload":2}`, `{"payload":3}`}
	tunnel, err := client.OpenTunnel(ctx, "a", iris.Credit(2))
	for err == nil { // without receiving, which would lend credit for the third payload
		err = tunnel.Send(ctx, 1)
	}
	wantError(t, err, iris.ErrProtocol)
}

func TestTheDoorIsKnownByItsCertificate(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tunnel/a" {
			socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"iris.tunnel.1"}})
			if err == nil {
				socket.Close(4404, "no_such_cluster: nobody is there")
			}
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, r.ProtoMajor)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer server.Close()
	if _, err := iris.Dial(context.Background(), server.URL, iris.Options{Token: "t"}); err == nil {
		t.Fatal("a door that nobody knows is believed")
	}
	known := x509.NewCertPool()
	known.AddCert(server.Certificate())
	ctx, client := dialAt(t, server.URL, iris.Options{Token: "t", TLS: &tls.Config{RootCAs: known}})
	reply, err := client.Request(ctx, "a", 1)
	wantEqual(t, decode[int](t, reply, err), 1)
	_, err = client.OpenTunnel(ctx, "a")
	wantEqual(t, wantError(t, err, iris.ErrNoSuchCluster).Detail, "nobody is there")
}
