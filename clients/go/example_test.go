package iris_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"iris-mesh/clients/go"
)

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client, err := iris.Dial(ctx, "http://127.0.0.1:8080", iris.Options{Token: os.Getenv("IRIS_TOKEN")})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	reply, err := client.Request(ctx, "prices", "tea", iris.Operation("price"), iris.Idempotent())
	switch {
	case errors.Is(err, iris.ErrNoSuchCluster):
		log.Fatal("nobody serves prices")
	case errors.Is(err, iris.Code("unknown-article")): // a word of the service's own
		log.Fatal("no tea")
	case err != nil:
		log.Fatal(err)
	}
	var price float64
	if err := reply.Decode(&price); err != nil {
		log.Fatal(err)
	}
	fmt.Println(price)
}

func ExampleClient_Subscribe() {
	var client *iris.Client // of iris.Dial
	ctx := context.Background()
	events, err := client.Subscribe(ctx, "orders.>")
	if err != nil {
		log.Fatal(err)
	}
	defer events.Close()
	for event, err := range events.All(ctx) {
		if err != nil {
			log.Fatal(err) // the token is no longer good, for example: a lost connection is made anew
		}
		if event.Missed != 0 {
			log.Print("events were lost")
		}
		if !event.Gap {
			fmt.Println(event.Topic, string(event.Payload.Data))
		}
	}
}

func ExampleClient_Survey() {
	var client *iris.Client // of iris.Dial
	ctx := context.Background()
	survey, err := client.Survey(ctx, "machines", "load", iris.Timeout(2*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	for answer, err := range survey.All() {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer.Member, string(answer.Payload.Data))
	}
	fmt.Println("silent:", survey.Missing)
}

func ExampleClient_OpenTunnel() {
	var client *iris.Client // of iris.Dial
	ctx := context.Background()
	tunnel, err := client.OpenTunnel(ctx, "printers")
	if err != nil {
		log.Fatal(err)
	}
	defer tunnel.Close()
	go func() {
		for page := range 100 {
			if err := tunnel.Send(ctx, fmt.Sprintf("page %d", page)); err != nil { // waits until there is room
				log.Print(err)
				return
			}
		}
		_ = tunnel.CloseSend()
	}()
	for message, err := range tunnel.All(ctx) { // until the member has sent its last one
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(message.Data))
	}
}

func ExampleClient_Serve() {
	var client *iris.Client // of iris.Dial
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	service := iris.Service{
		Requests: map[string]iris.RequestHandler{
			"price": func(ctx context.Context, request *iris.Request) (any, error) {
				var article string
				if err := request.Payload.Decode(&article); err != nil {
					return nil, &iris.Error{Code: iris.ErrBadRequest, Detail: "an article is a text"}
				}
				if article != "tea" {
					return nil, &iris.Error{Code: "unknown-article", Detail: article}
				}
				return 2.5, nil
			},
		},
		Broadcast: func(ctx context.Context, message *iris.Message) error {
			log.Print("told: ", string(message.Payload.Data))
			return nil
		},
	}
	if err := client.Serve(ctx, "prices", service, iris.ServeOptions{Capacity: 32}); err != nil {
		log.Fatal(err)
	}
}
