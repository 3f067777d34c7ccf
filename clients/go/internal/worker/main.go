// Command worker does the jobs of a queue, and writes the payload of each that it has done into a file.
//
// It is made to be killed, which is not the fault of its jobs: so it takes many failed attempts to make one a dead letter.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"

	"iris-mesh/clients/go"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
}

func run(address, queue, record, limit string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	file, err := os.OpenFile(record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	client, err := iris.Dial(ctx, address, iris.Options{Token: os.Getenv("TOKEN")})
	if err != nil {
		return err
	}
	defer client.Close()
	jobs, err := strconv.Atoi(limit)
	if err != nil {
		return err
	}
	return client.Work(ctx, queue, func(_ context.Context, job *iris.Job) error {
		_, err := fmt.Fprintf(file, "%s\n", job.Payload.Data)
		return err
	}, iris.WorkOptions{Limit: jobs, Attempts: 1000, Ready: func() { fmt.Println("ready") }})
}
