// The program of docs/howto/doors/go.md: it asks a cluster, and serves another one.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"iris-mesh/clients/go"
)

func confirm(_ context.Context, request *iris.Request) (any, error) {
	var article string
	if err := request.Payload.Decode(&article); err != nil {
		return nil, &iris.Error{Code: "no-article", Detail: "what is to be sent?"}
	}
	return article + " is on its way", nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	client, err := iris.Dial(ctx, "http://127.0.0.1:8080", iris.Options{Token: os.Getenv("TOKEN")})
	if err != nil {
		log.Fatal(err)
	}
	reply, err := client.Request(ctx, "greeters", "world")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(reply.Data))
	service := iris.Service{Requests: map[string]iris.RequestHandler{"": confirm}}
	if err := client.Serve(ctx, "orders", service, iris.ServeOptions{Capacity: 8}); err != nil {
		log.Fatal(err)
	}
}
