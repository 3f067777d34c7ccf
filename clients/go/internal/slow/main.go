// The program of benchmarks/door_programs.py: it serves orders, and takes its time for each.
//
//	slow URL TOKEN NAME CAPACITY TAKES
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"iris-mesh/clients/go"
)

func main() {
	url, token, name := os.Args[1], os.Args[2], os.Args[3]
	capacity, err := strconv.Atoi(os.Args[4])
	if err != nil {
		log.Fatal(err)
	}
	takes, err := time.ParseDuration(os.Args[5])
	if err != nil {
		log.Fatal(err)
	}
	client, err := iris.Dial(context.Background(), url, iris.Options{Token: token})
	if err != nil {
		log.Fatal(err)
	}
	answer := func(context.Context, *iris.Request) (any, error) {
		time.Sleep(takes)
		return name, nil
	}
	options := iris.ServeOptions{Capacity: capacity, Ready: func(string) { fmt.Println("ready") }}
	service := iris.Service{Requests: map[string]iris.RequestHandler{"": answer}}
	log.Fatal(client.Serve(context.Background(), "orders", service, options))
}
