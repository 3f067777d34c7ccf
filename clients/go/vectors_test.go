package iris

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// vectors are the messages and conversations of the protocol iris.serve.1, which every client has to pass.
type vectors struct {
	Protocol string          `json:"protocol"`
	Ready    json.RawMessage `json:"ready"`
	Messages []struct {
		Name        string          `json:"name"`
		Text        string          `json:"text"`
		Binary      []byte          `json:"binary"`
		Head        json.RawMessage `json:"head"`
		Payload     json.RawMessage `json:"payload"`
		Bytes       []byte          `json:"bytes"`
		MessagePack []byte          `json:"msgpack"`
	} `json:"messages"`
	Conversations []struct {
		Name  string `json:"name"`
		Steps []struct {
			Door    map[string]any `json:"door"`
			Program map[string]any `json:"program"`
			Bytes   []byte         `json:"bytes"`
		} `json:"steps"`
	} `json:"conversations"`
}

func readVectors(t *testing.T) (read vectors) {
	t.Helper()
	data, err := os.ReadFile("../serve_vectors.json")
	if err == nil {
		err = json.Unmarshal(data, &read)
	}
	if err != nil {
		t.Fatal(err)
	}
	if read.Protocol != serveProtocol || len(read.Messages) == 0 || len(read.Conversations) == 0 {
		t.Fatal("vectors of another protocol: ", read.Protocol)
	}
	return read
}

func TestVectorsOfMessages(t *testing.T) {
	for _, vector := range readVectors(t).Messages {
		t.Run(vector.Name, func(t *testing.T) {
			kind, data := websocket.MessageText, []byte(vector.Text)
			if vector.Binary != nil {
				kind, data = websocket.MessageBinary, vector.Binary
			}
			var payload *Payload
			switch {
			case vector.Payload != nil:
				payload = &Payload{JSON, vector.Payload}
			case vector.Bytes != nil:
				payload = &Payload{Bytes, vector.Bytes}
			case vector.MessagePack != nil:
				payload = &Payload{MessagePack, vector.MessagePack}
			}
			checkMessage(t, kind, data, vector.Head, payload)
			var head outgoing
			if err := json.Unmarshal(vector.Head, &head); err != nil {
				t.Fatal(err)
			}
			if kind, data, err := encode(head, payload); err != nil {
				t.Fatal(err)
			} else {
				known, _ := json.Marshal(head) // of what a program sends; the others are the door's
				checkMessage(t, kind, data, known, payload)
			}
		})
	}
}

func checkMessage(t *testing.T, kind websocket.MessageType, data []byte, head json.RawMessage, payload *Payload) {
	t.Helper()
	got, err := decode(kind, data)
	if err != nil {
		t.Fatal(err)
	}
	var wanted incoming
	if err := json.Unmarshal(head, &wanted); err != nil {
		t.Fatal(err)
	}
	if payload != nil {
		if got.payload.Format != payload.Format || !same(got.payload, *payload) {
			t.Fatalf("got the payload %v, want %v", got.payload, *payload)
		}
	}
	got.envelope, got.payload, wanted.envelope = envelope{}, Payload{}, envelope{}
	if !reflect.DeepEqual(*got, wanted) {
		t.Fatalf("got %+v, want %+v", *got, wanted)
	}
}

func same(one, other Payload) bool {
	if one.Format != JSON {
		return bytes.Equal(one.Data, other.Data)
	}
	var first, second any
	return json.Unmarshal(one.Data, &first) == nil && json.Unmarshal(other.Data, &second) == nil &&
		reflect.DeepEqual(first, second)
}

// servedByVectors is the service that the vectors' "about" describes.
var servedByVectors = Service{
	Requests: map[string]RequestHandler{
		"": func(_ context.Context, request *Request) (any, error) { return request.Payload, nil },
		"fail": func(context.Context, *Request) (any, error) {
			return nil, fmt.Errorf("in vain: %w", &Error{Code: "no-tea", Detail: "there is none"})
		},
		"never": func(ctx context.Context, _ *Request) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	},
	Tunnels: map[string]TunnelHandler{
		"": func(ctx context.Context, tunnel *Tunnel, _ *Opening) error {
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
	},
}

func TestVectorsOfConversations(t *testing.T) {
	read := readVectors(t)
	for _, vector := range read.Conversations {
		t.Run(vector.Name, func(t *testing.T) {
			talk := func(ctx context.Context, socket *websocket.Conn) error {
				if err := socket.Write(ctx, websocket.MessageText, read.Ready); err != nil {
					return err
				}
				for _, step := range vector.Steps {
					if step.Door != nil {
						if err := say(ctx, socket, step.Door, step.Bytes); err != nil {
							return err
						}
					} else if err := expect(ctx, socket, step.Program, step.Bytes); err != nil {
						return err
					}
				}
				return nil
			}
			talked := make(chan error, 1)
			address := serveFake(t, func(ctx context.Context, socket *websocket.Conn) { talked <- talk(ctx, socket) })
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			client, err := Dial(ctx, address, Options{Token: "t"})
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error)
			go func() { served <- client.Serve(ctx, "orders", servedByVectors, ServeOptions{Capacity: 4}) }()
			if err := <-talked; err != nil {
				t.Fatal(err)
			}
			client.Close()
			<-served
		})
	}
}

// serveFake has a function talk to the first program that serves, and returns the address to come to.
func serveFake(t *testing.T, talk func(context.Context, *websocket.Conn)) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/iris.js" {
			return
		}
		if r.URL.Path != "/serve/orders" || r.URL.RawQuery != "capacity=4" || r.Header.Get("Authorization") != "Bearer t" {
			t.Error("a program came to ", r.URL)
		}
		socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{serveProtocol}})
		if err != nil {
			t.Error(err)
			return
		}
		defer socket.CloseNow()
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		talk(ctx, socket)
		socket.Close(websocket.StatusNormalClosure, "")
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func say(ctx context.Context, socket *websocket.Conn, head map[string]any, payload []byte) error {
	text, err := json.Marshal(head)
	if err != nil {
		return err
	}
	if payload == nil {
		return socket.Write(ctx, websocket.MessageText, text)
	}
	return socket.Write(ctx, websocket.MessageBinary, append(append(text, '\n'), payload...))
}

// expect reads what the program has sent next: it has these fields, and may have others.
func expect(ctx context.Context, socket *websocket.Conn, wanted map[string]any, payload []byte) error {
	for {
		kind, data, err := socket.Read(ctx)
		if err != nil {
			return fmt.Errorf("in place of %v: %w", wanted, err)
		}
		head, rest, _ := bytes.Cut(data, []byte("\n"))
		got := map[string]any{}
		if err := json.Unmarshal(head, &got); err != nil {
			return err
		}
		if got["type"] == "credit" && wanted["type"] != "credit" {
			continue
		}
		for name, value := range wanted {
			if !reflect.DeepEqual(got[name], value) {
				return fmt.Errorf("got %v, want %v", got, wanted)
			}
		}
		if payload != nil && (kind != websocket.MessageBinary || !bytes.Equal(rest, payload)) {
			return fmt.Errorf("got the payload %q, want %q", rest, payload)
		}
		return nil
	}
}
