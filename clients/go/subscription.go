package iris

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Unknown is the number of events that were lost while nobody counted.
const Unknown = -1

// Event is what a subscription gets.
type Event struct {
	Topic    string
	Payload  Payload
	Headers  map[string]string
	Retained bool // it was published before the subscription began
	Missed   int  // events that were lost before this one; Unknown if the connection was lost
	Gap      bool // this is no event, and tells of Missed alone
}

// Subscription is a following of topics, which connects again when the connection is lost.
type Subscription struct {
	client *Client
	query  url.Values
	ctx    context.Context
	end    context.CancelCauseFunc
	events chan Event
	ended  chan struct{} // closed with the reason in err
	err    error
}

// Subscribe follows the topics of a pattern, such as "orders.>".  See SubscribeGroup.
func (c *Client) Subscribe(ctx context.Context, topic string) (*Subscription, error) {
	return c.SubscribeGroup(ctx, "", topic)
}

// SubscribeGroup follows the topics of patterns; each event goes to one of those subscriptions of this client's token
// that have the group.  Without a group each gets all.
//
// When it returns, the door follows: what is published after that arrives, or is counted as missed.  The context
// bounds SubscribeGroup alone; the subscription lasts until it is closed, and takes a connection and some memory until then.
//
// A connection that is lost is made anew, after 0.1 s, then less often up to every 5 s; the first item after that is a
// Gap of Unknown.  Events that wait for a program that does not receive are lost beyond 1,024 or 1 MiB, and counted.
func (c *Client) SubscribeGroup(ctx context.Context, group string, topics ...string) (*Subscription, error) {
	opening, done, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	s := &Subscription{
		client: c, query: url.Values{"topic": topics}, events: make(chan Event), ended: make(chan struct{}),
	}
	if group != "" {
		s.query.Set("group", group)
	}
	s.ctx, s.end = context.WithCancelCause(c.ctx)
	stop := context.AfterFunc(opening, func() { s.end(context.Cause(opening)) })
	first, err := s.open("")
	if !stop() { // the context has ended, and with it what was opened
		return nil, broken(opening, err)
	}
	if err != nil {
		s.end(err)
		return nil, err
	}
	go s.follow(first)
	return s, nil
}

// Next waits for an event.  When the context ends first it returns the context's error, and no event is lost.  After
// Close it fails with ErrClosed; any other failure is the end of the subscription as well.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	select {
	case event := <-s.events:
		return event, nil
	case <-s.ended:
		return Event{}, s.err
	case <-ctx.Done():
		return Event{}, context.Cause(ctx)
	}
}

// All returns the events as they come, until Next fails: that error is the last item.  Leaving the loop does not close
// the subscription.
func (s *Subscription) All(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			event, err := s.Next(ctx)
			if !yield(event, err) || err != nil {
				return
			}
		}
	}
}

// Close ends the subscription.
func (s *Subscription) Close() error {
	s.end(closed("subscription"))
	<-s.ended
	return nil
}

// stream is one connection of a subscription.
type stream struct {
	body    *http.Response
	lines   *bufio.Scanner
	silence *time.Timer // ends it
	ctx     context.Context
	cancel  context.CancelCauseFunc
}

// open connects; last is the id of the last event, empty if there was no connection before.
func (s *Subscription) open(last string) (*stream, error) {
	made := &stream{}
	made.ctx, made.cancel = context.WithCancelCause(s.ctx)
	made.silence = time.AfterFunc(s.client.options.Silence, func() { made.cancel(errSilent) })
	header := http.Header{}
	if last != "" {
		header.Set("Last-Event-Id", last)
	}
	answer, err := s.client.send(made.ctx, http.MethodGet, s.client.address("subscribe", "", s.query), header, nil)
	if err != nil {
		made.close()
		return nil, err
	}
	made.body, made.lines = answer, bufio.NewScanner(answer.Body)
	made.lines.Buffer(nil, maxBody)
	return made, nil
}

func (s *stream) close() {
	s.silence.Stop()
	s.cancel(context.Canceled)
	if s.body != nil {
		s.body.Body.Close()
	}
}

// follow hands on what comes, and connects again, until the subscription is closed or has no hope.
func (s *Subscription) follow(connected *stream) {
	defer close(s.ended)
	last := "-" // some id: by it the door knows that there was a connection before
	var pause pause
	var err error
	for {
		if connected != nil {
			pause = 0
			err = s.read(connected, &last)
			connected.close()
		}
		if s.ctx.Err() != nil {
			err = broken(s.ctx, nil)
		}
		if s.err = err; !mayComeBack(err) {
			s.end(err)
			return
		}
		if pause.wait(s.ctx) == nil {
			connected, err = s.open(last)
		}
	}
}

// read hands on the events of one connection until it ends.  Source: WHATWG HTML, "Server-sent events".
func (s *Subscription) read(connected *stream, last *string) error {
	kind := ""
	for connected.lines.Scan() {
		connected.silence.Reset(s.client.options.Silence)
		name, value, _ := bytes.Cut(connected.lines.Bytes(), []byte(": "))
		switch string(name) {
		case "event":
			kind = string(value)
		case "id":
			*last = string(value)
		case "data":
			event, err := eventOf(kind, value)
			if err != nil {
				return err
			}
			kind = ""
			connected.silence.Stop() // of the program, which may take its time
			select {
			case s.events <- event:
			case <-connected.ctx.Done():
			}
			connected.silence.Reset(s.client.options.Silence)
		}
	}
	err := connected.lines.Err()
	if err == nil {
		err = errCut
	}
	return broken(connected.ctx, err)
}

// eventOf reads the data of a server-sent event; the error is that by which the door ends the stream.
func eventOf(kind string, data []byte) (Event, error) {
	var told struct {
		envelope
		problem
		Topic    string            `json:"topic"`
		Headers  map[string]string `json:"headers"`
		Retained bool              `json:"retained"`
		Missed   *int              `json:"missed"`
	}
	if err := json.Unmarshal(data, &told); err != nil {
		return Event{}, violation("an event cannot be read: %v", err)
	}
	missed := Unknown
	if told.Missed != nil {
		missed = *told.Missed
	}
	switch kind {
	case "end":
		return Event{}, told.failure()
	case "gap":
		return Event{Gap: true, Missed: missed}, nil
	}
	payload, err := told.open()
	return Event{
		Topic: told.Topic, Payload: payload, Headers: told.Headers, Retained: told.Retained, Missed: missed,
	}, err
}
