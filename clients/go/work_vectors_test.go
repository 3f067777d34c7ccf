package iris

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// workVectors are conversations about jobs, the log and leases, which every client has to pass.
type workVectors struct {
	Protocols     map[string]string `json:"protocols"`
	Paths         map[string]string `json:"paths"`
	Conversations []struct {
		Name  string `json:"name"`
		Kind  string `json:"kind"`
		Steps []struct {
			Door    map[string]any `json:"door"`
			Program map[string]any `json:"program"`
			Bytes   []byte         `json:"bytes"`
		} `json:"steps"`
	} `json:"conversations"`
}

// inVectors does what the vectors' "about" says.
var inVectors = map[string]func(context.Context, *Client) error{
	"take": func(ctx context.Context, client *Client) error {
		return client.Work(ctx, "jobs", func(_ context.Context, job *Job) error {
			var word string
			if job.Payload.Decode(&word) == nil && word == "fail" {
				return errors.New("no tea")
			} else if word == "hopeless" {
				return Permanent(errors.New("no hope"))
			}
			return nil
		}, WorkOptions{Limit: 4})
	},
	"read": func(ctx context.Context, client *Client) error {
		read := func(context.Context, *LogBatch) error { return nil }
		return client.ReadLog(ctx, []string{"orders.>"}, read, ReadOptions{Group: "billing"})
	},
	"lease": func(ctx context.Context, client *Client) error {
		hold := func(context.Context, *Lease) error { return nil }
		return client.HoldLease(ctx, "orders", "leader", hold, LeaseOptions{TTL: time.Second})
	},
}

func TestVectorsOfWork(t *testing.T) {
	var read workVectors
	data, err := os.ReadFile("../work_vectors.json")
	if err == nil {
		err = json.Unmarshal(data, &read)
	}
	if err != nil || len(read.Conversations) == 0 {
		t.Fatal(err)
	}
	for _, vector := range read.Conversations {
		t.Run(vector.Name, func(t *testing.T) {
			talk := func(ctx context.Context, socket *websocket.Conn) error {
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
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/iris.js" || len(talked) == 1 {
					return
				}
				if r.URL.Path+"?"+r.URL.Query().Encode() != read.Paths[vector.Kind] {
					t.Error("a program came to ", r.URL)
				}
				socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{read.Protocols[vector.Kind]}})
				if err != nil {
					t.Error(err)
					return
				}
				defer socket.CloseNow()
				talked <- talk(r.Context(), socket)
				socket.Close(websocket.StatusNormalClosure, "")
			}))
			t.Cleanup(server.Close)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			client, err := Dial(ctx, server.URL, Options{Token: "t"})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- inVectors[vector.Kind](ctx, client) }()
			if err := <-talked; err != nil {
				t.Fatal(err)
			}
			client.Close()
			<-done
		})
	}
}
