// Command mangos speaks with a door for nng by mangos, which is another implementation of nng's protocols, and prints
// what it has heard: mangos serve ADDRESS.. answers at each, mangos PROTOCOL ADDRESS MESSAGE says something.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"go.nanomsg.org/mangos/v3"
	"go.nanomsg.org/mangos/v3/protocol/push"
	"go.nanomsg.org/mangos/v3/protocol/rep"
	"go.nanomsg.org/mangos/v3/protocol/req"
	"go.nanomsg.org/mangos/v3/protocol/respondent"
	"go.nanomsg.org/mangos/v3/protocol/sub"
	"go.nanomsg.org/mangos/v3/protocol/surveyor"
	_ "go.nanomsg.org/mangos/v3/transport/ipc"
)

var protocols = map[string]func() (mangos.Socket, error){
	"req": req.NewSocket, "surveyor": surveyor.NewSocket, "push": push.NewSocket, "sub": sub.NewSocket,
	"rep": rep.NewSocket, "respondent": respondent.NewSocket,
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// open returns a socket that is connected with an address, whose end names its protocol unless one is given.
func open(protocol, address string) mangos.Socket {
	socket, err := protocols[protocol]()
	must(err)
	if protocol != "push" {
		must(socket.SetOption(mangos.OptionRecvDeadline, 30*time.Second))
	}
	if protocol == "sub" {
		must(socket.SetOption(mangos.OptionSubscribe, "orders."))
	}
	if protocol == "surveyor" {
		must(socket.SetOption(mangos.OptionSurveyTime, 30*time.Second))
	}
	must(socket.Dial(address))
	return socket
}

func hear(socket mangos.Socket) []byte {
	heard, err := socket.Recv()
	must(err)
	return heard
}

// serve answers each request with its own payload, in capitals.
func serve(address string) {
	protocol := address[strings.LastIndex(address, ".")+1:]
	socket := open(protocol, address)
	must(socket.SetOption(mangos.OptionRecvDeadline, time.Hour))
	for {
		_, payload, _ := bytes.Cut(hear(socket), []byte("\n"))
		must(socket.Send(append([]byte("200 text\n"+protocol+": "), bytes.ToUpper(payload)...)))
	}
}

func main() {
	if os.Args[1] == "serve" {
		for _, address := range os.Args[2:] {
			go serve(address)
		}
		select {}
	}
	protocol, address := os.Args[1], os.Args[2]
	socket := open(protocol, address)
	if protocol == "sub" {
		fmt.Println("ready")
	} else {
		must(socket.Send([]byte(os.Args[3])))
	}
	if protocol == "push" {
		time.Sleep(time.Second) // mangos says nothing of what is on its way
		return
	}
	fmt.Printf("%s\n", hear(socket))
}
